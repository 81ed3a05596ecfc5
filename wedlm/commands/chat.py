"""`wedlm chat`: a conversation whose turns share one cache."""

import os
import sys
from dataclasses import dataclass, field, replace

from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from wedlm.checkpoints.prompt_ids import encode
from wedlm.commands.answering import AnswerStreamer, answer, counts, load, seed
from wedlm.commands.shared_options import GenerationOptions, text_of_standard_input
from wedlm.generation.model_kind import decodings_of

HELP = """\
/mode             show the decoding of answers
/mode DECODING    change the decoding: {decodings}
/stats            count tokens, forwards and seconds of the conversation
/reset            forget the conversation
/exit             leave, as Ctrl-D does; Ctrl-C stops an answer"""


@dataclass
class Chat:
    """A conversation, its cache, and the counts of what it took."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    options: GenerationOptions
    messages: list[dict] = field(default_factory=list)
    cache: DynamicCache | None = None
    cached_ids: list[int] = field(default_factory=list)
    turns: int = 0
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0
    reused: int = 0  # tokens of prompts that were in the cache

    def say(self, text: str) -> None:
        """Answers one turn. A turn that fails leaves no trace; one that Ctrl-C stops keeps the text so far."""
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = encode(self.model, self.tokenizer, messages)
        cache, reused = self.reusable(ids)
        self.forget_cache()  # until the turn is complete, as Ctrl-C can come between keys and values
        streamer = AnswerStreamer(self.tokenizer)
        try:
            got = answer(self.model, self.tokenizer, ids, self.options, streamer, cache)
        except KeyboardInterrupt:
            if streamer.text:
                self.messages = [*messages, {"role": "assistant", "content": streamer.text}]
            raise
        if got.is_cut:
            print(got.summary(), file=sys.stderr)
        self.messages = [*messages, {"role": "assistant", "content": got.text}]
        self.cache, self.cached_ids = got.cache, got.ids[: got.cache.get_seq_length()]
        self.turns += 1
        self.tokens += got.tokens
        self.forwards += got.forwards
        self.seconds += got.seconds
        self.reused += reused

    def reusable(self, ids: list[int]) -> tuple[DynamicCache | None, int]:
        """The cache, cropped to the ids that it shares with this prompt, and their number.

        It may share less than it holds: a template may write earlier turns anew, and a text may be encoded into other
        tokens than it was generated in. The last id of the prompt is left to be read.
        """
        shared = len(os.path.commonprefix([self.cached_ids, ids[:-1]]))
        if shared == 0:
            return None, 0
        if (more := len(self.cached_ids) - shared) > 0:
            self.cache.crop(-more)
        return self.cache, shared

    def forget_cache(self) -> None:
        self.cache, self.cached_ids = None, []

    def command(self, line: str) -> str:
        """The reply to a line that begins with a slash."""
        name, *arguments = line.split()
        match name, arguments:
            case "/help", []:
                return HELP.format(decodings=", ".join(decodings_of(self.model)))
            case "/mode", []:
                return self.options.decoding or self.model.generation_config.decoding
            case "/mode", [decoding] if decoding in decodings_of(self.model):
                self.options = replace(self.options, decoding=decoding)
                return decoding
            case "/mode", _:
                return f"{' '.join(arguments)} is not a decoding; choose one of {', '.join(decodings_of(self.model))}."
            case "/reset", []:
                self.messages = []
                self.forget_cache()
                return "The conversation is forgotten."
            case "/stats", [] if self.turns == 0:
                return "Nothing has been answered yet."
            case "/stats", []:
                counted = counts(self.tokens, self.forwards, self.seconds)
                return f"{self.turns} answered: {counted}; {self.reused} tokens of prompts were in the cache"
        return f"{line} is not a command; /help lists them."


def chat(options: GenerationOptions) -> None:
    """Reads lines from standard input until it ends, and answers each."""
    model, tokenizer = load(options)
    if tokenizer.chat_template is None:
        raise ValueError(f"{options.model} has no chat template; use `wedlm generate`, which continues a text.")
    seed(options)
    conversation = Chat(model, tokenizer, options)
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if is_terminal:
        import readline  # noqa: F401 (gives input() the arrow keys)

        print(f"{options.model}: /help lists the commands, Ctrl-D leaves.")
    while True:
        try:
            with text_of_standard_input():
                line = "/exit" if sys.stdin is None else input("> " if is_terminal else "").strip()
            if line == "/exit":
                return
            if line.startswith("/"):
                print(conversation.command(line), flush=True)
            elif line:
                conversation.say(line)
        except EOFError:
            if is_terminal:
                print()
            return
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print()
        except ValueError as error:
            if not is_terminal:
                raise
            print(error, file=sys.stderr)
