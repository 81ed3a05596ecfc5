"""How often verified decoding differs from autoregressive decoding by rounding, and how near the two tokens were.

    python benchmarks/verified_precision.py [--num-examples 1000] [--out benchmarks/results/verified_precision.json]

The demo checkpoint answers held-out questions of every kind in batches of 50, in float32 and in bfloat16. Where two
texts part, the gap is the difference between the scores of the two tokens, which the model computes in the same
precision from the text before them.
"""

import torch
from common import load, markdown, new_parser, save
from huggingface_hub.utils import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from examples.demo.report import batches
from examples.demo.tasks import KINDS, MAX_NEW_TOKENS, Example, batch_of, held_out_examples

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@torch.no_grad()
def gaps(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example]) -> list[float]:
    """A gap for each example whose two texts differ."""
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


def told(measured: dict) -> str:
    gaps = f", gaps {measured['gaps'][0]:.1g} to {measured['gaps'][-1]:.1g}" if measured["gaps"] else ""
    return f"{len(measured['gaps'])} of {measured['questions']:,}{gaps}"


def table(results: list[dict]) -> str:
    """For docs/generate.md."""
    of = {(measured["kind"], measured["dtype"]): measured for measured in results}
    lines = [[kind.replace("_", " "), *(told(of[kind, dtype]) for dtype in DTYPES)] for kind in KINDS]
    return markdown(["texts that differ", *DTYPES], lines, left={"texts that differ"})


def main() -> None:
    parser = new_parser(__doc__, "verified_precision")
    parser.add_argument("--num-examples", type=int, default=1000, help="of each kind")
    given = parser.parse_args()
    examples = {kind: held_out_examples(kind, given.num_examples) for kind in KINDS}
    results = []
    with tqdm(total=len(DTYPES) * len(KINDS) * given.num_examples, unit=" questions") as bar:
        for name, dtype in DTYPES.items():
            model, tokenizer = load(dtype=dtype)
            for kind in KINDS:
                found = []
                for part in batches(examples[kind]):
                    found += gaps(model, tokenizer, part)
                    bar.update(len(part))
                results.append({"dtype": name, "kind": kind, "questions": len(examples[kind]), "gaps": sorted(found)})
    print(table(results))
    save(given.out, results, "cpu", num_examples=given.num_examples)


if __name__ == "__main__":
    main()
