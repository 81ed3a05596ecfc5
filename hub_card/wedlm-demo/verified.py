"""Verified decoding: one forward judges the drafts of the one before, autoregressively, and makes the next drafts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import pad

from .look_up import MOST_MATCHED, look_up
from .policy import Policy
from .slot_noise import noise_places
from .step_plan import StepPlan, plan_step
from .text_readers import TextReaders
from .token_sampling import draft_or_best, over_slots, processed, without_mask
from .window import NO_SLOT, NO_TOKEN, Window, WindowQueries

# The sources of drafts: the likeliest tokens of MASKs, tokens drawn from the scores of MASKs, the text itself.
LIKELIEST, DRAWN, LOOKED_UP = range(3)
# The strength of a draft. From MASKs: how many of these its share of the scores exceeds. From the text: the number of
# equal tokens in front of it.
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
# The values that a text begins with, measured on language models of ordinary text: its doubt, the doubt of a group's
# first draft, and the chance of a draft by source and strength if the drafts before it are accepted.
DOUBT, DOUBT_OF_DRAFT = 0.22, 0.5
ACCEPTANCE = (
    (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.95),
    (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.95),
    (0.0, 0.3, 0.45, 0.6, 0.7, 0.78, 0.84),
)
# A row that is so many tokens ahead counts half as much when the number of queries is chosen.
LEAD = 8
# The weight of earlier texts in the records that a new one begins with.
EARLIER_TEXTS = 0.5
# The weight of something new: a group of MASKs, or none; a known token; a judged draft, for its own strength and for
# all strengths.
NEW_GROUP, NO_GROUP, NEW_TOKEN, NEW_OF_STRENGTH, NEW_OF_SOURCE = 0.2, 0.5, 0.1, 0.06, 0.12


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
    other. The first MASK of a group stands at the slot that the forward makes known, the others at the slots of the
    next drafts. `plan_step` says how many drafts are judged and how long the groups are.

    Drafts come from MASKs, or from an earlier place where the text's last tokens stand as well (`look_up`): for each
    row from where more of them are expected to be accepted. Where tokens are drawn, so may drafts be, with the noise
    of their slots, which their judges use too. A record of judged drafts says how often those of a source and strength
    are accepted.

    Args:
        drafts (`torch.LongTensor` of shape `(batch, window_size - 1)`): Tokens for the slots behind the last known
            one.
        chances (`torch.FloatTensor` of shape `(batch, window_size - 1)`): The estimated chance that the draft is
            accepted with all before it; 0 where there is no draft.
        kinds (`torch.LongTensor` of shape `(batch, window_size - 1)`): The place of each draft's source and strength
            in the table of `acceptance`.
        num_drafts (`torch.LongTensor` of shape `(batch,)`): The number of drafts that the next forward judges.
        groups (`torch.LongTensor` of shape `(batch, window_size + 1)`): Where, among the MASKs, the group for 0, 1,
            2, ... accepted drafts begins, and where the last group ends.
        judged_at (`torch.LongTensor` of shape `(batch, slots + 1)`): The distance from the last known token at which
            the slot's draft was judged; 0 where none was.
        accepted (`torch.BoolTensor` of shape `(batch, slots + 1)`): Whether that draft was accepted.
        expected (`torch.FloatTensor` of shape `(batch, window_size - 1)`): As `chances`, for the drafts of a group of
            MASKs that is still to come: a running mean, which tends to `hoped_for` where there are no groups.
        doubt (`torch.FloatTensor` of shape `(batch, 1)`): -log of the share of the scores that the likeliest token has
            where tokens become known: a running mean.
        group_doubts (`torch.FloatTensor` of shape `(batch, 2)`): Running means over the groups: -log of the chance of
            their first draft, and `doubt` at that time.
        acceptance (`torch.FloatTensor` of shape `(batch, sources, strengths)`): The share of drafts that were accepted
            if those before them were: a running mean.
        prompt (`torch.LongTensor` of shape `(batch, columns)`): The prompts that drafts are looked up in,
            right-aligned behind numbers that are no tokens.
    """

    drafts: torch.Tensor
    chances: torch.Tensor
    kinds: torch.Tensor
    num_drafts: torch.Tensor
    groups: torch.Tensor
    judged_at: torch.Tensor
    accepted: torch.Tensor
    expected: torch.Tensor
    doubt: torch.Tensor
    group_doubts: torch.Tensor
    acceptance: torch.Tensor
    prompt: torch.Tensor

    PER_SLOT: ClassVar = (*Window.PER_SLOT, "judged_at", "accepted")
    PER_COLUMN: ClassVar = ("prompt",)
    RECORDS: ClassVar = ("group_doubts", "acceptance")

    @classmethod
    def opened_window(cls, zeros: Callable, max_new_tokens: int, policy: Policy) -> dict[str, torch.Tensor]:
        size, device = policy.window_size, zeros().device

        def record(name: str, first: tuple) -> torch.Tensor:
            first = torch.tensor(first, dtype=torch.float32, device=device)
            earlier = policy.draft_records.get(name, first).to(device)
            return first.lerp(earlier, EARLIER_TEXTS) + zeros(*first.shape, dtype=torch.float32)

        group_doubts = record("group_doubts", (DOUBT_OF_DRAFT, DOUBT))
        doubt = zeros(1, dtype=torch.float32) + DOUBT
        limit = zeros() + max_new_tokens
        expected = hoped_for(doubt, group_doubts, size, limit)
        chances, weights = torch.zeros_like(expected), torch.ones_like(limit, dtype=torch.float32)
        plan = plan_step(chances, expected, limit, limit.clamp(max=size), policy.prices, weights)
        return {
            "drafts": zeros(size - 1),
            "chances": chances,
            "kinds": zeros(size - 1),
            "num_drafts": plan.num_drafts,
            "groups": plan.groups,
            "judged_at": zeros(max_new_tokens + 1),
            "accepted": zeros(max_new_tokens + 1, dtype=torch.bool),
            "expected": expected,
            "doubt": doubt,
            "group_doubts": group_doubts,
            "acceptance": record("acceptance", ACCEPTANCE),
            "prompt": zeros(0),
        }

    @property
    def records(self) -> dict[str, torch.Tensor]:
        """How the drafts of each row fared, by the name of the record."""
        return {name: getattr(self, name) for name in self.RECORDS}

    @property
    def window_size(self) -> int:
        return self.drafts.shape[1] + 1

    @property
    def num_queries(self) -> torch.Tensor:
        return self.num_leading + self.num_drafts + self.groups[:, -1]

    def first_queries(self, policy: Policy) -> WindowQueries:
        """A group of MASKs behind the prompt, whose last token judges. Each query sees all before it."""
        width = int(self.num_queries.max())
        queries = self.queries(max(1, width), policy, is_first=True)
        return queries._replace(
            input_ids=queries.input_ids[:, :width],
            position_ids=queries.position_ids[:, :width],
            asked=queries.asked[:, : width + 1],
            asked_slots=queries.asked_slots[:, : width + 1],
            is_asked=queries.is_asked[:, : width + 1],
            queries_seen=None,
        )

    def queries(self, width: int, policy: Policy, is_first: bool = False) -> WindowQueries:
        """The last known token, the drafts, the MASKs; asked are first the judges, then the MASKs."""
        size = self.window_size
        start, num_leading = self.start[:, None], self.num_leading[:, None]
        num_drafts, first_judged = self.num_drafts[:, None], self.behind_leading[:, None]
        query = torch.arange(width, device=start.device)
        mask = query - num_leading - num_drafts  # [batch, width]: the place among the MASKs, negative before them
        group = (self.groups[:, None, 1:] <= mask[..., None]).sum(-1)
        is_mask = (mask >= 0) & (mask < self.groups[:, -1:])
        # (Queries that a row does not need are its known token, not MASK, for which draft adapters would work.)
        tokens = torch.cat([self.tokens.gather(1, start), self.drafts], dim=-1)
        tokens = tokens.gather(1, query.clamp(max=size - 1).where(mask < 0, 0))
        mask_slots = first_judged + group + mask - self.groups.gather(1, group)
        slots = torch.where(mask < 0, start + query, mask_slots)
        # The judge of the first draft is the last known token: the query before the first draft, or the prompt's last.
        place = torch.arange(width + is_first, device=start.device)
        asked = (num_leading - 1 + place).clamp(max=width - 1)
        asked_slots = torch.where(place <= num_drafts, first_judged + place, slots.gather(1, asked.clamp(min=0)))
        is_query = place <= num_drafts + self.groups[:, -1:]
        queries_seen = torch.where(mask < 0, query + 1, num_leading + group)
        return WindowQueries(
            input_ids=torch.where(is_mask, policy.mask_token_id, tokens),
            position_ids=self.prompt_lengths[:, None] + slots,
            num_text=torch.zeros_like(self.start),
            asked=asked,
            asked_slots=asked_slots,
            is_asked=is_query & (asked_slots < self.limit[:, None]),
            queries_seen=queries_seen,
        )

    def leave_out(self, width: int) -> None:
        """The last MASKs go first, then the last drafts."""
        room = width - self.num_leading
        self.num_drafts = torch.minimum(self.num_drafts, room)
        self.groups = torch.minimum(self.groups, (room - self.num_drafts)[:, None])

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
        (With an `acceptance_ratio` below 1 a draft that comes close to that token takes its place.)
        """

        def read(logits: torch.Tensor, places: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
            if policy.left_to_right:
                scores = without_mask(logits, policy.mask_token_id)
            else:
                scores = processed(logits, policy.processors)
            if places is None:
                return likeliest(scores)
            return *likeliest(scores), *likeliest(scores + policy.noise.flatten(0, 1)[places])[:2]

        places = () if policy.noise is None else (noise_places(policy.noise, self.batch_rows, queries.asked_slots),)
        likely, shares, is_possible, *drawn = over_slots(read, logits, *places)
        tokens = drawn[0] if drawn else likely
        slots, is_known, tokens = self.judge(queries, logits, tokens[:, : self.window_size], policy, readers)
        num_known = is_known.sum(-1)
        self.note_known(shares[:, : is_known.shape[1]], is_known)
        guesses = [(likely, shares), drawn] if drawn else [(likely, shares)]
        has_masks = logits.shape[1] > 1  # A single query is the last known token.
        self.draft(slots, num_known, guesses if has_masks else [], policy)
        if readers is not None and readers.shows_guesses:
            self.show_drafts(readers, num_known, policy)
        if policy.left_to_right:  # the readers have refused what is impossible
            return torch.zeros_like(is_known)
        return is_known & ~is_possible[:, : self.window_size]

    def judge(
        self,
        queries: WindowQueries,
        logits: torch.Tensor,
        tokens: torch.Tensor,
        policy: Policy,
        readers: TextReaders | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Fills slots up to the first refuted draft; returns the judged slots, which are known now, and the tokens.

        `tokens` are those of the judges, unless readers choose them left to right.
        """
        size = min(self.window_size, logits.shape[1])
        place = torch.arange(size, device=logits.device)
        drafts = pad(self.drafts, (0, 1))[:, :size].where(place < self.num_drafts[:, None], NO_TOKEN)
        slots = queries.asked_slots[:, :size]
        may_judge = queries.is_asked[:, :size] & (place <= self.num_drafts[:, None]) & self.alive[:, None]
        if policy.left_to_right:
            tokens, is_known = readers.judge(self, slots, may_judge, drafts, logits)
        else:
            if policy.acceptance_margin is not None:

                def choose(logits: torch.Tensor, drafts: torch.Tensor) -> tuple[torch.Tensor]:
                    scores = processed(logits, policy.processors)
                    return (draft_or_best(scores, drafts, policy.acceptance_margin),)

                (tokens,) = over_slots(choose, logits[:, :size], drafts)
            num_confirmed = (tokens == drafts).cumprod(-1).sum(-1, keepdim=True)
            is_known = may_judge & (place <= num_confirmed)
            if readers is not None:
                readers.record_selected(self, queries, is_known, logits)
        self.put_tokens(slots, is_known, tokens)
        self.note_judged(slots, is_known, tokens)
        return slots, is_known, tokens

    def note_known(self, shares: torch.Tensor, is_known: torch.Tensor) -> None:
        """Learns how sure the text is from the best tokens' shares of the scores, where tokens became known."""
        num_known = is_known.sum(-1, keepdim=True)
        mean = doubt_of(shares).where(is_known, 0).sum(-1, keepdim=True) / num_known.clamp(min=1)
        self.doubt = self.doubt.lerp(mean, 1 - torch.full_like(mean, 1 - NEW_TOKEN) ** num_known)

    def note_judged(self, slots: torch.Tensor, is_known: torch.Tensor, tokens: torch.Tensor) -> None:
        """Keeps at which distance each slot's draft was judged and whether it was accepted, and learns from it."""
        if slots.shape[1] == 1:  # no drafts
            return
        distance = torch.arange(1, slots.shape[1], device=slots.device)
        is_judged = is_known[:, :-1] & (distance <= self.num_drafts[:, None])
        is_accepted = tokens[:, :-1] == self.drafts[:, : len(distance)]
        slots = slots[:, :-1].where(is_judged, self.no_slot)
        self.judged_at.scatter_(1, slots, distance * is_judged)
        self.accepted.scatter_(1, slots, is_accepted)
        self.learn(is_judged, is_accepted & is_judged)

    def learn(self, is_judged: torch.Tensor, is_accepted: torch.Tensor) -> None:
        """Corrects the record by the drafts that a forward has judged."""
        kinds, acceptance = self.kinds[:, : is_judged.shape[1]], self.acceptance.flatten(1)
        surprise = (is_accepted.to(acceptance.dtype) - acceptance.gather(1, kinds)) * is_judged
        surprise = torch.zeros_like(acceptance).scatter_add(1, kinds, surprise).view_as(self.acceptance)
        change = NEW_OF_STRENGTH * surprise + NEW_OF_SOURCE * surprise.sum(-1, keepdim=True)
        self.acceptance = (self.acceptance + change).clamp(0.01, 0.99)

    def draft(
        self,
        slots: torch.Tensor,
        num_known: torch.Tensor,
        guesses: list[tuple[torch.Tensor, torch.Tensor]],
        policy: Policy,
    ) -> None:
        """Takes the next drafts from the group of MASKs that saw the accepted ones, or looks them up in the text.

        `guesses` are tokens of the asked queries and their shares of the scores, `[batch, asked]` each: the likeliest
        tokens and, where tokens are drawn, the drawn ones; none where there are no MASKs.
        """
        num_settled = (num_known - 1).clamp(min=0)[:, None]
        found, size = self.no_drafts(), torch.zeros_like(num_settled)
        if guesses:
            found, size = self.guessed(num_settled, guesses)
        of_group = found[2].cumprod(-1)
        self.note_group(of_group, size)

        if policy.num_looked_up > 0:
            others = self.looked_up(slots[:, 0] + num_known - 1, policy)
            is_better = others[2].cumprod(-1).sum(-1, keepdim=True) > of_group.sum(-1, keepdim=True)
            found = taken(is_better, others, found)
        self.drafts, self.kinds, chances = found
        draft_slots = slots[:, :1] + num_settled + torch.arange(1, self.window_size, device=slots.device)
        self.chances = chances.cumprod(-1).where(draft_slots < self.limit[:, None], 0)

    def guessed(
        self, num_settled: torch.Tensor, guesses: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """The drafts of the group that saw `num_settled` drafts with their kinds and chances, and their number."""
        begin, end = self.groups.gather(1, num_settled), self.groups.gather(1, num_settled + 1)
        mask = begin + torch.arange(1, self.window_size, device=begin.device)  # the first one stood for a known slot
        is_found, asked, found = mask < end, self.num_drafts[:, None] + 1 + mask, self.no_drafts()
        for source, guess in enumerate(guesses):
            tokens, shares = (each.gather(1, asked.clamp(max=each.shape[1] - 1)) for each in guess)
            # (not torch.bucketize, whose boundaries would have to get to the device)
            strengths = sum((shares > share).long() for share in SHARES)
            kinds, chances = self.judged_before(source, strengths, is_found)
            found = taken(chances > found[2], (tokens, kinds, chances), found)
        return found, is_found.sum(-1, keepdim=True)

    def no_drafts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.zeros_like(self.drafts), self.kinds, torch.zeros_like(self.chances)

    def note_group(self, chances: torch.Tensor, size: torch.Tensor) -> None:
        """Learns what the drafts of the next group may have from the chances of those of a group.

        `size`, `[batch, 1]`, is their number, 0 where there was no group.
        """
        doubts = torch.cat([doubt_of(pad(chances, (0, 1))[:, :1]), self.doubt], dim=-1)
        self.group_doubts = self.group_doubts.lerp(doubts, NEW_GROUP * (size > 0).to(doubts.dtype))
        is_draft = torch.arange(self.window_size - 1, device=size.device) < size
        expected = hoped_for(self.doubt, self.group_doubts, self.window_size, self.limit)
        weight = torch.where(is_draft, NEW_GROUP, NO_GROUP).to(expected.dtype)
        self.expected = self.expected.lerp(chances.where(is_draft, expected), weight)

    def judged_before(
        self, source: int, strengths: torch.Tensor, is_draft: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The kinds of drafts of a source, and the share of such drafts that were accepted; 0 where there is none."""
        kinds = source * self.acceptance.shape[2] + strengths
        return kinds, self.acceptance.flatten(1).gather(1, kinds).where(is_draft, 0)

    def looked_up(self, last: torch.Tensor, policy: Policy) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Looks up drafts behind slot `last`; returns them, their kinds and chances."""
        text = torch.cat([self.prompt, self.tokens], dim=-1)
        place = torch.arange(self.window_size - 1, device=last.device)
        drafts, num_matched = look_up(text, self.prompt.shape[1] + last, len(place), policy.most_matched)
        most = (self.limit.clamp(max=self.window_size) - 1).clamp(max=policy.num_looked_up) * (num_matched > 0)
        strengths = (num_matched[:, None] + place).clamp(max=MOST_MATCHED)
        return drafts, *self.judged_before(LOOKED_UP, strengths, place < most[:, None])

    def show_drafts(self, readers: TextReaders, num_known: torch.Tensor, policy: Policy) -> None:
        """Shows the drafts of the one row that the next forward will judge."""
        first_open = self.behind_leading + num_known
        num_drafts = self.plan(first_open, 1, policy).num_drafts[0]
        slots = first_open[0] + torch.arange(num_drafts, device=first_open.device)
        readers.stream.guess(self, slots, self.drafts[0, :num_drafts], end=first_open[0] + num_drafts)

    def commit(self, num_run: torch.Tensor) -> torch.Tensor:
        """Commits all known tokens but the last; returns how many of the window's queries stay in the cache.

        (The run of a row that has ended is its last known token, at its start: nothing more is committed.)
        """
        num_kept = self.num_leading + (num_run - 1).clamp(min=0)
        self.start = self.start + num_kept
        return num_kept

    def refill(self, num_run: torch.Tensor, policy: Policy) -> None:
        """The next forward commits the last known token and judges the drafts."""
        self.num_leading = num_run.clamp(max=1) * self.alive
        self.chances = self.chances * self.alive[:, None]
        self.num_drafts, self.groups = self.plan(self.behind_leading, self.num_leading, policy)

    def plan(self, first_open: torch.Tensor, num_leading: torch.Tensor | int, policy: Policy) -> StepPlan:
        """Plans the forward for which all slots before `first_open` are known."""
        most = 2 * self.limit.clamp(max=self.window_size) - num_leading
        num_open = (self.limit - first_open) * self.alive
        weights = self.alive.to(self.chances.dtype)
        if policy.ends_together:  # with the slowest row, so a token of a row that is ahead counts for less
            least = first_open.where(self.alive, NO_SLOT).amin()
            weights = weights * torch.exp2((least - first_open).clamp(max=0) / LEAD)
        return plan_step(self.chances, self.expected, num_open, most, policy.prices, weights)

    def counts(self) -> dict[str, torch.Tensor]:
        """Adds how many drafts were judged and accepted at each distance; those behind the text's end do not count."""
        is_text = torch.arange(self.judged_at.shape[1], device=self.start.device) < self.num_tokens[:, None]
        zeros = torch.zeros_like(self.judged_at[:, : min(self.window_size, int(self.limit.max()))])
        judged, accepted = (
            zeros.scatter_add(1, self.judged_at, values.long())[:, 1:] for values in (is_text, is_text & self.accepted)
        )
        return {**super().counts(), "judged_drafts": judged, "accepted_drafts": accepted}


def likeliest(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The best token of each `[n, vocabulary]`, its share of the softmax, and whether it is possible."""
    best, tokens = scores.max(-1)
    return tokens, (best - scores.logsumexp(-1)).exp(), best > -torch.inf  # False where it is NaN


def doubt_of(chances: torch.Tensor) -> torch.Tensor:
    """-log of chances, of which none is taken to be below 0.01; NaN is no chance."""
    return -chances.nan_to_num(0).clamp(min=0.01).log()


def hoped_for(doubt: torch.Tensor, group_doubts: torch.Tensor, window_size: int, limit: torch.Tensor) -> torch.Tensor:
    """The chances of a group's drafts before there is one: P(at least n are accepted), n = 1, 2, ...

    The n-th is exp(-n * r * doubt), where r is the doubt of a group's first draft divided by that of the text, as
    earlier groups had them. Where the text's own tokens are sure, the tokens that MASKs guess are sure as well.
    """
    place = torch.arange(1, window_size, device=limit.device)
    chances = torch.exp(-place * doubt * group_doubts[:, :1] / group_doubts[:, 1:].clamp(min=0.01))
    # A limit below the window makes the window as small, whatever the shape of the steps is.
    return chances.where(place < limit[:, None], 0)


def taken(where: torch.Tensor, these: tuple, others: tuple) -> tuple[torch.Tensor, ...]:
    """Takes `these` where it says so, and the `others` elsewhere."""
    return tuple(torch.where(where, this, other) for this, other in zip(these, others, strict=True))
