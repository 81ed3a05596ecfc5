"""The rows of many requests in one running batch: each request decodes as a call of generate() would decode it."""

import math
from collections import deque
from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from .free_memory import is_out_of_memory, where_memory_allows
from .kept_texts import KeptText, KeptTexts, num_common
from .lane import Lane, LaneRow, Progress, merged
from .prepared_call import PreparedCall
from .shared_cache import SharedCache
from .step import forward_queries
from .support import named_weights
from .window import Text, WindowQueries

SCORES = 4  # of each query and token, in float32, that are there at a time
MOST_READS = 8  # forwards over prompts between two steps


@dataclass(eq=False)
class Reading:
    """A row whose prompt is still to be read, as a whole or from some token on.

    Args:
        name (`Hashable`): Its name.
        call (`PreparedCall`): The request.
        lane (`Lane`, *optional*): Its lane, once it has a place in the cache.
    """

    name: Hashable
    call: PreparedCall
    lane: Lane | None = None


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
    step. Then it joins a lane, and from then on one forward takes all rows on.

    Args:
        model (`PreTrainedModel`): The model.
        max_cached_tokens (`int`): The most tokens whose keys and values are in memory, counted with the room that
            shorter rows leave unused.
        chunk_size (`int`): The most tokens of prompts that a forward reads, counted with the padding of shorter ones.
        keeps_texts (`bool`, *optional*, defaults to `True`): Whether keys and values of texts that have ended stay for
            the next ones with the same beginning, as long as there is room.
        max_work_bytes (`float`, *optional*): The most bytes of noise and scores.
        fixed_shapes (`bool`, *optional*, defaults to `False`): Whether each row has forwards of its own and takes over
            no keys and values, so that equal requests have forwards of equal shapes, whoever else is there.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        max_cached_tokens: int,
        chunk_size: int,
        keeps_texts: bool = True,
        max_work_bytes: float = math.inf,
        fixed_shapes: bool = False,
    ):
        self.model, self.max_cached_tokens, self.chunk_size = model, max_cached_tokens, chunk_size
        self.keeps_texts, self.max_work_bytes = keeps_texts and not fixed_shapes, max_work_bytes
        self.fixed_shapes = fixed_shapes
        self.device = torch.device("cpu") if model.device.type == "meta" else model.device
        self.cache = SharedCache(self.device)
        self.lanes: list[Lane] = []
        self.reading: deque[Reading] = deque()
        self.reads_long = False  # whether a long prompt was read last
        self.num_reads = 0  # since the last step
        self.kept = KeptTexts()
        self.counts = BatchCounts()

    # --- Rows ---

    @property
    def rows(self) -> list[LaneRow]:
        """The rows that decode."""
        return rows_of(self.lanes)

    @property
    def placed_rows(self) -> list[LaneRow]:
        """The rows that have a place in the cache: those that decode, and those whose prompts are read in part."""
        return rows_of([*self.lanes, *(each.lane for each in self.reading if each.lane is not None)])

    @property
    def num_rows(self) -> int:
        return len(self.rows) + len(self.reading)

    def has_room_for(self, call: PreparedCall) -> bool:
        has_room = self.num_tokens_with(call) <= self.max_cached_tokens
        return has_room and self.work_bytes_with(call) <= self.max_work_bytes

    def num_tokens_with(self, *calls: PreparedCall) -> int:
        """The tokens that the rows need room for with these ones."""
        coming = [each.call for each in self.reading if each.lane is None]
        return self.cache.num_tokens_with([call.need for call in (*coming, *calls)])

    def work_bytes_with(self, *calls: PreparedCall) -> int:
        """The bytes of the noise and the scores of all rows with these ones, in a forward of the most queries."""
        calls = [*(each.call for each in self.reading if each.lane is None), *calls]
        noise = sum(each.noise_bytes for each in (*self.placed_rows, *calls))
        queries = [need.queries for need in (*self.cache.needs, *(call.need for call in calls))]
        return noise + len(queries) * scores_bytes(self.model, max(queries, default=0))

    def add(self, name: Hashable, call: PreparedCall) -> None:
        """Adds the row of a call, for which there must be room."""
        self.reading.append(Reading(name, call))
        self.kept.shrink(self.max_cached_tokens - self.num_tokens_with())

    def drop(self, name: Hashable) -> None:
        """Drops a row, wherever it is."""
        self.leave({name})

    def leave(self, names: Container[Hashable]) -> None:
        """Drops rows, and the lanes that have none then."""
        places = [row.place for row in self.placed_rows if row.name in names]
        self.reading = deque(each for each in self.reading if each.name not in names)
        for lane in self.lanes:
            lane.leave(names)
        self.lanes = [lane for lane in self.lanes if lane.rows]
        self.give_back(places)

    def give_back(self, places: list[int]) -> None:
        """Gives places of the cache back, where no row is any more."""
        order = self.cache.leave(places)
        for row in self.placed_rows:
            row.place = order.index(row.place)

    def forget_texts(self) -> None:
        """Takes over no keys and values of before: the weights may be others now."""
        self.kept.shrink(0)
        for row in self.placed_rows:
            row.is_source = False

    # --- Steps ---

    def step(self) -> list[Progress]:
        """Reads prompts by one forward, and takes all rows on by another; returns what that has brought the rows.

        Where several prompts wait, the rows wait for as many forwards over prompts, up to MOST_READS.
        """
        progress = self.read_on()
        self.num_reads += 1
        if self.lanes and self.num_reads >= min(len(self.reading), MOST_READS):
            self.num_reads = 0
            progress += self.take_step()
        return progress

    def take_step(self) -> list[Progress]:
        """Takes all rows on by one forward. Where memory is refused, one row after the other fails, the longest first,
        until the forward of the others has enough.
        """
        failed = []
        while self.lanes:
            try:
                return failed + self.take_step_together()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failed += self.make_way(error.with_traceback(None))  # whose frames hold the memory
        return failed

    def make_way(self, error: Exception) -> list[Progress]:
        """Gives memory back: that of kept texts, or that of a row, which fails."""
        failed = []
        if self.kept.texts:
            self.kept.shrink(0)
        else:
            row = max(self.rows, key=lambda row: self.cache.needs[row.place].text)
            self.leave({row.name})
            failed = [Progress(row.name, [], True, error)]
        with where_memory_allows():
            self.cache.give_back_room()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return failed

    def take_step_together(self) -> list[Progress]:
        if self.fixed_shapes:
            return self.take_steps_alone()
        rows = self.rows
        num_rows = 1 + max(row.place for row in rows)  # The row of a prompt that is being read is mostly behind them.
        longest = max(row.num_committed for row in rows)
        for lane in self.lanes:
            lane.share_with(num_rows)
        self.cache.show(0, num_rows)
        progress = self.take_on(self.lanes, [lane.queries() for lane in self.lanes], longest)
        self.part_with(progress)
        return progress

    def take_steps_alone(self) -> list[Progress]:
        """Takes each row on by a forward of its own."""
        progress = []
        for lane in self.lanes:
            (row,) = lane.rows
            self.cache.show(row.place, row.place + 1)
            try:
                progress += self.take_on([lane], [lane.queries()], row.num_committed)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                progress.append(Progress(row.name, [], True, error.with_traceback(None)))
        self.part_with(progress)
        return progress

    def take_on(
        self, lanes: list[Lane], queries: list[WindowQueries], longest: int, text: Text | None = None
    ) -> list[Progress]:
        """Takes the rows of lanes on by one forward over the rows that the cache shows.

        Args:
            lanes (`list[Lane]`): The lanes.
            queries (`list[WindowQueries]`): The queries of each lane.
            longest (`int`): The most entries that one of the rows has in the cache.
            text (`Text`, *optional*): The ends of the prompts, in the first step.
        """
        places = [places_of(lane, self.cache.shown.start, self.device) for lane in lanes]
        together = spread(queries, places, len(self.cache.lengths))
        if text is not None:
            together = together.behind(text)
        for lane in lanes:
            lane.draw_noise()
        logits = forward_queries(self.model, together, self.cache, longest + together.input_ids.shape[1])
        num_kept, looks, progress = together.num_text.clone(), [], []
        for lane, own, at in zip(lanes, queries, places, strict=True):
            try:
                with named_weights(self.model):
                    kept, look = lane.move_on(own, logits[at, : own.asked.shape[1]])
            except Exception as error:
                if lane.readers is None and not is_out_of_memory(error):
                    raise
                progress += [Progress(row.name, [], True, error) for row in lane.rows]  # They fail alone.
                continue
            num_kept[at] += kept
            looks.append((lane, look))
        self.cache.commit(num_kept)
        width = max((look.shape[1] for _, look in looks), default=0)
        looked = [pad(look, (0, width - look.shape[1])) for _, look in looks]
        values = torch.cat(looked).tolist() if looked else []  # one look at the device
        for lane, _ in looks:
            progress += lane.note(values[: len(lane.rows)], self.model)
            values = values[len(lane.rows) :]
        return progress

    def part_with(self, progress: list[Progress]) -> None:
        """Counts what a step has brought. Rows that have ended leave; their texts stay."""
        self.counts.steps += 1
        self.counts.row_forwards += len(progress)
        self.counts.tokens += sum(len(each.tokens) for each in progress)
        ended = {each.name: each for each in progress if each.has_ended}
        if not ended:
            return
        for lane in self.lanes:
            for row in lane.rows:
                if row.name in ended and ended[row.name].error is None:
                    with where_memory_allows():
                        self.keep_text(row)
        self.leave(ended)

    def keep_text(self, row: LaneRow) -> None:
        """Keeps the keys and values of a row, if there is room."""
        number = min(row.num_committed, len(row.tokens))
        most = self.max_cached_tokens - self.num_tokens_with()
        if not (self.keeps_texts and row.is_source and 0 < number <= most):
            return
        if number > self.max_cached_tokens - self.cache.num_tokens:
            self.cache.give_back_room()
        room = min(most, self.max_cached_tokens - self.cache.num_tokens)
        if number <= room:
            layers = [tuple(each.clone() for each in states) for states in self.cache.entries_of(row.place, number)]
            self.kept.keep(KeptText(row.tokens[:number], layers), room)

    # --- Prompts ---

    def read_on(self) -> list[Progress]:
        """Reads a chunk of a long prompt, or several short prompts whole, whose rows take their first step."""
        return self.read(self.next_to_read()) if self.reading else []

    def next_to_read(self) -> list[Reading]:
        """The first long prompt, or short ones that one forward reads whole: one kind after the other.

        A prompt is long if it has more unknown tokens than a forward reads. Only one long prompt is read at a time,
        since its row takes up a place in the cache before it decodes.
        """
        num_unknown, most = cache(self.num_unknown), self.chunk_size  # Each prompt is looked up once.
        coming = [each for each in self.reading if each.lane is None]
        long = [each for each in self.reading if each.lane is not None]
        if not long:
            longs = (each for each in coming if len(each.call.tokens) > most and num_unknown(each) > most)
            long = list(islice(longs, 1))
        short = self.together((each, num_unknown(each)) for each in coming if num_unknown(each) <= most)
        self.reads_long = bool(long) and not (short and self.reads_long)
        return long if self.reads_long else short

    def num_unknown(self, each: Reading) -> int:
        """The tokens of a prompt whose keys and values are not known."""
        return len(each.call.tokens) - self.known_beginning(each.call.tokens)[0]

    def together(self, coming: Iterable[tuple[Reading, int]]) -> list[Reading]:
        """The first short prompts, as many as one forward reads; each comes with its number of unknown tokens."""
        group, longest, begin, room = [], 0, 0, 0
        for each, size in coming:
            longest, begin = max(longest, size), max(begin, len(each.call.tokens) - size)
            room = max(room, each.call.need.text)
            if (len(group) + 1) * longest > self.chunk_size or begin + longest > room:
                break
            if group and self.fixed_shapes:
                break
            group.append(each)
        return group

    def read(self, group: list[Reading]) -> list[Progress]:
        """Reads prompts in one forward. If that fails, each is read alone, so that only those fail which must.

        A row whose text somebody reads fails at once, for a reader cannot be asked again.
        """
        try:
            progress = self.read_together(group)
        except Exception as error:
            if is_out_of_memory(error):
                error = error.with_traceback(None)  # whose frames hold memory
                self.kept.shrink(0)
            places = [row.place for row in rows_of([each.lane for each in group if each.lane is not None])]
            for each in group:
                each.lane = None
            self.give_back(places)
            failing = [each for each in group if len(group) == 1 or each.call.run.readers is not None]
            self.leave({each.name for each in failing})
            told = [Progress(each.name, [], True, error) for each in failing]
            return told + [progress for each in group if each not in failing for progress in self.read([each])]
        if progress:
            self.part_with(progress)
        return progress

    def read_together(self, group: list[Reading]) -> list[Progress]:
        """Reads the prompts of rows whole, and lets the rows join lanes; of a long prompt reads a chunk."""
        if group[0].lane is None:
            self.open(group)
        rows = rows_of([each.lane for each in group])
        longest, text = max(row.num_committed for row in rows), next_text(rows, self.chunk_size, self.device)
        for row in rows:
            row.num_committed = min(row.num_committed + self.chunk_size, row.prompt_length)
        self.cache.show(rows[0].place, rows[0].place + len(rows))
        if rows[0].num_committed < rows[0].prompt_length:
            forward_queries(self.model, WindowQueries.of_text(text), self.cache, longest + text.tokens.shape[1])
            self.cache.commit(text.lengths)
            return []
        lanes = merged([each.lane for each in group])
        progress = self.take_on(lanes, [lane.first_queries() for lane in lanes], longest, text)
        self.lanes = merged(self.lanes + lanes)
        self.reading = deque(each for each in self.reading if each not in group)
        return progress

    def open(self, group: list[Reading]) -> None:
        """Gives rows their lanes and places, and the keys and values that are known of their prompts' beginnings."""
        needs, num_others = [each.call.need for each in group], self.cache.num_rows
        num_rows = 1 if self.fixed_shapes else num_others + len(group)
        lanes = [
            Lane.of(each.call.open(num_rows), each.name, place, each.call)
            for place, each in enumerate(group, num_others)
        ]
        self.cache.join(needs, self.max_cached_tokens - self.kept.num_tokens)
        for each, lane in zip(group, lanes, strict=True):
            each.lane = lane
        for row in rows_of(lanes):
            row.num_committed, layers = self.known_beginning(row.tokens, is_used=True)
            if row.num_committed > 0:
                self.cache.begin_row(row.place, layers, row.num_committed)
            self.counts.prompt_tokens += row.prompt_length
            self.counts.found_tokens += row.num_committed

    def known_beginning(
        self, tokens: list[int], is_used: bool = False
    ) -> tuple[int, list[tuple[torch.Tensor, torch.Tensor]]]:
        """The number of tokens at the beginning of a prompt that are known, at most all but its last one, and keys and
        values that begin with theirs.
        """
        if self.fixed_shapes:
            return 0, []
        tokens = tokens[:-1]
        num_found, text = self.kept.best_for(tokens, is_used)
        layers = text.layers if text is not None else []
        shared = {
            row.place: num_common(row.tokens[: row.num_committed], tokens) for row in self.placed_rows if row.is_source
        }
        best = max(shared, key=shared.get, default=None)
        if best is not None and shared[best] > num_found:
            num_found, layers = shared[best], self.cache.entries_of(best, shared[best])
        return num_found, layers


def scores_bytes(model: PreTrainedModel, num_queries: int) -> int:
    """The bytes of the scores that a forward makes of so many queries, with what is computed from them."""
    return num_queries * model.config.vocab_size * 4 * SCORES


def rows_of(lanes: list[Lane]) -> list[LaneRow]:
    return [row for lane in lanes for row in lane.rows]


def next_text(rows: list[LaneRow], most: int, device: torch.device) -> Text:
    """The next tokens of prompts, at most so many of each."""
    parts = [row.tokens[row.num_committed :][:most] for row in rows]
    lengths, positions = [len(part) for part in parts], [row.num_committed for row in rows]
    padded = [part + [0] * (max(lengths) - len(part)) for part in parts]
    return Text(*(torch.tensor(values, device=device) for values in (padded, lengths, positions)))


def places_of(lane: Lane, begin: int, device: torch.device) -> slice | torch.Tensor:
    """Where the rows of a lane are among the rows from `begin` on: a slice, if they stand in order."""
    places = [row.place - begin for row in lane.rows]
    first, end = places[0], places[0] + len(places)
    return slice(first, end) if places == list(range(first, end)) else torch.tensor(places, device=device)


def spread(queries: list[WindowQueries], places: list[slice | torch.Tensor], num_rows: int) -> WindowQueries:
    """The queries of all lanes, each at its places, behind no text.

    Nothing reads the queries of rows that have no lane, nor those that a row has beyond the ones of its lane.
    """
    if any(each.queries_seen is not None for each in queries):
        queries = [each if each.queries_seen is not None else each.seeing_all_before() for each in queries]

    def whole(parts: list[torch.Tensor]) -> torch.Tensor:
        values = parts[0].new_zeros(num_rows, max(part.shape[1] for part in parts))
        for at, part in zip(places, parts, strict=True):
            values[at, : part.shape[1]] = part
        return values

    names = [name for name in WindowQueries._fields if getattr(queries[0], name) is not None and name != "num_text"]
    fields = {name: whole([getattr(each, name) for each in queries]) for name in names}
    return WindowQueries(**fields, num_text=queries[0].num_text.new_zeros(num_rows))
