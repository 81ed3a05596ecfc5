"""A GGUF file is the model that transformers unpacks from it, and whatever is wrong with one is a sentence."""

import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import gguf
import numpy as np
import pytest
import torch
from fused_models import assert_close, logits, stock
from gguf_files import BOS, EOS, FAMILIES, HEADS, TOKENS, random_blocks, write_gguf
from helpers import put_into_hub_cache
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, logging
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import wedlm
from wedlm import load_gguf
from wedlm.checkpoints.errors import CheckpointError
from wedlm.fused.gguf_file import GgufFile
from wedlm.fused.model import product_of
from wedlm.fused.native import SET

MIXED = {
    "attn_q": "Q4_0", "attn_k": "Q4_1", "attn_v": "Q5_0", "attn_output": "Q4_K", "ffn_gate": "Q6_K", "ffn_up": "Q8_0",
    "ffn_down": "F16", "token_embd": "Q5_K", "output": "BF16",
}  # fmt: skip
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "mixed")
FEW = torch.randint(len(TOKENS), (2, 7), generator=torch.Generator().manual_seed(0))
MANY = torch.randint(len(TOKENS), (1, 100), generator=torch.Generator().manual_seed(1))
IS_OLD = version("transformers") < "5.23"  # it reads no tokenizer of Mistral, and of Gemma 3 only its own kind
KNOWN_FAMILIES = [family for family in FAMILIES if not (IS_OLD and family in ("mistral", "gemma3"))]
each_family = pytest.mark.parametrize("family", KNOWN_FAMILIES)


def unpacked(path):
    """What transformers makes of a file. It loads none of Mistral, of which it has no names; a Llama is the same."""
    options = {"gguf_file": path.name, "dtype": torch.float32}
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    if config.model_type == "mistral":
        options["config"] = LlamaConfig(**config.to_dict() | {"model_type": "llama", "sliding_window": None})
        return LlamaForCausalLM.from_pretrained(path.parent, **options).eval()
    return AutoModelForCausalLM.from_pretrained(path.parent, **options).eval()


@pytest.fixture
def write(tmp_path):
    def write(family="llama", type="Q8_0", **changes):
        types = MIXED if type == "mixed" else {}
        return write_gguf(tmp_path / f"{family}.gguf", family, "Q8_0" if types else type, types, **changes)

    return write


# --- The same model ---


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("family", "type"),
    [
        pytest.param(family, type, marks=() if family == "llama" or type == "mixed" else pytest.mark.slow)
        for family in KNOWN_FAMILIES
        for type in TYPES
    ],
)
def test_a_file_is_the_model_that_transformers_unpacks(family, type, write):
    path = write(family, type)
    expected, (model, tokenizer) = unpacked(path), load_gguf(path)
    for ids in (FEW, FEW[:1, :1], MANY):
        assert_close(logits(model, ids), logits(expected, ids), 3e-5)
    if family != "gemma3":
        assert product_of(model).startswith(f"{SET or 'torch'}, "), "no layer has fallen back"
    prompt = tokenizer("the hand in the", return_tensors="pt").input_ids
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": EOS}
    text = expected.generate(prompt, eos_token_id=EOS, **settings).tolist()
    assert model.generate(prompt, **settings).tolist() == text
    assert model.generate(prompt, custom_generate=wedlm.verified, **settings).tolist() == text
    assert torch.equal(logits(wedlm.fuse(expected, weights=path), FEW), logits(model, FEW))


@each_family
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_unfused_it_has_the_numbers_that_transformers_unpacks(family, tied, write, tmp_path):
    is_tied = tied or family == "gemma3"
    path = write(family, "mixed", tied=is_tied)
    expected, (model, _) = unpacked(path), load_gguf(path)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert (head.weight.data_ptr() == embedding.weight.data_ptr()) == is_tied
    assert_close(logits(model, FEW), logits(expected, FEW))
    with pytest.raises(ValueError, match="it cannot be saved; keep the GGUF file"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists() and wedlm.unfuse(model) is model
    numbers = model.state_dict()
    assert numbers.keys() == expected.state_dict().keys()
    assert all(torch.equal(numbers[name], number) for name, number in expected.state_dict().items())
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == is_tied
    model.save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved").eval()
    assert all(torch.equal(logits(each, FEW), logits(expected, FEW)) for each in (model, again))


@each_family
def test_in_bfloat16_it_is_nearly_the_same_model(family, write):
    path = write(family, "mixed")
    expected, (model, _) = unpacked(path), load_gguf(path, dtype=torch.bfloat16)
    for ids in (FEW, MANY):
        got, wanted = logits(model, ids), logits(expected, ids)
        assert got.dtype == torch.bfloat16 and (got - wanted).norm() < 0.05 * wanted.norm()
    settings = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": EOS}
    text = model.generate(FEW[:1], **settings).tolist()
    if family != "gemma3":
        assert model.generate(FEW[:1], custom_generate=wedlm.verified, **settings).tolist() == text


def frequencies(rope_type, **more):
    """Those of tiny files, by transformers."""
    parameters = {"rope_type": rope_type, "rope_theta": 10000.0, **more}
    config = LlamaConfig(hidden_size=256, num_attention_heads=HEADS, rope_parameters=parameters)
    return LlamaRotaryEmbedding(config).inv_freq


def test_a_file_of_llama_3_has_its_frequencies(write, tmp_path):
    more = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    wanted = frequencies("llama3", **more)
    factors = (frequencies("default") / wanted).numpy()
    path = write("llama", change=lambda tensors: tensors.update({"rope_freqs.weight": ("F32", factors)}))
    expected, (model, _) = unpacked(path), load_gguf(path)
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, wanted)
    expected.model.rotary_emb.inv_freq = wanted  # transformers leaves the factors out
    assert_close(logits(model, MANY), logits(expected, MANY))
    assert_close(logits(wedlm.fuse(expected, weights=path), MANY), logits(model, MANY))
    wedlm.unfuse(model).save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved").eval()
    torch.testing.assert_close(again.model.rotary_emb.inv_freq, wanted)


def test_the_tokenizer_and_the_ends_are_those_of_the_file(write):
    model, tokenizer = load_gguf(write())
    text = "the hand in <|im_start|> Ünicode 12"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert [tokenizer.bos_token_id, tokenizer.eos_token_id] == [BOS, EOS]
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
    assert rendered == "<|im_start|>the<|im_end|>"
    assert model.generation_config.eos_token_id == [EOS] and not model.training
    model, _ = load_gguf(write(fields={"tokenizer.ggml.eot_token_id": 7}))
    assert model.generation_config.eos_token_id == [EOS, 7]


# --- Where a file is ---


def test_a_file_has_a_folder_and_a_name_or_both_in_one(write, tmp_path, monkeypatch):
    path = write()
    wanted = logits(load_gguf(path)[0], FEW)
    put_into_hub_cache(tmp_path, tmp_path.parent / f"{tmp_path.name} hub", "somebody/tiny")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path.parent / f"{tmp_path.name} hub"))
    for name, gguf_file in (
        (str(path), None), (tmp_path, path.name), ("somebody/tiny", path.name), (f"somebody/tiny/{path.name}", None)
    ):  # fmt: skip
        assert torch.equal(logits(load_gguf(name, gguf_file=gguf_file)[0], FEW), wanted)


def test_a_file_that_is_replaced_stays_the_one_that_was_loaded(write):
    path = write()
    model, _ = load_gguf(path)
    other = write("mistral", "Q4_0")
    wanted = logits(model, FEW)
    os.replace(other, path)
    assert torch.equal(logits(model, FEW), wanted)
    path.unlink()
    assert torch.equal(logits(model, FEW), wanted)


def test_files_are_loaded_side_by_side_and_leave_everything_else_as_it_was(write):
    paths = [write(family) for family in ("llama", "qwen2", "qwen3")]
    before = gguf.GGUFReader, logging.get_verbosity()
    wanted = [logits(load_gguf(path)[0], FEW) for path in paths]
    with ThreadPoolExecutor(4) as pool:
        for model, place in zip(pool.map(load_gguf, paths * 4), [0, 1, 2] * 4, strict=True):
            assert torch.equal(logits(model[0], FEW), wanted[place])
    assert (gguf.GGUFReader, logging.get_verbosity()) == before


# --- What is refused ---


def assert_refused(path, message, **arguments):
    """Loading raises one short sentence, soon, and leaves the package's reader as it was."""
    start, reader = time.monotonic(), gguf.GGUFReader
    with pytest.raises(CheckpointError, match=message) as error:
        load_gguf(path, **arguments)
    assert time.monotonic() - start < 3
    assert_is_sentence(error.value)
    assert gguf.GGUFReader is reader
    return error.value


def assert_is_sentence(error):
    assert "\n" not in str(error) and str(error).endswith(".") and len(str(error)) < 1000


def without(name):
    return lambda tensors: tensors.pop(name)


def with_rows(name, *shape, type="F32"):
    return lambda tensors: tensors.update({name: (type, random_blocks(type, *shape).numpy())})


def with_one_row(name, size, type="F32"):
    return lambda tensors: tensors.update({name: (type, random_blocks(type, 1, size).numpy()[0])})


def in_q2_k(tensors):
    tensors["blk.1.ffn_up.weight"] = "Q2_K", np.zeros((512, 84), np.uint8)


# By family, what is changed in the tensors, and what the sentence says.
OWN = "; give the model's own"
TENSORS = {
    "one is missing": ("llama", without("blk.1.ffn_up.weight"), f"has no weights of .*layers.1.mlp.up_proj, .*{OWN}"),
    "a norm is missing": ("qwen3", without("blk.0.attn_q_norm.weight"), f"model.layers.0.self_attn.q_norm, .*{OWN}"),
    "the embedding is missing": ("llama", without("token_embd.weight"), f"model.embed_tokens, .*{OWN}"),
    "one too many": ("llama", with_rows("blk.0.x.weight", 3, 32), rf"the tensor blk.0.x.weight, .* \(1 such .*{OWN}"),
    "a bias is missing": ("qwen2", without("blk.0.attn_k.bias"), f"k_proj has a bias in this model, .*{OWN}"),
    "a bias too many": ("llama", with_one_row("blk.0.attn_k.bias", 128), f"k_proj has a bias in .*gguf, .*{OWN}"),
    "a bias of another size": ("qwen2", with_one_row("blk.0.attn_k.bias", 64), "blk.0.attn_k.bias|k_proj"),
    "another shape": ("llama", with_rows("blk.0.ffn_up.weight", 512, 128), r"\[512, 128\], and .* \[512, 256\]; give"),
    "factors of another size": ("llama", with_one_row("rope_freqs.weight", 30), "rope_freqs.weight"),
    "factors of another type": ("llama", with_one_row("rope_freqs.weight", 32, "F16"), "rope_freqs.weight"),
    "an unknown type": (
        "llama", in_q2_k, "holds blk.1.ffn_up.weight in Q2_K, .* known here; download the model in Q4_0, Q4_K_M,"
    ),
}  # fmt: skip
# By field, the value, and what the sentence says.
FIELDS = {
    "a layer too few": ("llama.block_count", 1, "has tensors of 2 layers, and by its header 1; download it again"),
    "a layer too many": ("llama.block_count", 3, "has tensors of 2 layers, and by its header 3"),
    "more layers than memory": ("llama.block_count", 2**31 - 1, "."),
    "more heads than weights": ("llama.attention.head_count", HEADS * 1000, "is not a multiple of"),
    "no key heads": ("llama.attention.head_count_kv", 0, "."),
    "heads without width": ("llama.attention.key_length", 0, "."),
    "no hidden states": ("qwen2.embedding_length", 0, "."),
    "hidden states of any size": ("qwen2.embedding_length", 2**31 - 1, "."),
    "a text for a number": ("llama.rope.freq_base", "x", "."),
    "an alignment that is none": ("general.alignment", 3, "general.alignment is 3"),
    "an end beyond the tokens": ("tokenizer.ggml.eos_token_id", 10**6, "cannot read the config and the tokenizer"),
    "an end that is a text": ("tokenizer.ggml.eot_token_id", "x", "."),
    "another tokenizer": ("tokenizer.ggml.model", "bert", "cannot read .*'bert'.*; download it again"),
}


@pytest.mark.parametrize("damage", TENSORS)
def test_a_file_whose_tensors_do_not_fit_is_refused(damage, write):
    family, change, message = TENSORS[damage]
    assert_refused(write(family, "Q4_0", change=change), message)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("lie", [lie for lie in FIELDS if not (IS_OLD and lie == "another tokenizer")])
def test_a_header_that_lies_is_refused(lie, write):
    field, value, message = FIELDS[lie]
    assert_refused(write("qwen2" if "qwen2" in field else "llama", "Q4_0", fields={field: value}), message)


def test_a_file_without_a_tokenizer_or_of_another_architecture_is_refused(write):
    assert_refused(write(tokenizer=False), "has no tokenizer; download the model from where its file has one")
    message = "of the architecture 'phi3', and those of Llama and Mistral, .* are known; load it with transformers"
    assert_refused(write("phi3"), message)


def test_a_file_that_is_cut_is_refused(write):
    path = write(type="Q4_0")
    content, tensors = path.read_bytes(), GgufFile(path).tensors.values()
    start, end = min(info.start for info in tensors), max(info.start + info.num_bytes for info in tensors)
    draw = random.Random(0)
    for size in (*draw.sample(range(start), 60), *draw.sample(range(start, end), 20), end - 1):
        path.write_bytes(content[:size])
        assert_refused(path, "is not a complete GGUF file .*; download it again, or" if size else "empty file")


def test_what_is_no_gguf_file_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    assert_refused(path, "model.gguf is not a file; give the path of a GGUF file")
    assert_refused(tmp_path, "is not a file; give the path of a GGUF file")
    assert_refused("nobody/nothing/model.gguf", "model.gguf of nobody/nothing cannot be downloaded from .*; correct")
    assert_refused(tmp_path, "model.gguf is not a file", gguf_file="model.gguf")
    for content, message in (
        (b"", "cannot be read .*; give a GGUF file"),
        (b"G", "ends within its header"),
        (b"no GGUF at all" * 9, "does not begin with GGUF"),
        (b"GGUF" + bytes(99), "its version is 0, and only 2 and 3 are known"),
        (b"GGUF\3\0\0\0" + b"\xff" * 16, "ends within its header"),
    ):
        path.write_bytes(content)
        assert_refused(path, message)


@pytest.mark.timeout(60)
@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_byte_of_the_header_that_is_another_makes_a_sentence_if_anything(seed, write):
    path, draw, start = write(type="Q4_0"), random.Random(seed), time.monotonic()
    content, size = path.read_bytes(), min(info.start for info in GgufFile(path).tensors.values())
    for place in draw.sample(range(size), 100):
        changed = bytearray(content)
        changed[place] ^= draw.randrange(1, 256)
        path.write_bytes(changed)
        try:
            load_gguf(path)
        except CheckpointError as error:
            assert_is_sentence(error)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31m", "x" * 5000], ids=["two lines", "colours", "long"])
def test_names_in_a_file_are_no_part_of_the_sentence_that_breaks_it(text, write):
    path = write(change=lambda tensors: tensors.update({f"blk.0.{text}.weight": tensors["blk.0.ffn_up.weight"]}))
    assert str(assert_refused(path, "has the tensor|is not a name")).isprintable()
    path = write("qwen2", fields={"general.architecture": text})
    assert str(assert_refused(path, "is of the architecture")).isprintable()


def test_without_the_package_gguf_loading_says_what_to_install(write, monkeypatch):
    path = write()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "gguf", None)
        with pytest.raises(CheckpointError, match="needs the package gguf .*; install it by `pip install gguf`"):
            load_gguf(path)


def test_the_dtype_has_a_name_and_is_one_of_two(write):
    path = write()
    assert load_gguf(path, dtype="bfloat16")[0].dtype == torch.bfloat16
    assert load_gguf(path, dtype="auto")[0].dtype == torch.float32
    assert_refused(path, "dtype='float16' is not one of float32 and bfloat16; pass one of them", dtype="float16")


# --- Models that get the weights of a file ---

SIZES = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": len(TOKENS)}


def with_adapter():
    return get_peft_model(stock("llama", **SIZES), LoraConfig(target_modules=["q_proj"]))


OTHERS = {
    "another size": (lambda: stock("llama"), r"is \[268, 256\], and model.embed_tokens of this model \[160, 32\]"),
    "an adapter": (with_adapter, "has an adapter already; give it the weights of a file first, and then the adapter"),
    "another family": (lambda: stock("qwen3", **SIZES, head_dim=64), "has no weights of .*q_norm, which this model"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_does_not_fit_a_file_stays_as_it_was(name, write):
    make, message = OTHERS[name]
    model = make()
    wanted = logits(model, FEW % 160)
    with pytest.raises(ValueError, match=message):
        wedlm.fuse(model, weights=write())
    assert product_of(model) is None and torch.equal(logits(model, FEW % 160), wanted)
