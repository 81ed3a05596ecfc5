"""A checkpoint is read without its weights; files that change are named, and the config is that of our code."""

import json

from exports import edit

from wedlm.hub_card.checkpoint import read_checkpoint


def test_what_is_read_of_a_checkpoint(model):
    edit(model / "tokenizer_config.json", name_or_path="/home/me/model")
    edit(model / "generation_config.json", max_new_tokens=7, entropy_threshold=0.2)
    edit(model / "config.json", auto_map={"AutoModelForCausalLM": "theirs.Model"}, architectures=["Theirs"])
    checkpoint = read_checkpoint("me/model", model)
    assert (checkpoint.name, checkpoint.folder, checkpoint.parameters) == ("me/model", model, 39_200)
    assert (checkpoint.config.architectures, checkpoint.config.auto_map) == (["WeDLMForCausalLM"], None)
    assert checkpoint.changed.keys() == {"tokenizer_config.json", "generation_config.json"}
    assert "name_or_path" not in checkpoint.changed["tokenizer_config.json"]
    assert "max_new_tokens" not in checkpoint.changed["generation_config.json"]
    assert json.loads((model / "generation_config.json").read_text())["max_new_tokens"] == 7
    assert checkpoint.generation["entropy_threshold"] == 0.2 and checkpoint.has_chat_template
    assert set(checkpoint.decodings) == {"streaming", "verified", "blockwise", "autoregressive"}
    (note,) = (note for note in checkpoint.notes if note not in checkpoint.limits)
    assert note.startswith("max_new_tokens=7 in generation_config.json is left out")
