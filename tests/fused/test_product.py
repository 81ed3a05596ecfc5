"""Products of a few rows are those of float64, by each instruction set and by torch."""

import ctypes
import mmap
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psutil
import pytest
import torch
from helpers import CHECKPOINTS, REPOSITORY, load, run_python
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings
from torch import nn
from torch.nn.functional import linear, pad, silu
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from wedlm.fused import instruction_set, product
from wedlm.fused.product import MOST_ROWS, Product, attend_few, rotate

SETS = [] if instruction_set._product is None else instruction_set._product.instruction_sets()
NUMBERS = {name: number for number, name in enumerate(SETS) if name is not None} | {"torch": None}
COMPILED = [name for name in NUMBERS if name != "torch"]
each_set = pytest.mark.parametrize("name", NUMBERS)
each_compiled_set = pytest.mark.parametrize("name", COMPILED)
DTYPES = [torch.float32, torch.bfloat16]
NOT_FINITE = [float("nan"), float("inf"), float("-inf")]


@contextmanager
def multiplied_by(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "NUMBER", NUMBERS[name])
        yield


@dataclass
class Case:
    """A product with all that may belong to it, and its rows."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    added: torch.Tensor | None = None
    norm: nn.Module | None = None
    scales: torch.Tensor | None = None
    is_gated: bool = False
    draft: tuple[torch.Tensor, torch.Tensor] | None = None
    is_text: torch.Tensor | None = None

    def product(self):
        return Product(self.weight, self.bias, self.norm, self.is_gated, self.scales)

    def run(self, of=None):
        draft = None if self.draft is None else (Product(self.draft[0], norm=self.norm), Product(self.draft[1]))
        return (of or self.product())(self.x, self.added, draft, self.is_text)

    def of_rows(self, rows):
        names = ("x", "added", "is_text")
        return replace(self, **{name: None if (all := getattr(self, name)) is None else all[rows] for name in names})

    def in_float64(self):
        """The result, and by how much it may differ where sums are exact to float32 and results are rounded once."""
        accuracy, rounding = 2e-6, 2**-8 if self.x.dtype == torch.bfloat16 else 2**-23
        if uses_torch(self) and self.x.dtype == torch.bfloat16:
            accuracy = 2**-6  # it rounds the normed input, and the sums before it adds to them
        if uses_tiles(self) and self.norm is not None:
            accuracy = 2**-8  # the normed input is rounded
        x = self.x.double()
        if self.norm is not None:
            x = x / (x.pow(2).mean(-1, keepdim=True) + self.norm.variance_epsilon).sqrt() * self.norm.weight.double()
        weight = self.weight.double() if self.scales is None else self.weight.double() * self.scales[:, None].double()
        y, bound = x @ weight.T, accuracy * (x.abs() @ weight.abs().T)
        for more in (self.bias, self.added):
            if more is not None:
                y, bound = y + more.double(), bound + accuracy * more.double().abs()
        if self.draft is not None:
            down, up = (each.double() for each in self.draft)
            results = (x @ down.T).masked_fill(self.is_text, 0)
            y = y + results @ up.T
            sizes = accuracy * (x.abs() @ down.abs().T) + (accuracy + rounding) * results.abs()
            bound = bound + sizes @ up.abs().T
        if self.is_gated:
            (gate, up), (gate_bound, up_bound) = y.chunk(2, dim=-1), bound.chunk(2, dim=-1)
            y = silu(gate) * up
            bound = 1.1 * gate_bound * (up.abs() + up_bound) + silu(gate).abs() * (up_bound + accuracy * up.abs())
        return y, bound + rounding * y.abs()


def uses_torch(case):
    return product.NUMBER is None or case.x.numel() > MOST_ROWS * case.x.shape[-1]


def uses_tiles(case):
    return not uses_torch(case) and SETS[product.NUMBER] == "amx" and case.weight.dtype == torch.bfloat16


def normal(*shape, dtype=torch.float32, std=1.0):
    return (torch.randn(*shape) * std).to(dtype)


def norm_of(width, dtype, epsilon=1e-5):
    norm = Qwen3RMSNorm(width, eps=epsilon)
    nn.init.normal_(norm.weight, 1.0, 0.3)
    return norm.to(dtype)


def make(seed, rows, inputs, outputs, dtype=torch.float32, has=()):
    """A random case, with the parts that `has` names."""
    torch.manual_seed(seed)
    sums = outputs * (2 if "gate" in has else 1)
    case = Case(normal(rows, inputs, dtype=dtype), normal(sums, inputs, dtype=dtype, std=inputs**-0.5))
    case.is_gated = "gate" in has
    if "int8" in has:
        case.weight = torch.randint(-127, 128, (sums, inputs), dtype=torch.int8)
        case.scales = torch.rand(sums) / inputs**0.5 / 70
    if "bias" in has:
        case.bias = normal(sums, dtype=dtype)
    if "added" in has:
        case.added = normal(rows, sums, dtype=dtype)
    if "norm" in has:
        case.norm = norm_of(inputs, dtype)
    if "draft" in has:
        rank = 5 if inputs % 32 else 32  # tiles have 32 inputs
        case.draft = normal(rank, inputs, dtype=dtype, std=inputs**-0.5), normal(sums, rank, dtype=dtype)
        case.is_text = torch.rand(rows, 1) < 0.5
    return case


parts = st.sets(st.sampled_from(["gate", "int8", "bias", "added", "norm", "draft"]))
widths = st.one_of(st.integers(1, 200), st.sampled_from([32, 64, 160]))
shapes = st.tuples(st.integers(1, MOST_ROWS + 1), widths, st.integers(1, 100))
cases = st.builds(
    lambda seed, shape, dtype, has: make(seed, *shape, dtype, has),
    st.integers(0, 99), shapes, st.sampled_from(DTYPES), parts,
)  # fmt: skip
few_rows = cases.map(lambda case: case.of_rows(range(min(len(case.x), MOST_ROWS))))


@each_set
@given(cases)
@property_settings(60, deadline=None)
def test_a_product_is_that_of_float64(name, case):
    with multiplied_by(name), torch.no_grad():
        got, (wanted, bound) = case.run(), case.in_float64()
    assert got.dtype == case.x.dtype and got.shape == wanted.shape
    assert ((got.double() - wanted).abs() <= bound).all()


@each_compiled_set
@given(few_rows, st.data())
@property_settings(60, deadline=None)
def test_a_row_does_not_depend_on_the_rows_beside_it(name, case, data):
    rows = data.draw(st.lists(st.sampled_from(range(len(case.x))), min_size=1, max_size=MOST_ROWS))
    with multiplied_by(name), torch.no_grad():
        assert torch.equal(case.of_rows(rows).run(), case.run()[rows])


@each_compiled_set
@given(few_rows, st.data())
@property_settings(60, deadline=None)
def test_what_is_not_finite_stays_so_in_its_row_and_column(name, case, data):
    for values in (case.x, case.weight, case.bias, case.added):
        if values is not None and values.is_floating_point() and data.draw(st.booleans()):
            values.view(-1)[data.draw(st.integers(0, values.numel() - 1))] = data.draw(st.sampled_from(NOT_FINITE))
    with multiplied_by(name), torch.no_grad():
        got, (wanted, _) = case.run(), case.in_float64()
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(got), kind(wanted))


@each_set
def test_the_gate_is_silu_up_to_the_largest_numbers(name):
    gates = torch.tensor([*NOT_FINITE, *torch.linspace(-100, 100, 401), -1e4, -1e30, -3e38, 1e4, 1e30, 0.0])
    with multiplied_by(name):
        one = Product(torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 2.0]), is_gated=True)
        got = torch.cat([one(part) for part in gates[:, None].split(MOST_ROWS)])
    torch.testing.assert_close(got[:, 0], silu(gates) * (gates * 0 + 2), equal_nan=True, rtol=1e-6, atol=1e-30)


@each_compiled_set
def test_results_are_rounded_to_bfloat16_as_torch_rounds(name):
    torch.manual_seed(0)
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8])
    other_nans = torch.tensor([2**31 - 1, -1], dtype=torch.int32).view(torch.float32)  # whose bits are all ones
    sizes = 10 ** torch.linspace(-44, 38, 200)
    numbers = torch.cat([ties, torch.randn(500), sizes, torch.tensor([3.4e38, *NOT_FINITE]), other_nans])
    with multiplied_by(name):
        one = Product(torch.ones(len(numbers), 1, dtype=torch.int8), scales=numbers)
        got = one(torch.ones(1, 1, dtype=torch.bfloat16))
    torch.testing.assert_close(got[0], numbers.bfloat16(), rtol=0, atol=0, equal_nan=True)


# --- Where a product is computed ---


@pytest.fixture
def threads():
    """Sets the number of threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


LARGE = {"rows": 5, "inputs": 150, "outputs": 331, "has": ("gate", "norm", "draft", "bias", "added")}


@each_compiled_set
def test_threads_change_no_bit(name, threads):
    case = make(0, **LARGE)
    query, keys, values = (normal(2, heads, n, 24) for heads, n in ((6, 9), (3, 300), (3, 300)))
    seen = torch.rand(2, 1, 9, 300) < 0.8
    with multiplied_by(name), torch.no_grad():
        wanted, attended = case.run(), attend_few(query, keys, values, seen, 1.0)
        for number in (2, 3, 4):
            threads(number)
            assert torch.equal(case.run(), wanted)
            assert torch.equal(attend_few(query, keys, values, seen, 1.0), attended)


@each_compiled_set
def test_products_run_side_by_side(name, threads):
    cases = [make(seed, **LARGE) for seed in range(4)]

    def run(case):
        with torch.no_grad():
            return [case.run() for _ in range(30)]

    with multiplied_by(name), torch.no_grad(), ThreadPoolExecutor(4) as pool:
        wanted = [case.run() for case in cases]
        threads(2)
        for many, one in zip(pool.map(run, cases), wanted, strict=True):
            assert all(torch.equal(each, one) for each in many)


@pytest.mark.skipif(not COMPILED, reason="installed without a compiler")
def test_a_forked_process_multiplies(tmp_path):
    """The two threads that it had for that stay behind in the process that forked."""
    run_python(
        """
import os, psutil, signal, torch
from wedlm.fused.product import Product

torch.set_num_threads(3)
product, x = Product(torch.randn(300, 200)), torch.randn(4, 200)
before = psutil.Process().num_threads()
wanted = product(x)
assert psutil.Process().num_threads() == before + 2
if child := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
else:
    signal.alarm(60)
    os._exit(0 if torch.equal(product(x), wanted) else 1)
""",
        tmp_path,
    )


@each_set
@pytest.mark.parametrize("shape", [(), (0,), (2, 1, 3)], ids=str)
def test_rows_come_in_any_shape(name, shape):
    weight, x, added = normal(20, 30), normal(*shape, 30), normal(*shape, 20)
    with multiplied_by(name):
        torch.testing.assert_close(Product(weight)(x), x @ weight.T)
        torch.testing.assert_close(Product(weight)(x, added), x @ weight.T + added)


@each_set
@pytest.mark.parametrize("x", [torch.ones(2, 30, dtype=torch.bfloat16), torch.ones(2, 15)])
def test_what_torch_refuses_is_refused(name, x):
    weight = normal(20, 30)
    with pytest.raises(RuntimeError) as refused:
        linear(x, weight)
    with multiplied_by(name), pytest.raises(RuntimeError) as refused_too:
        Product(weight)(x)
    assert str(refused_too.value) == str(refused.value)


@each_set
def test_other_dtypes_and_devices_are_left_to_torch(name):
    case = make(0, 4, 30, 20, has=("bias", "added"))
    for part in ("x", "weight", "bias", "added"):
        setattr(case, part, getattr(case, part).double())
    with multiplied_by(name):
        torch.testing.assert_close(case.run(), case.in_float64()[0])
        assert Product(normal(20, 30))(normal(2, 30).to("meta")).device.type == "meta"


def at_a_forbidden_page(tensor, place):
    """The same tensor, right before or right behind memory that nobody may read."""
    size = (tensor.nbytes + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    page, offset = (start, mmap.PAGESIZE) if place == "behind" else (start + size, size - tensor.nbytes)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, 0) == 0
    there = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    return there.copy_(tensor.flatten()).view(tensor.shape)


@each_compiled_set
@pytest.mark.parametrize("place", ["before", "behind"])
@given(few_rows)
@property_settings(60, deadline=None)
def test_a_product_reads_its_tensors_and_nothing_else(name, place, case):
    """Otherwise the process ends here."""
    with multiplied_by(name), torch.no_grad():
        wanted = case.run()
        for part in ("x", "weight", "bias", "added", "scales", "is_text"):
            if (tensor := getattr(case, part)) is not None:
                setattr(case, part, at_a_forbidden_page(tensor, place))
        if case.norm is not None:
            case.norm.weight = nn.Parameter(at_a_forbidden_page(case.norm.weight.detach(), place))
        if case.draft is not None:
            case.draft = tuple(at_a_forbidden_page(each, place) for each in case.draft)
        assert torch.equal(case.run(), wanted)


@each_compiled_set
def test_products_leave_no_memory_behind(name):
    case = make(0, MOST_ROWS, 200, 3, has=("draft",))
    with multiplied_by(name), torch.no_grad():
        of = case.product()
        case.run(of)
        before = psutil.Process().memory_info().rss
        for _ in range(1000):
            case.run(of)
    assert psutil.Process().memory_info().rss - before < 5e5, "the smallest part has 640 bytes"


# --- Which instruction set ---


def test_the_environment_chooses(monkeypatch):
    monkeypatch.delenv(instruction_set.CHOICE, raising=False)
    vectors = [name for name in COMPILED if name != "plain"]
    assert instruction_set.instruction_set() == (vectors[0] if vectors else None), "the widest vectors, or torch"
    for name, number in NUMBERS.items():
        monkeypatch.setenv(instruction_set.CHOICE, name)
        assert instruction_set.instruction_set() == (None if number is None else name)
    monkeypatch.setenv(instruction_set.CHOICE, "nonsense")
    sentence = f"WEDLM_PRODUCT=nonsense is not on this machine; choose one of {', '.join([*COMPILED, 'torch'])}."
    with pytest.raises(ValueError, match=sentence):
        instruction_set.instruction_set()


DECODE = f"""
import torch, wedlm
from wedlm.fused.model import product_of

model = wedlm.fuse(wedlm.WeDLMForCausalLM.from_pretrained({str(CHECKPOINTS / "q3")!r}).eval())
print(model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=20, decoding="verified").tolist(), product_of(model))
"""


def text_of_the_plain_model():
    model = load(CHECKPOINTS / "q3")
    return model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=20, decoding="verified").tolist()


@pytest.mark.full
def test_installed_without_a_compiler_torch_multiplies(tmp_path):
    build = ["setup.py", "build", "--build-base", tmp_path / "base", "--build-lib", tmp_path / "installed"]
    built = subprocess.run(
        [sys.executable, *build], cwd=REPOSITORY, env=os.environ | {"CC": "false"}, capture_output=True, text=True
    )
    assert built.returncode == 0 and 'building extension "wedlm.fused._product" failed' in built.stderr
    where = f"import wedlm; assert wedlm.__file__.startswith({str(tmp_path)!r})"
    said = run_python(where + DECODE, tmp_path, PYTHONPATH=str(tmp_path / "installed"))
    assert said.splitlines()[0] == f"{text_of_the_plain_model()} torch"


# --- Products in compiled code ---

EXTRAS = [("int8", "bias"), ("gate", "norm", "draft", "bias", "added")]


@pytest.mark.parametrize("name", [*COMPILED[:1], "torch"])
@pytest.mark.parametrize("has", EXTRAS, ids=str)
def test_compiled_code_has_the_same_product(name, has):
    torch.compiler.reset()
    case = make(0, 3, 20, 11, has=has)
    with multiplied_by(name), torch.no_grad():
        compiled = torch.compile(case.product(), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(case.run(compiled), case.run())


# --- Rotations ---


@pytest.mark.parametrize("name", [*COMPILED[:1], "torch"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_norms", [True, False], ids=["norms", "no norms"])
@pytest.mark.parametrize(
    ("batch", "queries", "width", "cos_batch"),
    [(1, 5, 64, 1), (3, 5, 6, 3), (2, 20, 8, 2), (1, 2, 258, 1)],
)
def test_queries_and_keys_are_rotated_as_in_transformers(name, dtype, has_norms, batch, queries, width, cos_batch):
    torch.manual_seed(0)
    heads, num_queries, num_rotated = normal(batch, queries, 8, width, dtype=dtype), 4, 6
    angles = torch.rand(cos_batch, queries, width // 2).repeat(1, 1, 2) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    norms = [norm_of(width, dtype, epsilon) for epsilon in (1e-5, 0.5)] if has_norms else []
    parts = [heads[:, :, :num_queries], heads[:, :, num_queries:num_rotated]]
    wide = [part.double() for part in parts]
    if has_norms:
        wide = [norm.double()(part) for norm, part in zip(norms, wide, strict=True)]
        norms = [norm.to(dtype) for norm in norms]
    wanted = apply_rotary_pos_emb(*wide, cos.double(), sin.double(), unsqueeze_dim=2)
    values = heads[:, :, num_rotated:].clone()
    with multiplied_by(name), torch.no_grad():
        weights = (*(norm.weight for norm in norms), 1e-5, 0.5) if has_norms else ()
        rotated = rotate(heads, num_queries, num_rotated, cos, sin, *weights)
    bounds = {torch.float32: (1e-6, 1e-5), torch.bfloat16: (2**-8, 2**-6)}[dtype]
    torch.testing.assert_close(rotated.double(), torch.cat(wanted, dim=2), rtol=bounds[0], atol=bounds[1])
    assert torch.equal(heads[:, :, num_rotated:], values)


# --- Attention ---

BIASES = ["causal", "seen", "added"]


@dataclass
class Attention:
    """Queries, keys and values as views of larger tensors, as they come from a projection and a cache."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    bias: torch.Tensor | None

    def run(self):
        return attend_few(self.query, self.keys, self.values, self.bias, 0.3)

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
def attentions(draw, biases=BIASES, dtypes=DTYPES):
    torch.manual_seed(draw(st.integers(0, 1000)))
    bias, dtype = draw(st.sampled_from(biases)), draw(st.sampled_from(dtypes))
    batch, key_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    num_queries, width = draw(st.integers(1, MOST_ROWS // batch)), draw(st.integers(1, 40)) * 2
    num_entries = draw(st.integers(num_queries, 80))
    if bias == "causal":
        num_queries = draw(st.sampled_from([1, min(num_entries, num_queries)]))
        num_entries = num_entries if num_queries == 1 else num_queries
    heads = group * key_heads
    query = normal(batch, num_queries, heads + 3, width, dtype=dtype, std=3.0).transpose(1, 2)[:, :heads]
    keys, values = (normal(batch, key_heads, num_entries + 5, width, dtype=dtype)[:, :, :num_entries] for _ in "kv")
    seen = torch.rand(batch, 1, num_queries, num_entries) < 0.7
    added = torch.where(seen, normal(*seen.shape), torch.finfo(dtype).min).to(dtype)
    seen[..., 0] = added[..., 0] = 1
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
@given(attentions(biases=["seen", "added"]), st.data())
@property_settings(60, deadline=None)
def test_the_attention_of_a_query_depends_on_no_other_query_and_on_nothing_that_it_does_not_see(name, case, data):
    with multiplied_by(name):
        wanted = case.run()
        row, query = (data.draw(st.integers(0, size - 1)) for size in (len(wanted), wanted.shape[1]))
        place = (slice(row, row + 1), slice(None), slice(query, query + 1))
        more = data.draw(st.integers(0, 40))  # entries that it does not see
        keys, values = (pad(x[row : row + 1], (0, 0, 0, more), value=7.0) for x in (case.keys, case.values))
        unseen = False if case.bias.dtype == torch.bool else torch.finfo(case.bias.dtype).min
        alone = Attention(case.query[place], keys, values, pad(case.bias[place], (0, more), value=unseen))
        assert torch.equal(alone.run()[0, 0], wanted[row, query])


@each_compiled_set
@pytest.mark.parametrize("value", NOT_FINITE)
def test_what_is_not_finite_stays_with_the_queries_that_see_it(name, value):
    query, keys, values = normal(1, 2, 3, 8), normal(1, 2, 20, 8), normal(1, 2, 20, 8)
    seen = torch.ones(1, 1, 3, 20, dtype=torch.bool)
    seen[..., 1, :] = False  # it gets zeros
    with multiplied_by(name):
        wanted = attend_few(query, keys, values, seen, 1.0)
        keys[:, :, 4] = value
        got = attend_few(query, keys, values, seen, 1.0)
    assert (got[:, 1] == 0).all() and (wanted[:, 0] != 0).any()
    if value != value:
        assert got[:, [0, 2]].isnan().all()


@each_compiled_set
@pytest.mark.parametrize("place", ["before", "behind"])
@given(attentions())
@property_settings(30, deadline=None)
def test_attention_reads_its_tensors_and_nothing_else(name, place, case):
    with multiplied_by(name):
        wanted = case.run()
        for part in ("query", "keys", "values", "bias"):
            if (tensor := getattr(case, part)) is not None:
                setattr(case, part, at_a_forbidden_page(tensor, place))
        assert torch.equal(case.run(), wanted)


@each_compiled_set
def test_other_attention_is_left_to_torch(name):
    query, keys, bias = normal(1, 4, 3, 8), normal(1, 2, 10, 8), torch.zeros(1, 1, 3, 10)
    many = normal(1, 4, MOST_ROWS + 1, 8)
    with multiplied_by(name):
        assert attend_few(query, keys, keys, bias, 1.0) is not None
        assert attend_few(query, keys, keys, None, 1.0) is None, "which of the entries are the queries?"
        assert attend_few(many, keys, keys, torch.zeros(1, 1, MOST_ROWS + 1, 10), 1.0) is None
        assert attend_few(query.double(), keys.double(), keys.double(), bias.double(), 1.0) is None
        assert attend_few(query, keys.bfloat16(), keys.bfloat16(), bias, 1.0) is None
        assert attend_few(query, keys, keys, bias.double(), 1.0) is None
        assert attend_few(query, keys, keys, bias.expand(1, 4, 3, 10), 1.0) is None, "a bias for each head"
        assert attend_few(query, keys, keys, bias[..., :1], 1.0) is None, "one bias for all entries"
        assert attend_few(query, keys, keys[..., :4], bias, 1.0) is None, "values of another width"
        assert attend_few(query, keys.mT.contiguous().mT, keys, bias, 1.0) is None
