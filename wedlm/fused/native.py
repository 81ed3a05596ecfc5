"""The structs of kernels.h, which Python fills by name, and the instruction sets that this machine has."""

import ctypes
import os
from pathlib import Path

try:
    from wedlm.fused import _kernels
except ImportError:  # installed without a compiler
    _kernels = None

CHOICE = "WEDLM_PRODUCT"  # the variable that chooses an instruction set, or "torch"
NO_WEIGHTS = 2  # a type of weights, of which kernels.h numbers these
TYPES = ("F32", "BF16", "none", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
CAUSAL, SEEN, ADDED = 0, 1, 2  # kinds of a bias
PROJECT, STORE, ATTEND, COMPLETE, ROTATE = 1, 2, 4, 8, 16  # stages of a forward

ADDRESS, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
addressof, sizeof = ctypes.addressof, ctypes.sizeof


class Weights(ctypes.Structure):
    _fields_ = [("rows", ADDRESS), ("order", ADDRESS), ("count", LONG), ("type", INT)]


class Product(ctypes.Structure):
    _fields_ = [
        ("weights", Weights * 3),
        *[(name, ADDRESS) for name in ("bias", "norm", "down", "up")],
        *[(name, LONG) for name in ("inputs", "outputs")],
        ("is_gated", INT),
        ("epsilon", FLOAT),
    ]


class Multiplication(ctypes.Structure):
    _fields_ = [
        *[(name, ADDRESS) for name in ("product", "x", "added", "y", "is_text")],
        ("rows", LONG),
        *[(name, INT) for name in ("type", "threads", "set")],
    ]


class Unpacking(ctypes.Structure):
    _fields_ = [
        *[(name, ADDRESS) for name in ("weights", "places", "to")],
        *[(name, LONG) for name in ("first", "rows", "inputs")],
        *[(name, INT) for name in ("type", "threads", "set")],
    ]


class Layer(ctypes.Structure):
    _fields_ = [
        *[(name, Product) for name in ("query_key_value", "output", "gate_up", "down")],
        *[(name, ADDRESS) for name in ("query_norm", "key_norm")],
        *[(name, FLOAT) for name in ("query_epsilon", "key_epsilon")],
    ]


class States(ctypes.Structure):
    _fields_ = [("keys", ADDRESS), ("values", ADDRESS)]


class Forward(ctypes.Structure):
    _fields_ = [
        *[(name, ADDRESS) for name in ("layers", "states", "hidden", "heads", "attended", "cosines", "sines")],
        *[(name, ADDRESS) for name in ("is_text", "lengths", "bias")],
        ("bias_strides", LONG * 2),
        *[(name, LONG * 3) for name in ("key_strides", "value_strides")],
        ("angle_stride", LONG),
        *[(name, LONG) for name in ("num_layers", "batch", "queries", "entries")],
        *[(name, LONG) for name in ("num_heads", "num_key_heads", "width")],
        *[(name, INT) for name in ("type", "bias_kind", "stages", "threads", "set")],
        ("scaling", FLOAT),
    ]


def multiply(multiplication: Multiplication) -> None:
    """Computes a product."""
    _kernels.multiply(ctypes.addressof(multiplication))


def unpack(unpacking: Unpacking) -> None:
    """Computes numbers of weights in blocks."""
    _kernels.unpack(ctypes.addressof(unpacking))


def forward(forward: Forward) -> None:
    """Computes decoder layers."""
    _kernels.forward(ctypes.addressof(forward))


def is_amd() -> bool:
    """Whether this machine's CPU is AMD's."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return False


def has_avx512() -> bool:
    """Whether the products in C have vectors of 16 numbers."""
    return SET is not None and (SET == "amx" or SET.startswith("avx512"))


def widens_bfloat16() -> bool:
    """Whether this CPU multiplies many rows faster as float32 than as bfloat16: of x86, one without AVX-512."""
    sets = [] if _kernels is None else _kernels.instruction_sets()
    return "avx2" in sets and "avx512" not in sets


def instruction_set() -> str | None:
    """Returns the instruction set that products take on this machine; None: they are torch's.

    The environment variable WEDLM_PRODUCT chooses another of `instruction_sets()`, or "torch".
    """
    sets = [] if _kernels is None else list(filter(None, _kernels.instruction_sets()))
    choice = os.environ.get(CHOICE)
    if choice is None:  # on Intel pairs of bfloat16 take longer than widening
        others = ["plain"] if is_amd() else ["plain", "avx512bf16"]
        return next((name for name in sets if name not in others), None)
    if choice not in [*sets, "torch"]:
        raise ValueError(f"{CHOICE}={choice} is not on this machine; choose one of {', '.join([*sets, 'torch'])}.")
    return None if choice == "torch" else choice


def described_product() -> str:
    """Says by what products of few rows are computed on this machine's CPU, and what would make them faster."""
    if SET is not None:
        return f"in C ({SET})"
    if _kernels is None:
        return "by torch; in C they take less time, which needs a compiler (such as gcc) when wedlm is installed"
    return "by torch"


SET = instruction_set()
NUMBER = None if SET is None else _kernels.instruction_sets().index(SET)
