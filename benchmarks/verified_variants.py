"""What verified decoding does with its rows, against other ways: tokens per forward, and milliseconds per token.

    python benchmarks/verified_variants.py [--num-examples 10] [--rounds 3] [--out ...results/verified_variants.json]

On the demo checkpoint at batch 1, held-out questions of every kind; the variants take turns on each question. All of
them write the same text, which is checked. Milliseconds are medians over questions and rounds.
"""

import argparse
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import torch
from huggingface_hub.utils import tqdm
from torch.nn.functional import pad
from transformers import AutoTokenizer

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.demo.report import MAX_NEW_TOKENS, batch_of
from wedlm.demo.tasks import KINDS, held_out_examples
from wedlm.evaluation.provenance import write_report
from wedlm.generation import verified


def by_the_root(num_rows: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """Groups of MASK rows in proportion to the root of their chance."""
    window_size = chances.shape[1] + 1
    chances = pad(pad(chances, (1, 0), value=1.0), (0, 1))
    shares = (chances[:, :-1] - chances[:, 1:]).clamp(min=0).sqrt().cumsum(-1)
    ends = (shares / shares[:, -1:] * num_rows[:, None]).round().long()
    return pad(pad(ends, (1, 0)).diff().clamp(max=window_size).cumsum(-1), (1, 0))


def behind_all_drafts(num_rows: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """One group, of use only if every draft is accepted."""
    window_size = chances.shape[1] + 1
    numbers = torch.arange(window_size + 1, device=chances.device)
    is_behind = numbers > (chances > 0).sum(-1, keepdim=True)
    return torch.where(is_behind, num_rows.clamp(max=window_size)[:, None], 0)


VARIANTS = {
    "as it is": {},
    "shares by the root of the chance": {"group_ends": by_the_root},
    "one group behind all drafts": {"group_ends": behind_all_drafts},
    "every draft": {"least_chance": 0.0},
    "drafts with a chance of 0.05": {"least_chance": 0.05},
    "drafts with a chance of 0.1": {"least_chance": 0.1},
    "drafts with a chance of 0.3": {"least_chance": 0.3},
    "drafts with a chance of 0.6": {"least_chance": 0.6},
    "window_size 8": {"window_size": 8},
    "window_size 32": {"window_size": 32},
}


def answer(model, inputs: dict, group_ends=verified.group_ends, least_chance=verified.LEAST_CHANCE, window_size=16):
    with ExitStack() as changes:
        changes.enter_context(patch.object(verified, "group_ends", group_ends))
        changes.enter_context(patch.object(verified, "LEAST_CHANCE", least_chance))
        start = time.perf_counter()
        output = model.generate(
            **inputs,
            decoding="verified",
            window_size=window_size,
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
        )
        return output, time.perf_counter() - start


def measure(model, tokenizer, kind: str, num_examples: int, rounds: int, bar: tqdm) -> list[dict]:
    counts = {name: [0, 0] for name in VARIANTS}
    milliseconds = {name: [] for name in VARIANTS}
    for example in held_out_examples(kind, num_examples):
        inputs = batch_of(tokenizer, [example], model.device)
        for turn in range(rounds + 1):  # the first warms up
            texts = set()
            for name, variant in VARIANTS.items():
                output, seconds = answer(model, inputs, **variant)
                num_tokens = output.sequences.shape[1] - inputs["input_ids"].shape[1]
                texts.add(tuple(output.sequences[0].tolist()))
                if turn > 0:
                    milliseconds[name].append(1000 * seconds / num_tokens)
                else:
                    counts[name][0] += num_tokens
                    counts[name][1] += output.forwards.item()
            if len(texts) > 1:
                raise SystemExit(f"The variants wrote different texts for {example.prompt!r}.")
        bar.update()
    return [
        {
            "kind": kind,
            "variant": name,
            "tokens_per_forward": counts[name][0] / counts[name][1],
            "milliseconds_per_token": {
                "median": statistics.median(milliseconds[name]),
                "min": min(milliseconds[name]),
                "max": max(milliseconds[name]),
            },
        }
        for name in VARIANTS
    ]


def table(results: list[dict]) -> str:
    """For benchmarks/RESULTS.md."""
    lines = [f"| | {' | '.join(kind.replace('_', ' ') for kind in KINDS)} |", f"| --- |{' ---: |' * len(KINDS)}"]
    for name in VARIANTS:
        cells = [
            f"{row['tokens_per_forward']:.1f}, {row['milliseconds_per_token']['median']:.2f} ms"
            for row in results
            if row["variant"] == name
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-examples", type=int, default=10, help="of each kind")
    parser.add_argument("--rounds", type=int, default=3)
    default = Path(__file__).parent / "results" / "verified_variants.json"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    model = WeDLMForCausalLM.from_pretrained(DEMO_FOLDER).eval()
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    results = []
    with tqdm(total=len(KINDS) * arguments.num_examples, unit=" questions") as bar:
        for kind in KINDS:
            results += measure(model, tokenizer, kind, arguments.num_examples, arguments.rounds, bar)
    print(table(results))
    write_report(arguments.out, results, "cpu", num_examples=arguments.num_examples, rounds=arguments.rounds)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
