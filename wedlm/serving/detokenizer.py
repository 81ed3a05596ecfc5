"""From the tokens of a text to what a client reads: content up to a stop string, reasoning and tool calls."""

from dataclasses import dataclass, field

import torch
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase, StoppingCriteria
from transformers.cli.serving.utils import ReasoningText, ToolCall
from transformers.generation.continuous_batching.requests import GenerationOutput

from wedlm.serving.logits_processors import TokenLogprobs
from wedlm.serving.tool_calls import OutputParser

CHARACTER_TOKENS = 4  # the most tokens that make one character, which has at most 4 bytes


def before_stop(text: str, stop_strings: list[str]) -> str:
    """The text up to the first stop string."""
    for stop in stop_strings:
        text = text.partition(stop)[0]
    return text


def before_possible_stop(text: str, stop_strings: list[str]) -> str:
    """The text up to the first stop string, or up to an end that the next tokens may make one."""
    text = before_stop(text, stop_strings)
    beginnings = (stop[:length] for stop in stop_strings for length in range(1, len(stop)))
    return text[: len(text) - max((len(part) for part in beginnings if text.endswith(part)), default=0)]


class StopStrings(StoppingCriteria):
    """Ends a text with the token that completes a stop string, which may begin in the prompt.

    transformers' own criterion compares each stop string with every token of the vocabulary first, in seconds; this
    one reads the text as it is decoded.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_strings: list[str], prompt: list[int]):
        self.tokenizer, self.stop_strings, self.num_read = tokenizer, stop_strings, len(prompt)
        self.num_characters = max(map(len, stop_strings)) - 1  # before the last token
        self.decoder = DecodeStream([], skip_special_tokens=False)
        self.last = self.end_of(tokenizer.decode(prompt[-CHARACTER_TOKENS * (self.num_characters + 1) :]))
        self.is_met = False

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs) -> torch.BoolTensor:
        for token in input_ids[0, self.num_read :].tolist():
            text = self.last + (self.decoder.step(self.tokenizer.backend_tokenizer, token) or "")
            self.is_met |= any(stop in text[max(0, len(self.last) - len(stop) + 1) :] for stop in self.stop_strings)
            self.last = self.end_of(text)
        self.num_read = input_ids.shape[1]
        return torch.full((len(input_ids),), self.is_met, device=input_ids.device)

    def end_of(self, text: str) -> str:
        return text[max(0, len(text) - self.num_characters) :]


@dataclass
class Delta:
    """What further tokens add to a text."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class Detokenizer:
    """Decodes one text as it grows, up to a stop string."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_tokens: int | list[int] | None,
        stop: StopStrings | None = None,
        parser: OutputParser | None = None,
        logprobs: TokenLogprobs | None = None,
    ):
        self.tokenizer, self.stop, self.parser, self.logprobs = tokenizer, stop, parser, logprobs
        self.end_tokens = end_tokens if isinstance(end_tokens, list) else [end_tokens]
        # (The parser of a response template knows one of them, and takes others for content.)
        self.unread = {*self.end_tokens} & {*tokenizer.all_special_ids}
        self.stop_strings = [] if stop is None else stop.stop_strings
        self.skips_special_tokens = parser is None or not parser.reads_special_tokens
        self.decoder = DecodeStream([], skip_special_tokens=self.skips_special_tokens)
        self.tokens: list[int] = []
        self.text, self.num_sent = "", 0  # the text so far, and its characters that a delta held
        self.num_tool_calls = 0

    def put(self, output: GenerationOutput) -> Delta:
        """The delta of an output, which has all tokens so far."""
        delta = Delta(tokens=output.generated_tokens[len(self.tokens) :])
        self.tokens += delta.tokens
        for token in delta.tokens:
            if token in self.unread:
                continue
            self.text += self.decoder.step(self.tokenizer.backend_tokenizer, token) or ""
        if is_last := output.is_finished():
            self.complete()
        unsent = self.text[self.num_sent :]  # No stop string begins before it.
        text = (before_stop if is_last else before_possible_stop)(unsent, self.stop_strings)
        self.num_sent += len(text)
        items = [text] if self.parser is None else self.parser.feed(text) + (self.parser.finish() if is_last else [])
        for item in items:
            if isinstance(item, ToolCall):
                delta.tool_calls.append(item)
            elif isinstance(item, ReasoningText):
                delta.reasoning += item
            else:
                delta.content += item
        self.num_tool_calls += len(delta.tool_calls)
        return delta

    def complete(self) -> None:
        """Takes the text as the tokenizer writes it: the last bytes may make no character, and spaces may go."""
        tokens = [token for token in self.tokens if token not in self.unread]
        whole = self.tokenizer.decode(tokens, skip_special_tokens=self.skips_special_tokens)
        if whole.startswith(self.text[: self.num_sent]):
            self.text = whole

    @property
    def finish_reason(self) -> str:
        if self.num_tool_calls:
            return "tool_calls"
        is_stopped = before_stop(self.text, self.stop_strings) != self.text
        is_stopped |= self.stop is not None and self.stop.is_met  # by one that begins in the prompt
        return "stop" if is_stopped or (self.tokens and self.tokens[-1] in self.end_tokens) else "length"
