"""`wedlm generate`, and the one call of generate() that the other commands share."""

import sys
import time
from typing import NamedTuple

import torch
from transformers import DynamicCache, PreTrainedTokenizerBase, TextStreamer, logging

from wedlm.checkpoints.load import load_checkpoint
from wedlm.commands.settings import Settings
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM


class Answer(NamedTuple):
    text: str
    ids: list[int]  # the prompt's in front
    tokens: int
    is_cut: bool  # at max_new_tokens
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
    if settings.max_new_tokens > (most := model.config.max_position_embeddings):  # memory is taken for all of them
        raise ValueError(
            f"--max-new-tokens {settings.max_new_tokens} is more than max_position_embeddings={most} of this model; "
            "give fewer."
        )
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
            "answer; shorten it (a chat forgets what was said by /reset)."
        )
    if model.config.mask_token_id in ids:
        mask = tokenizer.decode([model.config.mask_token_id])
        raise ValueError(
            f"The prompt holds {mask}, the MASK token, which stands for what is to be written; take it out."
        )
    return ids


def read_prompt(prompt: str) -> str:
    """What the user gave, - being standard input."""
    if prompt == "-":
        prompt = "" if sys.stdin is None else sys.stdin.read().removesuffix("\n")
    if not prompt.strip():
        raise ValueError("The prompt is empty; give it some text.")
    if any("\ud800" <= char <= "\udfff" for char in prompt):
        raise ValueError(f"The prompt {prompt!r} is not UTF-8; convert it, or read it from standard input.")
    return prompt


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
    ends = model.generation_config.eos_token_id
    has_end = new[-1] in (ends if isinstance(ends, list) else [ends])
    is_cut = len(new) == settings.max_new_tokens and not has_end
    return Answer(text, sequence, len(new), is_cut, output.forwards.item(), seconds, output.past_key_values)


def told(got: Answer) -> str:
    """What is said of an answer."""
    cut = f"; stopped at --max-new-tokens {got.tokens}" if got.is_cut else ""
    return counts(got.tokens, got.forwards, got.seconds) + cut


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
    print(told(got), file=sys.stderr)
