"""One text of an answer as it grows: from tokens to the parts that a client reads."""

from dataclasses import dataclass, field

from tokenizers.decoders import DecodeStream
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.cli.serving.utils import ReasoningText, ToolCall
from transformers.generation.continuous_batching.requests import GenerationOutput

from wedlm.serving.stop_strings import StopStrings, before_possible_stop, before_stop
from wedlm.serving.token_scores import TokenScores
from wedlm.serving.tool_calls import AnswerParser


@dataclass
class Part:
    """The further part of a text.

    Args:
        text (`str`): Its text.
        reasoning (`str`): The thoughts in it, where the tokenizer's template tells them apart.
        tool_calls (`list[ToolCall]`): The tool calls in it.
        tokens (`list[int]`): Its tokens.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add(self, item: str | ToolCall) -> None:
        if isinstance(item, ToolCall):
            self.tool_calls.append(item)
        elif isinstance(item, ReasoningText):
            self.reasoning += item
        else:
            self.text += item


class Answer:
    """One text, up to a stop string.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the model.
        config (`GenerationConfig`): The settings of the text.
        parser (`AnswerParser`, *optional*): Tells tool calls and thoughts from text.
        scores (`TokenScores`, *optional*): The log-probabilities of its tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        config: GenerationConfig,
        parser: AnswerParser | None = None,
        scores: TokenScores | None = None,
    ):
        self.tokenizer, self.config, self.parser, self.scores = tokenizer, config, parser, scores
        self.skips_special_tokens = parser is None or not parser.reads_special_tokens
        self.decoder = DecodeStream([], skip_special_tokens=self.skips_special_tokens)
        self.token_ids: list[int] = []
        self.text, self.num_read = "", 0  # characters that the parser has read, or that were sent
        self.num_tool_calls = 0
        self.stop: StopStrings | None = None  # reads the text while it is written

    def put(self, output: GenerationOutput) -> Part:
        """The part that an output adds, which has all tokens so far."""
        part = Part(tokens=output.generated_tokens[len(self.token_ids) :])
        self.token_ids += part.tokens
        for token in part.tokens:
            self.text += self.decoder.step(self.tokenizer.backend_tokenizer, token) or ""
        if output.is_finished():
            self.complete()
        stop_strings = self.config.stop_strings
        unread = self.text[self.num_read :]  # No stop string begins before it.
        new = (before_stop if output.is_finished() else before_possible_stop)(unread, stop_strings)
        self.num_read += len(new)
        for item in self.items(new, output.is_finished()):
            part.add(item)
        self.num_tool_calls += len(part.tool_calls)
        return part

    def complete(self) -> None:
        """Takes the text as the tokenizer writes it: the last bytes may make no character, and spaces may go."""
        whole = self.tokenizer.decode(self.token_ids, skip_special_tokens=self.skips_special_tokens)
        if whole.startswith(self.text[: self.num_read]):
            self.text = whole

    def items(self, text: str, is_last: bool) -> list[str | ToolCall]:
        if self.parser is None:
            return [text]
        return self.parser.feed(text) + (self.parser.finish() if is_last else [])

    @property
    def finish_reason(self) -> str:
        if self.num_tool_calls:
            return "tool_calls"
        ends = self.config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        is_stopped = before_stop(self.text, self.config.stop_strings) != self.text
        is_stopped |= self.stop is not None and self.stop.is_met  # by one that begins in the prompt
        return "stop" if is_stopped or (self.token_ids and self.token_ids[-1] in ends) else "length"
