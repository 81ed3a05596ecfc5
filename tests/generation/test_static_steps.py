"""Steps of a fixed shape: the same as the others, in buffers that stay, for which nobody waits.

That they write the same ids in the same forwards is in test_generation_wedlm.py and test_verified.py, which draw
static caches beside the others.
"""

import copy
import gc
import weakref
from itertools import pairwise

import pytest
import torch
from decoded import PARALLEL, STATIC, forwards_seen, run, settings_of
from draft_models import drafted, tiny_model, with_adapter
from helpers import CHECKPOINTS, DECODE, PROMPTS, Waits, left_padded, load, random_tokens
from peft import LoraConfig, get_peft_model
from recorded_graph import captures_on_cpu
from stock_families import stock
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import CompileConfig
from transformers.utils import logging

import wedlm
from wedlm.generation import static_steps
from wedlm.generation.decoding import static_step
from wedlm.generation.row_cache import RowCache
from wedlm.generation.static_steps import KEPT, bucketed, power_of_two
from wedlm.generation.transformers_internals import CACHE

COUNTS = ("forwards", "tokens_per_forward", "prefix_cacheability", "verified_drafts", "accepted_drafts")


@pytest.fixture
def model():
    """One of its own, for which no call has left anything."""
    return load(CHECKPOINTS / "q3")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def assert_same(output, expected):
    assert torch.equal(output.sequences, expected.sequences)
    for name in COUNTS:
        one, other = getattr(output, name), getattr(expected, name)
        assert (one is None) == (other is None) and (one is None or torch.equal(one, other)), name


@pytest.mark.parametrize("decoding", PARALLEL)
def test_steps_have_all_rows_and_a_power_of_two_of_queries(model, decoding):
    """The fewest that do, and at most those that the window can need."""
    seen = forwards_seen(model)
    expected = run(model, decoding=decoding, window_size=6)
    (first, *needed), most = [shape[1] for shape, _ in seen], 12
    seen.clear()
    output = run(model, decoding=decoding, window_size=6, **STATIC)
    assert_same(output, expected)
    assert [shape for shape, _ in seen] == [
        (len(PROMPTS), n) for n in (first, *(min(power_of_two(n), most) for n in needed))
    ]
    assert len({shape for shape, _ in seen[1:]}) > 1


@pytest.mark.parametrize("decoding", ["streaming", "verified"])
def test_no_operation_of_a_step_waits_for_the_device(model, decoding, monkeypatch):
    waits, steps = [], []

    def step(*arguments):
        steps.append(1)
        with Waits(waits):
            return static_step(*arguments)

    monkeypatch.setattr("wedlm.generation.decoding.static_step", step)
    for sampling in ({}, {"do_sample": True, "top_k": 5, "temperature": 2.0}):
        steps.clear()
        output = run(model, decoding=decoding, **sampling, **STATIC)
        assert len(steps) == output.forwards.max() - 1
        assert waits == []


def test_max_cache_len_takes_room_ahead(model):
    run(model, max_cache_len=500, **STATIC)
    first = KEPT[model]
    assert first.cache.layers[0].keys.shape[2] == bucketed(500 + 32)
    run(model, [prompt * 10 for prompt in PROMPTS], **STATIC)
    assert KEPT[model] is first


def test_what_a_call_has_returned_stays_as_it_was(model):
    outputs = [run(model, prompts, **STATIC) for prompts in (PROMPTS, PROMPTS[::-1])]
    for output, prompts in zip(outputs, (PROMPTS, PROMPTS[::-1]), strict=True):
        assert_same(output, run(model, prompts))
        expected = run(model, prompts)[CACHE]
        for layer, other in zip(output[CACHE].layers, expected.layers, strict=True):
            torch.testing.assert_close(layer.keys, other.keys)


def test_calls_in_other_surroundings_get_new_buffers(model):
    """Tensors of inference mode cannot be written outside of it, and autocast makes values of another type."""
    expected = run(model)
    for surroundings in (torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)):
        assert_same(run(model, **STATIC), expected)
        with surroundings():
            inside = run(model)
            assert_same(run(model, **STATIC), inside)
        assert_same(run(model, **STATIC), expected)
    moved = run(model.bfloat16())
    assert_same(run(model, **STATIC), moved)
    assert KEPT[model].cache.layers[0].keys.dtype == torch.bfloat16


@pytest.mark.parametrize("decoding", PARALLEL)
def test_what_cannot_be_filled_is_named_as_ever(model, decoding):
    messages, forwards = [], []

    def spoil(module, args, output):
        forwards.append(1)
        if len(forwards) > 9:
            output.logits[1:] = float("nan")

    model.register_forward_hook(spoil)
    for cache in ({}, STATIC):
        forwards.clear()
        with pytest.raises(ValueError, match="No token has a finite score in row 1 at position") as error:
            run(model, decoding=decoding, eos_token_id=None, entropy_threshold=0.0, max_new_tokens=24, **cache)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


# --- Captured as graphs ---


@pytest.fixture
def graphs():
    """Lets steps be captured on the CPU; holds the graphs."""
    with captures_on_cpu() as graphs:
        yield graphs


@pytest.fixture
def captured(graphs, monkeypatch):
    """The same, where all steps have one shape, so that one graph does."""
    for name, number in {"power_of_two": 32, "bucketed": 256}.items():
        monkeypatch.setattr(static_steps, name, lambda _, number=number: number)
    return graphs


@pytest.mark.parametrize("decoding", PARALLEL)
@pytest.mark.parametrize("more", [{}, {"do_sample": True, "top_k": 5}, {"window_size": 1}], ids=str)
def test_captured_steps_write_the_same(model, graphs, decoding, more):
    """A second call, with other prompts, takes the graphs of the first."""
    for prompts in (PROMPTS, PROMPTS[::-1]):
        outputs = []
        for cache in (STATIC, {}):
            torch.manual_seed(0)
            outputs.append(run(model, prompts, decoding=decoding, **more, **cache))
        assert_same(*outputs)
        assert len(graphs) == len(KEPT[model].graphs) > 0


OTHERS = {
    "stock": lambda: stock("Llama"),
    "stock, some layers sliding": lambda: stock("Qwen2, some layers sliding"),
    "stock, positions of its own": lambda: stock("OPT"),
    "stock with an adapter": lambda: with_adapter(copy.deepcopy(stock("Llama"))),
    "fused stock": lambda: wedlm.fuse(copy.deepcopy(stock("Qwen3"))),
    "fused with an adapter": lambda: wedlm.fuse(with_adapter(copy.deepcopy(stock("Qwen3")))),
    "with drafts inside": drafted,
    "fused": lambda: wedlm.fuse(tiny_model()),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_steps_of_all_kinds_of_models_are_captured(kind, graphs):
    model = OTHERS[kind]()
    repeated = [[5, 6, 7] * 5, [9, 8, 9, 8], [11] * 8]
    # Token by token in float32, one row behind another, as nothing else is rounded alike.
    for prompts in (repeated, repeated[::-1]):
        for sampling in ({}, {"do_sample": True, "top_k": 5}, {"repetition_penalty": 1.3}):
            arguments = {**left_padded(prompts), "max_new_tokens": 12, "window_size": 4, "query_cost": 0, **sampling}
            arguments |= {"decoding": "verified", "eos_token_id": None, "pad_token_id": 0}
            texts = []
            for cache in (STATIC, {}):
                torch.manual_seed(0)
                texts.append(model.generate(**arguments, custom_generate=wedlm.verified, **cache))
            assert torch.equal(*texts), sampling
    base = getattr(model, "get_base_model", lambda: model)()
    for of_kind in (KEPT[base].graphs, KEPT[base].forward.graphs):
        assert 0 < len(of_kind) == len(of_kind.of_shape), "no forward waits for the device"
    wedlm.free_static_memory(model)
    assert base not in KEPT


def test_captured_steps_of_a_stock_model_follow_its_changes(graphs):
    """A longer text, a smaller batch, an adapter that is switched off and on, another dtype."""
    model = with_adapter(copy.deepcopy(stock("Llama")))
    prompts, numbers = [[5, 6, 7] * 5, [9, 8, 9, 8], [11] * 8], [0]
    for change, given in (
        (lambda: None, prompts),
        (lambda: None, [prompt * 6 for prompt in prompts]),
        (lambda: None, prompts[:1]),
        (lambda: model.base_model.disable_adapter_layers(), prompts),
        (lambda: model.base_model.enable_adapter_layers(), prompts),
        (lambda: model.double(), prompts),
    ):
        change()
        arguments = {
            **left_padded(given),
            "max_new_tokens": 12,
            "window_size": 4,
            "query_cost": 0,
            "eos_token_id": None,
        }
        arguments |= {"pad_token_id": 0, "do_sample": False, "custom_generate": wedlm.verified}
        for _ in range(2):
            assert torch.equal(model.generate(**arguments, **STATIC), model.generate(**arguments))
        numbers.append(len(graphs))
        assert numbers[-1] > numbers[-2], "captured anew"


ASKED = {  # with others that take part in a step, so that the forward alone is captured
    "a processor of the text": {"repetition_penalty": 1.3},
    "sampled": {"repetition_penalty": 1.3, "do_sample": True, "top_k": 5},
    "criteria in step": {"stopping_criteria": [lambda ids, scores: ids[:, -1] == 9]},
    "scores": {"output_scores": True, "output_logits": True},
}


@pytest.mark.parametrize("decoding", ["streaming", "verified", pytest.param("blockwise", marks=pytest.mark.slow)])
@pytest.mark.parametrize("asked", ASKED)
def test_forwards_are_captured_where_others_take_part_in_a_step(model, graphs, decoding, asked):
    for prompts in (PROMPTS, PROMPTS[::-1]):
        outputs = []
        for cache in (STATIC, {}):
            torch.manual_seed(0)
            outputs.append(run(model, prompts, decoding=decoding, **ASKED[asked], **cache))
        assert_same(*outputs)
        for name in ("scores", "logits"):
            for one, other in zip(*(getattr(output, name) or () for output in outputs), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        kept = KEPT[model]
        assert len(kept.graphs) == 0 < len(kept.forward.graphs) == len(graphs)


def test_calls_with_other_ranks_take_the_ordinary_steps(model, graphs, monkeypatch):
    monkeypatch.setattr("torch.distributed.all_reduce", lambda *args, **kwargs: None)
    assert_same(run(model, synced_gpus=True, **STATIC), run(model, synced_gpus=True))
    assert model not in KEPT and not graphs


def test_graphs_are_few(model, graphs, monkeypatch):
    """Where another one would be too many, all begin anew."""
    monkeypatch.setattr(static_steps, "MOST_GRAPHS", 2)
    for more in ({}, {"repetition_penalty": 1.3}):
        for length in (20, 90, 150):
            prompts = [random_tokens(1, length, seed=1)[0].tolist()]
            arguments = {"max_cache_len": 300, "max_new_tokens": 24, "eos_token_id": None, **more}
            assert_same(run(model, prompts, **arguments, **STATIC), run(model, prompts, **arguments))
        kept = KEPT[model]
        assert len((kept.forward if more else kept).graphs) <= 2
    assert len(graphs) > 4


def test_a_shape_for_which_there_was_no_memory_is_tried_again(model, graphs, monkeypatch):
    capture, tries = static_steps.CAPTURES["cpu"], []

    def refused_once(*arguments):
        tries.append(1)
        if len(tries) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return capture(*arguments)

    monkeypatch.setitem(static_steps.CAPTURES, "cpu", refused_once)
    for _ in range(2):
        assert_same(run(model, **STATIC), run(model))
    assert len(KEPT[model].graphs) == len(KEPT[model].graphs.of_shape) == len(tries) - 1


def test_a_cache_that_moves_is_noticed(model, graphs):
    """Its values alone, too."""
    run(model, **STATIC)
    number = len(graphs)
    for layer in KEPT[model].cache.layers:
        before, layer.values = layer.values, layer.values.clone()
        before.fill_(torch.nan)
    assert_same(run(model, **STATIC), run(model))
    assert len(graphs) > number


def test_a_graph_for_each_number_of_queries_and_entries(model, graphs):
    prompts = [random_tokens(1, 90, seed=1)[0].tolist()]
    for _ in range(2):
        more = {"max_new_tokens": 90, "window_size": 4, "decoding": "verified", "eos_token_id": None}
        assert_same(run(model, prompts, **more, **STATIC), run(model, prompts, **more))
    assert len(graphs) == len(KEPT[model].graphs) > 1
    queries, entries = zip(*KEPT[model].graphs.of_shape, strict=True)
    assert set(queries) <= {1, 2, 4, 8} and min(len(set(queries)), len(set(entries))) > 1


@pytest.mark.parametrize(
    ("decoding", "more", "num_graphs"),
    [
        ("streaming", {"entropy_threshold": 0.2, "distance_penalty": 0.1}, 1),
        ("streaming", {"eos_token_id": [2, 7]}, 2),
        ("streaming", {"entropy_threshold": None}, 2),
        ("verified", {"acceptance_ratio": 0.3}, 2),
        ("verified", {"suppress_tokens": [5]}, 2),
        ("verified", {"do_sample": True, "top_k": 0}, 2),
    ],
    ids=str,
)
def test_a_call_with_other_settings_writes_by_them(model, captured, decoding, more, num_graphs):
    for settings in ({}, more, {}):
        given, outputs = {"decoding": decoding, **settings}, []
        for cache in (STATIC, {}):
            torch.manual_seed(0)
            outputs.append(run(model, **given, **cache))
        assert_same(*outputs)
        if settings:
            assert len(captured) == num_graphs


def test_another_value_of_a_processor_is_noticed(model, captured):
    written = run(model, PROMPTS[:1]).sequences[0, len(PROMPTS[0]) :].unique().tolist()
    for number, token in enumerate(written[:3]):
        given = {"prompts": PROMPTS[:1], "suppress_tokens": [token]}
        output = run(model, **given, **STATIC)
        assert_same(output, run(model, **given))
        assert token not in output.sequences[0, len(PROMPTS[0]) :] and len(captured) == number + 1


def test_other_weights_are_noticed(model, captured):
    for number, change in enumerate(
        (
            lambda: None,
            lambda: model.lm_head.weight.add_(torch.randn_like(model.lm_head.weight)),  # in place
            lambda: setattr(model.lm_head.weight, "data", torch.randn_like(model.lm_head.weight)),
            lambda: model.set_attn_implementation("eager"),
            lambda: model.train(),
        )
    ):
        with torch.no_grad():
            change()
        for _ in range(2):
            assert_same(run(model, **STATIC), run(model))
            assert len(captured) == number + 1


def test_weights_of_inference_mode_are_captured(captured):
    """They count no changes."""
    with torch.inference_mode():
        model = load(CHECKPOINTS / "q3")
        for _ in range(2):
            assert_same(run(model, **STATIC), run(model))
    assert len(captured) == 1


def test_another_adapter_is_noticed(model, captured):
    targets = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head"]}
    peft = get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, **targets))
    peft.add_adapter("other", LoraConfig(r=4, init_lora_weights=False, **targets))
    torch.nn.init.normal_(model.lm_head.modules_to_save["other"].weight)
    texts = []
    for change in (
        lambda: None,
        lambda: peft.set_adapter("other"),
        lambda: model.lm_head.set_adapter("default"),
        lambda: model.model.layers[0].self_attn.v_proj.scale_layer(9.0),
        lambda: peft.base_model.disable_adapter_layers(),
        lambda: peft.base_model.enable_adapter_layers(),
    ):
        change()
        texts.append(run(model))
        assert_same(run(model, **STATIC), texts[-1])
        assert len(captured) == len(texts)
    assert all(not torch.equal(one.sequences, other.sequences) for one, other in pairwise(texts))


def test_a_step_that_fails_to_be_captured_takes_ordinary_steps(model, captured, monkeypatch, caplog):
    """Once for each length, and the call that began it goes on."""
    tries = []

    def fails(*arguments):
        tries.append(1)
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setitem(static_steps.CAPTURES, "cpu", fails)
    logging.enable_propagation()
    try:
        for _ in range(2):
            assert_same(run(model, **STATIC), run(model))
    finally:
        logging.disable_propagation()
    assert len(tries) == 1 and "CUDA graph: operation not permitted when stream is capturing; it" in caplog.text


def test_one_slot_has_one_query_in_verified_decoding(model, captured):
    seen = forwards_seen(model)
    run(model, decoding="verified", window_size=1, **STATIC)
    assert captured and {shape[1] for shape, _ in seen[1:]} == {1}


def test_a_forward_that_waits_for_the_device_takes_ordinary_steps(model, captured, caplog):
    forward = model.model.forward
    model.model.forward = lambda **kwargs: (kwargs["input_ids"].sum().item(), forward(**kwargs))[1]
    logging.enable_propagation()
    try:
        assert_same(run(model, **STATIC), run(model))
    finally:
        logging.disable_propagation()
    assert not captured
    assert "cannot become a CUDA graph: it waits for the device (aten._local_scalar_dense" in caplog.text


def test_hooks_run_in_every_step(model, captured):
    calls = []
    model.lm_head.register_forward_hook(lambda *args: calls.append(1))
    output = run(model, **STATIC)
    assert len(calls) == output.forwards.max() and not captured


def test_under_autocast_steps_are_ordinary(model, captured):
    """It frees the weights that it has cast, when a call ends."""
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(run(model, **STATIC), run(model))
    assert not captured


class Compiler:
    """A backend that counts the graphs it is given, and runs them as they are."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs, **options):
        self.graphs += 1
        return graph.forward

    def __deepcopy__(self, memo):  # CompileConfig.to_dict() copies what it holds
        return self


@pytest.mark.full
@pytest.mark.parametrize("decoding", ["streaming", "verified"])
def test_one_graph_does_for_all_lengths(model, graphs, decoding):
    """Prompts in several buckets, limits also below the window, other settings: one compilation."""
    compiler = Compiler()
    compiled = {"compile_config": CompileConfig(fullgraph=True, backend=compiler), **STATIC}
    for i, length in enumerate((5, 40, 130, 500)):
        prompts = [random_tokens(1, length, seed=i)[0].tolist(), PROMPTS[0]]
        more = {
            "decoding": decoding,
            "max_new_tokens": (3, 1, 12, 30)[i],  # below the window_size as well
            "entropy_threshold": 0.5 + i / 10,
            "distance_penalty": 0.01 * i,
            "window_size": 4,
            "prompt_lookup_num_tokens": 3 if decoding == "verified" else None,
            "acceptance_ratio": 0.99 - 0.1 * i,
        }
        output = run(model, prompts, **more, **compiled)
        assert_same(output, run(model, prompts, **more))
    assert compiler.graphs == 1 and not graphs


@pytest.mark.full
def test_a_compiled_step_samples(model):
    compiled = {"compile_config": CompileConfig(fullgraph=True, backend=Compiler()), **STATIC}
    texts = []
    for cache in (STATIC, compiled):
        torch.manual_seed(0)
        texts.append(run(model, do_sample=True, temperature=1.5, top_p=0.5, **cache))
    assert_same(*texts)


def test_nothing_is_compiled_unless_asked_for(model, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("compiles")

    monkeypatch.setattr(torch, "compile", refuse)
    run(model, **STATIC)
    run(model, compile_config=CompileConfig())
    run(model, compile_config=CompileConfig(), disable_compile=True, **STATIC)
    with pytest.raises(AssertionError, match="compiles"):
        run(model, compile_config=CompileConfig(), **STATIC)


@pytest.mark.slow
@pytest.mark.parametrize("decoding", PARALLEL)
def test_inductor_writes_the_same(model, decoding):
    compiled = {"compile_config": CompileConfig(fullgraph=True), **STATIC}
    for recorded in [each for each in DECODE["runs"] if each["checkpoint"] == "q3"][:3]:
        settings, prompts = settings_of(recorded) | {"decoding": decoding}, [PROMPTS[recorded["prompt"]], PROMPTS[1]]
        assert_same(run(model, prompts, **settings, **compiled), run(model, prompts, **settings))


def test_buckets():
    buckets = {number: bucketed(number) for number in range(1, 40_000)}
    assert all(number <= bucket <= max(number + 63, 1.25 * number) for number, bucket in buckets.items())
    assert len(set(buckets.values())) < 45 and [*buckets.values()] == sorted(buckets.values())


@pytest.mark.parametrize("decoding", PARALLEL)
def test_limits_below_the_window_change_no_shape(model, decoding):
    steps = []
    for limit in (9, 3, 1, 2, 8):
        arguments = {"max_new_tokens": limit, "window_size": 8, "decoding": decoding}
        assert_same(run(model, **arguments, **STATIC), run(model, **arguments))
        steps.append(KEPT[model])
    assert all(each is steps[0] for each in steps)


def test_buffers_stay_for_the_next_call(model):
    addresses = []
    for prompts, more in ((PROMPTS, {}), (PROMPTS[::-1], {"max_new_tokens": 11}), (PROMPTS, {"do_sample": True})):
        run(model, prompts, **more, **STATIC)
        buffers = [*KEPT[model].state.tensors]
        buffers += [KEPT[model].cache.lengths, *(layer.keys for layer in KEPT[model].cache.layers)]
        addresses.append([buffer.data_ptr() for buffer in buffers])
    assert addresses[0] == addresses[1] == addresses[2]
    for more in ({"prompts": PROMPTS[:2]}, {"max_new_tokens": 100}, {"decoding": "verified"}):
        before = KEPT[model]  # of another batch size, with fewer slots, or with another strategy
        run(model, **{"prompts": PROMPTS[:2], **more}, **STATIC)
        assert KEPT[model] is not before, more


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
    read = RowCache.to_columns
    monkeypatch.setattr(
        RowCache, "to_columns", lambda self, *given: (seen.append(model in KEPT), read(self, *given))[1]
    )
    seen = []
    run(model, **STATIC)
    assert seen == [False] and model in KEPT


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


class Allocated(TorchDispatchMode):
    """Adds up the bytes of new tensors. (What a kernel takes for itself is not seen.)"""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if torch.is_tensor(each)}
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if torch.is_tensor(tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.bytes += tensor.untyped_storage().nbytes()
        return output


@pytest.mark.parametrize("decoding", ["streaming", "verified"])
def test_a_step_allocates_a_mask_and_nothing_else_that_grows(model, decoding, monkeypatch):
    """An entry more costs less than a copy of one layer's keys; capacity that is not read costs nothing."""
    allocated = {}

    def step(*arguments):
        with Allocated() as mode:
            status = static_step(*arguments)
        query, entry = arguments[-2:]
        allocated.setdefault((len(query), len(entry)), set()).add(mode.bytes)
        return status

    monkeypatch.setattr("wedlm.generation.decoding.static_step", step)
    for length, room in ((60, 128), (60, 2000), (1000, 2000)):
        allocated.clear()
        prompts = [random_tokens(1, length, seed=1)[0].tolist()]
        more = {"prompt_lookup_num_tokens": 0} if decoding == "verified" else {}  # a look-up reads the whole text
        run(model, prompts, window_size=2, decoding=decoding, max_cache_len=room, max_new_tokens=20, **STATIC, **more)
        if length == 60 and room == 128:
            first = dict(allocated)
        elif length == 60:
            assert allocated == first, "the same in a large cache"
    (queries, short), (few,) = max((shape, each) for shape, each in first.items() if len(each) == 1)
    ((long, (many,)),) = [(shape[1], each) for shape, each in allocated.items() if shape[0] == queries]
    keys_of_a_layer = 4 * model.config.num_key_value_heads * model.config.head_dim  # bytes of an entry
    assert 0 < (many - few) / (long - short) < keys_of_a_layer
