"""A step is a plain forward, and it is measured beside the floors of the hardware."""

import pytest
import torch


@pytest.mark.full
def test_a_step_is_measured_beside_its_floors(run, load_benchmark, capsys):
    report = run("step", "--shape", "tiny", "--rows", 1, 8, "--lengths", 16, 64, "--repeats", 3)
    results = report["results"]
    assert [(step["rows"], step["length"]) for step in results["steps"]] == [(1, 16), (8, 16), (1, 64), (8, 64)]
    # Two layers of width 64: four projections of attention and three of the MLP, and the head; float32, no embeddings.
    weights = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64 + 2 * 16) + 64 + 512 * 64
    of = {(step["rows"], step["length"]): step for step in results["steps"]}
    for step in results["steps"]:
        entries = 2 * (step["length"] + step["rows"])
        read = 4 * (weights + 2 * entries * 2 * 16)
        done = 2 * step["rows"] * weights + 4 * step["rows"] * entries * 4 * 16
        assert step["memory_floor_milliseconds"] == pytest.approx(1e3 * read / results["bytes_per_second"])
        assert step["arithmetic_floor_milliseconds"] == pytest.approx(1e3 * done / results["operations_per_second"])
        taken, shortest = step["milliseconds"], of[step["rows"], 16]
        assert 0 < taken["min"] <= taken["median"] <= taken["max"]
        more = step["attention_milliseconds"] - shortest["attention_milliseconds"]
        assert step["predicted_milliseconds"] == pytest.approx(shortest["milliseconds"]["median"] + more)
    out = capsys.readouterr().out
    assert load_benchmark("step").table(results) in out
    assert "Microseconds for one query more: " in out and "Microseconds for one entry more: " in out


def test_the_step_is_that_of_a_plain_forward(load_benchmark, tiny_model):
    with torch.no_grad():
        step = load_benchmark("step").Step(tiny_model, batch_size=2, num_queries=3, length=7)
        twice = [step(), step()]
    assert torch.equal(*twice) and twice[0].shape == (2, 3, 512)
    assert step.cache.lengths.tolist() == [7, 7]
