"""The batching manager behind the server: requests go in from the event loop, and their outputs come out there."""

import asyncio
import queue
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from secrets import randbits
from typing import Any

from fastapi import HTTPException
from transformers import ContinuousBatchingConfig, PreTrainedModel, logging
from transformers.generation.continuous_batching.requests import GenerationOutput

from wedlm.batching.free_memory import is_out_of_memory
from wedlm.batching.manager import BROKEN, DIED, NO_MEMORY, STOPPED, BatchingManager
from wedlm.serving.http_errors import DEAD, ENDING, FULL, RETRY_AFTER, SERVER_FAILED, sentence_of, timed_out
from wedlm.serving.requests import PreparedRequest
from wedlm.serving.server_metrics import Metrics

logger = logging.get_logger(__name__)

# Templates, tokenizers and the checks of generate() run here: they would stop the event loop for seconds.
preparing = ThreadPoolExecutor(2, "prepare")  # The tokenizer takes a hundred times the memory of a text.
compiling = ThreadPoolExecutor(1, "compile")  # Requests with a grammar wait for each other alone.


async def run_in(pool: ThreadPoolExecutor, function: Callable, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


class LatestOutputs:
    """The newest output of each choice, until a deadline in the time of the event loop.

    A reader that is late misses nothing, for each output holds all tokens.
    """

    def __init__(self, number: int, deadline: float | None = None):
        self.num_running, self.new, self.has_new = number, {}, asyncio.Event()
        self.deadline, self.loop, self.has_left = deadline, asyncio.get_running_loop(), False

    def put(self, index: int, output: GenerationOutput) -> None:
        self.new[index] = output
        self.has_new.set()

    async def __aiter__(self) -> AsyncIterator[tuple[int, GenerationOutput]]:
        while self.num_running:
            async with asyncio.timeout_at(self.deadline):
                await self.has_new.wait()
                await asyncio.sleep(0)  # Else a reader that always finds an output could be late without end.
            self.has_new.clear()
            new, self.new = self.new, {}
            for index, output in new.items():
                self.num_running -= output.is_finished()
                yield index, output


class Engine:
    """The manager of the model, for as long as the server runs; its limits are options of `wedlm serve`."""

    def __init__(
        self,
        model: PreTrainedModel,
        max_batch_size: int,
        max_cached_tokens: int | None,
        max_waiting: int,
        request_timeout: float | None = None,
        fixed_shapes: bool = False,
    ):
        self.request_timeout = request_timeout
        # Without a seed torch's generator would draw one, which is the same one in every process.
        config = ContinuousBatchingConfig(max_requests_per_batch=max_batch_size, seed=randbits(63))
        self.manager = BatchingManager(model, continuous_batching_config=config)
        self.manager.max_waiting, self.manager.fixed_shapes = max_waiting, fixed_shapes
        self.manager.max_cached_tokens = max_cached_tokens or self.manager.max_cached_tokens
        self.manager.full_after = 0  # whoever finds the queue full is told at once
        self.metrics = Metrics(self.manager)

    def stop(self) -> None:
        """Fails all requests; returns when the thread has ended."""
        self.manager.stop(hard_stop=True)

    @property
    def fatal_error(self) -> BaseException | None:
        """What the thread that generates has died of."""
        return self.manager.background_thread_status.fatal_error

    @asynccontextmanager
    async def generate(
        self, request: PreparedRequest, request_id: str, deadline: float | None = None
    ) -> AsyncIterator[LatestOutputs]:
        """The outputs of a request, which is cancelled when the context is left."""
        outputs = LatestOutputs(len(request.choices), deadline)
        try:
            await run_in(preparing, self.add, request, request_id, outputs)
            yield outputs
        finally:
            outputs.has_left = True
            self.cancel(request, request_id)

    def add(self, request: PreparedRequest, request_id: str, outputs: LatestOutputs) -> None:
        """Queues all choices of a request; `generate` cancels those of one that fails."""
        number, most = len(request.choices), self.manager.max_batch_size + self.manager.max_waiting
        if number > most:
            raise ValueError(f"n={number} is more than the {most} texts that may run and wait; ask for fewer.")
        try:
            for index, choice in enumerate(request.choices):
                self.manager.add_request(
                    request.tokens,
                    f"{request_id}-{index}",
                    streaming=request.stream,
                    seed=None if request.seed is None else request.seed + index,
                    generation_config=request.config,
                    logits_processor=choice.logits_processor,
                    stopping_criteria=choice.stopping_criteria,
                    stop_strings=None,  # a criterion of the choice, in place of that of transformers
                )
                self.manager.register_result_handler(
                    f"{request_id}-{index}", partial(outputs.put, index), outputs.loop
                )
        finally:
            if outputs.has_left:
                self.cancel(request, request_id)

    def cancel(self, request: PreparedRequest, request_id: str) -> None:
        for index in range(len(request.choices)):
            self.manager.cancel_request(f"{request_id}-{index}")

    def http_error(self, error: Exception) -> HTTPException:
        """The response to a request that cannot be prepared or queued, or takes too long."""
        if isinstance(error, TimeoutError):
            return timed_out(self.request_timeout)
        if isinstance(error, RecursionError):
            return HTTPException(400, "The request is nested too deeply; flatten it.")
        if isinstance(error, ValueError):  # generate() and pydantic refuse with a ValueError
            return HTTPException(400, sentence_of(error))
        if isinstance(error, queue.Full):
            return HTTPException(429, FULL, RETRY_AFTER)
        if is_out_of_memory(error):
            return HTTPException(503, NO_MEMORY, RETRY_AFTER)
        if self.manager.refusal() is not None:
            return HTTPException(503, DEAD if self.fatal_error is not None else ENDING)
        logger.error("A request has failed.", exc_info=error)
        return HTTPException(500, SERVER_FAILED)

    def failure(self, error: str) -> HTTPException:
        """The response to a request that has failed in the batch."""
        if error == NO_MEMORY:
            return HTTPException(503, NO_MEMORY, RETRY_AFTER)
        if error == STOPPED:
            return HTTPException(503, ENDING)
        if error.startswith(BROKEN):
            return HTTPException(500, SERVER_FAILED)
        return HTTPException(500 if error.startswith(DIED) else 400, sentence_of(error))
