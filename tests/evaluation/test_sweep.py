"""Many decodings in turns: counts are generate()'s, intervals those of pairs, an interruption changes nothing."""

import numpy as np
import pytest
import torch
from helpers import load
from transformers import AutoTokenizer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.demo.tasks import held_out_examples
from wedlm.evaluation import resampling, sweep
from wedlm.evaluation.decodings import BASELINE, combinations
from wedlm.evaluation.resampling import newcombe, paired_bounds
from wedlm.evaluation.sweep import Answer, Question, answer_of, front, summaries, summary
from wedlm.evaluation.work_file import WorkFile

DECODINGS = combinations([BASELINE, "verified", "streaming"], entropy_threshold=[0.1])


@pytest.fixture(scope="module")
def demo():
    return load(DEMO_FOLDER), AutoTokenizer.from_pretrained(DEMO_FOLDER)


def questions_of(tokenizer, number=3):
    def question(example):
        chat = tokenizer.apply_chat_template(example.messages[:1], add_generation_prompt=True, return_dict=True)
        return Question(chat["input_ids"], lambda text: float(text == example.answer))

    return [question(example) for example in held_out_examples("equations", number)]


def test_every_decoding_answers_in_turns_and_is_counted(demo, tmp_path, monkeypatch):
    model, tokenizer = demo
    questions, asked = questions_of(tokenizer), []
    real = answer_of
    monkeypatch.setattr(sweep, "answer_of", lambda *args: asked.append((args[2], args[3]["decoding"])) or real(*args))
    answers = sweep.sweep(model, tokenizer, questions, DECODINGS, 160, WorkFile(tmp_path, {}))
    kinds = [BASELINE, "verified", "streaming"]
    orders = [kinds, kinds, kinds[1:] + kinds[:1], kinds[2:] + kinds[:2]]  # the first time to warm up
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
            assert answer.tokens / answer.window_rows == pytest.approx(output.prefix_cacheability.item())
            assert answer.quality == question.quality(answer.text) and answer.seconds > 0


class Stop(KeyboardInterrupt):
    pass


def test_an_interrupted_sweep_goes_on_with_whole_questions(demo, tmp_path, monkeypatch):
    model, tokenizer = demo
    questions, asked, stops = questions_of(tokenizer), [], [8]  # in the middle of the second question

    def fake(model, tokenizer, question, arguments):
        asked.append(question)
        if len(asked) in stops:
            raise Stop
        return Answer("text", 1.0, 5, 2, 9, 0.5)

    monkeypatch.setattr(sweep, "answer_of", fake)
    with pytest.raises(Stop):
        sweep.sweep(model, tokenizer, questions, DECODINGS, 160, WorkFile(tmp_path, {}))
    del asked[:], stops[:]
    answers = sweep.sweep(model, tokenizer, questions, DECODINGS, 160, WorkFile(tmp_path, {}))
    assert asked == [questions[1]] * 6 + [questions[2]] * 3, "warmed up again, and the second from its beginning"
    assert {label: len(of_label) for label, of_label in answers.items()} == dict.fromkeys(DECODINGS, 3)


def answers_of(qualities, seconds=1.0, tokens=10, forwards=5, rows=20):
    return [Answer("", quality, tokens, forwards, rows, seconds) for quality in qualities]


def test_a_summary_is_of_pairs():
    base = answers_of(10 * [1, 1, 0, 0, 1, 1, 0, 1], seconds=2.0, forwards=10, rows=10)
    other = answers_of(10 * [1, 0, 0, 0, 1, 1, 0, 1])
    row = summary(other, base)
    assert (row["quality"], row["quality_over_autoregressive"]) == (0.5, -0.125)
    assert (row["tokens_per_forward"], row["prefix_cacheability"]) == (2.0, 0.5)
    assert row["times_autoregressive"]["median"] == 2.0 and row["tokens_per_second"]["median"] == 10.0
    low, high = row["quality_over_autoregressive_interval"]
    assert low < -0.125 < high < 0


def pairs(lost, gained, number, right=0.9, seed=0):
    """Answers of a baseline with so much right, and of one that really loses and gains so much."""
    random = np.random.default_rng(seed)
    base, draw = random.random(number) < right, random.random(number)
    return np.where(base, draw >= lost / right, draw < gained / max(1 - right, 1e-9)).astype(float), base.astype(float)


def test_bounds_are_those_of_pairs():
    """Of many pairs they are as wide as their differences spread, not as both sides do."""
    quality, base = pairs(0.1, 0.05, 4000)
    differences = quality - base
    spread = 1.96 * differences.std() / len(differences) ** 0.5
    low, high = paired_bounds(quality, base)
    assert low == pytest.approx(differences.mean() - spread, abs=0.001)
    assert high == pytest.approx(differences.mean() + spread, abs=0.001)


def test_newcombes_own_example():
    """Of 50 pairs 36 right on both sides, 12 gained, 2 lost: the bounds that his paper of 1998 prints."""
    rows = [(1, 1)] * 36 + [(1, 0)] * 12 + [(0, 1)] * 2 + [(0, 0)] * 0
    quality, base = np.array(rows, dtype=float).T
    assert newcombe(quality, base, 1.959964) == (pytest.approx(0.0569, abs=5e-4), pytest.approx(0.3404, abs=5e-4))


def test_no_difference_found_is_none_shown():
    base = answers_of([1] * 100)
    low, high = summary(base, base)["quality_over_autoregressive_interval"]
    assert low == -high == pytest.approx(-(1.96**2) / (100 + 1.96**2), abs=1e-4), "none of 100 is 3.7 % at most"
    assert summary(base, base, is_exact=True)["quality_over_autoregressive_interval"] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("lost", "gained", "number", "right"), [(0.05, 0.0, 60, 0.95), (0.01, 0.0, 300, 1.0), (0.03, 0.03, 20, 0.9)]
)
def test_bounds_hold_the_truth_as_often_as_they_say(monkeypatch, lost, gained, number, right):
    monkeypatch.setattr(resampling, "NUM_RESAMPLES", 100)
    held = 0
    for seed in range(300):
        low, high = paired_bounds(*pairs(lost, gained, number, right, seed))
        held += low <= gained - lost <= high
    assert held / 300 >= 0.95


def test_a_gain_hides_no_loss_and_few_losses_are_no_proof():
    def bounds(lost, gained, number):
        base = [1] * (number - gained - 2) + [0] * (gained + 2)
        quality = [0] * lost + [1] * (number - lost - 2) + [0] * 2
        return paired_bounds(np.array(quality, dtype=float), np.array(base, dtype=float))

    assert bounds(0, 1, 10)[0] < -0.1, "one gained and none lost of ten is not shown to lose nothing"
    assert bounds(4, 0, 100)[1] > 0, "four of a hundred are no proof"
    assert bounds(10, 1, 200)[1] < 0, "ten of two hundred against one are"


def test_summaries_know_which_decodings_keep_the_text():
    answers = {label: answers_of([1, 1, 1]) for label in DECODINGS}
    rows = summaries(answers, DECODINGS)
    widths = {label: row["quality_over_autoregressive_interval"][1] for label, row in rows.items()}
    assert (widths[BASELINE], widths["verified"]) == (0.0, 0.0) and widths["streaming, threshold 0.1"] > 0.5
    assert rows["verified"]["arguments"] == {"decoding": "verified"}


def test_the_front_has_what_nothing_beats():
    def row(quality, times):
        return {"quality": quality, "times_autoregressive": {"median": times}}

    rows = {"a": row(0.9, 1.0), "b": row(0.9, 3.0), "c": row(0.8, 4.0), "d": row(0.8, 2.0), "e": row(0.95, 0.5)}
    assert front(rows) == ["e", "b", "c"]
    assert front({"a": row(1, 1), "b": row(1, 1)}) == ["a", "b"], "equals do not beat each other"
