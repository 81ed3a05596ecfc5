"""Errors of other libraries as errors of training."""

import pytest

from wedlm.training.errors import TrainingError, as_training_errors


@pytest.mark.parametrize("kind", [ValueError, OSError, ImportError, RuntimeError])
def test_errors_of_others_become_one_line_of_the_same_words(kind):
    with pytest.raises(TrainingError, match="^a sentence of two lines$") as error, as_training_errors():
        raise kind("a sentence\n  of two lines")
    assert isinstance(error.value.__cause__, kind)


def test_errors_of_the_program_stay_as_they_are():
    with pytest.raises(KeyError), as_training_errors():
        raise KeyError("a")
