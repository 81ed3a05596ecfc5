"""Lets processors, criteria and a streamer read the text as transformers' own loop would show it to them."""

from dataclasses import dataclass

import torch
from transformers import GenerationConfig, StoppingCriteriaList
from transformers.generation import BaseStreamer

from .policy import Policy
from .position_selection import run_lengths
from .reader_kinds import is_stateless, window_decides
from .score_records import ScoreRecords
from .support import refuse_impossible
from .text_stream import TextStream
from .token_sampling import choose_tokens, draft_or_best, without_mask
from .transformers_internals import pad_token_of
from .window import Window, WindowQueries


@dataclass
class RowProgress:
    """How far one row of the batch has come.

    Args:
        num_reachable (`int`): Tokens with no open slot before them. Left to right, some of them are still to be
            chosen.
        num_read (`int`): Tokens that the criteria have been asked about.
        logits (`torch.Tensor` of shape `(n, vocabulary)`, *optional*): Left to right, the logits of the last n slots
            before `num_reachable`.
        alive (`bool`): Whether the text is still incomplete.
    """

    num_reachable: int = 0
    num_read: int = 0
    logits: torch.Tensor | None = None
    alive: bool = True


class TextReaders:
    """The text of the whole batch, and those who read it: processors, criteria, a streamer, records of scores.

    Readers are called as transformers' own loop calls them: with the whole batch, in row order, all rows cut to one
    width. Each row goes at its own pace, and the result of a call counts for the rows that have come to its width. If
    any reader may keep state from call to call, the rows go `in_step`: a width is called for once, in order, when all
    rows that are alive have come to it. Rows that are ahead wait.

    If a processor reads text, tokens are chosen left to right (`Policy.left_to_right`): the slots that a forward
    selects are cut to a run, and each token is chosen from the logits of that forward once the text before it is
    known.

    Args:
        input_ids (`torch.LongTensor` of shape `(batch, width)`): The prompts, as the caller padded them.
        max_new_tokens (`int`): The room for new tokens.
        policy (`Policy`): The settings of the call, the processors among them.
        criteria (`StoppingCriteriaList`): The stopping criteria.
        streamer (`BaseStreamer`, *optional*): The streamer.
        generation_config (`GenerationConfig`): The resolved generation config.
    """

    def __init__(
        self,
        input_ids: torch.LongTensor,
        max_new_tokens: int,
        policy: Policy,
        criteria: StoppingCriteriaList,
        streamer: BaseStreamer | None,
        generation_config: GenerationConfig,
    ):
        batch, self.prompt_width = input_ids.shape
        pad_token = pad_token_of(generation_config)
        if batch > 1 and pad_token is None:
            for criterion in criteria:
                if not window_decides(criterion, criteria, generation_config):
                    raise ValueError(
                        "pad_token_id is None, and rows may end at different times by stopping_criteria="
                        f"{type(criterion).__name__!r}; pass pad_token_id=tokenizer.pad_token_id."
                    )
        padding = 0 if pad_token is None else pad_token.item()
        room = input_ids.new_full((batch, max_new_tokens), padding, dtype=torch.long)
        self.ids = torch.cat([input_ids, room], dim=-1)  # [batch, width + max_new_tokens]
        self.policy, self.criteria = policy, criteria
        self.in_step = not all(is_stateless(reader) for reader in [*policy.processors, *criteria])
        self.rows = [RowProgress() for _ in range(batch)]
        self.records = ScoreRecords(batch, generation_config)
        self.stream = None if streamer is None else TextStream(streamer, batch)

    @classmethod
    def if_needed(
        cls,
        input_ids: torch.LongTensor,
        max_new_tokens: int,
        policy: Policy,
        criteria: StoppingCriteriaList,
        streamer: BaseStreamer | None,
        generation_config: GenerationConfig,
    ) -> "TextReaders | None":
        """The readers of a call; None where it asks for nothing that the window cannot decide by itself."""
        if (
            streamer is None
            and not generation_config.output_scores
            and not generation_config.output_logits
            and not policy.left_to_right
            and all(window_decides(criterion, criteria, generation_config) for criterion in criteria)
        ):
            return None
        return cls(input_ids, max_new_tokens, policy, criteria, streamer, generation_config)

    @property
    def max_new_tokens(self) -> int:
        return self.ids.shape[1] - self.prompt_width

    @property
    def shows_guesses(self) -> bool:
        return self.stream is not None and self.stream.shows_guesses

    # --- Streaming and blockwise decoding ---

    def choose_run(
        self, window: Window, queries: WindowQueries, selected: torch.Tensor, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Left to right: says which asked slots have a token by now, and gives the tokens."""
        self.take_runs(window, run_lengths(selected, queries.is_asked).tolist(), logits)
        self.read_on(window)
        slots = queries.asked_slots.clamp(max=self.max_new_tokens - 1)
        selected = queries.is_asked & (slots < self.num_read(window)[:, None])
        return selected, self.tokens_at(window, slots)

    def note_filled(
        self, window: Window, queries: WindowQueries, selected: torch.Tensor, logits: torch.Tensor
    ) -> None:
        """Records what the filled slots were chosen from, and shows a guess for each slot that is still open."""
        if not self.policy.left_to_right:
            self.record_selected(window, queries, selected, logits)
        if self.shows_guesses:
            is_open = queries.is_asked[0] & ~selected[0]
            guesses = without_mask(logits[0, is_open], self.policy.mask_token_id).argmax(-1)
            self.stream.guess(window, queries.asked_slots[0, is_open], guesses, end=window.end[0])

    # --- Verified decoding ---

    def verify(
        self, window: Window, slots: torch.Tensor, may_fill: torch.Tensor, drafts: torch.Tensor, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Left to right: chooses tokens for `slots` up to the first that is not its draft; says which were chosen.

        A negative draft stands for none. No row keeps logits: a later forward verifies again what could not be chosen
        in step.
        """
        self.take_runs(window, may_fill.sum(-1).tolist(), logits)
        self.read_on(window, drafts.tolist())
        for row in self.rows:
            row.num_reachable = row.num_read
        is_chosen = may_fill & (slots < self.num_read(window)[:, None])
        return self.tokens_at(window, slots.clamp(max=self.max_new_tokens - 1)), is_chosen

    def record_selected(
        self, window: Window, queries: WindowQueries, selected: torch.Tensor, logits: torch.Tensor
    ) -> None:
        self.records.put_selected(window, queries, selected, logits, self.policy.processors)

    # --- Every decoding ---

    def end(self, window: Window, num_reachable: torch.Tensor) -> None:
        """Reads what has become known, ends the rows whose text is complete, and hands final text to the streamer."""
        if not self.policy.left_to_right:
            for row, num in zip(window.batch_rows.tolist(), num_reachable.tolist(), strict=True):
                self.rows[row].num_reachable = num
            self.read_on(window)
        window.num_tokens = self.num_read(window)
        window.alive = window.tokens.new_tensor([row.alive for row in self.rows], dtype=torch.bool)[window.batch_rows]
        if self.stream is not None:
            # A column is final when every row that is alive has a token in it.
            num_read = [row.num_read for row in self.rows if row.alive] or [max(row.num_read for row in self.rows)]
            self.stream.hand_on(self.ids[:, self.prompt_width :], min(num_read), is_alive=self.rows[0].alive)

    def num_read(self, window: Window) -> torch.Tensor:
        return window.tokens.new_tensor([row.num_read for row in self.rows])[window.batch_rows]

    def tokens_at(self, window: Window, slots: torch.Tensor) -> torch.Tensor:
        return self.ids[window.batch_rows].gather(1, self.prompt_width + slots)

    def take_runs(self, window: Window, lengths: list[int], logits: torch.Tensor) -> None:
        """Gives each row the logits of its next tokens, unless it still has some that wait."""
        for i, index in enumerate(window.batch_rows.tolist()):
            row = self.rows[index]
            if row.num_read == row.num_reachable:
                row.logits = logits[i, : lengths[i]].clone()  # a view would keep all logits alive
                row.num_reachable += lengths[i]

    def read_on(self, window: Window, drafts: list[list[int]] | None = None) -> None:
        """Takes every row on, width by width, to what is known of it: chooses tokens and asks the criteria.

        With drafts, the logits of a row are of use as far as it chooses these tokens, and one token further.
        """
        before = [row.num_read for row in self.rows]
        alive = [i for i, row in enumerate(self.rows) if row.alive]
        place = {row: i for i, row in enumerate(window.batch_rows.tolist())}
        first, last = min(self.rows[i].num_read for i in alive), max(self.rows[i].num_reachable for i in alive)
        for slot in range(first, last):
            alive = [i for i in alive if self.rows[i].alive]
            rows = [i for i in alive if self.rows[i].num_read == slot < self.rows[i].num_reachable]
            if self.in_step and rows != alive:
                return
            if not rows:
                continue
            drafts_here = None if drafts is None else [drafts[place[i]][slot - before[i]] for i in rows]
            if self.policy.left_to_right:
                tokens = self.choose(slot, rows, window, place, drafts_here)
            else:
                tokens = window.tokens[[place[i] for i in rows], slot]
            self.read_column(slot, rows, tokens)
            if drafts_here is not None:
                for i, token, draft in zip(rows, tokens.tolist(), drafts_here, strict=True):
                    if token != draft:
                        self.rows[i].num_reachable = self.rows[i].num_read

    def read_column(self, slot: int, rows: list[int], tokens: torch.Tensor) -> None:
        """Puts the tokens of `rows` at `slot` into the text, and asks the criteria which of these rows end there."""
        width = self.prompt_width + slot
        self.ids[rows, width] = tokens
        is_done = self.criteria(self.ids[:, : width + 1].contiguous(), self.records.scores_up_to(slot)).tolist()
        for i in rows:
            row = self.rows[i]
            row.num_read += 1
            row.alive = not is_done[i] and row.num_read < self.max_new_tokens

    def choose(
        self, slot: int, rows: list[int], window: Window, place: dict[int, int], drafts: list[int] | None
    ) -> torch.Tensor:
        """Chooses a token for `slot` in each of `rows`, from the logits that the row keeps."""
        chosen_from = torch.stack([self.rows[i].logits[slot - self.rows[i].num_reachable] for i in rows])
        logits = chosen_from.new_zeros(len(self.ids), chosen_from.shape[-1], dtype=torch.float32)
        logits[rows] = chosen_from.float()
        scores = self.policy.processors(self.ids[:, : self.prompt_width + slot].contiguous(), logits)[rows]
        noise, margin = self.policy.noise, self.policy.acceptance_margin
        tokens, is_possible = choose_tokens(scores, None if noise is None else noise[rows, slot % noise.shape[1]])
        for i, possible in zip(rows, is_possible.tolist(), strict=True):
            if not possible:
                refuse_impossible(i, window.prompt_lengths[place[i]].item() + slot)
        self.records.put(slot, rows, logits=chosen_from, scores=scores)
        if drafts is not None and margin is not None:
            tokens = draft_or_best(scores, tokens.new_tensor(drafts), margin)
        return tokens
