"""Checkpoints that versions 0.1.0 and 0.2.0 saved, their code beside the weights, load and decode as they did."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from helpers import CHECKPOINTS, DECODE, EOS, GOLDEN, load, run_python
from transformers import AutoModelForCausalLM

from wedlm.generation.transformers_internals import CACHE

RUNS = [run for run in DECODE["runs"] if run["checkpoint"] == "q3" and "blockwise_ids" in run][:3]
AUTOREGRESSIVE = [run for run in DECODE["autoregressive"] if run["checkpoint"] == "q3"][:2]
TEXTS = [(run, "streaming", run["ids"]) for run in RUNS]
TEXTS += [(run, "blockwise", run["blockwise_ids"]) for run in RUNS]
TEXTS += [(run, decoding, run["ids"]) for run in AUTOREGRESSIVE for decoding in ("autoregressive", "verified")]
SETTINGS = ("window_size", "entropy_threshold", "distance_penalty", "max_new_tokens")
# What a process without this package does: the code of the checkpoint itself decodes.
CODE = """
import json, sys, torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained({folder!r}, trust_remote_code=True)
assert "row_cache" in {{name.rpartition(".")[2] for name in sys.modules}}
calls = json.loads(open("calls.json").read())
texts = [
    model.generate(torch.tensor([call["prompt"]]), **call["settings"])[0, len(call["prompt"]) :].tolist()
    for call in calls
]
open("texts.json", "w").write(json.dumps(texts))
"""


@pytest.fixture(scope="module", params=["0.1.0", "0.2.0"])
def saved(request, tmp_path_factory) -> Path:
    """The golden checkpoint q3, as an older version saved it; the archive lacks the weights, which are the same."""
    place = tmp_path_factory.mktemp("older")
    with tarfile.open(GOLDEN / f"saved_by_{request.param}.tar.gz") as archive:
        archive.extractall(place, filter="data")
    folder = place / f"saved_by_{request.param}"
    shutil.copy(CHECKPOINTS / "q3" / "model.safetensors", folder)
    return folder


def assert_writes_the_recorded_texts(folder: Path, place: Path) -> None:
    """The code beside the weights does, in a process without this package."""
    calls = []
    for run, decoding, _ in TEXTS:
        settings = {name: run[name] for name in SETTINGS if name in run} | {"eos_token_id": EOS, "pad_token_id": 0}
        calls.append({"prompt": DECODE["prompts"][run["prompt"]], "settings": {**settings, "decoding": decoding}})
    (place / "calls.json").write_text(json.dumps(calls))
    run_python(CODE.format(folder=str(folder)), place, wedlm=False)
    assert json.loads((place / "texts.json").read_text()) == [ids for _, _, ids in TEXTS]


@pytest.mark.full
@pytest.mark.skipif(CACHE == "cache", reason="its code cannot be right from transformers 5.24 on")
def test_its_own_code_writes_the_recorded_texts_without_the_package(saved, tmp_path):
    assert_writes_the_recorded_texts(saved, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("saved", ["0.1.0"], indirect=True)
def test_saving_renews_its_code(saved, tmp_path):
    AutoModelForCausalLM.from_pretrained(saved).save_pretrained(tmp_path / "renewed")
    assert_writes_the_recorded_texts(tmp_path / "renewed", tmp_path)


def test_the_present_code_loads_it(saved):
    model, current = AutoModelForCausalLM.from_pretrained(saved), load(CHECKPOINTS / "q3")
    assert type(model).__module__ == "wedlm.modeling_wedlm.modeling_wedlm"
    assert model.generation_config.to_dict() == current.generation_config.to_dict()
    prompt = torch.tensor([DECODE["prompts"][2]])
    arguments = {"max_new_tokens": 24, "decoding": "verified", "pad_token_id": 0}
    assert torch.equal(model.generate(prompt, **arguments), current.generate(prompt, **arguments))
