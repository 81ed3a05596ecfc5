"""A sweep counts what generate() counts, compares question by question, and goes on where it was stopped."""

import pytest
import torch
from helpers import load
from transformers import AutoTokenizer

from examples.demo.tasks import held_out_examples
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation import sweep
from wedlm.evaluation.decodings import BASELINE, combinations
from wedlm.evaluation.sweep import Answer, Question, front, summaries, summary
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
    real = sweep.write
    monkeypatch.setattr(sweep, "write", lambda *args: asked.append((args[1], args[2]["decoding"])) or real(*args))
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
            assert answer.tokens / answer.window_queries == pytest.approx(output.prefix_cacheability.item())
            assert answer.quality == question.quality(answer.text) and answer.seconds > 0


class Stop(KeyboardInterrupt):
    pass


def test_an_interrupted_sweep_goes_on_with_whole_questions(demo, tmp_path, monkeypatch):
    model, tokenizer = demo
    questions, asked, stops = questions_of(tokenizer), [], [8]  # in the middle of the second question

    def fake(model, question, arguments):
        asked.append(question)
        if len(asked) in stops:
            raise Stop

    monkeypatch.setattr(sweep, "write", fake)
    monkeypatch.setattr(sweep, "answer_of", lambda *args: Answer("text", 1.0, 5, 2, 9, 0.5))
    with pytest.raises(Stop):
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


def test_summaries_know_which_decodings_keep_the_text():
    answers = {label: answers_of([1, 1, 1]) for label in DECODINGS}
    compared = summaries(answers, DECODINGS)
    widths = {label: numbers["quality_over_autoregressive_interval"][1] for label, numbers in compared.items()}
    assert (widths[BASELINE], widths["verified"]) == (0.0, 0.0) and widths["streaming, threshold 0.1"] > 0.5
    assert compared["verified"]["arguments"] == {"decoding": "verified"}


def test_the_front_has_what_nothing_beats():
    def numbers(quality, times):
        return {"quality": quality, "times_autoregressive": {"median": times}}

    places = {"a": (0.9, 1.0), "b": (0.9, 3.0), "c": (0.8, 4.0), "d": (0.8, 2.0), "e": (0.95, 0.5)}
    assert front({label: numbers(*place) for label, place in places.items()}) == ["e", "b", "c"]
    assert front({"a": numbers(1, 1), "b": numbers(1, 1)}) == ["a", "b"], "equals do not beat each other"
