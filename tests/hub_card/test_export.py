"""`wedlm export` from end to end, and the places, files and checkpoints that it refuses."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from exports import (
    TOKEN,
    TOKENIZER,
    WHOLE,
    edit,
    names,
    readme_with,
    refused,
    run,
    save_base_and_adapter,
    snippet_of,
    write_evaluation,
)
from helpers import CHECKPOINTS, put_into_hub_cache, random_tokens
from huggingface_hub import ModelCard
from peft import PeftModel
from safetensors.torch import load_file, save_file

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints import new_folder
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.shards import INDEX_FILE, read_shards
from wedlm.evaluation.provenance import digests
from wedlm.modeling_wedlm.hub_code import flat_files


@pytest.mark.full
def test_the_demo_becomes_a_repository_whose_snippet_runs(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(DEMO_FOLDER, source)
    for name in ("optimizer.pt", "trainer_state.json", "training_args.bin", ".env", "notes.txt", "other.safetensors"):
        (source / name).write_text(f"token = {TOKEN}")
    (source / "checkpoint-5").mkdir()
    shutil.copy(source / "model.safetensors", source / "checkpoint-5")
    (source / "modeling_wedlm.py").write_text("raise SystemExit('the code of the checkpoint runs')")
    result = run(source, tmp_path / "demo", "--dataset", "me/sums", "--base-model", "me/a", "--base-model", "me/b")
    assert (result.exit_code, result.stdout) == (0, f"Written to {tmp_path / 'demo'}.\n"), result.stderr

    out = tmp_path / "demo"
    assert names(out) == WHOLE | TOKENIZER | {"loss.png"}
    assert {name: (out / name).read_text(encoding="utf-8") for name in flat_files()} == flat_files()
    for name in names(DEMO_FOLDER) - {"README.md", "config.json", "report.json", "training.json"}:
        assert (out / name).read_bytes() == (DEMO_FOLDER / name).read_bytes(), name
    made, given = (json.loads((folder / "config.json").read_text()) for folder in (out, DEMO_FOLDER))
    assert made == given | {"transformers_version": transformers.__version__}
    card = ModelCard.load(out / "README.md")
    assert card.data.to_dict() == {
        "license": "apache-2.0", "language": "en", "library_name": "transformers", "pipeline_tag": "text-generation",
        "base_model": ["me/a", "me/b"], "datasets": ["me/sums"], "tags": ["wedlm", "diffusion", "parallel-decoding"],
    }  # fmt: skip
    assert "made from [me/a](https://huggingface.co/me/a) and [me/b](https" in " ".join(card.text.split())
    assert card.text.startswith("# demo\n") and card.text.endswith("```\n") and "\n\n\n" not in card.text


@pytest.mark.parametrize(
    ("name", "leak"),
    [
        ("README.md", TOKEN),
        ("chat_template.jinja", TOKEN),
        ("model.safetensors", "/home/me/model"),
    ],
)
def test_a_leak_in_any_file_is_refused(tmp_path, model, unchecked, name, leak):
    title = "title"
    if name == "README.md":
        title = f"of {leak}"
    elif name == "model.safetensors":
        save_file(load_file(model / name), model / name, {"format": "pt", "from": leak})
    else:
        with open(model / name, "a") as file:
            file.write(f"\n{leak}\n")
    sentence = refused(model, tmp_path / "out", "--license", "mit", "--name", title)
    what = "a token, a key or another secret" if leak == TOKEN else f"the local path {leak}"
    source = "the texts of the card" if name == "README.md" else f"that file of {model}"
    assert sentence == f"{name} would contain {what}; remove it from {source}, and export again.\n"
    assert unchecked == []


def test_what_a_checkpoint_says_of_itself(tmp_path, model, unchecked):
    """The places it was loaded from are removed; so is max_new_tokens, which would override what callers ask for."""
    edit(model / "config.json", _name_or_path="/home/me/model")
    places = {"name_or_path": "/home/me/model", "special_tokens_map_file": "/root/.cache/map.json"}
    edit(model / "tokenizer_config.json", **places)
    edit(model / "generation_config.json", max_new_tokens=2048, repetition_penalty=1.1, decoding="verified")
    (model / "LICENSE").write_text("Do what you want.")
    result = run(model, tmp_path / "out", "--license", "mit")
    assert "Note: max_new_tokens=2048 in generation_config.json is left out; each caller chooses it." in result.stdout
    assert "Note: generation_config.json has repetition_penalty=1.1: it reads the text" in result.stdout
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "- generation_config.json has repetition_penalty=1.1: it reads" in readme
    for name, gone in (("tokenizer_config.json", places), ("generation_config.json", ["max_new_tokens"])):
        before = json.loads((model / name).read_text())
        expected = {field: value for field, value in before.items() if field not in gone}
        assert json.loads((tmp_path / "out" / name).read_text()) == expected
    assert "LICENSE" in names(tmp_path / "out")
    assert [arguments[1] for arguments in unchecked] == ["out"]


def test_an_export_is_overwritten(tmp_path, model, unchecked):
    assert "one lies in the other" in refused(model, model / "out", "--license", "mit")
    assert run(model, tmp_path / "out", "--license", "mit").exit_code == 0
    assert run(model, tmp_path / "out", "--license", "gpl-3.0", "--overwrite").exit_code == 0
    assert ModelCard.load(tmp_path / "out" / "README.md").data.license == "gpl-3.0"


def test_checkpoints_that_are_refused(tmp_path, model, unchecked, monkeypatch):
    def sentence(source=model):
        return refused(source, tmp_path / "out", "--license", "mit")

    assert "has no tokenizer" in sentence(CHECKPOINTS / "q3")
    with monkeypatch.context() as full:
        full.setattr(new_folder.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        assert "and its disk has 0.00 GB free" in sentence()
    (model / "LICENSE").symlink_to("/etc/hostname")
    assert "LICENSE is a link to /etc/hostname, outside of the checkpoint" in sentence()
    (model / "LICENSE").unlink()
    edit(model / "config.json", model_type="qwen3")
    assert "is of model_type 'qwen3'" in sentence()


def test_without_its_snippet_nothing_appears(tmp_path, model, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    assert run(model, tmp_path / "first", "--license", "mit").exit_code == 0
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert "The snippet of the card does not run" in refused(model, tmp_path / "out", "--license", "mit")
    before = (tmp_path / "first" / "README.md").stat()
    refused(model, tmp_path / "first", "--license", "mit", "--overwrite")
    assert (tmp_path / "first" / "README.md").stat() == before


# --- Draft adapters ---


def answer(model, **arguments):
    return model.generate(random_tokens(1, 8), max_new_tokens=24, return_dict_in_generate=True, **arguments)


@pytest.mark.parametrize(
    "flavour, dtype, max_shard_size", [("qwen3", torch.float32, "50GB"), ("llama tied", torch.bfloat16, "20KB")]
)
def test_a_draft_adapter_becomes_one_checkpoint_with_its_base(tmp_path, unchecked, flavour, dtype, max_shard_size):
    """Its weights are those of the model that the adapter is attached to, and of the dtype of the base."""
    adapter = save_base_and_adapter(tmp_path, flavour, dtype, saving={"max_shard_size": max_shard_size})
    assert run(adapter, tmp_path / "out", "--license", "mit").exit_code == 0
    attached, tokenizer = load_checkpoint(adapter, device="cpu")
    whole, own_tokenizer = load_checkpoint(tmp_path / "out", device="cpu")
    assert own_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert whole.config.drafts == attached.config.drafts and whole.generation_config.decoding == "verified"
    expected, found = attached.state_dict(), whole.state_dict()
    assert expected.keys() == found.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    got, wanted = answer(whole), answer(attached)
    assert torch.equal(got.sequences, wanted.sequences) and torch.equal(got.forwards, wanted.forwards)
    shards = read_shards(tmp_path / "out")  # compares the index and the headers
    if len(shards) > 1:
        index = json.loads((tmp_path / "out" / INDEX_FILE).read_text())
        assert index["metadata"]["total_parameters"] == whole.num_parameters()
        assert index["metadata"]["total_size"] == whole.num_parameters() * dtype.itemsize


def test_the_card_of_a_base_with_its_adapter(tmp_path, unchecked):
    """Licence and language come from the README.md of the adapter, or of the base; PEFT's local paths do not."""
    adapter = save_base_and_adapter(tmp_path)
    written = (adapter / "README.md").read_text()
    assert str(tmp_path / "base") in written
    (adapter / "README.md").write_text(written.replace("tags:", "license: mit\ntags:"))
    readme_with(tmp_path / "base", "license: apache-2.0\nlanguage: de\nbase_model: me/before")
    assert run(adapter, tmp_path / "out").exit_code == 0
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.to_dict() == {
        "license": "mit", "language": "de", "library_name": "transformers", "pipeline_tag": "text-generation",
        "base_model": "me/before", "base_model_relation": "adapter", "tags": ["wedlm", "transformers"],
    }  # fmt: skip
    text = " ".join(card.text.split())
    assert "It contains a draft adapter, a LoRA of rank 4 on down_proj, gate_proj," in text
    assert "the same output as [me/before](https://huggingface.co/me/before), up to rounding" in text


def test_a_base_on_the_hub_is_the_base_model(tmp_path, unchecked, monkeypatch):
    adapter = save_base_and_adapter(tmp_path)
    put_into_hub_cache(tmp_path / "base", tmp_path / "hub", "me/base")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    edit(adapter / "adapter_config.json", base_model_name_or_path="me/base")
    put_into_hub_cache(adapter, tmp_path / "hub", "me/adapter")
    assert run("me/adapter", tmp_path / "out", "--license", "mit").exit_code == 0
    assert ModelCard.load(tmp_path / "out" / "README.md").data.base_model == "me/base"


def test_files_that_belong_to_an_adapter(tmp_path, unchecked):
    """An evaluation must be of the adapter with its base; its own generation_config.json is taken."""
    adapter = save_base_and_adapter(tmp_path)
    fields = json.loads((tmp_path / "base" / "generation_config.json").read_text())
    own = {**fields, "_from_model_config": False, "decoding": "blockwise"}
    (adapter / "generation_config.json").write_text(json.dumps(own))
    of_base = write_evaluation(tmp_path / "base.json", tmp_path / "base")
    both = write_evaluation(tmp_path / "both.json", tmp_path / "base", **digests(tmp_path / "base", adapter))
    arguments = (adapter, tmp_path / "out", "--license", "mit", "--eval")
    assert f"than those of {adapter}; run `wedlm eval {adapter}` again" in refused(*arguments, of_base)
    assert "measured other weights" in refused(tmp_path / "base", *arguments[1:], both)
    assert run(*arguments, both).exit_code == 0
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == own


def test_adapters_that_are_refused(tmp_path, unchecked):
    adapter = save_base_and_adapter(tmp_path)
    arguments = (adapter, tmp_path / "out", "--license", "mit")
    assert "one lies in the other" in refused(adapter, adapter / "out", "--license", "mit")
    (adapter / "LICENSE").symlink_to("/etc/hostname")
    assert "LICENSE is a link to /etc/hostname" in refused(*arguments)
    (adapter / "LICENSE").unlink()
    edit(adapter / "adapter_config.json", r=2)
    assert ".down has the shape (4, 32) and should have (2, 32))" in refused(*arguments)


# --- Draft adapters without their base ---


ADAPTER = {"README.md", "adapter_config.json", "adapter_model.safetensors", *TOKENIZER}
ADAPTER_ONLY = ("--license", "mit", "--adapter-only")


def test_an_adapter_alone_decodes_as_before(tmp_path, unchecked, monkeypatch):
    """With PEFT, and by its name with the base on the Hub that it names."""
    adapter = save_base_and_adapter(tmp_path)
    for name in ("tokenizer.json", "optimizer.pt", "training_args.bin"):
        (adapter / name).write_text(f"token = {TOKEN}")
    (adapter / "LICENSE").write_text("Do what you want.")
    arguments = (tmp_path / "out", *ADAPTER_ONLY, "--base-model", "me/base")
    assert run(adapter, *arguments).exit_code == 0
    assert names(tmp_path / "out") == ADAPTER | {"LICENSE"}
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tmp_path / "base" / "tokenizer.json").read_bytes()
    assert unchecked[0][1:] == ("out", {"me/base": tmp_path / "base"})
    given, written = (json.loads((each / "adapter_config.json").read_text()) for each in (adapter, tmp_path / "out"))
    assert written == given | {"base_model_name_or_path": "me/base"}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    put_into_hub_cache(tmp_path / "base", tmp_path / "hub", "me/base")
    put_into_hub_cache(tmp_path / "out", tmp_path / "hub", "me/out")
    wanted = answer(load_checkpoint(adapter, device="cpu")[0])
    adapted = PeftModel.from_pretrained(WeDLMForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "out")
    for model in (adapted, load_checkpoint(tmp_path / "out", device="cpu")[0], load_checkpoint("me/out")[0]):
        got = answer(model, decoding="verified")
        assert torch.equal(got.sequences, wanted.sequences) and torch.equal(got.forwards, wanted.forwards)
    fields = json.loads((tmp_path / "base" / "generation_config.json").read_text())
    own = {**fields, "_from_model_config": False, "decoding": "verified"}
    (adapter / "generation_config.json").write_text(json.dumps({**own, "max_new_tokens": 9}))
    assert run(adapter, *arguments, "--overwrite").exit_code == 0
    assert names(tmp_path / "out") == ADAPTER | {"LICENSE", "generation_config.json"}
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == own


def test_the_card_of_an_adapter_alone(tmp_path, unchecked, monkeypatch):
    """It says how the base is made by a conversion, unless the base itself is on the Hub."""
    adapter = save_base_and_adapter(tmp_path)
    edit(tmp_path / "base" / "config.json", converted_from="qwen3")
    assert run(adapter, tmp_path / "out", *ADAPTER_ONLY, "--base-model", "me/stock").exit_code == 0
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.to_dict() == {
        "license": "mit", "library_name": "peft", "pipeline_tag": "text-generation", "base_model": "me/stock",
        "base_model_relation": "adapter", "tags": ["wedlm", "transformers"],
    }  # fmt: skip
    assert "wedlm convert me/stock base #" in " ".join(card.text.split()) and 'base = "base"' in snippet_of(card.text)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    put_into_hub_cache(tmp_path / "base", tmp_path / "hub", "me/base")
    edit(adapter / "adapter_config.json", base_model_name_or_path="me/base")
    assert run(adapter, tmp_path / "other", *ADAPTER_ONLY).exit_code == 0
    card = ModelCard.load(tmp_path / "other" / "README.md")
    assert card.data.base_model == "me/base" and "wedlm convert" not in card.text
    assert 'base = "me/base"' in snippet_of(card.text)


def test_adapters_alone_that_are_refused(tmp_path, model, unchecked):
    adapter = save_base_and_adapter(tmp_path)
    arguments = (adapter, tmp_path / "out", *ADAPTER_ONLY)
    assert f"{model} is not a draft adapter; leave out --adapter-only" in refused(model, *arguments[1:])
    sentence = (
        f"Others need one name on the Hub for {tmp_path / 'base'}, the base of {adapter}; pass --base-model once"
    )
    for bases in ((), ("--base-model", "me/a", "--base-model", "me/b"), ("--base-model", tmp_path / "base")):
        assert refused(*arguments, *bases).startswith(sentence)
    name = ("--base-model", "me/base")
    same = refused(adapter, tmp_path / "me", *ADAPTER_ONLY, *name)
    assert "load the adapter as me and its base as me/base, which cannot both be folders; choose another name" in same
    edit(adapter / "adapter_config.json", revision="/home/me/model")
    assert refused(*arguments, *name).startswith("adapter_config.json would contain the local path /home/me/model; ")
    edit(adapter / "adapter_config.json", revision=None)
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file(weights, adapter / "adapter_model.safetensors", {"from": TOKEN})
    assert refused(*arguments, *name).startswith("adapter_model.safetensors would contain a token")
