"""The model against slow arithmetic, stock Qwen and recorded logits, and bad checkpoints."""

import json
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers import (
    CHECKPOINTS,
    GOLDEN,
    Waits,
    load,
    random_tokens,
    reference_logits,
    stock_model,
)
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    BitsAndBytesConfig,
    DataCollatorWithFlattening,
    DynamicCache,
    Qwen3Config,
    Qwen3ForCausalLM,
    Trainer,
    TrainingArguments,
    modeling_flash_attention_utils,
)
from transformers.integrations import flex_attention as transformers_flex
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from wedlm import WeDLMConfig, WeDLMForCausalLM, WeDLMModel
from wedlm.generation.transformers_internals import CACHE
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMRMSNorm, packed_positions

PROMPT_LENGTH = 10
WINDOW_POSITIONS = [10, 12, 15, 11, 13, 14]  # filled slots first, then the open ones
MASK = 159


def reordered_batch(batch):
    """[prompt ; window] with the window in reordered order: input_ids and position_ids, both [batch, 16]."""
    input_ids = random_tokens(batch, PROMPT_LENGTH + len(WINDOW_POSITIONS))
    input_ids[:, -3:] = MASK
    position_ids = torch.tensor([*range(PROMPT_LENGTH), *WINDOW_POSITIONS]).expand(batch, -1)
    return input_ids, position_ids


def tiny_config(**kwargs):
    return AutoConfig.from_pretrained(CHECKPOINTS / "q3", **kwargs)


def logits_in_parts(model, input_ids, position_ids, parts, cached, mask=None):
    """The logits of several forwards behind each other, each of which `mask(queries, entries)` gives a mask."""
    cache, logits = DynamicCache() if cached else None, []
    for part in parts:
        more = {} if mask is None else {"attention_mask": mask(len(part), int(part[-1]) + 1)}
        out = model(input_ids[:, part], position_ids=position_ids[:, part], use_cache=cached, **more, **{CACHE: cache})
        logits.append(out.logits)
    return torch.cat(logits, dim=1)


# --- Logits ---


@pytest.mark.parametrize("attention, batch, cached", [("eager", 1, True), ("sdpa", 3, False), ("sdpa", 3, True)])
def test_logits_equal_the_recorded_ones(checkpoint, attention, batch, cached):
    model, recorded = load(checkpoint, attn_implementation=attention), np.load(GOLDEN / "forward.npz")
    cases = {name.rpartition(".")[0] for name in recorded.files if name.startswith(checkpoint.name)}
    assert len(cases) == 3
    for case in sorted(cases):
        ids, positions, logits = (
            torch.from_numpy(recorded[f"{case}.{part}"]) for part in ("input_ids", "position_ids", "logits")
        )
        length = ids.shape[-1]
        # Rows of other tokens around the recorded one: they must not reach it.
        ids = torch.cat([random_tokens(batch - 1, length), ids.view(1, length)])
        parts = torch.arange(length).tensor_split(min(3, length) if cached else 1)
        got = logits_in_parts(model, ids, positions.view(1, length).expand(batch, -1), parts, cached)
        torch.testing.assert_close(got[-1], logits.view(length, -1), atol=1e-3, rtol=0)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_standard_positions_are_an_ordinary_qwen(checkpoint, attention):
    model = load(checkpoint, attn_implementation=attention)
    stock = stock_model(model)
    stock.set_attn_implementation(attention)
    input_ids = random_tokens(3, 20)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[0, :7] = 0
    position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    for inputs in (
        {"input_ids": input_ids},
        {"input_ids": input_ids, "labels": input_ids},
        {"inputs_embeds": model.model.embed_tokens(input_ids)},
        {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids},
        {"input_ids": input_ids, "logits_to_keep": 2},
    ):
        ours, theirs = model(**inputs), stock(**inputs)
        keep = attention_mask.bool() if "attention_mask" in inputs else ...
        torch.testing.assert_close(ours.logits[keep], theirs.logits[keep], atol=1e-4, rtol=0)
        if "labels" in inputs:
            torch.testing.assert_close(ours.loss, theirs.loss)


ROPES = [
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
]
SLIDING = {
    "use_sliding_window": True,
    "sliding_window": 4,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}


@pytest.mark.parametrize(
    "fields", [*({"rope_parameters": {"rope_theta": 1e6, **rope}} for rope in ROPES), SLIDING], ids=str
)
def test_scaled_rope_and_sliding_layers_are_qwens(fields):
    torch.manual_seed(0)
    model = WeDLMForCausalLM(tiny_config(**fields, max_position_embeddings=64)).eval()
    input_ids = random_tokens(1, 80)
    torch.testing.assert_close(model(input_ids).logits, stock_model(model)(input_ids).logits, atol=1e-4, rtol=0)
    plain = WeDLMForCausalLM(tiny_config(max_position_embeddings=64)).eval()
    plain.load_state_dict(model.state_dict())
    assert (plain(input_ids).logits - model(input_ids).logits).abs().max() > 1e-2, "the fields had no effect"


def test_a_head_of_any_width_and_a_batch_of_any_shape():
    config = tiny_config(head_dim=10, num_attention_heads=6, num_key_value_heads=3, attention_bias=True, qk_norm=True)
    model = WeDLMForCausalLM(config).eval()
    assert model.model.layers[0].self_attn.q_proj.weight.shape == (60, 48)
    assert model.model.layers[0].self_attn.q_proj.bias is not None
    assert model.model.layers[0].self_attn.o_proj.bias is None
    input_ids, position_ids = reordered_batch(1)
    logits = model(input_ids=input_ids, position_ids=position_ids).logits[0]
    torch.testing.assert_close(logits, reference_logits(model, input_ids[0], position_ids[0]), atol=1e-4, rtol=1e-4)


# --- Reordered positions are never taken for packed samples ---


def flash_attention(q, k, v, causal=True, softmax_scale=None, dropout_p=0.0, **kwargs):
    """The flash-attn kernel in torch: [batch, queries, heads, head_dim], the mask aligned at the bottom right."""
    assert causal and dropout_p == 0.0
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(~mask, -torch.inf).softmax(-1), v)


def flash_attention_varlen(
    q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, **kwargs
):
    parts = []
    for i in range(len(cu_seqlens_q) - 1):
        part_q, part_k = (slice(int(cu[i]), int(cu[i + 1])) for cu in (cu_seqlens_q, cu_seqlens_k))
        parts.append(flash_attention(q[None, part_q], k[None, part_k], v[None, part_k], **kwargs)[0])
    return torch.cat(parts)


@pytest.fixture
def attention_backend(request, monkeypatch):
    """Makes a backend usable on this machine; yields its name."""
    with nullcontext() if request.param != "flex_attention" else torch.compiler.set_stance("force_eager"):
        if request.param == "flash_attention_2":
            for name in vars(modeling_flash_attention_utils).copy():  # restored after the test
                if name.endswith("_fn") or name == "_loaded_implementation":
                    monkeypatch.setattr(modeling_flash_attention_utils, name, None)
            padding = modeling_flash_attention_utils._pad_input, modeling_flash_attention_utils._unpad_input
            kernels = flash_attention, flash_attention_varlen, None, *padding
            monkeypatch.setattr(modeling_flash_attention_utils, "_lazy_imports", lambda *args, **kwargs: kernels)
        if request.param == "flex_attention":
            monkeypatch.setattr(transformers_flex.WrappedFlexAttention, "_is_flex_compiled", False)
        yield request.param


BACKENDS = ["eager", "sdpa", "flash_attention_2", "flex_attention"]


def bool_mask(queries, entries):
    return torch.ones(1, 1, queries, entries, dtype=torch.bool).tril(entries - queries)


def added_mask(queries, entries):
    return torch.where(bool_mask(queries, entries), 0.0, torch.finfo(torch.float32).min)


@pytest.mark.parametrize(
    "attention_backend, mask",
    [
        *((backend, None) for backend in BACKENDS),
        *((backend, added_mask) for backend in ("eager", "sdpa", "flex_attention")),  # flash-attn takes none
        *((backend, bool_mask) for backend in ("eager", "sdpa")),  # flex_attention adds its mask to the scores
    ],
    indirect=["attention_backend"],
)
@pytest.mark.parametrize("cached", [False, True], ids=["uncached", "cached"])
@torch.no_grad()
def test_reordered_window_equals_the_reference(attention_backend, cached, mask):
    """Also in the batch sizes in which transformers takes such positions for packed samples."""
    model, batch = load(CHECKPOINTS / "q3"), 1 if attention_backend == "flash_attention_2" else 2
    model.config._attn_implementation = attention_backend
    input_ids, position_ids = reordered_batch(batch)
    parts = torch.arange(16).split([PROMPT_LENGTH, 6] if cached else [16])
    expand = None if mask is None else lambda *shape: mask(*shape).expand(batch, -1, -1, -1)
    logits = logits_in_parts(model, input_ids, position_ids, parts, cached, expand)
    for row in range(batch):
        expected = reference_logits(model, input_ids[row], position_ids[row])
        torch.testing.assert_close(logits[row], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("cached", [False, True], ids=["uncached", "cached"])
@pytest.mark.parametrize("attention_backend", BACKENDS, indirect=True)
@torch.no_grad()
def test_padding_does_not_reach_a_row(attention_backend, cached):
    model = load(CHECKPOINTS / "q3")
    model.config._attn_implementation = attention_backend
    input_ids, position_ids = reordered_batch(2)
    seen = torch.ones_like(input_ids)
    seen[0, :4] = 0
    parts = torch.arange(16).split([PROMPT_LENGTH, 6] if cached else [16])
    logits = logits_in_parts(model, input_ids, position_ids, parts, cached, lambda _, entries: seen[:, :entries])
    alone = reference_logits(model, input_ids[0, 4:], position_ids[0, 4:])
    torch.testing.assert_close(logits[0, 4:], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("attention_backend", BACKENDS, indirect=True)
def test_gradient_checkpointing_changes_nothing(attention_backend, use_reentrant):
    trainable = attention_backend != "flex_attention"  # it has no backward on a CPU
    batch = 1 if attention_backend == "flash_attention_2" else 2  # where detection would strike
    input_ids, position_ids = reordered_batch(batch)
    results = []
    for checkpointing in (False, True):
        model = load(CHECKPOINTS / "q3").train()
        model.config._attn_implementation = attention_backend
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        with torch.set_grad_enabled(trainable):
            logits = model(input_ids=input_ids, position_ids=position_ids).logits
        if trainable:
            logits.logsumexp(-1).sum().backward()
        results.append((logits.detach(), {name: weight.grad for name, weight in model.named_parameters()}))
    expected = torch.stack([reference_logits(model, *row) for row in zip(input_ids, position_ids, strict=True)])
    (logits, gradients), (checkpointed_logits, checkpointed_gradients) = results
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(checkpointed_logits, expected, atol=1e-4, rtol=1e-4)
    for name, gradient in gradients.items():
        torch.testing.assert_close(checkpointed_gradients[name], gradient, msg=name)


def test_gradient_checkpointing_with_cached_text_is_refused(model):
    cache = DynamicCache()
    model(random_tokens(1, 4), **{CACHE: cache})
    model.gradient_checkpointing_enable()
    assert model(random_tokens(1, 4), **{CACHE: cache}).logits.shape[1] == 4, "in eval mode the cache is used"
    with pytest.raises(ValueError, match=rf"{CACHE} holds cached text, .* call model\.eval\(\), or pass"):
        model.train()(random_tokens(1, 4), **{CACHE: cache})


# --- Samples that are packed into a row do not see each other ---

LENGTHS = [[7, 10], [1, 4, 12]]  # of the samples of each row


def packed_batch(batch):
    positions = [[i for length in row for i in range(length)] for row in LENGTHS[:batch]]
    return random_tokens(batch, 17), torch.tensor(positions)


def logits_alone(model, input_ids):
    """The logits of each sample in a forward of its own."""
    rows = [
        torch.cat([model(sample[None]).logits[0] for sample in row.split(lengths)])
        for row, lengths in zip(input_ids, LENGTHS, strict=False)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("attention_backend", [*BACKENDS, "dual_stream"], indirect=True)
@torch.no_grad()
def test_packed_samples_are_each_alone(attention_backend, batch):
    model = load(CHECKPOINTS / "q3")
    input_ids, position_ids = packed_batch(batch)
    expected = logits_alone(stock_model(model), input_ids)
    model.config._attn_implementation = attention_backend
    for use_cache in (False, True):
        out = model(input_ids, position_ids=position_ids, use_cache=use_cache)
        torch.testing.assert_close(out.logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention_backend", ["sdpa", "flash_attention_2"], indirect=True)
@torch.no_grad()
def test_a_packed_row_beside_a_reordered_one(attention_backend):
    model = load(CHECKPOINTS / "q3")
    (packed, packed_ids), (reordered, reordered_ids) = packed_batch(1), reordered_batch(1)
    expected = [logits_alone(model, packed)[0, :16], reference_logits(model, reordered[0], reordered_ids[0])]
    model.config._attn_implementation = attention_backend
    input_ids = torch.cat([packed[:, :16], reordered])
    position_ids = torch.cat([packed_ids[:, :16], reordered_ids])
    torch.testing.assert_close(
        model(input_ids, position_ids=position_ids).logits, torch.stack(expected), atol=1e-4, rtol=1e-4
    )


@given(st.permutations(range(9)), st.integers(0, 3))
def test_a_reordered_text_is_in_physical_order(positions, start):
    positions = torch.tensor([positions]) + start
    assert packed_positions(positions).tolist() == [list(range(9))]


@given(st.lists(st.integers(1, 5), min_size=1))
def test_packed_positions_stay(lengths):
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    assert torch.equal(packed_positions(positions), positions)


def test_a_mask_of_the_caller_decides_alone(model):
    """As in transformers, which looks at positions only where there is no mask."""
    input_ids, position_ids = packed_batch(1)
    logits = model(input_ids, position_ids=position_ids, attention_mask=torch.ones_like(input_ids)).logits
    torch.testing.assert_close(logits[0], reference_logits(model, input_ids[0], position_ids[0]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make_batch", [packed_batch, reordered_batch])
@torch.no_grad()
def test_the_host_waits_no_more_often_than_for_qwen(make_batch):
    model = load(CHECKPOINTS / "q3")
    input_ids, position_ids = make_batch(2)
    waits = []
    for either in (model, stock_model(model)):
        with Waits([]) as mode:
            either(input_ids, position_ids=position_ids, use_cache=False)
        waits.append(len(mode.seen))
    assert waits[0] <= waits[1] == 1


def test_losses_of_a_flattened_batch_are_qwens(tmp_path):
    """transformers' own Trainer and collator, on this model and on Qwen3 with the same weights."""
    records = [{"input_ids": random_tokens(1, length, seed=length)[0].tolist()} for length in (7, 12, 5, 9)]
    losses = []
    model = load(CHECKPOINTS / "q3")
    for either in (stock_model(model), model):
        arguments = TrainingArguments(
            tmp_path, per_device_train_batch_size=2, max_steps=2, learning_rate=1e-3, gradient_checkpointing=True,
            logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = Trainer(either, arguments, DataCollatorWithFlattening(), train_dataset=Dataset.from_list(records))
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and len(losses[0]) == 2


# --- Inherited abilities ---


def test_plans_and_flags_are_qwens(model):
    sizes = {name: 4 for name in ("hidden_size", "vocab_size", "num_hidden_layers")}
    stock = Qwen3ForCausalLM(Qwen3Config(**sizes, tie_word_embeddings=model.config.tie_word_embeddings))
    for plan in ("_tp_plan", "_pp_plan", "_fsdp_plan"):
        assert getattr(model, plan, "none") == getattr(stock, plan, "none"), plan
    for flag in ("_supports_sdpa", "_supports_flash_attn", "_supports_flex_attn", "_can_compile_fullgraph"):
        assert getattr(model, flag) is getattr(stock, flag) is True
    assert model.supports_gradient_checkpointing
    blocks = {type(module).__name__ for module in model.modules()}
    assert set(model._no_split_modules) <= blocks, "device_map would split a layer"


def test_resizing_the_embeddings(model):
    input_ids = random_tokens(1, 8)
    before = model(input_ids).logits
    model.resize_token_embeddings(170)
    assert model.config.vocab_size == 170
    torch.testing.assert_close(model(input_ids).logits[..., :160], before)
    with pytest.raises(ValueError, match=f"new_num_tokens={MASK} leaves no row for mask_token_id={MASK}; keep more"):
        model.resize_token_embeddings(MASK)


def test_hidden_states_and_attentions(checkpoint):
    model = load(checkpoint, attn_implementation="eager")
    ids, positions = reordered_batch(2)
    out = model(ids, position_ids=positions, output_hidden_states=True, output_attentions=True)
    assert [tuple(h.shape) for h in out.hidden_states] == [(2, 16, 48)] * 4
    assert [tuple(a.shape) for a in out.attentions] == [(2, 4, 16, 16)] * 3
    assert all(a.triu(1).abs().max() == 0 for a in out.attentions)
    base = WeDLMModel.from_pretrained(checkpoint).eval()
    for hidden in (out.hidden_states[-1], base(ids, position_ids=positions).last_hidden_state):
        torch.testing.assert_close(model.lm_head(hidden), out.logits, atol=1e-4, rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    "checkpoint",
    [CHECKPOINTS / "q3", pytest.param(CHECKPOINTS / "q25", marks=pytest.mark.slow)],
    ids=lambda folder: folder.name,
)
@torch.no_grad()
def test_compiles_to_one_graph_with_a_cache(model):
    ids, positions = reordered_batch(2)
    torch.compiler.reset()
    parts = torch.arange(16).split([PROMPT_LENGTH, 6])
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    got, expected = (logits_in_parts(either, ids, positions, parts, True) for either in (compiled, model))
    torch.testing.assert_close(got, expected)


@pytest.mark.slow
@torch.no_grad()
def test_compiles_with_inductor(model):
    input_ids, position_ids = reordered_batch(2)
    inputs = {"input_ids": input_ids, "position_ids": position_ids, "use_cache": False}
    torch.compiler.reset()
    got = torch.compile(model, fullgraph=True)(**inputs).logits
    torch.testing.assert_close(got, model(**inputs).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@torch.no_grad()
def test_flex_attention_with_its_compiled_kernel(checkpoint):
    model = load(checkpoint, attn_implementation="flex_attention")
    input_ids, position_ids = reordered_batch(1)
    torch.compiler.reset()
    logits = model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
    torch.testing.assert_close(logits[0], reference_logits(model, input_ids[0], position_ids[0]), atol=1e-4, rtol=1e-4)


# --- Bad input ---


def broken_copy(tmp_path):
    return shutil.copytree(CHECKPOINTS / "q3", tmp_path / "broken")


def test_quantized_weights_whose_config_says_so_load(tmp_path):
    model = load(CHECKPOINTS / "q3", quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert torch.uint8 in {tensor.dtype for tensor in saved.values()}
    input_ids = torch.arange(3, 11)[None]
    assert torch.equal(load(tmp_path)(input_ids).logits, model(input_ids).logits)


def test_pickled_weights_are_not_loaded_unasked(tmp_path):
    folder = broken_copy(tmp_path)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match="model.safetensors"):
        load(folder)
    assert load(folder, use_safetensors=False).config.mask_token_id == MASK


def test_another_architecture_is_named(tmp_path):
    folder = broken_copy(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    for loader in (WeDLMForCausalLM, WeDLMModel, WeDLMConfig):
        with pytest.raises(ValueError, match="is of model_type 'llama', .* only 'wedlm'; convert .*`wedlm convert`"):
            loader.from_pretrained(folder)
    for build in (WeDLMForCausalLM, lambda config: load(CHECKPOINTS / "q3", config=config)):
        with pytest.raises(ValueError, match=r"Qwen3Config is of model_type 'qwen3', .* support only 'wedlm'"):
            build(Qwen3Config())


def test_sizes_are_checked_where_the_model_is_built():
    config = tiny_config()
    config.num_key_value_heads = 3
    with pytest.raises(ValueError, match=r"num_attention_heads=4 is not a multiple of num_key_value_heads=3"):
        WeDLMForCausalLM(config)
    with pytest.raises(ValueError, match=r"mask_token_id=160 lies outside the vocabulary of 160 tokens"):
        WeDLMForCausalLM.from_pretrained(CHECKPOINTS / "q3", mask_token_id=160)


def test_inputs_are_ids_or_embeddings(model):
    input_ids = random_tokens(1, 4)
    for inputs in ({}, {"input_ids": input_ids, "inputs_embeds": model.model.embed_tokens(input_ids)}):
        with pytest.raises(ValueError, match="input_ids and inputs_embeds: got both or neither"):
            model(**inputs)


# --- The norm ---


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [torch.float32, torch.bfloat16])
def test_the_norm_and_its_gradients_are_those_of_qwen3(weights, inputs):
    torch.manual_seed(0)
    values, weight, of_output = 3 * torch.randn(2, 5, 3, 8), torch.randn(8), torch.randn(2, 5, 3, 8)
    results = []
    for kind in (WeDLMRMSNorm, Qwen3RMSNorm):
        norm, hidden_states = kind(8, 1e-3).to(weights), values.to(inputs).requires_grad_()
        norm.weight.data.copy_(weight)
        output = norm(hidden_states)
        with torch.no_grad():
            assert torch.equal(norm(hidden_states), output)
        output.backward(of_output.to(output.dtype))
        results.append((output.detach(), hidden_states.grad, norm.weight.grad))
    (output, *gradients), (expected, *expected_gradients) = results
    assert torch.equal(output, expected)
    tolerance = 1e-6 if weights == inputs == torch.float32 else 0.02
    torch.testing.assert_close(gradients, expected_gradients, atol=tolerance, rtol=tolerance)


def test_the_norm_keeps_nothing_but_its_input():
    hidden_states, kept = torch.randn(2, 100, 64, requires_grad=True, dtype=torch.bfloat16), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        WeDLMRMSNorm(64).bfloat16()(hidden_states)
    assert sorted(kept) == [64, 2 * 100, 2 * 100 * 64]
