"""`import wedlm` says once that the installed transformers is newer than what was tested."""

import pytest
from helpers import run_python

from wedlm.generation.versions import NEWEST_TRANSFORMERS, VERSION, is_untested

NEWEST = [int(number) for number in NEWEST_TRANSFORMERS.split(".")]


@pytest.mark.parametrize(
    "version, expected",
    [
        ("5.17.0", False),
        (f"{NEWEST_TRANSFORMERS}.0", False),
        (f"{NEWEST_TRANSFORMERS}.9", False),
        (f"{NEWEST[0]}.{NEWEST[1] + 1}.0", True),
        (f"{NEWEST[0]}.{NEWEST[1] + 1}.0.dev0", True),
        (f"{NEWEST[0]}.{NEWEST[1] * 10}.0rc1", True),
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
