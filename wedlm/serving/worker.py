"""The one thread that generates; requests wait for it in line."""

import asyncio

import torch
from transformers import GenerationConfig, logging
from transformers.cli.serving.utils import GenerateManager, GenerationState, _GenerationCancelled

from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM
from wedlm.serving.committed_text import CommittedText
from wedlm.serving.errors import ENDING, FAILED, sentence_of, stream_error
from wedlm.serving.stop_strings import before_stop

logger = logging.get_logger(__name__)


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

    def stop(self) -> None:
        """Ends the running request with its next forward and all that wait; returns when the thread is idle."""
        self.is_ending = True
        self.submit(int).result()

    def _generate(self, model: WeDLMForCausalLM, generation_config: GenerationConfig, **kwargs) -> torch.Tensor:
        # The seed is set here, in line, because another request may be drawing when this one arrives.
        seed = vars(generation_config).pop("seed")
        if seed is None:
            torch.seed()  # or the draws would go on from the seed of another request
        else:
            torch.manual_seed(seed)
        with model.register_forward_pre_hook(self._end_if_told):
            return model.generate(generation_config=generation_config, **kwargs)

    def _end_if_told(self, *_) -> None:
        if self.is_ending:
            raise _GenerationCancelled

    def generate_streaming(self, model, processor, inputs, gen_config, request_id, response_parser=None):
        loop, queue = asyncio.get_running_loop(), asyncio.Queue()
        streamer = CommittedText(processor, loop, queue, response_parser, gen_config.stop_strings)

        def run() -> None:
            last = None
            try:
                self._generate(model, gen_config, **inputs, tokenizer=processor, streamer=streamer)
                streamer.flush()
            except _GenerationCancelled:
                last = stream_error(ENDING)  # nobody reads it if it was the client who left
            except ValueError as error:
                last = stream_error(sentence_of(error))
            except Exception:
                logger.exception("generate() failed.")
                last = stream_error(FAILED)
            loop.call_soon_threadsafe(queue.put_nowait, last)

        self.submit(run)
        return queue, streamer

    async def generate_non_streaming(self, model, processor, inputs, gen_config, request_id):
        sequences = await self.async_submit(self._generate, model, gen_config, **inputs, tokenizer=processor)
        prompt_length = inputs["input_ids"].shape[-1]
        token_ids = sequences[0, prompt_length:]
        text = before_stop(processor.decode(token_ids, skip_special_tokens=True), gen_config.stop_strings)
        return text, prompt_length, token_ids
