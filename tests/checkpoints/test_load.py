"""`load_checkpoint`: a model and a tokenizer, or one sentence."""

import json
import shutil
from unittest.mock import Mock

import pytest
import torch
from draft_models import save_adapter
from helpers import CHECKPOINTS, MASK, put_into_hub_cache, random_tokens, run_python
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tiny_tokenizer import make_tokenizer
from transformers import (
    AutoModelForCausalLM,
)
from typer.testing import CliRunner

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.load import load_checkpoint
from wedlm.commands.cli import app
from wedlm.drafts.measure import measure
from wedlm.fused.model import product_of


@pytest.fixture
def folder(tmp_path):
    """A whole checkpoint that a test may spoil."""
    result = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINTS / "q3", result)
    make_tokenizer().save_pretrained(result)
    return result


def refusal(name, **options):
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(name, **options)
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


def test_a_folder_and_a_name_on_the_hub(folder, tmp_path, monkeypatch):
    """The same model and tokenizer, and none of the code that lies beside them runs."""
    put_into_hub_cache(folder, tmp_path / "hub", "somebody/wedlm")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in (folder, str(folder), "somebody/wedlm"):
        model, tokenizer = load_checkpoint(name)
        assert type(model).__module__ == "wedlm.modeling_wedlm.modeling_wedlm" and not model.training
        assert tokenizer.get_vocab() == make_tokenizer().get_vocab()
        for name, tensor in load_file(folder / "model.safetensors").items():
            assert model.state_dict()[name].equal(tensor)
    assert load_checkpoint(folder, dtype="bfloat16")[0].dtype.itemsize == 2


def test_a_draft_adapter_comes_with_its_base(folder, tmp_path, monkeypatch):
    """From a folder and from the Hub; it decodes verified unless its own generation_config.json says otherwise."""
    adapter = save_adapter(tmp_path / "adapter", base=folder)
    put_into_hub_cache(adapter, tmp_path / "hub", "somebody/adapter")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    base, _ = load_checkpoint(folder)
    assert base.config.drafts is None and base.generation_config.decoding == "streaming"
    ids = torch.cat([random_tokens(1, 6), torch.full((1, 2), MASK)], dim=1)
    expected = PeftModel.from_pretrained(base, adapter)(ids).logits
    for name in (adapter, "somebody/adapter"):
        model, tokenizer = load_checkpoint(name)
        assert model.config.drafts["rank"] == 4 and model.generation_config.decoding == "verified"
        assert tokenizer.get_vocab() == make_tokenizer().get_vocab()
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-4, rtol=1e-4)
    fields = json.loads((folder / "generation_config.json").read_text())
    fields |= {"_from_model_config": False, "decoding": "blockwise"}
    (adapter / "generation_config.json").write_text(json.dumps(fields))
    assert load_checkpoint(adapter)[0].generation_config.decoding == "blockwise"


def test_a_model_that_only_decodes_is_fused(folder):
    assert product_of(load_checkpoint(folder, only_decodes=True)[0]) is not None
    assert product_of(load_checkpoint(folder)[0]) is None


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("wedlm.commands.answering", "generate {0} x"),
        ("wedlm.checkpoints.load", "tune {0} --data {1}"),
        ("wedlm.checkpoints.load", "eval {0} --tasks demo_counting --include-path {3} --out {2}"),
        ("wedlm.serving.server", "serve {0} --port 0"),
        ("wedlm.drafts.adapt", "adapt {0} {2} --num-prompts 30"),
    ],
)
def test_every_command_that_only_decodes_says_so(module, command, folder, tmp_path, monkeypatch):
    seen = []

    def load(*arguments, **options):
        seen.append(options)
        raise CheckpointError("Seen.")

    monkeypatch.setattr(f"{module}.load_checkpoint", load)
    (tmp_path / "data.jsonl").write_text('{"prompt": "x", "answer": "y"}\n' * 8)
    words = command.format(DEMO_FOLDER, tmp_path / "data.jsonl", tmp_path / "out", "examples/demo/lm_eval_tasks")
    result = CliRunner().invoke(app, words.split())
    assert seen == [{"only_decodes": True}] and "Seen." in result.stderr


def test_the_measurement_of_an_adapter_only_decodes(monkeypatch):
    load = Mock(side_effect=CheckpointError("Seen."))
    monkeypatch.setattr("wedlm.drafts.measure.load_checkpoint", load)
    with pytest.raises(CheckpointError, match="Seen."):
        measure(Mock(), None, None, None)
    assert load.call_args.kwargs == {"only_decodes": True}


def with_base(adapter, **fields):
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_draft_adapter_that_cannot_be_used(folder, tmp_path):
    adapter = save_adapter(tmp_path / "adapter", base=folder)
    with_base(adapter, base_fingerprint="0")
    assert "cannot be used as a draft adapter of this model (base_fingerprint='0'" in refusal(adapter)
    with_base(adapter, base_model_name_or_path=None)
    assert "which .*adapter was trained on".replace(".*", f"{tmp_path}/") in refusal(adapter)
    with_base(adapter, base_model_name_or_path=str(adapter))
    assert refusal(adapter) == f"{adapter} is a draft adapter, and a checkpoint is wanted; give the adapter's base."
    with_base(adapter, peft_type="LORA")
    assert refusal(adapter).endswith("makes a whole checkpoint of it.")


def test_another_model_type(folder):
    for model_type, expected in (
        ("qwen3", f"`wedlm convert {folder} OUT` makes a WeDLM checkpoint of it."),
        ("gpt2", "`wedlm convert` makes WeDLM checkpoints of Qwen2, Qwen3, Llama and Mistral."),
    ):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
        sentence = refusal(folder)
        assert f"is of model_type {model_type!r}" in sentence and sentence.endswith(expected)


def test_a_dtype_that_is_none(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": 3}))
    assert "its dtype is 3, and weights are of one such as 'bfloat16'" in refusal(folder)


def test_parts_that_are_missing(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lacks the weight model.norm.weight (1 in all); " in refusal(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").touch()  # a pickle, which could run code
    assert "lacks its weights (model.safetensors)" in refusal(folder)
    shutil.copy(CHECKPOINTS / "q3" / "model.safetensors", folder)
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer (neither tokenizer.json nor vocab.json)" in refusal(folder)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_file(folder, file):
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: len(content) // 2])
    assert refusal(folder).endswith("copy or download it again.")


@pytest.mark.full
def test_a_file_that_becomes_shorter_leaves_a_loaded_model_alone(folder):
    """A process that had mapped the file would get the signal SIGBUS."""
    code = """
import os
import torch
from wedlm.checkpoints.load import load_checkpoint
models = [load_checkpoint("checkpoint", dtype=dtype)[0] for dtype in ("auto", "bfloat16")]
os.truncate("checkpoint/model.safetensors", 0)
print([model(torch.tensor([[3, 4]])).logits.isfinite().all().item() for model in models])
"""
    assert "[True, True]" in run_python(code, folder.parent)


def test_a_device_that_is_not_there(folder):
    assert "cannot be put on the device 'nowhere' (" in refusal(folder, device="nowhere")


def test_ctrl_c_while_loading_is_no_refusal(folder, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_checkpoint(folder)
