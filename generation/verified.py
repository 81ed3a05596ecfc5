"""Verified decoding: one forward verifies the drafts of the one before, and makes the next drafts."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn.functional import pad

from wedlm.generation.callbacks import Callbacks
from wedlm.generation.sampling import draft_or_best, likeliest, over_slots, processed, without_mask
from wedlm.generation.window import MOST_MATCHED, NO_TOKEN, Policy, Window, WindowQueries

NEXT_CHANCE = 0.7  # that a draft of a group is accepted if those before it are, as long as nothing is known
DECAY = 0.9  # the weight of the record at the next forward
PRIOR = 2.0  # the accepted drafts that a record begins with, as many as expected
MOST_CERTAIN = 0.99
WIDEST = 32  # slots that a plan reaches; its tables grow with the square


@dataclass
class VerifiedWindow(Window):
    """A window into which only final tokens are written: each is the one that autoregressive decoding writes there.

    A forward has at most 2 * window_size queries: the last token of prompt and text, up to window_size - 1 drafts for
    the slots behind it, then MASKs.

    The query before a draft verifies it, because its logits are the autoregressive prediction for the draft's slot.
    The forward accepts the drafts up to the first one that is another token than the predicted one. The predicted
    token is written in its place, or behind all drafts, so each forward writes at least one token.

    The MASKs predict the next drafts. They must not see a draft that is rejected, and nobody knows beforehand which
    one that is. So they come in groups, one for each number of accepted drafts; a group sees that many drafts and no
    other. The first MASK of a group stands at the slot that the forward writes behind the accepted drafts, the others
    at the slots of the next drafts. `plan_step` says how many drafts are verified and how long the groups are.

    Drafts come from MASKs, or from an earlier place where the text's last tokens stand as well (`look_up`): for each
    row from where more of them are expected to be accepted. Where tokens are drawn, so are drafts, with the noise of
    their slots, which verifying uses too.
    """

    drafts: torch.Tensor  # [batch, window_size - 1]: tokens for the slots behind the text
    # [batch, window_size - 1]: The chance of a draft if those before it are accepted, as its source gives it: the
    # token's share of the scores, or what `look_up` has matched.
    estimates: torch.Tensor
    # [batch, window_size - 1]: P(this draft and all before it are accepted), by corrected estimates; 0 without a draft
    chances: torch.Tensor
    is_looked_up: torch.Tensor  # [batch, 1]: whether the drafts come from the text
    num_drafts: torch.Tensor  # [batch]: the number of drafts that the next forward verifies
    # [batch, window_size + 1]: the query where the group of MASKs for 0, 1, 2, ... accepted drafts begins, behind the
    # text and the drafts, and the number of all queries, where the last group ends
    groups: torch.Tensor
    # [batch, slots + 1]: the distance from the end of the text at which the slot's draft was verified, negative if it
    # was rejected; 0 where there was none
    verified_at: torch.Tensor
    # [batch, (observed, expected), (drafts of MASKs, looked up drafts, chances of a group)]: sums over the forwards,
    # each of which counts DECAY of the next
    record: torch.Tensor
    corrections: torch.Tensor  # [batch, 3]: observed / expected, of the record and the PRIOR
    most: torch.Tensor  # [batch]: the most queries of a forward besides its first
    prompt: torch.Tensor  # [batch, columns]: right-aligned behind NO_TOKEN, to look drafts up in

    PER_SLOT: ClassVar[tuple[str, ...]] = (*Window.PER_SLOT, "verified_at")
    PER_COLUMN: ClassVar[tuple[str, ...]] = ("prompt",)

    @classmethod
    def own_fields(cls, zeros, max_new_tokens: int, policy: Policy, prompt: torch.Tensor | None) -> dict:
        size, looks_up = policy.window_size, prompt is not None and policy.num_looked_up > 0
        return {
            "drafts": zeros(size - 1),
            "estimates": zeros(size - 1, dtype=torch.float32),
            "chances": zeros(size - 1, dtype=torch.float32),
            "is_looked_up": zeros(1, dtype=torch.bool),
            "num_drafts": zeros(),
            "groups": zeros(size + 1),
            "verified_at": zeros(max_new_tokens + 1),
            "record": zeros(2, 3, dtype=torch.float32),
            "corrections": zeros(3, dtype=torch.float32) + 1,
            # A limit below the window makes the window as small, whatever the shape of the steps is.
            "most": zeros() + 2 * min(size, max_new_tokens) - 1,
            "prompt": prompt if looks_up else zeros(0),
        }

    @property
    def window_size(self) -> int:
        return self.drafts.shape[1] + 1

    @property
    def num_queries(self) -> torch.Tensor:
        return self.groups[:, -1]

    # --- The queries of a forward ---

    def most_queries(self, policy: Policy) -> int:
        """A window of one slot has no drafts, so it needs no MASK."""
        has_masks = policy.mask_token_id is not None and policy.window_size > 1
        return policy.window_size * (1 + has_masks)

    def first_queries(self, policy: Policy) -> WindowQueries:
        """The first forward has the prompt alone, whose last token predicts the first slot.

        MASKs there would save one forward of a text at most. Without them the prompt is read as token by token, and
        its keys and values are the same bit by bit.
        """
        none = self.start.new_zeros(len(self.start), 0)
        return WindowQueries(
            input_ids=none,
            position_ids=none,
            logits_indices=torch.full_like(self.start, -1)[:, None],  # the last token of the text in front
            predicted_slots=self.start[:, None],
            is_predicted=torch.ones_like(self.alive)[:, None],
            num_needed=torch.zeros_like(self.start)[:, None],
        )

    def queries(self, width: int, policy: Policy) -> WindowQueries:
        """The last token of the text, the drafts, the MASKs. Text and drafts predict the slot behind theirs.

        The last token is the leading one, at slot `start`: the forward that wrote it did not compute its keys.
        """
        query = policy.arange[:width]
        num_needed = self.groups[:, -1:]
        is_pending, is_used = query < self.groups[:, :1], query < num_needed
        group = (self.groups[:, 1:, None] <= query).sum(1)
        num_seen = group + self.num_leading[:, None]
        # The first MASK of a group stands at the slot behind the queries that it sees.
        slot_shift = (num_seen - self.groups.gather(1, group)).masked_fill(is_pending, 0)
        slots = self.start[:, None] + query + slot_shift
        predicted_slots = slots + is_pending
        last = self.tokens.gather(1, self.start[:, None])
        tokens = torch.cat([last, self.drafts, last.expand(-1, max(0, width - self.window_size))], dim=-1)[:, :width]
        return WindowQueries(
            # (Queries that a row does not need are its last token, not MASK, for which draft adapters would work.)
            input_ids=torch.where(is_pending, tokens, last.masked_fill(is_used, policy.blank)),
            position_ids=self.prompt_lengths[:, None] + slots,
            logits_indices=query.expand_as(slots),
            predicted_slots=predicted_slots,
            is_predicted=is_used & (predicted_slots < self.limit[:, None]),
            visible_prefix=num_seen.masked_fill(is_pending, 0),
            num_needed=num_needed,
        )

    def count_forward(self, queries: WindowQueries) -> None:
        """Does not count a forward that has nothing left to verify, as one behind the end."""
        may_verify = queries.is_predicted[:, 0]
        self.forwards = self.forwards + may_verify
        self.window_queries = self.window_queries + may_verify * self.num_queries

    # --- What comes of it ---

    def fill(
        self, queries: WindowQueries, logits: torch.Tensor, policy: Policy, callbacks: Callbacks | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the tokens that are final now, and makes drafts behind them.

        The token of a slot is chosen from the autoregressive scores as autoregressive decoding chooses it. A draft is
        accepted if it is that token. So drafts decide how many tokens a forward writes, never which. (With an
        `acceptance_ratio` below 1 a draft that comes close to that token takes its place.)
        """
        noise = policy.noise

        def read(logits: torch.Tensor, places: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
            if policy.processors_read_text:
                scores = without_mask(logits, policy.mask_token_id)
            else:
                scores = processed(logits, policy.processors)
            return likeliest(scores if noise is None else scores + noise.at(places))

        places = () if noise is None else (noise.places(self.batch_rows, queries.predicted_slots),)
        tokens, shares, is_possible = over_slots(read, logits, *places)
        is_final = self.verify(queries, logits, tokens[:, : self.window_size], policy, callbacks)
        num_final = is_final.sum(-1, keepdim=True)
        self.draft(tokens, shares, num_final, policy)
        if policy.processors_read_text:  # the callbacks have refused what is impossible
            return num_final[:, 0], torch.ones_like(is_final)
        return num_final[:, 0], is_final <= is_possible[:, : self.window_size]  # False: it is final and not possible

    def verify(
        self,
        queries: WindowQueries,
        logits: torch.Tensor,
        tokens: torch.Tensor,
        policy: Policy,
        callbacks: Callbacks | None,
    ) -> torch.Tensor:
        """Fills slots up to the first rejected draft; returns which of the predicted slots these are.

        `tokens` are those of the autoregressive scores, unless callbacks choose them left to right.
        """
        size = tokens.shape[1]
        slots, may_fill = queries.predicted_slots[:, :size], queries.is_predicted[:, :size]
        place, number = policy.arange[:size], policy.arange[1 : size + 1]
        is_no_draft = place >= self.num_drafts[:, None]
        drafts = pad(self.drafts, (0, 1))[:, :size].masked_fill(is_no_draft, NO_TOKEN)
        if policy.processors_read_text:
            may_fill = may_fill & (place <= self.num_drafts[:, None])
            tokens, is_final = callbacks.verify(self, slots, may_fill, drafts, logits)
            is_accepted = tokens == drafts
        else:
            if policy.acceptance_margin is not None:

                def choose(logits: torch.Tensor, drafts: torch.Tensor) -> tuple[torch.Tensor]:
                    scores = processed(logits, policy.processors)
                    return (draft_or_best(scores, drafts, policy.acceptance_margin),)

                (tokens,) = over_slots(choose, logits[:, :size], drafts)
            is_accepted = tokens == drafts
            is_final = may_fill & (place <= is_accepted.cumprod(-1).sum(-1, keepdim=True))
            if callbacks is not None:
                callbacks.records.put_selected(self, queries, is_final, logits, policy.processors)
        distance = torch.where(is_accepted, number, -number).masked_fill(is_no_draft, 0)
        self.verified_at.scatter_(1, self.put_tokens(slots, is_final, tokens), distance)
        return is_final

    def draft(self, tokens: torch.Tensor, shares: torch.Tensor, num_final: torch.Tensor, policy: Policy) -> None:
        """Takes the next drafts from the group of MASKs that saw the accepted ones, or looks them up in the text.

        The record of how the drafts fared in this text corrects the estimates of each source.
        """
        place = policy.arange[1 : self.window_size]
        num_accepted = (num_final - 1).clamp(min=0)

        # 1. The drafts of both sources. (The first MASK of a group stood for a token that is final now.)
        bounds = self.groups.unfold(1, 2, 1).gather(1, num_accepted[..., None].expand(-1, -1, 2))
        mask = bounds[..., 0] + place
        is_made = mask < bounds[..., 1]
        mask = mask.clamp(max=tokens.shape[1] - 1)
        of_masks, estimates_of_masks = tokens.gather(1, mask), shares.gather(1, mask) * is_made
        of_text, estimates_of_text = self.looked_up(self.behind_leading[:, None] + num_final, policy)

        # 2. Their chances, by the corrections of the forwards before this one.
        estimates = torch.stack([estimates_of_masks, estimates_of_text], dim=1)  # [batch, sources, drafts]
        chances = (estimates * self.corrections[:, :2, None]).clamp(max=MOST_CERTAIN).cumprod(-1)
        expected = chances.sum(-1)

        # 3. What is recorded: the drafts that were verified, and the chances of this group.
        is_verified = place <= torch.minimum(num_final, self.num_drafts[:, None])
        num_expected = (self.estimates * is_verified).sum(-1, keepdim=True)
        sources = self.is_looked_up == policy.arange[:2]  # of MASKs, of the text
        num_reached = (pad(chances[:, 0, :-1], (1, 0), value=1.0) * is_made).sum(-1)
        of_drafts = torch.cat([num_accepted, num_expected], dim=-1)[..., None] * sources[:, None]
        of_groups = torch.stack([expected[:, 0], NEXT_CHANCE * num_reached], dim=-1)[..., None]
        self.record = torch.cat([of_drafts, of_groups], dim=-1).add(self.record, alpha=DECAY)
        sums = self.record + PRIOR
        self.corrections = sums[:, 0] / sums[:, 1]

        # 4. The better source.
        self.is_looked_up = expected[:, 1:] > expected[:, :1]
        self.drafts = torch.where(self.is_looked_up, of_text, of_masks)
        self.estimates, self.chances = (
            torch.where(self.is_looked_up, each[:, 1], each[:, 0]) for each in (estimates, chances)
        )

    def looked_up(self, first_open: torch.Tensor, policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
        """Drafts from the text, and their estimates."""
        if policy.num_looked_up == 0:
            return torch.zeros_like(self.drafts), torch.zeros_like(self.estimates)
        text = torch.cat([self.prompt, self.tokens], dim=-1)
        last = first_open + (self.prompt.shape[1] - 1)
        num_drafts = self.window_size - 1
        drafts, num_matched = look_up(text, last, num_drafts, policy.most_matched)
        # (0 for the first draft where there is no match)
        estimates = policy.match_chances[num_matched + policy.arange[:num_drafts]]
        if policy.num_looked_up < num_drafts:
            estimates[:, policy.num_looked_up :] = 0
        return drafts, estimates

    def advance(self, num_run: torch.Tensor, policy: Policy, num_rows: int) -> torch.Tensor:
        """Commits all final tokens but the last, which is the first query of the next forward.

        With an `acceptance_ratio` below 1 drafts decide what is written, so each row plans its queries alone, as if no
        other row were there.
        """
        num_last = num_run.clamp(max=1)
        num_kept = self.num_leading + num_run - num_last
        self.start = self.start + num_kept
        self.num_leading = num_last * self.alive
        first_open, is_alone = self.behind_leading, policy.acceptance_margin is not None
        groups = plan_step(
            self.chances,
            None if policy.mask_token_id is None else NEXT_CHANCE * self.corrections[:, 2:],
            num_open=(self.limit - first_open) * self.alive,
            most=self.most,
            query_cost=relative_cost(policy.query_cost, 1 if is_alone else num_rows),
            pace=((first_open / self.forwards).clamp(min=1) * self.alive)[:, None],
            is_alone=is_alone,
        )
        self.num_drafts, self.groups = groups[:, 0], groups + self.num_leading[:, None]
        return num_kept

    def show_drafts(self, stream) -> None:
        first_open, num_drafts = self.behind_leading[0], self.num_drafts[0]
        tokens = torch.cat([self.tokens[0, :first_open], self.drafts[0, :num_drafts]])
        stream.guess(tokens, torch.arange(len(tokens), device=tokens.device) < first_open)

    def counts(self) -> dict[str, Any]:
        """Adds how many drafts of the text, none behind its end, were verified and accepted at each distance."""
        is_text = torch.arange(self.verified_at.shape[1], device=self.start.device) < self.num_tokens[:, None]
        zeros = torch.zeros_like(self.verified_at[:, : min(self.window_size, int(self.limit.max()))])
        verified, accepted = (
            zeros.scatter_add(1, self.verified_at.abs(), those.long())[:, 1:]
            for those in (is_text, is_text & (self.verified_at > 0))
        )
        return {**super().counts(), "verified_drafts": verified, "accepted_drafts": accepted}


def plan_step(
    chances: torch.Tensor,
    next_chance: torch.Tensor | None,
    num_open: torch.Tensor,
    most: torch.Tensor,
    query_cost: float = 0.0,
    pace: torch.Tensor | float = 1.0,
    is_alone: bool = False,
) -> torch.Tensor:
    """Takes the queries that promise most tokens, as far as each promises more than it costs.

    A draft brings a token in this step if it is accepted with all drafts before it. A MASK brings a token in the next
    step if exactly the drafts that its group sees are accepted now, and the draft that it makes is accepted then. The
    first MASK of a group stands for the token that this step writes behind the accepted drafts. It makes no draft, so
    it shares the gain of those behind it. A forward is as wide as its widest row, so a further query in each row is
    taken if its gain is above the cost in the mean over the rows.

    Args:
        chances (`torch.FloatTensor` of shape `(batch, window_size - 1)`): P(at least n drafts are accepted), n = 1, 2,
            ...; 0 where there is no draft.
        next_chance (`torch.FloatTensor` of shape `(batch, 1)`): P(a draft of a new group is accepted, if those before
            it are). None: the model has no MASK, and there are no groups.
        num_open (`torch.LongTensor` of shape `(batch,)`): The slots that are still to be filled.
        most (`torch.LongTensor` of shape `(batch,)`): The most queries.
        query_cost (`float`, *optional*, defaults to 0.0): The cost of a query in each row, as a share of a forward.
        pace (`torch.FloatTensor` of shape `(batch, 1)`, *optional*, defaults to 1.0): The tokens that a row writes in
            a forward, 0 for one that has ended. A query costs the tokens that the row would write in the same time.
        is_alone (`bool`, *optional*, defaults to `False`): Whether each row counts its own gain, not the mean.

    Returns:
        `torch.LongTensor` of shape `(batch, window_size + 1)`: where, counted from the first draft, the group of MASKs
        for 0, 1, 2, ... accepted drafts begins, and where the last group ends. The first number is that of the drafts.
    """
    num_unused = max(0, chances.shape[1] + 1 - WIDEST)
    size = chances.shape[1] + 1 - num_unused
    rank = torch.arange(2 * size, device=chances.device)
    place, distance = rank[:size], rank[:size].clamp(min=1)
    of_drafts = pad(chances[:, : size - 1], (0, 1)) * (place < num_open[:, None])
    if next_chance is None:
        num_drafts = (pays(of_drafts, pace, query_cost, is_alone) & (place < most[:, None])).sum(-1)
        return num_drafts[:, None].repeat(1, chances.shape[1] + 2)
    exactly = pad(of_drafts[:, :-1], (1, 0), value=1.0) - of_drafts  # P(exactly n drafts are accepted)
    of_places = next_chance**distance
    of_places[:, :2].div_(2)
    has_slot = place[:, None] + distance < num_open[:, None, None]
    of_masks = exactly[:, :, None] * of_places[:, None] * has_slot  # [batch, groups, places in the group]

    gains = torch.cat([of_drafts[:, None], of_masks], dim=1).flatten(1)
    gains, order = (each[:, : 2 * size] for each in gains.sort(descending=True, stable=True))
    is_taken = pays(gains, pace, query_cost, is_alone) & (rank < most[:, None])
    numbers = torch.zeros_like(order[:, : size + 1]).scatter_add(1, order // size, is_taken.long())
    num_masks = numbers[:, 1:]  # a view: `numbers` changes, too
    num_masks.masked_fill_(num_masks == 1, 0)  # one MASK makes no draft
    groups = numbers.cumsum(-1)
    if num_unused > 0:
        groups = torch.cat([groups, groups[:, -1:].expand(-1, num_unused)], dim=-1)
    return groups


def pays(gains: torch.Tensor, pace: torch.Tensor | float, query_cost: float, is_alone: bool) -> torch.Tensor:
    """Whether queries gain more tokens than their cost is worth; rows that are not alone decide by their mean."""
    above_cost = gains.sub(pace, alpha=query_cost)
    return ((above_cost if is_alone else above_cost.mean(0)) > 0) & (gains > 0)


def relative_cost(query_cost: float, num_rows: int) -> float:
    """What one more query in each row adds to a forward over `num_rows` rows of one query, as a share of its cost.

    A forward of n queries costs 1 + query_cost * (n - 1).
    """
    return num_rows * query_cost / (1 + query_cost * (num_rows - 1))


def look_up(
    text: torch.Tensor, last: torch.Tensor, num_drafts: int, most_matched: int = MOST_MATCHED
) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds the last place where the text's last tokens stand as well, and drafts what follows there.

    The place with the longest match is taken. Where the text behind it ends, the drafts begin again behind the match,
    so that a text that repeats itself goes on repeating.

    Args:
        text (`torch.LongTensor` of shape `(batch, columns)`): The text of each row without a gap before `last`, in
            front of it numbers that are no tokens, and at least one column behind it.
        last (`torch.LongTensor` of shape `(batch, 1)`): The column of each row's last token.
        num_drafts (`int`): The number of drafts.
        most_matched (`int`, *optional*, defaults to 6): The most last tokens that are compared,
            max_matching_ngram_size of the call.

    Returns:
        `tuple[torch.LongTensor, torch.LongTensor]`: The drafts `[batch, num_drafts]`, and the length of each row's
        match `[batch, 1]`; it is 0 where there is none, and the drafts say nothing.
    """
    width = text.shape[1]
    place = torch.arange(max(width, num_drafts), device=text.device)
    column = place[:width]
    endings = pad(text, (most_matched - 1, 0), value=-1).unfold(1, most_matched, 1)  # [batch, columns, matched]
    is_same = endings == endings.gather(1, last[..., None].expand(-1, -1, most_matched))
    num_matched = is_same.flip(-1).cumprod(-1, dtype=torch.uint8).sum(-1)
    # (A match ends where an earlier place has no more text: the last tokens have one there.)
    longest, best = (torch.add(column, num_matched, alpha=width) * (column < last)).max(-1, keepdim=True)
    behind = best + 1 + place[:num_drafts] % (last - best).clamp(min=1)
    return text.gather(1, behind), longest // width
