"""The script for a GPU runs without one, on a toy model."""

import json

import pytest
import torch
from helpers import REPOSITORY


@pytest.mark.slow
def test_the_script_for_a_gpu_runs_without_one(run, load_benchmark, tiny_model, capsys):
    arguments = ("--batch-sizes", 1, 2, "--length", 24, "--new-tokens", 16, "--window-size", 4, "--repeats", 1)
    report = run("gpu", "--shape", "tiny", *arguments)
    measured, bandwidth = report["results"]["rows"], report["results"]["bytes_per_second"]
    decodings = ["stock", "autoregressive", "one slot", "streaming", "verified", "streaming, ordinary steps"]
    assert [(numbers["batch_size"], numbers["side"]) for numbers in measured] == [
        (b, d) for b in (1, 2) for d in decodings
    ]
    bytes_read = load_benchmark("gpu").bytes_read
    answered = json.loads((REPOSITORY / "hub_card" / "wedlm-demo" / "report.json").read_text())
    filled = {name: numbers["tokens_per_forward"] for name, numbers in answered["results"]["word_problems"].items()}
    for numbers in measured:
        floor = 1e3 * bytes_read(tiny_model, numbers["batch_size"], 24) / bandwidth
        assert numbers["memory_floor_milliseconds"] == pytest.approx(floor)
        expected = filled.get(numbers["side"].partition(",")[0], 1.0)
        rate = 1e3 * numbers["batch_size"] * expected / numbers["milliseconds_per_step"]["median"]
        assert numbers["tokens_per_second"] == pytest.approx(rate)
    assert capsys.readouterr().out.count("\n| ") == 2 + len(measured)


def test_the_stock_model_of_the_script_has_the_same_weights_and_logits(load_benchmark, tiny_model):
    stock = load_benchmark("gpu").stock_model(tiny_model)
    assert stock.lm_head.weight.data_ptr() == tiny_model.lm_head.weight.data_ptr()
    tokens = torch.randint(0, 500, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(stock(tokens).logits, tiny_model(tokens).logits)


def test_a_step_reads_the_weights_and_the_cache(load_benchmark, tiny_model):
    # Two layers of width 64: four projections of attention and three of the MLP, and the head; float32, no embeddings.
    weights = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64 + 2 * 16) + 64 + 512 * 64
    entries = 3 * 2 * (24 + 1)
    assert load_benchmark("gpu").bytes_read(tiny_model, 3, 24) == 4 * (weights + 2 * entries * 2 * 16)
