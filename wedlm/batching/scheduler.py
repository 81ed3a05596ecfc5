"""The scheduler of a running batch: which requests are prefilled, which decode, and what memory they take."""

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from wedlm.batching.free_memory import is_out_of_memory, suppress_out_of_memory
from wedlm.batching.request import Request
from wedlm.batching.settings_group import SettingsGroup, StepOutput, merged
from wedlm.batching.shared_cache import CachedText, PrefixCache, SharedCache, num_common
from wedlm.generation.model_kind import kind_of, text_config_of
from wedlm.generation.sequences import Queries, Text
from wedlm.generation.static_steps import CapturedForward, power_of_two
from wedlm.generation.validation import named_weights

SCORES = 4  # of each query and token, in float32, that are there at a time
MAX_PREFILLS = 8  # forwards over prompts between two decoding steps


@dataclass
class BatchCounts:
    """What a running batch has done so far."""

    steps: int = 0  # forwards that bring tokens: over requests that decode, and over the ends of prompts
    tokens: int = 0  # new ones
    row_forwards: int = 0  # the forwards of each request, added up
    prompt_tokens: int = 0
    found_tokens: int = 0  # those of the prompts whose keys and values were in the cache


class Scheduler:
    """Requests that join and leave a running batch; each decodes as a call of generate() would decode it alone.

    A request takes a row of the shared cache, and its prompt is prefilled between the decoding steps of the others: a
    long one in chunks, several short ones in one forward. The end of its prompt brings its first tokens. Then it joins
    a settings group, and one forward decodes all groups.

    `max_cached_tokens` and `chunk_size`, the most tokens of a prefill, count the padding of shorter rows. With
    `use_prefix_cache` keys and values of texts that have ended stay for others with the same beginning, while they
    fit. `max_work_bytes` bounds noise and scores. With `fixed_shapes` each request has forwards of its own and copies
    no keys and values, so that equal requests have forwards of equal shapes, whoever else is there. With `captures`
    decoding forwards have a power of two of rows and of queries, and each shape becomes a CUDA graph.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        max_cached_tokens: int,
        chunk_size: int,
        use_prefix_cache: bool = True,
        max_work_bytes: float = math.inf,
        fixed_shapes: bool = False,
        captures: bool = False,
    ):
        self.model, self.kind = model, kind_of(model)
        self.captured = CapturedForward() if captures and not fixed_shapes else None
        self.max_cached_tokens, self.chunk_size = max_cached_tokens, chunk_size
        self.use_prefix_cache, self.max_work_bytes = use_prefix_cache and not fixed_shapes, max_work_bytes
        self.fixed_shapes = fixed_shapes
        self.device = torch.device("cpu") if model.device.type == "meta" else model.device
        self.cache, self.prefix_cache = SharedCache(self.device, self.captured is not None), PrefixCache()
        self.is_model_known = False  # whether the graphs know what has changed about it
        self.groups: list[SettingsGroup] = []  # of the requests that decode
        # In order; with a group once the request has a row of the cache.
        self.prefilling: dict[Request, SettingsGroup | None] = {}
        self.last_was_long = False  # whether a long prompt was prefilled last
        self.num_prefills = 0  # since the last decoding step
        self.counts = BatchCounts()

    def step(self) -> list[StepOutput]:
        """Prefills by one forward and decodes by another; returns what this has brought the requests.

        While several prompts wait, decoding waits for as many prefills, up to MAX_PREFILLS.
        """
        if self.captured is not None and not self.is_model_known:
            self.is_model_known = True
            if self.captured.renew(self.model) and self.cache.num_rows == 0:
                self.cache.free()  # It may have another dtype now.
        outputs = self.prefill_or_fail(self.next_prefills()) if self.prefilling else []
        self.num_prefills += 1
        if self.groups and self.num_prefills >= min(len(self.prefilling), MAX_PREFILLS):
            self.num_prefills = 0
            outputs += self.decode()
        return outputs

    def forward(self, queries: Queries, valid_length: int) -> torch.Tensor:
        """The logits of a forward pass over the active rows, which reads so many entries."""
        if self.captured is None:
            return self.kind.forward(queries, self.cache, valid_length)
        return self.captured(self.kind, queries, self.cache, valid_length)

    # --- Admission ---

    @property
    def cached_requests(self) -> list[Request]:
        """The requests that have a row of the cache: those that decode, and those that are partly prefilled."""
        return requests_of([*self.groups, *filter(None, self.prefilling.values())])

    def can_admit(self, request: Request) -> bool:
        """Whether the cache and the memory for noise and scores have room for one more request."""
        fits = self.num_tokens_with(request) <= self.max_cached_tokens
        return fits and self.work_bytes_with(request) <= self.max_work_bytes

    def num_tokens_with(self, *requests: Request) -> int:
        """The cached tokens that all requests may take with these ones."""
        return self.cache.num_tokens_with([each.budget for each in (*self.uncached_requests, *requests)])

    def work_bytes_with(self, *requests: Request) -> int:
        """The bytes of noise and scores of all requests with these ones, in a forward of the most queries."""
        everyone = [*self.cached_requests, *self.uncached_requests, *requests]
        most_queries = max(each.budget.queries for each in everyone)
        return sum(each.noise_bytes for each in everyone) + len(everyone) * scores_bytes(self.model, most_queries)

    @property
    def uncached_requests(self) -> list[Request]:
        return [request for request, group in self.prefilling.items() if group is None]

    def add(self, request: Request) -> None:
        """Takes a request that has room, by `can_admit`; the next steps prefill it."""
        self.is_model_known = False
        self.prefilling[request] = None
        self.prefix_cache.shrink(self.max_cached_tokens - self.num_tokens_with())

    def remove(self, requests: Container[Request]) -> None:
        """Removes requests, wherever they are, and frees their rows of the cache."""
        rows = [request.cache_row for request in self.cached_requests if request in requests]
        self.prefilling = {each: group for each, group in self.prefilling.items() if each not in requests}
        for group in self.groups:
            group.remove(requests)
        self.groups = [group for group in self.groups if group.requests]
        self.free_rows(rows)

    def free_rows(self, rows: list[int]) -> None:
        order = self.cache.remove_rows(rows)
        for request in self.cached_requests:
            request.cache_row = order.index(request.cache_row)

    # --- Decoding ---

    def decode(self) -> list[StepOutput]:
        """Takes a step with all groups in one forward or, with fixed shapes, in a forward for each."""
        forwards = [[group] for group in self.groups] if self.fixed_shapes else [self.groups]
        outputs = []
        for groups in forwards:
            outputs += self.decode_together(groups)
        if self.groups:  # else all requests were evicted, and no forward has ended
            self.finish_step(outputs)
        return outputs

    def decode_together(self, groups: list[SettingsGroup]) -> list[StepOutput]:
        """Decodes groups in one forward. Where memory is refused, the longest requests fail until it is enough."""
        failed = []
        while requests := requests_of(groups):
            rows = [request.cache_row for request in requests]
            begin, end = min(rows), max(rows) + 1
            if self.captured is not None:
                begin, end = 0, min(power_of_two(end), self.cache.size[0])
            self.cache.activate(begin, end)
            longest = max(request.num_committed for request in requests)
            try:
                return failed + self.run_step(groups, [group.queries() for group in groups], longest)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failed += self.evict(requests, error.with_traceback(None))  # whose frames hold the memory
                groups = [group for group in groups if group.requests]
        return failed

    def evict(self, requests: list[Request], error: Exception) -> list[StepOutput]:
        """Frees the memory of the prefix cache, of graphs or, without these, of the longest request, which fails."""
        failed = []
        if self.prefix_cache.texts:
            self.prefix_cache.shrink(0)
        elif not self.free_graphs():
            longest = max(requests, key=lambda request: request.budget.text)
            self.remove([longest])
            failed = [StepOutput(longest, [], True, error)]
        with suppress_out_of_memory():
            self.cache.shrink_to_fit()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return failed

    def free_graphs(self) -> bool:
        """Frees the memory of graphs; says whether there were any."""
        if self.captured is None or len(self.captured.graphs) == 0:
            return False
        self.captured.free()
        return True

    def run_step(
        self, groups: list[SettingsGroup], queries: list[Queries], longest: int, text: Text | None = None
    ) -> list[StepOutput]:
        """Takes groups on by one forward over their queries and the active rows of the cache.

        The longest of these rows has `longest` entries. In the first step `text` holds the ends of the prompts.
        """
        all_rows = [rows_of(group, self.cache.active.start, self.device) for group in groups]
        all_queries = combined(queries, all_rows, len(self.cache.lengths))
        if text is not None:
            all_queries = all_queries.behind(text)
        for group in groups:
            group.draw_noise()
        logits = self.forward(all_queries, longest + all_queries.input_ids.shape[1])
        num_kept = torch.zeros_like(self.cache.lengths) if text is None else text.lengths.clone()
        moved, statuses, outputs = [], [], []
        for group, own, rows in zip(groups, queries, all_rows, strict=True):
            self.counts.row_forwards += len(group.requests)
            try:
                kept, status = self.move_on(group, own, logits[rows, : own.logits_indices.shape[1]])
            except Exception as error:
                if group.callbacks is None and not is_out_of_memory(error):
                    raise
                outputs += [StepOutput(request, [], True, error) for request in group.requests]  # They fail alone.
                continue
            num_kept[rows] += kept
            moved.append(group)
            statuses.append(status)
        self.cache.commit(num_kept)
        width = max((status.shape[1] for status in statuses), default=0)
        padded = [pad(status, (0, width - status.shape[1])) for status in statuses]
        values = torch.cat(padded).tolist() if padded else []  # waits for the device, the only time
        for group in moved:
            outputs += group.outputs_from(values[: len(group.requests)], self.model)
            values = values[len(group.requests) :]
        return outputs

    def move_on(
        self, group: SettingsGroup, queries: Queries, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes a group on. Where memory is refused, once more without the prefix cache."""
        num_rows = 1 if self.fixed_shapes else self.cache.num_rows
        with named_weights(self.model):
            try:
                return group.move_on(queries, logits, num_rows)
            except Exception as error:
                # (Callbacks cannot be called again.)
                if not is_out_of_memory(error) or not self.prefix_cache.texts or group.callbacks is not None:
                    raise
            self.prefix_cache.shrink(0)
            return group.move_on(queries, logits, num_rows)

    def finish_step(self, outputs: list[StepOutput]) -> None:
        """Counts what a step has brought, caches the texts that have ended, and removes their requests."""
        self.counts.steps += 1
        self.counts.tokens += sum(len(each.tokens) for each in outputs)
        for output in outputs:
            if output.has_ended and output.error is None:
                with suppress_out_of_memory():
                    self.cache_text(output.request)
        if ended := {output.request for output in outputs if output.has_ended}:
            self.remove(ended)

    def cache_text(self, request: Request) -> None:
        """Copies the keys and values of a request into the prefix cache, if they fit."""
        number = min(request.num_committed, len(request.tokens))
        most = self.max_cached_tokens - self.num_tokens_with()
        if not (self.use_prefix_cache and request.is_reusable and 0 < number <= most):
            return
        if number > self.max_cached_tokens - self.cache.num_tokens:
            self.cache.shrink_to_fit()
        most = min(most, self.max_cached_tokens - self.cache.num_tokens)
        if number <= most:
            entries = self.cache.entries_of(request.cache_row, number)
            layers = [tuple(each.clone() for each in states) for states in entries]
            self.prefix_cache.add(CachedText(request.tokens[:number], layers), most)

    # --- Prefill ---

    def next_prefills(self) -> list[Request]:
        """The first long prompt, or short ones that one forward prefills whole: one kind after the other.

        A prompt is long if it has more uncached tokens than a chunk. Only one long prompt is prefilled at a time, for
        it takes a row of the cache before it decodes.
        """
        num_uncached, most = cache(self.num_uncached), self.chunk_size  # Each prompt is looked up once.
        waiting = self.uncached_requests
        long = [request for request, group in self.prefilling.items() if group is not None]
        if not long:
            longs = (each for each in waiting if each.prompt_length > most and num_uncached(each) > most)
            long = list(islice(longs, 1))
        short = self.short_prefills((each, num_uncached(each)) for each in waiting if num_uncached(each) <= most)
        self.last_was_long = bool(long) and not (short and self.last_was_long)
        return long if self.last_was_long else short

    def num_uncached(self, request: Request) -> int:
        """The tokens of a prompt whose keys and values are not cached."""
        return request.prompt_length - self.cached_prefix(request)[0]

    def short_prefills(self, waiting: Iterable[tuple[Request, int]]) -> list[Request]:
        """The first short prompts, as many as one forward prefills; each comes with its number of uncached tokens."""
        requests, longest, begin, longest_text = [], 0, 0, 0
        for request, size in waiting:
            longest, begin = max(longest, size), max(begin, request.prompt_length - size)
            longest_text = max(longest_text, request.budget.text)
            has_room = (len(requests) + 1) * longest <= self.chunk_size and begin + longest <= longest_text
            if not has_room or (requests and self.fixed_shapes):
                break
            requests.append(request)
        return requests

    def prefill_or_fail(self, requests: list[Request]) -> list[StepOutput]:
        """Prefills requests in one forward. If that fails, each is prefilled alone, and only those fail which must.

        A request with callbacks fails at once, for they cannot be called again.
        """
        try:
            outputs = self.prefill(requests)
        except Exception as error:
            has_freed = False
            if is_out_of_memory(error):
                error = error.with_traceback(None)  # whose frames hold memory
                self.prefix_cache.shrink(0)
                has_freed = self.free_graphs()
            rows = [request.cache_row for request in requests if self.prefilling[request] is not None]
            self.prefilling |= dict.fromkeys(requests)
            self.free_rows(rows)
            is_last_try = len(requests) == 1 and not has_freed
            failing = [each for each in requests if is_last_try or each.call.has_callbacks]
            self.remove(failing)
            outputs = [StepOutput(request, [], True, error) for request in failing]
            for request in requests:
                outputs += [] if request in failing else self.prefill_or_fail([request])
            return outputs
        if outputs:
            self.finish_step(outputs)
        return outputs

    def prefill(self, requests: list[Request]) -> list[StepOutput]:
        """Prefills a chunk of a long prompt, or short prompts whole, whose requests then join groups."""
        if self.prefilling[requests[0]] is None:
            self.allocate(requests)
        longest, text = max(each.num_committed for each in requests), self.next_text(requests)
        for request in requests:
            request.num_committed = min(request.num_committed + self.chunk_size, request.prompt_length)
        self.cache.activate(requests[0].cache_row, requests[0].cache_row + len(requests))
        if requests[0].num_committed < requests[0].prompt_length:
            self.forward(Queries.of_text(text), longest + text.tokens.shape[1])
            self.cache.commit(text.lengths)
            return []
        groups = merged([self.prefilling[request] for request in requests])
        outputs = self.run_step(groups, [group.first_queries() for group in groups], longest, text)
        self.groups = merged(self.groups + groups)
        for request in requests:
            del self.prefilling[request]
        return outputs

    def allocate(self, requests: list[Request]) -> None:
        """Gives requests their groups and rows of the cache, with the cached keys and values of their prompts."""
        for row, request in enumerate(requests, self.cache.num_rows):
            request.begin(row)
        groups = [SettingsGroup.from_request(request) for request in requests]
        budgets = [request.budget for request in requests]
        self.cache.add_rows(budgets, self.max_cached_tokens - self.prefix_cache.num_tokens)
        self.prefilling |= zip(requests, groups, strict=True)
        for request in requests:
            request.num_committed, layers = self.cached_prefix(request, is_used=True)
            if request.num_committed > 0:
                self.cache.copy_prefix(request.cache_row, layers, request.num_committed)
            self.counts.prompt_tokens += request.prompt_length
            self.counts.found_tokens += request.num_committed

    def next_text(self, requests: list[Request]) -> Text:
        """The next chunk of each prompt."""
        parts = [request.tokens[request.num_committed :][: self.chunk_size] for request in requests]
        lengths, positions = [len(part) for part in parts], [request.num_committed for request in requests]
        padded = [part + [0] * (max(lengths) - len(part)) for part in parts]
        return Text(*(torch.tensor(values, device=self.device) for values in (padded, lengths, positions)))

    # --- Prefixes ---

    def cached_prefix(
        self, request: Request, is_used: bool = False
    ) -> tuple[int, list[tuple[torch.Tensor, torch.Tensor]]]:
        """How many leading tokens of a prompt are cached, all but its last one at most, and keys and values that begin
        with theirs, of the prefix cache or of another request.
        """
        if self.fixed_shapes:
            return 0, []
        tokens = request.tokens[:-1]
        num_found, text = self.prefix_cache.longest_prefix(tokens, is_used)
        layers = text.layers if text is not None else []
        others = [other for other in self.cached_requests if other.is_reusable]
        shared = {other.cache_row: num_common(other.tokens[: other.num_committed], tokens) for other in others}
        best = max(shared, key=shared.get, default=None)
        if best is not None and shared[best] > num_found:
            num_found, layers = shared[best], self.cache.entries_of(best, shared[best])
        return num_found, layers

    def clear_prefix_cache(self) -> None:
        """Forgets all keys and values of before: the weights may be others now."""
        self.prefix_cache.shrink(0)
        for request in self.cached_requests:
            request.is_reusable = False
        self.is_model_known = False


def scores_bytes(model: PreTrainedModel, num_queries: int) -> int:
    """The bytes of the scores that a forward makes of so many queries, with what is computed from them."""
    return num_queries * text_config_of(model).vocab_size * 4 * SCORES


def requests_of(groups: list[SettingsGroup]) -> list[Request]:
    return [request for group in groups for request in group.requests]


def rows_of(group: SettingsGroup, begin: int, device: torch.device) -> slice | torch.Tensor:
    """Where the requests of a group are among the rows of the cache from `begin` on: a slice, if they are in order."""
    rows = [request.cache_row - begin for request in group.requests]
    first, end = rows[0], rows[0] + len(rows)
    return slice(first, end) if rows == list(range(first, end)) else torch.tensor(rows, device=device)


def combined(queries: list[Queries], all_rows: list[slice | torch.Tensor], num_rows: int) -> Queries:
    """The queries of all groups, each at its rows, without a text before them.

    Nothing reads the queries of rows that have no group, nor those that a row has beyond the ones of its group.
    """
    if any(each.visible_prefix is not None for each in queries):
        seen = [each.visible_prefix for each in queries]
        seen = [torch.zeros_like(q.input_ids) if own is None else own for q, own in zip(queries, seen, strict=True)]
        queries = [each._replace(visible_prefix=own) for each, own in zip(queries, seen, strict=True)]

    def whole(parts: list[torch.Tensor]) -> torch.Tensor:
        values = parts[0].new_zeros(num_rows, max(part.shape[1] for part in parts))
        for rows, part in zip(all_rows, parts, strict=True):
            values[rows, : part.shape[1]] = part
        return values

    names = [name for name in Queries._fields if getattr(queries[0], name) is not None]
    return Queries(**{name: whole([getattr(each, name) for each in queries]) for name in names})
