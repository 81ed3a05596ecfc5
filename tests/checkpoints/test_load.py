"""`load_checkpoint`: a model and a tokenizer, or one sentence."""

import json
import shutil

import pytest
from helpers import CHECKPOINTS, put_into_hub_cache
from safetensors.torch import load_file, save_file
from tiny_tokenizer import make_tokenizer
from transformers import (
    AutoModelForCausalLM,
)

from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.load import load_checkpoint


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


def test_another_model_type(folder):
    for model_type, expected in (
        ("qwen3", f"`wedlm convert {folder} OUT` makes a WeDLM checkpoint of it."),
        ("gpt2", "`wedlm convert` makes WeDLM checkpoints of Qwen2, Qwen3, Llama and Mistral."),
    ):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
        sentence = refusal(folder)
        assert f"is of model_type {model_type!r}" in sentence and sentence.endswith(expected)


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


def test_a_device_that_is_not_there(folder):
    assert "cannot be put on the device 'nowhere' (" in refusal(folder, device="nowhere")


def test_ctrl_c_while_loading_is_no_refusal(folder, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_checkpoint(folder)
