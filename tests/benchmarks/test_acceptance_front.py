"""The front of the acceptance ratio is measured on the demo checkpoint, and its findings follow the numbers."""

import json

import pytest
from helpers import REPOSITORY

from examples.demo.tasks import KINDS
from wedlm.evaluation import resampling
from wedlm.evaluation.decodings import BASELINE, label_of


@pytest.fixture
def front(load_benchmark):
    return load_benchmark("acceptance_front")


def summary(quality, speed, **arguments):
    return {
        "quality": quality, "arguments": arguments, "tokens_per_forward": 2 * speed,
        "times_autoregressive": {"median": speed},
    }  # fmt: skip


def results_of(*streaming):
    """Verified decoding with two ratios: exact, and faster with fewer right answers; and these points of streaming."""
    summaries = [
        summary(1.0, 1.0, decoding=BASELINE),
        summary(1.0, 3.0, decoding="verified", acceptance_ratio=1.0),
        summary(0.8, 4.0, decoding="verified", acceptance_ratio=0.1),
        *(summary(*point, decoding="streaming", entropy_threshold=0.1 + i) for i, point in enumerate(streaming)),
    ]
    return {label_of(summary["arguments"]): summary for summary in summaries}


def test_streaming_is_in_front_where_no_ratio_is_as_right_and_as_fast(front):
    matched = [(1.0, 3.0), (0.9, 2.0), (0.8, 4.0), (0.1, 3.9)]
    assert front.unmatched(results_of(*matched)) == []
    ahead = front.unmatched(results_of(*matched, (0.1, 4.1), (0.81, 3.1)))
    assert [(one["quality"], one["times_autoregressive"]["median"]) for one in ahead] == [(0.1, 4.1), (0.81, 3.1)]


def test_findings_name_what_was_found(front):
    behind, ahead = results_of((0.8, 4.0)), results_of((0.1, 4.1), (0.81, 3.1))
    text = front.findings({kind: ahead if kind == "stories" else behind for kind in KINDS})
    assert "On 5 of 6 kinds of questions (counting, word problems, equations, records, functions), each" in text
    assert "there are 5 such kinds (counting, " in text
    assert "- Counting. Streaming is nowhere in front.\n" in text
    assert "- Stories. Streaming is in front with threshold 0.1 and 1.1: it has at most 81 % right, at 3.1" in text
    none = front.findings(dict.fromkeys(KINDS, ahead))
    assert "On 0 of 6 kinds of questions (none), each" in none and "there are 0 such kinds (none).\n" in none


def test_the_recorded_front_is_of_a_commit_and_of_this_checkpoint(front):
    report = json.loads((REPOSITORY / "benchmarks" / "results" / "acceptance_front.json").read_text())
    weights = json.loads((REPOSITORY / "hub_card" / "wedlm-demo" / "report.json").read_text())["weights_sha256"]
    assert len(report["commit"]) == 40 and report["weights_sha256"] == weights and report["num_questions"] >= 30
    assert list(report["results"]) == [*KINDS, "all"]
    for of_kind in report["results"].values():
        assert list(of_kind) == [BASELINE, *front.FIGURE.decodings]
        assert of_kind["verified, window 16, ratio 1.0"]["quality_over_autoregressive"] == 0


@pytest.mark.slow
def test_a_front_is_one_command_a_file_and_a_plot(run, front, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(resampling, "NUM_RESAMPLES", 100)
    few = dict(list(front.FIGURE.decodings.items())[5:7])
    monkeypatch.setattr(front, "FIGURE", front.FIGURE._replace(decodings=few))
    plot = tmp_path / "front.png"
    report = run("acceptance_front", "--num-questions", 1, "--plot", plot, "--work", tmp_path / "work")
    assert list(report["results"]) == [*KINDS, "all"] and report["command"] and report["device"]
    assert report["distance_penalty"] == 0.02, "the paper's, for any checkpoint"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert front.table(report["results"]) in capsys.readouterr().out and front.findings(report["results"])
