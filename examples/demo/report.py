"""`make demo-report`: measures how right and how fast the demo checkpoint is, on held-out questions of every kind.

    python -m examples.demo.report [FOLDER] [--num_examples 1000] [--only_examples]

1. Every decoding answers the same held-out questions in batches, and checkers accept or refuse the answers. These are
   kept in build/demo-report, so that a run that was interrupted goes on where it stopped.
2. Every decoding answers some of the questions once more, one at a time and in turns, against the clock.
3. The numbers go into report.json in the checkpoint's folder, from which `card.py` writes the model card.

The card also shows some answers as the present code writes them. With --only_examples they alone are written anew.
"""

import argparse
import json
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from huggingface_hub.utils import tqdm
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from examples.demo.example import Example
from examples.demo.tasks import KINDS, MAX_NEW_TOKENS, batch_of, check, held_out_examples
from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.whole_file import write_whole
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import conditions, record_text, weights_digest, write_report
from wedlm.evaluation.sweep import median_and_quartiles, resampled_means
from wedlm.evaluation.timing import interleaved
from wedlm.evaluation.work_file import WorkFile

DECODINGS = {
    "autoregressive": {"decoding": "autoregressive"},
    "streaming": {"decoding": "streaming"},  # with the checkpoint's own settings
    "streaming, threshold 0.4": {"decoding": "streaming", "entropy_threshold": 0.4},
    "streaming, threshold 1.0": {"decoding": "streaming", "entropy_threshold": 1.0},
    "blockwise": {"decoding": "blockwise"},
    "verified": {"decoding": "verified"},
    "verified, window 24": {"decoding": "verified", "window_size": 24},
}
WIDE = "verified, window 24"  # with more tokens per forward; on two cores its forwards cost more than these bring
BATCH_SIZE = 50
NUM_TIMED, ROUNDS = 10, 3  # examples of each kind that are timed, and how often each
WORK = Path("build/demo-report")
LEAST_RIGHT = 0.95  # the goals: token by token, on all kinds but stories
TOKENS_PER_FORWARD = dict(zip(KINDS, (9, 8, 9, 7, 8, 4), strict=True))  # in WIDE
MOST_LOST, KINDS_KEPT = 0.03, 4  # by streaming, with the checkpoint's own settings
EXAMPLES = ("counting", "word_problems")  # kinds whose first held-out question is shown on the card


class Answer(NamedTuple):
    """The answer of one decoding to one question."""

    text: str
    is_right: bool
    tokens: int  # the end token included
    forwards: int
    window_queries: int  # tokens / window_queries is the prefix cacheability
    nll: float  # sum over the tokens of the answer, each given those before it, in nats


@torch.no_grad()
def answers_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example], settings: dict
) -> list[Answer]:
    """Answers the questions greedily in one batch, `settings` being arguments of `generate()`."""
    inputs = batch_of(tokenizer, examples, model.device)
    output = model.generate(
        **inputs, **settings, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, return_dict_in_generate=True
    )
    tokens = output.sequences[:, inputs["input_ids"].shape[1] :]
    is_end = tokens == tokenizer.eos_token_id
    is_token = is_end.cumsum(1) - is_end.long() == 0  # up to the end token and with it
    num_tokens = is_token.sum(1)
    window_queries = (num_tokens / output.prefix_cacheability).round().long()
    mask = torch.cat([inputs["attention_mask"], is_token.long()], dim=1)
    nll = answer_nll(model, output.sequences, mask, is_token, tokenizer.mask_token_id)
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return [
        Answer(text, check(example, text), *map(int, counts), float(of_answer))
        for example, text, *counts, of_answer in zip(
            examples, texts, num_tokens, output.forwards, window_queries, nll, strict=True
        )
    ]


def answer_nll(
    model: PreTrainedModel,
    sequences: torch.Tensor,
    attention_mask: torch.Tensor,
    is_token: torch.Tensor,
    mask_token_id: int,
) -> torch.Tensor:
    """`[batch]`, the negative log-likelihood of the tokens at the end of `sequences` that `is_token` marks."""
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
    logits = model(sequences, attention_mask=attention_mask, position_ids=positions, use_cache=False).logits
    num_columns = is_token.shape[1]
    logits = logits[:, -num_columns - 1 : -1].float()
    logits[..., mask_token_id] = -torch.inf  # as generate() does
    nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), sequences[:, -num_columns:], reduction="none")
    return nll.where(is_token, 0).sum(1)


def answer_all(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: dict[str, list[Example]], work: WorkFile
) -> dict[tuple[str, str], list[Answer]]:
    """The answers to all examples by kind and decoding; answers that are in `work` are not asked for again."""
    answers = {key: [] for key in product(examples, DECODINGS)}
    for kind, decoding in tqdm(answers, unit=" kinds and decodings"):
        for start in range(0, len(examples[kind]), BATCH_SIZE):
            key = (kind, decoding, start // BATCH_SIZE)
            if key not in work:
                batch = examples[kind][start : start + BATCH_SIZE]
                work.add(key, answers_of(model, tokenizer, batch, DECODINGS[decoding]))
            answers[kind, decoding] += [Answer(*answer) for answer in work[key]]
    return answers


def interval(resampled: np.ndarray) -> list[float]:
    """The interval that contains 95 % of the resamples, as [low, high]."""
    return [float(value) for value in np.quantile(resampled, [0.025, 0.975])]


def summary(answers: list[Answer], baseline: list[Answer]) -> dict:
    """The numbers of one kind and decoding, with intervals that hold 95 % of the resamples of the examples."""
    right, tokens, forwards, window_queries, nll = (
        np.array(column, dtype=float) for column in list(zip(*answers, strict=True))[1:]
    )
    base = np.array([answer.is_right for answer in baseline], dtype=float)
    means = resampled_means(np.stack([right - base, tokens, forwards], axis=1))  # an example's numbers stay together
    return {
        "accuracy": float(right.mean()),
        "accuracy_over_autoregressive": float((right - base).mean()),
        "accuracy_over_autoregressive_interval": interval(means[:, 0]),
        "same_text_as_autoregressive": float(
            np.mean([one.text == other.text for one, other in zip(answers, baseline, strict=True)])
        ),
        "tokens": float(tokens.mean()),
        "tokens_per_forward": float(tokens.sum() / forwards.sum()),
        "tokens_per_forward_interval": interval(means[:, 1] / means[:, 2]),
        "prefix_cacheability": float(tokens.sum() / window_queries.sum()),
        "nll_per_token": float(nll.sum() / tokens.sum()),
    }


def timings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example]
) -> dict[str, dict[str, dict]]:
    """The speed of each decoding at batch size 1. A round asks all questions, in all decodings one after another."""
    inputs = [batch_of(tokenizer, [example], model.device) for example in examples]
    calls = {
        (i, decoding): partial(model.generate, **question, **settings, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        for i, question in enumerate(inputs)
        for decoding, settings in DECODINGS.items()
    }
    seconds_per_token = {decoding: [] for decoding in DECODINGS}
    for turn in interleaved(calls, model.device, ROUNDS):
        i, decoding = turn.name
        num_tokens = (turn.result.shape[1] - inputs[i]["input_ids"].shape[1]) or 1
        seconds_per_token[decoding].append(turn.seconds / num_tokens)
    speeds = {decoding: 1 / np.array(seconds) for decoding, seconds in seconds_per_token.items()}
    return {
        decoding: {
            "tokens_per_second": median_and_quartiles(speed),
            "times_autoregressive": median_and_quartiles(speed / speeds[BASELINE]),
        }
        for decoding, speed in speeds.items()
    }


def goals(results: dict[str, dict[str, dict]]) -> Iterator[tuple[str, float, float]]:
    """The goals of the checkpoint: what should be reached, by how much, and what was."""
    for kind in KINDS:
        if kind != "stories":
            yield f"{kind}: share that is right, token by token", LEAST_RIGHT, results[kind][BASELINE]["accuracy"]
    for kind, target in TOKENS_PER_FORWARD.items():
        yield f"{kind}: tokens per pass, {WIDE}", target, results[kind][WIDE]["tokens_per_forward"]
    kept = [kind for kind in KINDS if results[kind]["streaming"]["accuracy_over_autoregressive"] >= -MOST_LOST]
    yield "kinds in which streaming loses at most three points", KINDS_KEPT, len(kept)


@torch.no_grad()
def held_out_nll(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example]) -> float:
    """The negative log-likelihood per token of the answers that the generators wrote."""
    total, num_tokens = 0.0, 0
    for example in examples:
        prompt = tokenizer.apply_chat_template(example.messages[:1], add_generation_prompt=True)["input_ids"]
        answer = [*tokenizer(example.answer)["input_ids"], tokenizer.eos_token_id]
        ids, labels = (
            torch.tensor([each], device=model.device) for each in (prompt + answer, [-100] * len(prompt) + answer)
        )
        total += float(model(ids, labels=labels, use_cache=False).loss) * len(answer)
        num_tokens += len(answer)
    return total / num_tokens


def shown(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, kind: str) -> dict:
    """An example for the card, decoded with the checkpoint's own settings."""
    (example,) = held_out_examples(kind, 1)
    inputs = batch_of(tokenizer, [example], model.device)
    output = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, return_dict_in_generate=True)
    new_tokens = output.sequences[0, inputs["input_ids"].shape[1] :]
    return {
        "prompt": example.prompt,
        "text": tokenizer.decode(new_tokens, skip_special_tokens=True),
        "token_ids": new_tokens.tolist(),
        "tokens": len(new_tokens),
        "forwards": int(output.forwards),
    }


def measure(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: dict[str, list[Example]], work: WorkFile
) -> dict[str, dict[str, dict]]:
    """The summary and the speed of every decoding, by kind and decoding."""
    answers, results = answer_all(model, tokenizer, examples, work), {}
    for kind in tqdm(examples, unit=" kinds", desc="timing"):
        speeds = timings(model, tokenizer, examples[kind][:NUM_TIMED])
        results[kind] = {
            decoding: summary(answers[kind, decoding], answers[kind, BASELINE]) | speed
            for decoding, speed in speeds.items()
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=DEMO_FOLDER, help="the checkpoint")
    parser.add_argument("--num_examples", type=int, default=1000, help="held-out examples of each kind")
    parser.add_argument("--only_examples", action="store_true", help="keep the numbers of report.json")
    given = parser.parse_args()
    model = WeDLMForCausalLM.from_pretrained(given.folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.folder)
    out, weights = given.folder / "report.json", weights_digest(given.folder)
    shown_examples = [shown(model, tokenizer, kind) for kind in EXAMPLES]
    if given.only_examples:
        report = json.loads(out.read_text(encoding="utf-8"))
        if report["weights_sha256"] != weights:
            raise SystemExit(f"{out} is about other weights than those beside it; run `make demo-report`.")
        write_whole(out, record_text(report | {"examples": shown_examples}) + "\n")
        return
    settings = {
        "weights": weights,
        "generation_config": model.generation_config.to_dict(),
        "decodings": DECODINGS,
        "num_examples": given.num_examples,
        "batch_size": BATCH_SIZE,
        "max_new_tokens": MAX_NEW_TOKENS,
        **conditions(model.device),
    }
    examples = {kind: held_out_examples(kind, given.num_examples) for kind in KINDS}
    results = measure(model, tokenizer, examples, WorkFile(WORK, settings))
    write_report(
        out,
        results,
        model.device,
        weights_sha256=weights,
        num_examples=given.num_examples,
        num_timed=NUM_TIMED,
        rounds=ROUNDS,
        decodings=DECODINGS,
        held_out_nll={kind: held_out_nll(model, tokenizer, examples[kind]) for kind in KINDS},
        examples=shown_examples,
    )


if __name__ == "__main__":
    main()
