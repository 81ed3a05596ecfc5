"""Every entry point with every kind of model in every decoding writes the reference's text, or says what to do."""

import re

import pytest
from entry_points import ENTRY_POINTS, EntryPoint, command_generate, served_chat
from helpers import REPOSITORY
from model_kinds import ALL, KINDS, KINDS_BY_LINE, Kind, Loaded

from wedlm import convert_to_wedlm

ONLY_WEDLM = ("wedlm eval", "wedlm tune")
PAGE = (REPOSITORY / "docs" / "reference" / "generate.md").read_text(encoding="utf-8")


def cells() -> list:
    """A cell for each pair of an entry point and a kind of model, in decodings that take turns, and all others.

    The first ones have every pair of the three, too. They are the short run where they are cheap; `make test-all` has
    one of each dear entry point as well; `make test-slow` has all.
    """
    cells = []
    for i, entry in enumerate(ENTRY_POINTS):
        kinds = [kind for kind in KINDS if entry.takes(kind) and (entry.is_alone or not kind.rounds)]
        for j, kind in enumerate(kinds):
            # (generate_batch() of a stock model that is asked for no decoding is transformers' own.)
            decodings = ALL[1:] if entry.name == "generate_batch()" and kind.is_stock else ALL
            for k, decoding in enumerate(decodings):
                is_first = k == (i + j) % len(decodings)
                is_slow = not is_first or entry.is_dear and (i + j) % 8 != 1
                marks = [pytest.mark.slow] if is_slow else [pytest.mark.full] if entry.is_dear else []
                name = f"{entry.name}-{kind.name}-{decoding}"
                cells.append(pytest.param(entry, kind, decoding, id=name, marks=marks))
    return cells


@pytest.fixture(scope="session")
def loaded(tmp_path_factory):
    root, kinds = tmp_path_factory.mktemp("kinds"), {}

    def load(kind: Kind) -> Loaded:
        if kind.name not in kinds:
            kinds[kind.name] = Loaded(kind, root)
        return kinds[kind.name]

    return load


def is_offered(entry: EntryPoint, kind: Kind, decoding: str) -> bool:
    if entry.name == "wedlm info":
        return kind.name != "Gemma 3, sliding"  # it knows the shapes of the families that can be converted
    if entry.name in ONLY_WEDLM and kind.is_stock or entry.name == "served tool" and kind.name == "demo":
        return False
    return decoding in kind.decodings or entry.name == "wedlm tune"  # which takes none


@pytest.mark.parametrize(("entry", "kind", "decoding"), cells())
def test_a_cell_gives_the_text_of_the_reference_or_a_remedy_that_works(entry, kind, decoding, loaded, tmp_path):
    if is_offered(entry, kind, decoding):
        return entry.run(loaded(kind), decoding)
    with pytest.raises(ValueError) as refusal:
        entry.run(loaded(kind), decoding)
    follow(str(refusal.value), entry, loaded(kind), decoding, tmp_path)


def follow(sentence: str, entry: EntryPoint, loaded: Loaded, decoding: str, place) -> None:
    """Does what the sentence of a refusal says."""
    assert "\n" not in sentence and sentence.endswith(".")
    if named := re.search(r'decoding="(\w+)"', sentence):
        entry.run(loaded, named[1])
    elif re.search(r"`wedlm convert \S+ OUT` makes a WeDLM checkpoint of it", sentence):
        folder = convert_to_wedlm(loaded.base, place / "converted").folder
        entry.run(Loaded(Kind("converted", lambda root: folder), place), "verified")
    elif "decoded as they are by `wedlm generate`" in sentence:
        command_generate(loaded, "verified")
    else:
        assert "tools are not read by the chat template" in sentence and "leave them out" in sentence
        served_chat(loaded, decoding)


# --- The page ---


def table() -> str:
    """What the page says of the cells."""
    columns = dict.fromkeys(entry.column for entry in ENTRY_POINTS if entry.column)
    lines = [["model", "decodings", *columns], ["---"] * (2 + len(columns))]
    for line, kinds in KINDS_BY_LINE.items():
        (decodings,) = {kind.decodings[1:] for kind in kinds}
        cells = ["all" if decodings == ALL[1:] else " and ".join(decodings)]
        for column in columns:
            entries = [entry for entry in ENTRY_POINTS if entry.column == column]
            offered = {is_offered(entry, kind, "verified") for entry in entries for kind in kinds if entry.takes(kind)}
            cells.append("yes" if True in offered else "no")
        lines.append([line, *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def test_the_page_has_the_table():
    assert table() in PAGE, table()
