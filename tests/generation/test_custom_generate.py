"""Verified decoding of stock models by `generate(custom_generate=...)`: transformers' text, in fewer forwards."""

import random
from functools import partial
from inspect import signature

import pytest
import torch
from decoded import Recorder
from helpers import CHECKPOINTS, left_padded, load, stock_model
from peft import LoraConfig, get_peft_model
from stock_families import EOS, FITTING, PAD, REFUSED, SHARED, VOCABULARY, stock
from tiny_tokenizer import make_tokenizer
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import wedlm
from wedlm import DraftLoraConfig
from wedlm.generation.custom_generate import resolved
from wedlm.generation.transformers_internals import CACHE
from wedlm.generation.validation import check_support

LOOP = {"input_ids": torch.tensor([[5, 6, 7] * 5]), "max_new_tokens": 24, "do_sample": False, "pad_token_id": PAD}


def counts_on(ids, scores):
    """Makes the token after the last one likelier, so that texts repeat themselves."""
    return scores + 40 * torch.nn.functional.one_hot((ids[:, -1] + 1) % 7 + 3, scores.shape[1])


def random_call(draw: random.Random) -> dict:
    """Prompts that repeat themselves or not, in ragged batches, and settings."""
    prompts = []
    for _ in range(draw.randint(1, 4)):
        length = draw.randint(1, 14)
        unit = draw.choices(range(3, VOCABULARY), k=draw.choice([1, 2, 3, length]))
        prompts.append((unit * length)[:length])
    call = {**left_padded(prompts), "max_new_tokens": draw.randint(1, 24), "pad_token_id": PAD, "do_sample": False}
    if draw.random() < 0.4:
        call |= {"do_sample": True, "top_k": draw.choice([0, 5]), "temperature": draw.choice([0.3, 1.0])}
    if draw.random() < 0.3:
        call |= {"repetition_penalty": 1.2}
    if draw.random() < 0.2:
        call |= {"logits_processor": [counts_on]}
    if draw.random() < 0.2:
        call |= {"stopping_criteria": [lambda ids, scores: ids[:, -1] == 9]}
    if draw.random() < 0.2:
        call |= {"num_return_sequences": 2, "do_sample": True}
    if draw.random() < 0.2:
        call |= {"eos_token_id": [EOS, *range(3, 12)]}
    return call


def equal_texts(model, calls, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(calls):
        call = random_call(draw)
        settings = {"window_size": draw.choice([2, 4, 8]), "query_cost": draw.choice([0, 0.04])}
        torch.manual_seed(number)
        expected = model.generate(**call, return_dict_in_generate=True, output_scores=True)
        state = torch.get_rng_state()
        torch.manual_seed(number)
        got = model.generate(**call, **settings, custom_generate=wedlm.verified, return_dict_in_generate=True)
        assert torch.equal(got.sequences, expected.sequences), call
        assert torch.equal(torch.get_rng_state(), state), call


@pytest.mark.parametrize("name", FITTING)
def test_the_text_is_that_of_generate(name):
    model = stock(name)
    equal_texts(model, 6, seed=len(name))
    repetitive = model.generate(
        **LOOP, custom_generate=wedlm.verified, query_cost=0, return_dict_in_generate=True,
        logits_processor=[counts_on],
    )  # fmt: skip
    assert repetitive.tokens_per_forward.item() > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", FITTING)
def test_the_text_is_that_of_generate_in_many_calls(name):
    equal_texts(stock(name), 60, seed=1)


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "Qwen2, some layers sliding"])
def test_eager_attention_and_no_cache(name):
    model = stock(name)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    equal_texts(model, 4, seed=2)
    expected = model.generate(**LOOP)
    assert torch.equal(model.generate(**LOOP, custom_generate=wedlm.verified, use_cache=False), expected)
    model.set_attn_implementation(before)


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name_before_the_first_forward(name):
    """Streaming is not what helps; token by token, which the sentence names, does."""
    model = stock(name)
    sentence = rf'{type(model).__name__} does not fit verified decoding: its? .* by decoding="autoregressive"\.'
    for decoding in ({}, {"decoding": "streaming"}):
        with pytest.raises(ValueError, match=sentence):
            model.generate(**LOOP, custom_generate=wedlm.verified, **decoding)
    remedy = model.generate(**LOOP, custom_generate=wedlm.verified, decoding="autoregressive")
    assert torch.equal(remedy, model.generate(**LOOP))


@pytest.fixture
def llama():
    """A model that was not checked before, and that no other test gets."""
    stock.cache_clear()
    yield stock("Llama")
    stock.cache_clear()


def test_a_model_that_ignores_its_mask_is_refused(llama, monkeypatch):
    forward = type(llama.model).forward

    def blind(self, *args, attention_mask=None, **kwargs):
        if attention_mask is not None:
            attention_mask = torch.ones_like(attention_mask).tril(attention_mask.shape[-1] - attention_mask.shape[-2])
        return forward(self, *args, attention_mask=attention_mask, **kwargs)

    monkeypatch.setattr(type(llama.model), "forward", blind)
    with pytest.raises(ValueError, match="LlamaForCausalLM does not fit .*: two branches .*autoregressive"):
        llama.generate(**LOOP, custom_generate=wedlm.verified)


def test_memory_that_is_refused_is_no_misfit(llama, monkeypatch):
    def refuse(*args, **kwargs):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(llama.model, "forward", refuse)
    with pytest.raises(torch.OutOfMemoryError):
        llama.generate(**LOOP, custom_generate=wedlm.verified)


def test_every_way_to_ask_for_it():
    model = stock("Gemma2")
    expected = model.generate(**LOOP)
    ways = [
        {"custom_generate": wedlm.verified},
        {"custom_generate": wedlm.verified(window_size=4)},
        {"custom_generate": "wedlm"},
        {"decoding": "verified", "window_size": 4},
        {"decoding": "autoregressive"},
    ]
    forwards = []
    for way in ways:
        output = model.generate(**LOOP, **way, return_dict_in_generate=True)
        assert torch.equal(output.sequences, expected)
        forwards.append(output.forwards)
    assert forwards[0] == forwards[2] < 24 and forwards[1] == forwards[3] and forwards[4] == 24


def test_parameters_come_from_the_call_the_strategy_or_the_generation_config(llama):
    arguments = {**LOOP, "return_dict_in_generate": True, "logits_processor": [counts_on]}

    def forwards(strategy=wedlm.verified, **more):
        return llama.generate(**arguments, custom_generate=strategy, **more).forwards.item()

    llama.generation_config.query_cost = 1e9
    assert forwards() == 24
    assert forwards(wedlm.verified(query_cost=0)) < 24 and forwards(query_cost=0) < 24
    del llama.generation_config.query_cost
    assert forwards(query_cost=0, prompt_lookup_num_tokens=0) == 24
    assert 12 <= forwards(query_cost=0, prompt_lookup_num_tokens=1) < 24
    for name, value in (("prompt_lookup_num_tokens", 1.5), ("max_matching_ngram_size", -1), ("window_size", 0)):
        with pytest.raises(ValueError, match=f"{name}={value}"):
            forwards(wedlm.verified(**{name: 2}), **{name: value})
    assert forwards(wedlm.verified(query_cost=0, window_size=1)) == 24
    assert forwards(wedlm.verified(query_cost=0, window_size=1), window_size=None) < 24, "None is the default"


def test_a_look_up_on_the_generation_config_is_ours():
    model = stock("Llama")
    call = {**LOOP, "do_sample": True, "num_return_sequences": 2}
    torch.manual_seed(0)
    expected = model.generate(**call)
    try:
        model.generation_config.prompt_lookup_num_tokens = 3
        torch.manual_seed(0)
        assert torch.equal(model.generate(**call, custom_generate=wedlm.verified), expected)
    finally:
        model.generation_config.prompt_lookup_num_tokens = None


@pytest.mark.parametrize("name", ["generation_config", "streamer", "input_ids", "do_sample"])
def test_what_generate_takes_is_no_parameter_of_the_strategy(name):
    with pytest.raises(TypeError, match=f"no parameter '{name}'; it has window_size"):
        wedlm.verified(**{name: True})


def test_stop_strings():
    model, tokenizer = stock("Llama"), make_tokenizer()
    arguments = {**LOOP, "stop_strings": [tokenizer.decode(model.generate(**LOOP)[0, 20:22])], "tokenizer": tokenizer}
    expected = model.generate(**arguments)
    assert expected.shape[1] < LOOP["input_ids"].shape[1] + 24
    assert torch.equal(model.generate(**arguments, custom_generate=wedlm.verified), expected)


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_a_cache_goes_in_and_comes_back(name):
    model = stock(name)
    cache = DynamicCache()
    first = model.generate(**LOOP, custom_generate=wedlm.verified, **{CACHE: cache})
    assert 0 < cache.get_seq_length() < first.shape[1]
    longer = torch.cat([first, torch.tensor([[8, 9]])], dim=-1)
    call = {**LOOP, "input_ids": longer, "attention_mask": torch.ones_like(longer)}
    expected = model.generate(**call)
    assert torch.equal(model.generate(**call, custom_generate=wedlm.verified, **{CACHE: cache}), expected)


def test_a_stock_model_and_its_weights_in_a_wedlm_take_the_same_forwards():
    model = load(CHECKPOINTS / "q3")
    call = {**LOOP, "query_cost": 0, "return_dict_in_generate": True}
    expected = model.generate(**call, decoding="verified")
    got = stock_model(model).generate(**call, custom_generate=wedlm.verified)
    assert torch.equal(got.sequences, expected.sequences)
    assert torch.equal(model.generate(**call, custom_generate=wedlm.verified).forwards, expected.forwards)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_beams": 2}, "generation mode='beam_search' is not offered"),
        ({"window_size": 0}, "window_size=0 is not a number of slots"),
        ({"query_cost": -1}, "query_cost=-1 is not a share"),
        ({"decoding": "streaming"}, "fills MASK tokens, which this model was not trained for"),
        ({"cache_implementation": "offloaded"}, "cache_implementation='offloaded' is not offered"),
        ({"assistant_model": "self"}, "assistant_model=LlamaForCausalLM is not offered"),
        ({"output_attentions": True}, "output_attentions=True is not offered"),
    ],
)
def test_refusals_name_the_argument(arguments, message):
    model = stock("Llama")
    if arguments.get("assistant_model") == "self":
        arguments = {"assistant_model": model}
    with pytest.raises(ValueError, match=message):
        model.generate(**LOOP, custom_generate=wedlm.verified, **arguments)


def test_import_wedlm_changes_no_other_call():
    def own(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        return input_ids, sorted(kwargs)

    model = stock("Llama")
    assert hasattr(type(model).generate, "__wrapped__")
    for call in ({"custom_generate": own}, {"num_beams": 2}, {"do_sample": True}):
        outputs = []
        for generate in (model.generate, partial(type(model).generate.__wrapped__, model)):
            torch.manual_seed(0)
            outputs.append(str(generate(**LOOP | call)))
        assert outputs[0] == outputs[1]
    with pytest.raises(ValueError, match="not used by the model: .*decodin"):
        model.generate(**LOOP, decodin="verified")


@pytest.mark.parametrize("images", [{"pixel_values": torch.ones(1)}, {"mm_encoder_outputs": {"a": 1}}], ids=str)
def test_images_are_refused(images):
    model, ((name, value),) = stock("Llama"), images.items()
    with pytest.raises(ValueError, match=f"{name}='{type(value).__name__}' is not offered"):
        check_support(model, resolved(model, model.generation_config, {}), images)


def test_autoregressive_decoding_is_that_of_transformers_whatever_the_mode():
    model = stock("Llama")
    beams = {**LOOP, "num_beams": 3, "num_return_sequences": 2}
    assert torch.equal(model.generate(**beams, decoding="autoregressive", window_size=4), model.generate(**beams))
    for number in (0, 3):
        look_up = {"decoding": "autoregressive", "prompt_lookup_num_tokens": number}
        assert torch.equal(model.generate(**LOOP, **look_up), model.generate(**LOOP))
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": VOCABULARY}
    with_encoder = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=PAD)).eval()
    more = {**LOOP, "return_dict_in_generate": True, "output_hidden_states": True}
    got = with_encoder.generate(**more, decoding="autoregressive")
    assert torch.equal(got.sequences, with_encoder.generate(**more).sequences) and got.encoder_hidden_states


def test_rotary_embeddings_that_stretch_are_refused_where_they_do():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = LlamaConfig(**SHARED, rope_parameters={**rope, "original_max_position_embeddings": 64})
    model = LlamaForCausalLM(config).eval()
    with pytest.raises(ValueError, match="rope_type='longrope' is not offered by .*; ask for fewer tokens"):
        model.generate(**{**LOOP, "max_new_tokens": 60}, custom_generate=wedlm.verified)
    assert torch.equal(model.generate(**LOOP, custom_generate=wedlm.verified), model.generate(**LOOP))


def test_zeros_between_tokens_are_refused_where_layers_slide():
    mask = torch.ones_like(LOOP["input_ids"])
    mask[0, 4] = 0
    with pytest.raises(ValueError, match="attention_mask has zeros between the tokens of a row"):
        stock("Mistral, sliding").generate(**LOOP, attention_mask=mask, custom_generate=wedlm.verified)
    expected = stock("Llama").generate(**LOOP, attention_mask=mask)
    assert torch.equal(stock("Llama").generate(**LOOP, attention_mask=mask, custom_generate=wedlm.verified), expected)


@pytest.mark.parametrize("name", ["GPT2", "OPT"])
def test_a_text_may_fill_all_learned_positions(name):
    model = stock(name)
    longest = model.config.max_position_embeddings
    inputs = left_padded([[5, 6, 7] * 70, [8, 9] * 20])
    call = {**inputs, "max_new_tokens": longest - 210, "pad_token_id": PAD, "eos_token_id": 59}
    arguments = {"custom_generate": wedlm.verified, "query_cost": 0, "window_size": 16}
    assert torch.equal(model.generate(**call, **arguments), model.generate(**call))


def test_an_adapter_and_a_processor_that_reads_the_text(llama):
    model = get_peft_model(llama, DraftLoraConfig(r=2)).eval()
    call = {**LOOP, "repetition_penalty": 1.2}
    got = model.generate(**call, custom_generate=wedlm.verified, query_cost=0, return_dict_in_generate=True)
    with model.disable_adapter():
        assert torch.equal(got.sequences, model.generate(**call))


def test_every_row_has_an_adapter_of_its_own(llama):
    adapter = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(llama, adapter, adapter_name="one").eval()
    model.add_adapter("other", adapter)
    call = {**left_padded([[5, 6, 7] * 5, [9, 8, 7] * 5, [3, 4, 5] * 5]), "max_new_tokens": 20, "pad_token_id": PAD}
    call["adapter_names"] = ["one", "other", "__base__"]
    got = model.generate(**call, custom_generate=wedlm.verified, query_cost=0, return_dict_in_generate=True)
    assert torch.equal(got.sequences, model.generate(**call)) and min(got.forwards) < 20


def test_a_streamer_ends_with_every_error():
    for arguments in ({"num_beams": 2}, {"no_such_argument": 1}, {"token_healing": True}):
        recorder = Recorder()
        with pytest.raises(ValueError):
            stock("Llama").generate(**LOOP, custom_generate=wedlm.verified, streamer=recorder, **arguments)
        assert recorder.calls[-1:] == [("end", None)]


def test_a_streamer_by_its_place_gets_the_text():
    model, recorder = stock("Llama"), Recorder()
    arguments = {name: value for name, value in LOOP.items() if name != "input_ids"}
    none = [None] * 6
    got = model.generate(LOOP["input_ids"], *none, recorder, None, None, wedlm.verified, **arguments)
    prompt, *new = recorder.of("put")
    assert prompt[0] + sum(new, []) == got[0].tolist() and recorder.calls[-1] == ("end", None)


def test_the_check_leaves_every_module_in_its_mode(llama):
    llama.train().model.layers[0].eval()
    llama.generate(**LOOP, custom_generate=wedlm.verified)
    assert llama.training and not llama.model.layers[0].training and llama.model.layers[1].training


def test_a_model_that_takes_logits_to_keep_for_a_number_is_refused(llama, monkeypatch):
    forward = type(llama).forward

    def last_ones(self, *args, logits_to_keep=0, **kwargs):
        return forward(self, *args, logits_to_keep=max(1, int(torch.as_tensor(logits_to_keep).sum())), **kwargs)

    last_ones.__signature__ = signature(forward)
    monkeypatch.setattr(type(llama), "forward", last_ones)
    with pytest.raises(ValueError, match="LlamaForCausalLM does not fit verified decoding"):
        llama.generate(**LOOP, custom_generate=wedlm.verified)


def test_sharded_ranks_wait_for_each_other(monkeypatch):
    model, seen = stock("Llama"), []

    def is_unfinished(self, is_done, synced_gpus, device):
        seen.append(synced_gpus)

    monkeypatch.setattr(type(model), "_has_unfinished_sequences", is_unfinished)
    monkeypatch.setattr("wedlm.generation.custom_generate.waits_for_other_ranks", lambda model: True)
    model.generate(**LOOP, custom_generate=wedlm.verified)
    model.generate(**LOOP, custom_generate=wedlm.verified, synced_gpus=False)
    assert seen == [True, False]
