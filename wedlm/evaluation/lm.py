"""lm-eval's model class with parallel decoding underneath: what it asks goes in pieces, and each is asked once."""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput

from wedlm.evaluation.work_file import WorkFile, digest_of

WARM_UP_TOKENS = 8  # before anything is timed
LIKELIHOOD_BATCHES = 16  # in a piece, so that lm-eval can sort by length and share contexts within it
COUNTS = ("tokens", "forwards", "window_rows", "seconds")


def counted(output: GenerateDecoderOnlyOutput) -> dict[str, int]:
    """Sums over the rows of the batch."""
    tokens = output.tokens_per_forward * output.forwards
    rows = tokens / output.prefix_cacheability
    return {
        "tokens": round(float(tokens.sum())),
        "forwards": int(output.forwards.sum()),
        "window_rows": round(float(rows.sum())),
    }


class StopBehindPrompt(StoppingCriteria):
    """Whether one of the texts stands behind the prompt, for each row by itself.

    lm-eval's own criterion ends a batch when all of its rows have had theirs. (transformers' reads the prompt as well,
    and takes seconds to make for a large vocabulary.)
    """

    is_stateless = True

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: list[str], prompt_width: int):
        self.tokenizer, self.texts, self.prompt_width = tokenizer, texts, prompt_width
        # A text may begin inside of a token, and end inside of another.
        self.width = 2 + max(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        ends = self.tokenizer.batch_decode(input_ids[:, self.prompt_width :][:, -self.width :])
        return torch.tensor([any(text in end for text in self.texts) for end in ends], device=input_ids.device)


class DecodingLM(HFLM):
    """HFLM whose generate() gets `arguments`, such as {"decoding": "verified"}, and is counted, task by task.

    What has been answered is kept in `work`. A piece is a batch of generation or a few of likelihoods, always the same
    ones, so that a run that goes on where another stopped computes what that one would have. Draws depend on `seed`
    and the piece alone.
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
        self.counts = defaultdict(lambda: dict.fromkeys(COUNTS, 0))  # by task
        self.counts_of_piece: dict[str, float] = {}
        self.seed_of_piece, self.is_warm = seed, False

    def get_model_info(self) -> dict:
        return {}  # lm-eval's own would ask the network

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        def compute(piece: list[Instance], digest: str) -> dict:
            self.seed_of_piece = int(digest_of([self.seed, digest]), 16) % 2**63
            texts = super(DecodingLM, self).generate_until(piece, disable_tqdm=True)
            return {"answers": texts, **self.counts_of_piece}

        def length(request: Instance) -> tuple[int, str]:
            return -len(self.tok_encode(request.args[0])), request.args[0]

        groups = defaultdict(list)
        for i, request in enumerate(requests):
            groups[request.task_name, json.dumps(request.args[1], sort_keys=True)].append(i)
        pieces = [
            piece
            for group in groups.values()
            for piece in cut(sorted(group, key=lambda i: length(requests[i])), self.batch_size)
        ]
        return self.answered("generate_until", requests, pieces, self.arguments, compute)

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **kwargs: Any) -> torch.Tensor:
        """HFLM's own, but for the criterion, the length and what is asked for beside the text."""
        width = context.shape[1]
        arguments = {**as_lm_eval_samples(kwargs), **self.arguments, "use_cache": True}
        # The tokenizer's end token ends an answer, as with lm-eval, whatever generation_config.json says.
        arguments |= {"pad_token_id": self.tokenizer.pad_token_id, "eos_token_id": self.end_tokens}
        texts = [text for text in stop if text != self.end]
        if texts:
            criterion = StopBehindPrompt(self.tokenizer, texts, width)
            arguments["stopping_criteria"] = StoppingCriteriaList([criterion])

        def generate(max_new_tokens: int) -> GenerateDecoderOnlyOutput:
            # Not max_length, over which a max_new_tokens of generation_config.json would win.
            return self.model.generate(
                context, **arguments, max_new_tokens=max_new_tokens, return_dict_in_generate=True
            )

        if not self.is_warm:
            generate(min(WARM_UP_TOKENS, max_length - width))
            self.is_warm = True
        torch.manual_seed(self.seed_of_piece)
        start = time.perf_counter()
        output = generate(max_length - width)
        counts = counted(output)  # waits for the device
        self.counts_of_piece = {**counts, "seconds": time.perf_counter() - start}
        return output.sequences

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return [tuple(answer) for answer in self.likelihoods("loglikelihood", requests)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        return self.likelihoods("loglikelihood_rolling", requests)

    def likelihoods(self, method: str, requests: list[Instance]) -> list:
        """Exact and causal, whatever the decoding."""

        def compute(piece: list[Instance], digest: str) -> dict:
            return {"answers": getattr(super(DecodingLM, self), method)(piece, disable_tqdm=True)}

        pieces = list(cut(range(len(requests)), LIKELIHOOD_BATCHES * self.batch_size))
        return self.answered(method, requests, pieces, {}, compute)

    def answered(
        self,
        method: str,
        requests: list[Instance],
        pieces: list[list[int]],
        arguments: dict[str, Any],
        compute: Callable[[list[Instance], str], dict],
    ) -> list:
        """The answers in the order of the requests; `pieces` are their indices."""
        answers = [None] * len(requests)
        with tqdm(total=len(requests), unit=" requests", desc=self.description) as bar:
            for number, indices in enumerate(pieces):
                piece = [requests[i] for i in indices]
                asked = [number, piece[0].task_name, [request.args for request in piece], arguments]
                digest = sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
                key = (method, digest)
                if key not in self.work:
                    self.work.add(key, compute(piece, digest))
                result = self.work[key]
                for i, answer in zip(indices, result["answers"], strict=True):
                    answers[i] = answer
                for name in COUNTS if method == "generate_until" else ():
                    self.counts[piece[0].task_name][name] += result[name]
                bar.update(len(piece))
        return answers


def as_lm_eval_samples(kwargs: dict[str, Any]) -> dict[str, Any]:
    """A temperature of 0 is greedy decoding, and so is none at all, unless do_sample says otherwise."""
    kwargs = {"temperature": 0.0, **kwargs}
    if kwargs["temperature"] == 0.0 and not kwargs.setdefault("do_sample", False):
        del kwargs["temperature"]
    return kwargs


def cut(indices: list[int] | range, size: int) -> Iterator[list[int]]:
    return (list(indices[start : start + size]) for start in range(0, len(indices), size))
