"""`make demo-report`: how right and how fast the demo checkpoint is, on held-out examples of every kind.

    python -m wedlm.demo.report [--checkpoint FOLDER] [--num_examples 1000] [--out report.json]

1. Every decoding answers the same held-out questions, in batches; checkers judge the answers. What is answered is kept
   in a work folder, so that a run that was interrupted goes on where it stopped.
2. Some of the questions are answered once more, one at a time, the decodings taking turns, against the clock.
3. The numbers go into one JSON file, from which `card.py` writes the model card.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from huggingface_hub.utils import tqdm
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.demo.checkers import check
from wedlm.demo.tasks import KINDS, Example, held_out_examples
from wedlm.evaluation.provenance import weights_digest, write_report
from wedlm.evaluation.resampling import interval, median_and_quartiles, resampled_means
from wedlm.evaluation.work_file import WorkFile

DECODINGS = {
    "autoregressive": {"decoding": "autoregressive"},
    "streaming, threshold 0.1": {"decoding": "streaming", "entropy_threshold": 0.1},
    "streaming": {"decoding": "streaming"},
    "streaming, threshold 1.0": {"decoding": "streaming", "entropy_threshold": 1.0},
    "blockwise": {"decoding": "blockwise"},
    "verified": {"decoding": "verified"},
}
BASELINE = "autoregressive"
MAX_NEW_TOKENS = 160  # the longest right answer has 88
BATCH_SIZE = 50
WORKED_KINDS = ("word_problems", "equations", "functions")
TOKENS_PER_FORWARD = {  # that are aimed at
    "streaming": {"counting": 8.0} | dict.fromkeys(WORKED_KINDS, 3.0),
    "verified": {"counting": 10.0} | dict.fromkeys(WORKED_KINDS, 8.0) | {"stories": 2.0},
}
EXAMPLES = ("counting", "word_problems")  # shown on the card, by the first held-out question of each


class Answer(NamedTuple):
    """What one decoding made of one question.

    Answer(text="12, 16, 20, 24.", is_right=True, tokens=13, forwards=2, window_rows=16, nll=0.02)
    """

    text: str
    is_right: bool
    tokens: int  # the end token included
    forwards: int
    window_rows: int  # tokens / window_rows is the prefix cacheability
    nll: float  # of the answer's tokens together, each after those before it, in nats


def batch_of(tokenizer: PreTrainedTokenizerBase, examples: list[Example], device: torch.device) -> dict:
    chats = [example.messages[:1] for example in examples]
    return tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    ).to(device)


@torch.no_grad()
def answers_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example], settings: dict
) -> list[Answer]:
    inputs = batch_of(tokenizer, examples, model.device)
    output = model.generate(
        **inputs, **settings, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, return_dict_in_generate=True
    )
    tokens = output.sequences[:, inputs["input_ids"].shape[1] :]
    is_end = tokens == tokenizer.eos_token_id
    is_token = is_end.cumsum(1) - is_end.long() == 0  # up to the end token, and with it
    num_tokens = is_token.sum(1)

    mask = torch.cat([inputs["attention_mask"], is_token.long()], dim=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(output.sequences, attention_mask=mask, position_ids=positions, use_cache=False).logits
    logits = logits[:, -tokens.shape[1] - 1 : -1].float()
    logits[..., tokenizer.mask_token_id] = -torch.inf  # as generate() does
    nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    nll = nll.where(is_token, 0).sum(1)

    if settings["decoding"] == BASELINE:
        forwards = window_rows = num_tokens
    else:
        forwards, window_rows = output.forwards, (num_tokens / output.prefix_cacheability).round().long()
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return [
        Answer(text, check(example.kind, example.prompt, text), *map(int, counts), float(row_nll))
        for example, text, *counts, row_nll in zip(
            examples, texts, num_tokens, forwards, window_rows, nll, strict=True
        )
    ]


def batches(examples: list[Example]) -> list[list[Example]]:
    return [examples[start : start + BATCH_SIZE] for start in range(0, len(examples), BATCH_SIZE)]


def answer_all(model, tokenizer, examples: dict[str, list[Example]], work: WorkFile) -> dict[tuple, list[Answer]]:
    """By (kind, decoding)."""
    todo = [
        (kind, decoding, number, part)
        for kind in examples
        for decoding in DECODINGS
        for number, part in enumerate(batches(examples[kind]))
    ]
    with tqdm(total=sum(len(part) for *_, part in todo), unit=" answers") as bar:
        for *key, part in todo:
            bar.set_description(", ".join(key[:2]))
            if tuple(key) not in work:
                work.add(tuple(key), answers_of(model, tokenizer, part, DECODINGS[key[1]]))
            bar.update(len(part))
    return {
        (kind, decoding): [
            Answer(*answer)
            for number in range(len(batches(examples[kind])))
            for answer in work[kind, decoding, number]
        ]
        for kind in examples
        for decoding in DECODINGS
    }


def summary(answers: list[Answer], baseline: list[Answer]) -> dict:
    """The numbers of one kind and decoding, with intervals that hold 95 % of the resamples of the examples."""
    right, tokens, forwards, rows, nll = (
        np.array(column, dtype=float) for column in list(zip(*answers, strict=True))[1:]
    )
    base = np.array([answer.is_right for answer in baseline], dtype=float)
    means = resampled_means(np.stack([right - base, tokens, forwards], axis=1))  # an example's numbers stay together
    return {
        "accuracy": float(right.mean()),
        "accuracy_over_autoregressive": float((right - base).mean()),
        "accuracy_over_autoregressive_interval": interval(means[:, 0]),
        "same_text_as_autoregressive": float(
            np.mean([answer.text == other.text for answer, other in zip(answers, baseline, strict=True)])
        ),
        "tokens": float(tokens.mean()),
        "tokens_per_forward": float(tokens.sum() / forwards.sum()),
        "tokens_per_forward_interval": interval(means[:, 1] / means[:, 2]),
        "prefix_cacheability": float(tokens.sum() / rows.sum()),
        "nll_per_token": float(nll.sum() / tokens.sum()),
    }


def timings(model, tokenizer, examples: list[Example], rounds: int, bar: tqdm) -> dict[str, dict]:
    """At batch 1. The decodings take turns on each question, and the first round warms up."""
    seconds_per_token = {decoding: [] for decoding in DECODINGS}
    for turn in range(rounds + 1):
        for example in examples:
            inputs = batch_of(tokenizer, [example], model.device)
            for decoding, settings in DECODINGS.items():
                start = time.perf_counter()
                output = model.generate(**inputs, **settings, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
                num_tokens = (output.shape[1] - inputs["input_ids"].shape[1]) or 1
                seconds = time.perf_counter() - start
                if turn > 0:
                    seconds_per_token[decoding].append(seconds / num_tokens)
            bar.update()
    speeds = {decoding: 1 / np.array(seconds) for decoding, seconds in seconds_per_token.items()}

    return {
        decoding: {
            "tokens_per_second": median_and_quartiles(speed),
            "times_autoregressive": median_and_quartiles(speed / speeds[BASELINE]),
        }
        for decoding, speed in speeds.items()
    }


def goals(results: dict[str, dict[str, dict]]) -> Iterator[dict]:
    """What the checkpoint was meant to reach, and what it did."""

    def goal(sentence: str, target: float, reached: float) -> dict:
        return {"goal": sentence, "target": target, "reached": reached, "met": reached >= target}

    for kind, target in [("counting", 0.95), ("records", 0.95), *((kind, 0.9) for kind in WORKED_KINDS)]:
        yield goal(f"{kind}: accuracy, autoregressive", target, results[kind][BASELINE]["accuracy"])
    for kind in KINDS:
        highest = results[kind]["streaming"]["accuracy_over_autoregressive_interval"][1]
        yield goal(f"{kind}: upper end of streaming's accuracy over autoregressive", 0.0, highest)
    for decoding, targets in TOKENS_PER_FORWARD.items():
        for kind, target in targets.items():
            reached = results[kind][decoding]["tokens_per_forward"]
            yield goal(f"{kind}: tokens per forward, {decoding}", target, reached)


def held_out_nll(model, tokenizer, examples: list[Example]) -> float:
    """Per token of the answers that the generators wrote."""
    total, number = 0.0, 0
    for example in examples:
        prompt = tokenizer.apply_chat_template(example.messages[:1], add_generation_prompt=True)["input_ids"]
        answer = [*tokenizer(example.answer)["input_ids"], tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer], device=model.device), use_cache=False).logits
        logits = logits[0, len(prompt) - 1 : -1].float()
        total += float(
            torch.nn.functional.cross_entropy(logits, torch.tensor(answer, device=model.device), reduction="sum")
        )
        number += len(answer)
    return total / number


def shown(model, tokenizer, kind: str) -> dict:
    """An example for the card, at the settings that the checkpoint comes with."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=DEMO_FOLDER)
    parser.add_argument("--num_examples", type=int, default=1000, help="held-out examples of each kind")
    parser.add_argument("--num_timed", type=int, default=10, help="examples of each kind that are timed")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed")
    parser.add_argument("--out", type=Path, default=DEMO_FOLDER / "report.json")
    parser.add_argument("--work", type=Path, default=Path("build/demo-report"), help="where answers are kept")
    given = parser.parse_args()
    model = WeDLMForCausalLM.from_pretrained(given.checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.checkpoint)
    weights = weights_digest(given.checkpoint)
    settings = {
        "weights": weights,
        "generation_config": model.generation_config.to_dict(),
        "decodings": DECODINGS,
        "num_examples": given.num_examples,
        "batch_size": BATCH_SIZE,
    }
    examples = {kind: held_out_examples(kind, given.num_examples) for kind in KINDS}
    answers = answer_all(model, tokenizer, examples, WorkFile(given.work, settings))
    results = {
        kind: {decoding: summary(answers[kind, decoding], answers[kind, BASELINE]) for decoding in DECODINGS}
        for kind in KINDS
    }
    with tqdm(total=len(KINDS) * given.num_timed * (given.rounds + 1), unit=" questions", desc="timing") as bar:
        for kind in KINDS:
            for decoding, measured in timings(
                model, tokenizer, examples[kind][: given.num_timed], given.rounds, bar
            ).items():
                results[kind][decoding].update(measured)
    write_report(
        given.out,
        results,
        model.device,
        weights_sha256=weights,
        num_examples=given.num_examples,
        num_timed=given.num_timed,
        rounds=given.rounds,
        decodings=DECODINGS,
        goals=list(goals(results)),
        held_out_nll={kind: held_out_nll(model, tokenizer, examples[kind]) for kind in KINDS},
        examples=[shown(model, tokenizer, kind) for kind in EXAMPLES],
    )
    for kind in KINDS:
        for decoding, row in results[kind].items():
            print(
                f"{kind:14} {decoding:25} right {row['accuracy']:6.1%}  tokens per forward "
                f"{row['tokens_per_forward']:5.2f}  tokens/s {row['tokens_per_second']['median']:7.1f}"
            )
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
