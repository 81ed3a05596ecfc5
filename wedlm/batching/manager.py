"""Continuous batching in parallel decodings, behind the interface of transformers' own manager."""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from itertools import count
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel, logging
from transformers.generation.continuous_batching.continuous_api import (
    BackgroundThreadStatus,
    ContinuousBatchingManager,
)
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestState, RequestStatus

from wedlm.batching.free_memory import free_memory, is_out_of_memory
from wedlm.batching.request import Request
from wedlm.batching.scheduler import BatchCounts, Scheduler, scores_bytes
from wedlm.batching.settings_group import StepOutput
from wedlm.generation.model_kind import text_config_of

logger = logging.get_logger(__name__)

MAX_BATCH_SIZE = 64
SHARE_OF_MEMORY = 0.5  # of what is free, for keys and values
SHARE_OF_WORK = 0.25  # for noise and scores
IDLE = 0.1  # seconds after which an idle thread checks whether it is to stop or to pause
FULL_AFTER = 10.0  # seconds that `add_request` waits while the queue is full
NO_MEMORY = "There was too little memory for the request; send it again later, or ask for fewer tokens."
CANCELLED = "The request was cancelled."
STOPPED = "The manager was stopped before the request had ended."
DIED = "The thread that generates has died"
BROKEN = "The request has failed:"  # in front of an error that is no refusal


class BatchingManager(ContinuousBatchingManager):
    """transformers' manager of continuous batching, with requests that decode in parallel.

    A thread admits requests in the order in which they came, as long as there is room, and writes for each the text
    that `generate()` would write for it alone. Each request has its own settings.

    Args:
        model (`PreTrainedModel`): The model.
        generation_config (`GenerationConfig`, *optional*): The settings of requests that say nothing else; by default
            the model's.
        continuous_batching_config (`ContinuousBatchingConfig`, *optional*): Of it are used: `max_requests_per_batch`
            (the most rows of a forward, 64 by default); `num_blocks` times the size of a block (the most tokens whose
            keys and values are in memory; by default what half of the free memory holds, or `max_memory_percent` of
            it); `max_queue_size` (the most requests that wait); `allow_block_sharing` (whether keys and values stay
            for the next text with the same beginning); `seed` (of what is drawn; by default torch's generator draws
            it).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        generation_config: GenerationConfig | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
    ):
        config = continuous_batching_config or ContinuousBatchingConfig()
        self.model, self.generation_config = model.eval(), copy(generation_config)
        if generation_config is not None:
            self.generation_config.use_cache = None  # transformers' server says False: a manager has its own cache
        self.continuous_batching_config = config
        self.max_cached_tokens = cached_tokens_of(model, config)
        self.max_work_bytes = int(SHARE_OF_WORK * free_memory(model.device))
        self.fixed_shapes = False  # whether each request has forwards of its own, as Scheduler says
        self.max_batch_size = config.max_requests_per_batch or MAX_BATCH_SIZE
        self.max_waiting, self.full_after = config.max_queue_size or None, FULL_AFTER
        given = generation_config or model.generation_config
        self.num_return_sequences = given.num_return_sequences or 1
        self.captures = given.cache_implementation == "static"  # whether forwards become CUDA graphs
        self.background_thread_status = BackgroundThreadStatus()
        self.scheduler: Scheduler | None = None
        self.counts = BatchCounts()
        self.changed = threading.Condition()  # guards the six below, and wakes the thread and whoever waits
        self.waiting: dict[str, Request] = {}  # in order
        self.running: dict[str, Request] = {}
        self.cancelled: set[str] = set()
        self.can_admit_next = True  # whether there is room for the first one that waits
        self.outputs: deque[GenerationOutput] = deque()  # in order, but for those that a handler takes
        self.handlers: dict[str, tuple[Callable, asyncio.AbstractEventLoop]] = {}  # each is called in its event loop
        self.generator = torch.Generator()
        self.generator.manual_seed(torch.randint(2**63 - 1, ()).item() if config.seed is None else config.seed)
        self._generation_thread = None
        self._wake_up_loop = threading.Event()  # transformers' `pause` sets it
        self.numbers = count()  # of requests without an id
        self.warmed_up = True

    # --- Requests ---

    def add_request(
        self,
        input_ids: list[int],
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        streaming: bool = False,
        record_timestamps: bool = False,
        eos_token_id: int | list[int] | None = None,
        seed: int | None = None,
        generation_config: GenerationConfig | None = None,
        **settings: Any,
    ) -> str:
        """Adds a request; returns its id. What generate() refuses, and what can never fit, is refused at once.

        None stands for the setting of the config. `max_time` counts from here.

        Args:
            input_ids (`list[int]`): The prompt.
            request_id (`str`, *optional*): The id; by default a new one.
            max_new_tokens (`int`, *optional*): The most new tokens.
            streaming (`bool`, *optional*, defaults to `False`): Whether there is an output behind every step.
            record_timestamps (`bool`, *optional*, defaults to `False`): Whether outputs say when each token came.
            eos_token_id (`int` or `list[int]`, *optional*): The tokens that end the text; -1 for none.
            seed (`int`, *optional*): The seed of sampled text.
            generation_config (`GenerationConfig`, *optional*): The request's own settings, in place of the manager's.
            settings (*optional*): What else generate() takes.
        """
        settings |= {"max_new_tokens": max_new_tokens, "eos_token_id": eos_token_id}
        requests = self.prepare(
            input_ids, request_id, streaming, record_timestamps, seed, generation_config, **settings
        )
        self.enqueue(requests)
        return requests[-1].request_id

    def add_requests(
        self,
        inputs: list[list[int]],
        max_new_tokens: int | None = None,
        streaming: bool = False,
        record_timestamps: bool = False,
        **settings: Any,
    ) -> list[str]:
        """Adds a request for each prompt, or none if one is refused; returns their ids."""
        settings |= {"max_new_tokens": max_new_tokens, "streaming": streaming, "record_timestamps": record_timestamps}
        prepared = [self.prepare(tokens, **settings) for tokens in inputs]
        for requests in prepared:
            self.enqueue(requests)
        return [requests[-1].request_id for requests in prepared]

    def prepare(
        self,
        input_ids: list[int],
        request_id: str | None = None,
        streaming: bool = False,
        record_timestamps: bool = False,
        seed: int | None = None,
        generation_config: GenerationConfig | None = None,
        **settings: Any,
    ) -> list[Request]:
        """Resolves and checks the requests of a prompt: one for each text, the last of which has the id itself."""
        if (refusal := self.refusal()) is not None:  # asked without the lock, which a fork may have left locked
            raise RuntimeError(refusal)
        tokens = prompt_tokens(input_ids)
        if generation_config is not None and (number := generation_config.num_return_sequences or 1) > 1:
            raise ValueError(
                f"num_return_sequences={number} is not offered for a request of a batch, which has that of the "
                "manager; leave it out."
            )
        for name in ("max_new_tokens", "eos_token_id"):
            if settings.get(name, 0) is None:
                del settings[name]
        if request_id is None:
            request_id = f"req_{next(self.numbers)}"
        config, requests = generation_config or self.generation_config, []
        shapes = self.fixed_shapes, self.captures
        for name in self.text_ids(request_id):
            state = RequestState(name, tokens, streaming=streaming, record_timestamps=record_timestamps)
            own_seed = seed if name == request_id else None
            if own_seed is None:
                own_seed = torch.randint(2**63 - 1, (), generator=self.generator).item()
            request = Request.from_settings(self.model, state, config, settings, own_seed, *shapes)
            self.check_size(request)
            requests.append(request)
        return requests

    def text_ids(self, request_id: str) -> list[str]:
        """The ids of the texts for one prompt, as many as `num_return_sequences`."""
        return [f"{request_id}__child#{i}" for i in range(self.num_return_sequences - 1)] + [request_id]

    def check_size(self, request: Request) -> None:
        work = request.noise_bytes + scores_bytes(self.model, request.budget.queries)
        if work > self.max_work_bytes:
            raise ValueError(
                f"window_size={request.call.window_size} needs {work // 2**20} MiB for scores and what is drawn, "
                f"and there is room for {self.max_work_bytes // 2**20} MiB; make it smaller."
            )
        if (number := sum(request.budget)) > self.max_cached_tokens:
            raise ValueError(
                f"A prompt of {request.prompt_length} tokens with max_new_tokens={request.max_new_tokens} needs room "
                f"for {number} cached tokens, and there is room for {self.max_cached_tokens}; shorten one of "
                "the two, or raise num_blocks of the ContinuousBatchingConfig (--max-cached-tokens of wedlm serve)."
            )

    def enqueue(self, requests: list[Request]) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.refusal() is not None or not self.is_full(), timeout=self.full_after)
            if (refusal := self.refusal()) is not None:
                raise RuntimeError(refusal)
            if self.is_full():
                raise queue.Full(f"max_queue_size={self.max_waiting} requests wait; try again later.")
            new = {request.request_id: request for request in requests}
            for name in new:
                if self.is_active(name):
                    raise ValueError(f"request_id={name!r} is that of a request under way; choose another, or none.")
            self.cancelled -= new.keys()  # Earlier requests of these ids ended before they could be cancelled.
            self.waiting |= new
            self.changed.notify_all()

    def is_active(self, request_id: str) -> bool:
        return request_id in self.running or request_id in self.waiting

    def is_full(self) -> bool:
        """Whether the queue has no room, in which those do not count who can be admitted at once."""
        num_free = max(self.max_batch_size - len(self.running), 0) if self.can_admit_next else 0
        return self.max_waiting is not None and len(self.waiting) >= self.max_waiting + num_free

    def refusal(self) -> str | None:
        """Why there can be no new requests, if there is a reason."""
        if (error := self.background_thread_status.fatal_error) is not None:
            return f"{DIED} ({type(error).__name__}: {error}); start the manager again."
        if self.background_thread_status.can_accept_new_requests() is not None:
            return "The manager is stopping, or was stopped; start it again."
        if self._generation_thread is not None and not self.is_running():
            return "The thread that generates is in the process that forked this one; start a manager in this one."
        return None

    def cancel_request(self, request_id: str) -> None:
        """Ends all texts of a request with the next step; their last outputs say so."""
        with self.changed:
            self.cancelled.update(name for name in (request_id, *self.text_ids(request_id)) if self.is_active(name))
            self.changed.notify_all()

    # --- Outputs ---

    def generate_all(
        self, inputs: list[list[int]], record_timestamps: bool, progress_bar: bool, settings: dict
    ) -> dict[str, GenerationOutput]:
        """Starts with a request for each prompt, and stops when they have ended; returns their outputs in order."""
        self.max_waiting = None
        number, outputs = len(inputs) * self.num_return_sequences, {}
        self.captures |= settings.get("cache_implementation") == "static"
        self.start()
        try:
            ids = self.add_requests(inputs, record_timestamps=record_timestamps, **settings)
            with logging.tqdm(total=number, disable=not progress_bar, unit="request") as bar:
                while len(outputs) < number:
                    output = self.get_result(timeout=1)
                    if output is None and not self.is_running():
                        raise RuntimeError(self.refusal())
                    if output is not None and output.is_finished():
                        outputs[output.request_id] = output
                        bar.update()
        finally:
            self.stop(hard_stop=True)
        if failed := [output for output in outputs.values() if output.error is not None]:
            logger.error(f"{len(failed)} of {number} requests failed. The error of the first: {failed[0].error}")
        return {each: outputs[each] for request_id in ids for each in self.text_ids(request_id)}

    def register_result_handler(
        self, request_id: str, callback: Callable, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Has `callback` called in `loop`, by default the running one, with every output, earlier ones too."""
        with self.changed:
            self.handlers[request_id] = callback, loop or asyncio.get_running_loop()
            earlier, self.outputs = self.outputs, deque()
            for output in earlier:
                self.hand_over(output)

    def hand_over(self, output: GenerationOutput) -> None:
        """Gives an output to the handler of its request, or to those who wait for outputs."""
        with self.changed:
            if output.request_id not in self.handlers:
                self.outputs.append(output)
                self.changed.notify_all()
                return
            callback, loop = self.handlers[output.request_id]
            with suppress(RuntimeError):  # where the loop is closed
                loop.call_soon_threadsafe(callback, output)
            if output.is_finished():
                del self.handlers[output.request_id]

    def get_result(self, request_id: str | None = None, timeout: float | None = None) -> GenerationOutput | None:
        """The next output, or the next one of a request; None if none came in so many seconds, or none can come."""

        def found() -> GenerationOutput | None:
            return next((each for each in self.outputs if request_id in (None, each.request_id)), None)

        with self.changed:
            self.changed.wait_for(lambda: found() is not None or not self.may_deliver(), timeout)
            if (output := found()) is not None:
                self.outputs.remove(output)
            return output

    def __iter__(self):
        """Iterates over outputs as long as any can come."""
        return iter(self.get_result, None)

    def request_id_iter(self, request_id: str):
        """Iterates over the outputs of a request."""
        while (output := self.get_result(request_id)) is not None:
            yield output
            if output.is_finished():
                return

    def may_deliver(self) -> bool:
        """Whether the thread may still deliver something."""
        status = self.background_thread_status
        return self.is_running() and status.local_status != status.STOPPED

    # --- The thread ---

    def warmup(self) -> None:
        """Nothing: the first steps of a batch need no preparation."""

    def stop(
        self,
        block: bool = True,
        timeout: float | None = None,
        keep_for_next_session: bool = False,
        hard_stop: bool = False,
    ) -> None:
        """Stops the thread: when all requests have ended, or at once (`hard_stop`), which fails them.

        A manager keeps nothing for the next session, so `keep_for_next_session` has no effect.
        """
        if self._generation_thread is None:
            logger.warning("The manager was not started.")
            return
        if self.is_pause_requested(local=True):
            raise RuntimeError("The manager cannot stop inside its own pause; leave `with manager.pause():` first.")
        status = BackgroundThreadStatus.HARD_STOP if hard_stop else BackgroundThreadStatus.FLUSH_AND_STOP
        self.background_thread_status.request_stop(status, 0)
        with self.changed:
            self.changed.notify_all()
        if block:
            self.join(time.perf_counter(), timeout)

    def destroy(self) -> None:
        """Stops the thread if it runs."""
        if self.is_running():
            self.stop()

    def is_pause_requested(self, **local: bool) -> bool:
        # (The oldest versions of transformers cannot pause.)
        return hasattr(self.background_thread_status, "is_pause_requested") and (
            self.background_thread_status.is_pause_requested(**local)
        )

    def _run_generation_loop(self, use_inference_mode: bool = False) -> None:
        status = self.background_thread_status
        try:
            if self.model.device.type == "cuda":
                torch.cuda.set_device(self.model.device)  # It is that of a thread.
            self.scheduler = self.new_scheduler()
            self.counts = self.scheduler.counts
            with torch.inference_mode(use_inference_mode), torch.no_grad():
                while self.wait_for_work():
                    self.step()
            self.fail_all(STOPPED)
        except BaseException as error:
            logger.exception("The thread that generates has died.")
            status.record_fatal_error(error.with_traceback(None))  # whose frames hold the batch
            self.fail_all(f"{DIED} ({type(error).__name__}: {error}).")
        finally:
            self.scheduler = None
            status.mark_as_stopped()
            with self.changed:
                self.changed.notify_all()

    def new_scheduler(self) -> Scheduler:
        chunk_size = 256 if self.model.device.type == "cpu" else 1024
        use_prefix_cache = self.continuous_batching_config.allow_block_sharing
        limits = self.max_cached_tokens, chunk_size, use_prefix_cache, self.max_work_bytes
        return Scheduler(self.model, *limits, self.fixed_shapes, self.captures)

    def wait_for_work(self) -> bool:
        """Waits for something to do, if there is nothing; returns False when the thread is to end."""
        status = self.background_thread_status
        if self.is_pause_requested():
            status.pause_and_wait()
            self.scheduler.clear_prefix_cache()
        with self.changed:
            if not (self.waiting or self.running or self.cancelled) and status.local_status == status.DONT_STOP:
                self.changed.wait(timeout=IDLE)
            if status.local_status == status.FLUSH_AND_STOP:
                return bool(self.waiting or self.running)
        return status.local_status == status.DONT_STOP

    def step(self) -> None:
        """Removes what was cancelled, admits what fits, takes a step, and delivers what it has brought.

        Where memory is refused and the scheduler cannot say for which request, all that run fail, and those that wait
        go on.
        """
        try:
            self.remove_cancelled()
            self.admit()
            outputs = self.scheduler.step()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            outputs = [StepOutput(each, [], True, error.with_traceback(None)) for each in self.running.values()]
            self.scheduler = None  # before there is another one
            self.scheduler = self.new_scheduler()
            self.scheduler.counts = self.counts
        for output in outputs:
            self.deliver(output)

    def remove_cancelled(self) -> None:
        if not self.cancelled:
            return
        with self.changed:
            names, self.cancelled = self.cancelled, set()
            removed = [each.pop(name) for each in (self.running, self.waiting) for name in names if name in each]
            self.changed.notify_all()
        self.scheduler.remove(removed)
        for request in removed:
            self.fail(request, CANCELLED)

    def admit(self) -> None:
        """Moves requests from waiting to running, in order, as long as the cache budget allows."""
        while True:
            with self.changed:
                request = next(iter(self.waiting.values()), None)
                self.can_admit_next = request is None or self.scheduler.can_admit(request)
                is_full = len(self.running) >= self.max_batch_size
                if request is None or not self.can_admit_next or is_full:
                    return
                self.running[request.request_id] = self.waiting.pop(request.request_id)
                self.changed.notify_all()
            request.state.status = RequestStatus.PREFILLING
            self.scheduler.add(request)

    def deliver(self, output: StepOutput) -> None:
        """Delivers what a step has brought a request."""
        request, error = output.request, output.error
        state = request.state
        state.generated_tokens += output.tokens
        if state.record_timestamps:
            state.timestamps.extend([time.perf_counter()] * len(output.tokens))
        if output.has_ended:
            with self.changed:
                del self.running[request.request_id]
        if error is None:
            state.status = RequestStatus.FINISHED if output.has_ended else RequestStatus.DECODING
            if output.has_ended or (state.streaming and output.tokens):
                self.hand_over(state.to_generation_output())
        elif isinstance(error, ValueError):
            self.fail(request, str(error))
        elif is_out_of_memory(error):
            logger.error(f"Memory was refused for a request of {request.prompt_length} tokens.")
            self.fail(request, NO_MEMORY)
        else:
            logger.error("A request has failed.", exc_info=error)
            self.fail(request, f"{BROKEN} {type(error).__name__}: {error}")

    def fail(self, request: Request, error: str) -> None:
        request.state.status, request.state.error = RequestStatus.FAILED, error
        self.hand_over(request.state.to_generation_output())

    def fail_all(self, error: str) -> None:
        with self.changed:
            requests = [*self.running.values(), *self.waiting.values()]
            self.running.clear()
            self.waiting.clear()
            self.cancelled.clear()
        for request in requests:
            self.fail(request, error)


def prompt_tokens(input_ids: Any) -> list[int]:
    """The tokens of a prompt: a list, or a tensor of one row."""
    tokens = input_ids.tolist() if isinstance(input_ids, torch.Tensor) else input_ids
    tokens = list(tokens) if isinstance(tokens, Iterable) else []
    if len(tokens) == 1 and isinstance(tokens[0], list):
        tokens = tokens[0]
    if not tokens or not all(type(token) is int for token in tokens):
        raise ValueError(
            "input_ids of a request is one prompt: a list of at least one token id, such as tokenizer(text)"
            f".input_ids; this is {str(input_ids)[:60]!r}."
        )
    return tokens


def cached_tokens_of(model: PreTrainedModel, config: ContinuousBatchingConfig) -> int:
    """The cached tokens that the config asks for by blocks, or those for which the free memory has room."""
    if config.num_blocks:
        return config.num_blocks * (getattr(config, "page_size", None) or config.block_size)
    shape = text_config_of(model)
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    width = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    bytes_of_token = 2 * shape.num_hidden_layers * heads * width * model.dtype.itemsize
    return int(free_memory(model.device) * (config.max_memory_percent or SHARE_OF_MEMORY) / bytes_of_token)
