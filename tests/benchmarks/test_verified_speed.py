"""The benchmark of verified decoding's speed runs on the demo, and says how it stands to its goals."""

import pytest


@pytest.mark.slow
def test_ways_take_turns_and_write_the_same_text(run, load_benchmark, capsys):
    arguments = ("--models", "demo", "--kinds", "counting", "stories", "--batch-sizes", 1, 2)
    cells = run("verified_speed", *arguments, "--new-tokens", 12, "--repeats", 2)["results"]
    benchmark = load_benchmark("verified_speed")
    assert [(cell["kind"], cell["batch_size"]) for cell in cells] == [
        (kind, size) for size in (1, 2) for kind in ("counting", "stories")
    ]
    for cell in cells:
        assert list(cell["ways"]) == list(benchmark.WAYS)
        for way, measured in cell["ways"].items():
            assert measured["same_texts"] == cell["batch_size"]
            assert measured["tokens"] == cell["ways"][benchmark.TOKEN_BY_TOKEN]["tokens"] <= 12 * cell["batch_size"]
            assert measured["forwards"] <= measured["tokens"], way
            assert 0 < measured["seconds"]["min"] <= measured["seconds"]["median"] <= measured["seconds"]["max"]
        assert cell["ways"][benchmark.TOKEN_BY_TOKEN]["forwards"] == cell["ways"][benchmark.TOKEN_BY_TOKEN]["tokens"]
    printed = capsys.readouterr().out
    assert benchmark.table(cells) in printed and benchmark.goals(cells) in printed
    num_texts = sum(cell["batch_size"] for cell in cells) * len(benchmark.WAYS)
    assert benchmark.same_texts(cells) == f"{num_texts} of {num_texts} texts are those of token by token"
    assert benchmark.same_texts(cells) in printed


def test_shares_are_those_of_the_medians(load_benchmark):
    benchmark = load_benchmark("verified_speed")
    seconds = {way: [4.0, 8.0, 6.0] for way in benchmark.WAYS} | {"window of 4": [3.0, 3.0, 3.0]}
    seconds[benchmark.DEFAULT] = [1.0, 4.0, 2.0]
    assert benchmark.shares(seconds) == {"of_token_by_token": 3.0, "best_window": 4, "of_best_window": 1.5}
    cells = [
        {"model": "demo", "kind": kind, "batch_size": 1, "of_token_by_token": speed, "of_best_window": 2 * speed}
        for kind, speed in (("counting", 0.96), ("stories", 0.97))
    ]
    assert benchmark.goals(cells).splitlines() == [
        "of_token_by_token: 1 of 2 reach 0.97; the least is 0.96 (demo, counting, batch 1)",
        "of_best_window: 2 of 2 reach 0.95; the least is 1.92 (demo, counting, batch 1)",
    ]
