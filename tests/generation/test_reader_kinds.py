"""Which readers read the text, which keep state, and which criteria the window decides by itself."""

import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    MaxLengthCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
)
from transformers.generation import EosTokenCriteria, MaxTimeCriteria, RepetitionPenaltyLogitsProcessor

from wedlm.generation.reader_kinds import (
    PLAIN_PROCESSORS,
    STATELESS_READERS,
    is_stateless,
    reads_no_text,
    window_decides,
)


class OwnTemperature(TemperatureLogitsWarper):
    pass


class SaysSo(LogitsProcessor):
    is_stateless = True


def test_plain_processors_are_known_by_their_very_class():
    assert reads_no_text(TemperatureLogitsWarper(0.5)) and not reads_no_text(OwnTemperature(0.5))
    assert not reads_no_text(RepetitionPenaltyLogitsProcessor(1.2))
    assert PLAIN_PROCESSORS < STATELESS_READERS


def test_a_reader_of_the_callers_says_itself_that_it_keeps_nothing():
    assert is_stateless(RepetitionPenaltyLogitsProcessor(1.2)) and is_stateless(SaysSo())
    assert not is_stateless(OwnTemperature(0.5))


@pytest.mark.parametrize(
    ("criterion", "decides"),
    [
        (MaxLengthCriteria(20), True),
        (MaxLengthCriteria(30), True),
        (EosTokenCriteria([2, 5]), True),
        (EosTokenCriteria([5, 2]), True),
        (EosTokenCriteria([2]), False),
        (MaxTimeCriteria(1.0), False),
    ],
)
def test_the_window_decides_the_limit_and_the_end_tokens(criterion, decides):
    config = GenerationConfig()
    config._eos_token_tensor = torch.tensor([2, 5])
    criteria = StoppingCriteriaList([MaxLengthCriteria(20), criterion])
    assert window_decides(criterion, criteria, config) == decides


def test_an_earlier_limit_of_the_callers_is_asked():
    criteria = StoppingCriteriaList([MaxLengthCriteria(20)])
    assert not window_decides(MaxLengthCriteria(10), criteria, GenerationConfig())
