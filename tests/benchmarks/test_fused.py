"""The benchmark of fused models: steps beside the floor, operators of a layer, and speeds in turns."""

from collections import namedtuple

import pytest
import torch

from wedlm.fused import product


@pytest.mark.full
def test_steps_are_measured_beside_the_floor(run, load_benchmark, capsys):
    results = run("fused", "--shape", "tiny", "--dtypes", "float32", "--repeats", 2)["results"]
    assert results["product"] == (product.SET or "torch") and results["speed"] == {} and "operators" not in results
    steps = results["steps"]["float32"]
    assert set(steps) == {"WeDLM", "fused", "fused, int8", "floor"} and set(steps["floor"]["milliseconds"]) == {"1"}
    for name in ("WeDLM", "fused"):
        cells = steps[name]["milliseconds"]
        assert set(cells) == {"1", "2", "4", "8", "16"}
        for tokens, cell in cells.items():
            assert 0 < cell["min"] <= cell["median"] <= cell["max"]
            assert steps[name]["times_first"][tokens] == pytest.approx(cell["median"] / cells["1"]["median"])
    assert load_benchmark("fused").table(results) in capsys.readouterr().out


def test_operators_of_one_layer_are_counted(load_benchmark, tiny_model):
    operators = load_benchmark("fused").LayerOperators(tiny_model.model.layers[1])
    tokens = torch.tensor([[5, 6, 7]])
    with torch.no_grad(), operators:
        tokens + 1
        tiny_model(tokens)
        tiny_model(tokens)
    assert len(operators.counts) == 2 and operators.counts[0] == operators.counts[1]
    assert 25 < operators.counts[0] < 60, "seven products, two norms, a rotation, attention and what is between them"


def test_speeds_are_multiples_of_the_first_way(load_benchmark, monkeypatch):
    benchmark = load_benchmark("fused")
    Written = namedtuple("Written", ["tokens", "forwards"])
    seconds = {"slow": 4.0, "fast": 2.0}

    def way(name, tokens):
        return lambda batch, new_tokens: Written([tokens] * len(batch), None if name == "slow" else [2] * len(batch))

    def turns(calls, device, rounds, num_warm_up, first):
        Turn = namedtuple("Turn", ["name", "result", "seconds"])
        for name, call in list(calls.items()) * rounds:
            yield Turn(name, call(), seconds[name])

    monkeypatch.setattr(benchmark, "take_turns", turns)
    ways = {"slow": way("slow", [1, 2, 3, 4]), "fast": way("fast", [1, 2, 3, 4])}
    results = benchmark.speed_of(ways, [[7], [8], [9], [6]], 2, new_tokens=4, rounds=3)
    assert results["slow"]["tokens_per_second"]["median"] == 2 and results["fast"]["times"]["median"] == 2
    assert results["fast"]["same_texts"] == 4 and results["fast"]["tokens_per_forward"] == 2
    assert "tokens_per_forward" not in results["slow"]
