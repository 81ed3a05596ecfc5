"""Weights in GGUF's blocks are the numbers that the package gguf makes of them, and so are their products."""

from itertools import product

import pytest
import torch
from gguf import GGMLQuantizationType, dequantize
from gguf_files import random_blocks
from instruction_sets import DTYPES, at_a_forbidden_page, each_compiled_set, each_set, multiplied_by

from wedlm.fused.blocks import BLOCKS, CHUNK, Packed
from wedlm.fused.product import MOST_ROWS, Product

each_type = pytest.mark.parametrize("type", BLOCKS)
ROWS = (1, 3, 7, 100)
WIDTHS = (256, 768)  # which all types have


def packed_of(type, rows, inputs=256, has_order=False):
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1)).int() if has_order else None
    return Packed(random_blocks(type, rows, inputs, seed=rows + inputs), type, order)


def by_gguf(packed):
    numbers = torch.from_numpy(dequantize(packed.rows.numpy(), GGMLQuantizationType[packed.type]))
    return numbers if packed.order is None else numbers[packed.order.long()]


def in_float64(x, weight):
    """A product, and by how much it may differ."""
    x, weight = x.double(), weight.double()
    return x @ weight.T, 1e-6 * (x.abs() @ weight.abs().T)


def assert_close(got, x, weight):
    wanted, bound = in_float64(x, weight)
    rounding = 2**-8 if got.dtype == torch.bfloat16 else 2**-23
    assert got.shape == wanted.shape and ((got.double() - wanted).abs() <= bound + rounding * wanted.abs()).all()


@each_set
@each_type
def test_the_numbers_are_those_of_gguf_to_the_bit(name, type):
    with multiplied_by(name):
        for rows, inputs, has_order in product(ROWS, WIDTHS, (False, True)):
            packed = packed_of(type, rows, inputs, has_order)
            wanted, places = by_gguf(packed), torch.randint(rows, (11,))
            for dtype in (*DTYPES, torch.float16, torch.float64):
                for some in (slice(None), slice(rows // 3, rows), places):
                    assert torch.equal(packed.numbers(dtype, some), wanted[some].to(dtype))


@each_compiled_set
@each_type
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_bits_of_any_kind_are_the_numbers_that_gguf_makes_of_them(name, type):
    """Scales are subnormal, infinite and no numbers, too."""
    num_bytes = packed_of(type, 1).rows.shape[1]
    bits = torch.randint(256, (1000, num_bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    packed = Packed(bits, type)
    for dtype in DTYPES:
        with multiplied_by(name):
            got = packed.numbers(dtype, slice(None))
        torch.testing.assert_close(got, by_gguf(packed).to(dtype), rtol=0, atol=0, equal_nan=True)


@each_set
@each_type
def test_no_rows_are_no_numbers(name, type):
    packed = packed_of(type, 5, has_order=True)
    with multiplied_by(name):
        for none in (slice(3, 3), torch.arange(0)):
            assert packed.numbers(torch.float32, none).shape == (0, 256)
        assert Product([packed])(torch.ones(2, 0, 256)).shape == (2, 0, 5)


@each_set
@pytest.mark.parametrize("inputs", [1, 32, 40, 96])
def test_rows_are_as_narrow_as_their_type_has_them(name, inputs):
    for type in (type for type, block in BLOCKS.items() if inputs % block.length == 0):
        packed, x = packed_of(type, 5, inputs, has_order=True), torch.randn(3, inputs)
        with multiplied_by(name):
            assert torch.equal(packed.numbers(torch.float32, slice(None)), by_gguf(packed))
            assert_close(Product([packed])(x), x, by_gguf(packed))


@each_compiled_set
@each_type
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_is_that_of_float64_and_each_row_is_multiplied_by_itself(name, type, dtype):
    packed = packed_of(type, 37, 512, has_order=True)
    x = torch.randn(MOST_ROWS, 512, generator=torch.Generator().manual_seed(0)).to(dtype)
    with multiplied_by(name):
        all_rows = Product([packed])(x)
        assert_close(all_rows, x, by_gguf(packed))
        for rows in range(1, 34):
            assert torch.equal(Product([packed])(x[:rows]), all_rows[:rows])
            assert torch.equal(Product([packed])(x[-rows:]), all_rows[-rows:])


@each_set
@pytest.mark.parametrize("rows", [2, MOST_ROWS + 1, 200])
def test_parts_of_several_types_are_one_product(name, rows):
    parts = [packed_of("Q6_K", 70, has_order=True), packed_of("Q4_K", 33), packed_of("F32", 33, has_order=True)]
    x, bias = torch.randn(rows, 256), torch.randn(136)
    weight = torch.cat([torch.cat([by_gguf(part) for part in parts]), bias[:, None]], dim=1)
    with multiplied_by(name):
        got = Product(parts, bias)(x)
    assert_close(got, torch.cat([x, torch.ones(rows, 1)], dim=1), weight)


@each_set
def test_rows_that_become_numbers_a_few_at_a_time_are_all_multiplied(name):
    packed, x = packed_of("Q5_0", 2 * CHUNK // 256 + 5), torch.randn(MOST_ROWS + 1, 256)
    with multiplied_by(name):
        assert_close(Product([packed])(x), x, by_gguf(packed))
    assert [each.stop - each.start for each in packed.chunks()] == [CHUNK // 256, CHUNK // 256, 5]


@each_compiled_set
@each_type
@pytest.mark.parametrize("place", ["before", "behind"])
def test_nothing_beside_the_rows_is_read(name, type, place):
    """Otherwise the process ends here."""
    for rows in ROWS:
        packed, places, x = packed_of(type, rows, has_order=True), torch.randint(rows, (7,)), torch.randn(5, 256)
        there = Packed(at_a_forbidden_page(packed.rows, place), type, at_a_forbidden_page(packed.order, place))
        with multiplied_by(name):
            for some in (slice(None), at_a_forbidden_page(places, place)):
                assert torch.equal(there.numbers(torch.bfloat16, some), packed.numbers(torch.bfloat16, some))
            for some in (x, x[:1]):
                assert torch.equal(Product([there])(at_a_forbidden_page(some, place)), Product([packed])(some))


@pytest.fixture
def threads():
    """Sets the number of threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@each_compiled_set
def test_threads_change_no_bit(name, threads):
    parts, x = [packed_of(type, 501, 768, has_order=True) for type in ("Q8_0", "Q5_K", "BF16")], torch.randn(9, 768)
    with multiplied_by(name):
        wanted = Product(parts)(x), *(part.numbers(torch.float32, slice(None)) for part in parts)
        for number in (2, 3, 16):
            threads(number)
            got = Product(parts)(x), *(part.numbers(torch.float32, slice(None)) for part in parts)
            assert all(map(torch.equal, got, wanted))


@each_set
@pytest.mark.parametrize("index", [-1, 7, 2**40])
def test_an_index_that_is_no_row_is_refused(name, index):
    packed = packed_of("Q8_0", 7)
    with multiplied_by(name), pytest.raises(IndexError, match="An index is not a row of the weights"):
        packed.numbers(torch.float32, torch.tensor([0, index]))


def test_weights_on_another_device_say_what_to_do():
    packed = packed_of("Q8_0", 7)
    with pytest.raises(ValueError, match=r"are on meta; move wedlm.unfuse\(model\) there, whose weights are numbers"):
        packed._replace(rows=packed.rows.to("meta")).numbers(torch.float32, slice(None))
