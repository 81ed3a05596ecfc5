"""Models, tokenizers and draft adapters are loaded, or refused in one sentence."""

import json
import shutil

import pytest
import torch
from draft_models import save_adapter, tiny_model
from helpers import CHECKPOINTS, MASK, put_into_hub_cache, random_tokens, run_python
from peft import PeftModel
from safetensors.torch import load_file, save_file
from stock_checkpoints import save_stock
from tiny_tokenizer import make_tokenizer
from typer.testing import CliRunner

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.load import attach_adapter, load_checkpoint
from wedlm.commands.cli import app
from wedlm.fused.model import product_of
from wedlm.training.draft_lora import LAYERS


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


def test_another_model_decodes_verified_by_default(tmp_path):
    save_stock(tmp_path / "stock")
    model, _ = load_checkpoint(tmp_path / "stock", or_stock=True)
    assert model.generation_config.decoding == "verified" and model.config.model_type == "qwen3"


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
    assert len(seen) == 1 and seen[0]["only_decodes"] and "Seen." in result.stderr


def edit_adapter(adapter, **fields):
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_an_adapter_is_no_base(folder, tmp_path):
    adapter = save_adapter(tmp_path / "adapter", base=folder)
    edit_adapter(adapter, base_model_name_or_path=str(adapter))
    assert refusal(adapter) == f"{adapter} is a draft adapter, and a checkpoint is wanted; give the adapter's base."


def test_parts_that_are_missing(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lacks the weight model.norm.weight (1 in all); " in refusal(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").touch()  # a pickle, which could run code
    assert "lacks its weights (model.safetensors)" in refusal(folder)


@pytest.mark.parametrize("file", ["tokenizer.json", "model.safetensors"])
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


# --- Draft adapters in the model itself ---

IDS = torch.cat([random_tokens(2, 6), torch.full((2, 3), MASK)], dim=1)


@torch.no_grad()
def logits(model, input_ids=IDS):
    return model(input_ids=input_ids).logits


def attached(model, folder):
    attach_adapter(model, folder)
    return model


@pytest.mark.parametrize(
    ("flavour", "modules"), [("qwen2", LAYERS), ("qwen3", ["down_proj", "q_proj"]), ("llama tied", LAYERS)]
)
def test_both_forms_agree(flavour, modules, tmp_path):
    folder = save_adapter(tmp_path, flavour, target_modules=list(modules))
    base, model = tiny_model(flavour), attached(tiny_model(flavour), folder)
    assert model.config.drafts == {"rank": 4, "modules": sorted(modules)}
    assert torch.equal(logits(model)[:, :6], logits(base)[:, :6])
    expected = logits(PeftModel.from_pretrained(tiny_model(flavour), folder))
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits(model)[:, 6:], logits(base)[:, 6:], atol=0.1)


def test_saved_with_its_adapter_the_model_is_the_same(tmp_path):
    model = attached(tiny_model("llama tied"), save_adapter(tmp_path / "adapter", "llama tied"))
    model.save_pretrained(tmp_path / "whole")
    loaded = WeDLMForCausalLM.from_pretrained(tmp_path / "whole").eval()
    assert loaded.config.drafts == model.config.drafts
    assert torch.equal(logits(loaded), logits(model))


def without(name):
    def change(folder):
        tensors = load_file(folder / "adapter_model.safetensors")
        tensors.pop(name)
        save_file(tensors, folder / "adapter_model.safetensors")

    return change


def with_fields(**fields):
    return lambda folder: edit_adapter(folder, **fields)


def not_finite(folder):
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors["base_model.model.model.embed_tokens.lora_mask.weight"][0] = float("nan")
    save_file(tensors, path)


BROKEN = {
    "weights missing": (
        without("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"),
        r"layers.0.mlp.drafts.up_proj.down has the shape None and should have \(4, 32\)",
    ),
    "another rank": (with_fields(r=2), r"has the shape \(4, 32\) and should have \(2, 32\)"),
    "rank 0": (with_fields(r=0), "r=0 in .* is not an integer from 1 to 65536"),
    "no names": (with_fields(target_modules=5), "target_modules=5 in .* is not a list of names"),
    "not finite": (not_finite, "mask_embedding holds values that are not finite, 1 such weights in all"),
    "another kind": (with_fields(peft_type="LORA"), "its peft_type is 'LORA', that of draft adapters 'WEDLM_DRAFT'"),
    "another base": (with_fields(base_fingerprint="0"), "base_fingerprint='0' of the draft adapter is not that of"),
    "no file": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "No such file"),
    "no safetensors": (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"nothing"), "header"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_adapter_that_does_not_fit_leaves_the_model_as_it_is(name, tmp_path):
    change, sentence = BROKEN[name]
    change(save_adapter(tmp_path))
    model = tiny_model()
    with pytest.raises(CheckpointError, match=f"cannot be used as a draft adapter of this model .*{sentence}"):
        attach_adapter(model, tmp_path)
    assert model.config.drafts is None and torch.equal(logits(model), logits(tiny_model()))


def test_models_that_cannot_have_an_adapter(tmp_path):
    folder = save_adapter(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="is not that of this model"):
        attach_adapter(tiny_model(seed=7), folder)
    without_mask = tiny_model()
    without_mask.config.mask_token_id = None
    with pytest.raises(CheckpointError, match="mask_token_id is None"):
        attach_adapter(without_mask, folder)
    with pytest.raises(CheckpointError, match="has a draft adapter already; load its base anew"):
        attach_adapter(attached(tiny_model(), folder), folder)
    with torch.device("meta"):
        empty = WeDLMForCausalLM(tiny_model().config)
    with pytest.raises(CheckpointError, match="some weights of the model are not in memory"):
        attach_adapter(empty, folder)
