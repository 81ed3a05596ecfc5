"""Each script of benchmarks/ runs at toy size, without a GPU."""

import json
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from draft_models import save_adapter
from gguf_files import write_gguf
from stock_checkpoints import save_stock
from stock_tokenizers import save_smollm
from transformers import AutoModelForCausalLM

import wedlm
from examples.demo.example import Example
from wedlm import convert_to_wedlm
from wedlm.evaluation import sweep
from wedlm.evaluation.decodings import BASELINE

QUESTION = Example("counting", "Which?", "a", "")


@pytest.mark.full
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
        words = [kit.__file__, name, "--out", tmp_path, *arguments]
        monkeypatch.setattr(sys, "argv", list(map(str, words)))
        kit.main()
        return json.loads((tmp_path / f"{name}.json").read_text())

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


@pytest.mark.full
def test_a_model_that_was_trained_on_tasks_ends_its_texts(run_slice, real_model, load_benchmark, monkeypatch):
    """Also where the tokenizer has another end than generate()."""
    training = load_benchmark("task_training")
    monkeypatch.setattr(training, "training_example", lambda *_: QUESTION)
    monkeypatch.setattr(training, "held_out", lambda number: number * [QUESTION])
    monkeypatch.setattr(training, "check", lambda example, text: text == example.answer)
    monkeypatch.setattr(training, "MAX_NEW_TOKENS", 12)
    monkeypatch.setattr(training.UntilTheEnd, "factor", lambda self, step: 1.0)
    folder = real_model[3]
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"eos_token": "<|im_start|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    few = ["--samples", 400, "--steps", 40, "--row-tokens", 256, "--rows-per-step", 2, "--rank", 8, "--questions", 2]
    report = run_slice("tasks", *real_model, *few, "--learning-rate", 0.03)
    results = report["results"]
    assert results["after, autoregressive"]["right"] == results["after, verified"]["right"] == 2
    assert results["after, autoregressive"]["tokens"] == 4, "the answer and its end"
    assert results["training"]["losses"][-1]["loss"] < results["training"]["losses"][0]["loss"]
    assert "| streaming 0.05 |  |  | 2 |" in training.table(results)


@pytest.mark.full
def test_the_real_model_is_measured_by_the_kit(run_slice, real_model, load_benchmark, monkeypatch, tmp_path):
    evidence = load_benchmark("evidence_real")
    monkeypatch.setattr(evidence, "GROUPS", {"numbers": ("maths",)})

    def load_gguf(path, dtype):
        return AutoModelForCausalLM.from_pretrained(tmp_path / "stock", dtype=dtype), None

    monkeypatch.setattr(wedlm, "load_gguf", load_gguf, raising=False)
    report = run_slice("evidence", *real_model, "--answer-tokens", 3)
    assert report["results"]["batches"] == {"measured": 2, "planned": 2} and report["new_tokens"] == 3
    table = evidence.short_table(evidence.read_record(tmp_path / "evidence.json"))
    assert f"| {evidence.FUSED_VERIFIED} |" in table and "| 3 of 3 |" in table


@pytest.mark.full
def test_steps_are_measured_beside_the_memory_floor_and_once(run_slice, load_benchmark, monkeypatch):
    kit = load_benchmark("gpu_kit")
    few = ["--shapes", "tiny", "--batch-sizes", 1, "--length", 24, "--new-tokens", 4, "--repeats", 1]
    results = run_slice("steps", *few)["results"]
    rows = {name: numbers for name, numbers in results.items() if "batch" in name}
    assert list(rows)[0] == "tiny, batch 1, stock" and len(rows) == 11
    for name, row in rows.items():
        assert row["floor"] > 0 and row["times_floor"] == row["milliseconds"]["median"] / row["floor"]
        assert ("graphs" in row) == ("captured" in name)
    monkeypatch.setattr(kit, "per_step", None)  # nothing is measured again
    assert run_slice("steps", *few)["results"] == results


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


@pytest.mark.slow
def test_the_checks_run_without_a_gpu(run, load_benchmark):
    results = run("gpu_checks", "--questions", 6, "--new-tokens", 40)["results"]
    module = load_benchmark("gpu_checks")
    assert [result["check"] for result in results] == list(module.CHECKS)
    assert module.FAILED not in {result["outcome"] for result in results}


@pytest.mark.slow
def test_training_is_measured_on_equal_tokens(run):
    cells = run("training", "--lengths", 256, "--repeats", 2)["results"]["rows"]
    assert [cell["side"] for cell in cells] == ["plain", "dual_stream", "sdpa"]
    for cell in cells:
        assert cell["times_plain"] == cell["seconds_per_step"]["median"] / cells[0]["seconds_per_step"]["median"]


@pytest.mark.full
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
