"""Every refusal names the argument, the value and the remedy."""

import math
import re
from copy import copy

import pytest
import torch
from decoded import MODELS
from draft_models import drafted, tiny_model, with_adapter
from helpers import CHECKPOINTS, PAD, random_tokens
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import AutoConfig, BatchEncoding, DynamicCache, StaticCache
from transformers.utils import logging

from wedlm import WeDLMForCausalLM
from wedlm.generation.parameters import READS
from wedlm.generation.transformers_internals import CACHE


def offloading_cache() -> DynamicCache:
    try:
        return DynamicCache(offloading=True)
    except RuntimeError:  # It makes a stream, which a build of torch for CUDA can only do on a GPU.
        cache = DynamicCache()
        cache.offloading = True
        return cache


REFUSED = [
    (
        {"decoding": "diffusion"},
        "decoding='diffusion' is unknown; choose one of 'streaming', 'blockwise', 'verified', ",
    ),
    ({"window_size": 0}, "window_size=0 is not a number of slots; set it to an integer of 1 or more, or to None"),
    ({"window_size": True}, "window_size=True is not a number of slots"),
    ({"query_cost": -0.1}, "query_cost=-0.1 is not a share of a forward; .* or to None"),
    ({"query_cost": "much"}, "query_cost='much' is not a share of a forward; set it to a number from 0"),
    ({"entropy_threshold": math.nan}, "entropy_threshold=nan is not an entropy; .* or to None"),
    ({"distance_penalty": 10**400}, "is not a penalty; set it to a number from 0 to 1e30"),
    ({"distance_penalty": None}, "distance_penalty=None is not a penalty"),
    ({"acceptance_ratio": 0}, "acceptance_ratio=0 is not a share; set it to a number above 0 and at most 1"),
    ({"acceptance_ratio": 1.01}, "acceptance_ratio=1.01 is not a share"),
    ({"acceptance_ratio": True}, "acceptance_ratio=True is not a share"),
    (
        {"acceptance_ratio": 0.5, "decoding": "verified", "do_sample": True},
        "acceptance_ratio=0.5 accepts drafts without drawing, .*; set acceptance_ratio to 1.0, or do_sample to False",
    ),
    ({"window_sise": 4}, "not used by the model: .*window_sise"),
    (
        {"prompt_lookup_num_tokens": -1, "decoding": "verified"},
        "prompt_lookup_num_tokens=-1 is not a number of drafts; set it to 0 for none",
    ),
    ({"prompt_lookup_num_tokens": "x", "decoding": "autoregressive"}, "prompt_lookup_num_tokens='x' is not a number"),
    (
        {"max_matching_ngram_size": 0, "decoding": "verified"},
        "max_matching_ngram_size=0 is not a number of tokens; set it to an integer of 1 or more",
    ),
    ({"max_matching_ngram_size": "x", "decoding": "autoregressive"}, "max_matching_ngram_size='x' is not a number"),
    ({CACHE: StaticCache(MODELS["q3"].config, 8)}, f"{CACHE}=StaticCache is not offered .* a plain D"),
    ({CACHE: offloading_cache()}, rf"{CACHE}=DynamicCache\(offloading=True\) is not offer"),
    ({CACHE: ()}, f"{CACHE}=tuple is not offered"),
    ({"use_cache": False, CACHE: DynamicCache()}, f"{CACHE} is a cache and use_cache=False wants"),
    ({"use_cache": False, "prefill_chunk_size": 4}, "prefill_chunk_size=4 needs a cache, and use_cache=False has n"),
    ({"prefill_chunk_size": 0}, "prefill_chunk_size=0 is not a number of tokens; set it to an integer of 1 or more"),
    (
        {"cache_implementation": "offloaded"},
        r"cache_implementation='offloaded' is not offered .* \(or reset it in model.generation_config\)",
    ),
]


@pytest.fixture
def said(caplog):
    """The warnings of a process whose earlier calls do not count."""
    logging.warning_once.cache_clear()
    return lambda: [record.getMessage() for record in caplog.records if "decoding=" in record.getMessage()]


def test_parameters_that_the_decoding_does_not_read_are_named_once(said):
    model, ids = MODELS["q3"], random_tokens(1, 6)

    def by_config(**fields):
        own = copy(model.generation_config)
        own.update(max_new_tokens=2, **fields)
        model.generate(ids, generation_config=own)

    model.generate(ids, max_new_tokens=2)
    wish = {"window_size": 3, "entropy_threshold": None, "distance_penalty": 0.1}
    wish |= {"acceptance_ratio": 0.5, "query_cost": 0.1}
    for decoding, reads in READS.items():
        read = {name: wish[name] for name in reads}
        model.generate(ids, decoding=decoding, max_new_tokens=2, window_size=None, acceptance_ratio=1.0)
        model.generate(ids, decoding=decoding, max_new_tokens=2, **read)
        by_config(decoding=decoding, **read)
    assert said() == []
    for _ in range(2):
        model.generate(ids, decoding="verified", entropy_threshold=None, max_new_tokens=2)
        by_config(decoding="autoregressive", window_size=3)
    assert said() == [
        "decoding='verified' does not read entropy_threshold (it reads window_size, query_cost, acceptance_ratio); "
        "leave it out, or choose another decoding.",
        "decoding='autoregressive' does not read window_size (it reads no parameters); leave it out, or choose "
        "another decoding.",
    ]


def test_a_function_replaces_the_decoding_and_its_parameters(said):
    def own(model, input_ids, *call, **kwargs):
        return input_ids

    ids = random_tokens(1, 6)
    assert torch.equal(MODELS["q3"].generate(ids, custom_generate=own, window_size=4, query_cost=0.1), ids)
    assert said() == []


def test_a_converted_model_that_was_not_trained_says_that_it_writes_nonsense(said, monkeypatch):
    model, ids = MODELS["q3"], random_tokens(1, 6)
    monkeypatch.setattr(model.config, "converted_from", "qwen3")
    for decoding in ("verified", "autoregressive"):
        model.generate(ids, decoding=decoding, max_new_tokens=2)
    with monkeypatch.context() as trained:
        trained.setattr(model.config, "mask_trained", True)
        model.generate(ids, decoding="streaming", max_new_tokens=2)
    assert said() == []
    for decoding in ("streaming", "streaming", "blockwise"):
        model.generate(ids, decoding=decoding, max_new_tokens=2)
    streaming, blockwise = said()
    assert streaming.startswith("decoding='streaming' writes nonsense with a model that was converted from 'qwen3'")
    assert blockwise.startswith("decoding='blockwise' writes nonsense")


def test_a_converted_model_with_a_draft_adapter_does_not_fill_masks(said):
    """Its drafts are guesses; only a training of the model, or an adapter of such a training, makes them more."""
    ids, made = random_tokens(1, 6), {"converted_from": "qwen3"}
    by_peft = with_adapter(tiny_model(**made))
    of_a_training = get_peft_model(tiny_model(**made), LoraConfig(r=2, target_modules=["q_proj"]))
    for decoding in ("streaming", "blockwise"):
        sentence = f'decoding={decoding!r} fills MASK tokens, which .*; pass decoding="verified", or train it by '
        for model in (drafted(**made), by_peft, by_peft.get_base_model()):
            with pytest.raises(ValueError, match=sentence):
                model.generate(input_ids=ids, decoding=decoding, max_new_tokens=2)
            if model is not by_peft:
                with pytest.raises(ValueError, match=sentence):
                    model.generate_batch([ids[0].tolist()], decoding=decoding)
            model.generate(input_ids=ids, decoding="verified", max_new_tokens=2)
        for model in (drafted(), drafted(**made, mask_trained=True), of_a_training):
            model.generate(input_ids=ids, decoding=decoding, max_new_tokens=2)
    assert said() == []


@pytest.mark.parametrize("arguments, message", REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_not_offered_is_refused_by_name(arguments, message):
    model = MODELS["q3"]
    before = (model.generation_config.to_dict(), model.config.to_dict())
    prompt = random_tokens(1, 6)
    with pytest.raises(ValueError, match=message):
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, **arguments)
    assert (model.generation_config.to_dict(), model.config.to_dict()) == before
    assert torch.equal(prompt, random_tokens(1, 6))


LONG_ROPE = {"long_factor": [1.0] * 8, "short_factor": [1.0] * 8, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}}, "rope_type='dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e6, **LONG_ROPE}}, "rope_type='longrope'"),
        (
            {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention"] * 3},
            "layer_types=.*sliding_attention.*",
        ),
    ],
    ids=["dynamic", "longrope", "sliding"],
)
def test_layers_that_look_at_the_batch_or_slide_are_refused_by_name(fields, message):
    config = AutoConfig.from_pretrained(CHECKPOINTS / "q3", **fields)
    with pytest.raises(ValueError, match=f"{message} is not offered .*; use the stock model that"):
        WeDLMForCausalLM(config).generate(random_tokens(1, 6), max_new_tokens=4)


def test_gradient_checkpointing_in_training_is_refused_where_it_drops_the_cache(model):
    model.gradient_checkpointing_enable()
    prompt = random_tokens(1, 6)
    text = model.generate(prompt, max_new_tokens=4)
    model.train()
    if CACHE == "past_key_values":  # before transformers 5.24
        with pytest.raises(ValueError, match=r"with gradient checkpointing, .* call model\.eval\(\) first"):
            model.generate(prompt, max_new_tokens=4)
    else:
        assert torch.equal(model.generate(prompt, max_new_tokens=4), text)
    assert torch.equal(model.generate(prompt, max_new_tokens=4, use_cache=False), text)
    assert torch.equal(model.eval().generate(prompt, max_new_tokens=4), text)


@pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig])
def test_prompt_learning_is_refused_by_name(model, kind):
    adapted = get_peft_model(model, kind(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    arguments = {"input_ids": random_tokens(1, 6), "max_new_tokens": 4, "eos_token_id": None, "pad_token_id": PAD}
    with pytest.raises(ValueError, match="PeftModelForCausalLM prepares the inputs of each forward, as prompt"):
        adapted.generate(**arguments)
    assert adapted.generate(**arguments, decoding="autoregressive").shape == (1, 10)
    assert model.generate(**arguments).shape == (1, 10), "the model itself decodes as before"


@pytest.mark.parametrize("decoding", ["streaming", "autoregressive"])
@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (BatchEncoding({"input_ids": torch.tensor([[5]])}), "inputs is a BatchEncoding; unpack it: model.generate("),
        (["Why?", "How?"], "inputs is text (list), and generate() takes token ids; tokenize it"),
        ([5, 6, 7], "inputs is a list; pass a tensor of token ids, such as torch.tensor([ids])."),
        (torch.tensor([[5.0, 6.0]]), "input_ids has dtype torch.float32; pass token ids as integers"),
        (torch.tensor([5, 6]), "input_ids has shape (2,), and generate() takes (batch, columns); pass"),
        (torch.tensor([[5, 160]]), "input_ids holds 160, and this model has tokens 0 to 159; tokenize with"),
        (torch.tensor([[5, -1]]), "input_ids holds -1, and this model has tokens 0 to 159"),
    ],
    ids=str,
)
def test_inputs_of_another_form_are_refused(inputs, sentence, decoding):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        MODELS["q3"].generate(inputs, decoding=decoding, max_new_tokens=2, pad_token_id=0)
