"""lm-eval's model class on our generate(): counts, likelihoods, and where an answer ends."""

import pytest
import torch
from evaluations import STREAMING, evaluate, named, scores
from helpers import stock_model
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import GenerationConfig

from examples.demo.tasks import check, held_out_examples
from wedlm.evaluation.lm import DecodingLM, StopBehindPrompt
from wedlm.evaluation.recipe import EvalSettings
from wedlm.evaluation.work_file import WorkFile

FEW = EvalSettings(limit=3, batch_size=2, apply_chat_template=True)


@pytest.mark.parametrize("decoding", ["streaming", "verified"])
def test_counts_are_those_of_generate(demo, tmp_path, decoding):
    model, tokenizer = demo
    arguments = {"decoding": decoding} | ({"query_cost": 0} if decoding == "verified" else {})  # alike in a batch
    (result,) = evaluate(model, tokenizer, named("demo_equations"), {decoding: arguments}, FEW, WorkFile(tmp_path, {}))
    examples = held_out_examples("equations", FEW.limit)
    tokens = forwards = queries = right = 0
    for example in examples:
        chat = tokenizer.apply_chat_template(
            example.messages[:1], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        output = model.generate(**chat, **arguments, max_new_tokens=160, return_dict_in_generate=True)
        new = output.sequences[0, chat["input_ids"].shape[1] :]
        tokens, forwards = tokens + len(new), forwards + int(output.forwards)
        queries += round(len(new) / float(output.prefix_cacheability))
        right += check(example, tokenizer.decode(new, skip_special_tokens=True))
    assert (result["num_tokens"], result["tokens_per_forward"]) == (tokens, pytest.approx(tokens / forwards))
    assert result["prefix_cacheability"] == pytest.approx(tokens / queries)
    assert scores([result])["demo_equations", "right"] == right / len(examples)
    assert (result["num_examples"], result["num_fewshot"], result["arguments"]) == (3, 0, arguments)


def test_likelihoods_are_those_of_transformers_qwen(demo, tmp_path):
    model, tokenizer = demo
    texts = [("the cat", " sat on a mat"), ("one two", " three"), ("a", " b c d e f"), ("the cat", " ran")]

    def requests():
        return [Instance("loglikelihood", {}, pair, i, ("t", i, 1)) for i, pair in enumerate(texts)]

    def rolling():
        return [
            Instance("loglikelihood_rolling", {}, ("".join(pair),), i, ("t", i, 1)) for i, pair in enumerate(texts)
        ]

    ours = DecodingLM(model, tokenizer, 2, {"decoding": "verified"}, WorkFile(tmp_path, {}), 0, "")
    stock = HFLM(pretrained=stock_model(model), tokenizer=tokenizer, batch_size=2)
    for (mine, is_greedy), (other, other_is_greedy) in zip(
        ours.loglikelihood(requests()), stock.loglikelihood(requests()), strict=True
    ):
        assert mine == pytest.approx(other, abs=1e-4) and is_greedy == other_is_greedy
    assert ours.loglikelihood_rolling(rolling()) == pytest.approx(stock.loglikelihood_rolling(rolling()), abs=1e-4)


def test_a_stop_does_not_begin_in_the_prompt(demo):
    """Qwen's prompts of a chat end with a line feed, and HumanEval stops at a line that begins with def."""
    _, tokenizer = demo
    prompt = tokenizer("Write it.\n")["input_ids"]
    stops = StopBehindPrompt(tokenizer, ["\ndef", "return"], len(prompt))

    def said(text):
        return stops(torch.tensor([[*prompt, *tokenizer(text)["input_ids"]]]), None).tolist()

    assert said("def") == [False] and said("x\ndef") == [True] and said("def f(n):\n    return") == [True]
    assert said("x\nde f") == [False]


def test_the_length_is_that_asked_for(demo, tmp_path, monkeypatch):
    """A max_new_tokens in generation_config.json does not replace it."""
    model, tokenizer = demo
    fields = {**model.generation_config.to_dict(), "max_new_tokens": 64}
    monkeypatch.setattr(model, "generation_config", GenerationConfig(**fields))
    settings = EvalSettings(limit=2, batch_size=2, apply_chat_template=True, max_new_tokens=3)
    results = evaluate(model, tokenizer, named("demo_equations"), {"": STREAMING}, settings, WorkFile(tmp_path, {}))
    assert results[0]["num_tokens"] == 6


def test_the_tokenizers_end_token_ends_an_answer(demo, tmp_path, monkeypatch):
    """Even if generation_config.json has another one, as that of a base model which later learned to chat."""
    model, tokenizer = demo
    fields = model.generation_config.to_dict()
    settings = EvalSettings(limit=2, batch_size=2, apply_chat_template=True)
    tokens = []
    for end in (tokenizer.eos_token_id, None):
        monkeypatch.setattr(model, "generation_config", GenerationConfig(**{**fields, "eos_token_id": end}))
        work = WorkFile(tmp_path / str(end), {})
        (result,) = evaluate(*demo, named("demo_equations"), {"": STREAMING}, settings, work)
        tokens.append(result["num_tokens"])
    assert tokens[0] == tokens[1] < 2 * 100
