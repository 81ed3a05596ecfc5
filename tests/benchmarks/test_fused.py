"""The benchmark of fused models: steps beside the floor."""

import pytest

from wedlm.fused import product


@pytest.mark.full
def test_steps_are_measured_beside_the_floor(run, load_benchmark, capsys):
    results = run("fused", "--shape", "tiny", "--dtypes", "float32", "--repeats", 2)["results"]
    assert results["product"] == (product.SET or "torch")
    steps = results["steps"]["float32"]
    assert set(steps) == {"WeDLM", "fused", "fused, int8", "floor"} and set(steps["floor"]["milliseconds"]) == {"1"}
    for name in ("WeDLM", "fused"):
        cells = steps[name]["milliseconds"]
        assert set(cells) == {"1", "2", "4", "8", "16"}
        for tokens, cell in cells.items():
            assert 0 < cell["min"] <= cell["median"] <= cell["max"]
            assert steps[name]["times_first"][tokens] == pytest.approx(cell["median"] / cells["1"]["median"])
    assert load_benchmark("fused").table(results) in capsys.readouterr().out
