"""A figure of decoding is measured on the demo checkpoint and goes on where it was stopped."""

import json
import sys

import pytest

from wedlm.evaluation import sweep
from wedlm.evaluation.decodings import BASELINE, label_of


@pytest.fixture
def ablations(load_benchmark, monkeypatch):
    monkeypatch.setattr(sweep, "NUM_RESAMPLES", 100)
    module = load_benchmark("ablations")
    module.decoded_with, measure = [], module.measure

    def measured(figure, model, *others):
        config = model.generation_config
        module.decoded_with.append((config.entropy_threshold, config.distance_penalty))
        return measure(figure, model, *others)

    monkeypatch.setattr(module, "measure", measured)
    return module


@pytest.fixture
def run(ablations, monkeypatch, tmp_path):
    """Makes a figure from one question of each kind and few settings."""

    def run(name: str):
        figure = ablations.FIGURES[name]
        few = dict(list(figure.decodings.items())[:2])
        monkeypatch.setitem(ablations.FIGURES, name, figure._replace(decodings=few))
        words = [name, "--num-questions", "1", "--out", tmp_path, "--plots", tmp_path, "--work", tmp_path / "work"]
        monkeypatch.setattr(sys, "argv", [ablations.__file__, *map(str, words)])
        ablations.main()
        return json.loads((tmp_path / f"ablation_{name.replace('-', '_')}.json").read_text())

    return run


@pytest.mark.parametrize("name", ["threshold", pytest.param("streaming-blockwise", marks=pytest.mark.slow)])
def test_a_figure_is_one_command_a_file_and_a_plot(run, ablations, tmp_path, capsys, name):
    report = run(name)
    together = report["results"]["all"]
    assert list(report["results"]) == ["word_problems", "equations", "all"] and len(together) == 3
    assert together[BASELINE]["num_questions"] == 2 and together[BASELINE]["times_autoregressive"]["median"] == 1
    for label, summary in together.items():
        halves = [report["results"][kind][label]["quality"] for kind in ("word_problems", "equations")]
        assert summary["quality"] == sum(halves) / 2 and label_of(summary["arguments"]) == label
    assert (tmp_path / f"{name.replace('-', '_')}.png").read_bytes().startswith(b"\x89PNG")
    assert ablations.table(report["results"]) in capsys.readouterr().out
    assert report["command"] and report["device"] and len(report["weights_sha256"]) == 64
    assert (report["entropy_threshold"], report["distance_penalty"]) == (0.4, 0.02), "the paper's, for any checkpoint"
    assert ablations.decoded_with == [(0.4, 0.02)]


@pytest.mark.full
def test_an_interrupted_figure_goes_on_and_gives_the_same_table(run, ablations, monkeypatch, tmp_path):
    whole = run("penalty")
    kept = list((tmp_path / "work").iterdir())[0].read_text().splitlines()
    assert len(kept) == 2, "a line for each question"
    (tmp_path / "ablation_penalty.json").unlink()
    monkeypatch.setattr("wedlm.evaluation.sweep.write", None)  # nobody is asked again
    assert run("penalty")["results"] == whole["results"]
