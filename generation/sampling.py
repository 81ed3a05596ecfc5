"""Scores of slots, the tokens chosen from them, and the random numbers of sampled text."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, generation

# Processors that look at scores alone, so that one call serves all slots.
PLAIN_PROCESSORS = {
    generation.EpsilonLogitsWarper,
    generation.EtaLogitsWarper,
    generation.InfNanRemoveLogitsProcessor,
    generation.LogitNormalization,
    generation.MinPLogitsWarper,
    generation.SuppressTokensLogitsProcessor,
    generation.TemperatureLogitsWarper,
    generation.TopHLogitsWarper,
    generation.TopKLogitsWarper,
    generation.TopPLogitsWarper,
    generation.TypicalLogitsWarper,
}
MOST_SCORES = 2**24  # that are in float32 at a time


class NoTokenError(ValueError):
    """No token can be chosen: one sentence with the remedy."""


def refuse_impossible(row: int, position: int) -> None:
    raise NoTokenError(
        f"No token has a finite score in row {row} at position {position}: the logits are not finite, or "
        "suppress_tokens and the other logits processors leave nothing to choose; loosen them."
    )


def over_slots(read: Callable, logits: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
    """Applies `read` to the logits of every slot, a few slots at a time.

    `read` gets float32 `[n, vocabulary]`, so that there never is a float32 copy of all logits, and `[n]` of each other
    tensor. It reads all slots, also those that are not selected: the host would have to wait for the device to know
    which are. It returns tensors `[n]`; those of all slots are `[batch, slots]`.
    """
    flat = [each.flatten(0, 1) for each in (logits, *more)]
    size = max(1, MOST_SCORES // logits.shape[-1])
    # A compiler fuses the reading into one pass, without a copy.
    if torch.compiler.is_compiling() or len(flat[0]) <= size:
        columns = read(flat[0].float(), *flat[1:])
    else:
        parts = zip(*(each.split(size) for each in flat), strict=True)
        columns = map(torch.cat, zip(*(read(part.float(), *others) for part, *others in parts), strict=True))
    return tuple(column.view(logits.shape[:2]) for column in columns)


def read_slots(
    logits: Tensor, settings: Any, rows: Tensor, slots: Tensor, also: Callable | None = None
) -> tuple[Tensor, ...]:
    """The best token of each slot's scores, that score, and what `also(logits, scores, best)` makes of them.

    The scores are processed logits, with the noise of the slot where tokens are drawn. (Where processors read the
    text, the callbacks apply them and choose; here the scores are the logits without MASK.)

    Args:
        logits (`torch.Tensor` of shape `(batch, n, vocabulary)`): The logits.
        settings (`Settings`): How the call decodes.
        rows (`torch.LongTensor` of shape `(batch,)`): The rows of the noise.
        slots (`torch.LongTensor` of shape `(batch, n)`): The slots.
        also (`Callable`, *optional*): Returns one more tensor, `[n]` of a few slots.
    """
    noise, processors = settings.noise, settings.processors

    def read(logits: Tensor, *noise_index: Tensor) -> tuple[Tensor, ...]:
        if settings.processors_read_text:
            scores = without_mask(logits, settings.mask_token_id)
        else:
            scores = processed(logits, processors)
        scores = scores + noise.at(*noise_index) if noise_index else scores
        best, tokens = scores.max(-1)
        return (tokens, best) if also is None else (tokens, best, also(logits, scores, best))

    return over_slots(read, logits, *(() if noise is None else (noise.index_of(rows, slots),)))


def share_of_best(logits: Tensor, scores: Tensor, best: Tensor) -> Tensor:
    """The share of the best token of each `[n, vocabulary]` in the softmax of the scores; 0 where it is no number."""
    return (best - scores.logsumexp(-1)).exp().nan_to_num()


def are_possible(best: Tensor) -> Tensor:
    """Whether tokens with these scores are possible: False for -inf and NaN."""
    return best > -torch.inf


def implies(condition: Tensor, result: Tensor) -> Tensor:
    """Where booleans keep the rule "if `condition` then `result`", by one operator."""
    return condition <= result


def draft_or_best(scores: Tensor, drafts: Tensor, margin: Tensor) -> Tensor:
    """Chooses the draft of each `[n, vocabulary]` of processed scores if it is accepted, else the likeliest token.

    A draft is accepted if it is possible and its score is at most `margin` below the best one; a negative draft
    stands for none.
    """
    best, tokens = scores.max(-1)
    score = scores.gather(-1, drafts.clamp(min=0)[:, None])[:, 0]
    is_accepted = (drafts >= 0) & (score > -torch.inf) & (score >= best - margin)
    return torch.where(is_accepted, drafts, tokens)


def reads_no_text(processor: LogitsProcessor) -> bool:
    # (The very class: a subclass may read the text.)
    return type(processor) in PLAIN_PROCESSORS


def processed(logits: Tensor, processors: LogitsProcessorList) -> Tensor:
    """Applies processors that read no text to `[n, vocabulary]` logits; what they get as ids is empty."""
    scores = logits.float()
    no_text = scores[:, :0]
    for processor in processors:  # one by one, since a compiler cannot follow the list's own call
        scores = processor(no_text, scores)
    return scores


def without_mask(logits: Tensor, mask_token_id: int | None) -> Tensor:
    """The logits with MASK made impossible."""
    if mask_token_id is None or mask_token_id >= logits.shape[-1]:
        return logits
    mask = torch.full((1,), mask_token_id, device=logits.device)
    return logits.index_fill(-1, mask, -torch.inf)


# --- Noise ---


class SlotNoise:
    """Gumbel noise for the slots of every row.

    A token is drawn as the argmax of scores + noise. The noise of a slot is drawn once, in the order of the slots, and
    serves every forward that looks at the slot. So a seed fixes the text, whatever forwards the text is written in.

    The noise comes from the device's generator as transformers' own loop takes it, which draws by torch.multinomial
    for all rows at once, slot by slot. So verified decoding samples the text that autoregressive decoding samples with
    the same seed, and leaves the generator as that loop leaves it.

    `values` is a ring: a row keeps the noise of its `num_slots` latest slots, that of slot s at s % num_slots. A row
    that lags so far that its slots are not kept any more gets them drawn again. With `generator`, a single row has a
    generator of its own.
    """

    def __init__(self, num_rows: int, num_slots: int, vocab_size: int, device: torch.device, generator=None):
        self.values = torch.zeros(num_rows, num_slots, vocab_size, dtype=torch.float32, device=device)
        self.num_drawn = [0] * num_rows
        self.generators: list[torch.Generator] | None = None if generator is None else [generator]
        self.states: list[Tensor] = []  # of the device's generator, before each slot

    def draw(
        self, rows: Sequence[int], num_committed: list[int], num_queries: list[int], limits: Sequence[int]
    ) -> None:
        """Draws noise for all slots that a forward of so many queries behind the committed slots can look at."""
        columns = zip(num_committed, num_queries, limits, strict=True)
        ends = [min(start + num + 1, limit) for start, num, limit in columns]
        if self.generators is not None:
            for row, end in zip(rows, ends, strict=True):
                while self.num_drawn[row] < end:
                    self.keep(row, self.drawn(1, self.generators[row])[0])
            return
        # The first slot of each row whose noise would overwrite one that the row still needs.
        fronts = [start + self.values.shape[1] for start in num_committed]
        for slot in range(min(self.num_drawn[row] for row in rows), max(ends)):
            next_here = [i for i, row in enumerate(rows) if self.num_drawn[row] == slot and slot < fronts[i]]
            if any(slot < ends[i] for i in next_here):
                noise = self.of_slot(slot)
                for i in next_here:
                    self.keep(rows[i], noise[rows[i]])

    def keep(self, row: int, noise: Tensor) -> None:
        self.values[row, self.num_drawn[row] % self.values.shape[1]] = noise
        self.num_drawn[row] += 1

    def of_slot(self, slot: int) -> Tensor:
        """The noise of a slot in all rows, `[batch, vocabulary]`, drawn for the first time or again."""
        device = self.values.device
        if slot == len(self.states):
            self.states.append(random_state(device))
            return self.drawn(len(self.values))
        now = random_state(device)
        set_random_state(self.states[slot], device)
        noise = self.drawn(len(self.values))
        set_random_state(now, device)
        return noise

    def drawn(self, num_rows: int, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.empty_like(self.values[:num_rows, 0]).exponential_(generator=generator)
        return noise.clamp_(min=torch.finfo(noise.dtype).tiny).log_().neg_()

    def index_of(self, rows: Tensor, slots: Tensor) -> Tensor:
        """Where `at` finds the noise of `slots`, `[batch, n]`."""
        return rows[:, None] * self.values.shape[1] + slots % self.values.shape[1]

    def at(self, index: Tensor) -> Tensor:
        return self.values.flatten(0, 1)[index]

    def give_back(self, num_tokens: int) -> None:
        """Leaves the device's generator as a loop leaves it that drew for `num_tokens` slots alone."""
        if num_tokens < len(self.states):
            set_random_state(self.states[num_tokens], self.values.device)


def random_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def set_random_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
