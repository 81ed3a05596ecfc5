"""The running batch behind the server: requests go in from the event loop, and their texts come out there."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from secrets import randbits
from typing import Any

from fastapi import HTTPException
from transformers import ContinuousBatchingConfig, PreTrainedTokenizerBase, logging
from transformers.generation.continuous_batching.requests import GenerationOutput

from wedlm.batching.free_memory import is_out_of_memory
from wedlm.batching.manager import BROKEN, DIED, NO_MEMORY, STOPPED, BatchingManager
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM
from wedlm.serving.asked import Asked
from wedlm.serving.errors import DEAD, ENDING, FAILED, line_is_full, no_memory, sentence_of
from wedlm.serving.limits import PREPARED_AT_ONCE
from wedlm.serving.metrics import Load, Metrics

logger = logging.get_logger(__name__)

# Templates, tokenizers and the checks of generate() work here: they would stop the event loop for seconds.
preparing = ThreadPoolExecutor(PREPARED_AT_ONCE, "prepare")
compiling = ThreadPoolExecutor(1, "compile")  # Requests with a grammar wait for each other alone.


async def prepared(pool: ThreadPoolExecutor, work: Callable, *arguments: Any) -> Any:
    """Has some work of a request done by a pool of threads."""
    return await asyncio.get_running_loop().run_in_executor(pool, partial(work, *arguments))


class LatestOutputs:
    """The newest output of each text of a request; a reader that is late misses nothing, for each holds all tokens.

    Args:
        number (`int`): The number of texts.
        deadline (`float`, *optional*): When waiting for them ends with a TimeoutError, by the clock of the event loop.
    """

    def __init__(self, number: int, deadline: float | None = None):
        self.num_running, self.new, self.has_new = number, {}, asyncio.Event()
        self.deadline = deadline

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
    """The model's running batch, for as long as the server runs.

    Args:
        model (`WeDLMForCausalLM`): The model.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        max_batch_size (`int`): The most rows of a forward.
        max_cached_tokens (`int`, *optional*): The most tokens whose keys and values are in memory; by default what
            half of the free memory holds.
        max_waiting (`int`): The most requests that wait.
        request_timeout (`float`, *optional*): The seconds after which a request ends unanswered.
        fixed_shapes (`bool`, *optional*, defaults to `False`): Whether each text has forwards of its own, so that
            equal requests get one text in every dtype.
    """

    def __init__(
        self,
        model: WeDLMForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
        max_batch_size: int,
        max_cached_tokens: int | None,
        max_waiting: int,
        request_timeout: float | None = None,
        fixed_shapes: bool = False,
    ):
        self.request_timeout = request_timeout
        self.tokenizer = tokenizer
        # Without a seed torch's generator would draw one, which is the same one in every process.
        config = ContinuousBatchingConfig(max_requests_per_batch=max_batch_size, seed=randbits(63))
        self.manager = BatchingManager(model, continuous_batching_config=config)
        self.manager.max_waiting, self.manager.fixed_shapes = max_waiting, fixed_shapes
        self.manager.max_cached_tokens = max_cached_tokens or self.manager.max_cached_tokens
        self.manager.full_after = 0  # whoever finds the line full is told at once
        self.metrics = Metrics(partial(Load.of, self.manager))

    def start(self) -> None:
        self.manager.start()

    def stop(self) -> None:
        """Fails all requests; returns when the thread has ended."""
        self.manager.stop(hard_stop=True)

    @property
    def is_dead(self) -> bool:
        return self.death is not None

    @property
    def death(self) -> BaseException | None:
        """What the thread that generates has died of, if it has."""
        return self.manager.background_thread_status.fatal_error

    @asynccontextmanager
    async def texts(self, asked: Asked, name: str, deadline: float | None = None) -> AsyncIterator[LatestOutputs]:
        """The outputs of a request, which ends when its reader leaves.

        Args:
            asked (`Asked`): The request.
            name (`str`): Its id.
            deadline (`float`, *optional*): When waiting for an output ends with a TimeoutError.
        """
        outputs, has_left = LatestOutputs(asked.number, deadline), threading.Event()
        try:
            await prepared(preparing, self.add, asked, name, outputs, asyncio.get_running_loop(), has_left)
            yield outputs
        finally:
            has_left.set()
            self.cancel(asked, name)

    def add(
        self,
        asked: Asked,
        name: str,
        outputs: LatestOutputs,
        loop: asyncio.AbstractEventLoop,
        has_left: threading.Event,
    ) -> None:
        """Puts the texts of a request in line, all or none of them."""
        try:
            if asked.number > (most := self.manager.max_batch_size + self.manager.max_waiting):
                raise ValueError(
                    f"n={asked.number} is more than the {most} texts that may run and wait; ask for fewer."
                )
            for index in range(asked.number):
                self.manager.add_request(
                    asked.tokens,
                    f"{name}-{index}",
                    streaming=asked.streams,
                    seed=None if asked.seed is None else asked.seed + index,
                    generation_config=asked.config,
                    **asked.readers(index, self.tokenizer),
                )
                self.manager.outputs.register(f"{name}-{index}", partial(outputs.put, index), loop)
        except Exception as error:
            self.cancel(asked, name)
            raise self.refusal(error) from error
        if has_left.is_set():
            self.cancel(asked, name)

    def cancel(self, asked: Asked, name: str) -> None:
        for index in range(asked.number):
            self.manager.cancel_request(f"{name}-{index}")

    def refusal(self, error: Exception) -> HTTPException:
        """The answer to a request that cannot be put in line."""
        if isinstance(error, ValueError):  # generate() refuses with a ValueError
            return HTTPException(400, sentence_of(error))
        if isinstance(error, queue.Full):
            return line_is_full()
        if is_out_of_memory(error):
            return no_memory()
        if self.manager.refusal() is not None:
            return HTTPException(503, DEAD if self.is_dead else ENDING)
        logger.exception("A request could not be prepared.")
        return HTTPException(500, FAILED)

    def failure(self, error: str) -> HTTPException:
        """The answer to a request that has failed in the batch."""
        if error.startswith(DIED):
            return HTTPException(500, sentence_of(error))
        if error == NO_MEMORY:
            return no_memory()
        if error == STOPPED:
            return HTTPException(503, ENDING)
        if error.startswith(BROKEN):
            return HTTPException(500, FAILED)
        return HTTPException(400, sentence_of(error))
