"""The benchmarks of decoding run, in their toy form, and count what they say they count."""

import importlib
import json
import sys

import pytest
import torch
from helpers import REPOSITORY

TINY = ["--shape", "tiny"]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the main of a benchmark in this process and returns its report."""
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    loaded = set(sys.modules)

    def run(name, *arguments):
        out = tmp_path / f"{name}.json"
        words = [f"{REPOSITORY}/benchmarks/{name}.py", *map(str, arguments), "--out", str(out)]
        monkeypatch.setattr(sys, "argv", words)
        importlib.import_module(name).main()
        return json.loads(out.read_text())

    yield run
    for name in {"step", "decode", "memory", "overhead", "gpu", "common"} & (set(sys.modules) - loaded):
        del sys.modules[name]


def test_a_step_is_measured_beside_its_floors(run, capsys):
    report = run("step", *TINY, "--rows", 1, 8, "--lengths", 16, 64, "--repeats", 3)
    results = report["results"]
    assert [(step["rows"], step["length"]) for step in results["steps"]] == [(1, 16), (8, 16), (1, 64), (8, 64)]
    # Two layers of width 64: four projections of attention and three of the MLP, and the head; float32, no embeddings.
    weights = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64 + 2 * 16) + 64 + 512 * 64
    of = {(step["rows"], step["length"]): step for step in results["steps"]}
    for step in results["steps"]:
        entries = 2 * (step["length"] + step["rows"])
        read = 4 * (weights + 2 * entries * 2 * 16)
        done = 2 * step["rows"] * weights + 4 * step["rows"] * entries * 4 * 16
        assert step["memory_floor_milliseconds"] == pytest.approx(1e3 * read / results["bytes_per_second"])
        assert step["arithmetic_floor_milliseconds"] == pytest.approx(1e3 * done / results["operations_per_second"])
        taken, shortest = step["milliseconds"], of[step["rows"], 16]
        assert 0 < taken["min"] <= taken["median"] <= taken["max"]
        more = step["attention_milliseconds"] - shortest["attention_milliseconds"]
        assert step["predicted_milliseconds"] == pytest.approx(shortest["milliseconds"]["median"] + more)
    out = capsys.readouterr().out
    assert sys.modules["step"].table(results) in out
    assert "Microseconds for one row more: " in out and "Microseconds for one entry more: " in out


def test_the_step_is_that_of_a_plain_forward(run):
    run("step", *TINY, "--rows", 1, "--lengths", 4, "--repeats", 1)
    step_module, common = sys.modules["step"], sys.modules["common"]
    model = common.model_of(step_module.argparse.Namespace(shape="tiny", dtype="float32"))
    with torch.no_grad():
        step = step_module.Step(model, batch_size=2, num_rows=3, length=7)
        twice = [step(), step()]
    assert torch.equal(*twice) and twice[0].shape == (2, 3, 512)
    assert step.cache.lengths.tolist() == [7, 7]


def test_decodings_take_turns_and_are_counted(run, capsys):
    report = run("decode", *TINY, "--batch-sizes", 1, 2, "--prompt-lengths", 8, "--new-tokens", 6, "--repeats", 1)
    sides = ["autoregressive", "static", "one slot", "streaming", "verified", "blockwise"]
    assert [cell["batch_size"] for cell in report["results"]] == [1, 2]
    for cell in report["results"]:
        assert list(cell["sides"]) == sides
        assert cell["sides"]["autoregressive"]["times_autoregressive"] == 1
        assert cell["sides"]["autoregressive"]["tokens_per_forward"] == 1
        for row in cell["sides"].values():
            rate = row["tokens_per_second"]
            assert 0 < rate["min"] <= rate["median"] <= rate["max"]
            assert ("milliseconds_to_first_token" in row) == (cell["batch_size"] == 1)
            assert row["share_kept"] == pytest.approx(row["times_autoregressive"] / row["tokens_per_forward"])
    assert capsys.readouterr().out.count("\n") >= 2 * len(sides)


def test_prompts_of_a_checkpoint_are_conversations_up_to_a_length(run):
    from transformers import AutoTokenizer

    from wedlm.checkpoints.demo_folder import DEMO_FOLDER

    run("decode", *TINY, "--batch-sizes", 1, "--prompt-lengths", 4, "--new-tokens", 2, "--repeats", 1)
    chat = sys.modules["decode"].chat
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    for length in (20, 300):
        messages = chat(tokenizer, 0, length)
        size = len(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
        assert messages[-1]["role"] == "user" and (len(messages) == 1 or length - 150 < size <= length)
    assert len(messages) > 1
    assert chat(tokenizer, 0, 300)[-1] != chat(tokenizer, 1, 300)[-1]


@pytest.mark.slow
def test_memory_rises_at_least_by_the_keys_and_values(run):
    rows = run("memory", *TINY, "--batch-sizes", 8, "--prompt-lengths", 3000, "--new-tokens", 2)["results"]
    assert [row["decoding"] for row in rows] == ["autoregressive", "streaming", "verified", "blockwise"]
    for row in rows:
        assert row["cache_bytes"] == 2 * 4 * 8 * 3002 * 2 * 2 * 16 < row["bytes"]


def test_operations_are_counted_for_one_more_forward(run, capsys):
    rows = run("overhead", *TINY, "--batch-sizes", 1, 2, "--new-tokens", 12, "--repeats", 2)["results"]
    decodings = ["autoregressive", "streaming", "verified", "blockwise"]
    assert [(row["batch_size"], row["decoding"]) for row in rows] == [(b, d) for b in (1, 2) for d in decodings]
    for row in rows:
        share = row["share_outside_forward"]
        assert 0 < share["min"] <= share["median"] <= share["max"] < 1
        counts = row["per_step"]
        assert 20 < counts["inside"] < 200
        if row["decoding"] == "autoregressive":
            assert counts["outside"] < 30
        else:
            assert 30 < counts["outside"] < 250 and counts["looks"] == 1
    by = {(row["batch_size"], row["decoding"]): row["per_step"] for row in rows}
    assert by[1, "streaming"]["outside"] < by[1, "verified"]["outside"]
    assert sys.modules["overhead"].table(rows) in capsys.readouterr().out


def test_one_more_look_of_the_host_would_be_counted(run, monkeypatch):
    from wedlm.generation.window import Window

    new_run = Window.new_run

    def looking(self, *arguments):
        self.alive.sum().item()
        return new_run(self, *arguments)

    monkeypatch.setattr(Window, "new_run", looking)
    rows = run("overhead", *TINY, "--batch-sizes", 1, "--new-tokens", 12, "--repeats", 1)["results"]
    assert {row["decoding"]: row["per_step"].get("looks") for row in rows}["streaming"] == 2


@pytest.mark.slow
def test_the_script_for_a_gpu_runs_without_one(run, capsys):
    arguments = ("--batch-sizes", 1, 2, "--length", 24, "--new-tokens", 16, "--window-size", 4, "--repeats", 1)
    report = run("gpu", *TINY, *arguments)
    rows, bandwidth = report["results"]["rows"], report["results"]["bytes_per_second"]
    sides = ["stock", "autoregressive", "one slot", "streaming", "verified", "streaming, ordinary steps"]
    assert [(row["batch_size"], row["side"]) for row in rows] == [(b, side) for b in (1, 2) for side in sides]
    floors, model = sys.modules["gpu"].floors, sys.modules["common"].model_of
    model = model(sys.modules["gpu"].argparse.Namespace(shape="tiny", dtype="float32"))
    answered = json.loads((REPOSITORY / "hub_card" / "wedlm-demo" / "report.json").read_text())
    filled = {name: row["tokens_per_forward"] for name, row in answered["results"]["word_problems"].items()}
    for row in rows:
        floor = 1e3 * floors(model, row["batch_size"], 1, 24)[0] / bandwidth
        assert row["memory_floor_milliseconds"] == pytest.approx(floor)
        expected = filled.get(row["side"].partition(",")[0], 1.0)
        rate = 1e3 * row["batch_size"] * expected / row["milliseconds_per_step"]["median"]
        assert row["tokens_per_second"] == pytest.approx(rate)
    assert capsys.readouterr().out.count("\n| ") == 2 + len(rows)


def test_the_stock_model_of_the_script_has_the_same_weights_and_logits(run):
    run("decode", *TINY, "--batch-sizes", 1, "--prompt-lengths", 4, "--new-tokens", 2, "--repeats", 1)
    gpu, common = importlib.import_module("gpu"), sys.modules["common"]
    model = common.model_of(gpu.argparse.Namespace(shape="tiny", dtype="float32"))
    stock = gpu.stock_model(model)
    assert stock.lm_head.weight.data_ptr() == model.lm_head.weight.data_ptr()
    tokens = torch.randint(0, 500, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(stock(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("name", ["decode", "decode_window8", "step", "step_long", "step_qwen3", "overhead", "memory"])
def test_the_page_shows_the_recorded_numbers(run, name):
    run("decode", *TINY, "--batch-sizes", 1, "--prompt-lengths", 4, "--new-tokens", 2, "--repeats", 1)
    report = json.loads((REPOSITORY / "benchmarks" / "results" / f"{name}.json").read_text())
    module = importlib.import_module(name.partition("_")[0])
    page = (REPOSITORY / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    assert module.table(report["results"]) in page
    assert f"python {report['command'].removeprefix('python ')}" in page
    assert not report["commit"].endswith("+changes")


def test_plots_are_written(run, tmp_path):
    run("step", *TINY, "--rows", 1, 8, "--lengths", 16, 64, "--repeats", 1)
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
