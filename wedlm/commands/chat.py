"""`wedlm chat`: a conversation whose cache goes from turn to turn."""

import os
import sys
from dataclasses import dataclass, field, replace

from transformers import DynamicCache, PreTrainedTokenizerBase, TextStreamer

from wedlm.commands.generate import answer, counts, encode, load, seed, told
from wedlm.commands.settings import Settings
from wedlm.generation.support import DECODINGS
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

HELP = """\
/mode             show how answers are decoded
/mode DECODING    decode otherwise from now on: {decodings}
/stats            what the conversation took
/reset            forget the conversation
/exit             leave, as Ctrl-D does; Ctrl-C stops an answer"""


class Recorder(TextStreamer):
    """Prints, and keeps what it has printed: an answer that is stopped has said that much."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.text = ""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.text += text
        super().on_finalized_text(text, stream_end)


@dataclass
class Chat:
    model: WeDLMForCausalLM
    tokenizer: PreTrainedTokenizerBase
    settings: Settings
    messages: list[dict] = field(default_factory=list)
    cache: DynamicCache | None = None
    cached_ids: list[int] = field(default_factory=list)
    turns: int = 0
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0
    reused: int = 0  # tokens of prompts that the cache had

    def say(self, text: str) -> None:
        """One turn. If it fails it has not been; if it is stopped, what was answered stays."""
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = encode(self.model, self.tokenizer, messages)
        cache, reused = self.reusable(ids)
        self.forget_cache()  # until the turn is complete: Ctrl-C can come between keys and values
        streamer = Recorder(self.tokenizer)
        try:
            got = answer(self.model, self.tokenizer, ids, self.settings, streamer, cache)
        except KeyboardInterrupt:
            if streamer.text:
                self.messages = [*messages, {"role": "assistant", "content": streamer.text}]
            raise
        if got.is_cut:
            print(told(got), file=sys.stderr)
        self.messages = [*messages, {"role": "assistant", "content": got.text}]
        self.cache, self.cached_ids = got.cache, got.ids[: got.cache.get_seq_length()]
        self.turns += 1
        self.tokens += got.tokens
        self.forwards += got.forwards
        self.seconds += got.seconds
        self.reused += reused

    def reusable(self, ids: list[int]) -> tuple[DynamicCache | None, int]:
        """The cache as far as it holds the beginning of the ids, the last one left out, and how far that is.

        A template may write earlier turns anew, and a text may be cut into other tokens than it was generated in.
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
        """What a line that begins with a slash answers."""
        name, *arguments = line.split()
        match name, arguments:
            case "/help", []:
                return HELP.format(decodings=", ".join(DECODINGS))
            case "/mode", []:
                return self.settings.decoding or self.model.generation_config.decoding
            case "/mode", [decoding] if decoding in DECODINGS:
                self.settings = replace(self.settings, decoding=decoding)
                return decoding
            case "/mode", _:
                return f"{' '.join(arguments)} is no decoding; choose one of {', '.join(DECODINGS)}."
            case "/reset", []:
                self.messages = []
                self.forget_cache()
                return "The conversation is forgotten."
            case "/stats", [] if self.turns == 0:
                return "Nothing has been answered yet."
            case "/stats", []:
                counted = counts(self.tokens, self.forwards, self.seconds)
                return f"{self.turns} answered: {counted}; {self.reused} tokens of prompts were in the cache"
        return f"{line} is no command; /help lists them."


def chat(settings: Settings) -> None:
    model, tokenizer = load(settings)
    if tokenizer.chat_template is None:
        raise ValueError(f"{settings.model} has no chat template; use `wedlm generate`, which continues a text.")
    seed(settings)
    conversation = Chat(model, tokenizer, settings)
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if is_terminal:
        import readline  # noqa: F401 (gives input() the arrow keys)

        print(f"{settings.model}: /help lists the commands, Ctrl-D leaves.")
    while True:
        try:
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
