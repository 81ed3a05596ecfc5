"""What is not in the package's travelling code is asked of the package, or refused in one sentence."""

import sys

import pytest

from wedlm.generation.package import from_package


def test_a_module_of_the_package_is_imported():
    assert from_package("wedlm.generation.versions", "A test") is sys.modules["wedlm.generation.versions"]


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wedlm", None)  # as if it could not be found
    with pytest.raises(ImportError, match="^A test needs the package wedlm, .* run pip install wedlm, or rest.$"):
        from_package("wedlm.generation.versions", "A test", ", or rest")


def test_a_folder_named_wedlm_is_not_the_package(monkeypatch):
    monkeypatch.delattr("wedlm.__version__")
    with pytest.raises(ImportError, match="^A test needs the package wedlm, which is not installed"):
        from_package("wedlm.generation.versions", "A test")


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr("wedlm.__version__", "0.9")
    with pytest.raises(ImportError, match="^A test needs wedlm 0.*, and 0.9 is installed; import wedlm before"):
        from_package("wedlm.generation.versions", "A test")
