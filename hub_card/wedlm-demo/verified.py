"""Verified decoding: one forward verifies the drafts of the one before, and makes the next drafts."""

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
from .window import NO_TOKEN, Window, WindowQueries

HALF_MATCH = 3  # A looked up draft is taken to be accepted in one of two cases behind a match of so many tokens.
NEXT_CHANCE = 0.7  # that a draft of a group is accepted if those before it are, as long as nothing is known
DECAY = 0.9  # the weight of the record at the next forward
PRIOR = 2.0  # the accepted drafts that a record begins with, as many as expected
MOST_CERTAIN = 0.99


@dataclass
class VerifiedWindow(Window):
    """A window whose tokens are final: each is the one that autoregressive decoding writes there.

    A forward has at most 2 * window_size queries: the last token of the text (before the first forward it is the
    prompt's), up to window_size - 1 drafts for the slots behind it, then MASKs.

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

    Args:
        drafts (`torch.LongTensor` of shape `(batch, window_size - 1)`): Tokens for the slots behind the text.
        estimates (`torch.FloatTensor` of shape `(batch, window_size - 1)`): The chance of a draft if those before it
            are accepted, as its source gives it: the token's share of the scores, or what `look_up` has matched.
        chances (`torch.FloatTensor` of shape `(batch, window_size - 1)`): The chance that a draft is accepted with all
            before it, from corrected estimates; 0 where there is no draft.
        is_looked_up (`torch.BoolTensor` of shape `(batch, 1)`): Whether the drafts come from the text.
        num_drafts (`torch.LongTensor` of shape `(batch,)`): The number of drafts that the next forward verifies.
        groups (`torch.LongTensor` of shape `(batch, window_size + 1)`): Where, among the MASKs, the group for 0, 1,
            2, ... accepted drafts begins, and where the last group ends.
        verified_at (`torch.LongTensor` of shape `(batch, slots + 1)`): The distance from the end of the text at which
            the slot's draft was verified, negative if it was rejected; 0 where there was none.
        record (`torch.FloatTensor` of shape `(batch, 2, 3)`): Sums over the forwards, in which the last one counts
            most. The first row holds how many drafts of MASKs and of the text were accepted, and the chances of the
            drafts of groups; the second row what was expected of each.
        prompt (`torch.LongTensor` of shape `(batch, columns)`): The prompts that drafts are looked up in,
            right-aligned behind numbers that are no tokens.
    """

    drafts: torch.Tensor
    estimates: torch.Tensor
    chances: torch.Tensor
    is_looked_up: torch.Tensor
    num_drafts: torch.Tensor
    groups: torch.Tensor
    verified_at: torch.Tensor
    record: torch.Tensor
    prompt: torch.Tensor

    PER_SLOT: ClassVar = (*Window.PER_SLOT, "verified_at")
    PER_COLUMN: ClassVar = ("prompt",)

    @classmethod
    def opened_window(cls, zeros: Callable, max_new_tokens: int, policy: Policy) -> dict[str, torch.Tensor]:
        size = policy.window_size
        return {
            "drafts": zeros(size - 1),
            "estimates": zeros(size - 1, dtype=torch.float32),
            "chances": zeros(size - 1, dtype=torch.float32),
            "is_looked_up": zeros(1, dtype=torch.bool),
            "num_drafts": zeros(),
            "groups": zeros(size + 1),
            "verified_at": zeros(max_new_tokens + 1),
            "record": zeros(2, 3, dtype=torch.float32),
            "prompt": zeros(0),
        }

    @property
    def window_size(self) -> int:
        return self.drafts.shape[1] + 1

    @property
    def num_queries(self) -> torch.Tensor:
        return self.num_leading + self.num_drafts + self.groups[:, -1]

    # --- The queries of a forward ---

    def first_queries(self, policy: Policy) -> WindowQueries:
        """None behind the prompt, whose last token is asked.

        MASKs there would save one forward of a text at most. Without them the prompt is read as token by token, and
        its keys and values are the same bit by bit.
        """
        none = self.start.new_zeros(len(self.start), 0)
        return WindowQueries(
            input_ids=none,
            position_ids=none,
            num_text=torch.zeros_like(self.start),
            asked=torch.full_like(self.start, -1)[:, None],
            asked_slots=self.start[:, None],
            is_asked=torch.ones_like(self.alive)[:, None],
            queries_seen=None,
        )

    def queries(self, width: int, policy: Policy) -> WindowQueries:
        """The last token of the text, the drafts, the MASKs. All are asked, text and drafts about the next slot."""
        num_leading, query = self.num_leading[:, None], torch.arange(width, device=self.start.device)
        mask = query - (num_leading + self.num_drafts[:, None])  # the place among the MASKs, negative before them
        is_pending, is_used = mask < 0, mask < self.groups[:, -1:]
        group = (self.groups[:, 1:, None] <= mask[:, None]).sum(1)
        behind = torch.where(is_pending, query - num_leading, group + mask - self.groups.gather(1, group))
        slots = behind + self.behind_leading[:, None]
        asked_slots = slots + is_pending
        last = self.tokens.gather(1, self.start[:, None])
        tokens = torch.cat([last, self.drafts, last.expand(-1, max(0, width - self.window_size))], dim=-1)[:, :width]
        return WindowQueries(
            # (Queries that a row does not need are its last token, not MASK, for which draft adapters would work.)
            input_ids=torch.where(is_pending, tokens, last.masked_fill(is_used, policy.mask_token_id)),
            position_ids=self.prompt_lengths[:, None] + slots,
            num_text=torch.zeros_like(self.start),
            asked=query.expand_as(slots),
            asked_slots=asked_slots,
            is_asked=is_used & (asked_slots < self.limit[:, None]),
            queries_seen=torch.where(is_pending, query + 1, num_leading + group),
        )

    def count_forward(self, queries: WindowQueries) -> None:
        """Does not count a forward that has nothing left to verify."""
        may_verify = self.alive & queries.is_asked[:, 0]
        self.forwards = self.forwards + may_verify
        self.window_queries = self.window_queries + may_verify * self.num_queries

    # --- What comes of it ---

    def fill(
        self, queries: WindowQueries, logits: torch.Tensor, policy: Policy, readers: TextReaders | None
    ) -> torch.Tensor:
        """Writes the tokens that are final now, and makes drafts behind them; returns which slots nothing can fill.

        The token of a slot is chosen from the autoregressive scores as autoregressive decoding chooses it. A draft is
        accepted if it is that token. So drafts decide how many tokens a forward writes, never which. (With an
        `acceptance_ratio` below 1 a draft that comes close to that token takes its place.)
        """

        def read(logits: torch.Tensor, places: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
            if policy.left_to_right:
                scores = without_mask(logits, policy.mask_token_id)
            else:
                scores = processed(logits, policy.processors)
            return likeliest(scores if places is None else scores + policy.noise.flatten(0, 1)[places])

        places = () if policy.noise is None else (noise_places(policy.noise, self.batch_rows, queries.asked_slots),)
        tokens, shares, is_possible = over_slots(read, logits, *places)
        is_final = self.verify(queries, logits, tokens[:, : self.window_size], policy, readers)
        num_final = is_final.sum(-1, keepdim=True)
        self.draft(tokens, shares, num_final, policy)
        if readers is not None and readers.shows_guesses:
            self.show_drafts(readers, num_final[:, 0], policy)
        if policy.left_to_right:  # the readers have refused what is impossible
            return torch.zeros_like(is_final)
        return is_final & ~is_possible[:, : self.window_size]

    def verify(
        self,
        queries: WindowQueries,
        logits: torch.Tensor,
        tokens: torch.Tensor,
        policy: Policy,
        readers: TextReaders | None,
    ) -> torch.Tensor:
        """Fills slots up to the first rejected draft; returns which of the asked slots these are.

        `tokens` are those of the autoregressive scores, unless readers choose them left to right.
        """
        size = tokens.shape[1]
        slots, may_fill = queries.asked_slots[:, :size], queries.is_asked[:, :size] & self.alive[:, None]
        place = torch.arange(size, device=logits.device)
        is_draft = place < self.num_drafts[:, None]
        drafts = torch.where(is_draft, pad(self.drafts, (0, 1))[:, :size], NO_TOKEN)
        if policy.left_to_right:
            may_fill = may_fill & (place <= self.num_drafts[:, None])
            tokens, is_final = readers.verify(self, slots, may_fill, drafts, logits)
            is_accepted = tokens == drafts
        else:
            if policy.acceptance_margin is not None:

                def choose(logits: torch.Tensor, drafts: torch.Tensor) -> tuple[torch.Tensor]:
                    scores = processed(logits, policy.processors)
                    return (draft_or_best(scores, drafts, policy.acceptance_margin),)

                (tokens,) = over_slots(choose, logits[:, :size], drafts)
            is_accepted = tokens == drafts
            is_final = may_fill & (place <= is_accepted.cumprod(-1).sum(-1, keepdim=True))
            if readers is not None:
                readers.record_selected(self, queries, is_final, logits)
        distance = torch.where(is_accepted, place + 1, -1 - place) * is_draft
        self.verified_at.scatter_(1, self.put_tokens(slots, is_final, tokens), distance)
        return is_final

    def draft(self, tokens: torch.Tensor, shares: torch.Tensor, num_final: torch.Tensor, policy: Policy) -> None:
        """Takes the next drafts from the group of MASKs that saw the accepted ones, or looks them up in the text.

        The record of how the drafts fared in this text corrects the estimates of each source.
        """
        place = torch.arange(1, self.window_size, device=tokens.device)
        num_accepted = (num_final - 1).clamp(min=0)

        # 1. The drafts of both sources. (The first MASK of a group stood for a token that is final now.)
        bounds = self.groups.unfold(1, 2, 1).gather(1, num_accepted[..., None].expand(-1, -1, 2))
        mask = bounds[..., 0] + place
        is_made = mask < bounds[..., 1]
        asked = (mask + (self.num_drafts[:, None] + 1)).clamp(max=tokens.shape[1] - 1)
        of_masks, estimates_of_masks = tokens.gather(1, asked), shares.gather(1, asked) * is_made
        of_text, estimates_of_text = self.looked_up(num_final, policy)

        # 2. Their chances.
        estimates = torch.stack([estimates_of_masks, estimates_of_text], dim=1)  # [batch, sources, drafts]
        chances = (estimates * self.corrections[:, :2, None]).clamp(max=MOST_CERTAIN).cumprod(-1)
        expected = chances.sum(-1)

        # 3. What is recorded: the drafts that were verified, and the chances of this group.
        is_verified = place <= torch.minimum(num_final, self.num_drafts[:, None])
        num_expected = (self.estimates * is_verified).sum(-1, keepdim=True)
        sources = torch.cat([~self.is_looked_up, self.is_looked_up], dim=-1)
        num_reached = (pad(chances[:, 0, :-1], (1, 0), value=1.0) * is_made).sum(-1)
        of_drafts = torch.cat([num_accepted, num_expected], dim=-1)[..., None] * sources[:, None]
        of_groups = torch.stack([expected[:, 0], NEXT_CHANCE * num_reached], dim=-1)[..., None]
        self.record = torch.cat([of_drafts, of_groups], dim=-1).add(self.record, alpha=DECAY)

        # 4. The better source.
        self.is_looked_up = expected[:, 1:] > expected[:, :1]
        self.drafts = torch.where(self.is_looked_up, of_text, of_masks)
        self.estimates, self.chances = (
            torch.where(self.is_looked_up, each[:, 1], each[:, 0]) for each in (estimates, chances)
        )

    @property
    def corrections(self) -> torch.Tensor:
        """How many times the expected number of drafts was accepted: of MASKs, of the text, and of groups."""
        sums = self.record + PRIOR
        return sums[:, 0] / sums[:, 1]

    def looked_up(self, num_final: torch.Tensor, policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
        """Drafts from the text, and their estimates."""
        if policy.num_looked_up == 0:
            return torch.zeros_like(self.drafts), torch.zeros_like(self.estimates)
        text = torch.cat([self.prompt, self.tokens], dim=-1)
        last = self.behind_leading + num_final[:, 0] + (self.prompt.shape[1] - 1)
        drafts, num_matched = look_up(text, last, self.window_size - 1, policy.most_matched)
        place = torch.arange(self.window_size - 1, dtype=torch.float32, device=last.device)
        length = (num_matched[:, None] + place).clamp(max=MOST_MATCHED)
        estimates = length / (length + HALF_MATCH)  # 0 for the first draft where there is no match
        if policy.num_looked_up < len(place):
            estimates[:, policy.num_looked_up :] = 0
        return drafts, estimates

    def show_drafts(self, readers: TextReaders, num_final: torch.Tensor, policy: Policy) -> None:
        """Shows the drafts of the one row that the next forward will verify."""
        first_open = self.behind_leading + num_final
        num_drafts = self.plan(first_open, 1, policy).num_drafts[0]
        slots = first_open[0] + torch.arange(num_drafts, device=first_open.device)
        readers.stream.guess(self, slots, self.drafts[0, :num_drafts], end=first_open[0] + num_drafts)

    def commit(self, num_run: torch.Tensor) -> torch.Tensor:
        """Commits all final tokens but the last; returns how many of the window's queries stay in the cache.

        (The run of a row that has ended is its last token, at its start: nothing more is committed.)
        """
        num_kept = self.num_leading + (num_run - 1).clamp(min=0)
        self.start = self.start + num_kept
        return num_kept

    def refill(self, num_run: torch.Tensor, policy: Policy) -> None:
        """The next forward commits the last token, and verifies drafts."""
        self.num_leading = num_run.clamp(max=1) * self.alive
        self.num_drafts, self.groups = self.plan(self.behind_leading, self.num_leading, policy)

    def plan(self, first_open: torch.Tensor, num_leading: torch.Tensor | int, policy: Policy) -> StepPlan:
        """Plans the forward for which all slots before `first_open` are final."""
        num_open = (self.limit - first_open) * self.alive
        # A limit below the window makes the window as small, whatever the shape of the steps is.
        most = 2 * self.limit.clamp(max=self.window_size) - num_leading
        # What a query costs, the row would write in the same time at its own pace.
        pace = (first_open.float() / self.forwards).clamp(min=1)
        cost = (policy.relative_cost * pace)[:, None]
        return plan_step(self.chances, NEXT_CHANCE * self.corrections[:, 2:], num_open, most, cost)

    def counts(self) -> dict[str, torch.Tensor]:
        """Adds how many drafts of the text, none behind its end, were verified and accepted at each distance."""
        is_text = torch.arange(self.verified_at.shape[1], device=self.start.device) < self.num_tokens[:, None]
        zeros = torch.zeros_like(self.verified_at[:, : min(self.window_size, int(self.limit.max()))])
        verified, accepted = (
            zeros.scatter_add(1, self.verified_at.abs(), those.long())[:, 1:]
            for those in (is_text, is_text & (self.verified_at > 0))
        )
        return {**super().counts(), "judged_drafts": verified, "accepted_drafts": accepted}


def likeliest(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The best token of each `[n, vocabulary]`, its share of the softmax, and whether it is possible."""
    best, tokens = scores.max(-1)
    return tokens, (best - scores.logsumexp(-1)).exp().nan_to_num(), best > -torch.inf  # False where it is NaN
