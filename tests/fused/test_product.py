"""Products of a few rows are those of float64, by each instruction set and by torch."""

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import SimpleNamespace

import psutil
import pytest
import torch
from gguf_files import random_blocks
from helpers import CHECKPOINTS, REPOSITORY, load, run_python
from hypothesis import given
from hypothesis import strategies as st
from instruction_sets import (
    COMPILED,
    DTYPES,
    NOT_FINITE,
    NUMBERS,
    SETS,
    at_a_forbidden_page,
    each_compiled_set,
    each_set,
    multiplied_by,
    norm_of,
    normal,
)
from tiers import property_settings
from torch import nn
from torch.nn.functional import linear, silu

from wedlm.fused import native, product
from wedlm.fused.blocks import BLOCKS, Packed
from wedlm.fused.product import MOST_ROWS, Product


@dataclass
class Case:
    """A product with all that may belong to it, and its rows."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    added: torch.Tensor | None = None
    norm: nn.Module | None = None
    blocks: list[Packed] | None = None  # the same weights
    is_gated: bool = False
    draft: tuple[torch.Tensor, torch.Tensor] | None = None
    is_text: torch.Tensor | None = None

    def product(self):
        draft = None if self.draft is None else (Product(self.draft[0], norm=self.norm), Product(self.draft[1]))
        return Product(self.blocks or self.weight, self.bias, self.norm, self.is_gated, draft)

    def run(self, of=None):
        return (of or self.product())(self.x, self.added, self.is_text)

    def of_rows(self, rows):
        names = ("x", "added", "is_text")
        return replace(self, **{name: None if (all := getattr(self, name)) is None else all[rows] for name in names})

    def in_float64(self):
        """The result, and by how much it may differ where sums are exact to float32 and results are rounded once."""
        accuracy, rounding = 2e-6, 2**-8 if self.x.dtype == torch.bfloat16 else 2**-23
        if uses_torch(self) and self.x.dtype == torch.bfloat16:
            accuracy = 2**-6  # it rounds the normed input, and the sums before it adds to them
        draft_accuracy = accuracy
        if rounds_inputs(self) and self.norm is not None:  # the normed input
            draft_accuracy, accuracy = 2**-8, 2**-8 if self.weight.dtype == torch.bfloat16 else accuracy
        x = self.x.double()
        if self.norm is not None:
            x = x / (x.pow(2).mean(-1, keepdim=True) + self.norm.variance_epsilon).sqrt() * self.norm.weight.double()
        weight = self.weight.double()
        y, bound = x @ weight.T, accuracy * (x.abs() @ weight.abs().T)
        for more in (self.bias, self.added):
            if more is not None:
                y, bound = y + more.double(), bound + accuracy * more.double().abs()
        if self.draft is not None:
            down, up = (each.double() for each in self.draft)
            results = (x @ down.T).masked_fill(self.is_text, 0)
            y = y + results @ up.T
            sizes = draft_accuracy * (x.abs() @ down.abs().T) + (draft_accuracy + rounding) * results.abs()
            bound = bound + sizes @ up.abs().T
        if self.is_gated:
            (gate, up), (gate_bound, up_bound) = y.chunk(2, dim=-1), bound.chunk(2, dim=-1)
            y = silu(gate) * up
            bound = 1.1 * gate_bound * (up.abs() + up_bound) + silu(gate).abs() * (up_bound + accuracy * up.abs())
        return y, bound + rounding * y.abs()


def uses_torch(case):
    return native.NUMBER is None or case.x.numel() > MOST_ROWS * case.x.shape[-1]


def rounds_inputs(case):
    """Whether bfloat16 is multiplied with inputs that are rounded, too, as pairs and tiles are."""
    return not uses_torch(case) and SETS[native.NUMBER] in ("amx", "avx512bf16") and case.x.dtype == torch.bfloat16


def make(seed, rows, inputs, outputs, dtype=torch.float32, has=()):
    """A random case, with the parts that `has` names."""
    torch.manual_seed(seed)
    sums = outputs * (2 if "gate" in has else 1)
    if "blocks" in has:
        types = random.Random(seed).sample(list(BLOCKS), sums // outputs)
        inputs += -inputs % max(32, *(BLOCKS[type].length for type in types))
    case = Case(normal(rows, inputs, dtype=dtype), normal(sums, inputs, dtype=dtype, std=inputs**-0.5))
    case.is_gated = "gate" in has
    if "blocks" in has:
        order = torch.randperm(outputs).int() if seed % 2 else None
        case.blocks = [Packed(random_blocks(type, outputs, inputs, seed), type, order) for type in types]
        case.weight = torch.cat([part.numbers(torch.float32, slice(None)) for part in case.blocks])
    if "bias" in has:
        case.bias = normal(sums, dtype=dtype)
    if "added" in has:
        case.added = normal(rows, sums, dtype=dtype)
    if "norm" in has:
        case.norm = norm_of(inputs, dtype)
    if "draft" in has:
        rank = 5 if inputs % 32 else 32  # tiles have 32 inputs
        down = normal(rank, inputs, dtype=dtype, std=inputs**-0.5)
        case.draft = down, normal(sums, rank, dtype=dtype, std=rank**-0.5)
        case.is_text = torch.rand(rows, 1) < 0.5
    return case


parts = st.sets(st.sampled_from(["gate", "blocks", "bias", "added", "norm", "draft"]))
widths = st.one_of(st.integers(1, 200), st.sampled_from([32, 64, 160]))
shapes = st.tuples(st.integers(1, MOST_ROWS + 9), widths, st.one_of(st.integers(1, 100), st.sampled_from([32, 64])))
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


@pytest.mark.parametrize(
    ("other", "dtype"),
    [("TAKES_ONEDNN", torch.float32), ("WIDENS_BFLOAT16", torch.bfloat16), (None, torch.float32)],
    ids=["oneDNN", "float32 for bfloat16", "torch"],
)
@pytest.mark.parametrize("has", [(), ("bias", "added"), ("gate", "norm"), ("blocks", "norm", "draft")], ids=str)
def test_many_rows_are_those_of_float64(other, dtype, has, monkeypatch):
    for name in ("TAKES_ONEDNN", "WIDENS_BFLOAT16"):
        monkeypatch.setattr(product, name, name == other)
    monkeypatch.setattr(product, "CHUNK", 7 * 40)  # weights in several parts
    case = make(0, 3 * MOST_ROWS, 40, 30, dtype, has)
    with torch.no_grad():
        got, (wanted, bound) = case.run(), case.in_float64()
        assert ((got.double() - wanted).abs() <= bound).all()
        assert case.product()(case.x[:0], None if case.added is None else case.added[:0]).shape == (0, 30)
    monkeypatch.setattr(product, "widened", None)  # neither a few rows nor gradients take it
    with torch.no_grad():
        assert case.of_rows(range(MOST_ROWS)).product().by_torch(case.x[:MOST_ROWS]).isfinite().all()
    if case.draft is None:
        x = case.x.requires_grad_()
        product.linear_of_many(x, case.weight).sum().backward()
        torch.testing.assert_close(x.grad[0], case.weight.sum(0))


@pytest.mark.parametrize(
    ("sets", "widens"),
    [
        (["amx", "avx512bf16", "avx512", "avx2", "plain"], False),
        ([None, None, "avx512", "avx2", "plain"], False),
        ([None, None, None, "avx2", "plain"], True),
        (["neon", "plain"], False),
    ],
)
def test_bfloat16_is_multiplied_as_float32_where_torch_is_slow(sets, widens, monkeypatch):
    monkeypatch.setattr(native, "_kernels", SimpleNamespace(instruction_sets=lambda: sets))
    assert native.widens_bfloat16() == widens


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
    for values in (case.x, case.weight if case.blocks is None else None, case.bias, case.added):
        if values is not None and data.draw(st.booleans()):
            values.view(-1)[data.draw(st.integers(0, values.numel() - 1))] = data.draw(st.sampled_from(NOT_FINITE))
    with multiplied_by(name), torch.no_grad():
        got, (wanted, _) = case.run(), case.in_float64()
    signs = (torch.isinf,) if case.is_gated else (torch.isposinf, torch.isneginf)  # a gate near 0 may have either
    for kind in (torch.isnan, *signs):
        assert torch.equal(kind(got), kind(wanted))


@each_set
@pytest.mark.parametrize("rows", [MOST_ROWS, 1000], ids=["few rows", "many"])
def test_the_gate_is_silu_up_to_the_largest_numbers(name, rows):
    gates = torch.tensor([*NOT_FINITE, *torch.linspace(-100, 100, 401), -1e4, -1e30, -3e38, 1e4, 1e30, 0.0])
    with multiplied_by(name):
        zeros, ones = torch.zeros(32, 1), torch.ones(32, 1)
        one = Product(torch.cat([ones, zeros]), torch.cat([zeros, 2 * ones])[:, 0], is_gated=True)
        with torch.no_grad():
            got = torch.cat([one(part) for part in gates[:, None].split(rows)])
    wanted = silu(gates) * (gates * 0 + 2)
    torch.testing.assert_close(got, wanted[:, None].expand(-1, 32), equal_nan=True, rtol=1e-6, atol=1e-30)


@each_compiled_set
def test_results_are_rounded_to_bfloat16_as_torch_rounds(name):
    torch.manual_seed(0)
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8])
    other_nans = torch.tensor([2**31 - 1, -1], dtype=torch.int32).view(torch.float32)  # whose bits are all ones
    sizes = 10 ** torch.linspace(-44, 38, 200)
    numbers = torch.cat([ties, torch.randn(500), sizes, torch.tensor([3.4e38, *NOT_FINITE]), other_nans])
    with multiplied_by(name):
        weight = torch.cat([numbers[:, None], torch.zeros(len(numbers), 31)], dim=1)
        got = Product([Packed(weight.view(torch.uint8), "F32")])(torch.ones(1, 32, dtype=torch.bfloat16))
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
    with multiplied_by(name), torch.no_grad():
        wanted = case.run()
        for number in (2, 3, 4):
            threads(number)
            assert torch.equal(case.run(), wanted)


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
@pytest.mark.parametrize("width", [32, 96])
def test_a_norm_of_another_width_is_refused(name, width):
    for rows in (2, 100):
        with multiplied_by(name), torch.no_grad(), pytest.raises(RuntimeError):
            Product(normal(20, width), norm=norm_of(64, torch.float32))(normal(rows, width))


@each_set
def test_other_dtypes_and_devices_are_left_to_torch(name):
    case = make(0, 4, 30, 20, has=("bias", "added"))
    for part in ("x", "weight", "bias", "added"):
        setattr(case, part, getattr(case, part).double())
    with multiplied_by(name):
        torch.testing.assert_close(case.run(), case.in_float64()[0])
        assert Product(normal(20, 30))(normal(2, 30).to("meta")).device.type == "meta"


@each_compiled_set
@pytest.mark.parametrize("place", ["before", "behind"])
@given(few_rows)
@property_settings(60, deadline=None)
def test_a_product_reads_its_tensors_and_nothing_else(name, place, case):
    """Otherwise the process ends here."""
    with multiplied_by(name), torch.no_grad():
        wanted = case.run()
        for part in ("x", "weight", "bias", "added", "is_text"):
            if (tensor := getattr(case, part)) is not None:
                setattr(case, part, at_a_forbidden_page(tensor, place))
        if case.blocks is not None:
            case.blocks = [part._replace(rows=at_a_forbidden_page(part.rows, place)) for part in case.blocks]
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
    monkeypatch.delenv(native.CHOICE, raising=False)
    vectors = [name for name in COMPILED if name != "plain" and (native.is_amd() or name != "avx512bf16")]
    assert native.instruction_set() == (vectors[0] if vectors else None), "the widest vectors, or torch"
    for name, number in NUMBERS.items():
        monkeypatch.setenv(native.CHOICE, name)
        assert native.instruction_set() == (None if number is None else name)
    monkeypatch.setenv(native.CHOICE, "nonsense")
    sentence = f"WEDLM_PRODUCT=nonsense is not on this machine; choose one of {', '.join([*COMPILED, 'torch'])}."
    with pytest.raises(ValueError, match=sentence):
        native.instruction_set()


DECODE = f"""
import torch, wedlm
from wedlm.fused.model import product_of

model = wedlm.fuse(wedlm.WeDLMForCausalLM.from_pretrained({str(CHECKPOINTS / "q3")!r}).eval())
print(model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=20, decoding="verified").tolist(), product_of(model))
"""


def text_of_the_plain_model():
    model = load(CHECKPOINTS / "q3")
    return model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=20, decoding="verified").tolist()


@pytest.mark.slow
def test_installed_without_a_compiler_torch_multiplies(tmp_path):
    build = ["setup.py", "build", "--build-base", tmp_path / "base", "--build-lib", tmp_path / "installed"]
    built = subprocess.run(
        [sys.executable, *build], cwd=REPOSITORY, env=os.environ | {"CC": "false"}, capture_output=True, text=True
    )
    assert built.returncode == 0 and 'building extension "wedlm.fused._kernels" failed' in built.stderr
    where = f"import wedlm; assert wedlm.__file__.startswith({str(tmp_path)!r})"
    said = run_python(where + DECODE, tmp_path, PYTHONPATH=str(tmp_path / "installed"))
    assert said.splitlines()[0] == f"{text_of_the_plain_model()} torch"


# --- Products in compiled code ---

EXTRAS = [("bias",), ("gate", "norm", "draft", "bias", "added")]


@pytest.mark.parametrize("name", [*COMPILED[:1], "torch"])
@pytest.mark.parametrize("has", EXTRAS, ids=str)
def test_compiled_code_has_the_same_product(name, has):
    torch.compiler.reset()
    case = make(0, 3, 20, 11, has=has)
    with multiplied_by(name), torch.no_grad():
        compiled = torch.compile(case.product(), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(case.run(compiled), case.run())
