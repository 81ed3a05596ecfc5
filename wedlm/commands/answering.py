"""The answer to one prompt: load a checkpoint, generate, and count."""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase, TextStreamer, logging
from transformers.generation import BaseStreamer

from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.prompt_ids import encode
from wedlm.checkpoints.rendering import PROCESS
from wedlm.commands.shared_options import GenerationOptions
from wedlm.generation.custom_generate import resolved_config
from wedlm.generation.model_kind import max_positions_of
from wedlm.generation.transformers_internals import CACHE


class Answer(NamedTuple):
    """A generated text, and the cost of it."""

    text: str
    ids: list[int]  # of the prompt and the answer
    tokens: int  # of the answer
    is_cut: bool  # at max_new_tokens
    forwards: int
    seconds: float
    cache: DynamicCache

    def summary(self) -> str:
        cut = f"; stopped at --max-new-tokens {self.tokens}" if self.is_cut else ""
        return counts(self.tokens, self.forwards, self.seconds) + cut


class AnswerStreamer(TextStreamer):
    """Keeps the text of an answer while it is generated, and prints each new part or calls `show` with all of it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, show: Callable[[str], None] | None = None):
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.text, self.show = "", show

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.text += text
        if self.show is None:
            super().on_finalized_text(text, stream_end)
        else:
            self.show(self.text)


def load(options: GenerationOptions) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads the model and the tokenizer; options that this model cannot follow are refused."""
    arguments = options.arguments()
    PROCESS.start()  # it imports transformers in the time in which the model is loaded
    model, tokenizer = load_checkpoint(options.model, options.dtype, options.device, only_decodes=True, or_stock=True)
    most = max_positions_of(model)
    if options.max_new_tokens > most:  # the cache takes memory for all of them
        raise ValueError(
            f"--max-new-tokens {options.max_new_tokens} is more than max_position_embeddings={most} of this model; "
            "give fewer."
        )
    logging.set_verbosity_error()  # the commands show refusals as sentences, not as warnings
    resolved_config(model, **arguments)
    if options.seed is not None and not options.temperature:
        print(f"--seed {options.seed} has no effect without draws; give a --temperature above 0.", file=sys.stderr)
    return model, tokenizer


def seed(options: GenerationOptions) -> None:
    if options.seed is not None:
        torch.manual_seed(options.seed)


def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    options: GenerationOptions,
    streamer: BaseStreamer | None = None,
    cache: DynamicCache | None = None,
) -> Answer:
    """Generates the answer to the prompt with these ids, of which `cache` holds the first ones."""
    input_ids = torch.tensor([ids], device=model.device)
    start = time.perf_counter()
    output = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        **options.arguments(),
        **({} if cache is None else {CACHE: cache}),
        streamer=streamer,
        return_dict_in_generate=True,
    )
    sequence = output.sequences[0].tolist()  # waits for the device
    seconds = time.perf_counter() - start
    new = sequence[len(ids) :]
    text = tokenizer.decode(new, skip_special_tokens=True)
    ends = model.generation_config.eos_token_id
    has_end = new[-1] in (ends if isinstance(ends, list) else [ends])
    is_cut = len(new) == options.max_new_tokens and not has_end
    return Answer(text, sequence, len(new), is_cut, output.forwards.item(), seconds, getattr(output, CACHE))


def counts(tokens: int, forwards: int, seconds: float) -> str:
    return (
        f"{tokens} token{'s' * (tokens != 1)}, {forwards} forward pass{'es' * (forwards != 1)}, "
        f"{tokens / forwards:.2f} tokens per pass, {seconds:.2f} s"
    )


def generate(prompt: str, options: GenerationOptions, raw: bool) -> None:
    """Prints the text as it is committed on standard output, and the counts on standard error."""
    model, tokenizer = load(options)
    ids = encode(model, tokenizer, prompt, raw)
    seed(options)
    got = answer(model, tokenizer, ids, options, AnswerStreamer(tokenizer))
    print(got.summary(), file=sys.stderr)
