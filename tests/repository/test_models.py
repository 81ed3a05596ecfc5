"""docs/models.md: its tables are those of the lists, and what they say of a family is what its small model does."""

from copy import deepcopy

import make_models
import pytest
import torch
from draft_models import tiny_model, with_adapter
from gguf_files import write_gguf
from helpers import REPOSITORY, left_padded
from make_models import ADAPTER, BATCH, BLOCKS, FUSE, GGUF, ROWS, STATIC, VLLM, WORKS, name_of
from recorded_graph import captures_on_cpu
from stock_families import EOS, FITTING, PAD, REFUSED, stock
from torch import nn
from transformers import DynamicCache, PreTrainedModel

import wedlm
from wedlm import load_gguf
from wedlm.checkpoints.architectures import STOCK, check_architecture
from wedlm.checkpoints.errors import CheckpointError
from wedlm.fused.gguf_file import ARCHITECTURES, GgufFile
from wedlm.fused.model import product_of
from wedlm.generation.static_steps import KEPT
from wedlm.generation.transformers_internals import CACHE
from wedlm.training.draft_lora import LAYERS

OWN = {"WeDLM": tiny_model, "I-DLM": lambda: tiny_model(mask_shift=True)}
PROMPTS = [[5, 6, 7] * 5, [9, 8, 9, 8], [11] * 8]
CALL = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": PAD, "suppress_tokens": [EOS]}
VERIFIED = CALL | {"custom_generate": wedlm.verified, "window_size": 4, "query_cost": 0}


def test_the_page_has_the_tables():
    page = make_models.PAGE.read_text(encoding="utf-8")
    assert make_models.with_tables(page) == page, "run python tests/make_models.py"


def test_every_family_of_the_tests_has_a_row():
    shown = {name_of(family) for row in ROWS for family in row.families}
    assert shown == {name_of(family) for family in (*FITTING, *REFUSED, *OWN)}
    assert {name.lower().removesuffix("text") for name in WORKS[GGUF]} == {*ARCHITECTURES, "mistral"}


def test_what_was_run_with_real_weights_is_there():
    for place in {place for row in ROWS for place in row.real.values()}:
        file, _, name = place.partition("::")
        assert (
            f"def {name}" in (REPOSITORY / file).read_text(encoding="utf-8") if name else (REPOSITORY / file).exists()
        )


@pytest.mark.few(4)
@pytest.mark.parametrize("family", [*FITTING, *OWN])
def test_a_family_does_what_the_page_says(family):
    model = OWN[family]() if family in OWN else stock(family)
    inputs = left_padded(PROMPTS)
    expected = model.generate(**inputs, **CALL, decoding="autoregressive")
    assert torch.equal(model.generate(**inputs, **VERIFIED), expected)
    assert is_captured(model, inputs, expected) and family in WORKS[STATIC]
    outputs = model.generate_batch(PROMPTS, **CALL, decoding="verified").values()
    new_tokens = expected[:, len(PROMPTS[0]) :].tolist()
    assert [output.generated_tokens for output in outputs] == new_tokens and family in WORKS[BATCH]
    assert takes_adapter(family, model, inputs, expected) == (family in WORKS[ADAPTER])
    assert (product_of(wedlm.fuse(deepcopy(model))) is not None) == (family in WORKS[FUSE])
    if family not in OWN:
        assert is_converted(model) == (family in WORKS[VLLM])


def is_captured(model: PreTrainedModel, inputs: dict, expected: torch.Tensor) -> bool:
    """Whether every step becomes a graph, and writes the text."""
    with captures_on_cpu():
        for _ in range(2):  # the second call has the graphs of the first
            assert torch.equal(model.generate(**inputs, **VERIFIED, cache_implementation="static"), expected)
    graphs = KEPT[model].graphs
    wedlm.free_static_memory(model)
    return 0 < len(graphs) == len(graphs.of_shape)


def takes_adapter(family: str, model: PreTrainedModel, inputs: dict, expected: torch.Tensor) -> bool:
    """Whether it has linear layers for a draft adapter, which leaves the text as it is."""
    layers = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not layers & set(LAYERS):
        return False
    adapted = with_adapter(deepcopy(model), mask_shift=family == "I-DLM")
    output = adapted.generate(**inputs, **VERIFIED, prompt_lookup_num_tokens=0, return_dict_in_generate=True)
    assert torch.equal(output.sequences, expected)
    return output.verified_drafts.sum() > 0


def is_converted(model: PreTrainedModel) -> bool:
    fields = model.config.to_dict() | {"architectures": [type(model).__name__]}
    try:
        check_architecture(fields, "it", tuple(STOCK))
    except CheckpointError:
        return False
    return True


@pytest.mark.parametrize("family", REFUSED)
def test_what_the_page_does_not_offer_of_a_family_is_refused(family):
    assert all(family not in families for families in WORKS.values())
    model, inputs = stock(family), left_padded(PROMPTS)
    with pytest.raises(ValueError, match="does not fit verified decoding"):
        model.generate(**inputs, **VERIFIED, cache_implementation="static")
    with pytest.raises(ValueError, match="does not fit verified decoding"):
        model.generate_batch(PROMPTS, **CALL, decoding="verified")
    assert product_of(wedlm.fuse(deepcopy(model))) is None and not is_converted(model)


# --- Memory ---


def test_memory_is_that_of_a_model_and_its_cache():
    model, cache = stock("Mistral"), DynamicCache()
    model(torch.arange(10)[None], **{CACHE: cache})
    for dtype in (torch.float32, torch.bfloat16):
        weights = sum(weight.nbytes for weight in deepcopy(model).to(dtype).parameters())
        assert make_models.bytes_of_weights(model.config, dtype) == weights
    states = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert make_models.bytes_of_cache(model.config, torch.float32, 10) == states


@pytest.mark.parametrize("block", BLOCKS.values())
def test_memory_in_blocks_is_that_of_a_file(block, tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", "llama", block)
    sizes = [info.num_bytes for info in GgufFile(file).tensors.values()]
    assert make_models.bytes_in_blocks(load_gguf(file)[0].config, block) == sum(sizes)
