"""The instruction set that products of a few rows take on this machine; a file without torch."""

import os

try:
    from wedlm.fused import _product
except ImportError:  # installed without a compiler
    _product = None

CHOICE = "WEDLM_PRODUCT"  # the variable that chooses an instruction set, or "torch"


def instruction_set() -> str | None:
    """Returns the instruction set that products take on this machine; None: they are torch's.

    The environment variable WEDLM_PRODUCT chooses another: "amx", "avx512", "avx2", "plain" or "torch".
    """
    sets = [] if _product is None else list(filter(None, _product.instruction_sets()))
    choice = os.environ.get(CHOICE)
    if choice is None:
        return next((name for name in sets if name != "plain"), None)
    if choice not in [*sets, "torch"]:
        raise ValueError(f"{CHOICE}={choice} is not on this machine; choose one of {', '.join([*sets, 'torch'])}.")
    return None if choice == "torch" else choice


def described_product() -> str:
    """Says by what products of few rows are computed on this machine's CPU, and what would make them faster."""
    if SET is not None:
        return f"in C ({SET})"
    if _product is None:
        return "by torch; in C they take less time, which needs a compiler (such as gcc) when wedlm is installed"
    return "by torch"


SET = instruction_set()
NUMBER = None if SET is None else _product.instruction_sets().index(SET)
