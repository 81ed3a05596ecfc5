"""How often verified decoding differs from autoregressive decoding by rounding, and how near the two tokens were.

    python benchmarks/verified_precision.py [--num-examples 1000] [--out benchmarks/results/verified_precision.json]

On the demo checkpoint, held-out questions of every kind in batches of 50, float32 and bfloat16. Where two texts part,
the gap is that between the scores of the two tokens, as the model computes them in the same precision from the text
before.
"""

import argparse
from pathlib import Path

import torch
from huggingface_hub.utils import tqdm
from transformers import AutoTokenizer

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.demo.report import MAX_NEW_TOKENS, batch_of, batches
from wedlm.demo.tasks import KINDS, held_out_examples
from wedlm.evaluation.provenance import write_report

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@torch.no_grad()
def gaps(model: WeDLMForCausalLM, tokenizer, examples: list) -> list[float]:
    """One for each example whose two texts differ."""
    inputs = batch_of(tokenizer, examples, model.device)
    verified, autoregressive = (
        model.generate(**inputs, decoding=decoding, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        for decoding in ("verified", "autoregressive")
    )
    found = []
    for prompt_mask, one, other in zip(inputs["attention_mask"], verified, autoregressive, strict=True):
        length = min(len(one), len(other))
        parted = (one[:length] != other[:length]).nonzero()
        if len(parted) > 0:
            place = parted[0].item()
            text = one[:place][torch.nn.functional.pad(prompt_mask, (0, place - len(prompt_mask)), value=1).bool()]
            scores = model(text[None], use_cache=False).logits[0, -1].float()
            found.append(abs(scores[one[place]] - scores[other[place]]).item())
    return found


def table(results: list[dict]) -> str:
    """For docs/generate.md."""
    lines = [f"| texts that differ | {' | '.join(DTYPES)} |", f"| --- |{' ---: |' * len(DTYPES)}"]
    for kind in KINDS:
        cells = []
        for row in (row for name in DTYPES for row in results if (row["kind"], row["dtype"]) == (kind, name)):
            gaps = f", gaps {row['gaps'][0]:.1g} to {row['gaps'][-1]:.1g}" if row["gaps"] else ""
            cells.append(f"{len(row['gaps'])} of {row['questions']:,}{gaps}")
        lines.append(f"| {kind.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-examples", type=int, default=1000, help="of each kind")
    default = Path(__file__).parent / "results" / "verified_precision.json"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    examples = {kind: held_out_examples(kind, arguments.num_examples) for kind in KINDS}
    results = []
    with tqdm(total=len(DTYPES) * len(KINDS) * arguments.num_examples, unit=" questions") as bar:
        for name, dtype in DTYPES.items():
            model = WeDLMForCausalLM.from_pretrained(DEMO_FOLDER, dtype=dtype).eval()
            for kind in KINDS:
                found = []
                for part in batches(examples[kind]):
                    found += gaps(model, tokenizer, part)
                    bar.update(len(part))
                results.append({"dtype": name, "kind": kind, "questions": len(examples[kind]), "gaps": sorted(found)})
    print(table(results))
    write_report(arguments.out, results, "cpu", num_examples=arguments.num_examples)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
