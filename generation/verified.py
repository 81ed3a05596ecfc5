"""Verified decoding: one forward judges the drafts of the one before, autoregressively, and makes the next drafts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import pad

from wedlm.generation.policy import Policy
from wedlm.generation.text_readers import TextReaders
from wedlm.generation.token_sampling import draw_tokens, over_slots, processed, without_mask
from wedlm.generation.window import Window, WindowQueries

LEAST_CHANCE = 0.2  # A draft whose estimated chance of acceptance is lower costs more than it brings.


@dataclass
class VerifiedWindow(Window):
    """A window whose tokens are known, not guessed: each is the one that autoregressive decoding writes there.

    A forward has at most 2 * window_size queries: the last known token (before the first forward it is the prompt's
    last one), up to window_size - 1 drafts for the slots behind it, then MASKs.

    The query before a draft judges it, because its logits are the autoregressive prediction for the draft's slot. The
    forward accepts the drafts up to the first refuted one. The token in place of the refuted draft, or behind all
    drafts, becomes known as well, so each forward makes at least one token known.

    The MASKs predict the next drafts. They must not see a draft that is refuted, and nobody knows beforehand which one
    that is. So they come in groups, one for each number of accepted drafts; a group sees that many drafts and no
    other, and it is longer, the likelier that number is. The first MASK of a group stands at the slot
    that the forward makes known, the others at the slots of the next drafts.

    Args:
        drafts (`torch.LongTensor` of shape `(batch, window_size - 1)`): Tokens for the slots behind the last known
            one.
        chances (`torch.FloatTensor` of shape `(batch, window_size - 1)`): The estimated chance that the draft is
            accepted with all before it; 0 where there is no draft.
        num_drafts (`torch.LongTensor` of shape `(batch,)`): The number of drafts.
        groups (`torch.LongTensor` of shape `(batch, window_size + 1)`): Where, among the MASKs, the group for 0, 1,
            2, ... accepted drafts begins, and where the last group ends.
        judged_at (`torch.LongTensor` of shape `(batch, slots + 1)`): The distance from the last known token at which
            the slot's draft was judged; 0 where none was.
        accepted (`torch.BoolTensor` of shape `(batch, slots + 1)`): Whether that draft was accepted.
    """

    drafts: torch.Tensor
    chances: torch.Tensor
    num_drafts: torch.Tensor
    groups: torch.Tensor
    judged_at: torch.Tensor
    accepted: torch.Tensor

    PER_SLOT: ClassVar = (*Window.PER_SLOT, "judged_at", "accepted")

    @classmethod
    def opened_window(cls, zeros: Callable, max_new_tokens: int, policy: Policy) -> dict[str, torch.Tensor]:
        size = policy.window_size
        return {
            "drafts": zeros(size - 1),
            "chances": zeros(size - 1, dtype=torch.float32),
            "num_drafts": zeros(),
            "groups": pad(zeros(1), (0, size), value=min(size, max_new_tokens)),
            "judged_at": zeros(max_new_tokens + 1),
            "accepted": zeros(max_new_tokens + 1, dtype=torch.bool),
        }

    @property
    def window_size(self) -> int:
        return self.drafts.shape[1] + 1

    @property
    def num_queries(self) -> torch.Tensor:
        return self.num_leading + self.num_drafts + self.groups[:, -1]

    def queries(self, width: int, policy: Policy) -> WindowQueries:
        """The last known token, the drafts, the MASKs; asked are first the judges, then the MASKs."""
        size = self.window_size
        start, num_leading = self.start[:, None], self.num_leading[:, None]
        num_drafts, first_judged = self.num_drafts[:, None], self.behind_leading[:, None]
        query = torch.arange(width, device=start.device)
        mask = query - num_leading - num_drafts  # [batch, width]: the place among the MASKs, negative before them
        group = (self.groups[:, None, 1:] <= mask[..., None]).sum(-1)
        tokens = torch.cat([self.tokens.gather(1, start), self.drafts], dim=-1)
        tokens = tokens.gather(1, query.clamp(max=size - 1).expand_as(mask))
        mask_slots = first_judged + group + mask - self.groups.gather(1, group)
        slots = torch.where(mask < 0, start + query, mask_slots)
        # The judge of the first draft is the last known token: the query before the first draft, or the prompt's last.
        place = torch.arange(min(2 * size, width + 1), device=start.device)
        asked = (num_leading - 1 + place).clamp(max=width - 1)
        asked_slots = torch.where(place <= num_drafts, first_judged + place, slots.gather(1, asked.clamp(min=0)))
        is_query = place <= num_drafts + self.groups[:, -1:]
        queries_seen = torch.where(mask < 0, query + 1, num_leading + group)
        return WindowQueries(
            input_ids=torch.where(mask < 0, tokens, policy.mask_token_id),
            position_ids=self.prompt_lengths[:, None] + slots,
            num_text=torch.zeros_like(self.start),
            asked=asked,
            asked_slots=asked_slots,
            is_asked=is_query & (asked_slots < self.limit[:, None]),
            # Only the first forward has so few queries. They form one group, which sees all before it.
            queries_seen=None if width <= size else queries_seen,
        )

    def count_forward(self, queries: WindowQueries) -> None:
        """Counts neither MASKs behind the last slot, nor a forward that has nothing left to judge."""
        may_judge = self.alive & queries.is_asked[:, 0]
        is_mask = torch.arange(queries.is_asked.shape[1], device=may_judge.device) > self.num_drafts[:, None]
        num_used = self.num_leading + self.num_drafts + (queries.is_asked & is_mask).sum(-1)
        self.forwards = self.forwards + may_judge
        self.window_queries = self.window_queries + may_judge * num_used

    def fill(
        self, queries: WindowQueries, logits: torch.Tensor, policy: Policy, readers: TextReaders | None
    ) -> torch.Tensor:
        """Fills the slots whose tokens become known, and drafts behind them; returns which slots nothing can fill.

        The token of a judged slot is chosen from the autoregressive scores as autoregressive decoding chooses it. A
        draft is accepted if it is that token. So drafts decide how many tokens a forward makes known, never which.
        """

        def read(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if policy.left_to_right:
                scores = without_mask(logits, policy.mask_token_id)
            else:
                scores = processed(logits, policy.processors)
            best, likely = scores.max(-1)
            return likely, best > -torch.inf, (best - scores.logsumexp(-1)).exp()

        likely, is_possible, chances = over_slots(read, logits)
        slots, is_known, tokens = self.judge(queries, logits, likely[:, : self.window_size], policy, readers)
        num_known = is_known.sum(-1)
        self.draft(slots, num_known, likely, chances)
        if readers is not None and readers.shows_guesses:
            self.show_drafts(readers, num_known)
        if policy.left_to_right:  # the readers have refused what is impossible
            return torch.zeros_like(is_known)
        return is_known & ~is_possible[:, : self.window_size]

    def judge(
        self,
        queries: WindowQueries,
        logits: torch.Tensor,
        likely: torch.Tensor,
        policy: Policy,
        readers: TextReaders | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Fills slots up to the first refuted draft; returns the judged slots, which are known now, and tokens."""
        size = self.window_size
        place = torch.arange(size, device=logits.device)
        slots = queries.asked_slots[:, :size]
        may_judge = queries.is_asked[:, :size] & (place <= self.num_drafts[:, None]) & self.alive[:, None]
        if policy.left_to_right:
            tokens, is_known = readers.judge(self, slots, may_judge, self.drafts, logits)
        else:
            tokens = likely
            if policy.do_sample:
                (tokens,) = over_slots(
                    lambda logits: draw_tokens(processed(logits, policy.processors), True)[:1], logits[:, :size]
                )
            num_confirmed = (tokens[:, :-1] == self.drafts).cumprod(-1).sum(-1, keepdim=True)
            is_known = may_judge & (place <= num_confirmed)
            if readers is not None:
                readers.record_selected(self, queries, is_known, logits)
        self.put_tokens(slots, is_known, tokens)
        self.note_judged(slots, is_known, tokens)
        return slots, is_known, tokens

    def note_judged(self, slots: torch.Tensor, is_known: torch.Tensor, tokens: torch.Tensor) -> None:
        """Keeps, for the statistics, at which distance each slot's draft was judged and whether it was accepted."""
        distance = torch.arange(1, self.window_size, device=slots.device)
        is_judged = is_known[:, :-1] & (distance <= self.num_drafts[:, None])
        slots = slots[:, :-1].where(is_judged, self.no_slot)
        self.judged_at.scatter_(1, slots, distance * is_judged)
        self.accepted.scatter_(1, slots, tokens[:, :-1] == self.drafts)

    def draft(self, slots: torch.Tensor, num_known: torch.Tensor, likely: torch.Tensor, chances: torch.Tensor) -> None:
        """Takes the likeliest tokens of the group that saw the accepted drafts as the next drafts."""
        place = torch.arange(1, self.window_size, device=slots.device)
        num_settled = (num_known - 1).clamp(min=0)[:, None]
        begin, end = self.groups.gather(1, num_settled), self.groups.gather(1, num_settled + 1)
        mask = begin + place  # the group's first MASK stood for the slot that is known now
        asked = (self.num_drafts[:, None] + 1 + mask).clamp(max=likely.shape[1] - 1)
        self.drafts = likely.gather(1, asked)
        chances = chances.gather(1, asked).where(mask < end, 0).cumprod(-1)
        draft_slots = slots[:, :1] + num_settled + place
        self.chances = chances.where((chances >= LEAST_CHANCE) & (draft_slots < self.limit[:, None]), 0)

    def show_drafts(self, readers: TextReaders, num_known: torch.Tensor) -> None:
        """Shows the drafts of the one row behind its last known token."""
        drafts = self.drafts[0, self.chances[0] > 0]
        first = (self.behind_leading + num_known)[0]
        slots = first + torch.arange(len(drafts), device=drafts.device)
        readers.stream.guess(self, slots, drafts, end=first + len(drafts))

    def commit(self, num_run: torch.Tensor) -> torch.Tensor:
        """Commits all known tokens but the last; returns how many of the window's queries stay in the cache.

        (The run of a row that has ended is its last known token, at its start: nothing more is committed.)
        """
        num_kept = self.num_leading + (num_run - 1).clamp(min=0)
        self.start = self.start + num_kept
        return num_kept

    def refill(self, num_run: torch.Tensor) -> None:
        """The next forward commits the last known token and judges the drafts."""
        self.num_leading = num_run.clamp(max=1) * self.alive
        self.chances = self.chances * self.alive[:, None]
        self.plan_queries()

    def plan_queries(self) -> None:
        """Counts the drafts, and shares the rest of 2 * window_size queries out among the groups of MASKs."""
        self.num_drafts = (self.chances > 0).sum(-1)
        # A limit below the window makes the window as small, whatever the shape of the steps is.
        size = self.limit.clamp(max=self.window_size)
        self.groups = group_ends(2 * size - self.num_leading - self.num_drafts, self.chances, size)

    def counts(self) -> dict[str, torch.Tensor]:
        """Adds how many drafts were judged and accepted at each distance; those behind the text's end do not count."""
        is_text = torch.arange(self.judged_at.shape[1], device=self.start.device) < self.num_tokens[:, None]
        zeros = torch.zeros_like(self.judged_at[:, : min(self.window_size, int(self.limit.max()))])
        judged, accepted = (
            zeros.scatter_add(1, self.judged_at, values.long())[:, 1:] for values in (is_text, is_text & self.accepted)
        )
        return {**super().counts(), "judged_drafts": judged, "accepted_drafts": accepted}


def group_ends(num_masks: torch.Tensor, chances: torch.Tensor, longest: torch.Tensor) -> torch.Tensor:
    """Shares `num_masks` MASKs out over the numbers of accepted drafts, in proportion to the chance of each number.

    Args:
        num_masks (`torch.LongTensor` of shape `(batch,)`): The number of MASKs.
        chances (`torch.FloatTensor` of shape `(batch, window_size - 1)`): P(at least n drafts are accepted), n = 1,
            2...
        longest (`torch.LongTensor` of shape `(batch,)`): The most MASKs of a group.

    Returns:
        `torch.LongTensor` of shape `(batch, window_size + 1)`: Where the groups begin, and the end of the last.

    With 12 MASKs and chances of 0.75 and 0.5, exactly 0, 1 and 2 drafts are accepted with 0.25, 0.25 and 0.5:

        0, 3, 6, 12, 12, ...
    """
    # P(exactly n accepted) = P(at least n) - P(at least n + 1), summed up over n.
    shares = (pad(chances, (1, 0), value=1.0) - pad(chances, (0, 1))).clamp_(min=0).cumsum(-1)
    ends = (shares / shares[:, -1:] * num_masks[:, None]).round_().long()
    return pad(pad(ends, (1, 0)).diff().minimum(longest[:, None]).cumsum(-1), (1, 0))
