"""The tokenizer of the demo checkpoint: a byte-level BPE, trained on fixed examples of all kinds."""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from wedlm.demo.tasks import training_example

VOCABULARY_SIZE = 2048
NUM_SAMPLES = 20_000
SAMPLE_SEED = 0
# Relative frequency of the kinds in its texts, apart from the training stream: if that changes, the tokenizer stays.
SAMPLE_WEIGHTS = {"counting": 4, "word_problems": 5, "equations": 4, "records": 4, "functions": 2, "stories": 2}
MAX_LENGTH = 1024

END_OF_TEXT, TURN_START, TURN_END, MASK = SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]

# The text is cut into these pieces first, and no token crosses the border of a piece:
# - a JSON key with the punctuation around it, so that few tokens stand between two values;
# - a single digit;
# - a line end;
# - a word with the space or the underscore before it;
# - punctuation with the space before it, and with the space behind it if a digit follows ("12, 16" is 1 2 ", " 1 6);
# - other whitespace.
PIECES = r"(?:\[\{|\"?(?:\}, \{|, ))\"[a-z_]+\": \"?|\d|\n|[ _]?[A-Za-z]+| ?[^\sA-Za-z0-9]+(?: (?=\d))?| +(?= \S)|\s"

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' -%}
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else -%}
{{ message['content'] + '<|im_end|>' }}
{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def sample_texts() -> Iterable[str]:
    """The texts that the tokenizer is trained on."""
    yield "user\nassistant\n" * NUM_SAMPLES  # the roles, as the chat template writes them
    for position in range(NUM_SAMPLES):
        example = training_example(SAMPLE_SEED, position, SAMPLE_WEIGHTS)
        yield example.prompt
        yield example.answer


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Trains a tokenizer; the same texts give the same tokenizer, byte for byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    result = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        mask_token=MASK,
        additional_special_tokens=[TURN_START],
        model_max_length=MAX_LENGTH,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    result.chat_template = CHAT_TEMPLATE
    return result


def demo_tokenizer() -> PreTrainedTokenizerFast:
    """Trains the tokenizer of the demo checkpoint."""
    return train_tokenizer(sample_texts())
