"""The callbacks of a call: processors, criteria and streamers see the text as transformers' own loop shows it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    generation,
)
from transformers.generation import BaseStreamer

from wedlm.generation.sampling import (
    PLAIN_PROCESSORS,
    are_possible,
    draft_or_best,
    processed,
    reads_no_text,
    refuse_impossible,
    without_mask,
)
from wedlm.generation.sequences import Queries, Sequences, Settings
from wedlm.generation.transformers_internals import end_tokens_of, pad_token_of

# Callbacks that keep nothing from call to call, so that every row may go at its own pace.
STATELESS_CALLBACKS = PLAIN_PROCESSORS | {
    generation.EncoderNoRepeatNGramLogitsProcessor,
    generation.EncoderRepetitionPenaltyLogitsProcessor,
    generation.EosTokenCriteria,
    generation.ExponentialDecayLengthPenalty,
    generation.ForcedBOSTokenLogitsProcessor,
    generation.ForcedEOSTokenLogitsProcessor,
    generation.MaxLengthCriteria,
    generation.MaxTimeCriteria,
    generation.MinLengthLogitsProcessor,
    generation.MinNewTokensLengthLogitsProcessor,
    generation.NoBadWordsLogitsProcessor,
    generation.NoRepeatNGramLogitsProcessor,
    generation.RepetitionPenaltyLogitsProcessor,
    generation.SequenceBiasLogitsProcessor,
    generation.StopStringCriteria,
    generation.SuppressTokensAtBeginLogitsProcessor,
    generation.WatermarkLogitsProcessor,
}


def is_stateless(callback: LogitsProcessor | StoppingCriteria) -> bool:
    """Whether a callback keeps nothing from call to call; a caller's own says so by an attribute of this name."""
    return type(callback) in STATELESS_CALLBACKS or getattr(callback, "is_stateless", False)


def steps_decide(
    criterion: StoppingCriteria, criteria: StoppingCriteriaList, generation_config: GenerationConfig
) -> bool:
    """Whether a criterion is the length limit or eos_token_id, which steps see to by themselves.

    The caller may pass other criteria of these two types; they are asked like any other.
    """
    if type(criterion) is generation.MaxLengthCriteria:
        return criterion.max_length >= criteria.max_length
    if type(criterion) is generation.EosTokenCriteria and (end_tokens := end_tokens_of(generation_config)) is not None:
        return set(criterion.eos_token_id.tolist()) == set(end_tokens.tolist())
    return False


def are_needed(
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    streamer: BaseStreamer | None,
    generation_config: GenerationConfig,
) -> bool:
    """Whether a call asks for anything that steps cannot decide by themselves."""
    return (
        streamer is not None
        or bool(generation_config.output_scores or generation_config.output_logits)
        or not all(map(reads_no_text, processors))
        or not all(steps_decide(criterion, criteria, generation_config) for criterion in criteria)
    )


@dataclass
class RowProgress:
    """How far one row of the batch has come."""

    num_reachable: int = 0  # Tokens that may be read: those without a gap or, left to right, those with logits.
    num_read: int = 0  # Tokens that the criteria have been asked about.
    logits: Tensor | None = None  # Left to right, [n, vocabulary]: of the last n slots before `num_reachable`.
    alive: bool = True


class Callbacks:
    """The text of the whole batch, and what reads it: processors, criteria, a streamer, records of scores.

    They are called as transformers' own loop calls them: with the whole batch, in row order, all rows cut to one
    width. Each row goes at its own pace, and the result of a call counts for the rows that have come to its width. If
    any of them may keep state from call to call, the rows go `in_step`: a width is called for once, in order, when all
    rows that are alive have come to it. Rows that are ahead wait.

    If a processor reads text (`Settings.processors_read_text`), tokens are chosen left to right: the slots that a
    forward selects are cut to a run, and each token is chosen from the logits of that forward once the text before it
    is known.
    """

    def __init__(
        self,
        input_ids: torch.LongTensor,
        max_new_tokens: int,
        settings: Settings,
        criteria: StoppingCriteriaList,
        streamer: BaseStreamer | None,
        generation_config: GenerationConfig,
    ):
        batch, self.prompt_width = input_ids.shape
        pad_token = pad_token_of(generation_config)
        if batch > 1 and pad_token is None:
            for criterion in criteria:
                if not steps_decide(criterion, criteria, generation_config):
                    raise ValueError(
                        "pad_token_id is None, and rows may end at different times by stopping_criteria="
                        f"{type(criterion).__name__!r}; pass pad_token_id=tokenizer.pad_token_id."
                    )
        padding = 0 if pad_token is None else pad_token.item()
        room = input_ids.new_full((batch, max_new_tokens), padding, dtype=torch.long)
        self.ids = torch.cat([input_ids, room], dim=-1)  # [batch, width + max_new_tokens]
        self.settings, self.criteria = settings, criteria
        self.in_step = not all(map(is_stateless, [*settings.processors, *criteria]))
        self.rows = [RowProgress() for _ in range(batch)]
        self.records = ScoreRecords(batch, generation_config)
        self.stream = None if streamer is None else TextStream(streamer, batch)

    @property
    def max_new_tokens(self) -> int:
        return self.ids.shape[1] - self.prompt_width

    @property
    def shows_guesses(self) -> bool:
        return self.stream is not None and self.stream.shows_guesses

    # --- Streaming and blockwise decoding ---

    def note_filled(
        self, sequences: Sequences, filled: Tensor, queries: Queries, selected: Tensor, logits: Tensor
    ) -> None:
        """Records what the filled slots were chosen from, and shows a guess for each slot that is still open."""
        if not self.settings.processors_read_text:
            self.records.put_selected(sequences, queries, selected, logits, self.settings.processors)
        if self.shows_guesses:
            is_open = queries.is_predicted[0] & ~selected[0]
            guesses = without_mask(logits[0, is_open], self.settings.mask_token_id).argmax(-1)
            tokens = sequences.tokens[0].index_put((queries.predicted_slots[0, is_open],), guesses)
            end = sequences.num_committed[0] + sequences.num_queries[0]
            self.stream.guess(tokens[:end], filled[0, :end].clone())

    # --- Every decoding ---

    def choose_run(
        self, sequences: Sequences, slots: Tensor, lengths: Tensor, logits: Tensor, drafts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Left to right: chooses tokens for the first `lengths` `[batch]` of `slots`, as far as rows may go.

        With `drafts`, of which a negative one stands for none, it stops behind the first token that is not its draft,
        and no row keeps logits: a later forward pass verifies again what could not be chosen in step.

        Returns:
            `tuple[torch.LongTensor, torch.BoolTensor]`: The tokens, and which slots have one by now.
        """
        for i, (number, length) in enumerate(zip(sequences.number.tolist(), lengths.tolist(), strict=True)):
            row = self.rows[number]
            if row.num_read == row.num_reachable:  # (Others still have logits that wait.)
                row.logits = logits[i, :length].clone()  # a view would keep all logits alive
                row.num_reachable += length
        self.read_on(sequences, None if drafts is None else drafts.tolist())
        if drafts is not None:
            for row in self.rows:
                row.num_reachable = row.num_read
        places = self.prompt_width + slots.clamp(max=self.max_new_tokens - 1)
        return self.ids[sequences.number].gather(1, places), slots < self.num_read(sequences)[:, None]

    def ended(self, sequences: Sequences, num_new: Tensor) -> Sequences:
        """Reads what has become known, and ends the sequences whose text is complete."""
        if not self.settings.processors_read_text:
            num_reachable = sequences.num_final + num_new
            for row, num in zip(sequences.number.tolist(), num_reachable.tolist(), strict=True):
                self.rows[row].num_reachable = num
            self.read_on(sequences)
        is_alive = sequences.tokens.new_tensor([row.alive for row in self.rows], dtype=torch.bool)[sequences.number]
        return sequences._replace(num_tokens=self.num_read(sequences), is_alive=is_alive)

    def report(self, guesses: Callable[[], tuple[Tensor, Tensor] | None]) -> None:
        """Hands final text to the streamer, and the guesses behind it."""
        if self.stream is not None:
            if self.shows_guesses and self.rows[0].alive and (shown := guesses()) is not None:
                self.stream.guess(*shown)
            # A column is final when every row that is alive has a token in it.
            num_read = [row.num_read for row in self.rows if row.alive] or [max(row.num_read for row in self.rows)]
            self.stream.hand_on(self.ids[:, self.prompt_width :], min(num_read), is_alive=self.rows[0].alive)

    def num_read(self, sequences: Sequences) -> Tensor:
        return sequences.tokens.new_tensor([row.num_read for row in self.rows])[sequences.number]

    def read_on(self, sequences: Sequences, drafts: list[list[int]] | None = None) -> None:
        """Takes every row on, width by width, to what is known of it: chooses tokens and asks the criteria.

        With drafts, a row stops after the first token that is not its draft: later logits followed a wrong one.
        """
        first_slots = [row.num_read for row in self.rows]  # of the first column of drafts
        alive = [i for i, row in enumerate(self.rows) if row.alive]
        row_of = {row: i for i, row in enumerate(sequences.number.tolist())}
        first, last = min(self.rows[i].num_read for i in alive), max(self.rows[i].num_reachable for i in alive)
        for slot in range(first, last):
            alive = [i for i in alive if self.rows[i].alive]
            rows = [i for i in alive if self.rows[i].num_read == slot < self.rows[i].num_reachable]
            if self.in_step and rows != alive:
                return
            if not rows:
                continue
            drafts_here = None if drafts is None else [drafts[row_of[i]][slot - first_slots[i]] for i in rows]
            if self.settings.processors_read_text:
                tokens = self.choose(slot, rows, sequences, row_of, drafts_here)
            else:
                tokens = sequences.tokens[[row_of[i] for i in rows], slot]
            self.read_column(slot, rows, tokens)
            if drafts_here is not None:
                for i, token, draft in zip(rows, tokens.tolist(), drafts_here, strict=True):
                    if token != draft:
                        self.rows[i].num_reachable = self.rows[i].num_read

    def read_column(self, slot: int, rows: list[int], tokens: Tensor) -> None:
        """Puts the tokens of `rows` at `slot` into the text, and asks the criteria which of these rows end there."""
        width = self.prompt_width + slot
        self.ids[rows, width] = tokens
        columns = self.records.columns.get("scores")
        scores = None if columns is None else tuple(columns[: slot + 1])
        is_done = self.criteria(self.ids[:, : width + 1].contiguous(), scores).tolist()
        for i in rows:
            row = self.rows[i]
            row.num_read += 1
            row.alive = not is_done[i] and row.num_read < self.max_new_tokens

    def choose(
        self, slot: int, rows: list[int], sequences: Sequences, row_of: dict[int, int], drafts: list[int] | None
    ) -> Tensor:
        """Chooses a token for `slot` in each of `rows`, from the logits that the row keeps."""
        # (A negative index, counted from the end.)
        chosen_from = torch.stack([self.rows[i].logits[slot - self.rows[i].num_reachable] for i in rows])
        logits = chosen_from.new_zeros(len(self.ids), chosen_from.shape[-1], dtype=torch.float32)
        logits[rows] = chosen_from.float()
        scores = self.settings.processors(self.ids[:, : self.prompt_width + slot].contiguous(), logits)[rows]
        drawn = self.settings.noise
        noise = None if drawn is None else drawn.values[rows, slot % drawn.values.shape[1]]
        best, tokens = (scores.float() if noise is None else scores.float() + noise).max(-1)
        for i, possible in zip(rows, are_possible(best).tolist(), strict=True):
            if not possible:
                refuse_impossible(i, int(sequences.prompt_lengths[row_of[i]]) + slot)
        self.records.put(slot, rows, logits=chosen_from, scores=scores)
        if drafts is not None and self.settings.rule.margin is not None:
            tokens = draft_or_best(scores, tokens.new_tensor(drafts), self.settings.rule.margin)
        return tokens


class ScoreRecords:
    """A `[batch, vocabulary]` of scores, of logits, or of both for each new token; zeros behind a row's end."""

    def __init__(self, batch_size: int, generation_config: GenerationConfig):
        asked_for = {"scores": generation_config.output_scores, "logits": generation_config.output_logits}
        returns = generation_config.return_dict_in_generate
        self.batch_size = batch_size
        self.columns: dict[str, list[Tensor]] = {name: [] for name, asked in asked_for.items() if returns and asked}

    def put(self, slot: int, rows: list[int], **values: Tensor) -> None:
        """Records `scores` and `logits`, `[rows, vocabulary]` each, of one slot."""
        for name, columns in self.columns.items():
            value = values[name].float()
            while len(columns) <= slot:
                columns.append(value.new_zeros(self.batch_size, value.shape[-1]))
            columns[slot][rows] = value

    def put_selected(
        self, sequences: Sequences, queries: Queries, selected: Tensor, logits: Tensor, processors
    ) -> None:
        """Records what the tokens of the selected slots were chosen from."""
        if not self.columns:
            return
        where = selected.nonzero()
        rows, slots = sequences.number[where[:, 0]], queries.predicted_slots[tuple(where.T)]
        logits = logits[tuple(where.T)]  # [selected, vocabulary]
        scores = processed(logits, processors)
        for i, (row, slot) in enumerate(zip(rows.tolist(), slots.tolist(), strict=True)):
            self.put(slot, [row], logits=logits[i], scores=scores[i])

    def of_text(self, num_tokens: Tensor) -> dict[str, tuple[Tensor, ...]]:
        """The records of each row's first `num_tokens` tokens, by name."""
        longest = int(num_tokens.max())
        return {
            name: tuple(
                torch.where((slot < num_tokens)[:, None], column, 0) for slot, column in enumerate(columns[:longest])
            )
            for name, columns in self.columns.items()
        }


class TextStream:
    """Hands a streamer the text that has become final.

    A streamer of one row may show guesses too, by one of two methods besides `put`: `put_draft(tokens)`, which
    transformers' own streamer has, or `put_window(tokens, filled)`. It gets the tokens behind the final text, with a
    guess in each open slot.
    """

    def __init__(self, streamer: BaseStreamer, batch_size: int):
        self.streamer = streamer
        self.shows_guesses = batch_size == 1 and any(hasattr(streamer, name) for name in ("put_draft", "put_window"))
        self.num_streamed = 0
        # Tokens, and whether each is filled, of the one row up to the window's end.
        self.guesses: tuple[Tensor, Tensor] | None = None

    def guess(self, tokens: Tensor, filled: Tensor) -> None:
        """Keeps tokens of the one row, guesses among them, until its final text has been handed on."""
        self.guesses = tokens, filled

    def hand_on(self, new_tokens: Tensor, num_final: int, is_alive: bool) -> None:
        """Hands on `[batch, slots]` new tokens up to `num_final`: a single row at once, several column by column."""
        new = new_tokens[:, self.num_streamed : num_final].cpu()
        if new.shape[1] > 0:
            for tokens in new if len(new) == 1 else new.T.contiguous():
                self.streamer.put(tokens)
        self.num_streamed = num_final
        if self.guesses is not None and is_alive:
            tokens, filled = (values[num_final:].cpu() for values in self.guesses)
            if hasattr(self.streamer, "put_window"):
                self.streamer.put_window(tokens, filled)
            else:
                self.streamer.put_draft(tokens)
