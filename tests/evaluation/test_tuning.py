"""Tuning: the examples it reads, its measures, and the setting that it chooses."""

import json

import numpy as np
import pytest

from wedlm.evaluation.decodings import BASELINE, combinations
from wedlm.evaluation.sweep import Answer
from wedlm.evaluation.tuning import (
    MEASURES,
    Example,
    allowed,
    decide,
    examples_needed,
    last_number,
    most_lost,
    read_examples,
    read_share,
    settings_to_try,
    verdict,
    would_show_a_loss,
)

USER = {"role": "user", "content": "What is it?"}
RIGHT = {"role": "assistant", "content": "It is 4."}


def test_examples_of_every_form(tmp_path):
    path = tmp_path / "data.jsonl"
    records = [
        {"prompt": "What is it?", "answer": "It is 4."},
        {"prompt": [USER], "answer": "It is 4.", "note": "ignored"},
        {"messages": [USER, RIGHT]},
        {"messages": [USER, RIGHT, USER, RIGHT]},
    ]
    path.write_text("\n\n".join(map(json.dumps, records)) + "\n")
    assert read_examples(path) == [
        Example("data", "What is it?", "It is 4.", f"{path}, line 1"),
        Example("data", [USER], "It is 4.", f"{path}, line 3"),
        Example("data", [USER], "It is 4.", f"{path}, line 5"),
        Example("data", [USER, RIGHT, USER], "It is 4.", f"{path}, line 7"),
    ]
    path.write_text("\ufeff" + json.dumps({"messages": [USER]}) + '\r\n{"prompt": "a\u2028b"}')
    assert read_examples(path) == [
        Example("data", [USER], None, f"{path}, line 1"),
        Example("data", "a\u2028b", None, f"{path}, line 2"),
    ]


@pytest.mark.parametrize(
    ("second_line", "words"),
    [
        ("{", "line 2: not JSON ("),
        ('{"prompt": "a", "answer": 4}', "line 2: neither"),
        ('{"prompt": "\\ud800", "answer": "b"}', "line 2: not JSON ("),
        ('{"messages": [{"role": "user"}]}', "line 2: neither"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "line 2: messages holds an answer and no question;"),
        ('{"prompt": "a"}', "1 of 2 examples have an answer; give one to all or none."),
    ],
)
def test_a_bad_line_is_named(tmp_path, second_line, words):
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' + second_line)
    with pytest.raises(ValueError) as refused:
        read_examples(path)
    assert words in str(refused.value) and "data.jsonl" in str(refused.value) and "\n" not in str(refused.value)


def test_measures():
    assert MEASURES["exact"]("It  is\n4.", "It is 4.") and not MEASURES["exact"]("It is 4", "It is 4.")
    assert MEASURES["contains"]("Well, IT is 4. So.", "it is 4") and not MEASURES["contains"]("It is", "it is 4")
    assert MEASURES["last-number"]("2 + 2 = 1,004.50", "1004.5") and not MEASURES["last-number"]("4, not 5", "4")
    assert not MEASURES["last-number"]("none", "4")
    assert [last_number(text) for text in ("a", "-3 and", "2,500", "1.5.")] == [None, -3, 2500, 1.5]
    assert [read_share(text) for text in ("1%", "0.5 %", "0.01", "0")] == [0.01, 0.005, 0.01, 0]


def summary(decoding, interval, times, lost):
    return {
        "arguments": {"decoding": decoding},
        "quality_over_autoregressive_interval": interval,
        "most_lost": lost,
        "times_autoregressive": {"median": times},
    }


SUMMARIES = {
    BASELINE: summary(BASELINE, [0, 0], 1.0, 0.0),
    "verified": summary("verified", [0, 0], 3.0, 0.0),
    "noisy": summary("streaming", [-0.02, 0.02], 5.0, 0.02),
    "bad": summary("streaming", [-0.2, -0.1], 6.0, 0.25),
    "good": summary("streaming", [0.01, 0.1], 2.0, 0.0),
}


def test_the_fastest_that_is_shown_to_lose_little_enough_is_taken():
    assert allowed(SUMMARIES, 0.01) == ["verified", "good", BASELINE]
    assert allowed(SUMMARIES, 0.02)[0] == "noisy"
    assert allowed(SUMMARIES, 0.3)[0] == "bad"
    assert allowed({name: SUMMARIES[name] for name in (BASELINE, "noisy")}, 0.0) == [BASELINE]
    said = {name: verdict(one) for name, one in SUMMARIES.items()}
    assert said == {
        BASELINE: "the measure", "verified": "the same", "noisy": "within noise", "bad": "worse", "good": "better"
    }  # fmt: skip


def qualities(values):
    return [Answer("x", float(value), 10, 5, 20, 1.0) for value in values]


@pytest.mark.full
def test_what_is_lost_at_most_is_bounded_for_all_settings_at_once(monkeypatch):
    """All settings lose two answers in a hundred; in at most 5 % of the runs one of them is shown to lose no more."""
    monkeypatch.setattr("wedlm.evaluation.sweep.NUM_RESAMPLES", 50)
    decodings = combinations([BASELINE, "streaming"], entropy_threshold=[number / 10 for number in range(12)])
    random, wrong = np.random.default_rng(0), 0
    for _ in range(30):
        answers = {label: qualities(random.random(300) >= 0.02) for label in decodings}
        answers[BASELINE] = qualities([1] * 300)
        bounds = most_lost(answers, decodings)
        wrong += any(bound <= 0.02 for label, bound in bounds.items() if label != BASELINE)
    assert wrong / 30 <= 0.05 and bounds[BASELINE] == 0


@pytest.mark.parametrize(
    ("num_right", "number", "loss", "is_shown"),
    [(0, 2000, 0.01, False), (3, 3, 0.01, False), (4, 4, 0.01, True), (60, 2000, 0.01, True), (8, 8, 0.5, False)],
)  # fmt: skip
def test_a_setting_that_is_always_wrong_would_be_seen(monkeypatch, num_right, number, loss, is_shown):
    monkeypatch.setattr("wedlm.evaluation.sweep.NUM_RESAMPLES", 200)
    answers = qualities([1] * num_right + [0] * (number - num_right))
    assert would_show_a_loss(answers, loss, num_uncertain=17) == is_shown
    if is_shown:  # the setting is not allowed either
        decodings = settings_to_try()
        wrong = next(label for label in decodings if label.startswith("streaming"))
        bounds = most_lost({BASELINE: answers, wrong: qualities([0] * number)}, decodings)
        assert bounds[wrong] > loss


def test_a_model_without_streaming_needs_no_number_of_examples():
    decodings = settings_to_try(("verified", "autoregressive"))
    assert {setting["decoding"] for setting in decodings.values()} == {"verified", "autoregressive"}
    answers = {label: qualities([0]) for label in decodings}
    results = {
        label: {"arguments": setting, "most_lost": 0.0, "times_autoregressive": {"median": 1 + (label == BASELINE)}}
        for label, setting in decodings.items()
    }
    chosen, reason = decide(answers, results, 0.01)
    assert chosen == BASELINE and "streaming" not in reason


@pytest.mark.parametrize(("loss", "settings"), [(0.01, 24), (0.05, 1)])
def test_so_many_examples_are_needed(monkeypatch, loss, settings):
    monkeypatch.setattr("wedlm.evaluation.sweep.NUM_RESAMPLES", 50)
    decodings = combinations([BASELINE, "streaming"], entropy_threshold=[number / 10 for number in range(settings)])
    number = examples_needed(loss, settings)
    for size, is_shown in ((number, True), (number - 1, False)):
        bounds = most_lost({label: qualities([1] * size) for label in decodings}, decodings)
        assert (max(bounds.values()) <= loss) == is_shown
    assert examples_needed(0, settings) is None
