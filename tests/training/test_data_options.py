"""The options of the data, and their refusals."""

import pytest

from wedlm.training.data_options import DataOptions
from wedlm.training.run_errors import TrainingError


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_length": 1}, "max_length=1 is too small; pass at least 2 tokens."),
        ({"extra_end_tokens": -1}, "extra_end_tokens=-1 is negative; pass 0 or more."),
        ({"num_proc": 0}, "num_proc=0 is no number of processes; pass 1 or more, or None."),
        ({"loss_on": "first"}, "loss_on='first' is not a choice; pass 'all' or 'last'."),
    ],
)
def test_options_that_are_refused(options, sentence):
    with pytest.raises(TrainingError) as error:
        DataOptions(**options)
    assert str(error.value) == sentence
