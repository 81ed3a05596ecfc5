"""The benchmark of vLLM, whose environment lacks what the other scripts need."""

import pytest


@pytest.mark.vllm
def test_vllm_with_and_without_the_drafter_writes_the_same(run, load_benchmark, capsys):
    arguments = ("--models", "demo", "--clients", 1, 3, "--rounds", 2, "--new-tokens", 12, "--eager")
    cells = run("vllm_speed", *arguments)["results"]
    assert [(cell["model"], cell["clients"]) for cell in cells] == [("demo", 1), ("demo", 3)]
    for cell in cells:
        assert cell["same_texts"] == {"same": 2 * cell["clients"], "texts": 2 * cell["clients"]}
        assert cell["tokens_per_step"] > 2
    assert load_benchmark("vllm_speed").table(cells) in capsys.readouterr().out
