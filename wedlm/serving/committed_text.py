"""The text of a stream: one event for all tokens that a forward committed."""

import asyncio
from collections.abc import Callable

import torch
from transformers import PreTrainedTokenizerBase
from transformers.cli.serving.utils import DirectStreamer

from wedlm.serving.stop_strings import before_possible_stop, before_stop


class CommittedText(DirectStreamer):
    """A streamer that puts the text of each commit into a queue, up to a stop string.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the model.
        loop (`asyncio.AbstractEventLoop`): The loop of the server.
        queue (`asyncio.Queue`): The queue that the route reads.
        response_parser (`Callable`, *optional*): transformers' parser of tool calls and thoughts.
        stop_strings (`list[str]` or `str`, *optional*): Texts that end the stream; they and what follows never appear.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        loop: asyncio.AbstractEventLoop,
        queue: asyncio.Queue,
        response_parser: Callable | None,
        stop_strings: list[str] | str | None,
    ):
        super().__init__(tokenizer._tokenizer, loop, queue, response_parser=response_parser)
        self.tokenizer, self.stop_strings = tokenizer, stop_strings
        self.token_ids, self.text, self.num_sent = [], "", 0

    def put(self, value: torch.Tensor) -> None:
        value = value.flatten()  # transformers' assisted decoding puts `[1, tokens]`
        if not self._first:
            self.token_ids += value.tolist()
        super().put(value)
        self._send(before_possible_stop(self.text, self.stop_strings))

    def _enqueue(self, item) -> None:
        if type(item) is str:
            self.text += item
        else:  # a tool call or a thought
            self._send(before_stop(self.text, self.stop_strings))
            super()._enqueue(item)

    def _send(self, text: str) -> None:
        if len(text) > self.num_sent:
            super()._enqueue(text[self.num_sent :])
            self.num_sent = len(text)

    def end(self) -> None:
        """Does nothing: generate() calls this when it fails too, and the client would take the text for complete."""

    def flush(self) -> None:
        """Sends the rest of a text that is complete."""
        whole = self.tokenizer.decode(self.token_ids, skip_special_tokens=True)
        if self._parser is None and whole.startswith(self.text):
            self.text = whole  # the last bytes may make no character, and are shown as everywhere else
        super().end()
