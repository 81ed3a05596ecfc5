"""Verified decoding: drafts, and the autoregressive predictions that judge them, from the same forward."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad
from transformers import GenerationConfig, LogitsProcessorList

from .text_readers import TextReaders
from .token_sampling import choose_tokens
from .window import Window, WindowRows

LEAST_CHANCE = 0.1  # of being accepted, as estimated; a draft with less is not worth its row


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
    num_new: torch.Tensor  # [batch]: tokens that the last forward made known; all but the last one are in the cache
    num_judged: torch.Tensor  # [batch]: how many of them were chosen where a draft stood
    num_accepted: torch.Tensor  # [batch]: and were that draft
    judged: torch.Tensor  # [batch, window_size - 1]: how often a draft at each distance was judged
    accepted: torch.Tensor  # [batch, window_size - 1]: and accepted

    @classmethod
    def opened(cls, prompt_lengths: torch.Tensor, max_new_tokens: int, window_size: int, mask_token_id: int):
        window = Window.opened(prompt_lengths, max_new_tokens, window_size, mask_token_id)
        zero = torch.zeros_like(prompt_lengths)
        zeros = zero.new_zeros(len(zero), window_size - 1)
        return cls(
            **vars(window),
            drafts=zeros,
            chances=zeros.float(),
            num_new=zero,
            num_judged=zero,
            num_accepted=zero,
            judged=zeros,
            accepted=zeros,
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
    def num_drafts(self) -> torch.Tensor:
        return (self.chances > 0).sum(-1)

    @property
    def num_mask_rows(self) -> torch.Tensor:
        """As many as there is room for, and no more than `window_size` for each group."""
        num_pending = self.num_leading + self.num_drafts
        return torch.minimum(self.window_size * (self.num_drafts + 1), 2 * self.window_size - num_pending)

    @property
    def num_rows(self) -> torch.Tensor:
        return self.num_leading + self.num_drafts + self.num_mask_rows

    def groups(self) -> torch.Tensor:
        """Where the MASK rows for 0, 1, 2, ... accepted drafts begin, and last their end: `[batch, window_size + 1]`.

        Shares are in proportion to the square root of the chance of that number, since more rows help a group less
        and less. With 12 rows and chances of 0.75 and 0.5, so that of none, one and both it is 0.25, 0.25 and 0.5:

            0, 4, 7, 12, 12, ...
        """
        chances = pad(pad(self.chances, (1, 0), value=1.0), (0, 1))  # also of nothing, and of one draft too many
        shares = (chances[:, :-1] - chances[:, 1:]).clamp(min=0).sqrt().cumsum(-1)
        return pad((shares / shares[:, -1:] * self.num_mask_rows[:, None]).round().long(), (1, 0))

    def reorder(self, width: int, window_size: int, mask_token_id: int) -> WindowRows:
        begins, first_judged, num_leading = self.groups(), self.first_judged[:, None], self.num_leading[:, None]
        num_drafts = self.num_drafts[:, None]
        # Rows: tokens that are pending, then MASK rows, each with the number of drafts it sees.
        rows = torch.arange(width, device=begins.device)
        mask_rows = rows - num_leading - num_drafts  # [batch, width]
        group = (begins[:, None, 1:] <= mask_rows[..., None]).sum(-1)
        pending = torch.cat([self.tokens.gather(1, self.start[:, None]), self.drafts], dim=-1)
        pending = pending.gather(1, rows.clamp(max=window_size - 1).expand_as(mask_rows))
        slots = torch.where(
            mask_rows < 0, self.start[:, None] + rows, first_judged + group + mask_rows - begins.gather(1, group)
        )
        # What is asked of them: the judgements from the row before `first_judged` on, then the drafts.
        asked = torch.arange(2 * window_size, device=begins.device)
        asked_rows = (num_leading - 1 + asked).clamp(max=width - 1)
        is_judge = asked <= num_drafts
        asked_slots = torch.where(is_judge, first_judged + asked, slots.gather(1, asked_rows.clamp(min=0)))
        is_row = asked <= num_drafts + self.num_mask_rows[:, None]
        # Nothing is pending in so few rows: behind the prompt there is one group, which sees all before it.
        is_plain = width <= window_size
        return WindowRows(
            input_ids=torch.where(mask_rows < 0, pending, mask_token_id),
            position_ids=self.prompt_lengths[:, None] + slots,
            num_final=self.num_leading,
            open_rows=asked_rows,
            open_slots=asked_slots,
            is_open=is_row & (asked_slots < self.max_new_tokens),
            rows_seen=None if is_plain else torch.where(mask_rows < 0, rows + 1, num_leading + group),
        )

    def count_forward(self, rows: WindowRows) -> None:
        """MASK rows behind the last slot are not counted, nor a forward in which there is nothing left to judge."""
        may_judge = self.alive & rows.is_open[:, 0]
        is_mask_row = torch.arange(rows.is_open.shape[1], device=may_judge.device) > self.num_drafts[:, None]
        num_used = self.num_leading + self.num_drafts + (rows.is_open & is_mask_row).sum(-1)
        self.forwards = self.forwards + may_judge
        self.window_rows = self.window_rows + may_judge * num_used

    def commit(self, num_final: torch.Tensor) -> torch.Tensor:
        self.start = self.start + self.num_leading + self.num_settled
        return num_final + self.num_settled

    def new_run(self, window_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(window_size, device=self.start.device)
        slots = ((self.start - self.num_settled)[:, None] + places).clamp(max=self.max_new_tokens)
        return slots, (places < self.num_new[:, None]).long()

    def refill(self, num_run: torch.Tensor, blockwise: bool) -> None:
        """What was judged is counted as far as it is text; the token known is to be committed by the next forward."""
        slots, is_new = self.new_run(self.window_size)
        places = torch.arange(self.window_size - 1, device=slots.device)
        is_text = (is_new.bool() & (slots < self.num_tokens[:, None]))[:, :-1]
        self.judged = self.judged + (is_text & (places < self.num_judged[:, None]))
        self.accepted = self.accepted + (is_text & (places < self.num_accepted[:, None]))
        self.num_leading = num_run.clamp(max=1) * self.alive
        self.chances = self.chances * self.alive[:, None]

    def counted(self) -> dict[str, torch.Tensor]:
        return {**super().counted(), "judged_drafts": self.judged, "accepted_drafts": self.accepted}


def judge_and_draft(
    window: VerifiedWindow,
    rows: WindowRows,
    logits: torch.Tensor,
    processors: LogitsProcessorList,
    generation_config: GenerationConfig,
    readers: TextReaders | None,
) -> torch.Tensor:
    """Fills the slots whose tokens become known, and drafts; returns, like `rows.open_slots`, what nothing can fill.

    At each judged slot a token is chosen from the autoregressive scores, as autoregressive decoding would. A draft is
    accepted if it is that token, so that drafts decide how many tokens a forward makes known, never which.
    """
    size = window.window_size
    places = torch.arange(size, device=logits.device)
    # 1. Judge
    slots, is_draft = rows.open_slots[:, :size], places[:-1] < window.num_drafts[:, None]
    may_judge = rows.is_open[:, :size] & pad(is_draft, (1, 0), value=True) & window.alive[:, None]
    if readers is None or not readers.left_to_right:
        tokens, is_possible, scores = choose_tokens(logits, processors, generation_config.do_sample)
        is_confirmed = pad(tokens[:, : size - 1] == window.drafts, (1, 0), value=True)
        is_new = is_confirmed.cumprod(-1).bool() & may_judge
        impossible = pad(is_new & ~is_possible[:, :size], (0, size))
        if readers is not None and readers.records:
            readers.record_selected(window, rows, pad(is_new, (0, size)), logits=logits, scores=scores)
    else:
        tokens, is_new = readers.judge(window, slots, may_judge, window.drafts, logits)
        impossible, scores = torch.zeros_like(rows.is_open), readers.without_mask(logits)
    window.fill(slots, is_new, tokens[:, :size])
    window.num_new = is_new.sum(-1)
    window.num_judged = (is_new[:, :-1] & is_draft).sum(-1)
    window.num_accepted = (is_new[:, :-1] & is_draft & (tokens[:, : size - 1] == window.drafts)).sum(-1)

    # 2. Draft, behind the last token that is known now
    begins, num_settled = window.groups(), window.num_settled[:, None]
    begin, end = begins.gather(1, num_settled), begins.gather(1, num_settled + 1)
    mask_rows = begin + places[1:]  # the group's first row stands for the token known
    asked = (window.num_drafts[:, None] + 1 + mask_rows).clamp(max=2 * size - 1)
    slots = slots[:, :1] + num_settled + places[1:]
    chances, guesses = scores.float().softmax(-1).max(-1)
    chances = chances.gather(1, asked).where(mask_rows < end, 0).cumprod(-1)
    chances = chances.where((chances >= LEAST_CHANCE) & (slots < window.max_new_tokens), 0)
    window.drafts, window.chances = guesses.gather(1, asked), chances
    window.end = window.first_judged + window.num_settled + 1 + window.num_drafts
    if readers is not None and readers.shows_drafts:
        shown = chances[0] > 0
        readers.guess(window, slots[0, shown], window.drafts[0, shown])
    return impossible
