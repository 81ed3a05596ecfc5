"""A checkpoint that version 0.1.0 saved, its code beside the weights, loads and decodes as it did."""

import json

import pytest
import torch
from helpers import CHECKPOINTS, DECODE, EOS, load, run_python
from transformers import AutoModelForCausalLM

SAVED = CHECKPOINTS / "saved_by_0.1.0"  # the golden checkpoint q3
RUNS = [run for run in DECODE["runs"] if run["checkpoint"] == "q3" and "blockwise_ids" in run][:8]
AUTOREGRESSIVE = [run for run in DECODE["autoregressive"] if run["checkpoint"] == "q3"][:4]
SETTINGS = ("window_size", "entropy_threshold", "distance_penalty", "max_new_tokens")
# What a process without this package does: the code of the checkpoint itself decodes.
CODE = """
import json, sys, torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert "row_cache" in {name.rpartition(".")[2] for name in sys.modules}
calls = json.loads(open("calls.json").read())
texts = [
    model.generate(torch.tensor([call["prompt"]]), **call["settings"])[0, len(call["prompt"]) :].tolist()
    for call in calls
]
open("texts.json", "w").write(json.dumps(texts))
"""


def calls_and_texts():
    """Settings of generate(), and the recorded text of each."""
    for run in RUNS:
        settings = {name: run[name] for name in SETTINGS}
        yield run, {**settings, "decoding": "streaming"}, run["ids"]
        yield run, {**settings, "decoding": "blockwise"}, run["blockwise_ids"]
    for run in AUTOREGRESSIVE:
        settings = {"max_new_tokens": run["max_new_tokens"]}
        yield run, {**settings, "decoding": "autoregressive"}, run["ids"]
        yield run, {**settings, "decoding": "verified"}, run["ids"]


def test_its_own_code_writes_the_recorded_texts_without_the_package(tmp_path):
    calls, expected = [], []
    for run, settings, ids in calls_and_texts():
        prompt = DECODE["prompts"][run["prompt"]]
        calls.append({"prompt": prompt, "settings": {**settings, "eos_token_id": EOS, "pad_token_id": 0}})
        expected.append(ids)
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    run_python(CODE.replace("sys.argv[1]", repr(str(SAVED))), tmp_path, wedlm=False)
    assert len(expected) > 16 and json.loads((tmp_path / "texts.json").read_text()) == expected


@pytest.mark.parametrize("decoding", ["streaming", "blockwise", "verified", "autoregressive"])
def test_the_present_code_loads_it(decoding):
    model = AutoModelForCausalLM.from_pretrained(SAVED)
    assert type(model).__module__ == "wedlm.modeling_wedlm.modeling_wedlm"
    prompt = torch.tensor([DECODE["prompts"][2]])
    arguments = {"max_new_tokens": 24, "decoding": decoding, "pad_token_id": 0}
    expected = load(CHECKPOINTS / "q3").generate(prompt, **arguments)
    assert torch.equal(model.generate(prompt, **arguments), expected)
