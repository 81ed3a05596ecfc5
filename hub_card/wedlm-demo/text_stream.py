"""Hands final text, and the guesses behind it, to a streamer."""

import torch
from transformers.generation import BaseStreamer

from .window import Window


class TextStream:
    """Hands a streamer the text that has become final.

    A streamer of one row may show guesses too, by one of two methods besides `put`: `put_draft(tokens)`, which
    transformers' own streamer has, or `put_window(tokens, filled)`. It gets the tokens behind the final text, with a
    guess in each open slot.

    Args:
        streamer (`BaseStreamer`): The caller's streamer.
        batch_size (`int`): The rows of the batch.
    """

    def __init__(self, streamer: BaseStreamer, batch_size: int):
        self.streamer = streamer
        self.shows_guesses = batch_size == 1 and any(hasattr(streamer, name) for name in ("put_draft", "put_window"))
        self.num_streamed = 0
        self.guesses = None  # tokens, and whether each is filled, of the one row up to the window's end

    def guess(self, window: Window, slots: torch.Tensor, tokens: torch.Tensor, end: torch.Tensor) -> None:
        """Keeps guesses for open slots of the one row until its final text has been handed on."""
        shown = window.tokens[0].index_put((slots,), tokens)
        self.guesses = shown[:end], window.filled[0, :end].clone()

    def hand_on(self, new_tokens: torch.Tensor, num_final: int, is_alive: bool) -> None:
        """Hands on `[batch, slots]` new tokens up to `num_final`: a single row at once, several column by column."""
        new = new_tokens[:, self.num_streamed : num_final].cpu()
        if new.shape[1] > 0:
            for tokens in new if len(new) == 1 else new.T.contiguous():
                self.streamer.put(tokens)
        self.num_streamed = num_final
        if self.shows_guesses and is_alive:
            tokens, filled = (values[num_final:].cpu() for values in self.guesses)
            if hasattr(self.streamer, "put_window"):
                self.streamer.put_window(tokens, filled)
            else:
                self.streamer.put_draft(tokens)
