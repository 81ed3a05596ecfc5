"""A figure of decoding is measured on the demo checkpoint and goes on where it was stopped."""

import json
import sys

import pytest

from wedlm.evaluation import sweep
from wedlm.evaluation.decodings import BASELINE, label_of


@pytest.mark.full
def test_a_figure_is_one_command_a_file_and_a_plot(load_benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sweep, "NUM_RESAMPLES", 100)
    ablations = load_benchmark("ablations")
    figure = ablations.FIGURES["threshold"]
    few = dict(list(figure.decodings.items())[:2])
    monkeypatch.setitem(ablations.FIGURES, "threshold", figure._replace(decodings=few))
    words = ["--num-questions", "1", "--out", tmp_path, "--plots", tmp_path, "--work", tmp_path / "work"]
    monkeypatch.setattr(sys, "argv", [ablations.__file__, "threshold", *map(str, words)])

    def report():
        ablations.main()
        return json.loads((tmp_path / "ablation_threshold.json").read_text())

    results = report()["results"]
    assert list(results) == ["word_problems", "equations", "all"] and len(results["all"]) == 3
    assert results["all"][BASELINE]["times_autoregressive"]["median"] == 1
    for label, numbers in results["all"].items():
        halves = [results[kind][label]["quality"] for kind in ("word_problems", "equations")]
        assert numbers["quality"] == sum(halves) / 2 and label_of(numbers["arguments"]) == label
    assert (tmp_path / "threshold.png").read_bytes().startswith(b"\x89PNG")
    assert ablations.table(results) in capsys.readouterr().out
    monkeypatch.setattr("wedlm.evaluation.sweep.write", None)  # nobody is asked again
    assert report()["results"] == results
