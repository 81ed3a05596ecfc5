"""Streaming and blockwise decoding of one row, written for the eye: lists, no cache, no batch.

With `processors` tokens are chosen left to right; `criteria` say where the text ends. Both are called on the row with
`padding` in front, as it stands in a batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch


@dataclass
class Decoded:
    ids: list[int] = field(default_factory=list)
    forwards: int = 0
    window_rows: int = 0
    steps: list[dict] = field(default_factory=list)
    margin: float = math.inf  # the smallest gap that decided anything


def decode(
    logits_of: Callable[[list[int], list[int]], torch.Tensor],
    prompt: list[int],
    max_new_tokens: int,
    mask_token_id: int,
    eos_token_ids: list[int],
    window_size: int = 16,
    entropy_threshold: float | None = 0.4,
    distance_penalty: float = 0.02,
    decoding: str = "streaming",
    processors: Callable | None = None,
    criteria: Callable | None = None,
    padding: Sequence[int] = (),
) -> Decoded:
    """`logits_of(tokens, positions)` is one causal forward without a cache, `[rows, vocabulary]`."""
    result = Decoded()

    def ends(text: list[int]) -> bool:
        if criteria is not None:
            return criteria(torch.tensor([[*padding, *prompt, *text]]), None).item()
        return text[-1] in eos_token_ids

    committed: list[int] = []
    window: list[int | None] = [None] * min(window_size, max_new_tokens)  # a token, or None where open
    while True:
        # Refill.
        leading = next((i for i, token in enumerate(window) if token is None), len(window))
        if decoding == "blockwise" and leading < len(window):
            leading = 0
        window += [None] * min(leading, max_new_tokens - len(committed) - len(window))

        # Rows: filled slots in position order, then a MASK per open slot.
        first_position = len(prompt) + len(committed)
        filled = [i for i, token in enumerate(window) if token is not None]
        opened = [i for i, token in enumerate(window) if token is None]
        before = prompt + committed
        tokens = before + [window[i] for i in filled] + [mask_token_id] * len(opened)
        positions = list(range(len(before))) + [first_position + i for i in filled + opened]
        logits = logits_of(tokens, positions)[len(before) + len(filled) :].double()
        result.forwards += 1
        result.window_rows += len(window)
        step = {
            "committed": len(committed),
            "window": [mask_token_id if token is None else token for token in window],
            "open": "".join("1" if token is None else "0" for token in window),
        }

        # Commit.
        committed += window[:leading]
        window = window[leading:]
        opened = [i - leading for i in opened]

        # Select.
        adjusted = [
            torch.distributions.Categorical(logits=row).entropy().item() + distance_penalty * (i - opened[0])
            for i, row in zip(opened, logits, strict=True)
        ]
        selected = []
        if entropy_threshold is not None:
            selected = [k for k, value in enumerate(adjusted) if value < entropy_threshold]
            result.margin = min([result.margin, *(abs(value - entropy_threshold) for value in adjusted)])
        if not selected:
            selected = [min(range(len(adjusted)), key=adjusted.__getitem__)]
            others = [value for k, value in enumerate(adjusted) if k != selected[0]]
            result.margin = min([result.margin, *(value - adjusted[selected[0]] for value in others)])

        # Fill.
        if processors is not None:
            run = next(k for k in range(len(opened) + 1) if k not in selected)
            selected = list(range(max(run, 1)))
        for k in selected:
            scores = logits[k].clone()
            scores[mask_token_id] = -math.inf
            if processors is not None:
                before = committed + window[: opened[k]]
                if before and ends(before):
                    break
                scores = processors(torch.tensor([[*padding, *prompt, *before]]), scores[None].float())[0]
            (best, second), (token, _) = (x.tolist() for x in scores.topk(2))
            result.margin = min(result.margin, best - second)
            window[opened[k]] = token
        step["filled"] = [[first_position + leading + opened[k], window[opened[k]]] for k in selected]
        result.steps.append(step)

        # Stop.
        run = []
        for token in window:
            if token is None:
                break
            run.append(token)
            if ends(committed + run):
                break
        text = committed + run
        if len(text) == max_new_tokens or (run and ends(text)):
            result.ids = text
            return result
