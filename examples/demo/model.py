"""The demo checkpoint before its training: tokenizer, model and optimizer."""

from collections.abc import Iterable

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, set_seed

from examples.demo.tasks import training_example
from wedlm import WeDLMConfig, WeDLMForCausalLM

SEED = 1  # of the weights, the conversations and their order
VOCABULARY_SIZE = 2048
NUM_SAMPLES, SAMPLE_SEED = 20_000, 0  # of the tokenizer's texts
# Relative frequency of the kinds in its texts, apart from the training stream: if that changes, the tokenizer stays.
SAMPLE_WEIGHTS = {"counting": 4, "word_problems": 5, "equations": 4, "records": 4, "functions": 2, "stories": 2}

END_OF_TEXT, TURN_START, TURN_END, MASK = SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]

# The text is cut into these pieces first, and no token crosses the border of a piece:
# - a JSON key with the punctuation around it, so that few tokens stand between two values;
# - a single digit;
# - a line end;
# - a word with the space or the underscore before it;
# - punctuation with the space before it, and with the space behind it if a digit follows ("12, 16" is 1 2 ", " 1 6);
# - other whitespace. (Only the first space of many looks for the last one, so that a text of spaces takes no longer.)
PIECES = (
    r"(?:\[\{|\"?(?:\}, \{|, ))\"[a-z_]+\": \"?|\d|\n|[ _]?[A-Za-z]+| ?[^\sA-Za-z0-9]+(?: (?=\d))?|(?<! ) +(?= \S)|\s"
)

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


def demo_tokenizer() -> PreTrainedTokenizerFast:
    """Trains the tokenizer, a byte-level BPE; it is the same to the byte in every run."""
    tokenizer = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample_texts(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        mask_token=MASK,
        additional_special_tokens=[TURN_START],
        model_max_length=1024,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def random_model(
    tokenizer: PreTrainedTokenizerBase, hidden_size: int, num_layers: int, head_dim: int = 64
) -> WeDLMForCausalLM:
    """A model with random weights, the same in every run. vLLM's attention on a CPU knows heads of 64 and not 48."""
    set_seed(SEED)
    model = WeDLMForCausalLM(
        WeDLMConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=8 * hidden_size // 3,
            num_hidden_layers=num_layers,
            num_attention_heads=hidden_size // head_dim,
            num_key_value_heads=hidden_size // (2 * head_dim),
            head_dim=head_dim,
            initializer_range=hidden_size**-0.5,
            tie_word_embeddings=False,
            max_position_embeddings=2048,
            mask_token_id=tokenizer.mask_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    # Large embeddings are far apart from the start, and small output projections add little to them at first. With
    # the usual ones, embeddings of a class of words stay close to their mean, and the model learns to copy such words
    # thousands of steps later.
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.3)
            layer.mlp.down_proj.weight.mul_(0.3)
    return model


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for the matrices of the layers and AdamW for the other weights, under one schedule."""

    def __init__(self, model: WeDLMForCausalLM, learning_rate: float):
        matrices, others = [], []
        for name, weight in model.named_parameters():
            (matrices if ".layers." in name and weight.ndim == 2 else others).append(weight)
        self.parts = [
            torch.optim.Muon(matrices, learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        super().__init__(self.groups(), {})

    def groups(self) -> list[dict]:
        # The dictionaries themselves and no copies, because a scheduler writes into them.
        return [group for part in self.parts for group in part.param_groups]

    def step(self, closure=None):
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = self.groups()
