"""`make test` leaves out the marked tests, and a test that hangs fails."""

import re

import pytest
from helpers import REPOSITORY
from hypothesis import settings
from tiers import LIMITS, property_settings, spread

pytest_plugins = ["pytester"]

SHORT = re.search(
    r'^SHORT = -m "(.+)" --hypothesis-profile=short$', (REPOSITORY / "Makefile").read_text(), re.MULTILINE
)

TESTS = """
import pytest

def test_always(): pass

@pytest.mark.full
def test_full(): pass

@pytest.mark.few(2)
@pytest.mark.parametrize("b", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("a", [1, 2])
def test_few(a, b): pass

@pytest.mark.full
@pytest.mark.timeout(0.2)
def test_hangs():
    while True:
        pass
"""


@pytest.fixture
def suite(pytester):
    pytester.makeconftest((REPOSITORY / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makefile(".toml", pyproject=(REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    pytester.mkdir("tests")
    pytester.path.joinpath("tests", "test_made_up.py").write_text(TESTS, encoding="utf-8")
    return pytester


def collected(suite, marks: str) -> list[str]:
    result = suite.runpytest_inprocess("--collect-only", "--quiet", "-p", "no:cacheprovider", "-m", marks)
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def test_make_test_takes_few_of_the_cases(suite):
    assert collected(suite, SHORT[1]) == ["test_always", "test_few[1-1]", "test_few[2-2]"]
    assert collected(suite, "not (slow or browser or ecosystem)") == [
        "test_always", "test_full", "test_few[1-1]", "test_few[1-2]", "test_few[2-1]", "test_few[2-2]", "test_hangs",
    ]  # fmt: skip


def test_a_test_that_hangs_fails(suite):
    result = suite.runpytest_inprocess("-p", "no:cacheprovider", "-k", "hangs or always")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Timeout*0.2*"])


def test_every_test_has_a_limit(request, pytestconfig):
    assert float(pytestconfig.getini("timeout")) == 120
    assert set(LIMITS) < {line.partition(":")[0] for line in pytestconfig.getini("markers")}


@pytest.mark.parametrize("length, number, places", [(5, 1, {0}), (5, 2, {0, 4}), (5, 3, {0, 2, 4}), (2, 3, {0, 1})])
def test_the_cases_kept_are_spread(length, number, places):
    assert spread(length, number) == places


def test_the_short_run_draws_a_third_of_the_examples():
    before = settings.get_current_profile_name()
    try:
        settings.load_profile("default")
        assert [property_settings(number).max_examples for number in (60, 20, 1)] == [60, 20, 1]
        assert property_settings(60, deadline=None).deadline is None
        settings.load_profile("short")
        assert [property_settings(number).max_examples for number in (60, 20, 1)] == [19, 6, 1]
    finally:
        settings.load_profile(before)
