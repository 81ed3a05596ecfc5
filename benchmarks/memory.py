"""How far the peak of memory rises while a call generates, by decoding, batch size and prompt length.

    python benchmarks/memory.py [--shape qwen3-8b] [--batch-sizes 1 16] [--prompt-lengths 128 1024] [--new-tokens 128]
                                [--out benchmarks/results/memory.json]

Each cell has a fresh process. A call with a short prompt comes first, and the rise is measured from its peak to that
of a second call. `cache_bytes` is the memory of the keys and values of all its tokens, which every decoding needs.
"""

import argparse

import torch
from common import (
    DECODINGS,
    Panel,
    add_model_arguments,
    in_fresh_process,
    markdown,
    model_of,
    new_parser,
    peak_bytes,
    random_tokens,
    save,
)
from huggingface_hub.utils import tqdm


def rise(given: argparse.Namespace, decoding: str, batch_size: int, length: int) -> tuple[int, int]:
    """The bytes above the peak of the first call, and the bytes of keys and values."""
    model = model_of(given)
    settings = {"decoding": decoding, "eos_token_id": None, "do_sample": False}

    def call(batch_size: int, length: int, new_tokens: int) -> None:
        tokens = random_tokens(model, batch_size, length)
        model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new_tokens, **settings)

    call(1, 16, 2)
    before = peak_bytes()
    call(batch_size, length, given.new_tokens)
    config, size = model.config, next(model.parameters()).element_size()
    entries = batch_size * (length + given.new_tokens) * config.num_hidden_layers
    return peak_bytes() - before, 2 * size * entries * config.num_key_value_heads * config.head_dim


def table(cells: list[dict]) -> str:
    """For benchmarks/RESULTS.md."""
    lines = [
        [
            cell["batch_size"],
            cell["prompt_length"],
            cell["decoding"],
            f"{cell['bytes'] / 1e6:.1f}",
            f"{cell['cache_bytes'] / 1e6:.1f}",
        ]
        for cell in cells
    ]
    return markdown(["batch", "prompt", "decoding", "MB", "keys and values"], lines, left={"decoding"})


def panels(cells: list[dict]) -> list[Panel]:
    """A panel for each batch size."""
    shown = []
    for batch_size in sorted({cell["batch_size"] for cell in cells}):
        of_batch = [cell for cell in cells if cell["batch_size"] == batch_size]

        def points(decoding: str, value: str, of_batch=of_batch) -> list[tuple[float, float]]:
            return [(cell["prompt_length"], cell[value] / 1e6) for cell in of_batch if cell["decoding"] == decoding]

        lines = {decoding: points(decoding, "bytes") for decoding in DECODINGS}
        lines["keys and values"] = points(DECODINGS[0], "cache_bytes")
        shown.append(Panel(f"batch size {batch_size}", "tokens of the prompt", "megabytes above the model", lines))
    return shown


def main() -> None:
    parser = new_parser(__doc__, "memory")
    add_model_arguments(parser)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompt-lengths", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--new-tokens", type=int, default=128)
    given = parser.parse_args()
    shapes = [(batch_size, length) for batch_size in given.batch_sizes for length in given.prompt_lengths]
    cells = []
    for batch_size, length in tqdm(shapes, unit=" cells"):
        for decoding in DECODINGS:
            more, cache = in_fresh_process(rise, given, decoding, batch_size, length)
            cells.append(
                {
                    "batch_size": batch_size,
                    "prompt_length": length,
                    "decoding": decoding,
                    "bytes": more,
                    "cache_bytes": cache,
                }
            )
    print(table(cells))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    save(given.out, cells, device, panels(cells), shape=given.shape, dtype=given.dtype)


if __name__ == "__main__":
    main()
