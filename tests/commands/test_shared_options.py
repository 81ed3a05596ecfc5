"""The options of the commands, and values that are refused."""

import pytest
from command_line import SHORT, run

from wedlm.commands.shared_options import MOVED, GenerationOptions, check_out_file, model_and_prompts


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": float("inf")}, "--temperature inf is not a temperature; "),
        ({"temperature": 1.0, "top_p": 1.5}, "--top-p 1.5 is not a share; "),
        ({"top_p": 0.5}, "--top-p 0.5 needs draws, and there are none; "),
        ({"seed": 2**63}, f"--seed {2**63} is not a seed; "),
        ({"max_new_tokens": 0}, "--max-new-tokens 0 leaves no room for an answer; "),
        ({"entropy_threshold": "low"}, "--entropy-threshold low is neither a number of nats nor none"),
    ],
    ids=str,
)
def test_values_that_are_refused(options, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        GenerationOptions(**options).arguments()


@pytest.mark.parametrize(
    ("words", "model", "old", "prompts"),
    [
        (["Why?"], GenerationOptions.model, None, ["Why?"]),
        (["there", "Why?"], "there", None, ["Why?"]),
        (["there", "Why?", "How?"], "there", None, ["Why?", "How?"]),
        (["Why?"], "there", "there", ["Why?"]),
        (["Why is it?", "How?"], GenerationOptions.model, "", ["Why is it?", "How?"]),  # two prompts
    ],
)
def test_the_model_comes_before_the_prompts(capsys, words, model, old, prompts):
    options = GenerationOptions(model=old) if old else GenerationOptions()
    assert model_and_prompts(words, options, None) == (GenerationOptions(model=model), prompts)
    assert capsys.readouterr().err == ("" if old is None else f"{MOVED}\n")


def test_the_old_option_names_the_model_too(checkpoint):
    new, old = (run("chat", *words, *SHORT, input="hi\n") for words in ([checkpoint], ["--model", checkpoint]))
    assert (old.exit_code, old.stdout) == (0, new.stdout) and MOVED in old.stderr and MOVED not in new.stderr


def test_options_that_are_not_given_are_no_arguments():
    assert GenerationOptions().arguments() == {"max_new_tokens": 256, "do_sample": False}
    options = GenerationOptions(
        decoding="streaming", entropy_threshold="None", distance_penalty=0.0, temperature=0.5, top_p=0.9, seed=1
    )
    assert options.arguments() == {
        "decoding": "streaming", "entropy_threshold": None, "distance_penalty": 0.0,
        "temperature": 0.5, "top_p": 0.9, "max_new_tokens": 256, "do_sample": True,
    }  # fmt: skip


def test_a_file_that_cannot_be_written_or_exists(tmp_path):
    file = tmp_path / "eval.json"
    check_out_file("--out", file, overwrite=False)
    file.touch()
    check_out_file("--out", file, overwrite=True)
    with pytest.raises(ValueError, match="--out .*eval.json exists; choose another file, or pass --overwrite.$"):
        check_out_file("--out", file, overwrite=False)
    for out in (tmp_path, tmp_path / "no" / "eval.json"):
        with pytest.raises(ValueError, match="cannot be written; give the name of a file in a folder that you may"):
            check_out_file("--out", out, overwrite=True)
