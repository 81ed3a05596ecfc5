"""Rotation and attention in C are those of float64, by each instruction set."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from instruction_sets import (
    DTYPES,
    NOT_FINITE,
    at_a_forbidden_page,
    each_compiled_set,
    multiplied_by,
    norm_of,
    normal,
)
from tiers import property_settings
from torch.nn.functional import pad
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from wedlm.fused import native
from wedlm.fused.product import MOST_ROWS, TYPES, Product, address, rotate

BIASES = ["causal", "seen", "added"]


def forward_of(layer, batch, queries, num_heads, num_key_heads, width, dtype, **fields):
    """A forward through one layer."""
    return native.Forward(
        layers=native.addressof(layer), num_layers=1, batch=batch, queries=queries, num_heads=num_heads,
        num_key_heads=num_key_heads, width=width, type=TYPES[dtype], threads=torch.get_num_threads(),
        set=native.NUMBER, **{"entries": queries, **fields},
    )  # fmt: skip


# --- Rotations ---


def rotated_in_c(heads, num_queries, num_rotated, cos, sin, norms):
    """The heads of queries, keys and values that a projection by the identity gives, or of many rows, as they are."""
    batch, queries, all_heads, width = heads.shape
    weight, is_few = torch.eye(all_heads * width, dtype=heads.dtype), batch * queries <= MOST_ROWS
    layer, product = native.Layer(), Product(weight)
    layer.query_key_value = product.described()
    for name, norm in zip(("query", "key"), norms, strict=False):
        setattr(layer, f"{name}_norm", address(norm.weight))
        setattr(layer, f"{name}_epsilon", norm.variance_epsilon)
    rotated, heads = torch.empty_like(heads) if is_few else heads.clone(), heads.contiguous()
    native.forward(
        forward_of(
            layer, batch, queries, num_queries, num_rotated - num_queries, width, heads.dtype,
            stages=native.PROJECT if is_few else native.ROTATE, hidden=heads.data_ptr(), heads=rotated.data_ptr(),
            cosines=cos.data_ptr(), sines=sin.data_ptr(),
            angle_stride=queries * width if len(cos) > 1 else 0,
        )
    )  # fmt: skip
    return rotated


def rotated_by_torch(heads, num_queries, num_rotated, cos, sin, norms):
    weights = (*(norm.weight for norm in norms), *(norm.variance_epsilon for norm in norms))
    rotated = rotate(heads, num_queries, num_rotated, cos, sin, *weights)
    return torch.cat((rotated, heads[:, :, num_rotated:]), dim=2)


def check_rotation(run, dtype, has_norms, batch, queries, width, cos_batch):
    torch.manual_seed(0)
    heads, num_queries, num_rotated = normal(batch, queries, 8, width, dtype=dtype), 4, 6
    angles = torch.rand(cos_batch, queries, width // 2).repeat(1, 1, 2) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    norms = [norm_of(width, dtype, epsilon) for epsilon in (1e-5, 0.5)] if has_norms else []
    wide = [part.double() for part in (heads[:, :, :num_queries], heads[:, :, num_queries:num_rotated])]
    if has_norms:
        wide = [norm.double()(part) for norm, part in zip(norms, wide, strict=True)]
        norms = [norm.to(dtype) for norm in norms]
    wanted = apply_rotary_pos_emb(*wide, cos.double(), sin.double(), unsqueeze_dim=2)
    with torch.no_grad():
        rotated = run(heads, num_queries, num_rotated, cos, sin, norms)
    bounds = {torch.float32: (1e-6, 1e-5), torch.bfloat16: (2**-8, 2**-6)}[dtype]
    wanted = torch.cat((*wanted, heads[:, :, num_rotated:].double()), dim=2)
    torch.testing.assert_close(rotated.double(), wanted, rtol=bounds[0], atol=bounds[1])


shapes_of_heads = pytest.mark.parametrize(
    ("batch", "queries", "width", "cos_batch"),
    [(1, 5, 64, 1), (3, 5, 6, 3), (2, 16, 8, 2), (3, 2, 10, 1), (2, 40, 12, 2)],
)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
with_and_without_norms = pytest.mark.parametrize("has_norms", [True, False], ids=["norms", "no norms"])


@each_compiled_set
@each_dtype
@with_and_without_norms
@shapes_of_heads
def test_queries_and_keys_are_rotated_in_c(name, dtype, has_norms, batch, queries, width, cos_batch):
    with multiplied_by(name):
        check_rotation(rotated_in_c, dtype, has_norms, batch, queries, width, cos_batch)


@each_dtype
@with_and_without_norms
@shapes_of_heads
def test_queries_and_keys_are_rotated_by_torch(dtype, has_norms, batch, queries, width, cos_batch):
    check_rotation(rotated_by_torch, dtype, has_norms, batch, queries, width, cos_batch)


# --- Attention ---


@dataclass
class Attention:
    """Queries, keys and values as views of larger tensors, as they come from a projection and a cache."""

    query: torch.Tensor  # [batch, heads, queries, head_dim], as are keys and values
    keys: torch.Tensor
    values: torch.Tensor
    bias: torch.Tensor | None  # [batch, 1, queries, entries]

    def run(self):
        """`[batch, queries, heads, head_dim]`."""
        batch, num_heads, queries, width = self.query.shape
        num_keys, entries = self.keys.shape[1:3]
        heads = pad(self.query.transpose(1, 2), (0, 0, 0, 2 * num_keys)).contiguous()
        attended = torch.empty(batch, queries, num_heads, width, dtype=self.query.dtype)
        states, layer = native.States(keys=self.keys.data_ptr(), values=self.values.data_ptr()), native.Layer()
        forward = forward_of(
            layer, batch, queries, num_heads, num_keys, width, self.query.dtype, entries=entries, scaling=0.3,
            states=native.addressof(states), heads=heads.data_ptr(), attended=attended.data_ptr(),
            stages=native.ATTEND,
        )  # fmt: skip
        forward.key_strides[:], forward.value_strides[:] = self.keys.stride()[:3], self.values.stride()[:3]
        if self.bias is not None:
            forward.bias, is_seen = self.bias.data_ptr(), self.bias.dtype == torch.bool
            forward.bias_kind = native.SEEN if is_seen else native.ADDED
            forward.bias_strides[:] = self.bias.stride(0), self.bias.stride(2)
        native.forward(forward)
        return attended

    def in_float64(self):
        """The result, and by how much it may differ."""
        group = self.query.shape[1] // self.keys.shape[1]
        keys, values = (x.double().repeat_interleave(group, dim=1) for x in (self.keys, self.values))
        scores = self.query.double() @ keys.mT * 0.3
        if self.bias is None:
            scores = scores + torch.full(scores.shape[2:], -torch.inf).triu(1 + scores.shape[3] - scores.shape[2])
        elif self.bias.dtype == torch.bool:
            scores = scores.masked_fill(~self.bias, -torch.inf)
        else:
            scores = scores + self.bias.double()
        weights = scores.softmax(-1).nan_to_num(0)  # 0 where nothing is seen
        rounding = 2**-8 if self.query.dtype == torch.bfloat16 else 2e-5
        return [(weights @ each).transpose(1, 2) for each in (values, values.abs() * rounding)]


@st.composite
def attentions(draw, biases=BIASES, sizes=("few", "many")):
    """Of more than MOST_ROWS rows C takes some after the others."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    bias, dtype = draw(st.sampled_from(biases)), draw(st.sampled_from(DTYPES))
    batch, key_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    smallest, largest = {"few": (1, MOST_ROWS // batch), "many": (MOST_ROWS // batch + 1, 150)}[
        draw(st.sampled_from(sizes))
    ]
    num_queries = draw(st.integers(smallest, largest))
    width = draw(st.one_of(st.integers(1, 40), st.just(128))) * 2
    num_entries = draw(st.one_of(st.integers(num_queries, num_queries + 16), st.integers(num_queries + 99, 1600)))
    heads = group * key_heads
    query = normal(batch, num_queries, heads + 3, width, dtype=dtype, std=3.0 if width < 100 else 1.0).transpose(1, 2)[
        :, :heads
    ]
    keys, values = (normal(batch, key_heads, num_entries + 5, width, dtype=dtype)[:, :, :num_entries] for _ in "kv")
    seen = torch.rand(batch, 1, num_queries, num_entries) < 0.7
    before, behind = (draw(st.integers(0, num_entries - 1)) for _ in range(2))
    seen[..., :before], seen[..., 1 + behind :] = False, False
    added = torch.where(seen, normal(*seen.shape), torch.finfo(dtype).min).to(dtype)
    one = draw(st.integers(0, num_entries - 1))
    seen[..., one] = added[..., one] = 1
    return Attention(query, keys, values, {"causal": None, "seen": seen, "added": added}[bias])


@each_compiled_set
@given(attentions())
@property_settings(60, deadline=None)
def test_attention_is_that_of_float64(name, case):
    with multiplied_by(name):
        got = case.run()
    wanted, bound = case.in_float64()
    assert got.dtype == case.query.dtype
    assert ((got.double() - wanted).abs() <= bound + 1e-6).all()


@each_compiled_set
@given(attentions(biases=["seen", "added"], sizes=["few"]), st.data())
@property_settings(60, deadline=None)
def test_the_attention_of_a_query_depends_on_no_other_query_and_on_nothing_that_it_does_not_see(name, case, data):
    with multiplied_by(name):
        wanted = case.run()
        row, query = (data.draw(st.integers(0, size - 1)) for size in (len(wanted), wanted.shape[1]))
        place = (slice(row, row + 1), slice(None), slice(query, query + 1))
        more = data.draw(st.integers(0, 400))  # entries that it does not see
        keys, values = (pad(x[row : row + 1], (0, 0, 0, more), value=7.0) for x in (case.keys, case.values))
        unseen = False if case.bias.dtype == torch.bool else torch.finfo(case.bias.dtype).min
        alone = Attention(case.query[place], keys, values, pad(case.bias[place], (0, more), value=unseen))
        assert torch.equal(alone.run()[0, 0], wanted[row, query])


@each_compiled_set
@given(attentions(biases=["seen", "added"], sizes=["many"]), st.data())
@property_settings(60, deadline=None)
def test_of_many_queries_each_depends_on_no_other_and_on_nothing_that_it_does_not_see(name, case, data):
    with multiplied_by(name):
        wanted = case.run()
        row, query = (data.draw(st.integers(0, size - 1)) for size in (len(wanted), wanted.shape[1]))
        bias = case.bias[row, 0, query]
        is_seen = bias if bias.dtype == torch.bool else bias > torch.finfo(bias.dtype).min
        others = torch.arange(wanted.shape[1]) != query
        case.query[row, :, others] = 7.0
        case.keys[row, :, ~is_seen] = case.values[row, :, ~is_seen] = 7.0
        assert torch.equal(case.run()[row, query], wanted[row, query])


@each_compiled_set
@pytest.mark.parametrize("value", NOT_FINITE)
def test_what_is_not_finite_stays_with_the_queries_that_see_it(name, value):
    query, keys, values = normal(1, 2, 3, 8), normal(1, 2, 20, 8), normal(1, 2, 20, 8)
    seen = torch.ones(1, 1, 3, 20, dtype=torch.bool)
    seen[..., 1, :] = False  # it gets zeros
    case = Attention(query, keys, values, seen)
    with multiplied_by(name):
        wanted = case.run()
        keys[:, :, 4] = value
        got = case.run()
    assert (got[:, 1] == 0).all() and (wanted[:, 0] != 0).any()
    if value != value:
        assert got[:, [0, 2]].isnan().all()


@each_compiled_set
@pytest.mark.parametrize("place", ["before", "behind"])
@given(attentions())
@property_settings(60, deadline=None)
def test_attention_reads_its_tensors_and_nothing_else(name, place, case):
    with multiplied_by(name):
        wanted = case.run()
        for part in ("keys", "values", "bias"):
            if (tensor := getattr(case, part)) is not None:
                setattr(case, part, at_a_forbidden_page(tensor, place))
        assert torch.equal(case.run(), wanted)


@each_compiled_set
@pytest.mark.parametrize("queries", [9, 90])
def test_threads_change_no_bit(name, queries):
    before = torch.get_num_threads()
    query, keys, values = (normal(2, heads, n, 24) for heads, n in ((6, queries), (3, 1300), (3, 1300)))
    case = Attention(query, keys, values, torch.rand(2, 1, queries, 1300) < 0.8)
    with multiplied_by(name):
        wanted = case.run()
        for number in (2, 3, 4):
            torch.set_num_threads(number)
            assert torch.equal(case.run(), wanted)
    torch.set_num_threads(before)
