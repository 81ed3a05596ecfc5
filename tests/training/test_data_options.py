"""The options of the data, and their refusals."""

import dataclasses

import pytest
from transformers import HfArgumentParser

from wedlm.training.data_options import DataOptions
from wedlm.training.errors import TrainingError


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_length": 1}, "max_length=1 is too small; pass at least 2 tokens."),
        ({"extra_end_tokens": -1}, "extra_end_tokens=-1 is negative; pass 0 or more."),
        ({"num_proc": 0}, "num_proc=0 is no number of processes; pass 1 or more, or None."),
        ({"overlong": "cut"}, "overlong='cut' is not a choice; pass 'truncate' or 'drop'."),
        ({"loss_on": "first"}, "loss_on='first' is not a choice; pass 'all' or 'last'."),
    ],
)
def test_options_that_are_refused(options, sentence):
    with pytest.raises(TrainingError) as error:
        DataOptions(**options)
    assert str(error.value) == sentence


def test_options_are_arguments_of_a_command_line(capsys):
    parser = HfArgumentParser(DataOptions)
    (options,) = parser.parse_args_into_dataclasses(["--max_length", "64", "--loss_on", "last", "--packing"])
    assert options == DataOptions(max_length=64, loss_on="last", packing=True)
    with pytest.raises(SystemExit):
        parser.parse_args_into_dataclasses(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(DataOptions):
        assert field.metadata["help"] in shown
