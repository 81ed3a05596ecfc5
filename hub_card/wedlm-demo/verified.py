"""Verified decoding: drafts, and the autoregressive predictions that judge them, from the same forward."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import pad

from .policy import Policy
from .text_readers import TextReaders
from .token_sampling import draw_tokens, over_slots, processed
from .window import Window, WindowQueries

LEAST_CHANCE = 0.2  # of being accepted, as estimated; a draft with less is not worth its row


@dataclass
class VerifiedWindow(Window):
    """The new tokens of every row, and drafts of those that may come next.

    A forward has these rows, 2 * window_size at most: the last token known, up to window_size - 1 drafts, and MASK
    rows. The row before a draft judges it: it has the autoregressive prediction. Drafts up to the first that is
    refuted are accepted; the token in its place, or behind them all, is known as well. (Before the first forward the
    prompt's last token is the one known.)

    The text may go on behind any number of accepted drafts, and a MASK row that saw a refuted one predicts nothing of
    use. So the MASK rows are shared out in groups, one for each number of accepted drafts, by the chance of that
    number. A group sees the drafts accepted and no other; its first row stands where the next known token will be, and
    the others predict the next drafts.
    """

    drafts: torch.Tensor  # [batch, window_size - 1]
    chances: torch.Tensor  # [batch, window_size - 1]: of being accepted with all before it; 0 where there is no draft
    num_drafts: torch.Tensor  # [batch]
    # [batch, window_size + 1]: where the MASK rows for 0, 1, 2, ... accepted drafts begin, and last their end.
    groups: torch.Tensor
    num_new: torch.Tensor  # [batch]: tokens that the last forward made known; all but the last one are in the cache
    # [batch, columns]: how far from the token known the draft of a slot was judged, 0 where there was none.
    judged_at: torch.Tensor
    accepted: torch.Tensor  # [batch, columns]: and whether it was accepted

    PER_SLOT: ClassVar = (*Window.PER_SLOT, "judged_at", "accepted")

    @classmethod
    def opened(cls, prompt_lengths: torch.Tensor, max_new_tokens: int, window_size: int, mask_token_id: int):
        window = Window.opened(prompt_lengths, max_new_tokens, window_size, mask_token_id)
        zero = torch.zeros_like(prompt_lengths)
        zeros = zero.new_zeros(len(zero), window_size - 1)
        return cls(
            **vars(window),
            drafts=zeros,
            chances=zeros.float(),
            num_drafts=zero,
            groups=pad(zero[:, None], (0, window_size), value=window_size),
            num_new=zero,
            judged_at=torch.zeros_like(window.tokens),
            accepted=torch.zeros_like(window.filled),
        )

    @property
    def window_size(self) -> int:
        return self.drafts.shape[1] + 1

    @property
    def first_judged(self) -> torch.Tensor:
        """The slot behind the token known."""
        return self.start + self.num_leading

    @property
    def num_settled(self) -> torch.Tensor:
        """The new tokens that stand before the last one."""
        return (self.num_new - 1).clamp(min=0)

    @property
    def num_rows(self) -> torch.Tensor:
        return self.num_leading + self.num_drafts + self.groups[:, -1]

    def plan_rows(self) -> None:
        """MASK rows take the room that the pending tokens leave of 2 * window_size."""
        self.num_drafts = (self.chances > 0).sum(-1)
        self.groups = shared_out(2 * self.window_size - self.num_leading - self.num_drafts, self.chances)

    def reorder(self, width: int, window_size: int, mask_token_id: int) -> WindowQueries:
        first_judged, num_leading = self.first_judged[:, None], self.num_leading[:, None]
        num_drafts = self.num_drafts[:, None]
        # Rows: tokens that are pending, then MASK rows, each with the number of drafts it sees.
        rows = torch.arange(width, device=num_leading.device)
        mask_rows = rows - num_leading - num_drafts  # [batch, width]
        group = (self.groups[:, None, 1:] <= mask_rows[..., None]).sum(-1)
        pending = torch.cat([self.tokens.gather(1, self.start[:, None]), self.drafts], dim=-1)
        pending = pending.gather(1, rows.clamp(max=window_size - 1).expand_as(mask_rows))
        slots = torch.where(
            mask_rows < 0, self.start[:, None] + rows, first_judged + group + mask_rows - self.groups.gather(1, group)
        )
        # What is asked of them: the judgements from the row before `first_judged` on, then the drafts.
        asked = torch.arange(min(2 * window_size, width + 1), device=rows.device)
        asked_rows = (num_leading - 1 + asked).clamp(max=width - 1)
        is_judge = asked <= num_drafts
        asked_slots = torch.where(is_judge, first_judged + asked, slots.gather(1, asked_rows.clamp(min=0)))
        is_row = asked <= num_drafts + self.groups[:, -1:]
        # Nothing is pending in so few rows: behind the prompt there is one group, which sees all before it.
        is_plain = width <= window_size
        return WindowQueries(
            input_ids=torch.where(mask_rows < 0, pending, mask_token_id),
            position_ids=self.prompt_lengths[:, None] + slots,
            num_final=self.num_leading,
            open_rows=asked_rows,
            open_slots=asked_slots,
            is_open=is_row & (asked_slots < self.limit[:, None]),
            queries_seen=None if is_plain else torch.where(mask_rows < 0, rows + 1, num_leading + group),
        )

    def count_forward(self, rows: WindowQueries) -> None:
        """MASK rows behind the last slot are not counted, nor a forward in which there is nothing left to judge."""
        may_judge = self.alive & rows.is_open[:, 0]
        is_mask_row = torch.arange(rows.is_open.shape[1], device=may_judge.device) > self.num_drafts[:, None]
        num_used = self.num_leading + self.num_drafts + (rows.is_open & is_mask_row).sum(-1)
        self.forwards = self.forwards + may_judge
        self.window_rows = self.window_rows + may_judge * num_used

    def commit(self, num_final: torch.Tensor) -> torch.Tensor:
        num_settled = self.num_settled
        self.start = self.start + self.num_leading + num_settled
        return num_final + num_settled

    def new_run(self, window_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(window_size, device=self.start.device)
        slots = ((self.start - self.num_settled)[:, None] + places).clamp(max=self.no_slot)
        return slots, (places < self.num_new[:, None]).long()

    def refill(self, num_run: torch.Tensor, blockwise: bool) -> None:
        """The last token known is to be committed by the next forward."""
        self.num_leading = num_run.clamp(max=1) * self.alive
        self.chances = self.chances * self.alive[:, None]
        self.plan_rows()

    def note_judged(self, slots: torch.Tensor, is_new: torch.Tensor, tokens: torch.Tensor) -> None:
        distances = torch.arange(1, self.window_size, device=slots.device)
        is_judged = is_new[:, :-1] & (distances <= self.num_drafts[:, None])
        slots = slots[:, :-1].where(is_judged, self.no_slot)
        self.judged_at.scatter_(1, slots, distances * is_judged)
        self.accepted.scatter_(1, slots, tokens[:, :-1] == self.drafts)

    def counted(self) -> dict[str, torch.Tensor]:
        """What was judged behind the end of the text does not count."""
        is_text = torch.arange(self.judged_at.shape[1], device=self.start.device) < self.num_tokens[:, None]
        zeros = torch.zeros_like(self.judged_at[:, : self.window_size])
        judged, accepted = (
            zeros.scatter_add(1, self.judged_at, values.long())[:, 1:] for values in (is_text, is_text & self.accepted)
        )
        return {**super().counted(), "judged_drafts": judged, "accepted_drafts": accepted}


def shared_out(num_rows: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """Where the group for each number of accepted drafts begins, and last their end: `[batch, window_size + 1]`.

    Shares are in proportion to the chance of that number, and none is longer than window_size. With 12 rows and
    chances of 0.75 and 0.5, so that of none, one and both it is 0.25, 0.25 and 0.5:

        0, 3, 6, 12, 12, ...
    """
    window_size = chances.shape[1] + 1
    # Of so many drafts, less that of one more; of none it is 1 before that, and of one draft too many 0.
    shares = (pad(chances, (1, 0), value=1.0) - pad(chances, (0, 1))).clamp_(min=0).cumsum(-1)
    ends = (shares / shares[:, -1:] * num_rows[:, None]).round_().long()
    return pad(pad(ends, (1, 0)).diff().clamp_(max=window_size).cumsum(-1), (1, 0))


def judge_and_draft(
    window: VerifiedWindow,
    rows: WindowQueries,
    logits: torch.Tensor,
    policy: Policy,
    readers: TextReaders | None,
) -> torch.Tensor:
    """Fills the slots whose tokens become known, and drafts; returns which of `rows.open_slots` nothing can fill.

    At each judged slot a token is chosen from the autoregressive scores, as autoregressive decoding would. A draft is
    accepted if it is that token, so that drafts decide how many tokens a forward makes known, never which.
    """
    size = window.window_size
    places = torch.arange(size, device=logits.device)
    left_to_right = readers is not None and readers.left_to_right

    def read(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = readers.without_mask(logits) if left_to_right else processed(logits, policy.processors)
        best, likely = scores.max(-1)
        return likely, best > -torch.inf, (best - scores.logsumexp(-1)).exp()

    def draw(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return draw_tokens(processed(logits, policy.processors), policy.do_sample)

    likely, is_possible, chances = over_slots(read, logits)
    # 1. Judge
    slots = rows.open_slots[:, :size]
    may_judge = rows.is_open[:, :size] & (places <= window.num_drafts[:, None]) & window.alive[:, None]
    if left_to_right:
        tokens, is_new = readers.judge(window, slots, may_judge, window.drafts, logits)
        is_possible = is_new
    else:
        is_possible = is_possible[:, :size]
        tokens = over_slots(draw, logits[:, :size])[0] if policy.do_sample else likely[:, :size]
        num_confirmed = (tokens[:, :-1] == window.drafts).cumprod(-1).sum(-1, keepdim=True)
        is_new = may_judge & (places <= num_confirmed)
        if readers is not None:
            readers.record_selected(window, rows, is_new, logits)
    window.fill(slots, is_new, tokens)
    window.note_judged(slots, is_new, tokens)
    window.num_new = is_new.sum(-1)

    # 2. Draft, behind the last token that is known now
    num_settled = window.num_settled[:, None]
    begin, end = window.groups.gather(1, num_settled), window.groups.gather(1, num_settled + 1)
    mask_rows = begin + places[1:]  # the group's first row stands for the token known
    draft_slots = slots[:, :1] + num_settled + places[1:]
    asked = (window.num_drafts[:, None] + 1 + mask_rows).clamp(max=likely.shape[1] - 1)
    window.drafts = likely.gather(1, asked)
    chances = chances.gather(1, asked).where(mask_rows < end, 0).cumprod(-1)
    is_draft = (chances >= LEAST_CHANCE) & (draft_slots < window.limit[:, None])
    window.chances = chances.where(is_draft, 0)
    if readers is not None and readers.shows_drafts:
        shown = is_draft[0]
        window.end = window.first_judged + window.num_new + shown.sum()  # of the one row
        readers.guess(window, draft_slots[0, shown], window.drafts[0, shown])
    return is_new & ~is_possible
