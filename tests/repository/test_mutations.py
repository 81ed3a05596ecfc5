"""The mutations of a source."""

import ast
import textwrap

import pytest
from import_graph import source_files
from mutations import mutations


def changed(source: str) -> list[str]:
    return [mutation.source for mutation in mutations(source)]


@pytest.mark.parametrize(
    "source, expected",
    [
        ("a = b < c", ["a = b <= c"]),
        ("a = b is None", ["a = b is not None"]),
        ("a = b < c == d", ["a = b < c != d", "a = b <= c == d"]),
        ("a = b and c or d", ["a = (b and c) and d", "a = b or c or d"]),
        ("a = not b", ["a = b"]),
        ("a = b + c * d", ["a = b + c / d", "a = b - c * d"]),
        ("a = (b - 1) % c", ["a = (b - 1) * c", "a = (b + 1) % c", "a = (b - 2) % c"]),
        ("a += b", ["a -= b", "pass"]),
        ("a = -b, -1", ["a = b, -1", "a = -b, -2"]),
        ("a = True, 0, 0.5", ["a = False, 0, 0.5", "a = True, 1, 0.5", "a = True, 0, 1.5"]),
        ("a = min(b.any(), c)", ["a = max(b.any(), c)", "a = min(b.all(), c)"]),
        ("a = b[c:d, :e]", ["a = b[:d, :e]", "a = b[c:, :e]", "a = b[c:d, :]"]),
        ("a = f(b, c=d, strict=True)", ["a = f(b, strict=True)"]),
        ("f(a)", ["pass"]),
        ("a.b = c", ["pass"]),
        ("if a: raise b", ["if a: pass", "if not a: raise b"]),
        ("a = [b for b in c if b.d]", ["a = [b for b in c if not b.d]"]),
        ("a = b if c else d", ["a = b if not c else d"]),
        ("for a in b:\n    break", ["for a in b:\n    pass"]),
    ],
)
def test_each_kind_of_change(source, expected):
    assert sorted(changed(source)) == sorted(expected)


def test_what_is_left_alone():
    source = '''
        """A text."""
        from a import b
        @c(d=1)
        def f(e: int | None = None) -> g[1]:
            """Another text."""
            h: i | 2 = f"{e + 1} of {h < 3}"
            j = "x" + e
            return h
    '''
    assert changed(textwrap.dedent(source)) == []


def test_a_change_is_told_with_its_place():
    (mutation,) = mutations("a = 1\nä = 'é'; b = (c\n     < d)\n".replace("1", "x"))
    assert mutation[:4] == (2, len("ä = 'é'; b = (".encode()), "c\n     < d", "c <= d")
    assert mutation.source == "a = x\nä = 'é'; b = (c <= d)\n"


@pytest.mark.parametrize("module", ["wedlm.generation.window", "wedlm.training.trainer"])
def test_every_change_of_a_file_is_one_and_compiles(module):
    source = source_files()[module].read_text(encoding="utf-8")
    sources = changed(source)
    assert len(sources) > 50 and source not in sources
    assert len({ast.dump(ast.parse(changed_source)) for changed_source in sources}) == len(sources)
