"""`wedlm generate`, and the one call of generate() that the other commands share."""

import sys
import time
from typing import NamedTuple

import torch
from transformers import DynamicCache, PreTrainedTokenizerBase, TextStreamer, logging

from wedlm.checkpoint import load_checkpoint
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM
from wedlm.settings import Settings


class Answer(NamedTuple):
    text: str
    ids: list[int]  # the prompt's in front
    tokens: int
    forwards: int
    seconds: float
    cache: DynamicCache

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards


def load(settings: Settings) -> tuple[WeDLMForCausalLM, PreTrainedTokenizerBase]:
    """Model and tokenizer, once the settings have been found to be possible."""
    arguments = settings.arguments()
    model, tokenizer = load_checkpoint(settings.model, settings.dtype, settings.device)
    logging.set_verbosity_error()  # what generate() refuses is shown as a sentence
    model._prepare_generation_config(None, **arguments)
    return model, tokenizer


def encode(
    model: WeDLMForCausalLM, tokenizer: PreTrainedTokenizerBase, prompt: str | list[dict], raw=False
) -> list[int]:
    """The ids of a text, or of a chat whose answer comes next; a base model without a template reads plain text."""
    if isinstance(prompt, str) and not raw and tokenizer.chat_template is not None:
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(prompt, str):
        ids = tokenizer(prompt)["input_ids"]
    else:
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    if len(ids) >= model.config.max_position_embeddings:
        raise ValueError(
            f"The prompt has {len(ids)} tokens, and the model reads {model.config.max_position_embeddings} with the "
            "answer; shorten it."
        )
    return ids


def read_prompt(prompt: str) -> str:
    """What the user gave, - being standard input."""
    if prompt == "-":
        prompt = sys.stdin.read().removesuffix("\n")
    require_text(prompt)
    return prompt


def require_text(prompt: str) -> None:
    if not prompt.strip():
        raise ValueError("The prompt is empty; give it some text.")


def seed(settings: Settings) -> None:
    if settings.seed is not None:
        torch.manual_seed(settings.seed)


def answer(
    model: WeDLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    settings: Settings,
    streamer: TextStreamer | None = None,
    cache: DynamicCache | None = None,
) -> Answer:
    """What comes behind the ids, of which the first may be in the cache."""
    input_ids = torch.tensor([ids], device=model.device)
    start = time.perf_counter()
    output = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        **settings.arguments(),
        **({} if cache is None else {"past_key_values": cache}),
        streamer=streamer,
        return_dict_in_generate=True,
    )
    sequence = output.sequences[0].tolist()  # waits for the device
    seconds = time.perf_counter() - start
    new = sequence[len(ids) :]
    text = tokenizer.decode(new, skip_special_tokens=True)
    return Answer(text, sequence, len(new), output.forwards.item(), seconds, output.past_key_values)


def counts(tokens: int, forwards: int, seconds: float) -> str:
    return (
        f"{tokens} token{'s' * (tokens != 1)}, {forwards} forward{'s' * (forwards != 1)}, "
        f"{tokens / forwards:.2f} tokens per forward, {seconds:.2f} s"
    )


def generate(prompt: str, settings: Settings, raw: bool) -> None:
    """The text on standard output as it is committed, the counts on standard error."""
    prompt = read_prompt(prompt)
    model, tokenizer = load(settings)
    ids = encode(model, tokenizer, prompt, raw)
    seed(settings)
    got = answer(model, tokenizer, ids, settings, TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True))
    print(counts(got.tokens, got.forwards, got.seconds), file=sys.stderr)
