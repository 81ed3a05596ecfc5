"""All layers in one call compute what they compute one after another, and leave the cache as transformers does."""

import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy

import pytest
import torch
from draft_models import drafted
from fused_models import MODELS, WITH_MASKS, assert_close, cached, logits, stock
from helpers import CHECKPOINTS, EOS, MASK, PAD, PROMPTS, left_padded, load, random_tokens, run_python
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import wedlm
from wedlm.fused import native, product
from wedlm.fused.memory import STEP
from wedlm.fused.native import SET
from wedlm.fused.product import linear_of_many
from wedlm.generation.transformers_internals import CACHE

pytestmark = pytest.mark.skipif(SET is None, reason="torch multiplies")
TEXT = random_tokens(1, STEP + 60)
PARTS = (12, 1, 1, 5, 1, 3)
some_models = pytest.mark.parametrize("name", ["drafted", "PEFT", "stock qwen3"])


@pytest.fixture
def calls(monkeypatch):
    """The number of layers of each call of C."""
    numbers, forward = [], native.forward

    def counted(given):
        numbers.append(given.num_layers)
        forward(given)

    monkeypatch.setattr(native, "forward", counted)
    return numbers


def one_by_one(model):
    """The model with a hook that does nothing, which keeps its layers from being one call."""
    model.get_decoder().layers[-1].register_forward_hook(lambda module, args, output: None)
    return model


def in_parts(model, sizes=PARTS, cache=None):
    """The logits of a text of which a cache takes one part after another."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    found, start = [], cache.get_seq_length()
    for size in sizes:
        found.append(logits(model, TEXT[:, start : start + size], **{CACHE: cache}))
        start += size
    return torch.cat(found, dim=1), cache


def everything(model):
    return [in_parts(model)[0], logits(model, WITH_MASKS), cached(model, DynamicCache(config=model.config))]


# --- The same bits ---


@pytest.mark.parametrize("name", [name for name in MODELS if "sliding" not in name and "mistral" not in name])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_call_has_the_bits_of_one_layer_after_another(name, dtype, calls):
    model = wedlm.fuse(MODELS[name]().to(dtype))
    wanted = everything(model)
    assert calls == [2] * (len(PARTS) + 1 + 3)
    one_by_one(model)
    calls.clear()
    assert all(map(torch.equal, everything(model), wanted)) and set(calls) == {1}


@pytest.mark.parametrize("settings", [{"decoding": "verified"}, {"decoding": "streaming", "do_sample": True}], ids=str)
def test_steps_of_parallel_decoding_are_one_call_each(settings, calls):
    model, texts = wedlm.fuse(load(CHECKPOINTS / "q3")), []
    for each in (lambda: model, lambda: one_by_one(model)):
        torch.manual_seed(0)
        calls.clear()
        output = each().generate(
            torch.tensor([PROMPTS[0], PROMPTS[0][::-1]]), max_new_tokens=30, return_dict_in_generate=True, **settings
        )
        texts.append((output.sequences.tolist(), calls.count(len(model.model.layers))))
    (one, number), (other, none) = texts
    assert one == other and none == 0 and number == int(output.forwards.max())


@some_models
def test_hooks_and_hidden_states_are_those_of_the_layers(name, calls):
    plain, fused, seen = MODELS[name](), wedlm.fuse(MODELS[name]()), []
    with torch.no_grad():
        wanted = plain(WITH_MASKS, output_hidden_states=True, use_cache=False).hidden_states
        got = fused(WITH_MASKS, output_hidden_states=True, use_cache=False).hidden_states
    assert len(got) == 3 and set(calls) == {1}
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, other)
    calls.clear()
    logits(fused)
    assert calls == [2], "it is one call again"
    handle = fused.get_decoder().layers[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    logits(fused, use_cache=False)
    handle.remove()
    assert len(seen) == 1 and torch.equal(seen[0], got[0])


def test_a_layer_by_itself_is_that_layer():
    plain, fused = stock("llama"), wedlm.fuse(stock("llama"))
    hidden = torch.randn(1, 5, 32)
    angles = plain.model.rotary_emb(hidden, torch.arange(5)[None])
    with torch.no_grad():
        for index in (0, 1):
            wanted, got = (model.model.layers[index](hidden, position_embeddings=angles) for model in (plain, fused))
            assert_close(got, wanted)
        for model in (plain, fused):
            model.config.num_hidden_layers = 1  # as early exit sets it
        assert_close(logits(fused, use_cache=False), logits(plain, use_cache=False))
    assert len(fused.model.layers[:1]) == 1


@pytest.mark.parametrize(("rows", "size"), [(2, 9), (8, 9), (2, 70)])  # few rows, many, and many of one text
@pytest.mark.parametrize("kind", [
    "a mask for each head", "seen", "seen by some heads", "seen by others", "shared by the batch", "added",
    "added by others", "added to fewer entries", "another dtype",
])  # fmt: skip
def test_masks_of_any_form_mean_what_they_mean_to_the_model(kind, rows, size):
    seen = torch.rand(rows, 1, size, size, generator=torch.Generator().manual_seed(0)) < 0.7
    seen |= torch.eye(size, dtype=torch.bool)
    added = torch.zeros(rows, 1, size, size).masked_fill(~seen, torch.finfo(torch.float32).min)
    by_heads = seen.repeat(1, 4, 1, 1)
    by_heads[:, 0, :3] = False
    masks = {
        "a mask for each head": added.repeat(1, 4, 1, 1) * torch.rand(1, 4, 1, 1),
        "seen": seen,
        "seen by some heads": by_heads,
        "seen by others": seen.tril(-1),  # the first query sees nothing, and those behind it see it
        "shared by the batch": seen[:1].tril(-1),
        "added": added,
        "added by others": torch.zeros(rows, 1, size, size).masked_fill(~seen.tril(-1), torch.finfo().min),
        "added to fewer entries": added[..., :1].expand(-1, -1, -1, size),
        "another dtype": added.double(),
    }
    plain, fused = stock("llama"), wedlm.fuse(stock("llama"))
    inputs = {"ids": random_tokens(rows, size), "attention_mask": masks[kind], "use_cache": False}
    if kind == "another dtype":
        with pytest.raises(RuntimeError):
            logits(plain, **inputs)
        with pytest.raises(RuntimeError):
            logits(fused, **inputs)
    else:
        assert_close(logits(fused, **inputs), logits(plain, **inputs))


@pytest.mark.parametrize("inputs", [{}, {"is_causal": False}], ids=str)
@pytest.mark.parametrize("size", [9, 70])
def test_a_prompt_is_in_c_where_it_is_causal(size, inputs, calls):
    sizes = {"hidden_size": 64, "intermediate_size": 64}  # of which C takes the norms and the gate, too
    plain, fused, ids = stock("llama", **sizes), wedlm.fuse(stock("llama", **sizes)), random_tokens(1, size)
    got = logits(fused, ids, use_cache=False, **inputs)
    if not inputs:
        assert calls == ([2] if size == 9 else [1, 1])
    assert_close(got, logits(plain, ids, use_cache=False, **inputs))


def test_heads_that_are_too_wide_for_c_are_left_to_torch(calls):
    plain, fused = stock("llama", head_dim=258), wedlm.fuse(stock("llama", head_dim=258))
    assert_close(in_parts(fused)[0], in_parts(plain)[0])
    assert not calls


@pytest.mark.parametrize("rows", [8, 32])
@pytest.mark.parametrize("settings", [{}, {"custom_generate": wedlm.verified}], ids=["token by token", "verified"])
def test_rows_of_a_batch_that_end_early_are_those_of_the_model(rows, settings, calls):
    inputs = left_padded([TEXT[0, start : start + 3 + start % 7].tolist() for start in range(rows)])
    texts, ends = [], [EOS, *range(20, 40)]
    for model in (stock("llama"), wedlm.fuse(stock("llama"))):
        options = {"max_new_tokens": 24, "eos_token_id": ends, "pad_token_id": PAD, "do_sample": False}
        texts.append(model.generate(**inputs, **options, **settings)[:, inputs["input_ids"].shape[1] :].tolist())
    lengths = {sum(token != PAD for token in text) for text in texts[0]}
    assert texts[0] == texts[1] and len(lengths) > 3 and 2 in calls


# --- Padding ---

LENGTHS = (30, 3, 52)
LONG = [random_tokens(1, length, seed=length)[0].tolist() for length in LENGTHS]


@pytest.fixture
def rows_of_products(monkeypatch):
    """The numbers of rows that torch has multiplied."""
    numbers = []

    def counted(x, *args):
        numbers.append(x.numel() // x.shape[-1])
        return linear_of_many(x, *args)

    monkeypatch.setattr(product, "linear_of_many", counted)
    return numbers


@pytest.mark.parametrize("name", ["qwen3 tied", "drafted", "PEFT", "stock llama with biases", "stock qwen3"])
def test_padding_of_prompts_is_not_computed(name, rows_of_products):
    """The text has the logits and states that it has in the model, and so has what follows it."""
    inputs, more = left_padded([prompt[:-1] + [MASK] for prompt in LONG]), random_tokens(3, 2)
    text, found = inputs["attention_mask"].bool(), []
    for model in (MODELS[name](), wedlm.fuse(MODELS[name]())):
        cache = DynamicCache()
        prompts = logits(model, **{CACHE: cache}, ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        kept = [layer.values.transpose(1, 2)[text] for layer in cache.layers]
        mask = torch.cat([inputs["attention_mask"], torch.ones_like(more)], dim=1)
        found.append([prompts[text], *kept, logits(model, more, attention_mask=mask, **{CACHE: cache})])
    *of_layers, of_head = rows_of_products
    assert len(of_layers) >= 4 * 2 and set(of_layers) == {sum(LENGTHS)} and of_head == 3 * max(LENGTHS)
    for one, other in zip(*found, strict=True):
        assert_close(other, one)


@pytest.mark.parametrize("name", ["drafted", "stock qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_decoding_verified_does_not_compute_padding_and_writes_the_same(name, dtype, rows_of_products):
    model, texts = wedlm.fuse(MODELS[name]().to(dtype)), []
    for settings in ({}, {"custom_generate": wedlm.verified}):
        rows_of_products.clear()
        options = {"max_new_tokens": 24, "eos_token_id": None, "pad_token_id": PAD, "do_sample": False}
        options |= {"decoding": "autoregressive"} if name == "drafted" and not settings else {}
        texts.append(model.generate(**left_padded(LONG), **options, **settings).tolist())
        assert len(rows_of_products) == 4 * 2 and set(rows_of_products) == {sum(LENGTHS)}
    assert texts[0] == texts[1]


@pytest.mark.parametrize("settings", [{"decoding": "verified"}, {"decoding": "streaming"}], ids=str)
def test_prompts_in_chunks_and_steps_of_many_queries_leave_out_what_nothing_reads(settings, rows_of_products):
    """Rows begin in either chunk of 40 columns, and steps of 12 rows have more than 64 queries."""
    prompts = [random_tokens(1, 5 + 6 * row, seed=row)[0].tolist() for row in range(12)]
    options = {"max_new_tokens": 24, "prefill_chunk_size": 40, "eos_token_id": None, "pad_token_id": PAD, **settings}
    options |= {"query_cost": 0, "window_size": 8} if settings["decoding"] == "verified" else {}
    wanted = load(CHECKPOINTS / "q3").generate(**left_padded(prompts), **options).tolist()
    assert wedlm.fuse(load(CHECKPOINTS / "q3")).generate(**left_padded(prompts), **options).tolist() == wanted
    num_products, of_window = 4 * 3, 0 if settings["decoding"] == "verified" else 12 * 8
    assert rows_of_products[0] + rows_of_products[num_products] == sum(map(len, prompts)) + of_window
    assert len(set(rows_of_products)) > 9, "no two steps of twelve rows need as many"


def test_a_running_batch_leaves_out_what_nothing_reads(rows_of_products):
    prompts = [random_tokens(1, 5 + 29 * row, seed=row)[0].tolist() for row in range(12)]  # some of several chunks
    options = {"decoding": "verified", "query_cost": 0, "max_new_tokens": 24, "eos_token_id": EOS}
    models = load(CHECKPOINTS / "q3"), wedlm.fuse(load(CHECKPOINTS / "q3"))
    wanted, got = (
        [output.generated_tokens for output in model.generate_batch(prompts, **options).values()] for model in models
    )
    assert got == wanted and rows_of_products


def test_hidden_states_of_padding_are_left_to_the_layers(rows_of_products):
    fused, inputs = wedlm.fuse(stock("llama")), left_padded(LONG)
    with torch.no_grad():
        wanted = stock("llama")(**inputs, output_hidden_states=True).hidden_states
        got = fused(**inputs, output_hidden_states=True).hidden_states
    assert set(rows_of_products) == {len(LONG) * max(LENGTHS)}
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, other)


# --- The cache ---


def states(cache):
    return [states for layer in cache.layers for states in (layer.keys, layer.values)]


def test_a_cache_is_handed_in_and_out_as_a_dynamic_cache():
    plain, fused = stock("llama"), wedlm.fuse(stock("llama"))
    sizes = (3, *[1] * (STEP + 20), 7)  # memory grows in between
    (wanted, of_plain), (got, of_fused) = in_parts(plain, sizes), in_parts(fused, sizes)
    assert_close(got, wanted)
    assert type(of_fused) is DynamicCache and all(isinstance(layer, DynamicLayer) for layer in of_fused.layers)
    for one, other in zip(states(of_fused), states(of_plain), strict=True):
        assert_close(one, other)
    again, _ = in_parts(plain, (2, 1), of_fused)  # another model goes on with it
    assert_close(again, in_parts(plain, (2, 1), of_plain)[0])


CHANGES_OF_CACHE = {
    "cropped": lambda cache: cache.crop(-4),
    "cropped twice": lambda cache: [cache.crop(-4), cache.crop(-1)],
    "repeated": lambda cache: cache.batch_repeat_interleave(2),
    "selected": lambda cache: [cache.batch_repeat_interleave(2), cache.batch_select_indices(torch.tensor([1]))],
    "reordered": lambda cache: [cache.batch_repeat_interleave(2), cache.reorder_cache(torch.tensor([1, 0]))],
    "reset": lambda cache: cache.reset(),
}


@pytest.mark.parametrize("change", CHANGES_OF_CACHE)
def test_a_cache_is_changed_like_any_other(change):
    found = []
    for model in (stock("llama"), wedlm.fuse(stock("llama"))):
        _, cache = in_parts(model)
        CHANGES_OF_CACHE[change](cache)
        rows = 2 if change in ("repeated", "reordered") else 1
        for size in (2, 1):
            found.append(logits(model, TEXT[:, :size].expand(rows, -1), **{CACHE: cache}))
        found += states(cache)
    middle = len(found) // 2
    for wanted, got in zip(found[:middle], found[middle:], strict=True):
        assert_close(got, wanted)


COPIES = {"shallow": copy, "deep": deepcopy, "pickled": lambda cache: pickle.loads(pickle.dumps(cache))}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES.keys())
def test_what_was_taken_from_a_cache_stays_as_it_is(copied):
    model = wedlm.fuse(stock("llama"))
    _, cache = in_parts(model)
    held, kept = states(cache), [each.clone() for each in states(cache)]
    other = deepcopy(cache) if copied is copy else copied(cache)
    cache.crop(-5)
    in_parts(model, (1, 3), cache)
    assert all(map(torch.equal, held, kept)), "views of the memory"
    assert all(map(torch.equal, states(other), kept)), "a copy"
    wanted, _ = in_parts(model, (*PARTS, 2))
    got, _ = in_parts(model, (2,), other)
    assert torch.equal(got, wanted[:, -2:])


@pytest.mark.parametrize("change", ["another batch", "another model", "another dtype"])
def test_a_cache_that_does_not_fit_is_refused_as_by_the_model(change):
    other = {"num_key_value_heads": 4} if change == "another model" else {}
    for model in (stock("llama", **other), wedlm.fuse(stock("llama", **other))):
        _, cache = in_parts(wedlm.fuse(stock("llama")))
        ids = TEXT[:, :2].expand(3, -1) if change == "another batch" else TEXT[:, :2]
        with pytest.raises(RuntimeError):
            logits(model.bfloat16() if change == "another dtype" else model, ids, **{CACHE: cache})


def test_a_cache_of_inference_mode_goes_on_outside():
    model = wedlm.fuse(stock("llama"))
    wanted, _ = in_parts(model, (4, 1, 1, 1))
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(TEXT[:, :4], **{CACHE: cache})
        model(TEXT[:, 4:5], **{CACHE: cache})
    got, _ = in_parts(model, (1,), cache)
    one_by_one(model)
    assert torch.equal(torch.cat([got, in_parts(model, (1,), cache)[0]], dim=1), wanted[:, -2:])


def test_memory_of_a_layer_is_given_back_when_it_has_grown():
    _, cache = in_parts(wedlm.fuse(stock("llama")))
    before = [weakref.ref(states) for states in cache.layers[0].memory]
    cache.layers[0].reserve(2 * STEP)
    assert not any(states() is not None for states in before), "before the next layer takes its memory"


def test_gradients_go_through_a_cache():
    found = []
    for model in (stock("llama"), wedlm.fuse(stock("llama"))):
        _, cache = in_parts(model)
        loss = model(TEXT[:, 23:26], **{CACHE: cache}).logits.square().mean()
        loss.backward()
        found.append(model.model.layers[0].self_attn.k_proj.weight.grad)
    assert_close(found[1], found[0])


def test_beams_and_assistants_write_what_they_write():
    plain, fused = stock("llama"), wedlm.fuse(stock("llama"))
    for settings in (
        {"num_beams": 3},
        {"prompt_lookup_num_tokens": 4},
        {"num_return_sequences": 3, "do_sample": True},
    ):
        texts = []
        for model in (plain, fused):
            torch.manual_seed(0)
            texts.append(model.generate(TEXT[:, :9], max_new_tokens=40, **settings).tolist())
        assert texts[0] == texts[1], settings


# --- Changed between two calls ---


def freed(model):
    """With other weights, the memory of the former ones being given back."""
    torch.manual_seed(3)
    for layer in model.model.layers:
        for weight in layer.parameters():
            weight.data = torch.randn_like(weight) * 0.3
    rubbish = [torch.full((3000,), 1e30) for _ in range(300)]  # takes the memory that was freed
    del rubbish
    return model


def emptied(model):
    """With weights whose memory was freed under them, as sharding does, and filled again."""
    for layer in model.model.layers:
        weight = layer.self_attn.o_proj.weight
        values = weight.detach().clone() * 2
        weight.untyped_storage().resize_(0)
        weight.data = values
    return model


@pytest.mark.parametrize("change", [freed, emptied])
def test_a_changed_model_never_reads_freed_memory(change):
    plain, fused = stock("llama"), wedlm.fuse(stock("llama"))
    before = logits(fused, use_cache=False)
    got, wanted = (logits(change(model), use_cache=False) for model in (fused, plain))
    assert_close(got, wanted)
    assert (got - before).norm() > 1e-3 * before.norm()


# --- Threads and processes ---


def test_threads_share_a_model():
    model = wedlm.fuse(drafted())
    wanted = in_parts(model, (4, *[1] * 20))[0]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: in_parts(model, (4, *[1] * 20))[0], range(12)))
    assert all(torch.equal(each, wanted) for each in found)


def test_threads_bind_a_model_at_once():
    ids = random_tokens(1, 70)
    wanted = logits(drafted(), ids, use_cache=False)
    for _ in range(3):
        model = wedlm.fuse(drafted())
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _, model=model: logits(model, ids, use_cache=False), range(8)))
        for each in found:
            assert_close(each, wanted)


def test_a_forked_process_goes_on(tmp_path):
    """The two threads that multiplied stay behind in the process that forked."""
    run_python(
        f"""
import os, psutil, signal, torch, wedlm
from wedlm.fused.product import Product

torch.set_num_threads(3)
product, x = Product(torch.randn(300, 200)), torch.randn(4, 200)
before = psutil.Process().num_threads()
product_wanted = product(x)
assert psutil.Process().num_threads() == before + 2
model = wedlm.fuse(wedlm.WeDLMForCausalLM.from_pretrained({str(CHECKPOINTS / "q3")!r}).eval())
ids = torch.tensor([[5, 6, 7]])
wanted = model.generate(ids, max_new_tokens=8, decoding="autoregressive")
if child := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
else:
    signal.alarm(60)
    same = torch.equal(product(x), product_wanted)
    torch.set_num_threads(1)
    same &= torch.equal(model.generate(ids, max_new_tokens=8, decoding="autoregressive"), wanted)
    os._exit(0 if same else 1)
""",
        tmp_path,
    )


def test_the_structs_have_the_sizes_of_those_in_c():
    for name, size in native._kernels.sizes().items():
        assert native.ctypes.sizeof(getattr(native, name)) == size, name


def test_layers_that_differ_go_one_after_another(calls):
    model = stock("llama", num_hidden_layers=3)
    model.model.layers[1].self_attn.scaling = 0.1
    wanted = logits(model, use_cache=False)
    assert_close(logits(wedlm.fuse(model), use_cache=False), wanted)
    assert set(calls) == {1}
    assert isinstance(model.model.layers, nn.ModuleList)
