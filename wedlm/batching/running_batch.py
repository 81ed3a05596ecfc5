"""The rows of many requests in one running batch: each request decodes as a call of generate() would decode it."""

import math
from collections import deque
from collections.abc import Container, Hashable, Iterable
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from wedlm.batching.free_memory import is_out_of_memory, where_memory_allows
from wedlm.batching.prefix_cache import CachedText, PrefixCache, num_common
from wedlm.batching.prepared_call import PreparedCall
from wedlm.batching.settings_group import BatchRow, RowOutput, SettingsGroup, merged
from wedlm.batching.shared_cache import SharedCache
from wedlm.generation.decoding import forward_queries
from wedlm.generation.validation import named_weights
from wedlm.generation.window import Text, WindowQueries

SCORES = 4  # of each query and token, in float32, that are there at a time
MOST_PREFILLS = 8  # forwards over prompts between two steps


@dataclass(eq=False)
class PrefillRequest:
    """A row whose prompt is still to be read, or its rest.

    Args:
        name (`Hashable`): Its name.
        call (`PreparedCall`): The request.
        group (`SettingsGroup`, *optional*): Its group, once it has a place in the cache.
    """

    name: Hashable
    call: PreparedCall
    group: SettingsGroup | None = None


@dataclass
class BatchCounts:
    """What a running batch has done so far.

    Args:
        steps (`int`): Its forwards that bring tokens: over rows that decode, and over the ends of prompts.
        tokens (`int`): The tokens of the texts that it has written.
        row_forwards (`int`): The forwards of each row, added up.
        prompt_tokens (`int`): The tokens of the prompts that were read.
        found_tokens (`int`): Those of them whose keys and values were there.
    """

    steps: int = 0
    tokens: int = 0
    row_forwards: int = 0
    prompt_tokens: int = 0
    found_tokens: int = 0


class RunningBatch:
    """Rows that join and leave while the batch goes on.

    A row gets a place in the cache that all rows share, and its prompt is read into it between the steps of the
    others: a long one in chunks, several short ones in one forward. With the end of its prompt a row takes its first
    step. Then it joins a group, and from then on one forward takes all rows on.

    Args:
        model (`PreTrainedModel`): The model.
        max_cached_tokens (`int`): The most tokens whose keys and values are in memory, counted with the room that
            shorter rows leave unused.
        chunk_size (`int`): The most tokens of prompts that a forward reads, counted with the padding of shorter ones.
        caches_texts (`bool`, *optional*, defaults to `True`): Whether keys and values of texts that have ended stay
            for the next ones with the same beginning, while they fit.
        max_work_bytes (`float`, *optional*): The most bytes of noise and scores.
        fixed_shapes (`bool`, *optional*, defaults to `False`): Whether each row has forwards of its own and takes over
            no keys and values, so that equal requests have forwards of equal shapes, whoever else is there.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        max_cached_tokens: int,
        chunk_size: int,
        caches_texts: bool = True,
        max_work_bytes: float = math.inf,
        fixed_shapes: bool = False,
    ):
        self.model, self.max_cached_tokens, self.chunk_size = model, max_cached_tokens, chunk_size
        self.caches_texts, self.max_work_bytes = caches_texts and not fixed_shapes, max_work_bytes
        self.fixed_shapes = fixed_shapes
        self.device = torch.device("cpu") if model.device.type == "meta" else model.device
        self.cache = SharedCache(self.device)
        self.groups: list[SettingsGroup] = []
        self.prefills: deque[PrefillRequest] = deque()
        self.last_was_long = False  # whether a long prompt was read last
        self.num_prefills = 0  # since the last step
        self.prefix_cache = PrefixCache()
        self.counts = BatchCounts()

    # --- Rows ---

    @property
    def rows(self) -> list[BatchRow]:
        """The rows that decode."""
        return rows_of(self.groups)

    @property
    def placed_rows(self) -> list[BatchRow]:
        """The rows that have a place in the cache: those that decode, and those whose prompts are read in part."""
        return rows_of([*self.groups, *(each.group for each in self.prefills if each.group is not None)])

    @property
    def num_rows(self) -> int:
        return len(self.rows) + len(self.prefills)

    def can_admit(self, call: PreparedCall) -> bool:
        """Whether the cache and the memory for noise and scores have room for one more row."""
        is_in_cache = self.num_tokens_with(call) <= self.max_cached_tokens
        return is_in_cache and self.work_bytes_with(call) <= self.max_work_bytes

    def num_tokens_with(self, *calls: PreparedCall) -> int:
        """The cached tokens that all rows may take with these ones."""
        coming = [each.call for each in self.prefills if each.group is None]
        return self.cache.num_tokens_with([call.budget for call in (*coming, *calls)])

    def work_bytes_with(self, *calls: PreparedCall) -> int:
        """The bytes of the noise and the scores of all rows with these ones, in a forward of the most queries."""
        calls = [*(each.call for each in self.prefills if each.group is None), *calls]
        noise = sum(each.noise_bytes for each in (*self.placed_rows, *calls))
        queries = [budget.queries for budget in (*self.cache.budgets, *(call.budget for call in calls))]
        return noise + len(queries) * scores_bytes(self.model, max(queries, default=0))

    def add(self, name: Hashable, call: PreparedCall) -> None:
        """Adds the row of a call that `can_admit` has admitted."""
        self.prefills.append(PrefillRequest(name, call))
        self.prefix_cache.shrink(self.max_cached_tokens - self.num_tokens_with())

    def drop(self, name: Hashable) -> None:
        """Drops a row, wherever it is."""
        self.leave({name})

    def leave(self, names: Container[Hashable]) -> None:
        """Drops rows, and the groups that have none then."""
        places = [row.place for row in self.placed_rows if row.name in names]
        self.prefills = deque(each for each in self.prefills if each.name not in names)
        for group in self.groups:
            group.leave(names)
        self.groups = [group for group in self.groups if group.rows]
        self.free_rows(places)

    def free_rows(self, places: list[int]) -> None:
        """Gives places of the cache back, where no row is any more."""
        order = self.cache.leave(places)
        for row in self.placed_rows:
            row.place = order.index(row.place)

    def clear_prefix_cache(self) -> None:
        """Takes over no keys and values of before: the weights may be others now."""
        self.prefix_cache.shrink(0)
        for row in self.placed_rows:
            row.is_reusable = False

    # --- Steps ---

    def step(self) -> list[RowOutput]:
        """Reads prompts by one forward, and takes all rows on by another; returns what that has brought the rows.

        Where several prompts wait, the rows wait for as many forwards over prompts, up to MOST_PREFILLS.
        """
        outputs = self.prefill()
        self.num_prefills += 1
        if self.groups and self.num_prefills >= min(len(self.prefills), MOST_PREFILLS):
            self.num_prefills = 0
            outputs += self.take_step()
        return outputs

    def take_step(self) -> list[RowOutput]:
        """Takes all rows on by one forward. Where memory is refused, one row after the other fails, the longest first,
        until the forward of the others has enough.
        """
        failed = []
        while self.groups:
            try:
                return failed + self.take_step_together()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failed += self.evict(error.with_traceback(None))  # whose frames hold the memory
        return failed

    def evict(self, error: Exception) -> list[RowOutput]:
        """Frees memory: that of the prefix cache or, where it is empty, that of a row, which fails."""
        failed = []
        if self.prefix_cache.texts:
            self.prefix_cache.shrink(0)
        else:
            row = max(self.rows, key=lambda row: self.cache.budgets[row.place].text)
            self.leave({row.name})
            failed = [RowOutput(row.name, [], True, error)]
        with where_memory_allows():
            self.cache.shrink_to_fit()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return failed

    def take_step_together(self) -> list[RowOutput]:
        if self.fixed_shapes:
            return self.take_steps_alone()
        rows = self.rows
        num_rows = 1 + max(row.place for row in rows)  # The row of a prompt that is being read is mostly behind them.
        longest = max(row.num_committed for row in rows)
        self.cache.show(0, num_rows)
        outputs = self.step_groups(self.groups, [group.queries() for group in self.groups], longest)
        self.finish_step(outputs)
        return outputs

    def take_steps_alone(self) -> list[RowOutput]:
        """Takes each row on by a forward of its own."""
        outputs = []
        for group in self.groups:
            (row,) = group.rows
            self.cache.show(row.place, row.place + 1)
            try:
                outputs += self.step_groups([group], [group.queries()], row.num_committed)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                outputs.append(RowOutput(row.name, [], True, error.with_traceback(None)))
        self.finish_step(outputs)
        return outputs

    def step_groups(
        self, groups: list[SettingsGroup], queries: list[WindowQueries], longest: int, text: Text | None = None
    ) -> list[RowOutput]:
        """Takes the rows of groups on by one forward over the rows that the cache shows.

        Args:
            groups (`list[SettingsGroup]`): The groups.
            queries (`list[WindowQueries]`): The queries of each group.
            longest (`int`): The most entries that one of the rows has in the cache.
            text (`Text`, *optional*): The ends of the prompts, in the first step.
        """
        places = [places_of(group, self.cache.shown.start, self.device) for group in groups]
        all_queries = spread(queries, places, len(self.cache.lengths))
        if text is not None:
            all_queries = all_queries.behind(text)
        for group in groups:
            group.draw_noise()
        logits = forward_queries(self.model, all_queries, self.cache, longest + all_queries.input_ids.shape[1])
        num_kept = torch.zeros_like(self.cache.lengths) if text is None else text.lengths.clone()
        reports, outputs = [], []
        for group, own, at in zip(groups, queries, places, strict=True):
            try:
                kept, report = self.move_on(group, own, logits[at, : own.logits_indices.shape[1]])
            except Exception as error:
                if group.callbacks is None and not is_out_of_memory(error):
                    raise
                outputs += [RowOutput(row.name, [], True, error) for row in group.rows]  # They fail alone.
                continue
            num_kept[at] += kept
            reports.append((group, report))
        self.cache.commit(num_kept)
        width = max((report.shape[1] for _, report in reports), default=0)
        padded = [pad(report, (0, width - report.shape[1])) for _, report in reports]
        values = torch.cat(padded).tolist() if padded else []  # waits for the device, the only time
        for group, _ in reports:
            outputs += group.read_report(values[: len(group.rows)], self.model)
            values = values[len(group.rows) :]
        return outputs

    def move_on(
        self, group: SettingsGroup, own: WindowQueries, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the rows of a group on. Where memory is refused, once more without the prefix cache."""
        num_rows = 1 if self.fixed_shapes else self.cache.num_rows
        window = copy(group.window)  # Its tensors are replaced, or get the same values again.
        with named_weights(self.model):
            try:
                return group.move_on(own, logits, num_rows)
            except Exception as error:
                # (Callbacks cannot be called again.)
                if not is_out_of_memory(error) or not self.prefix_cache.texts or group.callbacks is not None:
                    raise
            group.window = window
            self.prefix_cache.shrink(0)
            return group.move_on(own, logits, num_rows)

    def finish_step(self, outputs: list[RowOutput]) -> None:
        """Counts what a step has brought. Rows that have ended leave."""
        self.counts.steps += 1
        self.counts.row_forwards += len(outputs)
        self.counts.tokens += sum(len(each.tokens) for each in outputs)
        ended = {each.name: each for each in outputs if each.has_ended}
        if not ended:
            return
        for group in self.groups:
            for row in group.rows:
                if row.name in ended and ended[row.name].error is None:
                    with where_memory_allows():
                        self.cache_text(row)
        self.leave(ended)

    def cache_text(self, row: BatchRow) -> None:
        """Copies the keys and values of a row into the prefix cache, if they fit."""
        number = min(row.num_committed, len(row.tokens))
        most = self.max_cached_tokens - self.num_tokens_with()
        if not (self.caches_texts and row.is_reusable and 0 < number <= most):
            return
        if number > self.max_cached_tokens - self.cache.num_tokens:
            self.cache.shrink_to_fit()
        most = min(most, self.max_cached_tokens - self.cache.num_tokens)
        if number <= most:
            layers = [tuple(each.clone() for each in states) for states in self.cache.entries_of(row.place, number)]
            self.prefix_cache.keep(CachedText(row.tokens[:number], layers), most)

    # --- Prompts ---

    def prefill(self) -> list[RowOutput]:
        """Reads a chunk of a long prompt, or several short prompts whole, whose rows take their first step."""
        return self.read_or_fail(self.next_prefills()) if self.prefills else []

    def next_prefills(self) -> list[PrefillRequest]:
        """The first long prompt, or short ones that one forward reads whole: one kind after the other.

        A prompt is long if it has more uncached tokens than a forward reads. Only one long prompt is read at a time,
        since its row takes up a place in the cache before it decodes.
        """
        num_uncached, most = cache(self.num_uncached), self.chunk_size  # Each prompt is padded up once.
        coming = [each for each in self.prefills if each.group is None]
        long = [each for each in self.prefills if each.group is not None]
        if not long:
            longs = (each for each in coming if len(each.call.tokens) > most and num_uncached(each) > most)
            long = list(islice(longs, 1))
        short = self.short_prefills((each, num_uncached(each)) for each in coming if num_uncached(each) <= most)
        self.last_was_long = bool(long) and not (short and self.last_was_long)
        return long if self.last_was_long else short

    def num_uncached(self, each: PrefillRequest) -> int:
        """The tokens of a prompt whose keys and values are not cached."""
        return len(each.call.tokens) - self.cached_prefix(each.call.tokens)[0]

    def short_prefills(self, coming: Iterable[tuple[PrefillRequest, int]]) -> list[PrefillRequest]:
        """The first short prompts, as many as one forward reads; each comes with its number of uncached tokens."""
        requests, longest, begin, longest_text = [], 0, 0, 0
        for each, size in coming:
            longest, begin = max(longest, size), max(begin, len(each.call.tokens) - size)
            longest_text = max(longest_text, each.call.budget.text)
            if (len(requests) + 1) * longest > self.chunk_size or begin + longest > longest_text:
                break
            if requests and self.fixed_shapes:
                break
            requests.append(each)
        return requests

    def read_or_fail(self, requests: list[PrefillRequest]) -> list[RowOutput]:
        """Reads prompts in one forward. If that fails, each is read alone, so that only those fail which must.

        A row whose text somebody reads fails at once, for a reader cannot be asked again.
        """
        try:
            outputs = self.prefill_together(requests)
        except Exception as error:
            if is_out_of_memory(error):
                error = error.with_traceback(None)  # whose frames hold memory
                self.prefix_cache.shrink(0)
            places = [row.place for row in rows_of([each.group for each in requests if each.group is not None])]
            for each in requests:
                each.group = None
            self.free_rows(places)
            failing = [each for each in requests if len(requests) == 1 or each.call.call.has_callbacks]
            self.leave({each.name for each in failing})
            outputs = [RowOutput(each.name, [], True, error) for each in failing]
            for each in requests:
                outputs += [] if each in failing else self.read_or_fail([each])
            return outputs
        if outputs:
            self.finish_step(outputs)
        return outputs

    def prefill_together(self, requests: list[PrefillRequest]) -> list[RowOutput]:
        """Reads the prompts of rows whole, and lets the rows join groups; of a long prompt reads a chunk."""
        if requests[0].group is None:
            self.open(requests)
        rows = rows_of([each.group for each in requests])
        longest, text = max(row.num_committed for row in rows), next_text(rows, self.chunk_size, self.device)
        for row in rows:
            row.num_committed = min(row.num_committed + self.chunk_size, row.prompt_length)
        self.cache.show(rows[0].place, rows[0].place + len(rows))
        if rows[0].num_committed < rows[0].prompt_length:
            forward_queries(self.model, WindowQueries.of_text(text), self.cache, longest + text.tokens.shape[1])
            self.cache.commit(text.lengths)
            return []
        groups = merged([each.group for each in requests])
        outputs = self.step_groups(groups, [group.first_queries() for group in groups], longest, text)
        self.groups = merged(self.groups + groups)
        self.prefills = deque(each for each in self.prefills if each not in requests)
        return outputs

    def open(self, requests: list[PrefillRequest]) -> None:
        """Gives rows their groups and places, and the cached keys and values of their prompts' beginnings."""
        budgets, num_others = [each.call.budget for each in requests], self.cache.num_rows
        groups = [SettingsGroup.of(each.name, place, each.call) for place, each in enumerate(requests, num_others)]
        self.cache.join(budgets, self.max_cached_tokens - self.prefix_cache.num_tokens)
        for each, group in zip(requests, groups, strict=True):
            each.group = group
        for row in rows_of(groups):
            row.num_committed, layers = self.cached_prefix(row.tokens, is_used=True)
            if row.num_committed > 0:
                self.cache.begin_row(row.place, layers, row.num_committed)
            self.counts.prompt_tokens += row.prompt_length
            self.counts.found_tokens += row.num_committed

    def cached_prefix(
        self, tokens: list[int], is_used: bool = False
    ) -> tuple[int, list[tuple[torch.Tensor, torch.Tensor]]]:
        """How many tokens at the beginning of a prompt are cached, at most all but its last one, and keys and values
        that begin with theirs.
        """
        if self.fixed_shapes:
            return 0, []
        tokens = tokens[:-1]
        num_found, text = self.prefix_cache.longest_prefix(tokens, is_used)
        layers = text.layers if text is not None else []
        rows = [row for row in self.placed_rows if row.is_reusable]
        shared = {row.place: num_common(row.tokens[: row.num_committed], tokens) for row in rows}
        best = max(shared, key=shared.get, default=None)
        if best is not None and shared[best] > num_found:
            num_found, layers = shared[best], self.cache.entries_of(best, shared[best])
        return num_found, layers


def scores_bytes(model: PreTrainedModel, num_queries: int) -> int:
    """The bytes of the scores that a forward makes of so many queries, with what is computed from them."""
    return num_queries * model.config.vocab_size * 4 * SCORES


def rows_of(groups: list[SettingsGroup]) -> list[BatchRow]:
    return [row for group in groups for row in group.rows]


def next_text(rows: list[BatchRow], most: int, device: torch.device) -> Text:
    """The next tokens of prompts, at most so many of each."""
    parts = [row.tokens[row.num_committed :][:most] for row in rows]
    lengths, positions = [len(part) for part in parts], [row.num_committed for row in rows]
    padded = [part + [0] * (max(lengths) - len(part)) for part in parts]
    return Text(*(torch.tensor(values, device=device) for values in (padded, lengths, positions)))


def places_of(group: SettingsGroup, begin: int, device: torch.device) -> slice | torch.Tensor:
    """Where the rows of a group are among the rows from `begin` on: a slice, if they stand in order."""
    places = [row.place - begin for row in group.rows]
    first, end = places[0], places[0] + len(places)
    return slice(first, end) if places == list(range(first, end)) else torch.tensor(places, device=device)


def spread(queries: list[WindowQueries], places: list[slice | torch.Tensor], num_rows: int) -> WindowQueries:
    """The queries of all groups, each at its places, behind no text.

    Nothing reads the queries of rows that have no group, nor those that a row has beyond the ones of its group.
    """
    if any(each.visible_prefix is not None for each in queries):
        queries = [each.seeing_all_before() for each in queries]

    def whole(parts: list[torch.Tensor]) -> torch.Tensor:
        values = parts[0].new_zeros(num_rows, max(part.shape[1] for part in parts))
        for at, part in zip(places, parts, strict=True):
            values[at, : part.shape[1]] = part
        return values

    names = [name for name in WindowQueries._fields if getattr(queries[0], name) is not None]
    return WindowQueries(**{name: whole([getattr(each, name) for each in queries]) for name in names})
