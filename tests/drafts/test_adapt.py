"""`wedlm adapt` from nothing to its report, in one go and stopped in every stage."""

import json
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from adapt_runs import NUM_PROMPTS, adapt, prepared, records, write_prompts
from command_line import run
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from stock_families import stock
from tiny_tokenizer import make_tokenizer
from transformers import AutoTokenizer, TrainerCallback

from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.resolve import ADAPTER_WEIGHTS
from wedlm.drafts import adapt as stages
from wedlm.drafts import adapter_training
from wedlm.drafts.answers import Answerer
from wedlm.drafts.prompt_split import Examples
from wedlm.drafts.settings import AdaptSettings
from wedlm.evaluation.tuning import Example
from wedlm.evaluation.work_file import WorkFile
from wedlm.generation.model_kind import kind_of


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the stock model `stock`, and `out` beside it, made by a run that nothing has stopped."""
    folder = tmp_path_factory.mktemp("adapt")
    stock, prompts = prepared(folder)
    result = adapt(stock, folder / "out", "--prompts", prompts)
    assert result.exit_code == 0, result.output
    (folder / "log").write_text(result.output, encoding="utf-8")
    return folder


def test_the_adapter_has_its_report_and_its_plot(place):
    out = place / "out"
    assert {path.name for path in out.iterdir()} >= {
        "adapter_config.json", ADAPTER_WEIGHTS, "generation_config.json", "report.json", "drafts.png", "README.md",
        "tokenizer.json",
    }  # fmt: skip
    base = AutoTokenizer.from_pretrained(place / "stock")
    assert AutoTokenizer.from_pretrained(out).get_vocab() == base.get_vocab()
    assert json.loads((out / "adapter_config.json").read_text())["import_first"] == "wedlm"
    assert "`import wedlm` comes first" in (out / "README.md").read_text()
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    measured = report["results"]["held_out"]["all"]
    assert measured["num_questions"] == 3 and measured["same_text_as_autoregressive"] == 1
    assert measured["tokens_per_forward"] >= 1 and report["results"]["also"] == {}
    assert report["settings"]["steps"] == 6
    log = report["results"]["log"]
    assert log[-1]["step"] == 6 and any("eval_tokens_per_forward" in entry for entry in log)
    with safe_open(out / ADAPTER_WEIGHTS, "pt") as weights:
        assert {str(weights.get_tensor(name).dtype) for name in weights.keys()} == {"torch.bfloat16"}
        assert any(weights.get_tensor(name).any() for name in weights.keys() if "lora_B" in name)


def test_the_command_says_what_it_takes_and_what_came_out(place):
    log = (place / "log").read_text(encoding="utf-8")
    for sentence in (
        f"{place / 'stock'} answers 20 prompts, an adapter is trained on the answers in 6 steps, ",
        "On a CPU an adapter brings little",
        "20 answers take at most 1 min, the training 6 steps, and the measurement on 3 prompts at most",
        "| all | 3 | 3 | 1.",
        f"Written to {place / 'out'}; {place / 'out.work'} (",
        f'can be removed.\nNext: wedlm generate {place / "out"} "Why is the sky blue?"\n',
    ):
        assert sentence in log


def test_the_first_line_comes_before_the_work_and_ctrl_c_says_how_to_go_on(place, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stages, "adapt", interrupt)
        result = adapt(place / "stock", tmp_path / "out", "--prompts", place / "prompts.jsonl")
        assert (result.exit_code, result.stdout.count("\n")) == (130, 1) and "answers 20 prompts" in result.stdout
    monkeypatch.setattr(Answerer, "answer_all", interrupt)
    result = adapt(place / "stock", tmp_path / "out", "--prompts", place / "prompts.jsonl")
    assert result.exit_code == 130
    assert result.stderr.endswith(f"\nStopped; the same command goes on from {tmp_path / 'out.work'}.\n")


def test_the_answers_are_those_of_the_model_itself(place):
    train, held_out = (records(place / "out.work" / f"{name}.jsonl") for name in ("train", "held_out"))
    assert len(train) == NUM_PROMPTS - 3 and len(held_out) == 3
    model, tokenizer = load_checkpoint(place / "stock", or_stock=True)
    for record in train[:3] + held_out:
        inputs = tokenizer.apply_chat_template(
            record["messages"][:1], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        ids = model.generate(**inputs, max_new_tokens=8, do_sample=False, decoding="autoregressive")
        text = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert record["messages"][1] == {"role": "assistant", "content": text}


def test_the_report_counts_the_forwards_with_full_windows(place):
    model, tokenizer = load_checkpoint(place / "out", or_stock=True)
    tokens, forwards = 0, 0
    for record in records(place / "out.work" / "held_out.jsonl"):
        inputs = tokenizer.apply_chat_template(
            record["messages"][:1], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        settings = {"window_size": 8, "query_cost": 0, "return_dict_in_generate": True}
        output = model.generate(**inputs, max_new_tokens=8, do_sample=False, decoding="verified", **settings)
        tokens += output.sequences.shape[1] - inputs["input_ids"].shape[1]
        forwards += output.forwards.item()
    report = json.loads((place / "out" / "report.json").read_text(encoding="utf-8"))["results"]["held_out"]["all"]
    assert report["tokens_per_forward_of_full_windows"] == tokens / forwards


def test_the_adapter_decodes_verified(place):
    model, _ = load_checkpoint(place / "out", or_stock=True)
    assert model.generation_config.decoding == "verified" and kind_of(model).mask_token_id == model.config.vocab_size
    assert model.generation_config.window_size is None  # so that the device decides


class CompilingClock(adapter_training.Clock):
    """The second step ends a hundred seconds after the first one, and each later one takes a second."""

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append([0, 100, 101, 102, 103, 104][len(self.times)])


@pytest.mark.full
def test_the_minutes_give_a_number_of_steps_and_compiling_does_not_count(place, tmp_path, monkeypatch):
    monkeypatch.setattr(adapter_training, "Clock", CompilingClock)
    few = ("--max-new-tokens", "8", "--num-held-out", "3", "--max-length", "64", "--rank", "2", "--minutes", "0.12")
    result = run("adapt", place / "stock", tmp_path / "out", "--prompts", place / "prompts.jsonl", *few)
    assert result.exit_code == 0, result.output
    assert "A step takes 1.0 s, so the adapter is trained for 7 steps." in result.stdout
    log = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["results"]["log"]
    assert log[-1]["step"] == 7


class Stopped(BaseException):
    """A kill, as a test can make it."""


def stop(*arguments, **options):
    raise Stopped


def stop_work(monkeypatch, is_last):
    """Stops behind the result with a key for which `is_last` holds."""
    add = WorkFile.add

    def add_and_stop(self, key, result):
        add(self, key, result)
        if is_last(key):
            raise Stopped

    monkeypatch.setattr(WorkFile, "add", add_and_stop)


def stop_training(monkeypatch, callback):
    make = adapter_training.new_trainer

    def new_trainer(*arguments, **options):
        trainer = make(*arguments, **options)
        trainer.add_callback(callback)
        return trainer

    monkeypatch.setattr(adapter_training, "new_trainer", new_trainer)


class InTheFourthStep(TrainerCallback):
    """The third was saved."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise Stopped


class InTheFirstCheckpoint(TrainerCallback):
    """No checkpoint is complete."""

    def on_save(self, args, state, control, **kwargs):
        (Path(args.output_dir) / "checkpoint-1" / "trainer_state.json").unlink()
        raise Stopped


STAGES = (
    lambda patch: stop_work(patch, lambda key: key == (1,)),  # the second batch of answers
    lambda patch: stop_training(patch, InTheFirstCheckpoint()),
    lambda patch: stop_training(patch, InTheFourthStep()),
    lambda patch: stop_work(patch, lambda key: key[0] == "question"),  # the first measurement
    lambda patch: patch.setattr(stages, "write_adapter_report", stop),
)


@pytest.mark.full
def test_a_run_that_is_stopped_in_every_stage_makes_the_same_adapter(place, tmp_path, monkeypatch):
    out = tmp_path / "out"
    command = (place / "stock", out, "--prompts", place / "prompts.jsonl")
    for stop_there in STAGES:
        with monkeypatch.context() as patched:
            stop_there(patched)
            with pytest.raises(Stopped):
                adapt(*command, catch_exceptions=False)
        assert not out.exists()
    assert adapt(*command).exit_code == 0
    for name in ("out.work/train.jsonl", "out.work/held_out.jsonl", f"out/{ADAPTER_WEIGHTS}"):
        assert (tmp_path / name).read_bytes() == (place / name).read_bytes()


@pytest.mark.full
def test_an_adapter_is_trained_further(place, tmp_path):
    answered = place / "out.work" / "train.jsonl"
    others = write_prompts(tmp_path / "others.jsonl", 2, suffix="?")
    result = adapt(
        place / "stock", tmp_path / "out", "--answers", answered, "--start-from", place / "out", "--measure-also",
        others,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    before, after = (load_file(folder / ADAPTER_WEIGHTS) for folder in (place / "out", tmp_path / "out"))
    assert any(not torch.equal(before[name], after[name]) for name in before)
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["results"]["also"]["all"]["num_questions"] == 2
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    earlier = sha256((place / "out" / ADAPTER_WEIGHTS).read_bytes()).hexdigest()
    assert f"trained an earlier adapter further, whose weights have the SHA-256 `{earlier}`" in card
    assert "trained the adapter from scratch" not in card
    assert "trained the adapter from scratch" in (place / "out" / "README.md").read_text(encoding="utf-8")
    kept = {record["messages"][1]["content"] for record in records(answered)}
    made = records(tmp_path / "out.work" / "train.jsonl")
    assert made and {record["messages"][1]["content"] for record in made} <= kept


def test_models_and_folders_that_are_refused_before_anything_is_written(place, tmp_path):
    out = place / "out"
    for command, sentence in (
        ((place / "stock", out, "--prompts", place / "prompts.jsonl"), "exists and is not empty; choose another"),
        ((place / "stock", tmp_path / "out", "--start-from", out, "--rank", "3"), "the rank 2, and not 3; pass"),
        (
            (place / "stock", tmp_path / "out", "--start-from", out, "--no-mask-shift"),
            "behind them; pass --mask-shift",
        ),
        ((place / "stock", tmp_path / "out", "--start-from", place), "is not a folder of a draft adapter; give one"),
        ((out, tmp_path / "out"), f"{out} is a draft adapter itself; give its base, and --start-from {out} to train"),
    ):
        result = adapt(*command)
        assert result.exit_code == 2 and sentence in result.stderr, result.output
        assert list(tmp_path.iterdir()) == []


def test_a_model_without_the_layers_is_refused_before_it_answers(tmp_path, place):
    model = stock("GPT2")
    model.save_pretrained(tmp_path / "gpt2")
    make_tokenizer().save_pretrained(tmp_path / "gpt2")
    result = adapt(tmp_path / "gpt2", tmp_path / "out", "--prompts", place / "prompts.jsonl")
    assert result.exit_code == 2 and "GPT2LMHeadModel has none of the linear layers q_proj, " in result.stderr
    assert not (tmp_path / "out.work").exists()


def test_prompts_that_are_too_long_are_refused_before_anything_is_written(place, tmp_path):
    long = write_prompts(tmp_path / "long.jsonl", 3, suffix=" cat" * 600)
    command = (place / "stock", tmp_path / "out", "--prompts", place / "prompts.jsonl")
    for more, sentence in (
        (("--measure-also", long), f"{long}, line 1: The prompt has "),
        (("--max-new-tokens", "90000"), "--max-new-tokens 90000 leaves no room for a prompt"),
    ):
        result = adapt(*command, *more)
        assert result.exit_code == 2 and sentence in result.stderr, result.output
        assert not (tmp_path / "out.work").exists()


def test_prompts_are_measured_against_the_lengths_of_the_run(place):
    model, tokenizer = load_checkpoint(place / "stock", or_stock=True)
    short, long = (Example("kind", "cat", where="line 1"), Example("kind", "cat " * 30, where="line 2"))
    answerer = Answerer(model, tokenizer, AdaptSettings("model", max_new_tokens=8, max_length=20))
    note = answerer.check(Examples([short, long, short], [short], []))
    assert note.startswith("1 of 3 prompts have --max-length 20 tokens or more, and are not trained on")
    assert answerer.check(Examples([short], [long], [long])) is None
    with pytest.raises(ValueError, match="^2 of 2 prompts .*, so there is nothing to train on; give a larger number"):
        answerer.check(Examples([long, long], [], []))
    (ids,) = answerer.encode([long])
    most = model.config.max_position_embeddings - len(ids)
    answerer.settings = AdaptSettings("model", max_new_tokens=most)
    assert answerer.encode([long]) == [ids]
    answerer.settings = AdaptSettings("model", max_new_tokens=most + 1)
    with pytest.raises(ValueError, match=f"^line 2: the prompt has {len(ids)} tokens, which with --max-new-tokens "):
        answerer.encode([short, long])


def test_blank_answers_are_left_out(place, tmp_path, monkeypatch):
    texts = iter(["", " \n", "right"])
    monkeypatch.setattr(Answerer, "generate", lambda self, prompts, *given: [next(texts) for _ in prompts])
    answerer = Answerer(*load_checkpoint(place / "stock", or_stock=True), AdaptSettings("model"))
    examples = [Example("kind", f"prompt {number}") for number in range(3)]
    answerer.answer_all(examples, tmp_path / "train.jsonl")
    (record,) = records(tmp_path / "train.jsonl")
    assert record["messages"][0]["content"] == "prompt 2" and list(tmp_path.iterdir()) == [tmp_path / "train.jsonl"]
    monkeypatch.setattr(Answerer, "generate", lambda self, prompts, *given: [" " for _ in prompts])
    with pytest.raises(ValueError, match="All 3 answers for held_out.jsonl are blank; give other prompts"):
        answerer.answer_all(examples, tmp_path / "held_out.jsonl")


@pytest.mark.full
def test_an_export_takes_the_report_of_its_own_weights(place, tmp_path, monkeypatch):
    options = ("--license", "mit", "--adapter-only", "--base-model", "somebody/base")
    result = run("export", place / "out", tmp_path / "repository", *options)
    assert result.exit_code == 0, result.output
    card = (tmp_path / "repository" / "README.md").read_text(encoding="utf-8")
    assert "## Speed" in card and "trained the adapter from scratch, and on none of the prompts" in card
    assert (tmp_path / "repository" / "drafts.png").read_bytes() == (place / "out" / "drafts.png").read_bytes()
    monkeypatch.setattr("wedlm.hub_card.export.run_snippet", lambda *_: None)  # it has run, in a process
    result = run("export", place / "out", tmp_path / "whole", "--license", "mit")
    assert result.exit_code == 0, result.output
    assert load_checkpoint(tmp_path / "whole")[0].config.drafts["rank"] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"repository", "whole"}
    other = shutil.copytree(place / "out", tmp_path / "other")
    weights = {name: -tensor for name, tensor in load_file(other / ADAPTER_WEIGHTS).items()}
    save_file(weights, other / ADAPTER_WEIGHTS, {"format": "pt"})
    result = run("export", other, tmp_path / "refused", *options)
    assert result.exit_code == 2 and "measured other weights than those of" in result.stderr
    assert not (tmp_path / "refused").exists()


@pytest.mark.slow
def test_two_processes_write_the_answers_of_one(place, tmp_path):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "wedlm", "adapt",
        place / "stock", tmp_path / "out", "--prompts", place / "prompts.jsonl",
        "--max-new-tokens", "8", "--batch-size", "4", "--num-held-out", "3", "--steps", "6", "--max-length", "64",
        "--rank", "2",
    ]  # fmt: skip
    subprocess.run([str(word) for word in command], check=True, timeout=280)
    for name in ("train.jsonl", "held_out.jsonl"):
        assert (tmp_path / "out.work" / name).read_bytes() == (place / "out.work" / name).read_bytes()
    assert (tmp_path / "out" / ADAPTER_WEIGHTS).exists()
    checkpoint = max((tmp_path / "out.work" / "training").glob("checkpoint-*"))
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}
