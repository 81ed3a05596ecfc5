"""Verdicts and outcomes follow the numbers."""

import pytest

from wedlm.evaluation.decodings import BASELINE, label_of


@pytest.fixture
def verdicts(load_benchmark):
    return load_benchmark("verdicts")


def said(finding):
    return f"{finding.verdict}, {finding.outcome}"


# --- Decoding ---


def summary(quality, speed, **arguments):
    return {
        "quality": quality, "num_questions": 200, "arguments": {"decoding": "streaming", **arguments},
        "tokens_per_forward": 2.0, "times_autoregressive": {"median": speed}, "prefix_cacheability": 0.5,
    }  # fmt: skip


def results_of(*summaries):
    base = summary(1.0, 1.0, decoding=BASELINE)
    return {"all": {BASELINE: base} | {label_of(summary["arguments"]): summary for summary in summaries}}


@pytest.mark.parametrize(
    ("qualities", "expected"),
    [
        ((0.9, 0.89, 0.5), "Agrees, falls late"),
        ((0.9, 0.8, 0.5), "Differs, falls everywhere"),
        ((0.9, 0.8, 0.79), "Differs, falls early"),
        ((0.9, 0.89, 0.88), "Cannot be judged, within noise"),
    ],
)
def test_the_threshold(verdicts, qualities, expected):
    thresholds = zip(qualities, (0.1, 0.5, 1.5), strict=True)
    summaries = [summary(quality, 2.0, entropy_threshold=threshold) for quality, threshold in thresholds]
    assert said(verdicts.judge_threshold(results_of(*summaries))) == expected


@pytest.mark.parametrize(
    ("gained", "speed", "expected"),
    [
        (0.1, 2.9, "Agrees, better"),
        (-0.1, 2.9, "Differs, worse"),
        (0.1, 2.0, "Differs, better and slower"),
        (0.02, 2.9, "Cannot be judged, within noise"),
    ],
)
def test_the_penalty(verdicts, gained, speed, expected):
    low, high = summary(0.8, 3.0, distance_penalty=0.01), summary(0.8 + gained, speed, distance_penalty=0.05)
    assert said(verdicts.judge_penalty(results_of(low, high))) == expected


@pytest.mark.parametrize(
    ("careful", "fast", "exact", "expected"),
    [
        ((0.9, 2), (0.7, 3), 1.0, "Agrees, verified in front"),
        ((0.9, 2), (0.7, 1.5), 1.0, "Differs, speed costs nothing"),
        ((0.9, 2), (0.89, 3), 1.0, "Cannot be judged, within noise"),
        ((0.7, 2), (0.9, 3), 1.0, "Differs, speed costs nothing"),
        ((0.9, 2), (0.7, 3), 0.9, "Agrees, speed costs answers"),
    ],
)
def test_the_front(verdicts, careful, fast, exact, expected):
    results = results_of(
        summary(*careful, entropy_threshold=0.2, distance_penalty=0.01),
        summary(*fast, entropy_threshold=0.9, distance_penalty=0.01),
        summary(exact, 2.0, decoding="verified", window_size=8),
    )
    assert said(verdicts.judge_pareto(results)) == expected


@pytest.mark.parametrize(
    ("qualities", "outcome"),
    [
        ((1, 1, 1), "keeps"),
        ((1, 1, 0.9), "loses with many"),
        ((0.9, 0.9, 0.9), "loses with many"),
        ((1, 0.9, 1), "keeps"),
        ((1, 1, 0.995), "keeps"),
    ],
)
def test_the_window(verdicts, qualities, outcome):
    streaming = [summary(quality, 2.0, window_size=size) for quality, size in zip(qualities, (2, 8, 16), strict=True)]
    results = results_of(*streaming, summary(1.0, 3.0, decoding="verified", window_size=8))
    assert said(verdicts.judge_window(results)) == f"Cannot be judged, {outcome}"


@pytest.mark.parametrize(
    ("speeds", "lost", "expected"),
    [
        (((2, 1), (3, 2)), -0.1, "Agrees, faster"),
        (((2, 1), (3, 2)), 0.1, "Agrees, faster and less right"),
        (((2, 1), (3, 2)), 0.05, "Agrees, faster"),  # within noise
        (((2, 1), (3, 2)), 0.0, "Agrees, faster"),
        (((2, 1), (2, 3)), 0.0, "Differs, not always faster"),
    ],
)
def test_streaming_against_blockwise_decoding(verdicts, speeds, lost, expected):
    """Pairs of speeds are of streaming and blockwise decoding at one threshold."""
    summaries = [
        summary(0.5 - lost * (decoding == "streaming"), speed, decoding=decoding, entropy_threshold=threshold)
        for threshold, pair in zip((0.1, 0.9), speeds, strict=True)
        for decoding, speed in zip(("streaming", "blockwise"), pair, strict=True)
    ]
    assert said(verdicts.judge_streaming(results_of(*summaries))) == expected


@pytest.mark.parametrize(
    ("filled", "expected"),
    [
        ((9, 5, 2), "Agrees, the paper's order"),
        ((5, 9, 2), "Differs, counting behind equations"),
        ((5, 2, 9), "Differs, another order"),
    ],
)
def test_the_kinds(verdicts, filled, expected):
    results = {
        kind: dict.fromkeys(("streaming", "verified"), {"tokens_per_forward": value})
        for kind, value in zip(("counting", "equations", "stories"), filled, strict=True)
    }
    assert said(verdicts.judge_kinds(results)) == expected


# --- Training ---


def numbers_of(decoding, accuracies, reference, interval):
    models = [
        {
            "model": name, "accuracy": accuracy, "decoding": decoding, "kind": "both",
            "over_reference": accuracy - reference, "over_reference_interval": list(interval),
        }
        for name, accuracy in accuracies.items()
    ]  # fmt: skip
    base = {"model": "base", "accuracy": 0.5, "decoding": "token by token", "kind": "both"}
    return {"rows": [*models, base]}


@pytest.mark.parametrize(
    ("accuracies", "interval", "expected"),
    [
        ((0.2, 0.3, 0.1), (-0.1, 0.1), "Agrees, within noise"),
        ((0.2, 0.3, 0.1), (0.01, 0.2), "Differs, smaller blocks are better"),
        ((0.2, 0.3, 0.4), (0.01, 0.2), "Differs, large blocks are better"),
        ((0.01, 0.02, 0.0), (0.01, 0.2), "Cannot be judged, at the floor"),
    ],
)
def test_the_block_size(verdicts, accuracies, interval, expected):
    of_sizes = dict(zip(("4", "8", "32"), accuracies, strict=True))
    results = numbers_of("window of 6", of_sizes, accuracies[-1], interval)
    assert said(verdicts.judge_block_size(results)) == expected


@pytest.mark.parametrize(
    ("causal", "bidirectional", "interval", "expected"),
    [
        (0.3, 0.2, (0.01, 0.2), "Agrees, causal is better"),
        (0.2, 0.3, (0.01, 0.2), "Differs, bidirectional is better"),
        (0.3, 0.2, (-0.1, 0.1), "Cannot be judged, within noise"),
        (0.01, 0.02, (0.01, 0.2), "Cannot be judged, at the floor"),
    ],
)
def test_attention_inside_a_block(verdicts, causal, bidirectional, interval, expected):
    accuracies = {"causal": causal, "bidirectional": bidirectional}
    results = numbers_of("window of its blocks", accuracies, causal, interval)
    assert said(verdicts.judge_inside_block(results)) == expected
