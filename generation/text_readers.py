import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import (
    BaseStreamer,
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    StopStringCriteria,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
    WatermarkLogitsProcessor,
)

from wedlm.generation.position_selection import run_lengths
from wedlm.generation.support import refuse_impossible
from wedlm.generation.token_sampling import draw_tokens, processed
from wedlm.generation.window import Window, WindowQueries

# Processors that read no text, so that one call judges all slots.
PLAIN_PROCESSORS = {
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
}
# Readers known to keep nothing from call to call, so that each row may call for itself.
STATELESS_READERS = PLAIN_PROCESSORS | {
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    StopStringCriteria,
    SuppressTokensAtBeginLogitsProcessor,
    WatermarkLogitsProcessor,
}


def is_stateless(reader: LogitsProcessor | StoppingCriteria) -> bool:
    """One of a caller's own says so itself, by an attribute of this name."""
    return type(reader) in STATELESS_READERS or getattr(reader, "is_stateless", False)


class ScoreColumns:
    """A `[batch, vocabulary]` of scores for every new token, zeros where a row has none."""

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self.columns: list[torch.Tensor] = []

    def put(self, slot: int, rows: list[int], scores: torch.Tensor) -> None:
        while len(self.columns) <= slot:
            self.columns.append(scores.new_zeros(self.batch_size, scores.shape[-1], dtype=torch.float32))
        self.columns[slot][rows] = scores.float()

    def up_to(self, num_tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Those of each row's first `num_tokens`."""
        columns = self.columns[: int(num_tokens.max())]
        return tuple(torch.where((slot < num_tokens)[:, None], column, 0) for slot, column in enumerate(columns))


class TextReaders:
    """The processors, criteria and streamer of a call, and the text of the whole batch, which they read.

    They are called as transformers' own loop calls them: the whole batch, in row order, all rows cut to one width.
    Each row is taken on at its own pace, and a call's result is used for the rows that have come to its width. If any
    reader may keep state from call to call, the rows go `in_step` instead: every width is called for once, in order,
    when all rows that have not ended have come to it; those that are ahead wait.

    If a processor reads text, tokens are chosen `left_to_right`: the slots selected in a forward are cut to a run, and
    each token is chosen from the logits of that forward once those who read know the text before it.
    """

    def __init__(
        self,
        input_ids: torch.LongTensor,
        max_new_tokens: int,
        mask_token_id: int,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        streamer: BaseStreamer | None,
        generation_config: GenerationConfig,
    ):
        batch, self.prompt_width = input_ids.shape
        if batch > 1 and generation_config._pad_token_tensor is None:
            for criterion in criteria:
                if not says_what_the_window_knows(criterion, criteria, generation_config):
                    raise ValueError(
                        "pad_token_id is None, and rows may end at different times by stopping_criteria="
                        f"{type(criterion).__name__!r}; pass pad_token_id=tokenizer.pad_token_id."
                    )
        self.max_new_tokens = max_new_tokens
        self.mask_token_id = mask_token_id
        padding = generation_config._pad_token_tensor
        room = input_ids.new_full((batch, max_new_tokens), 0 if padding is None else padding.item(), dtype=torch.long)
        self.ids = torch.cat([input_ids, room], dim=-1)  # [batch, width + max_new_tokens]
        self.processors, self.criteria, self.streamer = processors, criteria, streamer
        self.do_sample = generation_config.do_sample
        self.left_to_right = any(type(processor) not in PLAIN_PROCESSORS for processor in processors)
        self.in_step = not all(is_stateless(reader) for reader in [*processors, *criteria])
        # Per row of the batch: tokens with no open slot before them (left to right also those yet to be chosen),
        # tokens that the criteria have been asked about, and left to right the logits of the last slots known.
        self.num_known, self.num_read = [0] * batch, [0] * batch
        self.runs: list[torch.Tensor | None] = [None] * batch
        self.alive = [True] * batch
        self.num_streamed = 0
        # What a streamer of one row may take besides put(): what stands behind the final text, a guess in every open
        # slot, as put_draft(tokens), which transformers knows, or as put_window(tokens, filled).
        self.shows_drafts = batch == 1 and any(hasattr(streamer, name) for name in ("put_draft", "put_window"))
        self.draft = None  # [max_new_tokens + 1]: the tokens of the one row, with a guess for every open slot
        asked_for = {"scores": generation_config.output_scores, "logits": generation_config.output_logits}
        returns = generation_config.return_dict_in_generate
        self.records = {name: ScoreColumns(batch) for name, asked in asked_for.items() if returns and asked}

    @classmethod
    def are_needed(
        cls,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        streamer: BaseStreamer | None,
        generation_config: GenerationConfig,
    ) -> bool:
        """Whether a call asks for more than the window can decide by itself."""
        return (
            streamer is not None
            or bool(generation_config.output_scores)
            or bool(generation_config.output_logits)
            or any(type(processor) not in PLAIN_PROCESSORS for processor in processors)
            or not all(says_what_the_window_knows(criterion, criteria, generation_config) for criterion in criteria)
        )

    def choose_run(
        self, window: Window, rows: WindowQueries, selected: torch.Tensor, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Left to right: which slots, of the selected ones, may be filled by now, and a token for each."""
        self.take_runs(window, run_lengths(selected, rows.is_open).tolist(), logits)
        self.read_on(window)
        slots = rows.open_slots.clamp(max=self.max_new_tokens - 1)  # [batch, slots]
        selected = rows.is_open & (slots < self.of_window(self.num_read, window)[:, None])
        return selected, self.ids[window.batch_rows].gather(1, self.prompt_width + slots)

    def note_filled(self, window: Window, rows: WindowQueries, selected: torch.Tensor, logits: torch.Tensor) -> None:
        """Records what was chosen from, and shows a guess for each slot that is still open."""
        if not self.left_to_right:
            self.record_selected(window, rows, selected, logits)
        if self.shows_drafts:
            is_open = rows.is_open[0] & ~selected[0]
            self.guess(window, rows.open_slots[0, is_open], self.without_mask(logits[0, is_open]).argmax(-1))

    def judge(
        self, window: Window, slots: torch.Tensor, may_judge: torch.Tensor, drafts: torch.Tensor, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Chooses tokens for `slots`, up to the first that is not its draft; returns them, and which were chosen.

        Nobody waits with logits: what could not be chosen in step is judged again by a later forward.
        """
        self.take_runs(window, may_judge.sum(-1).tolist(), logits)
        self.read_on(window, drafts.tolist())
        self.num_known = list(self.num_read)
        is_new = may_judge & (slots < self.of_window(self.num_read, window)[:, None])
        columns = self.prompt_width + slots.clamp(max=self.max_new_tokens - 1)
        return self.ids[window.batch_rows].gather(1, columns), is_new

    def without_mask(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.index_fill(-1, self.ids.new_tensor([self.mask_token_id]), -torch.inf)

    def guess(self, window: Window, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """What may come to stand in slots of the one row that a streamer shows."""
        self.draft = window.tokens[0].index_put((slots,), tokens)

    def take_runs(self, window: Window, lengths: list[int], logits: torch.Tensor) -> None:
        """The next tokens of a row are chosen from these logits, unless it has waited and has some to go on with."""
        for i, row in enumerate(window.batch_rows.tolist()):
            if self.num_read[row] == self.num_known[row]:
                self.runs[row] = logits[i, : lengths[i]].clone()  # or it would keep all logits alive
                self.num_known[row] += lengths[i]

    def end(self, window: Window, num_known: torch.Tensor) -> None:
        """Ends the rows of the window whose text is complete, as far as it has been read; so much of it is known."""
        if not self.left_to_right:
            for row, num in zip(window.batch_rows.tolist(), num_known.tolist(), strict=True):
                self.num_known[row] = num
            self.read_on(window)
        window.num_tokens = self.of_window(self.num_read, window)
        window.alive = self.of_window(self.alive, window)
        if self.streamer is not None:
            self.stream(window)

    def of_window(self, values: list, window: Window) -> torch.Tensor:
        return torch.tensor(values, device=window.start.device)[window.batch_rows]

    def read_on(self, window: Window, drafts: list[list[int]] | None = None) -> None:
        """Takes every row on, width by width, to what is known of it: chooses tokens and asks the criteria.

        With drafts, each row's logits are of use as far as it chooses these tokens, and one more.
        """
        before = list(self.num_read)
        alive = [row for row, is_alive in enumerate(self.alive) if is_alive]
        index = {row: i for i, row in enumerate(window.batch_rows.tolist())}
        for slot in range(min(self.num_read[row] for row in alive), max(self.num_known[row] for row in alive)):
            alive = [row for row in alive if self.alive[row]]
            rows = [row for row in alive if self.num_read[row] == slot < self.num_known[row]]
            if self.in_step and rows != alive:
                return
            if not rows:
                continue
            if self.left_to_right:
                tokens = self.choose(slot, rows, window, index)
            else:
                tokens = window.tokens[[index[row] for row in rows], slot]
            width = self.prompt_width + slot
            self.ids[rows, width] = tokens
            scores = tuple(self.records["scores"].columns[: slot + 1]) if "scores" in self.records else None
            is_done = self.criteria(self.ids[:, : width + 1].contiguous(), scores).tolist()
            for row, token in zip(rows, tokens.tolist(), strict=True):
                self.num_read[row] += 1
                if drafts is not None and self.num_read[row] < self.num_known[row]:
                    if token != drafts[index[row]][slot - before[row]]:
                        self.num_known[row] = self.num_read[row]
                self.alive[row] = not is_done[row] and self.num_read[row] < self.max_new_tokens

    def choose(self, slot: int, rows: list[int], window: Window, index: dict[int, int]) -> torch.Tensor:
        """A token for `slot` in each of `rows`, from the logits of their runs."""
        chosen_from = torch.stack([self.runs[row][slot - self.num_known[row]] for row in rows])
        logits = chosen_from.new_zeros(len(self.ids), chosen_from.shape[-1], dtype=torch.float32)
        logits[rows] = chosen_from.float()
        scores = self.processors(self.ids[:, : self.prompt_width + slot].contiguous(), logits)[rows]
        tokens, is_possible = draw_tokens(scores, self.do_sample)
        for row, possible in zip(rows, is_possible.tolist(), strict=True):
            if not possible:
                refuse_impossible(row, window.prompt_lengths[index[row]].item() + slot)
        self.record(slot, rows, logits=chosen_from, scores=scores)
        return tokens

    def record(self, slot: int, rows: list[int], **values: torch.Tensor) -> None:
        for name, columns in self.records.items():
            columns.put(slot, rows, values[name])

    def record_selected(
        self, window: Window, rows: WindowQueries, selected: torch.Tensor, logits: torch.Tensor
    ) -> None:
        if not self.records:
            return
        where = selected.nonzero()
        batch_rows, slots = window.batch_rows[where[:, 0]], rows.open_slots[tuple(where.T)]
        logits = logits[tuple(where.T)]  # [selected, vocabulary]
        scores = processed(logits, self.processors)
        for i, (row, slot) in enumerate(zip(batch_rows.tolist(), slots.tolist(), strict=True)):
            self.record(slot, [row], logits=logits[i], scores=scores[i])

    def recorded(self, num_tokens: torch.Tensor) -> dict[str, tuple[torch.Tensor, ...]]:
        return {name: columns.up_to(num_tokens) for name, columns in self.records.items()}

    def stream(self, window: Window) -> None:
        """Hands on what is final: of one row the new tokens at once, of several each column that all have come to."""
        num_final = min((n for n, alive in zip(self.num_read, self.alive, strict=True) if alive), default=None)
        num_final = max(self.num_read) if num_final is None else num_final
        new = self.ids[:, self.prompt_width + self.num_streamed : self.prompt_width + num_final].cpu()
        if new.shape[1] > 0:
            for tokens in new if len(new) == 1 else new.T.contiguous():
                self.streamer.put(tokens)
        self.num_streamed = num_final
        if self.shows_drafts and self.alive[0]:
            tokens = self.draft[num_final : window.end[0]].cpu()
            if hasattr(self.streamer, "put_window"):
                self.streamer.put_window(tokens, window.filled[0, num_final : window.end[0]].cpu())
            else:
                self.streamer.put_draft(tokens)


def says_what_the_window_knows(
    criterion: StoppingCriteria, criteria: StoppingCriteriaList, generation_config: GenerationConfig
) -> bool:
    """Whether a criterion is the length limit or that of eos_token_id; the caller may pass others of these types."""
    if type(criterion) is MaxLengthCriteria:
        return criterion.max_length >= criteria.max_length
    if type(criterion) is EosTokenCriteria and generation_config._eos_token_tensor is not None:
        return set(criterion.eos_token_id.tolist()) == set(generation_config._eos_token_tensor.tolist())
    return False
