"""The attention of the two streams in every form, against slow references and a recorded step."""

from runpy import run_path

import numpy as np
import pytest
import torch
from helpers import CHECKPOINTS, GOLDEN, MASK, REPOSITORY, load, logits_of, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig
from transformers.integrations import flex_attention as transformers_flex

from wedlm import DualStreamCollator, WeDLMForCausalLM
from wedlm.generation.transformers_internals import CACHE
from wedlm.training import dual_stream
from wedlm.training.dual_stream import (
    MEMORY,
    PADDING,
    PREDICTION,
    DecomposedAttention,
    StreamQueries,
    block_mask,
    dense_mask,
)
from wedlm.training.target_loss import scale_weights, weight_sums

TRAIN = {name[3:]: values for name, values in np.load(GOLDEN / "train.npz").items()}
LENGTHS = np.diff(TRAIN["base_cum_seqlens"])
FORMS = ["sdpa", "eager", "dual_stream"]  # those with a backward on a CPU
IDS = ("sample_ids", "stream_ids", "block_ids")


class RecordedDraws(DualStreamCollator):
    """The draws of train.npz: gammas of 5 blocks and then 3, masks of 37 tokens and then 20."""

    def draws(self, index, maskable):
        gammas, masked = [(slice(0, 5), slice(0, 37)), (slice(5, 8), slice(37, 57))][index]
        return [(TRAIN["block_mask_ratios"][gammas], TRAIN["mask_indices"][masked])]


def recorded_batch(**kwargs):
    collator = RecordedDraws(mask_token_id=MASK, block_size=int(TRAIN["block_size"]), **kwargs)
    columns = {"input_ids": TRAIN["base_ids"], "labels": TRAIN["labels"]}
    return collator([{**columns, "sample_lengths": LENGTHS, "sample_indices": [0, 1]}])


def batch_of(layout, block_size=8, prompt_length=3, **collator):
    """A batch of random tokens: `layout` lists the lengths of the samples of each row."""
    sequences = []
    for i, lengths in enumerate(layout):
        input_ids = random_tokens(1, sum(lengths), seed=i)[0].tolist()
        starts = np.cumsum([0, *lengths])
        is_prompt = [k - max(starts[starts <= k]) < prompt_length for k in range(len(input_ids))]
        labels = [-100 if prompt else token for token, prompt in zip(input_ids, is_prompt, strict=True)]
        indices = [100 * i + j for j in range(len(lengths))]
        sample = {"sample_lengths": lengths, "sample_indices": indices}
        sequences.append({"input_ids": input_ids, "labels": labels, **sample})
    return DualStreamCollator(mask_token_id=MASK, block_size=block_size, **collator)(sequences)


LAYOUT = [[33, 12, 1], [5], [64]]


def queries_of(batch):
    index = torch.arange(batch["sample_ids"].shape[1]).expand_as(batch["sample_ids"])
    return StreamQueries(*(batch[name] for name in IDS), index)


def total(model, batch, ar_loss_weight=1.0):
    return model(**scale_weights(batch, weight_sums(batch), ar_loss_weight)).loss


def forward_inputs(batch):
    return {name: batch[name] for name in ("input_ids", "position_ids", *IDS)}


def loss_and_gradients(model, batch):
    model.zero_grad()
    loss = total(model, batch)
    loss.backward()
    return {"loss": loss.detach(), **{name: weight.grad.clone() for name, weight in model.named_parameters()}}


# --- The recorded step ---


def test_recorded_batch_and_mask():
    batch = recorded_batch()
    assert batch["input_ids"][0].tolist() == TRAIN["packed_input_ids"].tolist()
    assert batch["position_ids"][0].tolist() == TRAIN["logical_positions"].tolist()
    is_masked = (batch["stream_ids"] == PREDICTION) & (batch["targets"] != -100)
    assert is_masked[0].tolist() == TRAIN["masked_indices"].tolist()
    assert batch["targets"][is_masked].tolist() == TRAIN["original_ids"][TRAIN["masked_indices"]].tolist()
    np.testing.assert_array_equal(batch["gammas"][0], TRAIN["p_mask"])
    recorded = np.unpackbits(TRAIN["attn_mask_packbits"], axis=1, count=len(TRAIN["packed_input_ids"]))
    assert dense_mask(queries_of(batch))[0, 0].tolist() == recorded.astype(bool).tolist()


@pytest.mark.parametrize("attention", FORMS)
def test_recorded_step(checkpoint, attention):
    model = load(checkpoint, attn_implementation=attention)
    batch = recorded_batch()
    recorded = {name.partition(".")[2]: values for name, values in TRAIN.items() if name.startswith(checkpoint.name)}
    logits = model(**forward_inputs(batch)).logits[0]
    np.testing.assert_allclose(logits.detach(), recorded["logits"], atol=1e-4, rtol=0)
    for ar_loss_weight, name in ((1.0, "total"), (0.5, "total_arw0.5"), (0.0, "mlm_weighted")):
        assert total(model, batch, ar_loss_weight).item() == pytest.approx(recorded[name], abs=1e-4)
    uniform = total(model, recorded_batch(loss_weighting="uniform"), ar_loss_weight=0.0)
    assert uniform.item() == pytest.approx(recorded["mlm_uniform"], abs=1e-4)
    ar = total(model, batch, ar_loss_weight=1e9)
    assert ar.item() == pytest.approx(recorded["ar"], abs=1e-4)

    total(model, batch).backward()
    names = [name for name in recorded if name.startswith("grad_norm.")]
    assert len(names) == 3
    for name in names:
        norm = model.get_parameter(name.removeprefix("grad_norm.")).grad.norm().item()
        assert norm == pytest.approx(recorded[name], abs=1e-3)
    norm = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
    assert norm.item() == pytest.approx(recorded["grad_norm_total"], abs=1e-3)


def test_without_idle_blocks_losses_and_gradients_are_the_same():
    model = load(CHECKPOINTS / "q25", attn_implementation="dual_stream")
    whole, lean = (batch_of(LAYOUT, prompt_length=20, drop_idle_blocks=drop) for drop in (False, True))
    assert lean["input_ids"].numel() < 0.9 * whole["input_ids"].numel()
    expected, got = (loss_and_gradients(model, batch) for batch in (whole, lean))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


# --- Decoding computes the same ---


@pytest.mark.parametrize("mask_draws", [1, 3])
@pytest.mark.parametrize("attention", FORMS)
def test_every_block_equals_a_forward_on_its_prefix_and_itself(checkpoint, attention, mask_draws):
    batch = batch_of(LAYOUT, mask_draws=mask_draws)
    logits = load(checkpoint, attn_implementation=attention)(**forward_inputs(batch)).logits
    forward = logits_of(load(checkpoint))
    blocks = 0
    for row in range(len(logits)):
        samples, streams, numbers = (batch[name][row] for name in IDS)
        for sample in range(samples.max() + 1):
            memory = (samples == sample) & (streams == MEMORY)
            text = batch["input_ids"][row, memory].tolist()
            torch.testing.assert_close(logits[row, memory], forward(text, range(len(text))), atol=1e-4, rtol=0)
            prediction = (samples == sample) & (streams == PREDICTION)
            for number in numbers[prediction].unique().tolist():
                block = prediction & (numbers == number)
                prefix = text[: 8 * (number // mask_draws)]
                tokens = prefix + batch["input_ids"][row, block].tolist()
                positions = [*range(len(prefix)), *batch["position_ids"][row, block].tolist()]
                expected = forward(tokens, positions)[len(prefix) :]
                torch.testing.assert_close(logits[row, block], expected, atol=1e-4, rtol=0)
                blocks += 1
    assert blocks == mask_draws * sum(-(-length // 8) for lengths in LAYOUT for length in lengths)


@pytest.mark.parametrize("attention", ["sdpa", "dual_stream"])
def test_no_sample_reaches_the_losses_of_another(checkpoint, attention):
    """The losses of a sample in a packed sequence depend, to the last bit, on no token of its neighbours."""
    model = load(checkpoint, attn_implementation=attention)
    batch = batch_of([[37, 20, 9]])
    is_second = batch["sample_ids"] == 1
    others = random_tokens(*is_second.shape, seed=5)
    changed = {**batch, "input_ids": batch["input_ids"].where(is_second, others)}
    losses, other_losses = (model(**inputs).target_losses for inputs in (batch, changed))
    assert torch.equal(losses[is_second], other_losses[is_second])
    assert (losses != other_losses)[~is_second & (batch["targets"] != -100)].float().mean() > 0.9
    # Nor does its own loss pull at them.
    embeddings = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    inputs = {**batch, "input_ids": None, "inputs_embeds": embeddings}
    inputs["target_weights"] = batch["target_weights"] * is_second
    model(**inputs).loss.backward()
    reached = embeddings.grad.abs().sum(-1) > 0
    assert reached[is_second].any() and not reached[~is_second].any()


# --- Who sees whom ---


def slowly_sees(queries, query, key):
    """The rule of the paper for one query and one key."""
    if queries.sample[query] != queries.sample[key]:
        return False
    if queries.stream[query] == MEMORY:  # memory is causal over memory
        return bool(queries.stream[key] == MEMORY and key <= query)
    if queries.stream[key] == MEMORY:  # the prediction sees all memory of earlier blocks
        return bool(queries.block[key] < queries.block[query])
    return bool(queries.block[key] == queries.block[query] and key <= query)  # and its own block up to itself


layouts = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=3)
ids = st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=16)


@given(ids)
def test_predicate_equals_the_slow_rule_for_queries_of_any_kind(ids):
    index = torch.arange(len(ids))[None]
    queries = StreamQueries(*(torch.tensor(column)[None] for column in zip(*ids, strict=True)), index)
    row = queries.at(0)
    expected = [[slowly_sees(row, query, key) for key in range(len(ids))] for query in range(len(ids))]
    assert dense_mask(queries)[0, 0].tolist() == expected


def test_block_mask_skips_what_nobody_sees():
    """200 queries of memory and 200 of prediction, twice, are 7 tiles of 128: those of other samples are left out."""
    queries = queries_of(batch_of([[200, 200]], block_size=32))
    mask = block_mask(queries)
    seen = torch.nn.functional.pad(dense_mask(queries), (0, 96, 0, 96)).view(1, 1, 7, 128, 7, 128).any(5).any(3)
    assert torch.equal(mask.to_dense().bool(), seen)
    assert seen.float().mean() < 0.5


@settings(deadline=None)
@given(layouts, st.integers(1, 4))
def test_decomposed_attention_equals_dense_attention(layout, block_size):
    queries = queries_of(batch_of(layout, block_size))
    shape = (*queries.sample.shape, 2, 4)
    tensors = [torch.randn(shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(4)]
    results = []
    for attention in (DecomposedAttention(queries), None):
        query, key, value = (x.clone().transpose(1, 2).requires_grad_() for x in tensors[:3])
        if attention is not None:
            output = attention(query, key, value, query.shape[-1] ** -0.5)
        else:
            output = plain_attention(query, key, value, dense_mask(queries))
        output = output * (queries.sample != PADDING)[..., None, None]
        output.backward(tensors[3])
        results.append([output.detach(), query.grad, key.grad, value.grad])
    torch.testing.assert_close(*results, atol=1e-9, rtol=0)


def test_gradients_of_bfloat16_are_closer_to_those_of_float32_than_its_inputs():
    queries = queries_of(batch_of([[150, 40]]))
    tensors = [torch.randn(*queries.sample.shape, 4, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        query, key, value = inputs = [x.bfloat16().to(dtype).transpose(1, 2).requires_grad_() for x in tensors[:3]]
        DecomposedAttention(queries)(query, key, value, 0.5).backward(tensors[3].bfloat16().to(dtype))
        results.append([x.grad.float() for x in inputs])
    for expected, got in zip(*results, strict=True):
        assert (got - expected).norm() < 0.004 * expected.norm()


def plain_attention(query, key, value, mask):
    output = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    return output.transpose(1, 2)


# --- The forms agree ---


def test_dropout_takes_the_dense_mask():
    """The kernel of the groups has none."""
    config = AutoConfig.from_pretrained(CHECKPOINTS / "q3", attn_implementation="dual_stream", attention_dropout=0.5)
    losses = []
    for attention in ("dual_stream", "sdpa"):
        torch.manual_seed(0)
        model = WeDLMForCausalLM(config).train()
        model.set_attn_implementation(attention)
        losses.append(total(model, batch_of([[33, 12]])))
    assert losses[0] == losses[1] != total(model.eval(), batch_of([[33, 12]]))


def test_autocast():
    batch = batch_of(LAYOUT)
    model = load(CHECKPOINTS / "q3", attn_implementation="dual_stream").train()
    full = loss_and_gradients(model, batch)
    model.gradient_checkpointing_enable()
    with torch.autocast("cpu", torch.bfloat16):
        half = loss_and_gradients(model, batch)
    assert half["loss"].dtype == torch.float32
    assert half["loss"] != full["loss"]
    for name in full:
        assert (half[name] - full[name]).norm() < 0.2 * full[name].norm(), name


@torch.no_grad()
def test_flex_attention(checkpoint, monkeypatch):
    monkeypatch.setattr(transformers_flex.WrappedFlexAttention, "_is_flex_compiled", False)
    batch = batch_of([[21, 7], [12]])
    is_text = batch["sample_ids"] != PADDING
    expected = load(checkpoint)(**forward_inputs(batch)).logits
    with torch.compiler.set_stance("force_eager"):
        model = load(checkpoint, attn_implementation="flex_attention")
        logits = model(**forward_inputs(batch)).logits
    torch.testing.assert_close(logits[is_text], expected[is_text], atol=1e-4, rtol=0)


@pytest.mark.slow
@torch.no_grad()
def test_flex_attention_with_its_compiled_kernel_and_mask(checkpoint, monkeypatch):
    # As on a GPU.
    monkeypatch.setattr(dual_stream, "create_block_mask", torch.compile(create_block_mask))
    torch.compiler.reset()
    model, dense = load(checkpoint, attn_implementation="flex_attention"), load(checkpoint)
    for layout in ([[21, 7], [12]], [[150], [90]], [[70, 40], [90, 30]]):
        batch = batch_of(layout)
        is_text = batch["sample_ids"] != PADDING
        logits, expected = (m(**forward_inputs(batch)).logits[is_text] for m in (model, dense))
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


# --- Memory ---


class Operations(TorchDispatchMode):
    """Counts the elements of the largest tensor, and the heads of the keys in each call of the kernel of attention."""

    def __init__(self):
        super().__init__()
        self.largest, self.key_heads = 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        if function is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            self.key_heads.append(args[1].shape[1])
        return output


def large_model():
    config = AutoConfig.from_pretrained(CHECKPOINTS / "q3", attn_implementation="dual_stream")
    config.num_hidden_layers = 1
    return WeDLMForCausalLM(config).train()


def test_attention_is_computed_once_copies_no_shared_heads_and_makes_nothing_of_quadratic_size():
    model, batch = large_model(), batch_of([[512]], block_size=32)
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    with Operations() as operations:
        total(model, batch).backward()
    assert operations.key_heads == [model.config.num_key_value_heads] * (1 + 512 // 32 // 4)  # memory, and the groups
    assert operations.largest < (2 * 512) ** 2 // 4


def bytes_kept_for_backward(length):
    model, batch = large_model(), batch_of([[length]], block_size=32)
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = (tensor, tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = total(model, batch)  # keeps the saved tensors alive
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    assert loss.requires_grad
    return sum(size for pointer, (_, size) in storages.items() if pointer not in weights)


def test_memory_is_linear_in_the_length():
    assert bytes_kept_for_backward(1024) < 2.05 * bytes_kept_for_backward(512)
    masks = []
    for length in (512, 1024):
        (groups,) = DecomposedAttention(queries_of(batch_of([[length]], block_size=32))).rows
        masks.append(sum(group.bias.numel() for group in groups if group.bias is not None))
    assert masks[1] == 2 * masks[0]


# --- The same model otherwise ---


def test_an_ordinary_forward_is_that_of_sdpa(checkpoint):
    inputs = {"input_ids": random_tokens(2, 12), "position_ids": torch.randperm(12).expand(2, -1), "use_cache": False}
    expected = load(checkpoint)(**inputs).logits
    assert torch.equal(load(checkpoint, attn_implementation="dual_stream")(**inputs).logits, expected)


# --- Refusals ---


def test_other_inputs_than_the_three_ids_are_refused(model):
    inputs = forward_inputs(batch_of([[9]]))
    cache = model(input_ids=random_tokens(1, 3))[CACHE]
    for other in ({"attention_mask": torch.ones(1, 18)}, {CACHE: cache}):
        with pytest.raises(ValueError, match=f"attention_mask or {CACHE} came with sample_ids.*leave out"):
            model(**inputs, **other)
    del inputs["position_ids"]
    with pytest.raises(ValueError, match="sample_ids, stream_ids and block_ids: got some.* pass them all"):
        model(**inputs)


def test_a_backend_that_cannot_is_refused_by_name(model):
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match='flash_attention_2.* cannot .*"dual_stream"'):
        model(**forward_inputs(batch_of([[9]])))


def test_sliding_windows_are_refused():
    config = AutoConfig.from_pretrained(CHECKPOINTS / "q3")
    config.update({"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention"] * 3})
    with pytest.raises(ValueError, match="layer_types=.*sliding_attention.*use_sliding_window=False"):
        WeDLMForCausalLM(config)(**forward_inputs(batch_of([[9]])))


@pytest.mark.parametrize(
    "samples, streams, blocks",
    [
        ([0, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 1]),  # the prediction first
        ([0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0]),  # blocks descending
        ([-1, -1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]),  # padding first
    ],
)
def test_streams_in_another_order_are_refused_only_where_they_are_decomposed(model, samples, streams, blocks):
    ids = {name: torch.tensor([values]) for name, values in zip(IDS, (samples, streams, blocks), strict=True)}
    inputs = {"input_ids": random_tokens(1, 4), "position_ids": torch.arange(4)[None], **ids}
    assert model(**inputs).logits.isfinite().all()
    model.set_attn_implementation("dual_stream")
    with pytest.raises(
        ValueError, match=r'do not list the memory.*DualStreamCollator.*set_attn_implementation\("sdpa'
    ):
        model(**inputs)


def test_a_row_of_padding_alone(checkpoint):
    model = load(checkpoint, attn_implementation="dual_stream")
    batch = batch_of([[9], [5]])
    expected = model(**forward_inputs(batch)).logits[0]
    batch["sample_ids"][1], batch["stream_ids"][1], batch["block_ids"][1] = PADDING, MEMORY, 0
    assert torch.equal(model(**forward_inputs(batch)).logits[0], expected)


def test_the_picture_of_the_documentation_shows_this_mask():
    drawn = run_path(str(REPOSITORY / "docs" / "images" / "draw_dual_stream.py"))
    assert drawn["FILE"].read_text(encoding="utf-8") == drawn["picture"]()
