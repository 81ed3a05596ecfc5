"""The demo report counts what generate() counts, times in turns, and is the card's source."""

import json
import shutil
import sys

import pytest
import torch
from helpers import load
from tiers import slow_but

from examples.demo import report
from examples.demo.model import demo_tokenizer, random_model
from examples.demo.report import DECODINGS, Answer, answers_of, held_out_nll, summary
from examples.demo.tasks import KINDS, held_out_examples
from wedlm.evaluation import sweep


@pytest.fixture(scope="module")
def tokenizer():
    return demo_tokenizer()


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A checkpoint with random weights."""
    folder = tmp_path_factory.mktemp("checkpoint")
    random_model(tokenizer, 128, 2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return load(folder)


@pytest.fixture(autouse=True)
def short_answers(monkeypatch):
    monkeypatch.setattr(report, "MAX_NEW_TOKENS", 20)


def alone(model, tokenizer, example, settings):
    """One answer, counted the plain way."""
    prompt = tokenizer.apply_chat_template(
        example.messages[:1], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, **settings, max_new_tokens=report.MAX_NEW_TOKENS, return_dict_in_generate=True)
    start = prompt["input_ids"].shape[1]
    tokens = output.sequences[0, start:].tolist()
    with torch.no_grad():
        logits = model(output.sequences, use_cache=False).logits[0, start - 1 : -1].double()
    logits[:, tokenizer.mask_token_id] = -torch.inf
    nll = -sum(scores.log_softmax(-1)[token].item() for scores, token in zip(logits, tokens, strict=True))
    queries = round(len(tokens) / output.prefix_cacheability.item())
    return tokenizer.decode(tokens, skip_special_tokens=True), len(tokens), output.forwards.item(), queries, nll


@pytest.mark.few(2)
@pytest.mark.parametrize("decoding", slow_but(("autoregressive", "streaming", "blockwise", "verified"), DECODINGS))
@pytest.mark.full
def test_answers_of_a_batch_are_those_of_each_question_alone(model, tokenizer, decoding):
    examples = [held_out_examples(kind, 2)[1] for kind in ("counting", "records", "stories")]
    settings = dict(DECODINGS[decoding])
    if settings["decoding"] == "verified":
        settings["query_cost"] = 0  # otherwise rows of a batch ask for fewer queries
    for answer, example in zip(answers_of(model, tokenizer, examples, settings), examples, strict=True):
        text, *counts, nll = alone(model, tokenizer, example, settings)
        assert (answer.text, answer.tokens, answer.forwards, answer.window_queries) == (text, *counts)
        assert answer.nll == pytest.approx(nll, rel=1e-3, abs=1e-3)
        assert answer.is_right == report.check(example, text)


def test_a_summary_by_hand():
    baseline = [Answer("a", True, 10, 10, 10, 0), Answer("b", True, 30, 30, 30, 0), Answer("c", False, 20, 20, 20, 0)]
    answers = [Answer("a", True, 10, 2, 20, 1), Answer("x", False, 30, 10, 60, 2), Answer("c", False, 20, 3, 40, 3)]
    found = summary(answers, baseline)
    assert found["accuracy"] == pytest.approx(1 / 3) and found["accuracy_over_autoregressive"] == pytest.approx(-1 / 3)
    assert found["accuracy_over_autoregressive_interval"] == [-1.0, 0.0]
    assert found["same_text_as_autoregressive"] == pytest.approx(2 / 3)
    assert found["tokens"] == 20 and found["tokens_per_forward"] == 60 / 15 and found["prefix_cacheability"] == 0.5
    assert found["nll_per_token"] == pytest.approx(0.1)
    low, high = found["tokens_per_forward_interval"]
    assert 3 <= low < 4 < high <= 20 / 3


def test_held_out_nll_is_that_of_the_answers_tokens(model, tokenizer):
    (example,) = held_out_examples("stories", 1)
    ids = tokenizer.apply_chat_template(example.messages)["input_ids"][:-1]  # without the line end behind the turn
    prompt = tokenizer.apply_chat_template(example.messages[:1], add_generation_prompt=True)["input_ids"]
    assert ids[: len(prompt)] == prompt and ids[-1] == tokenizer.eos_token_id
    with torch.no_grad():
        losses = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    losses = losses.gather(-1, torch.tensor(ids[1:])[:, None])[len(prompt) - 1 :]
    assert held_out_nll(model, tokenizer, [example]) == pytest.approx(-losses.mean().item(), rel=1e-4)


@pytest.mark.slow
def test_the_whole_report(folder, tmp_path, monkeypatch):
    whole = shutil.copytree(folder, tmp_path / "whole")
    for name, value in (("NUM_TIMED", 1), ("ROUNDS", 1), ("WORK", tmp_path / "work")):
        monkeypatch.setattr(report, name, value)
    monkeypatch.setattr(sweep, "NUM_RESAMPLES", 10)
    few = {name: DECODINGS[name] for name in ("autoregressive", "verified")}
    monkeypatch.setattr(report, "DECODINGS", few)
    monkeypatch.setattr(sys, "argv", ["report", str(whole), "--num_examples", "1"])
    report.main()
    file = whole / "report.json"
    written = json.loads(file.read_text())
    assert set(written["results"]) == set(KINDS)
    assert all(set(by_decoding) == set(few) for by_decoding in written["results"].values())
    older = [example | {"text": "by older code", "forwards": 0} for example in written["examples"]]
    file.write_text(json.dumps(written | {"examples": older}))
    monkeypatch.setattr(sys, "argv", ["report", str(whole), "--only_examples"])
    report.main()
    assert json.loads(file.read_text()) == written, "only the examples are anew"
    file.write_text(json.dumps({**written, "weights_sha256": "0" * 64}))
    with pytest.raises(SystemExit, match="report.json is about other weights than those beside it; run `make"):
        report.main()
