"""Choices under lm-eval's names."""

from wedlm.evaluation.choices import Choices


def test_choices_about_generation_have_lm_evals_names():
    assert Choices().generation_arguments() == {}
    assert Choices(max_new_tokens=5, temperature=0.8).generation_arguments() == {
        "max_gen_toks": 5, "do_sample": True, "temperature": 0.8
    }  # fmt: skip
    assert Choices(temperature=0).generation_arguments() == {"do_sample": False, "temperature": 0}
