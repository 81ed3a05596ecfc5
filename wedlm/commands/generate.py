"""`wedlm generate`: the answer to one prompt."""

import sys

from wedlm.checkpoints.prompt_ids import encode
from wedlm.commands.answering import AnswerStreamer, answer, load, seed
from wedlm.commands.options import GenerationOptions


def generate(prompt: str, options: GenerationOptions, raw: bool) -> None:
    """Prints the text as it is committed on standard output, and the counts on standard error."""
    model, tokenizer = load(options)
    ids = encode(model, tokenizer, prompt, raw)
    seed(options)
    got = answer(model, tokenizer, ids, options, AnswerStreamer(tokenizer))
    print(got.summary(), file=sys.stderr)
