"""Products and decoder layers in C, without Python: beside doubles, under sanitizers, and for ARM under emulation.

All of this is kernels_check.c, compiled in several ways. Nothing is timed, since emulation says nothing of speed.
"""

import subprocess
import sysconfig
from pathlib import Path

import pytest
from helpers import REPOSITORY

FUSED = REPOSITORY / "wedlm" / "fused"
WARNINGS = ["-std=gnu11", "-Wall", "-Wextra"]
SANITIZERS = {
    # Calls instead of checks in place: they take half the time to compile.
    "address,undefined,float-cast-overflow": ["--param", "asan-instrumentation-with-call-threshold=0"],
    "thread": [],
}
FOR_ARM = {"gcc": ["aarch64-linux-gnu-gcc"], "clang": ["clang", "--target=aarch64-linux-gnu"]}
ARM = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]

pytestmark = pytest.mark.slow


def run(*command):
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert finished.returncode == 0, f"{' '.join(map(str, command))}\n{finished.stdout}{finished.stderr}"
    return finished.stdout


def compiled(folder, *compiler):
    """The program; it exports the functions that start its threads, so that forward.c finds them."""
    sources, program = [Path(__file__).with_name("kernels_check.c"), FUSED / "forward.c"], folder / "check"
    run(*compiler, *WARNINGS, "-pthread", "-rdynamic", "-I", FUSED, *sources, "-lm", "-ldl", "-o", program)
    return program


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_each_instruction_set_computes_what_doubles_do(compiler, tmp_path):
    program = compiled(tmp_path, compiler, "-O3", "-Werror")
    sets = run(program).split()
    assert sets[-1] in ("plain", "neon"), "the compiler's own vectors come last"
    assert run(program, 3).split() == sets, "in three threads"


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_binding_compiles_without_warnings(compiler):
    python = ["-isystem", sysconfig.get_path("include")]
    run(compiler, *WARNINGS, "-Werror", "-fsyntax-only", *python, FUSED / "module.c")


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_sanitizers_find_nothing(sanitizer, tmp_path):
    flags = ["-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", *SANITIZERS[sanitizer]]
    program = compiled(tmp_path, "gcc", *flags)
    if sanitizer != "thread":
        run(program)
    run(program, 3, 7)  # in three threads, each seventh case


@pytest.mark.parametrize("compiler", FOR_ARM)
def test_neon_computes_what_doubles_do(compiler, tmp_path):
    program = compiled(tmp_path, *FOR_ARM[compiler], "-O3", "-Werror")
    assert run(*ARM, program).split() == ["neon"]
    assert run(*ARM, program, 3, 7).split() == ["neon"]
