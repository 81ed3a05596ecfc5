"""lm-eval's model class on top of parallel decoding; it counts forwards and keeps answers between runs."""

import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM, eval_logger
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput

from wedlm.checkpoints.limited_process import Refused
from wedlm.checkpoints.rendering import render
from wedlm.evaluation.work_file import WorkFile, digest_of

WARM_UP_TOKENS = 8  # generated before anything is timed
LIKELIHOOD_BATCHES = 16  # in one entry of the work file; in it lm-eval sorts by length and shares contexts
COUNTS = ("tokens", "forwards", "window_queries", "seconds")


class StopBehindPrompt(StoppingCriteria):
    """Ends a row once one of the texts stands behind its prompt.

    lm-eval's own criterion ends the batch, once every row has its text. That of transformers reads the prompt as
    well, and takes seconds to build for a large vocabulary.
    """

    is_stateless = True

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: list[str], prompt_width: int):
        self.tokenizer, self.texts, self.prompt_width = tokenizer, texts, prompt_width
        # A text may begin and end within a token.
        self.width = 2 + max(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        ends = self.tokenizer.batch_decode(input_ids[:, self.prompt_width :][:, -self.width :])
        return torch.tensor([any(text in end for text in self.texts) for end in ends], device=input_ids.device)


class DecodingLM(HFLM):
    """lm-eval's HFLM with our generate(), whose tokens and forwards it counts for each task.

    Requests are answered in batches that depend on the requests alone, and samples on the batch and `seed` alone, so a
    run that continues a stopped one has the results of one that was never stopped.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int,
        arguments: dict[str, Any],
        work: WorkFile,
        seed: int,
        description: str,
    ):
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, backend="causal")
        self.arguments, self.work, self.seed, self.description = arguments, work, seed, description
        self.end = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        ends = model.generation_config.eos_token_id
        self.end_tokens = sorted({self.eot_token_id, *(ends if isinstance(ends, list) else [ends])} - {None})
        self.counts = defaultdict(lambda: dict.fromkeys(COUNTS, 0))  # of each task
        self.counts_of_batch: dict[str, float] = {}
        self.seed_of_batch, self.is_warm = seed, False

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Replaces HFLM's method, which has no limits; as there, a template that refuses system messages gets none."""
        arguments = {"continue_final_message": not add_generation_prompt, **self.chat_template_args}
        others = [message for message in chat_history if message["role"] != "system"]
        for messages in (chat_history, others):
            try:
                return render(self.tokenizer, messages, add_generation_prompt=add_generation_prompt, **arguments)
            except Refused as error:
                if messages is others or len(others) == len(chat_history):
                    raise ValueError(
                        f"The chat template of {self.tokenizer.name_or_path} cannot write a question ({error}); "
                        "correct it, or leave out --apply-chat-template."
                    ) from error
                eval_logger.warning(f"The chat template refuses the system message ({error}), which is left out.")

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        def compute(batch: list[Instance], digest: str) -> dict:
            self.seed_of_batch = int(digest_of([self.seed, digest]), 16) % 2**63
            texts = super(DecodingLM, self).generate_until(batch, disable_tqdm=True)
            return {"answers": texts, **self.counts_of_batch}

        groups = defaultdict(list)  # of requests with equal arguments
        for i, request in enumerate(requests):
            groups[request.task_name, json.dumps(request.args[1], sort_keys=True)].append(i)
        prompts = [request.args[0] for request in requests]
        lengths = [len(self.tok_encode(prompt)) for prompt in prompts]
        batches = []
        for group in groups.values():
            longest_first = sorted(group, key=lambda i: (-lengths[i], prompts[i]))
            batches += cut(longest_first, self.batch_size)
        return self.answered("generate_until", requests, batches, self.arguments, compute)

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **kwargs: Any) -> torch.Tensor:
        """Replaces HFLM's method: another stopping criterion, an exact length, and counts beside the tokens."""
        width = context.shape[1]
        if not kwargs["do_sample"]:
            kwargs.pop("temperature", None)  # lm-eval's 0.0, of which transformers warns
        arguments = {**kwargs, **self.arguments, "use_cache": True}
        # As in lm-eval, the tokenizer's end token ends an answer even if generation_config.json has another one.
        arguments |= {"pad_token_id": self.tokenizer.pad_token_id, "eos_token_id": self.end_tokens}
        texts = [text for text in stop if text != self.end]
        if texts:
            criterion = StopBehindPrompt(self.tokenizer, texts, width)
            arguments["stopping_criteria"] = StoppingCriteriaList([criterion])

        def generate(max_new_tokens: int) -> GenerateDecoderOnlyOutput:
            # max_new_tokens in generation_config.json would override max_length.
            return self.model.generate(
                context, **arguments, max_new_tokens=max_new_tokens, return_dict_in_generate=True
            )

        if not self.is_warm:
            generate(min(WARM_UP_TOKENS, max_length - width))
            self.is_warm = True
        torch.manual_seed(self.seed_of_batch)
        start = time.perf_counter()
        output = generate(max_length - width)
        tokens = output.tokens_per_forward * output.forwards
        queries = tokens / output.prefix_cacheability
        summed = [round(float(each.sum())) for each in (tokens, output.forwards, queries)]  # waits for the device
        self.counts_of_batch = dict(zip(COUNTS, [*summed, time.perf_counter() - start], strict=True))
        return output.sequences

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return [tuple(answer) for answer in self.likelihoods("loglikelihood", requests)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        return self.likelihoods("loglikelihood_rolling", requests)

    def likelihoods(self, method: str, requests: list[Instance]) -> list:
        """Answers with exact causal likelihoods, which no decoding changes."""

        def compute(batch: list[Instance], digest: str) -> dict:
            return {"answers": getattr(super(DecodingLM, self), method)(batch, disable_tqdm=True)}

        batches = cut(range(len(requests)), LIKELIHOOD_BATCHES * self.batch_size)
        return self.answered(method, requests, batches, {}, compute)

    def answered(
        self,
        method: str,
        requests: list[Instance],
        batches: list[list[int]],
        arguments: dict[str, Any],
        compute: Callable[[list[Instance], str], dict],
    ) -> list:
        """Returns the answers in the order of the requests and computes those that `work` lacks."""
        answers = [None] * len(requests)
        with tqdm(total=len(requests), unit=" requests", desc=self.description) as bar:
            for number, indices in enumerate(batches):
                batch = [requests[i] for i in indices]
                task = batch[0].task_name
                identity = [number, task, [request.args for request in batch], arguments]
                key = (method, digest_of(identity))
                if key not in self.work:
                    self.work.add(key, compute(batch, key[1]))
                result = self.work[key]
                for i, answer in zip(indices, result["answers"], strict=True):
                    answers[i] = answer
                if method == "generate_until":
                    for name in COUNTS:
                        self.counts[task][name] += result[name]
                bar.update(len(batch))
        return answers


def cut(indices: list[int] | range, size: int) -> list[list[int]]:
    return [list(indices[start : start + size]) for start in range(0, len(indices), size)]
