"""`wedlm export` from end to end, and the places, files and checkpoints that it refuses."""

import json
import re
import shutil
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import transformers
from command_line import save_checkpoint
from exports import TOKEN, TOKENIZER, WHOLE, edit, names, readme_with, refused, run, snippet_of
from helpers import CHECKPOINTS, put_into_hub_cache, run_python
from huggingface_hub import ModelCard, snapshot_download
from safetensors.torch import load_file, save_file
from stock_checkpoints import save_stock
from stock_tokenizers import FLAVOURS

from wedlm import convert_to_wedlm
from wedlm.checkpoints import new_folder
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.hub_card import card as card_module


@pytest.mark.full
def test_the_demo_becomes_a_repository_that_loads_elsewhere(tmp_path):
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
    for name in names(out) - {"README.md", "config.json"}:
        assert (out / name).read_bytes() == (DEMO_FOLDER / name).read_bytes(), name
    made, given = (json.loads((folder / "config.json").read_text()) for folder in (out, DEMO_FOLDER))
    assert made == given | {"transformers_version": transformers.__version__}
    card = ModelCard.load(out / "README.md")
    assert card.data.to_dict() == {
        "license": "apache-2.0", "language": "en", "library_name": "transformers", "pipeline_tag": "text-generation",
        "base_model": ["me/a", "me/b"], "datasets": ["me/sums"], "tags": ["wedlm", "diffusion", "parallel-decoding"],
    }  # fmt: skip
    for shown in (
        "of 3.2 million parameters",
        "| optimizer steps | 7,000 |",
        "](loss.png)",
        "2,048 tokens",
        "| time | 77",
    ):
        assert shown in card.text
    assert "made from [me/a](https://huggingface.co/me/a) and [me/b](https" in " ".join(card.text.split())
    assert card.text.startswith("# demo\n") and card.text.endswith("```\n") and "\n\n\n" not in card.text

    (tmp_path / "elsewhere").mkdir()
    shutil.move(out, tmp_path / "elsewhere" / "demo")
    printed = run_python(snippet_of(card.text), tmp_path / "elsewhere", wedlm=False)
    assert "Answer: x = 5\n" in printed and re.search(r"^\d+ forwards$", printed, flags=re.MULTILINE)


@pytest.mark.full
def test_a_checkpoint_without_a_template_and_with_little_else(tmp_path):
    """Its snippet continues a text, and generation_config.json is written."""
    model = save_checkpoint(tmp_path / "base", chat_template=None)
    (model / "generation_config.json").unlink()
    result = run(model, tmp_path / "out", "--license", "mit", "--prompt", 'say "the cat"\nsat')
    assert result.exit_code == 0, result.stderr
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert r'tokenizer("say \"the cat\"\nsat", return_tensors="pt")' in snippet_of(readme)
    assert "apply_chat_template" not in readme
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (generation["decoding"], generation["eos_token_id"]) == ("streaming", 0)
    assert "of 39,200 parameters, with the layers of Qwen3. It writes several tokens per forward" in " ".join(
        readme.split()
    )
    assert "No training report was found" in readme and "No evaluation of these weights" in readme
    assert names(tmp_path / "out") == (WHOLE | TOKENIZER) - {"chat_template.jinja"}


@pytest.mark.full
def test_a_converted_mistral(tmp_path):
    """Its card names the layers and the base model, and its snippet runs with a tokenizer from SentencePiece."""
    (tmp_path / "source").mkdir()
    rows = FLAVOURS["sentencepiece"](tmp_path / "source")
    save_stock(tmp_path / "source", "mistral", rows, tokenizer=False, eos_token_id=2)
    convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm")
    result = run(tmp_path / "wedlm", tmp_path / "out", "--license", "mit", "--base-model", "somebody/mistral")
    assert result.exit_code == 0, result.stderr
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.base_model == "somebody/mistral"
    assert "with the layers of Mistral, made from [somebody/mistral]" in " ".join(card.text.split())


@pytest.mark.parametrize("leak", [TOKEN, "/home/me/model"], ids=["secret", "path"])
@pytest.mark.parametrize(
    "name",
    ["README.md", "config.json", "chat_template.jinja", "tokenizer_config.json", "LICENSE", "model.safetensors"],
)
def test_a_leak_in_any_file_is_refused(tmp_path, model, unchecked, name, leak):
    title = "title"
    if name == "README.md":
        title = f"of {leak}"
    elif name == "model.safetensors":
        save_file(load_file(model / name), model / name, {"format": "pt", "from": leak})
    elif name.endswith(".json"):
        edit(model / name, unheard_of=[leak])
    else:
        with open(model / name, "a") as file:
            file.write(f"\n{leak}\n")
    sentence = refused(model, tmp_path / "out", "--license", "mit", "--name", title)
    what = "a token, a key or another secret" if leak == TOKEN else f"the local path {leak}"
    source = "the texts of the card" if name == "README.md" else f"that file of {model}"
    assert sentence == f"{name} would hold {what}; remove it from {source}, and export again.\n"
    assert unchecked == []


def test_a_leak_in_the_index_of_the_weights(tmp_path, model, unchecked):
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    save_file(weights, model / "model-00001-of-00001.safetensors", {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}
    path = model / "model.safetensors.index.json"
    path.write_text(json.dumps(index | {"metadata": {"from": "/home/me/model"}}))
    assert refused(model, tmp_path / "out", "--license", "mit").startswith("model.safetensors.index.json would hold")
    path.write_text(json.dumps(index))
    assert run(model, tmp_path / "out", "--license", "mit").exit_code == 0
    assert {path.name, "model-00001-of-00001.safetensors"} < names(tmp_path / "out")


def test_what_a_checkpoint_says_of_itself(tmp_path, model, unchecked):
    """The places it was loaded from are removed; so is max_new_tokens, which would override what callers ask for."""
    edit(model / "config.json", _name_or_path="/home/me/model")
    places = {"name_or_path": "/home/me/model", "special_tokens_map_file": "/root/.cache/map.json"}
    edit(model / "tokenizer_config.json", **places)
    edit(model / "generation_config.json", max_new_tokens=2048, repetition_penalty=1.1, decoding="verified")
    (model / "LICENSE").write_text("Do what you want.")
    result = run(model, tmp_path / "out", "--license", "mit")
    assert result.exit_code == 0, result.stderr
    assert "Note: max_new_tokens=2048 in generation_config.json is left out; each caller chooses it." in result.stdout
    assert "Note: generation_config.json has repetition_penalty=1.1: it reads the text" in result.stdout
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "- generation_config.json has repetition_penalty=1.1: it reads" in readme
    assert "`decoding='verified'`, `window_size=None`, `entropy_threshold=0.4`, `distance_penalty=0.02`.\n" in readme
    for name, gone in (("tokenizer_config.json", places), ("generation_config.json", ["max_new_tokens"])):
        before = json.loads((model / name).read_text())
        expected = {field: value for field, value in before.items() if field not in gone}
        assert json.loads((tmp_path / "out" / name).read_text()) == expected
    assert "LICENSE" in names(tmp_path / "out")
    assert [arguments[1] for arguments in unchecked] == ["out"]


def test_places_that_are_refused(tmp_path, model, unchecked):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    assert "exists and is not empty; choose another folder" in refused(model, tmp_path / "there", "--license", "mit")
    arguments = ("--license", "mit", "--overwrite")
    assert "is no checkpoint, and only a checkpoint is" in refused(model, tmp_path / "there", *arguments)
    assert "one lies in the other" in refused(model, model / "out", *arguments)
    assert "are the same folder" in refused(model, model, *arguments)
    assert run(model, tmp_path / "out", "--license", "mit").exit_code == 0
    assert run(model, tmp_path / "out", "--license", "gpl-3.0", "--overwrite").exit_code == 0
    assert ModelCard.load(tmp_path / "out" / "README.md").data.license == "gpl-3.0"


def test_checkpoints_that_are_refused(tmp_path, model, unchecked, monkeypatch):
    def sentence(source=model):
        return refused(source, tmp_path / "out", "--license", "mit")

    assert "nothing does not exist" in sentence("nothing")
    assert "has no tokenizer" in sentence(CHECKPOINTS / "q3")
    with monkeypatch.context() as full:
        full.setattr(new_folder.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        assert "and its disk has 0.00 GB free" in sentence()
    (model / "LICENSE").symlink_to("/etc/hostname")
    assert "LICENSE is a link to /etc/hostname, outside of the checkpoint" in sentence()
    (model / "LICENSE").unlink()
    edit(model / "config.json", hidden_size=30)
    assert "and by its config" in sentence()
    edit(model / "config.json", model_type="qwen3")
    assert "is of model_type 'qwen3'" in sentence()
    (model / "config.json").unlink()
    (model / "adapter_config.json").touch()
    assert "is an adapter; `wedlm merge" in sentence()


def test_a_checkpoint_on_the_hub(tmp_path, model, unchecked, monkeypatch):
    """Its licence is taken over as well."""
    readme_with(model, "license: mit")
    put_into_hub_cache(model, tmp_path / "hub", "me/model")
    monkeypatch.setattr(
        "wedlm.checkpoints.resolve.snapshot_download", partial(snapshot_download, cache_dir=tmp_path / "hub")
    )
    assert run("me/model", tmp_path / "out").exit_code == 0
    assert ModelCard.load(tmp_path / "out" / "README.md").data.license == "mit"


def test_without_its_snippet_nothing_appears(tmp_path, model, monkeypatch):
    template = card_module.TEMPLATE.read_text(encoding="utf-8").replace(
        "name = ", "raise ValueError('broken'); name = "
    )
    (tmp_path / "template.md").write_text(template)
    monkeypatch.setattr(card_module, "TEMPLATE", tmp_path / "template.md")
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    assert run(model, tmp_path / "first", "--license", "mit").exit_code == 0
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert "The snippet of the card does not run" in refused(model, tmp_path / "out", "--license", "mit")
    before = (tmp_path / "first" / "README.md").stat()
    refused(model, tmp_path / "first", "--license", "mit", "--overwrite")
    assert (tmp_path / "first" / "README.md").stat() == before
