"""How far the peak of memory rises while a call generates, by decoding, batch size and prompt length.

    python benchmarks/memory.py [--shape qwen3-8b] [--batch-sizes 1 16] [--prompt-lengths 128 1024] [--new-tokens 128]
                                [--out benchmarks/results/memory.json]

Each cell has a fresh process, in which a call with a short prompt comes first; the rise is what the second call needs
above that. `cache_bytes` is what keys and values of all its tokens take, which no decoding can do without.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from common import Panel, add_model_arguments, model_of, peak_bytes, plot
from huggingface_hub.utils import tqdm

from wedlm.evaluation.provenance import write_report

DECODINGS = ("autoregressive", "streaming", "verified", "blockwise")


def rise(given: argparse.Namespace, decoding: str, batch_size: int, length: int) -> tuple[int, int]:
    """Bytes above the first call's peak, and bytes of keys and values."""
    model = model_of(given)
    settings = {"decoding": decoding, "eos_token_id": None, "do_sample": False}

    def call(batch_size: int, length: int, new_tokens: int) -> None:
        tokens = torch.randint(0, model.config.vocab_size - 1, (batch_size, length))
        tokens = tokens.where(tokens != model.config.mask_token_id, 0).to(model.device)
        model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new_tokens, **settings)

    call(1, 16, 2)
    before = peak_bytes()
    call(batch_size, length, given.new_tokens)
    config, size = model.config, next(model.parameters()).element_size()
    entries = batch_size * (length + given.new_tokens) * config.num_hidden_layers
    return peak_bytes() - before, 2 * size * entries * config.num_key_value_heads * config.head_dim


def table(rows: list[dict]) -> str:
    """In Markdown."""
    lines = ["| batch | prompt | decoding | MB | keys and values |", "| ---: | ---: | --- | ---: | ---: |"]
    for row in rows:
        lines.append(
            f"| {row['batch_size']} | {row['prompt_length']} | {row['decoding']} | {row['bytes'] / 1e6:.1f}"
            f" | {row['cache_bytes'] / 1e6:.1f} |"
        )
    return "\n".join(lines)


def panels(rows: list[dict]) -> list[Panel]:
    return [
        Panel(
            f"batch size {batch_size}",
            "tokens of the prompt",
            "megabytes above the model",
            {
                name: [
                    (row["prompt_length"], row[value] / 1e6)
                    for row in rows
                    if row["batch_size"] == batch_size and row["decoding"] == decoding
                ]
                for name, decoding, value in (
                    *((decoding, decoding, "bytes") for decoding in DECODINGS),
                    ("keys and values", DECODINGS[0], "cache_bytes"),
                )
            },
        )
        for batch_size in sorted({row["batch_size"] for row in rows})
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompt-lengths", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "memory.json")
    given = parser.parse_args()
    cells = [(batch, length) for batch in given.batch_sizes for length in given.prompt_lengths]
    rows = []
    for batch_size, length in tqdm(cells, unit=" cells"):
        for decoding in DECODINGS:
            with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as fresh_process:
                more, cache = fresh_process.submit(rise, given, decoding, batch_size, length).result()
            rows.append(
                {
                    "batch_size": batch_size,
                    "prompt_length": length,
                    "decoding": decoding,
                    "bytes": more,
                    "cache_bytes": cache,
                }
            )
    print(table(rows))
    write_report(given.out, rows, "cuda" if torch.cuda.is_available() else "cpu", shape=given.shape, dtype=given.dtype)
    plot(given.out, panels(rows))
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
