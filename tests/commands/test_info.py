"""`wedlm info`: the numbers of the loaded model, without loading it."""

import json
import re
import shutil
from unittest.mock import Mock

import pytest
import torch
from command_line import PROMPT, run, save_checkpoint
from draft_models import save_adapter
from helpers import CHECKPOINTS
from hypothesis import given
from hypothesis import strategies as st
from stock_checkpoints import edit
from tiers import property_settings
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from wedlm.checkpoints import facts
from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.facts import read_facts
from wedlm.checkpoints.load import load_checkpoint
from wedlm.commands.info import described
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
    read = read_facts(checkpoint)
    assert read.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert read.weight_bytes(2) == 2 * read.parameters
    assert read.bytes_on_disk() == {"float64": sum(parameter.nbytes for parameter in model.parameters())}
    cache = DynamicCache()
    model(torch.full((1, 70), 9), **{CACHE: cache})
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert read.cache_bytes(8, 70) == held
    assert {name: read.generation[name] for name in DEFAULTS} == DEFAULTS
    lines = shown_lines(run("info", checkpoint))
    assert lines["kind"] == "WeDLM in the style of Qwen3"
    assert lines["parameters"] == f"{model.num_parameters():,}"
    assert lines["shape"] == "2 layers, 32 wide, 2 heads and 1 key-value heads of 16"
    assert lines["context"] == "600 tokens" and lines["MASK token"] == "3 <|mask|>"
    assert lines["on disk"] == f"{read.parameters * 8 / 1e6:.2f} MB float64, in 1 file"
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
        f"it decodes as it is, by `wedlm generate {folder} PROMPT`; for a training in MASKs, `wedlm convert "
        f"{folder} OUT` makes a WeDLM checkpoint of it."
    )
    assert lines["decodings"] == "verified, autoregressive" and lines["MASK token"] == "none"
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
        "streaming is not a decoding; choose one of verified, auto"
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
    for more in ({}, {"mask_shift": True}):
        edit(tmp_path / "whole" / "config.json", drafts={"rank": 4, "modules": ["k_proj", "q_proj"], **more})
        assert shown_lines(run("info", tmp_path / "whole"))["draft adapter"] == "contained, rank 4 on k_proj, q_proj"


def test_with_a_shifted_draft_adapter_it_does_not_stream(checkpoint, tmp_path):
    """Its MASKs predict the token behind them, as PEFT's adapter and in the model itself."""
    adapter = save_adapter(tmp_path / "adapter", base=checkpoint, target_modules=["q_proj"], mask_shift=True)
    whole, tokenizer = load_checkpoint(adapter)
    whole.save_pretrained(tmp_path / "whole")
    tokenizer.save_pretrained(tmp_path / "whole")
    for folder in (adapter, tmp_path / "whole"):
        lines = shown_lines(run("info", folder))
        assert lines["decodings"] == "verified, autoregressive"
        assert "rank 4 on q_proj" in lines["draft adapter"] and lines["default decoding"].startswith("verified: ")
    (tmp_path / "whole" / "generation_config.json").unlink()
    lines = shown_lines(run("info", tmp_path / "whole"))
    assert lines["default decoding"].startswith("verified, its MASKs predict the token behind them: ")


# --- Without transformers, and by it ---

SHAPE = {
    "architectures": None, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "vocab_size": 160,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
NO_WINDOW = {"use_sliding_window": False, "sliding_window": 4096}
PLAIN = {
    "qwen2": SHAPE | NO_WINDOW,
    "qwen3": SHAPE | NO_WINDOW | {"head_dim": 12},
    "llama": SHAPE,
    "mistral": SHAPE | {"sliding_window": None},
    "wedlm": SHAPE | NO_WINDOW | {"head_dim": 12, "mask_token_id": 3, "attention_bias": False, "qk_norm": True},
}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
DRAFTS = {"rank": 4, "modules": ["q_proj", "o_proj", "down_proj"]}
# By field, values that are taken as they stand, values that change what info says, and wrong ones.
VALUES = {
    "architectures": [["WeDLMForCausalLM"], ["Qwen2ForCausalLM"], ["LlamaForCausalLM"], 1],
    "hidden_size": [48, 33, 36, 2**40, "32"],
    "intermediate_size": [1, 0],
    "num_attention_heads": [1, 3, 8],
    "num_key_value_heads": [1, 4, 3, 0, None],
    "head_dim": [8, 7, None],
    "num_hidden_layers": [1, 3, 2.0],
    "vocab_size": [4, 161],
    "tie_word_embeddings": [True, 1],
    "attention_bias": [True, False, None],
    "mlp_bias": [False, True],
    "qk_norm": [False, True],
    "mask_token_id": [None, 0, 159, 160, "3"],
    "pad_token_id": [None, 0, 200, -1],
    "bos_token_id": [None, 2, 500, [2]],
    "eos_token_id": [None, 2, [2, 3], [], 500],
    "converted_from": [None, "llama", "qwen3", "foreign", 3],
    "mask_trained": [True, False, 1],
    "mask_shift": [True, False, 1],
    "mask_row": ["added", None, "lost"],
    "drafts": [DRAFTS, {**DRAFTS, "rank": 0}, {**DRAFTS, "modules": ["q_proj", "q_proj", "x"]}, {"rank": 4}, {},
               {**DRAFTS, "mask_shift": True}],
    "rope_parameters": [ROPE, ROPE | {"rope_theta": 10000}, {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
                        ROPE | {"rope_theta": "1"}, {"rope_type": "foreign"}, {}],
    "rope_theta": [1e6, 10000, 0, 10**400],
    "rope_scaling": [None, {"type": "linear", "factor": 2.0}],
    "layer_types": [None, ["full_attention"] * 2, ["full_attention"], ["sliding_attention"] * 2, "full_attention"],
    "use_sliding_window": [True, False],
    "sliding_window": [None, 8],
    "max_window_layers": [0, 28, -1],
    "dtype": ["bfloat16", "float64", "int64", "foreign", None],
    "torch_dtype": ["float16", None],
    "hidden_act": ["silu", "gelu", "foreign"],
    "rms_norm_eps": [1e-5, 0.0, "1"],
    "attention_dropout": [0.0, 0.5, 2.0],
    "initializer_range": [0.02, 0.0],
    "use_cache": [True, False, 1],
    "unk_token_id": [0, 999],
    "transformers_version": ["4.57.1", "5.24.0"],
    "auto_map": [{}, {"AutoConfig": "configuration_wedlm.WeDLMConfig"}],
    "wedlm": [{"mask_token_id": 3}, 4],
    "num_beams": [4],
    "quantization_config": [None, {"quant_method": "fp8"}],
}  # fmt: skip
GENERATION_VALUES = {
    "decoding": [*DECODINGS, "fast", 3],
    "window_size": [4, 0, "4"],
    "entropy_threshold": [None, 0.1, -1],
    "distance_penalty": [0.0, None],
    "acceptance_ratio": [0.5, 2],
    "query_cost": [0.1, "0"],
    "_from_model_config": [True, False],
    "bos_token_id": [1, 500],
    "eos_token_id": [2, [2, 3], [], 500, 10**30],
    "pad_token_id": [0, 500, -1],
    "do_sample": [True, False, 1],
    "temperature": [0.7, 1.0, 0.0, 2, "1"],
    "top_k": [20, 0, 1, -1],
    "top_p": [0.8, 1.0, 0.0, 2.0],
    "min_p": [0.0, 0.1, 2.0],
    "repetition_penalty": [1.0, 1.1, 1, "1"],
    "max_new_tokens": [9, 0, "9"],
    "max_length": [20, 0],
    "use_cache": [True, False],
    "output_attentions": [False, True],
    "num_beams": [1, 4],
    "suppress_tokens": [[3]],
    "transformers_version": ["5.24.0"],
}


def compare_with_the_model(folder, model_type, changes, left_out=(), generation=None, is_adapter=False):
    """Compares what info says without transformers, if it does, with what the model says."""
    fields = {"model_type": model_type} | PLAIN[model_type] | changes
    fields = {name: value for name, value in fields.items() if name not in left_out}
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "generation_config.json").write_text(json.dumps(generation or {}))
    name = folder / "adapter" if is_adapter else folder
    if is_adapter:
        adapter = {"peft_type": "WEDLM_DRAFT", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
        name.mkdir(exist_ok=True)
        (name / "adapter_config.json").write_text(json.dumps(adapter | {"base_model_name_or_path": str(folder)}))
    with pytest.MonkeyPatch.context() as context:
        context.setattr(facts, "built", Mock(side_effect=CheckpointError))
        try:
            said = described(read_facts(name))
        except CheckpointError:  # it is left to the model
            return
        context.undo()
        context.setattr(facts, "plain_config", lambda fields: None)
        assert described(read_facts(name)) == said


@pytest.mark.full
@pytest.mark.parametrize("model_type", PLAIN)
def test_each_field_alone_is_read_as_the_model_reads_it(tmp_path, model_type):
    for name in PLAIN[model_type]:
        compare_with_the_model(tmp_path, model_type, {}, left_out=[name])
    for name, values in VALUES.items():
        for value in values:
            compare_with_the_model(tmp_path, model_type, {name: value})
    for name, values in GENERATION_VALUES.items():
        for value in values:
            compare_with_the_model(tmp_path, model_type, {"converted_from": "llama"}, generation={name: value})


def some_of(values):
    changes = st.one_of(*(st.tuples(st.just(name), st.sampled_from(values[name])) for name in values))
    return st.lists(changes, max_size=4).map(dict)


@property_settings(150, deadline=None)
@given(
    model_type=st.sampled_from(["wedlm", "wedlm", *PLAIN]),
    changes=some_of(VALUES),
    generation=some_of(GENERATION_VALUES),
    is_adapter=st.booleans(),
)
def test_what_is_read_without_transformers_is_what_the_model_says(
    tmp_path_factory, model_type, changes, generation, is_adapter
):
    folder = tmp_path_factory.mktemp("base")
    compare_with_the_model(folder, model_type, changes, (), generation, is_adapter)
