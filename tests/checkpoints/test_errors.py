"""The words of another error inside a sentence."""

from wedlm.checkpoints.errors import one_line


def test_another_error_becomes_a_short_part_of_a_sentence():
    assert one_line(ValueError("It is\n  broken.\n")) == "It is broken"
    assert len(one_line(ValueError("word " * 1000))) <= 300
