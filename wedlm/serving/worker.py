"""The one thread that generates; requests wait for it in line."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar

import torch
from fastapi import HTTPException
from transformers import GenerationConfig, logging
from transformers.cli.serving.utils import GenerateManager, GenerationState, _GenerationCancelled

from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM
from wedlm.serving.committed_text import CommittedText
from wedlm.serving.errors import ENDING, FAILED, FULL, STATUS_OF, sentence_of, stream_error
from wedlm.serving.limits import REQUESTS_IN_LINE
from wedlm.serving.stop_strings import before_stop

logger = logging.get_logger(__name__)

# Set when the client of the request has left. transformers' handlers pass no request on to the worker.
client_has_left: ContextVar[threading.Event] = ContextVar("client_has_left", default=threading.Event())  # noqa: B039


class OneAtATime(GenerationState):
    """transformers' choice of a generation manager: here the one worker, whatever the model."""

    def __init__(self):
        super().__init__()
        self.worker = Worker()

    def get_manager(self, model_id: str, use_cb: bool = False) -> "Worker":
        return self.worker

    def shutdown(self) -> None:
        self.worker.stop()


class Worker(GenerateManager):
    """Runs `generate()` for one request after the other, in transformers' thread."""

    def __init__(self):
        super().__init__()
        self.is_ending = False
        self.places = threading.BoundedSemaphore(REQUESTS_IN_LINE)

    def stop(self) -> None:
        """Ends the running request with its next forward and all that wait; returns when the thread is idle."""
        self.is_ending = True
        self.submit(int).result()

    def in_line(self, job: Callable) -> Future:
        """Runs the job when those before it have ended; refuses it if too many wait."""
        if not self.places.acquire(blocking=False):
            raise HTTPException(STATUS_OF[FULL], FULL)
        future = self.submit(job)
        future.add_done_callback(lambda _: self.places.release())
        return future

    def _generate(
        self, model: WeDLMForCausalLM, generation_config: GenerationConfig, has_left: threading.Event, **kwargs
    ) -> torch.Tensor:
        def end_if_told(*_) -> None:
            if self.is_ending or has_left.is_set():
                raise _GenerationCancelled

        end_if_told()  # its client may have left while it waited
        # The seed is set here, in line, because another request may be drawing when this one arrives.
        seed = vars(generation_config).pop("seed")
        if seed is None:
            torch.seed()  # or the draws would go on from the seed of another request
        else:
            torch.manual_seed(seed)
        with model.register_forward_pre_hook(end_if_told):
            return model.generate(generation_config=generation_config, **kwargs)

    def generate_streaming(self, model, processor, inputs, gen_config, request_id, response_parser=None):
        loop, queue, has_left = asyncio.get_running_loop(), asyncio.Queue(), client_has_left.get()
        streamer = CommittedText(processor.whole, loop, queue, response_parser, gen_config.stop_strings)

        def run() -> None:
            last = None
            try:
                self._generate(model, gen_config, has_left, **inputs, tokenizer=processor.whole, streamer=streamer)
                streamer.flush()
            except _GenerationCancelled:
                last = stream_error(ENDING)  # nobody reads it if it was the client who left
            except ValueError as error:
                last = stream_error(sentence_of(error))
            except Exception:
                logger.exception("generate() failed.")
                last = stream_error(FAILED)
            loop.call_soon_threadsafe(queue.put_nowait, last)

        self.in_line(run)
        return queue, streamer

    async def generate_non_streaming(self, model, processor, inputs, gen_config, request_id):
        has_left = client_has_left.get()

        def run() -> tuple[str, int, torch.Tensor]:
            sequences = self._generate(model, gen_config, has_left, **inputs, tokenizer=processor.whole)
            prompt_length = inputs["input_ids"].shape[-1]
            token_ids = sequences[0, prompt_length:]
            text = before_stop(processor.decode(token_ids, skip_special_tokens=True), gen_config.stop_strings)
            return text, prompt_length, token_ids

        # The shield keeps the future whole for transformers' thread, which sets its result.
        return await asyncio.shield(asyncio.wrap_future(self.in_line(run)))
