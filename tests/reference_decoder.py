"""Streaming, blockwise and verified decoding of one row, written for the eye: lists, no cache, no batch.

With `processors` tokens are chosen left to right; `criteria` say where the text ends. Both are called on the row with
`padding` in front, as it stands in a batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

MOST_MATCHED = 6


@dataclass
class Decoded:
    ids: list[int] = field(default_factory=list)
    forwards: int = 0
    window_queries: int = 0
    steps: list[dict] = field(default_factory=list)
    margin: float = math.inf  # the smallest gap that decided anything
    verified: list[int] = field(default_factory=list)  # verified: drafts verified at each distance
    accepted: list[int] = field(default_factory=list)


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
        result.window_queries += len(window)
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


def looked_up(text: list[int], num_drafts: int, most_matched: int = MOST_MATCHED) -> tuple[list[int], int]:
    """The drafts behind the longest earlier match, the last of several, and its length."""
    best, at = 0, None
    for end in range(len(text) - 1):
        num_same = 0
        while num_same < min(most_matched, end + 1) and text[end - num_same] == text[-1 - num_same]:
            num_same += 1
        if num_same and num_same >= best:
            best, at = num_same, end
    drafts = list(text)
    for _ in range(num_drafts if best else 0):
        drafts.append(drafts[at + 1 + len(drafts) - len(text)])
    return drafts[len(text) :], best


def decode_verified(
    logits_of: Callable[[list[int], list[int], list[list[bool]]], torch.Tensor],
    prompt: list[int],
    max_new_tokens: int,
    mask_token_id: int,
    eos_token_ids: list[int],
    steps: list[tuple[list[int], list[int]]],
    window_size: int = 16,
    processors: Callable | None = None,
    criteria: Callable | None = None,
    padding: Sequence[int] = (),
    num_looked_up: int | None = None,
    most_matched: int = MOST_MATCHED,
    acceptance_ratio: float = 1.0,
    masks_shift: bool = False,
) -> Decoded:
    """`logits_of(tokens, positions, who_sees_whom)` is one forward without a cache, `[rows, vocabulary]`.

    `steps` are the drafts and the lengths of the groups of MASKs of each forward, as the decoder planned them. They
    must be drafts that could be made, and few enough. With `masks_shift` a MASK predicts the token behind it.
    """
    window_size = min(window_size, max_new_tokens)
    num_looked_up = window_size - 1 if num_looked_up is None else min(num_looked_up, window_size - 1)
    result = Decoded(verified=[0] * (window_size - 1), accepted=[0] * (window_size - 1))
    text, offered = result.ids, ([], [])

    def scores_of(logits: torch.Tensor, before: list[int]) -> torch.Tensor:
        scores = logits.clone().float()
        scores[mask_token_id] = -math.inf
        if processors is not None:
            scores = processors(torch.tensor([[*padding, *prompt, *before]]), scores[None])[0]
        return scores

    def best_of_mask(logits: torch.Tensor) -> int:
        scores = logits.clone().float()
        scores[mask_token_id] = -math.inf
        return scores.argmax().item()

    for drafts, sizes in steps:
        assert any(drafts == each[: len(drafts)] for each in offered), "drafts of MASKs, or of the text"
        num_open = max_new_tokens - len(text)
        assert len(drafts) <= num_open and all(
            num + size + masks_shift <= num_open for num, size in enumerate(sizes) if size
        )
        assert len(drafts) + sum(sizes) <= (2 * window_size - 1 if text else window_size)
        if text:
            result.steps.append({"known": len(text), "drafts": list(drafts)})

        # Rows: the text, the drafts, and for every number of accepted drafts a group of MASK rows.
        known = prompt + text
        rows = [(token, position, list(range(position + 1))) for position, token in enumerate(known + drafts)]
        groups = []
        for num_seen, size in enumerate(sizes[: len(drafts) + 1]):
            group = []
            for place in range(size):
                group.append(len(rows))
                rows.append((mask_token_id, len(known) + num_seen + place, [*range(len(known) + num_seen), *group]))
            groups.append(group)
        tokens, positions, seen = zip(*rows, strict=True)
        who_sees_whom = [[other in those for other in range(len(rows))] for those in seen]
        logits = logits_of(list(tokens), list(positions), who_sees_whom)
        result.forwards += 1
        result.window_queries += len(rows) - len(known) + (1 if text else 0)

        # Verify.
        num_accepted = 0
        for distance, draft in enumerate([*drafts, None]):
            scores = scores_of(logits[len(known) - 1 + distance], text)
            (best, second), (token, _) = (x.tolist() for x in scores.topk(2))
            result.margin = min(result.margin, best - second)
            if draft is not None and (scores - best).exp()[draft] >= acceptance_ratio:
                token = draft
            text.append(token)
            if draft is not None:
                result.verified[distance] += 1
                result.accepted[distance] += token == draft
            if criteria is not None:
                ended = criteria(torch.tensor([[*padding, *prompt, *text]]), None).item()
            else:
                ended = token in eos_token_ids
            if ended or len(text) == max_new_tokens:
                return result
            if token != draft:
                break
            num_accepted += 1

        # Draft.
        of_masks = [best_of_mask(logits[row]) for row in groups[num_accepted][0 if masks_shift else 1 :]]
        offered = (of_masks, looked_up(prompt + text, num_looked_up, most_matched)[0])
    raise AssertionError("the text has not ended")


def decode_strided(
    logits_of: Callable[[list[int], list[int]], torch.Tensor],
    prompt: list[int],
    max_new_tokens: int,
    mask_token_id: int,
    eos_token_ids: list[int],
    stride: int,
) -> Decoded:
    """I-DLM's own plan: MASKs, which predict the tokens behind them, stand behind all drafts and nowhere else.

    After that over the prompt, each forward holds the last token, up to `stride` - 1 drafts, and `stride` - 1 MASKs.
    These make the next drafts if all drafts are accepted; otherwise the next forward has none. `steps` are the drafts.
    """
    result = Decoded(verified=[0] * (stride - 1), accepted=[0] * (stride - 1))
    text, drafts = result.ids, []
    while True:
        known = prompt + text
        tokens = known + drafts + [mask_token_id] * (stride - 1 if text else 0)
        scores = logits_of(tokens, list(range(len(tokens)))).clone()
        scores[:, mask_token_id] = -math.inf
        best = scores.argmax(-1).tolist()[len(known) - 1 :]
        result.forwards += 1
        result.steps.append({"known": len(text), "drafts": drafts})

        is_accepted = []
        for token, draft in zip(best, [*drafts, None], strict=False):
            text.append(token)
            if draft is not None:
                result.verified[len(is_accepted)] += 1
                result.accepted[len(is_accepted)] += token == draft
                is_accepted.append(token == draft)
            if token in eos_token_ids or len(text) == max_new_tokens:
                return result
            if token != draft:
                break
        drafts = best[len(drafts) + 1 :] if all(is_accepted) else []
