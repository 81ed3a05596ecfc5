"""The wheel, built from the source distribution, works in a fresh environment that has no compiler."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest
from helpers import CHECKPOINTS, REPOSITORY

FOLDERS = ["wedlm", "modeling_wedlm", "generation", "training", "hub_card"]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so")

pytestmark = pytest.mark.slow


def run(*command, **options):
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The source distribution, and the wheel that is built from it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("distributions")
    for folder in FOLDERS:
        shutil.copytree(REPOSITORY / folder, source / folder, ignore=LEFT_OUT)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source / name)
    run(sys.executable, "-m", "build", "--outdir", out, source, cwd=out)
    (archive,), (wheel,) = out.glob("wedlm-*.tar.gz"), out.glob("wedlm-*.whl")
    return archive, wheel


@pytest.fixture(scope="module")
def environment(distributions, tmp_path_factory):
    """An environment with the wheel, whose programs find no compiler."""
    folder = tmp_path_factory.mktemp("fresh") / "environment"
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    without_compiler = {"PATH": str(folder / "bin"), "CC": "false"}
    run(python, "-m", "pip", "install", "--no-deps", distributions[1], env=os.environ | without_compiler)
    # It sees the installed dependencies, and not the editable install: path files are read in its own folder only.
    site_packages = next((folder / "lib").glob("python*")) / "site-packages"
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def written(pattern):
    return {
        ("" if folder == "wedlm" else "wedlm/") + path.relative_to(REPOSITORY).as_posix()
        for folder in FOLDERS
        for path in (REPOSITORY / folder).rglob(pattern)
    }


def test_the_wheel_has_all_files(distributions):
    names = zipfile.ZipFile(distributions[1]).namelist()
    assert {name for name in names if name.endswith(".py")} == written("*.py")
    assert "wedlm/drafts/prompts.jsonl.xz" in names


def test_the_source_distribution_has_what_is_compiled(distributions):
    names = {name.split("/", 1)[-1] for name in tarfile.open(distributions[0]).getnames()}
    assert written("*.[ch]") <= names


@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel knows wheels for Linux")
def test_one_wheel_serves_all_versions_of_python_and_most_of_linux(distributions):
    wheel = distributions[1]
    assert "-cp311-abi3-linux_" in wheel.name
    assert "wedlm/fused/_kernels.abi3.so" in zipfile.ZipFile(wheel).namelist()
    shown = run(sys.executable, "-m", "auditwheel", "show", wheel).stdout.replace("\n", " ")
    assert 'following platform tag: "manylinux_' in shown, shown  # otherwise only "linux_"
    assert "libpython" not in shown and "libgomp" not in shown, "it asks for nothing but the C library"


def test_without_a_compiler_the_wheel_multiplies_in_c(environment, tmp_path):
    code = """
import sys, torch
from wedlm.fused import native
from wedlm.fused.product import Product

assert native._kernels.__file__.startswith(sys.prefix), "not the installed wheel"
weight, x = torch.randn(300, 200), torch.randn(4, 200)
torch.testing.assert_close(Product(weight)(x), x @ weight.T)
print(native.described_product())
"""
    said = run(environment / "bin" / "python", "-c", code, cwd=tmp_path).stdout
    assert said.startswith("in C ("), said


def test_a_wheel_in_a_fresh_environment_works(environment, tmp_path):
    code = (
        "import wedlm, sys\n"
        "from transformers import AutoModelForCausalLM\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(CHECKPOINTS / 'q25')!r})\n"
        "model.save_pretrained('saved')\n"
        "assert sys.modules[type(model).__module__].__file__.startswith(sys.prefix), 'not the installed wheel'\n"
    )
    run(environment / "bin" / "python", "-c", code, cwd=tmp_path)
    assert (tmp_path / "saved" / "sequences.py").exists()
    commands = [["generate", "Count by 1 from 1 to 9."], ["trace", "Count by 1 from 1 to 9.", "--html", "trace.html"]]
    for command in commands:  # the demo checkpoint, and the page, are in the wheel
        result = run(environment / "bin" / "wedlm", *command, cwd=tmp_path)
        assert "tokens per pass" in result.stderr
    assert (tmp_path / "trace.html").exists()
