"""`wedlm export --vllm`: the target is the plain model, the drafter drafts as the WeDLM; their weights are shared."""

import ast
import json
import os
import re
import shlex

import draft_models
import pytest
import torch
from exports import edit, names, refused, run, save_base_and_adapter
from safetensors.torch import load_file, save_file
from stock_checkpoints import CLASSES, INDEX, TOKENS, files_of, save_stock, save_tokenizer, weights_of
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_exports import drafter_as_wedlm

from wedlm import WeDLMConfig, WeDLMForCausalLM, convert_to_autoregressive, convert_to_wedlm
from wedlm.checkpoints.load import load_checkpoint
from wedlm.for_vllm import vllm_export

WIDE = {"hidden_size": 128}  # heads of 32, which vLLM's attention on a CPU has
IDS = torch.tensor([[5, 6, 7, 8, 9]])


def save_wedlm(folder, model_type="qwen3", **fields):
    """Saves a stock checkpoint and its conversion, and returns the stock model and the folder of the WeDLM."""
    (folder / "stock").mkdir()
    own = {"head_dim": 32} if model_type != "qwen2" else {}
    stock = save_stock(folder / "stock", model_type, **{**WIDE, **own, **fields})
    return stock, convert_to_wedlm(folder / "stock", folder / "wedlm").folder


def save_adapter(folder, flavour="qwen3", **fields):
    """Saves a base whose tokenizer every architecture reads in the same way, and its draft adapter."""
    adapter = save_base_and_adapter(folder, flavour, vocab_size=TOKENS, **fields)
    for path in (folder / "base").glob("tokenizer*"):
        path.unlink()
    save_tokenizer(folder / "base")
    return adapter


def exported(model, out, *arguments):
    result = run(model, out, "--vllm", *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def logits(model, ids=IDS, positions=None):
    with torch.no_grad():
        return model(ids, position_ids=positions, use_cache=False).logits


def drafts_of(model, mask_token_id, rows=259):
    """The logits of a row of the last token and four of MASK behind it."""
    ids = torch.cat([IDS, torch.full((1, 4), mask_token_id)], dim=1)
    return logits(model, ids)[..., :rows]


def same_files(folder):
    """The names of the files that the target and the drafter share on disk."""
    files = {path.name: path.stat().st_ino for path in (folder / "target").iterdir()}
    return {path.name for path in (folder / "drafter").iterdir() if files.get(path.name) == path.stat().st_ino}


@pytest.mark.parametrize(
    ("model_type", "rows"), [*((name, TOKENS) for name in CLASSES), ("qwen3", TOKENS + 5), ("llama", TOKENS + 5)]
)  # MASK gets a row of its own, or one that no token uses
def test_the_target_is_the_stock_model_and_the_drafter_the_wedlm(tmp_path, model_type, rows):
    stock, wedlm = save_wedlm(tmp_path, model_type, rows=rows, tied=rows > TOKENS)
    out = tmp_path / "out"
    assert exported(wedlm, out) == f"Written to {out}.\n"
    target, loading = AutoModelForCausalLM.from_pretrained(out / "target", output_loading_info=True)
    assert type(target) is CLASSES[model_type][1] and not any(loading.values())
    assert torch.equal(logits(target), logits(stock))
    assert AutoTokenizer.from_pretrained(out / "target").get_vocab().keys().isdisjoint({"<|mask|>"})
    model, drafter = WeDLMForCausalLM.from_pretrained(wedlm).eval(), drafter_as_wedlm(out / "drafter")
    mask_token_id = model.config.mask_token_id
    assert drafter.config.mask_token_id == mask_token_id == 259
    assert torch.equal(drafts_of(drafter, mask_token_id), drafts_of(model, mask_token_id))
    weights = {path.name for path in (out / "target").glob("*.safetensors")}
    assert same_files(out) == weights and len(weights) == 3
    index = json.loads((out / "drafter" / INDEX).read_text())
    assert index["weight_map"].keys() == weights_of(out / "drafter").keys()
    assert set(index["weight_map"].values()) == weights | {"drafts.safetensors"}


@pytest.mark.parametrize("flavour", ["qwen2", "llama tied"])
def test_an_adapter_is_in_the_drafter_only(tmp_path, flavour):
    wide = {"hidden_size": 128, "head_dim": 32}
    adapter = save_adapter(tmp_path, flavour, **wide)
    assert "Written" in exported(adapter, tmp_path / "out")
    check_drafts(tmp_path / "out", load_checkpoint(adapter, device="cpu")[0], tmp_path / "base", exact=True)
    assert same_files(tmp_path / "out") == {"model.safetensors"}
    readme = (tmp_path / "out" / "README.md").read_text()
    assert re.search(r"is base as a plain \w+\. .* with the same weights and the draft adapter adapter\.", readme)


def check_drafts(out, model, base, exact):
    """The target is the base, and the drafter has the logits of the model with the adapter where the input is MASK."""
    same = torch.equal if exact else lambda one, other: torch.allclose(one, other, rtol=1e-4, atol=1e-4)
    target = AutoModelForCausalLM.from_pretrained(out / "target").eval()
    assert same(logits(target), logits(WeDLMForCausalLM.from_pretrained(base).eval()))
    mask_token_id = model.config.mask_token_id
    expected = drafts_of(model, mask_token_id)
    assert same(drafts_of(drafter_as_wedlm(out / "drafter"), mask_token_id), expected)
    assert not torch.allclose(drafts_of(target, mask_token_id), expected, atol=0.1)  # the adapter matters


@pytest.mark.parametrize("max_shard_size", ["100KB", "1GB"])
def test_an_adapter_that_the_checkpoint_contains(tmp_path, max_shard_size):
    adapter, whole = save_adapter(tmp_path, hidden_size=128, head_dim=32), tmp_path / "whole"
    model = load_checkpoint(adapter, device="cpu")[0]
    model.save_pretrained(whole, max_shard_size=max_shard_size)
    AutoTokenizer.from_pretrained(tmp_path / "base").save_pretrained(whole)
    if max_shard_size == "1GB":  # an index may also name a single file
        path = (whole / "model.safetensors").rename(whole / "model-00001-of-00001.safetensors")
        weight_map = dict.fromkeys(load_file(path), path.name)
        (whole / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    exported(whole, tmp_path / "out")
    check_drafts(tmp_path / "out", model, tmp_path / "base", exact=True)
    target = weights_of(tmp_path / "out" / "target")
    assert target.keys() == weights_of(tmp_path / "base").keys()
    index = json.loads((tmp_path / "out" / "target" / INDEX).read_text())
    assert index["weight_map"].keys() == target.keys()


@pytest.mark.parametrize("flavour", ["qwen3", "llama tied"])
def test_heads_become_wider_where_vllm_needs_it(tmp_path, flavour):
    """8 wide heads become 32 wide ones, of the target, the drafter and the adapter; the logits stay the same."""
    adapter = save_adapter(tmp_path, flavour)
    said = exported(adapter, tmp_path / "out")
    assert re.search(r"Note: The heads were 8 wide, .* make them 32 wide, and the logits stay the same", said)
    assert json.loads((tmp_path / "out" / "target" / "config.json").read_text())["head_dim"] == 32
    check_drafts(tmp_path / "out", load_checkpoint(adapter, device="cpu")[0], tmp_path / "base", exact=False)
    assert same_files(tmp_path / "out") == {"model.safetensors"}


def test_heads_stay_as_they_are_where_wider_ones_would_change_the_logits(tmp_path):
    """vLLM's Qwen2 reads no head_dim, and the angles of a scaled RoPE do not follow from its base alone."""
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    for name, model_type, fields in (("a", "qwen2", {}), ("b", "llama", {"rope_parameters": scaled})):
        (tmp_path / name).mkdir()
        stock, wedlm = save_wedlm(tmp_path / name, model_type, hidden_size=32, **fields | {"head_dim": 8})
        said = exported(wedlm, tmp_path / name / "out")
        assert "vLLM's attention on a CPU has no heads that are 8 wide" in said
        target = AutoModelForCausalLM.from_pretrained(tmp_path / name / "out" / "target")
        assert torch.equal(logits(target), logits(stock))


def test_a_qwen2_whose_heads_vllm_cannot_have(tmp_path):
    adapter = save_adapter(tmp_path, "qwen2", head_dim=16)
    sentence = refused(adapter, tmp_path / "out", "--vllm")
    assert "is a Qwen2 with head_dim=16, and vLLM's Qwen2 always has hidden_size / num_attention_heads" in sentence


@pytest.mark.parametrize("tokenizers_with_mask", ["neither", "the drafter's", "both"])
def test_another_model_is_the_target(tmp_path, tokenizers_with_mask):
    """Only the drafter is written, for a target of the same tokens; a MASK that `wedlm convert` added is left out."""
    _, wedlm = save_wedlm(tmp_path, rows=TOKENS + 5)
    if tokenizers_with_mask != "neither":
        edit(wedlm / "config.json", mask_row=None)
    large = tmp_path / "it's large"
    if tokenizers_with_mask == "both":
        convert_to_autoregressive(wedlm, large)
        assert AutoTokenizer.from_pretrained(large).convert_tokens_to_ids("<|mask|>") == 259
    else:
        large.mkdir()
        save_stock(large, "llama", rows=TOKENS + 5, hidden_size=64)
    exported(wedlm, tmp_path / "out", "--target", large)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"drafter", "README.md"}
    drafter = drafter_as_wedlm(tmp_path / "out" / "drafter")
    model = WeDLMForCausalLM.from_pretrained(wedlm).eval()
    assert torch.equal(drafts_of(drafter, 259), drafts_of(model, 259))
    command, call = commands_of(tmp_path / "out" / "README.md")
    assert command[:3] == ["vllm", "serve", str(large)]
    assert ast.literal_eval(call.args[0]) == str(large)


def test_targets_that_are_refused(tmp_path):
    def folder_of(name, **fields):
        (tmp_path / name).mkdir()
        save_stock(tmp_path / name, **fields)
        return tmp_path / name

    _, wedlm = save_wedlm(tmp_path)
    other_tokens, no_weights, no_tokenizer = map(folder_of, ("tokens", "weights", "tokenizer"))
    content = json.loads((other_tokens / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["!"], vocabulary['"'] = vocabulary['"'], vocabulary["!"]
    (other_tokens / "tokenizer.json").write_text(json.dumps(content))
    (other_tokens / "vocab.json").unlink(missing_ok=True)
    for path in no_weights.glob("*.safetensors"):
        path.unlink()
    (no_tokenizer / "tokenizer.json").unlink()
    pictures = folder_of("pictures")
    fields = json.loads((pictures / "config.json").read_text())
    (pictures / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": fields}))
    for target, sentence in (
        (folder_of("large", rows=TOKENS + 1), f"has vocab_size=260 and {wedlm} has 259, which vLLM refuses; choose"),
        (other_tokens, "has another tokenizer than"),
        (other_tokens, "(such as for ['!', '\"']); choose two"),
        (no_weights, "weights lacks its weights"),
        (pictures, "pictures has no vocab_size in config.json, so it is not a plain text model; choose one that is."),
        (no_tokenizer, "has no tokenizer"),
        (wedlm, "is a WeDLM, which vLLM does not load"),
        (tmp_path / "nothing", "does not exist; give the folder"),
    ):
        assert sentence in refused(wedlm, tmp_path / "out", "--vllm", "--target", target)
    stock = tmp_path / "stock"
    sentence = refused(wedlm, stock / "out", "--vllm", "--target", stock)
    assert "are the same folder, or one lies in the other" in sentence


def test_models_and_options_that_are_refused(tmp_path):
    _, wedlm = save_wedlm(tmp_path)
    stock, out = tmp_path / "stock", tmp_path / "out"
    of_stock = draft_models.save_adapter(tmp_path / "adapter", base=wedlm)
    edit(of_stock / "adapter_config.json", base_model_name_or_path=str(stock))
    for sentence, *arguments in (
        ("is of model_type 'qwen3', and this needs WeDLM; `wedlm convert", stock, out, "--vllm"),
        ("is of model_type 'qwen3', and this needs WeDLM; `wedlm convert", of_stock, out, "--vllm"),
        ("--license is about a repository, and --vllm writes none; leave", wedlm, out, "--vllm", "--license", "mit"),
        ("--adapter-only is about a repository", wedlm, out, "--vllm", "--adapter-only"),
        ("--target names the model that MODEL drafts for in vLLM; pass --vllm", wedlm, out, "--target", stock),
    ):
        assert sentence in refused(*arguments)
    edit(wedlm / "config.json", mask_token_id=None, mask_row=None)
    assert "mask_token_id is None in the config of this checkpoint" in refused(wedlm, out, "--vllm")


def test_a_drafter_knows_what_its_masks_predict(tmp_path):
    """Where a WeDLM, an adapter or a WeDLM that contains one says that they predict the token behind them."""
    adapter = save_adapter(tmp_path)
    without = exported_drafter(adapter, tmp_path / "without")
    edit(adapter / "adapter_config.json", mask_shift=True)
    whole, tokenizer = load_checkpoint(adapter)
    for folder in (tmp_path / "whole", tmp_path / "idlm"):
        whole.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    edit(tmp_path / "idlm" / "config.json", mask_shift=True, drafts=without.drafts)
    assert not without.mask_shift
    for model in (adapter, tmp_path / "whole", tmp_path / "idlm"):
        config = exported_drafter(model, tmp_path / "out")
        assert config.mask_shift and config.drafts == without.drafts


def exported_drafter(model, out) -> WeDLMConfig:
    exported(model, out, "--overwrite")
    return drafter_as_wedlm(out / "drafter").config


def test_an_adapter_of_another_base_is_refused(tmp_path):
    adapter, path = save_adapter(tmp_path), tmp_path / "base" / "model.safetensors"
    weights, name = load_file(path), "model.layers.0.mlp.down_proj.weight"
    save_file({**weights, name: -weights[name]}, path, {"format": "pt"})
    sentence = refused(adapter, tmp_path / "out", "--vllm")
    assert "the adapter was trained on other weights; load it into its own base" in sentence


def test_where_links_are_impossible_the_weights_are_copied(tmp_path, monkeypatch):
    def no_links(*arguments):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    _, wedlm = save_wedlm(tmp_path)
    exported(wedlm, tmp_path / "out")
    assert same_files(tmp_path / "out") == set()
    for path in (tmp_path / "out" / "target").glob("*.safetensors"):
        assert (tmp_path / "out" / "drafter" / path.name).read_bytes() == path.read_bytes()


def test_an_export_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    def full_disk(*arguments):
        raise OSError(28, "No space left on device")

    _, wedlm = save_wedlm(tmp_path)
    out = tmp_path / "out"
    exported(wedlm, out)
    before = names(out)
    with monkeypatch.context() as patch:
        patch.setattr(vllm_export, "write_index", full_disk)
        assert "could not be written" in refused(wedlm, out, "--vllm", "--overwrite")
    assert names(out) == before
    (out / "target" / "old").write_text("old")
    exported(wedlm, out, "--overwrite")
    assert names(out) == before
    (out / "thesis.txt").write_text("mine")
    sentence = refused(wedlm, out, "--vllm", "--overwrite")
    assert "holds ['thesis.txt'] beside an export for vLLM, which would be lost; put them elsewhere first" in sentence
    assert names(out) == before | {"thesis.txt"}


def test_a_folder_of_models_is_never_overwritten(tmp_path):
    """One of them may be named drafter."""
    _, wedlm = save_wedlm(tmp_path)
    for name in ("drafter", "other"):
        (tmp_path / "models" / name).mkdir(parents=True)
        save_stock(tmp_path / "models" / name, "llama")
    before = files_of(tmp_path / "models")
    sentence = refused(wedlm, tmp_path / "models", "--vllm", "--overwrite")
    assert "is not a checkpoint, and only a checkpoint is overwritten" in sentence
    assert files_of(tmp_path / "models") == before


def commands_of(readme):
    """The words of the command in a README.md, and the call of the Python form that makes the engine."""
    text = readme.read_text()
    (command,), (code,) = re.findall(r"```bash\n(.*)\n```", text), re.findall(r"```python\n(.*)```", text, re.DOTALL)
    (call,) = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and node.keywords][:1]
    return shlex.split(command), call


def test_the_readme_has_the_command_and_the_python_form(tmp_path, monkeypatch):
    _, wedlm = save_wedlm(tmp_path)
    monkeypatch.chdir(wedlm)
    exported(".", tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    first = "`target` is wedlm as a plain Qwen3. `drafter` is its draft model, with the same weights.\n"
    assert text.startswith(f"# wedlm in vLLM\n\n{first}")
    words, call = commands_of(tmp_path / "out" / "README.md")
    assert words[:4] == ["vllm", "serve", "target", "--speculative-config"]
    speculative = json.loads(words[4])
    assert speculative == {
        "method": "draft_model", "model": "drafter", "num_speculative_tokens": 8, "parallel_drafting": True
    }  # fmt: skip
    assert ast.literal_eval(call.args[0]) == "target"
    assert ast.literal_eval(call.keywords[0].value) == speculative
