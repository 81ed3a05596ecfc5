"""What is not in the package's travelling code comes from the package, or refused in one sentence."""

import sys

import pytest
from helpers import run_python

from wedlm.generation.package import NEWEST_TRANSFORMERS, VERSION, from_package, is_untested


def test_a_module_of_the_package_is_imported():
    assert from_package("wedlm.generation.package", "A test") is sys.modules["wedlm.generation.package"]


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "wedlm", None)  # as if it could not be found
        with pytest.raises(ImportError, match="^A test needs the package wedlm, .* run pip install wedlm.$"):
            from_package("wedlm.generation.package", "A test")
    with monkeypatch.context() as context:
        context.delattr("wedlm.__version__")  # as of a folder of that name
        with pytest.raises(ImportError, match="^A test needs the package wedlm, which is not installed"):
            from_package("wedlm.generation.package", "A test")
    monkeypatch.setattr("wedlm.__version__", "0.9")
    with pytest.raises(ImportError, match="^A test needs wedlm 0.*, and 0.9 is installed; import wedlm before"):
        from_package("wedlm.generation.package", "A test")


NEWEST = [int(number) for number in NEWEST_TRANSFORMERS.split(".")]


@pytest.mark.parametrize(
    "version, expected",
    [
        ("5.17.0", False),
        (f"{NEWEST_TRANSFORMERS}.9", False),
        (f"{NEWEST[0]}.{NEWEST[1] + 1}.0.dev0", True),
        (f"{NEWEST[0] + 1}.0.0", True),
    ],
)
def test_newer_minor_versions_are_untested(version, expected):
    assert is_untested(version) == expected


@pytest.mark.parametrize("version, is_said", [("99.1.0", True), (f"{NEWEST_TRANSFORMERS}.0", False)])
def test_the_import_says_it_in_one_line(tmp_path, version, is_said):
    folder = tmp_path / f"transformers-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: transformers\nVersion: {version}\n")
    code = "import sys, wedlm\nimport wedlm.commands\nassert 'transformers' not in sys.modules"
    said = run_python(code, tmp_path, PYTHONPATH=str(tmp_path))
    expected = f"wedlm {VERSION} was tested with transformers up to {NEWEST_TRANSFORMERS}, and this is {version}; "
    assert said.startswith(expected) and said.count("\n") == 1 if is_said else said == ""
