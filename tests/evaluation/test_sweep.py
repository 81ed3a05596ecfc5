"""A sweep counts what generate() counts, compares question by question, and goes on where it was stopped."""

import numpy as np
import pytest
import torch

from examples.demo.tasks import held_out_examples
from wedlm.evaluation import sweep
from wedlm.evaluation.decodings import BASELINE, combinations
from wedlm.evaluation.sweep import Answer, Question, front, newcombe, paired_bounds, summary
from wedlm.evaluation.work_file import WorkFile

DECODINGS = combinations([BASELINE, "verified", "streaming"], entropy_threshold=[0.1])


def questions_of(tokenizer, number=3):
    def question(example):
        chat = tokenizer.apply_chat_template(example.messages[:1], add_generation_prompt=True, return_dict=True)
        return Question(chat["input_ids"], lambda text: float(text == example.answer))

    return [question(example) for example in held_out_examples("equations", number)]


@pytest.mark.full
def test_every_decoding_answers_in_turns_and_is_counted(demo, tmp_path, monkeypatch):
    model, tokenizer = demo
    questions, asked = questions_of(tokenizer, 2), []
    real = sweep.write
    monkeypatch.setattr(sweep, "write", lambda *args: asked.append((args[1], args[2]["decoding"])) or real(*args))
    answers = sweep.sweep(model, tokenizer, questions, DECODINGS, 160, WorkFile(tmp_path, {}))
    kinds = [BASELINE, "verified", "streaming"]
    orders = [kinds, kinds, kinds[1:] + kinds[:1]]  # the first time to warm up
    expected = [(q, kind) for q, order in zip([questions[0], *questions], orders, strict=True) for kind in order]
    assert asked == expected
    for label, of_label in answers.items():
        for question, answer in zip(questions, of_label, strict=True):
            output = model.generate(
                torch.tensor([question.ids]), **DECODINGS[label], max_new_tokens=160, return_dict_in_generate=True
            )
            new = output.sequences[0, len(question.ids) :].tolist()
            assert (answer.tokens, answer.forwards) == (len(new), int(output.forwards))
            assert answer.text == tokenizer.decode(new, skip_special_tokens=True)
            assert answer.tokens / answer.window_queries == pytest.approx(output.prefix_cacheability.item())
            assert answer.quality == question.quality(answer.text) and answer.seconds > 0
    assert any(answer.quality for of_label in answers.values() for answer in of_label)


def test_an_interrupted_sweep_goes_on_with_whole_questions(demo, tmp_path, monkeypatch):
    model, tokenizer = demo
    questions, asked, stops = questions_of(tokenizer), [], [8]  # in the middle of the second question

    def fake(model, question, arguments):
        asked.append(question)
        if len(asked) in stops:
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "write", fake)
    monkeypatch.setattr(sweep, "answer_of", lambda *args: Answer("text", 1.0, 5, 2, 9, 0.5))
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep(model, tokenizer, questions, DECODINGS, 160, WorkFile(tmp_path, {}))
    del asked[:], stops[:]
    answers = sweep.sweep(model, tokenizer, questions, DECODINGS, 160, WorkFile(tmp_path, {}))
    assert asked == [questions[1]] * 6 + [questions[2]] * 3, "warmed up again, and the second from its beginning"
    assert {label: len(of_label) for label, of_label in answers.items()} == dict.fromkeys(DECODINGS, 3)


def answers_of(qualities, seconds=1.0, tokens=10, forwards=5, window_queries=20):
    return [Answer("", quality, tokens, forwards, window_queries, seconds) for quality in qualities]


def test_a_summary_is_of_pairs():
    base = answers_of(10 * [1, 1, 0, 0, 1, 1, 0, 1], seconds=2.0, forwards=10, window_queries=10)
    other = answers_of(10 * [1, 0, 0, 0, 1, 1, 0, 1])
    compared = summary(other, base)
    assert (compared["quality"], compared["quality_over_autoregressive"]) == (0.5, -0.125)
    assert (compared["tokens_per_forward"], compared["prefix_cacheability"]) == (2.0, 0.5)
    assert compared["times_autoregressive"]["median"] == 2.0 and compared["tokens_per_second"]["median"] == 10.0
    low, high = compared["quality_over_autoregressive_interval"]
    assert low < -0.125 < high < 0


def test_no_difference_found_is_none_shown():
    base = answers_of([1] * 100)
    low, high = summary(base, base)["quality_over_autoregressive_interval"]
    assert low == -high == pytest.approx(-(1.96**2) / (100 + 1.96**2), abs=1e-4), "none of 100 is 3.7 % at most"
    assert summary(base, base, is_exact=True)["quality_over_autoregressive_interval"] == [0.0, 0.0]


def test_the_front_has_what_nothing_beats():
    def numbers(quality, times):
        return {"quality": quality, "times_autoregressive": {"median": times}}

    places = {"a": (0.9, 1.0), "b": (0.9, 3.0), "c": (0.8, 4.0), "d": (0.8, 2.0), "e": (0.95, 0.5)}
    assert front({label: numbers(*place) for label, place in places.items()}) == ["e", "b", "c"]
    assert front({"a": numbers(1, 1), "b": numbers(1, 1)}) == ["a", "b"], "equals do not beat each other"


# --- Confidence intervals ---


def pairs(lost, gained, number, right=0.9, seed=0):
    """Answers of a baseline with so much right, and of one that really loses and gains so much."""
    random = np.random.default_rng(seed)
    base, draw = random.random(number) < right, random.random(number)
    return np.where(base, draw >= lost / right, draw < gained / max(1 - right, 1e-9)).astype(float), base.astype(float)


def test_newcombes_own_example():
    """His paper of 1998 prints these bounds for 36 pairs right on both sides, 12 gained and 2 lost."""
    quality, base = np.array([(1, 1)] * 36 + [(1, 0)] * 12 + [(0, 1)] * 2, dtype=float).T
    assert newcombe(quality, base, 1.959964) == (pytest.approx(0.0569, abs=5e-4), pytest.approx(0.3404, abs=5e-4))


@pytest.mark.parametrize(("lost", "gained", "number", "right"), [(0.01, 0.0, 300, 1.0), (0.03, 0.03, 20, 0.9)])
def test_bounds_hold_the_truth_as_often_as_they_say(monkeypatch, lost, gained, number, right):
    monkeypatch.setattr(sweep, "NUM_RESAMPLES", 100)
    held = 0
    for seed in range(100):
        low, high = paired_bounds(*pairs(lost, gained, number, right, seed))
        held += low <= gained - lost <= high
    assert held / 100 >= 0.95


def test_a_gain_hides_no_loss_and_few_losses_are_no_proof():
    def bounds(lost, gained, number):
        base = [1] * (number - gained - 2) + [0] * (gained + 2)
        quality = [0] * lost + [1] * (number - lost - 2) + [0] * 2
        return paired_bounds(np.array(quality, dtype=float), np.array(base, dtype=float))

    assert bounds(0, 1, 10)[0] < -0.1, "one gained and none lost of ten is not shown to lose nothing"
    assert bounds(4, 0, 100)[1] > 0, "four of a hundred are no proof"
    assert bounds(10, 1, 200)[1] < 0, "ten of two hundred against one are"
