"""`wedlm info`: the numbers of the loaded model, without loading it."""

import json
import re
import shutil

import pytest
import torch
from command_line import PROMPT, run, save_checkpoint
from draft_models import save_adapter
from helpers import CHECKPOINTS
from stock_checkpoints import edit
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from wedlm.checkpoints.facts import read_facts
from wedlm.checkpoints.load import load_checkpoint
from wedlm.generation.parameters import DECODINGS, DEFAULTS
from wedlm.generation.transformers_internals import CACHE


def shown_lines(result):
    assert (result.exit_code, result.stderr) == (0, "")
    return dict(re.split(r"  +", line, maxsplit=1) for line in result.stdout.splitlines())


def test_the_numbers_of_info_are_those_of_the_loaded_model(checkpoint, loaded, monkeypatch):
    model, _ = loaded

    def loads(*arguments, **options):
        raise AssertionError("info loads the weights")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", loads)
    facts = read_facts(checkpoint)
    assert facts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert facts.weight_bytes(torch.bfloat16) == 2 * facts.parameters
    assert facts.bytes_on_disk() == {"float64": sum(parameter.nbytes for parameter in model.parameters())}
    cache = DynamicCache()
    model(torch.full((1, 70), 9), **{CACHE: cache})
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert facts.cache_bytes(torch.float64, 70) == held
    assert {name: facts.generation[name] for name in DEFAULTS} == DEFAULTS
    lines = shown_lines(run("info", checkpoint))
    assert lines["kind"] == "WeDLM in the style of Qwen3"
    assert lines["parameters"] == f"{model.num_parameters():,}"
    assert lines["shape"] == "2 layers, 32 wide, 2 heads and 1 key-value heads of 16"
    assert lines["context"] == "600 tokens" and lines["MASK token"] == "3 <|mask|>"
    assert lines["on disk"] == f"{facts.parameters * 8 / 1e6:.2f} MB float64, in 1 file"
    assert lines["memory of the cache, 1,000 tokens"] == "0.26 MB float32, 0.13 MB bfloat16"
    assert lines["generation"] == ", ".join(f"{name}={value}" for name, value in DEFAULTS.items())
    assert lines["decodings"] == ", ".join(DECODINGS)
    assert lines["default decoding"] == "streaming: its generation_config.json says so"
    assert lines["its own code"] == "travels with it"


@pytest.mark.parametrize(
    "change, decodings, note",
    [
        ({}, DECODINGS, None),
        ({"mask_token_id": None}, ["autoregressive"], None),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, ["autoregressive"], "rope"),
    ],
    ids=["all", "no mask", "rope"],
)
def test_what_a_checkpoint_can_do(tmp_path, change, decodings, note):
    save_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    lines = shown_lines(run("info", tmp_path))
    assert lines["decodings"] == ", ".join(decodings)
    assert note is None or note in lines["note"]
    model, tokenizer = load_checkpoint(tmp_path)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    for decoding in DECODINGS:
        if decoding in decodings:
            model.generate(**inputs, decoding=decoding, max_new_tokens=2)
        else:
            with pytest.raises(ValueError):
                model.generate(**inputs, decoding=decoding, max_new_tokens=2)


@pytest.mark.parametrize("decoding", ["verified", None])
def test_the_default_decoding_is_that_of_the_loaded_model(tmp_path, decoding):
    save_checkpoint(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"decoding": "verified"}))
    expected = "verified: its generation_config.json says so"
    if decoding is None:
        file.unlink()
        expected = "streaming, as in the paper: no generation_config.json names another"
    assert shown_lines(run("info", tmp_path))["default decoding"] == expected
    assert load_checkpoint(tmp_path)[0].generation_config.decoding == expected.split(",")[0].split(":")[0]


def test_a_checkpoint_that_is_not_wedlm(tmp_path):
    folder = tmp_path / "stock"
    assert run("convert", "--to-autoregressive", CHECKPOINTS / "q25", folder).exit_code == 0
    lines = shown_lines(run("info", folder))
    assert lines["kind"] == "Qwen2, not WeDLM"
    assert lines["what to do"] == (
        f"it decodes verified as it is, by `wedlm generate {folder} PROMPT`; for a training in MASKs, `wedlm convert "
        f"{folder} OUT` makes a WeDLM checkpoint of it."
    )
    assert "decodings" not in lines and lines["MASK token"] == "none"
    assert lines["parameters"] == f"{AutoModelForCausalLM.from_pretrained(folder).num_parameters():,}"
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(mistral))
    result = run("info", tmp_path)
    assert result.exit_code == 2 and "sliding_window=4096" in result.stderr and result.stderr.count("\n") == 1


def test_an_untrained_model_with_a_draft_adapter_offers_no_streaming(checkpoint, tmp_path):
    """Neither in `info` nor anywhere else; trained in MASKs, the same model does."""
    base = shutil.copytree(checkpoint, tmp_path / "base")
    edit(base / "config.json", converted_from="qwen3")
    edit(base / "generation_config.json", decoding="verified")
    adapter = save_adapter(tmp_path / "adapter", base=base)
    assert shown_lines(run("info", adapter))["decodings"] == "verified, autoregressive"
    for command in (["generate"], ["compare"], ["trace"], ["serve", "--port", 0], ["chat"]):
        words = [PROMPT] if command[0] in ("generate", "compare", "trace") else []
        result = run(*command, adapter, *words, "--decoding", "blockwise")
        assert result.exit_code == 2 and result.stderr.startswith("decoding='blockwise' fills MASK tokens, which this")
        assert result.stdout == "" and result.stderr.count("\n") == 1
    assert (
        "streaming is no decoding; choose one of verified, auto"
        in run("chat", adapter, input="/mode streaming").stdout
    )
    compared = run("compare", adapter, PROMPT, "--max-new-tokens", 4).stdout
    assert "verified" in compared and "streaming" not in compared
    edit(base / "config.json", mask_trained=True)
    assert shown_lines(run("info", adapter))["decodings"] == ", ".join(DECODINGS)
    assert run("generate", adapter, PROMPT, "--decoding", "streaming", "--max-new-tokens", 4).exit_code == 0


def test_a_draft_adapter_is_named_above_its_base(checkpoint, tmp_path):
    adapter = save_adapter(tmp_path / "adapter", base=checkpoint, target_modules=["q_proj", "k_proj"])
    lines, of_base = shown_lines(run("info", adapter)), shown_lines(run("info", checkpoint))
    described = lines.pop("draft adapter")
    assert described.startswith(f"{adapter}: rank 4 on k_proj, q_proj, 0.0") and described.endswith(" MB")
    assert lines.pop("default decoding") == "verified: the adapter has no generation_config.json that names another"
    assert lines.pop("generation") == of_base.pop("generation").replace("streaming", "verified")
    assert of_base.pop("default decoding").startswith("streaming: ") and lines == of_base
    (adapter / "generation_config.json").write_text('{"decoding": "blockwise", "window_size": 3}')
    lines = shown_lines(run("info", adapter))
    assert lines["default decoding"] == "blockwise: the adapter's generation_config.json says so"
    assert lines["generation"].startswith("decoding=blockwise, window_size=3")
    assert load_checkpoint(adapter)[0].generation_config.decoding == "blockwise"
    whole, tokenizer = load_checkpoint(adapter)
    whole.save_pretrained(tmp_path / "whole")
    tokenizer.save_pretrained(tmp_path / "whole")
    assert shown_lines(run("info", tmp_path / "whole"))["draft adapter"] == "contained, rank 4 on k_proj, q_proj"
