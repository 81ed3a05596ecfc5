"""The memory of static steps stays for the next call, and for no other model."""

import gc
import weakref

import pytest
import torch
from decoded import STATIC, run
from helpers import CHECKPOINTS, PROMPTS, load

from wedlm.generation.decoding_run import DecodingRun
from wedlm.generation.static_memory import KEPT


@pytest.fixture
def model():
    """A model of its own, for which no call has left anything."""
    return load(CHECKPOINTS / "q3")


def test_buffers_stay_for_the_next_call(model):
    addresses = []
    for prompts, more in ((PROMPTS, {}), (PROMPTS[::-1], {"max_new_tokens": 11}), (PROMPTS, {"do_sample": True})):
        run(model, prompts, **more, **STATIC)
        buffers = [getattr(KEPT[model].window, name) for name in ("tokens", "filled", "start", "alive")]
        buffers += [KEPT[model].cache.lengths, *(layer.keys for layer in KEPT[model].cache.layers)]
        addresses.append([buffer.data_ptr() for buffer in buffers])
    assert addresses[0] == addresses[1] == addresses[2]
    first = KEPT[model]
    run(model, PROMPTS[:2], **STATIC)
    assert KEPT[model] is not first, "another batch size"
    second = KEPT[model]
    run(model, PROMPTS[:2], max_new_tokens=100, **STATIC)
    assert KEPT[model] is not second, "more slots than there are columns"
    third = KEPT[model]
    run(model, PROMPTS[:2], decoding="verified", **STATIC)
    assert KEPT[model] is not third, "another kind of window"


def test_a_call_that_fails_leaves_nothing(model):
    """Its cache may hold what is not finite, which would reach other calls by way of masked entries."""
    run(model, **STATIC)
    assert model in KEPT
    with torch.no_grad():
        model.lm_head.weight[:, 0] = float("nan")
    with pytest.raises(ValueError, match="holds values that are not finite"):
        run(model, **STATIC)
    assert model not in KEPT


def test_no_other_call_gets_the_buffers_before_they_are_read(model, monkeypatch):
    read = DecodingRun.cached_columns
    monkeypatch.setattr(DecodingRun, "cached_columns", lambda self: (seen.append(model in KEPT), read(self))[1])
    seen = []
    run(model, **STATIC)
    assert seen == [False] and model in KEPT


@pytest.mark.full
def test_nothing_keeps_a_model_alive():
    model = load(CHECKPOINTS / "q3")
    run(model, **STATIC)
    assert model in KEPT
    held = weakref.ref(model)
    del model
    gc.collect()
    assert held() is None


def test_it_can_be_freed(model):
    run(model, **STATIC)
    assert model in KEPT
    model.free_static_memory()
    assert model not in KEPT
    model.free_static_memory()  # where there is none, nothing happens
    first = run(model)
    assert torch.equal(run(model, **STATIC).sequences, first.sequences)
