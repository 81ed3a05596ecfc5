"""The benchmark of vLLM with and without the drafter; `make test-vllm` runs it."""

import pytest

ALONE, DRAFTING = "vLLM", "vLLM with the drafter"


@pytest.mark.vllm
def test_both_forms_take_turns_and_write_the_same(run, load_benchmark, capsys):
    arguments = ("--models", "demo", "--clients", 1, 3, "--rounds", 2, "--new-tokens", 12, "--eager")
    cells = run("vllm_speed", *arguments)["results"]
    assert [(cell["model"], cell["clients"]) for cell in cells] == [("demo", 1), ("demo", 3)]
    for cell in cells:
        assert cell["same_texts"] == {"same": 2 * cell["clients"], "texts": 2 * cell["clients"]}
        assert cell["tokens_per_second"].keys() == {ALONE, DRAFTING}
        assert all(0 < each["min"] <= each["median"] <= each["max"] for each in cell["tokens_per_second"].values())
        assert len(cell["accepted_by_place"]) == 8 and cell["tokens_per_step"] > 2
    assert load_benchmark("vllm_speed").table(cells) in capsys.readouterr().out
