"""What does wedlm.fuse() bring on a CPU? Forwards beside the time of reading the weights.

    python benchmarks/fused.py [--dtypes float32 bfloat16] [--repeats 21] [--out benchmarks/results/fused.json]
    python benchmarks/fused.py --shape qwen3-0.6b --dtypes bfloat16 --out FILE

Forwards of 1 to 16 tokens behind 64 cached ones take turns: those of transformers' own model, of the WeDLM, and of the
WeDLM fused, also with int8 weights. A turn has four of them in a row. The floor is the sum of as many bytes as the
weights have.

`make real-model` makes the models; with --shape they have random weights of this shape. evidence_real.py measures the
speed of generate(); so did this script when its record was made.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from common import QWEN3, SHAPES, STOCK, WEDLM, markdown, new_parser, save, with_range
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, logging

from wedlm import WeDLMConfig, WeDLMForCausalLM, fuse
from wedlm.checkpoints.load import load_checkpoint
from wedlm.evaluation.timing import interleaved_seconds, median_and_range
from wedlm.fused.model import product_of
from wedlm.generation.transformers_internals import CACHE

TOKENS, CACHED, IN_A_ROW = (1, 2, 4, 8, 16), 64, 4
LLAMA, PLAIN, FUSED, INT8, FLOOR = "transformers", "WeDLM", "fused", "fused, int8", "floor"


# --- Models ---


def models_of(given: argparse.Namespace, dtype: str) -> dict[str, PreTrainedModel]:
    """The models whose steps are measured, by name."""
    if given.shape is not None:
        config = WeDLMConfig(**{**QWEN3, **SHAPES[given.shape]}, tie_word_embeddings=True)
        make = partial(WeDLMForCausalLM._from_config, config, dtype=getattr(torch, dtype))
        return {PLAIN: make().eval(), FUSED: fuse(make().eval()), INT8: fuse(make().eval(), weights="int8")}
    stock = AutoModelForCausalLM.from_pretrained(given.stock, dtype=dtype).eval()
    plain, fused, rounded = (load_checkpoint(given.model, dtype, "cpu")[0] for _ in range(3))
    return {LLAMA: stock, PLAIN: plain, FUSED: fuse(fused), INT8: fuse(rounded, weights="int8")}


class Step:
    """Forwards of some tokens behind cached ones, one after another."""

    def __init__(self, model: PreTrainedModel, num_tokens: int):
        self.model, self.num_tokens, self.cache = model, num_tokens, DynamicCache(config=model.config)
        self.tokens = torch.randint(5, min(500, model.config.vocab_size), (1, CACHED + num_tokens))
        model(self.tokens[:, :CACHED], **{CACHE: self.cache})

    def __call__(self) -> None:
        for _ in range(IN_A_ROW):
            self.model(self.tokens[:, CACHED:], **{CACHE: self.cache})
            self.cache.crop(-self.num_tokens)


# --- Steps ---


def steps_of(models: dict[str, PreTrainedModel], repeats: int) -> dict[str, dict]:
    """Milliseconds of a forward, by model and number of tokens, and of reading the weights."""
    calls = {(name, tokens): Step(model, tokens) for name, model in models.items() for tokens in TOKENS}
    read = torch.ones(sum(weight.nbytes for weight in models[PLAIN].parameters()) // 4)
    calls[FLOOR, 1] = lambda: [read.sum() for _ in range(IN_A_ROW)]
    seconds = interleaved_seconds(calls, "cpu", repeats, num_warm_up=3)
    results = {}
    for (name, tokens), values in seconds.items():
        results.setdefault(name, {})[str(tokens)] = median_and_range([1e3 * value / IN_A_ROW for value in values])
    for name, of_model in results.items():
        results[name] = {"milliseconds": of_model}
        if name != FLOOR:
            first = of_model["1"]["median"]
            results[name]["times_first"] = {tokens: one["median"] / first for tokens, one in of_model.items()}
    return results


# --- Report ---


def table(results: dict) -> str:
    lines = []
    for dtype, steps in results["steps"].items():
        for name, of_model in steps.items():
            cells = of_model["milliseconds"]
            lines.append([dtype, name, *(with_range(cells[n], ".1f") if n in cells else "" for n in map(str, TOKENS))])
    return markdown(
        ["dtype", "milliseconds by tokens", *map(str, TOKENS)], lines, left={"dtype", "milliseconds by tokens"}
    )


@torch.no_grad()
def main() -> None:
    parser = new_parser(__doc__, "fused")
    parser.add_argument("--stock", type=Path, default=STOCK)
    parser.add_argument("--model", type=Path, default=WEDLM)
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=21)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    results = {"steps": {}}
    for dtype in given.dtypes:
        models = models_of(given, dtype)
        results["steps"][dtype] = steps_of(models, given.repeats)
        results["product"] = product_of(models[FUSED])
    print(table(results))
    save(given.out, results, "cpu", shape=given.shape, repeats=given.repeats)


if __name__ == "__main__":
    main()
