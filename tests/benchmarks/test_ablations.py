"""The figures of decoding: measured on a few questions, shown from the numbers alone, and the page that they make."""

import importlib
import json
import re
import sys

import pytest
from helpers import REPOSITORY

from wedlm.evaluation import resampling
from wedlm.evaluation.decodings import BASELINE, label_of

BENCHMARKS = REPOSITORY / "benchmarks"
NAMES = ("threshold", "penalty", "streaming-blockwise", "pareto", "window", "kinds")


@pytest.fixture
def ablations(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(resampling, "NUM_RESAMPLES", 100)
    return importlib.import_module("ablations")


@pytest.fixture
def run(ablations, monkeypatch, tmp_path):
    """With one question of a kind and few settings."""

    def run(name: str):
        figure = ablations.FIGURES[name]
        few = dict(list(figure.decodings.items())[:2])
        monkeypatch.setitem(ablations.FIGURES, name, figure._replace(decodings=few))
        words = [name, "--num-questions", "1", "--out", tmp_path, "--plots", tmp_path, "--work", tmp_path / "work"]
        monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / "ablations.py"), *map(str, words)])
        ablations.main()
        return json.loads((tmp_path / f"ablation_{name.replace('-', '_')}.json").read_text())

    return run


@pytest.mark.parametrize("name", ["pareto", pytest.param("streaming-blockwise", marks=pytest.mark.slow)])
def test_a_figure_is_one_command_a_file_and_a_plot(run, ablations, tmp_path, capsys, name):
    report = run(name)
    rows = report["results"]["all"]
    assert list(report["results"]) == ["word_problems", "equations", "all"] and len(rows) == 3
    assert rows[BASELINE]["num_questions"] == 2 and rows[BASELINE]["times_autoregressive"]["median"] == 1
    for label, row in rows.items():
        halves = [report["results"][kind][label]["quality"] for kind in ("word_problems", "equations")]
        assert row["quality"] == sum(halves) / 2 and label_of(row["arguments"]) == label
    assert (tmp_path / f"{name.replace('-', '_')}.png").read_bytes().startswith(b"\x89PNG")
    assert ablations.table(report["results"]) in capsys.readouterr().out
    assert report["command"] and report["device"] and len(report["weights_sha256"]) == 64


def test_an_interrupted_figure_goes_on_and_gives_the_same_table(run, ablations, monkeypatch, tmp_path):
    whole = run("window")
    kept = list((tmp_path / "work").iterdir())[0].read_text().splitlines()
    assert len(kept) == 2, "a line for each question"
    (tmp_path / "ablation_window.json").unlink()
    monkeypatch.setattr("wedlm.evaluation.sweep.write", None)  # nobody is asked again
    assert run("window")["results"] == whole["results"]


def test_plots_show_every_setting_with_its_bars(ablations):
    report = json.loads((BENCHMARKS / "results" / "ablation_threshold.json").read_text())
    quality, speed = ablations.panels("threshold", report["results"])
    rows = [row for label, row in report["results"]["all"].items() if label != BASELINE]
    (points,) = quality.lines.values()
    assert [point.x for point in points] == [row["arguments"]["entropy_threshold"] for row in rows]
    assert [point.y for point in points] == [100 * row["quality"] for row in rows]
    assert all(point.low <= point.y <= point.high for point in [*points, *speed.lines["streaming"]])
    assert quality.baseline == 100 * report["results"]["all"][BASELINE]["quality"]


# --- docs/EVIDENCE.md ---


@pytest.fixture
def evidence(ablations):
    return importlib.import_module("evidence")


def test_the_page_is_written_from_the_files(evidence):
    """And so is every number on it, but for those of the paper."""
    assert (REPOSITORY / "docs" / "EVIDENCE.md").read_text(encoding="utf-8") == evidence.page()
    for described in evidence.SECTIONS:
        assert not re.findall(r"\d", "".join(described.why.values())), "a reason has no number of its own"
    assert {described.name for described in evidence.SECTIONS} >= {*NAMES, "block-size", "inside-block"}


def test_the_files_are_of_a_commit_and_of_this_checkpoint(evidence):
    weights = json.loads((REPOSITORY / "hub_card" / "wedlm-demo" / "report.json").read_text())["weights_sha256"]
    for name in NAMES:
        report = evidence.report_of(name)
        assert len(report["commit"]) == 40, "a commit, without changes"
        assert report["weights_sha256"] == weights and report["num_questions"] >= 100
        assert report["command"] == f"python benchmarks/ablations.py {name}"
        assert set(report["results"]["all"]) == {BASELINE, *evidence.ablations.FIGURES[name].decodings}


def test_plots_lie_beside_the_page(evidence):
    page = (REPOSITORY / "docs" / "EVIDENCE.md").read_text(encoding="utf-8")
    plots = re.findall(r"!\[.*\]\((.*)\)", page)
    assert len(plots) == len(evidence.SECTIONS)
    assert all((REPOSITORY / "docs" / plot).read_bytes().startswith(b"\x89PNG") for plot in plots)


def row(quality, speed, **arguments):
    return {
        "quality": quality, "num_questions": 200, "arguments": {"decoding": "streaming", **arguments},
        "tokens_per_forward": 2.0, "times_autoregressive": {"median": speed}, "prefix_cacheability": 0.5,
    }  # fmt: skip


def labelled(*rows):
    base = {"quality": 1.0, "arguments": {"decoding": BASELINE}, "times_autoregressive": {"median": 1.0}}
    return {"all": {BASELINE: base} | {label_of(row["arguments"]): row for row in rows}}


def test_verdicts_and_reasons_follow_the_numbers(evidence):
    def said(finding):
        return f"{finding.verdict}, {finding.outcome}"

    def threshold(*qualities):
        rows = [row(q, 2.0, entropy_threshold=t) for q, t in zip(qualities, (0.1, 0.5, 1.5), strict=True)]
        return said(evidence.judge_threshold(labelled(*rows)))

    assert [threshold(0.9, 0.89, 0.5), threshold(0.9, 0.8, 0.5), threshold(0.9, 0.89, 0.88)] == [
        "Agrees, falls late", "Differs, falls early", "Cannot be judged, within noise"
    ]  # fmt: skip

    def penalty(gained, speed):
        rows = [row(0.8, 3.0, distance_penalty=0.01), row(0.8 + gained, speed, distance_penalty=0.05)]
        return said(evidence.judge_penalty(labelled(*rows)))

    made = [penalty(0.1, 2.9), penalty(-0.1, 2.9), penalty(0.1, 2.0), penalty(0.02, 2.9)]
    assert made == [
        "Agrees, better", "Differs, worse", "Differs, better and slower", "Cannot be judged, within noise"
    ]  # fmt: skip

    def pareto(careful, fast, exact=1.0):
        (good, slow), (bad, quick) = careful, fast
        rows = [
            row(good, slow, entropy_threshold=0.2, distance_penalty=0.01),
            row(bad, quick, entropy_threshold=0.9, distance_penalty=0.01),
            row(exact, 2.0, decoding="verified", window_size=8),
        ]
        return said(evidence.judge_pareto(labelled(*rows)))

    made = [
        pareto((0.9, 2), (0.7, 3)),
        pareto((0.9, 2), (0.7, 1.5)),
        pareto((0.9, 2), (0.89, 3)),
        pareto((0.7, 2), (0.9, 3)),
        pareto((0.9, 2), (0.7, 3), exact=0.9),
    ]
    assert made == [
        "Agrees, verified in front", "Differs, speed costs nothing", "Cannot be judged, within noise",
        "Differs, speed costs nothing", "Agrees, speed costs answers",
    ]  # fmt: skip

    def window(*qualities):
        sizes = dict(zip((2, 8, 16), qualities, strict=True))
        streaming = [row(quality, 2.0, window_size=size) for size, quality in sizes.items()]
        return said(evidence.judge_window(labelled(*streaming, row(1.0, 3.0, decoding="verified", window_size=8))))

    keeps, loses = "Cannot be judged, keeps", "Cannot be judged, loses with many"
    assert [window(1, 1, 1), window(1, 1, 0.9), window(0.9, 0.9, 0.9), window(1, 0.9, 1)] == [
        keeps, loses, loses, keeps
    ]  # fmt: skip

    def streaming(*speeds, lost=0.0):
        rows = [
            row(0.5 - lost * (decoding == "streaming"), speed, decoding=decoding, entropy_threshold=threshold)
            for threshold, pair in zip((0.1, 0.9), speeds, strict=True)
            for decoding, speed in zip(("streaming", "blockwise"), pair, strict=True)
        ]
        return said(evidence.judge_streaming(labelled(*rows)))

    made = [streaming((2, 1), (3, 2), lost=-0.1), streaming((2, 1), (3, 2), lost=0.1), streaming((2, 1), (2, 3))]
    assert made == ["Agrees, faster", "Agrees, faster and less right", "Differs, not always faster"]

    def kinds(*filled):
        names = ("counting", "equations", "stories")
        rows = {
            kind: dict.fromkeys(("streaming", "verified"), {"tokens_per_forward": value})
            for kind, value in zip(names, filled, strict=True)
        }
        return said(evidence.judge_kinds(rows))

    assert [kinds(9, 5, 2), kinds(5, 9, 2), kinds(5, 2, 9)] == [
        "Agrees, the paper's order", "Differs, counting behind equations", "Differs, another order"
    ]  # fmt: skip

    def training(judge, decoding, *models, reference, interval=(0.01, 0.2)):
        rows = [
            {"model": name, "accuracy": share, "decoding": decoding, "kind": "both",
             "over_reference": share - reference, "over_reference_interval": list(interval)}
            for name, share in models
        ]  # fmt: skip
        base = {"model": "base", "accuracy": 0.5, "decoding": "token by token", "kind": "both"}
        return said(judge({"rows": [*rows, base]}))

    def sizes(*shares, **more):
        models = zip(("4", "8", "32"), shares, strict=True)
        return training(evidence.judge_block_size, "window of 6", *models, reference=shares[2], **more)

    assert sizes(0.2, 0.3, 0.1, interval=(-0.1, 0.1)) == "Agrees, within noise"
    assert sizes(0.2, 0.3, 0.1) == "Differs, smaller blocks are better"
    assert sizes(0.2, 0.3, 0.4) == "Differs, large blocks are better"
    assert sizes(0.01, 0.02, 0.0) == "Cannot be judged, at the floor"

    def inside(causal, bidirectional, **more):
        models = (("causal", causal), ("bidirectional", bidirectional))
        return training(evidence.judge_inside_block, "window of its blocks", *models, reference=causal, **more)

    assert inside(0.3, 0.2) == "Agrees, causal is better"
    assert inside(0.2, 0.3) == "Differs, bidirectional is better"
    assert inside(0.3, 0.2, interval=(-0.1, 0.1)) == "Cannot be judged, within noise"
    assert inside(0.01, 0.02) == "Cannot be judged, at the floor"


def test_a_number_without_a_reason_is_said_to_have_none(evidence):
    described = evidence.SECTIONS[0]._replace(judge=lambda results: evidence.Finding("Agrees", "unheard of", "It is."))
    text = evidence.section(described, {**evidence.report_of(described.name), "commit": None})
    assert f"It is.\n\n**Agrees**: {evidence.NO_REASON}" in text and "of no commit" in text
