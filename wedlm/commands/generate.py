"""`wedlm generate`: the answer to one prompt."""

import sys

from wedlm.commands.answering import AnswerStreamer, answer, encode, load, seed
from wedlm.commands.options import GenerationOptions


def generate(prompt: str, options: GenerationOptions, raw: bool) -> None:
    """Prints the text as it is committed on standard output, and the counts on standard error."""
    model, tokenizer = load(options)
    ids = encode(model, tokenizer, prompt, raw)
    seed(options)
    got = answer(model, tokenizer, ids, options, AnswerStreamer(tokenizer))
    print(got.summary(), file=sys.stderr)
