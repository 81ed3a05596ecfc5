"""Each script of benchmarks/ runs at toy size, without a GPU."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
import torch
from draft_models import save_adapter
from gguf_files import write_gguf
from stock_checkpoints import save_stock
from stock_tokenizers import save_smollm
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

import wedlm
from examples.demo.example import Example
from wedlm import convert_to_wedlm
from wedlm.evaluation import sweep
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import device_name
from wedlm.training.dual_stream import StreamQueries, dense_mask
from wedlm.training.target_loss import NO_TARGET

QUESTION = Example("counting", "Which?", "a", "")


@pytest.mark.slow
def test_fused_models_are_measured_beside_the_floor(run, load_benchmark, capsys):
    results = run("fused", "--shape", "tiny", "--dtypes", "float32", "--repeats", 2)["results"]
    assert set(results["rows"]["float32"]) == {
        "WeDLM",
        "fused",
        "fused, q8_0",
        "fused, q4_1",
        "floor",
        "floor, q8_0",
        "floor, q4_1",
    }
    printed, tables = capsys.readouterr().out, load_benchmark("fused").tables(results)
    assert tables.keys() == {"rows", "long", "prompts", "beside"} and all(each in printed for each in tables.values())


@pytest.fixture
def run_blocks(run, load_benchmark, monkeypatch, tmp_path):
    blocks = load_benchmark("blocks")
    problem = {"prompt": "def f():", "canonical_solution": " return 1"}
    monkeypatch.setattr(blocks, "human_eval", lambda _: 2 * [problem])
    save_stock(tmp_path / "stock", "llama", intermediate_size=64)
    given = ["--stock", tmp_path / "stock", "--files", write_gguf(tmp_path / "tiny.gguf"), "--threads", 1]
    return lambda part: run("blocks", "--parts", part, *given, "--repeats", 1)["results"][part]


@pytest.mark.full
def test_rounding_to_blocks_is_measured(run_blocks, load_benchmark):
    rounding = run_blocks("rounding")
    assert rounding.keys() == {"float32", *load_benchmark("blocks").TYPES}
    assert [rounding[name]["bits"] for name in ("float32", "int8", "q8_0", "q4_0")] == [32, 8, 8.5, 4.5]
    changes = {name: abs(of["times_first"] - 1) for name, of in rounding.items()}
    assert changes["float32"] == 0 < changes["q8_0"] < changes["q4_0"]


@pytest.mark.slow
def test_the_start_from_a_file_is_measured(run_blocks, tmp_path):
    start = run_blocks("start")["tiny.gguf"]
    assert start["file_bytes"] == (tmp_path / "tiny.gguf").stat().st_size
    assert start["seconds"] > 0 and start["memory_bytes"] > 0


@pytest.fixture
def run_slice(load_benchmark, monkeypatch, tmp_path):
    """Runs a slice of the kit in this process and returns its report."""

    def run_slice(name, *arguments):
        kit = load_benchmark("gpu_kit")
        words = [kit.__file__, name, "--out", tmp_path / "kit", *arguments]
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", list(map(str, words)))
            kit.main()
        return json.loads((tmp_path / "kit" / f"{name}.json").read_text())

    return run_slice


@pytest.fixture
def real_model(tmp_path):
    """A tiny Llama with a tokenizer like SmolLM2's, as a stock checkpoint and as a WeDLM, and an adapter."""
    (tmp_path / "stock").mkdir()
    save_stock(tmp_path / "stock", "llama", rows=300, tied=True, tokenizer=False, eos_token_id=2)
    save_smollm(tmp_path / "stock")
    convert_to_wedlm(tmp_path / "stock", tmp_path / "model")
    save_adapter(tmp_path / "adapter", base=tmp_path / "model")
    return [word for name in ("stock", "model", "adapter") for word in (f"--{name}", tmp_path / name)]


@pytest.mark.slow
def test_a_model_is_trained_on_tasks_in_several_calls_and_ends_its_texts(
    run_slice, real_model, load_benchmark, monkeypatch, tmp_path
):
    """Also where the tokenizer has another end than generate()."""
    training = load_benchmark("task_training")
    monkeypatch.setattr(training, "training_example", lambda *_: QUESTION)
    monkeypatch.setattr(training, "held_out", lambda number: number * [QUESTION])
    monkeypatch.setattr(training, "check", lambda example, text: text == example.answer)
    monkeypatch.setattr(training, "MAX_NEW_TOKENS", 12)
    monkeypatch.setattr(training, "FILE_BYTES", 4000)
    monkeypatch.setattr(training.UntilTheEnd, "factor", lambda self, step: min(1.0, (step + 1) / 20))
    folder = real_model[3]
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"eos_token": "<|im_start|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    monkeypatch.setattr(training.Progress, "is_over", lambda self: self.before["steps"] >= 80)
    few = ["--samples", 400, "--steps", 40, "--row-tokens", 256, "--rows-per-step", 2, "--rank", 8, "--questions", 2]
    few += [*real_model, "--learning-rate", 0.015]
    begun = run_slice("tasks", *few)["results"]
    assert begun["training"]["steps"] == 40 and begun["before, verified"]["right"] == 0
    assert not any("after" in name for name in begun)
    assert len(list((tmp_path / "kit" / "adapter").glob("*.safetensors"))) > 1

    record = json.loads((tmp_path / "kit" / "tasks.json").read_text())
    record["device"], record["results"]["training"]["devices"] = "another", ["another"]
    (tmp_path / "kit" / "tasks.json").write_text(json.dumps(record))
    results = run_slice("tasks", *few)["results"]
    trained = results["training"]
    assert results["after, autoregressive"]["right"] == results["after, verified"]["right"] == 2
    assert results["after, autoregressive"]["tokens"] == 4, "the answer and its end"
    assert (trained["steps"], trained["calls"], trained["losses"][-1]["step"]) == (80, 2, 80)
    assert trained["devices"] == ["another", device_name("cpu")]
    losses = [entry["loss"] for entry in trained["losses"]]
    assert losses[-1] < losses[len(losses) // 2] < losses[0], "the second call went on from the first"
    assert "| streaming 0.05 |  |  | 2 |" in training.table(results)
    monkeypatch.setattr(training, "load_model", None)  # nothing is trained or answered again
    assert run_slice("tasks", *few)["results"] == results
    shutil.rmtree(tmp_path / "kit" / "adapter")
    monkeypatch.undo()
    with pytest.raises(SystemExit, match="adapter is missing, from which .*tasks.json goes on"):
        run_slice("tasks", *few)


@pytest.mark.full
def test_a_training_that_is_killed_goes_on_from_its_last_save(run_slice, real_model, load_benchmark, monkeypatch):
    training, saved = load_benchmark("task_training"), []
    save = training.save_adapter

    def killed(model, folder):
        save(model, folder)
        saved.append(folder)
        if len(saved) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "SECONDS_BETWEEN_SAVES", 0)
    monkeypatch.setattr(training, "BEFORE", ())
    few = ["--samples", 8, "--steps", 4, "--row-tokens", 256, "--rank", 2, "--questions", 1, *real_model]
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(training, "save_adapter", killed)
        run_slice("tasks", *few)
    trained = run_slice("tasks", *few)["results"]["training"]
    assert (trained["steps"], trained["calls"]) == (2 + 4, 2)


@pytest.mark.slow
def test_the_real_model_is_measured_by_the_kit(run_slice, real_model, load_benchmark, monkeypatch, tmp_path):
    evidence = load_benchmark("evidence_real")
    monkeypatch.chdir(tmp_path)  # where no other engine is installed
    monkeypatch.setattr(evidence, "GROUPS", {"numbers": ("maths",)})

    def load_gguf(path, dtype):
        return AutoModelForCausalLM.from_pretrained(tmp_path / "stock", dtype=dtype), None

    monkeypatch.setattr(wedlm, "load_gguf", load_gguf, raising=False)
    few = [*real_model, "--answer-tokens", 3, "--prompts", 2]
    with pytest.raises(FileNotFoundError):
        run_slice("evidence", *few, "--minutes", 0)
    report = run_slice("evidence", *few)
    assert report["results"]["batches"] == {"measured": 3, "planned": 3} and report["new_tokens"] == 3
    record = evidence.read_record(tmp_path / "kit" / "evidence.json")
    assert (record.cell(1)["prompts"], record.cell(8)["prompts"]) == (2, 2)
    table = evidence.short_table(record)
    assert f"| {evidence.FUSED_VERIFIED} |" in table and "| 4 of 4 |" in table


@pytest.mark.full
def test_the_kit_makes_the_real_model_where_it_is_not_there(run_slice, load_benchmark, monkeypatch, tmp_path):
    kit, evidence, made = load_benchmark("gpu_kit"), load_benchmark("evidence_real"), []
    monkeypatch.setattr(kit, "write_models", lambda *folders: made.append(folders))
    monkeypatch.setattr(evidence, "main", lambda: None)
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "evidence.json").write_text("{}")
    run_slice("evidence", "--stock", tmp_path / "stock", "--model", tmp_path / "stock-wedlm")
    assert made == [(kit.PACKAGES, tmp_path / "stock")]


@pytest.mark.slow
def test_steps_are_measured_beside_the_memory_floor_and_once(run_slice, load_benchmark, monkeypatch, tmp_path):
    kit = load_benchmark("gpu_kit")
    few = ["--shapes", "tiny", "--batch-sizes", 1, "--length", 24, "--new-tokens", 4, "--repeats", 1]
    results = run_slice("steps", *few)["results"]
    rows = {name: numbers for name, numbers in results.items() if "batch" in name}
    assert list(rows)[0] == "tiny, batch 1, stock" and len(rows) == 17
    for name, row in rows.items():
        assert row["floor"] > 0 and row["times_floor"] == row["milliseconds"]["median"] / row["floor"]
        assert ("graphs" in row) == ("captured" in name)
    monkeypatch.setattr(kit, "per_step", None)  # nothing is measured again
    assert run_slice("steps", *few)["results"] == results
    file = tmp_path / "kit" / "steps.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"device": "another"}))
    assert "failed" in run_slice("steps", *few)["results"]["tiny, batch 1, stock"], "measured on this device"


@pytest.mark.full
def test_what_fails_is_told_and_tried_again_and_the_slice_goes_on(run_slice, load_benchmark, monkeypatch):
    kit = load_benchmark("gpu_kit")
    few = ["--shapes", "tiny", "--batch-sizes", 1, "--length", 24, "--new-tokens", 4, "--repeats", 1]
    ways_of, per_step, failures = (
        kit.ways_of,
        kit.per_step,
        [ValueError("no number"), torch.OutOfMemoryError("CUDA out of memory")],
    )

    def failing(*arguments):
        if failures:
            raise failures.pop(0)
        return per_step(*arguments)

    monkeypatch.setattr(kit, "ways_of", lambda model: dict(list(ways_of(model).items())[:3]))
    monkeypatch.setattr(kit, "per_step", failing)
    results = run_slice("steps", *few)["results"]
    assert results["tiny, batch 1, stock"] == {"failed": "ValueError: no number"}
    table = kit.table(results)
    assert "| tiny, batch 1, stock | ValueError: no number |" in table
    assert f"| tiny, batch 1, {kit.CAPTURED} | out of memory |" in table
    assert "floor" in results[f"tiny, batch 1, verified, {kit.SOME_QUERIES} queries"]
    again = run_slice("steps", *few)["results"]
    assert "floor" in again["tiny, batch 1, stock"]
    again["tiny, batch 1, stock"] = results["tiny, batch 1, stock"]
    assert again == results


def test_a_slice_begins_nothing_when_its_minutes_are_over(run_slice):
    with pytest.raises(FileNotFoundError):
        run_slice("training", "--shapes", "tiny", "--minutes", 0)


@pytest.mark.slow
def test_what_compiles_for_too_long_is_ended_with_all_that_it_started(load_benchmark, tmp_path):
    common, file = load_benchmark("common"), tmp_path / "pid"
    assert common.in_fresh_process(os.getpid, seconds=60) != os.getpid()
    sleep = f"echo $$ > {file}; exec sleep 60"
    assert common.in_fresh_process(subprocess.call, ["sh", "-c", sleep], seconds=4) is None
    with suppress(psutil.NoSuchProcess):  # it may need a moment, and stays a zombie if nobody waits
        sleeping = psutil.Process(int(file.read_text()))
        ends = time.monotonic() + 10
        while sleeping.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < ends
            time.sleep(0.05)
    kit = load_benchmark("gpu_kit")
    assert kit.compiled_in_time(1.0, "tiny", (1, 24, 4), 1, 0.01) == {"left_out": "not ready in 0 s"}
    measured = kit.compiled_in_time(2.0, "tiny", (1, 24, 4), 1, 100)  # on a CPU generate() compiles nothing by itself
    assert measured["times_floor"] == measured["milliseconds"]["median"] / 2


@pytest.mark.slow
def test_the_trainer_is_measured(run_slice, load_benchmark):
    few = ["--shapes", "tiny", "--training-lengths", 64, "--rank", 4, "--repeats", 1]
    results = run_slice("training", *few)["results"]
    peak = results.pop("flops_per_second")
    names = [
        f"tiny, {kind}, 64 tokens, {way}"
        for kind in ("LoRA of rank 4", "whole")
        for way in ("WeDLMTrainer", "Trainer")
    ]
    assert list(results) == names
    for name, numbers in results.items():
        seconds = numbers["seconds_per_step"]["median"]
        assert numbers["tokens_per_second"]["median"] == pytest.approx(64 / seconds)
        assert numbers["share_of_peak"] == pytest.approx(numbers["flops_per_step"] / seconds / peak)
        assert numbers["queries"] == (128 if "WeDLM" in name else 64) and numbers["bytes"] > 0
    assert load_benchmark("trainer_speed").table(results).count("\n") == 5


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rank", [0, 4])
def test_the_operations_of_a_training_step_are_those_that_torch_counts(
    load_benchmark, monkeypatch, tmp_path, rank, tied
):
    speed, length = load_benchmark("trainer_speed"), 24
    monkeypatch.setitem(load_benchmark("common").SHAPES["tiny"], "tie_word_embeddings", tied)
    trainer, model = speed.new_trainer(speed.CAUSAL, "tiny", rank, length, 1, str(tmp_path))
    model.set_attn_implementation("eager")  # which computes the pairs that the mask hides, too
    row = trainer.data_collator(list(trainer.train_dataset))
    with FlopCounterMode(display=False) as counter:
        model(**row).loss.backward()
    of_head = 2 * length * 512 * 64 if rank and tied else 0  # its gradient, of which one row is needed
    assert speed.flops(model, not rank, length, length, length**2) + of_head == counter.get_total_flops()
    ((queries, targets, pairs),) = speed.counts_of(trainer)
    assert (queries, targets, pairs) == (length, length, length * (length + 1) / 2)


def test_the_pairs_of_a_training_step_are_those_that_the_mask_shows(load_benchmark, tmp_path):
    speed, length = load_benchmark("trainer_speed"), 48
    trainer, _ = speed.new_trainer(speed.OURS, "tiny", 0, length, 1, str(tmp_path))
    ((queries, targets, pairs),) = speed.counts_of(trainer)
    batch = trainer.data_collator(list(trainer.train_dataset))
    index = torch.arange(queries)[None]
    streams = StreamQueries(batch["sample_ids"], batch["stream_ids"], batch["block_ids"], index)
    assert pairs == dense_mask(streams).sum() and targets == (batch["targets"] != NO_TARGET).sum()


def test_launches_are_counted_when_the_graphs_are_there(load_benchmark, monkeypatch):
    """The steps of another way are kept when they are counted, so the first call captures anew."""
    kit, captured, events = load_benchmark("gpu_kit"), [], []

    def event(key, count):
        return SimpleNamespace(key=key, count=count, device_type=None)

    def call(number):
        events[:] = [event("cudaGraphLaunch", number)] + [event("cudaLaunchKernel", 500)] * (not captured)
        captured.append(number)
        return {}

    profiled = SimpleNamespace(key_averages=lambda: events)
    monkeypatch.setattr(kit, "profile", lambda **_: nullcontext(profiled))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls = {number: partial(call, number) for number in (4, 12)}
    assert kit.launches_per_step(calls) == {"launches": 1, "kernels": 0}


def test_checks_go_on_where_they_were_stopped_and_are_made_again_if_they_failed(
    run_slice, load_benchmark, monkeypatch
):
    module, made = load_benchmark("gpu_checks"), []

    def check(questions):
        made.append(1)
        if len(made) == 1:
            raise ValueError("no")
        return "yes"

    monkeypatch.setattr(module, "CHECKS", {"one": check, "two": check})
    with pytest.raises(SystemExit, match="1 of 1 checks failed"):
        run_slice("checks", "--only", "one")
    results = run_slice("checks")["results"]
    assert results == [{"check": name, "outcome": module.PASSED, "found": "yes"} for name in ("one", "two")]
    assert run_slice("checks")["results"] == results and len(made) == 3


@pytest.mark.slow
def test_the_checks_run_without_a_gpu(run, load_benchmark):
    results = run("gpu_checks", "--questions", 6, "--new-tokens", 40)["results"]
    module = load_benchmark("gpu_checks")
    assert [result["check"] for result in results] == list(module.CHECKS)
    assert module.FAILED not in {result["outcome"] for result in results}


@pytest.mark.slow
def test_training_is_measured_on_equal_tokens(run):
    given = ("--lengths", 256, "--real-lengths", 64, "--real-dtypes", "autocast", "--repeats", 2)
    results = run("training", *given)["results"]
    cells, real = results["rows"], results["real"]["rows"]
    assert [cell["side"] for cell in cells] == ["plain", "dual_stream", "sdpa"]
    for cell in cells:
        assert cell["times_plain"] == cell["seconds_per_step"]["median"] / cells[0]["seconds_per_step"]["median"]
    assert [cell["side"] for cell in real] == ["causal", "dual_stream", "i-dlm", "draft"]
    for cell in real:
        assert 0 < cell["seconds_of_products"]["median"] < cell["seconds_per_step"]["median"]


@pytest.mark.slow
def test_a_figure_of_decoding_goes_on_where_it_was_stopped(load_benchmark, monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "NUM_RESAMPLES", 100)
    ablations = load_benchmark("ablations")
    figure = ablations.FIGURES["threshold"]
    few = dict(list(figure.decodings.items())[:2])
    monkeypatch.setitem(ablations.FIGURES, "threshold", figure._replace(decodings=few))
    words = ["--num-questions", "1", "--out", tmp_path, "--plots", tmp_path, "--work", tmp_path / "work"]
    monkeypatch.setattr(sys, "argv", [ablations.__file__, "threshold", *map(str, words)])
    ablations.main()
    results = json.loads((tmp_path / "ablation_threshold.json").read_text())["results"]
    assert list(results) == ["word_problems", "equations", "all"] and len(results["all"]) == 3
    assert results["all"][BASELINE]["times_autoregressive"]["median"] == 1
    assert (tmp_path / "threshold.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("wedlm.evaluation.sweep.write", None)  # nobody is asked again
    ablations.main()
    assert json.loads((tmp_path / "ablation_threshold.json").read_text())["results"] == results


@pytest.mark.slow
def test_trainings_on_a_task_are_compared_and_go_on(run, real_model, load_benchmark, monkeypatch, tmp_path):
    comparison = load_benchmark("task_comparison")
    monkeypatch.setattr(comparison, "MAX_NEW_TOKENS", 8)
    monkeypatch.setattr(comparison.task_data, "check", lambda example, text: text.startswith("a"))
    few = ["--samples", 12, "--rank", 2, "--low-rank-learning-rate", 0.05, "--questions", 2]
    few += ["--max_steps", 8, "--max_length", 256, "--per_device_train_batch_size", 1, "--learning_rate", 0.02]
    few += ["--warmup_steps", 0, "--logging_steps", 1, "--bf16", "false"]
    where = ["--stock", tmp_path / "stock", "--wedlm", tmp_path / "model", "--work", tmp_path / "work"]
    words = ["task_comparison", *few, *where, "--kinds", "counting"]
    results = run(*words)["results"]
    assert list(results["trainings"]) == ["plain", "whole", "LoRA"]
    of_plain = [name for name in results["answers"] if name.startswith("plain")]
    assert of_plain == ["plain, autoregressive"] and len(results["answers"]) == 1 + 2 * len(
        comparison.decodings_at(comparison.THRESHOLDS)
    )
    for training in ("whole", "LoRA"):
        verified = results["answers"][f"{training}, verified, window {comparison.WINDOW[0]}"]
        assert verified["same_text_as_autoregressive"] == 1
        assert f"| {training}, verified |" in comparison.table(results["answers"])
    losses = [[entry["loss"] for entry in log if "loss" in entry] for log in results["trainings"].values()]
    assert all(len(each) == 8 and min(each[4:]) < each[0] for each in losses), losses
    with monkeypatch.context() as unused:  # nothing is trained or asked again
        for name in ("interleaved", "train", "train_plain"):
            unused.setattr(comparison, name, None)
        assert run(*words)["results"] == results
    curve = ["--curve", "--save_steps", 4, "--save_total_limit", 2, "--thresholds", 0.2]
    on_the_way = run(*words, *curve)["results"]
    after = [f"{training} after {steps} steps" for training in ("whole", "LoRA") for steps in (4, 8)]
    labels = comparison.decodings_at([0.2])
    assert list(on_the_way["answers"]) == [*of_plain, *(f"{name}, {label}" for name in after for label in labels)]
    assert comparison.curve(on_the_way["answers"]).count("\n") == 6
    for checkpoint in (tmp_path / "work").glob("*/whole/checkpoint-*"):
        shutil.rmtree(checkpoint)
    with pytest.raises(SystemExit, match="whole has no checkpoints; give --save_steps and --save_total_limit"):
        run(*words, *curve)


def test_the_fastest_threshold_that_keeps_the_answers_is_chosen(load_benchmark):
    comparison = load_benchmark("task_comparison")
    seconds = {"autoregressive": 9, "streaming, threshold 0.05": 7, "streaming, threshold 0.1": 5}
    answers, decodings = {}, comparison.decodings_at(comparison.THRESHOLDS)
    for label in decodings:
        name = label.replace(f", window {comparison.WINDOW[0]}", "")
        rights = [1.0] * 500 if name in seconds else [0.0] * 100 + [1.0] * 400
        answers[label] = [comparison.Answer("a", right, 4, 4, 4, seconds.get(name, 1)) for right in rights]
    chosen = comparison.chosen(answers, decodings, 0.01)
    assert "threshold 0.1" in chosen and chosen in decodings


def test_samples_of_a_packed_row_are_apart_in_transformers_training(load_benchmark):
    row = {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, 6, 7, -100, 9], "sample_lengths": [3, 2]}
    batch = load_benchmark("task_comparison").one_sample_a_row([row, row])
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]] * 2
    assert batch["labels"].tolist() == [[-100, 6, 7], [-100, 9, -100]] * 2
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]] * 2


def test_a_newcomers_commands_run_in_a_clone(run, load_benchmark, monkeypatch, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "Makefile").write_text("demo:\n\tmkdir .venv\nfails:\n\tfalse\ntest:\n\ttest -d .venv\n")
    git = ["git", "-C", str(tmp_path / "source"), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(load_benchmark("first_steps"), "REPOSITORY", tmp_path / "source")
    found = run("first_steps", "--targets", "demo", "test")["results"]
    assert [target["target"] for target in found["targets"]] == ["demo", "test"]
    with pytest.raises(subprocess.CalledProcessError):
        run("first_steps", "--targets", "demo", "fails")
