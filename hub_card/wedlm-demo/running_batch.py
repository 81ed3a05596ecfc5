"""The rows of many requests in one running batch: each request decodes as a call of generate() would decode it."""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

import torch
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel

from .decoding_run import DecodingRun
from .kept_texts import KeptText, KeptTexts, cache_of, num_common
from .lane import Lane, LaneRow, Progress, records_of
from .policy import WIDEST_WINDOW
from .prepared_call import PreparedCall
from .row_cache import RowCache
from .shared_cache import SharedCache
from .step import forward_queries, take_step
from .step_costs import StepPrices, experience_with
from .window import Text, WindowQueries


@dataclass
class Reading:
    """A row whose prompt is being read, in a cache of its own.

    Args:
        name (`Hashable`): Its name.
        call (`PreparedCall`): The request.
        run (`DecodingRun`, *optional*): Its run, once its first chunk is read.
        chunks (`list[Text]`): The chunks that are still to be read.
        is_source (`bool`): Whether others may take over its keys and values.
    """

    name: Hashable
    call: PreparedCall
    run: DecodingRun | None = None
    chunks: list[Text] = field(default_factory=list)
    is_source: bool = True


@dataclass
class BatchCounts:
    """What a running batch has done so far.

    Args:
        steps (`int`): Its forwards over rows that decode.
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

    A row begins as a run of its own. Its prompt is read in chunks between the steps of the batch. Then it joins: its
    keys and values go into the cache that all rows share, its window into a lane. From then on one forward takes all
    rows on.

    Args:
        model (`PreTrainedModel`): The model.
        max_cached_tokens (`int`): The most tokens whose keys and values are in memory, counted with the room that
            shorter rows leave unused.
        chunk_size (`int`): The tokens of prompts that are read between two steps.
        keeps_texts (`bool`, *optional*, defaults to `True`): Whether keys and values of texts that have ended stay for
            the next ones with the same beginning, as long as there is room.
    """

    def __init__(self, model: PreTrainedModel, max_cached_tokens: int, chunk_size: int, keeps_texts: bool = True):
        self.model, self.max_cached_tokens, self.chunk_size = model, max_cached_tokens, chunk_size
        self.keeps_texts = keeps_texts
        self.device = torch.device("cpu") if model.device.type == "meta" else model.device
        self.cache = SharedCache(self.device)
        self.prices = StepPrices(experience_with(model), 1, 0, 2 * WIDEST_WINDOW, self.device)
        self.lanes: list[Lane] = []
        self.reading: deque[Reading] = deque()
        self.kept = KeptTexts()
        self.counts = BatchCounts()

    # --- Rows ---

    @property
    def rows(self) -> list[LaneRow]:
        return [row for lane in self.lanes for row in lane.rows]

    @property
    def num_rows(self) -> int:
        return len(self.rows) + len(self.reading)

    def has_room_for(self, call: PreparedCall) -> bool:
        return self.num_tokens_with(call) <= self.max_cached_tokens

    def num_tokens_with(self, *calls: PreparedCall) -> int:
        """The tokens that the rows need room for with these ones."""
        return self.cache.num_tokens_with([call.need for call in (*(r.call for r in self.reading), *calls)])

    def add(self, name: Hashable, call: PreparedCall) -> None:
        """Adds the row of a call, for which there must be room."""
        self.reading.append(Reading(name, call))
        self.kept.shrink(self.max_cached_tokens - self.num_tokens_with())

    def drop(self, name: Hashable) -> None:
        """Drops a row, wherever it is."""
        self.reading = deque(each for each in self.reading if each.name != name)
        for lane in self.lanes:
            for i, row in enumerate(lane.rows):
                if row.name == name:
                    return self.leave(lane, i)

    def forget_texts(self) -> None:
        """Takes over no keys and values of before: the weights may be others now."""
        self.kept.shrink(0)
        for each in (*self.rows, *self.reading):
            each.is_source = False

    # --- Steps ---

    def step(self) -> list[Progress]:
        """Reads some of the prompts, and takes all rows on by one forward; returns what that has brought them."""
        progress = list(self.read_on())
        if self.lanes:
            progress += self.take_step()
        return progress

    def read_on(self) -> Iterator[Progress]:
        """Reads the next chunks of prompts; behind its last chunk a row takes its first step and joins."""
        num_read = 0
        while self.reading and num_read < self.chunk_size:
            reading = self.reading[0]
            try:
                if reading.run is None:
                    self.open(reading)
                chunk = reading.chunks.pop(0)
                num_read += chunk.tokens.shape[1]
                if reading.chunks:
                    reading.run.read_chunk(chunk)
                    continue
                self.reading.popleft()
                yield self.take_first_step(reading, chunk)
            except Exception as error:  # of this request alone
                self.reading = deque(each for each in self.reading if each is not reading)
                yield Progress(reading.name, [], True, error)

    def open(self, reading: Reading) -> None:
        """Opens the run of a row, behind what is known of the beginning of its prompt."""
        past, num_found = self.known_beginning(reading.call.tokens)
        reading.run = reading.call.run(past, self.prices)
        reading.run.past_key_values = None  # The run has copied it.
        reading.is_source = True
        reading.chunks = reading.run.prompt.chunks(self.chunk_size)
        self.counts.prompt_tokens += len(reading.call.tokens)
        self.counts.found_tokens += num_found

    def known_beginning(self, tokens: list[int]) -> tuple[DynamicCache, int]:
        """Keys and values of the beginning of a text, all but its last token at most, and its number of tokens."""
        tokens = tokens[:-1]
        num_found, text = self.kept.best_for(tokens)
        layers = text.layers if text is not None else []
        for row in filter(attrgetter("is_source"), self.rows):
            number = num_common(row.tokens[: row.num_committed], tokens)
            if number > num_found:
                num_found, layers = number, self.cache.entries_of(row.place, number)
        return cache_of(layers, num_found) if num_found else DynamicCache(config=self.model.config), num_found

    def take_first_step(self, reading: Reading, chunk: Text) -> Progress:
        name, run, call = reading.name, reading.run, reading.call
        lane = Lane.of(run, name, self.cache.num_rows, call)
        lane.rows[0].is_source = reading.is_source
        lane.draw_noise()
        queries = run.first_queries(chunk)
        live = run.longest + queries.input_ids.shape[1]
        status = take_step(self.model, run.policy, run.window, queries, run.cache, live, run.readers)
        (progress,) = lane.note(lane.look(status).tolist(), self.model)
        self.count([progress])
        if not progress.has_ended:
            self.join(lane, run.cache, call)
        else:
            self.part_with(lane, 0, progress, run.cache, place=0)
        return progress

    def join(self, lane: Lane, cache: RowCache, call: PreparedCall) -> None:
        """Takes in the one row of a lane, whole or not at all."""
        self.cache.join(cache, call.need, self.max_cached_tokens - self.kept.num_tokens)
        host = next((each for each in self.lanes if each.takes(lane)), None)
        if host is None:
            self.lanes.append(lane)
            return
        try:
            host.join(lane)
        except BaseException:
            self.cache.leave(self.cache.num_rows - 1)
            raise

    def take_step(self) -> list[Progress]:
        """Takes all rows on by one forward."""
        rows, num_rows = self.rows, self.cache.num_rows
        width, longest = max(1, *(row.num_queries for row in rows)), max(row.num_committed for row in rows)
        self.prices.update(num_rows, longest)
        self.prices.begin(num_rows, sum(row.num_committed for row in rows))
        for lane in self.lanes:
            lane.draw_noise()
        queries = [lane.queries(width) for lane in self.lanes]
        together = joined(queries, [row.place for row in rows])
        logits = forward_queries(self.model, together, self.cache, longest + width)
        progress = self.move_on(queries, logits)
        self.prices.note(width, num_rows, num_rows, longest, sum(row.num_committed for row in rows))
        self.count(progress)
        ended = {each.name: each for each in progress if each.has_ended}
        for lane in list(self.lanes):
            for i, row in reversed(list(enumerate(lane.rows))):
                if row.name in ended:
                    self.part_with(lane, i, ended[row.name], self.cache, row.place)
                    self.leave(lane, i)
        return progress

    def move_on(self, queries: list[WindowQueries], logits: torch.Tensor) -> list[Progress]:
        """Takes the rows of each lane on by their logits. A lane whose readers fail ends alone."""
        num_kept, looks, progress = torch.zeros_like(self.cache.lengths), [], []
        for lane, own in zip(self.lanes, queries, strict=True):
            places = torch.tensor(lane.places, device=self.device)
            of_lane = logits if lane.places == list(range(len(logits))) else logits[places]
            try:
                kept, look = lane.move_on(own, of_lane[:, : own.asked.shape[1]])
            except Exception as error:
                if lane.readers is None:
                    raise
                progress += [Progress(row.name, [], True, error) for row in lane.rows]
                continue
            num_kept[places] = kept
            looks.append((lane, look))
        self.cache.commit(num_kept)
        width = max((look.shape[1] for _, look in looks), default=0)
        looked = [pad(look, (0, width - look.shape[1])) for _, look in looks]
        values = torch.cat(looked).tolist() if looked else []  # one look at the device
        for lane, _ in looks:
            progress += lane.note(values[: len(lane.rows)], self.model)
            values = values[len(lane.rows) :]
        return progress

    def count(self, progress: list[Progress]) -> None:
        self.counts.steps += 1
        self.counts.row_forwards += len(progress)
        self.counts.tokens += sum(len(each.tokens) for each in progress)

    # --- Rows leave ---

    def part_with(self, lane: Lane, i: int, progress: Progress, cache: RowCache, place: int) -> None:
        """Learns from a row that has ended, and keeps its keys and values, which are at a place of `cache`."""
        if progress.error is not None:
            return
        row = lane.rows[i]
        self.prices.experience.note_drafts(row.first_records, records_of(lane.window, i))
        number = min(row.num_committed, len(row.tokens))
        room = self.max_cached_tokens - max(self.num_tokens_with(), self.cache.num_tokens)
        if self.keeps_texts and row.is_source and 0 < number <= room:
            self.kept.keep(KeptText(row.tokens[:number], cache.entries_of(place, number)), room)

    def leave(self, lane: Lane, i: int) -> None:
        """Drops a row of a lane, and the lane with its last one."""
        place, last = lane.rows[i].place, self.cache.num_rows - 1
        lane.leave(i)
        self.lanes = [each for each in self.lanes if each.rows]
        self.cache.leave(place)
        for row in self.rows:
            if row.place == last:  # The last row of the cache has this place now.
                row.place = place


def joined(queries: list[WindowQueries], places: list[int]) -> WindowQueries:
    """The queries of all lanes, of one width, in the order of the cache: those of lane after lane go to `places`."""
    if len(queries) == 1 and places == list(range(len(places))):
        return queries[0]
    order = torch.tensor(places, device=queries[0].input_ids.device)
    num_asked = max(each.asked.shape[1] for each in queries)
    seen = [each.queries_seen for each in queries]
    if any(each is not None for each in seen):
        width = queries[0].input_ids.shape[1]
        plain = torch.arange(1, width + 1, device=order.device)  # each sees all before it
        seen = [plain.expand(len(q.asked), -1) if s is None else s for s, q in zip(seen, queries, strict=True)]
    back = order.argsort()

    def ordered(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(parts)[back]

    def widened(parts: list[torch.Tensor]) -> torch.Tensor:
        return ordered([pad(part, (0, num_asked - part.shape[1])) for part in parts])

    return WindowQueries(
        input_ids=ordered([each.input_ids for each in queries]),
        position_ids=ordered([each.position_ids for each in queries]),
        num_text=ordered([each.num_text for each in queries]),
        asked=widened([each.asked for each in queries]),
        asked_slots=widened([each.asked_slots for each in queries]),
        is_asked=widened([each.is_asked for each in queries]),
        queries_seen=None if seen[0] is None else ordered(seen),
    )
