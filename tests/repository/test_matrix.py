"""Every entry point with every kind of model in every decoding writes the reference's text, or says what to do."""

import re

import pytest
from entry_points import ENTRY_POINTS, EntryPoint, served_chat
from model_kinds import ALL, KINDS, Kind, Loaded

from wedlm import convert_to_wedlm

# Commands that take no model that is no WeDLM, and what a model cannot do beside its decodings.
ONLY_WEDLM = ("wedlm eval", "wedlm tune")


def cells():
    """A cell for each pair of an entry point and a kind of model, in decodings that take turns, and all others.

    The first ones have every pair of the three, too. They are the short run where they are cheap; with the dear ones
    they are `make test-all`; `make test-slow` has all.
    """
    for i, entry in enumerate(ENTRY_POINTS):
        for j, kind in enumerate(filter(entry.takes, KINDS)):
            for k, decoding in enumerate(ALL):
                is_first = k == (i + j) % len(ALL)
                marks = [pytest.mark.slow] if not is_first else [pytest.mark.full] if entry.is_dear else []
                yield pytest.param(entry, kind, decoding, id=f"{entry.name}-{kind.name}-{decoding}", marks=marks)


@pytest.fixture(scope="session")
def loaded(tmp_path_factory):
    root, kinds = tmp_path_factory.mktemp("kinds"), {}

    def load(kind: Kind) -> Loaded:
        if kind.name not in kinds:
            kinds[kind.name] = Loaded(kind, root)
        return kinds[kind.name]

    return load


def is_offered(entry: EntryPoint, kind: Kind, decoding: str) -> bool:
    if entry.name in ONLY_WEDLM and kind.is_stock or entry.name == "served tool" and kind.name.startswith("demo"):
        return False
    return decoding in kind.decodings or entry.name in ("wedlm info", "wedlm tune")  # which take none


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
        entry.run(Loaded(Kind("converted", lambda root: folder, load=loaded.kind.load), place), "verified")
    else:
        assert "tools are not read by the chat template" in sentence and "leave them out" in sentence
        served_chat(loaded, decoding)
