"""Arguments of generate() that read the text, and the callbacks that transformers makes of them."""

from helpers import EOS
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, SynthIDTextWatermarkingConfig, WatermarkingConfig


def word_tokenizer() -> PreTrainedTokenizerFast:
    """A word for each id, "w000" to "w159", and one that transformers looks a vocabulary up by for stop strings."""
    words = {**{f"w{i:03}": i for i in range(160)}, "abcdef": 160}
    core = Tokenizer(models.WordLevel(words, unk_token="w000"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="w000", eos_token="w002", mask_token="w159")


def ends_in_multiple(batch_id, ids):
    """A constraint on pairs: the next token is a multiple of 3, or the one after the last."""
    return [*range(3, 150, 3), (ids[-1].item() + 1) % 150, EOS]


CALLBACKS = {
    "repetition": {"repetition_penalty": 1.5},
    "n-grams": {"no_repeat_ngram_size": 1},
    "bad words": {
        "bad_words_ids": [[7], [19, 23], [3, 4, 5], *([i, j] for i in range(20, 90) for j in range(90, 150))]
    },
    "bias": {"sequence_bias": [[[17], 6.0], [[17, 40], 12.0], [[40, 41], 12.0], [[2], -3.0]]},
    "min new": {"min_new_tokens": 9},
    "min length": {"min_length": 47},
    "forced end": {"forced_eos_token_id": EOS},
    "begin": {"begin_suppress_tokens": list(range(3, 120))},
    "decay": {"exponential_decay_length_penalty": (3, 1.4)},
    "allowed": {"prefix_allowed_tokens_fn": ends_in_multiple},
    "prompt words": {"encoder_repetition_penalty": 1.7},
    "prompt n-grams": {"encoder_no_repeat_ngram_size": 1},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=4.0)},
    "self-hashed watermark": {"watermarking_config": WatermarkingConfig(bias=4.0, seeding_scheme="selfhash")},
    "stateful watermark": {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[5, 9, 2], ngram_len=3)},
    "guidance": {"guidance_scale": 1.8},
    "two": {"repetition_penalty": 1.2, "min_new_tokens": 6, "no_repeat_ngram_size": 2},
}


def callbacks_of(model, **arguments):
    """The processors and criteria that transformers makes of the arguments of a call."""
    made = []
    model.generate(
        **arguments, custom_generate=lambda *_, logits_processor, stopping_criteria, **__: made.extend(
            [logits_processor, stopping_criteria]
        )
    )  # fmt: skip
    return made
