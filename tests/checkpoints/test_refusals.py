"""Checkpoints that are not converted: each is refused in one sentence, and nothing is written."""

import errno
import json
import os
import shutil

import pytest
import torch
from draft_models import drafted, tiny_model
from safetensors.torch import load_file, save_file
from stock_checkpoints import INDEX, assert_refused, edit, save_stock
from stock_families import stock
from stock_tokenizers import FLAVOURS
from transformers import AutoTokenizer

from wedlm import convert_to_autoregressive, convert_to_wedlm
from wedlm.checkpoints.errors import CheckpointError
from wedlm.for_vllm.vllm_export import export_for_vllm


def config(removed=(), **fields):
    return lambda folder: edit(folder / "config.json", removed, **fields)


def llama(model_type, removed=(), **fields):
    """Turns the source into another architecture; its weights are never read."""
    names = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
    return config(removed, model_type=model_type, architectures=[names[model_type]], **fields)


def shard(folder, number):
    return folder / f"model-0000{number}-of-00003.safetensors"


def cut(folder, num_bytes):
    shard(folder, 2).write_bytes(shard(folder, 2).read_bytes()[:num_bytes])


def add_to_two_shards(folder):
    for number in (1, 2):
        save_file(load_file(shard(folder, number)) | {"more.weight": torch.ones(2)}, shard(folder, number))


def drop(name):
    def change(folder):
        index = json.loads((folder / INDEX).read_text())
        path = folder / index["weight_map"].pop(name)
        save_file({other: tensor for other, tensor in load_file(path).items() if other != name}, path)
        (folder / INDEX).write_text(json.dumps(index))

    return change


def point(name):
    def change(folder):
        content = json.loads((folder / INDEX).read_text())
        content["weight_map"]["model.norm.weight"] = name
        (folder / INDEX).write_text(json.dumps(content))

    return change


def put_elsewhere(folder):
    (folder.parent / "elsewhere.safetensors").write_bytes(shard(folder, 3).read_bytes())
    point("../elsewhere.safetensors")(folder)


def only_pickles(folder):
    for path in (*folder.glob("*.safetensors"), folder / INDEX):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")


def to_8_bits(folder):
    tensors = load_file(shard(folder, 2))
    save_file({name: tensor.to(torch.float8_e4m3fn) for name, tensor in tensors.items()}, shard(folder, 2))


def tokenizer_config(**fields):
    return lambda folder: edit(folder / "tokenizer_config.json", **fields)


def keep_sentencepiece_alone(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").touch()


def use_other_class(folder):
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer.json").unlink()
    edit(folder / "tokenizer_config.json", tokenizer_class="Mine")


def add_tokens(folder, *tokens, **fields):
    tokenizer = AutoTokenizer.from_pretrained(folder, **fields)
    tokenizer.add_tokens(list(tokens))
    tokenizer.save_pretrained(folder)


def link(name, target):
    def change(folder):
        (folder.parent / "secret").mkdir()
        (folder.parent / "secret" / "file.jinja").write_text("secret")
        (folder / name).symlink_to(target)

    return change


REFUSED = {
    # the config
    "a config that is a list": (
        lambda folder: (folder / "config.json").write_text("[]"),
        "holds no JSON object",
    ),
    "another architecture": (
        config(model_type="gpt2"),
        "of model_type 'gpt2'; supported is a dense causal language model of Qwen2, Qwen3, Llama and Mistral, or a We",
    ),
    "another head": (config(architectures=["Qwen3ForSequenceClassification"]), "ForSequenceClassification'.*from"),
    "quantized": (config(quantization_config={"quant_method": "fp8"}), "is quantized .*start from"),
    "a bias on the output": (config(attention_bias=True), "attention_bias=True, and .* Qwen3 only with .*=False"),
    "heads that do not divide": (config(num_key_value_heads=3), "No model can be built .*num_key_value_heads=3"),
    "a padding id behind the rows": (config(pad_token_id=999), "No model can be built .*correct"),
    "a type of integers": (config(dtype="int32"), "No model can be built .*its dtype is torch.int32.*correct"),
    "biases of attention": (llama("llama", attention_bias=True), "attention_bias=True, and .* Llama only with .*=F"),
    "biases of the MLP": (llama("llama", mlp_bias=True), "mlp_bias=True, and .* Llama only with mlp_bias=False"),
    "windows of layers": (
        llama("llama", layer_types=["full_attention", "sliding_attention"]),
        "layer_types=.*'sliding_attention'.*, and WeDLM",
    ),
    "the window that Mistral has by default": (
        llama("mistral", ["sliding_window"]),
        "sliding_window=4096, and .* Mistral only with sliding_window=None; start from a checkpoint that has it",
    ),
    # the weights
    "other shapes": (
        config(intermediate_size=64),
        r"down_proj.weight of .* is \[32, 48\], and by its config \[32",
    ),
    "more layers than weights": (config(["layer_types"], num_hidden_layers=3), "weight model.layers.2.* is missing"),
    "more weights than layers": (
        config(["layer_types"], num_hidden_layers=1),
        "layers.1.* by its config missing",
    ),
    "a missing head": (drop("lm_head.weight"), "weight lm_head.weight of .* is missing, and by its config"),
    "pickles": (only_pickles, r"lacks its weights \(model.safetensors\); .*use_safetensors=False"),
    "a missing shard": (lambda folder: shard(folder, 2).unlink(), r"lacks its weights \(model-00002-of-00003.safe"),
    "a shard outside": (put_elsewhere, r"names the shard '../elsewhere.safetensors', which is not .*download"),
    "a shard that is a pickle": (point("model.bin"), "names the shard 'model.bin'"),
    "a shard that is not a name": (point(3), "names the shard 3"),
    "an index without a map": (lambda folder: (folder / INDEX).write_text("{}"), "has no weight_map, or odd"),
    "an index that is wrong": (point("model-00001-of-00003.safetensors"), "norm.weight lies in .*00001.* in .*00003"),
    "a weight twice": (lambda folder: shutil.copy(shard(folder, 1), shard(folder, 2)), "it lies in .*00001.*00002-of"),
    "a weight twice that the index lacks": (
        add_to_two_shards,
        "more.weight of .*00001.* and .*00002-of",
    ),
    "a cut shard": (lambda folder: cut(folder, -1), "00002-of-00003.safetensors is cut short or damaged .*copy"),
    "an empty shard": (lambda folder: cut(folder, 0), "is cut short or damaged"),
    "a longer shard": (lambda folder: shard(folder, 2).open("ab").write(b"x"), "is cut short or damaged"),
    "8 bits": (to_8_bits, "F8_E4M3, and only BF16, F16, F32, F64 are supported; start from .* before quantization"),
    # the tokenizer
    "a mask_token that ends the text": (
        tokenizer_config(mask_token="<|im_start|>"),
        "The mask_token '<.im_start.>' of .* also ends or pads the text; correct or remove",
    ),
    "a mask_token outside": (
        tokenizer_config(mask_token="<none>"),
        "mask_token '<none>' of .* has the id None, which is none of the 259 rows; correct",
    ),
    "a tokenizer of SentencePiece alone": (
        keep_sentencepiece_alone,
        "has a tokenizer.model and no",
    ),
    "tokens without a row": (
        lambda folder: add_tokens(folder, "<one>", "<two>", mask_token="<|im_end|>"),
        "The tokenizer of .* has the token '<two>' with the id 260, and its model has 259 rows; resize",
    ),
    "a class of others without tokenizer.json": (
        use_other_class,
        "The tokenizer of .* has the class 'Mine', which transformers lacks, and no tokenizer.json; save it",
    ),
    "ids that are texts": (
        lambda folder: (folder / "added_tokens.json").write_text('{"a": "1"}'),
        "have an unknown form .*its id no whole number",
    ),
    "a tokenizer that the library does not know": (
        lambda folder: edit(folder / "tokenizer.json", pre_tokenizer={"type": "Nothing"}),
        "tokenizer.json is not understood .*; correct it",
    ),
    "an end that is no id": (
        lambda folder: edit(folder / "generation_config.json", eos_token_id="x"),
        "eos_token_id='x' in .*generation_config.json is not a token id; correct",
    ),
    # links
    "a link out of it": (
        link("LICENSE", "../secret/file.jinja"),
        "LICENSE is a link to .*, outside of the",
    ),
    "a folder that is a link": (link("additional_chat_templates", "../secret"), "is a link to .*; put a copy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_one_sentence_and_nothing_is_written(source, tmp_path, name):
    assert_refused(source, tmp_path, *REFUSED[name])


def test_a_shard_that_may_not_be_read(source, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(arguments[0]))

    monkeypatch.setattr("wedlm.checkpoints.shards.safe_open", refuse)
    assert_refused(source, tmp_path, lambda folder: None, "00001-of-00003.safetensors cannot be read .*; allow it")


def test_a_tokenizer_that_cannot_stay_the_same(tmp_path):
    """Beside a Qwen2, transformers rebuilds a tokenizer of another kind, and MASK changes its added tokens."""
    source = tmp_path / "source"
    source.mkdir()
    save_stock(source, "qwen2", FLAVOURS["tiktoken"](source), tokenizer=False)
    message = "is a Qwen2Tokenizer, and beside another config.json it becomes another one; load it and save it"
    assert_refused(source, tmp_path, lambda folder: None, message)


def test_a_model_in_memory(tmp_path):
    with pytest.raises(ValueError, match="source is a Qwen2ForCausalLM, and files are converted; save it .*verified"):
        convert_to_wedlm(stock("Qwen2"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# --- The way back ---


def test_models_without_a_stock_class(source, tmp_path):
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    tiny_model("qwen3", attention_bias=True).save_pretrained(tmp_path / "biases")
    tiny_model("llama", **windows).save_pretrained(tmp_path / "windows")
    drafted().save_pretrained(tmp_path / "drafts")
    for name, sentence in (
        ("source", "of model_type 'qwen3'; supported is a WeDLM checkpoint; without --to-"),
        ("biases", "qk_norm=True and attention_bias=True, and none of Qwen2, Qwen3, Llama"),
        ("windows", "has sliding_window=8, and .* to Llama only with sliding_window=None"),
        ("drafts", "contains a draft adapter, .* stock checkpoint; convert its base"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            convert_to_autoregressive(tmp_path / name, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_tokens_without_a_row_on_the_way_back_and_for_vllm(source, tmp_path):
    convert_to_wedlm(source, tmp_path / "wedlm")
    add_tokens(tmp_path / "wedlm", "<one>")
    for convert in (convert_to_autoregressive, export_for_vllm):
        with pytest.raises(CheckpointError, match="has the token '<one>' with the id 260, and its model has 260 rows"):
            convert(tmp_path / "wedlm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_went_on_behind_mask_keeps_its_ids(tmp_path):
    save_stock(tmp_path / "source", rows=300)
    convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm")
    add_tokens(tmp_path / "wedlm", "<|mine|>")
    with pytest.raises(CheckpointError, match=r"gives other ids to \['<\|mine\|>'\]; set mask_row to null"):
        convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    edit(tmp_path / "wedlm" / "config.json", mask_row=None)
    assert "stays" in convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back").notes[0]


def test_rows_added_behind_mask_are_not_dropped(source, tmp_path):
    convert_to_wedlm(source, tmp_path / "wedlm")
    edit(tmp_path / "wedlm" / "config.json", mask_token_id=258)
    with pytest.raises(CheckpointError, match="mask_token_id=258 is not the last of the 260 rows .* mask_row to null"):
        convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
