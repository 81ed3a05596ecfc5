"""Which of transformers' processors and criteria read the text, and which keep something from call to call."""

from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria, StoppingCriteriaList
from transformers.generation import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    StopStringCriteria,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
    WatermarkLogitsProcessor,
)

from wedlm.generation.transformers_internals import end_tokens_of

# Processors that look at scores alone, so that one call serves all slots.
PLAIN_PROCESSORS = {
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
}
# Readers that keep nothing from call to call, so that every row may go at its own pace.
STATELESS_READERS = PLAIN_PROCESSORS | {
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    StopStringCriteria,
    SuppressTokensAtBeginLogitsProcessor,
    WatermarkLogitsProcessor,
}


def reads_no_text(processor: LogitsProcessor) -> bool:
    # (The very class: a subclass may read the text.)
    return type(processor) in PLAIN_PROCESSORS


def is_stateless(reader: LogitsProcessor | StoppingCriteria) -> bool:
    """Whether a reader keeps nothing from call to call; a caller's own says so by an attribute of this name."""
    return type(reader) in STATELESS_READERS or getattr(reader, "is_stateless", False)


def window_decides(
    criterion: StoppingCriteria, criteria: StoppingCriteriaList, generation_config: GenerationConfig
) -> bool:
    """Whether a criterion is the length limit or eos_token_id, which the window sees to by itself.

    The caller may pass other criteria of these two types; they are asked like any other.
    """
    if type(criterion) is MaxLengthCriteria:
        return criterion.max_length >= criteria.max_length
    if type(criterion) is EosTokenCriteria and (end_tokens := end_tokens_of(generation_config)) is not None:
        return set(criterion.eos_token_id.tolist()) == set(end_tokens.tolist())
    return False
