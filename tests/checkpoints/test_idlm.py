"""I-DLM's checkpoints: loaded and converted without their code, and decoded as a causal model."""

import json
import shutil

import pytest
import torch
from command_line import run
from draft_models import tiny_model
from helpers import EOS, MASK, PAD, left_padded, put_into_hub_cache, run_python, stock_model
from model_kinds import one_character_each
from stock_checkpoints import bits, edit, weights_of
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

import wedlm
from wedlm import convert_to_autoregressive, convert_to_wedlm
from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.idlm import CAUSAL
from wedlm.checkpoints.load import load_checkpoint

EXTRA = {
    "architectures": ["SDARForCausalLM"], "model_type": "sdar", "mask_token_id": MASK, "block_size": 3,
    "fuse_cross_entropy": False, "debug": False, "attn_implementation": "flex_attention", "use_cache": False,
    "auto_map": {"AutoConfig": "configuration_sdar.C", "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM"},
}  # fmt: skip
CALL = {**left_padded([[5, 6, 7, 8], [30, 31]]), "eos_token_id": EOS, "pad_token_id": PAD, "max_new_tokens": 24}


@pytest.fixture
def checkpoint(tmp_path):
    """Weights of random values in their format: Qwen3's names, and a config.json that names code of their own."""
    folder, rope = tmp_path / "i-dlm", {"rope_type": "default", "rope_theta": 1e5}
    stock = stock_model(tiny_model(rope_parameters=rope, max_position_embeddings=512))
    stock.lm_head.weight.data[MASK] = 0  # never the best token, as a row that is not text
    stock.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    for written_today in ("rope_parameters", "dtype", "layer_types"):
        del config[written_today]
    older = {"rope_theta": 1e5, "rope_scaling": None, "torch_dtype": "float32", "use_sliding_window": False}
    config |= {**EXTRA, **older, "sliding_window": None, "max_window_layers": 2, "use_regular_causal": True}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = one_character_each()
    tokenizer.add_tokens(["<|MASK|>"], special_tokens=True)
    assert tokenizer.convert_tokens_to_ids("<|MASK|>") == MASK and tokenizer.mask_token is None
    tokenizer.save_pretrained(folder)
    return folder, stock.eval()


def test_it_loads_without_its_code_and_writes_what_a_causal_model_writes(checkpoint):
    folder, stock = checkpoint
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True).eval()
    assert type(model) is wedlm.WeDLMForCausalLM and model.config.mask_shift and model.config.mask_token_id == MASK
    ids = CALL["input_ids"]
    torch.testing.assert_close(model(ids).logits, stock(ids).logits, rtol=1e-4, atol=1e-4)
    expected = stock.generate(**CALL, do_sample=False)
    assert torch.equal(model.generate(**CALL, decoding="autoregressive"), expected)
    assert torch.equal(model.generate(**CALL, query_cost=0), expected), "verified is the default"
    with pytest.raises(
        ValueError, match="decoding='streaming' fills MASK tokens, and those .* pass decoding=\"verified"
    ):
        model.generate(**CALL, decoding="streaming")


def test_what_is_saved_is_a_wedlm(checkpoint, tmp_path):
    model, again = AutoModelForCausalLM.from_pretrained(checkpoint[0]).eval(), tmp_path / "saved"
    model.save_pretrained(again)
    config = AutoConfig.from_pretrained(again)
    assert type(config) is wedlm.WeDLMConfig and (config.model_type, config.mask_shift) == ("wedlm", True)


def test_its_conversion_is_a_wedlm_with_the_same_weights_drafts_and_text(checkpoint, tmp_path):
    folder, stock = checkpoint
    result = convert_to_wedlm(folder, tmp_path / "wedlm")
    assert (result.mask_token_id, result.notes) == (MASK, [])
    config = json.loads((result.folder / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("wedlm", ["WeDLMForCausalLM"])
    assert config["mask_shift"] and "modeling_wedlm" in config["auto_map"]["AutoModelForCausalLM"]
    assert not config.keys() & {"block_size", "fuse_cross_entropy", "attn_implementation", "use_regular_causal"}
    before, after = weights_of(folder), weights_of(result.folder)
    assert before.keys() == after.keys() and all(torch.equal(bits(before[name]), bits(after[name])) for name in before)
    one, other = (AutoModelForCausalLM.from_pretrained(each).eval() for each in (folder, result.folder))
    masked = torch.tensor([[5, 6, 7, 8, MASK, MASK, MASK]])
    assert torch.equal(one(masked).logits, other(masked).logits)
    outputs = [model.generate(**CALL, query_cost=0, return_dict_in_generate=True) for model in (one, other)]
    assert torch.equal(outputs[1].sequences, stock.generate(**CALL, do_sample=False))
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    assert torch.equal(outputs[0].verified_drafts, outputs[1].verified_drafts)


@pytest.mark.full
def test_the_conversion_needs_transformers_and_torch_only(checkpoint, tmp_path):
    folder, stock = checkpoint
    convert_to_wedlm(folder, tmp_path / "converted")
    code = (
        "import torch; from transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained('converted', trust_remote_code=True).eval()\n"
        "output = model.generate(torch.tensor([[5, 6, 7, 8]]), max_new_tokens=24, query_cost=0)\n"
        "print('text', output[0].tolist())"
    )
    expected = stock.generate(torch.tensor([[5, 6, 7, 8]]), do_sample=False, max_new_tokens=24)[0].tolist()
    assert f"text {expected}" in run_python(code, tmp_path, wedlm=False)


def test_the_way_back_is_a_qwen3_that_knows_its_mask(checkpoint, tmp_path):
    folder, stock = checkpoint
    convert_to_wedlm(folder, tmp_path / "wedlm")
    for source in (folder, tmp_path / "wedlm"):
        result = convert_to_autoregressive(source, tmp_path / "back", overwrite=True)
        assert result.notes == [f"MASK, token {MASK}, stays: no conversion to WeDLM added it."]
        back = AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
        assert type(back) is Qwen3ForCausalLM
        assert torch.equal(back.generate(**CALL, do_sample=False), stock.generate(**CALL, do_sample=False))
        again = convert_to_wedlm(tmp_path / "back", tmp_path / "again", overwrite=True)
        config = json.loads((again.folder / "config.json").read_text())
        assert again.mask_token_id == config["mask_token_id"] == MASK and config["mask_shift"]
        assert json.loads((again.folder / "generation_config.json").read_text())["decoding"] == "verified"


def test_info_and_the_card_say_what_it_decodes(checkpoint, tmp_path, monkeypatch):
    folder, _ = checkpoint
    convert_to_wedlm(folder, tmp_path / "wedlm")
    for each in (folder, tmp_path / "wedlm"):
        shown = run("info", each)
        assert shown.exit_code == 0 and "verified, autoregressive\n" in shown.stdout
        assert "verified, its MASKs predict the token behind them: no generation_config.json" in shown.stdout
        assert f"{MASK} <|MASK|>\n" in shown.stdout
        assert run("export", each, tmp_path / "card", "--license", "apache-2.0", "--overwrite").exit_code == 0
        generation = json.loads((tmp_path / "card" / "generation_config.json").read_text())
        assert generation["decoding"] == "verified"
        card = (tmp_path / "card" / "README.md").read_text()
        assert "verified" in card and "streaming" not in card
        monkeypatch.setattr("wedlm.hub_card.export.run_snippet", lambda *_: None)  # one card's snippet has run
    assert run("export", tmp_path / "wedlm", tmp_path / "vllm", "--vllm").exit_code == 0
    assert json.loads((tmp_path / "vllm" / "drafter" / "config.json").read_text())["mask_shift"]


def test_training_wants_the_conversion(checkpoint, tmp_path):
    out, sentence = tmp_path / "out", f"give OUT of `wedlm convert {checkpoint[0]} OUT`."
    training = ("train", "--model", checkpoint[0], "--train_data", "none.jsonl", "--output_dir", out)
    for words in (("adapt", checkpoint[0], out), training, (*training, "--preview", "true")):
        refused = run(*words)
        (line,) = refused.stderr.splitlines()
        assert refused.exit_code == 2 and line.endswith(sentence) and not out.exists()
    with pytest.raises(ValueError, match="an I-DLM in its own format"):
        wedlm.WeDLMTrainer(checkpoint[0])


# --- SDAR's own models, whose blocks attend in both directions ---


@pytest.fixture
def sdar(checkpoint):
    folder, _ = checkpoint
    edit(folder / "config.json", removed=["use_regular_causal"])
    return folder


SENTENCE = "is of model_type 'sdar' with use_regular_causal=None, .*; if it is an I-DLM, set use_regular_causal to"


def test_a_model_whose_blocks_may_attend_both_ways_is_refused(sdar, tmp_path):
    edit(sdar / "config.json", use_regular_causal=False)
    for load in (AutoModelForCausalLM.from_pretrained, AutoConfig.from_pretrained, load_checkpoint):
        with pytest.raises(ValueError, match=f"{sdar} {SENTENCE.replace('None', 'False')}"):
            load(sdar)
    for convert in (convert_to_wedlm, convert_to_autoregressive):
        with pytest.raises(CheckpointError, match=f"{sdar} {SENTENCE.replace('None', 'False')}"):
            convert(sdar, tmp_path / "out")
    assert AutoModelForCausalLM.from_pretrained(sdar, mask_shift=True).config.mask_shift
    edit(sdar / "config.json", use_regular_causal=True)
    assert AutoModelForCausalLM.from_pretrained(sdar).config.mask_shift
    assert convert_to_wedlm(sdar, tmp_path / "out").mask_token_id == MASK


@pytest.mark.parametrize(
    "command",
    [
        "convert MODEL OUT", "convert --to-autoregressive MODEL OUT", "info MODEL", "generate MODEL hi", "serve MODEL",
        "adapt MODEL OUT", "export MODEL OUT", "export MODEL OUT --vllm", "chat MODEL",
    ],
)  # fmt: skip
def test_every_command_refuses_it_in_a_sentence(sdar, tmp_path, command):
    named = {"MODEL": sdar, "OUT": tmp_path / "out"}
    result = run(*(named.get(word, word) for word in command.split()))
    assert result.exit_code == 2 and not (tmp_path / "out").exists()
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"{sdar} is of model_type 'sdar' with use_regular_causal=None, ")


def test_biases_on_the_output_projection_are_refused(checkpoint):
    folder, _ = checkpoint
    edit(folder / "config.json", attention_bias=True)
    with pytest.raises(ValueError, match="attention_bias=True, a bias on the output projection too, .*; start from"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_the_published_names_need_no_field(sdar, tmp_path, monkeypatch):
    """On the Hub a checkpoint lies in a folder that does not tell its name."""
    put_into_hub_cache(sdar, tmp_path / "hub", CAUSAL[0])
    shutil.rmtree(sdar)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert AutoModelForCausalLM.from_pretrained(CAUSAL[0]).config.mask_shift
    assert AutoTokenizer.from_pretrained(CAUSAL[0]).convert_tokens_to_ids("<|MASK|>") == MASK
    model, tokenizer = load_checkpoint(CAUSAL[0], device="cpu")
    assert model.config.mask_shift and tokenizer.convert_tokens_to_ids("<|MASK|>") == MASK
    assert convert_to_wedlm(CAUSAL[0], tmp_path / "wedlm").mask_token_id == MASK
