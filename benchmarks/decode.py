"""Tokens per second of every decoding, the time to the first token, and the time between commits.

    python benchmarks/decode.py [--shape qwen3-8b] [--batch-sizes 1 4 16] [--prompt-lengths 128 1024]
                                [--new-tokens 128] [--window-size 8] [--compile] [--repeats 5]
                                [--out benchmarks/results/decode.json]

Prompts are conversations about the demo's tasks, as many turns as the length has room for, the last question held
out. (The demo was trained on 192 tokens at most, and has little to say in longer ones.) With --shape they are random
tokens, and every decoding writes all --new-tokens; of random weights tokens per forward say nothing. All decodings
take turns in each cell. "autoregressive" is transformers' own with a DynamicCache, "static" the same with
cache_implementation="static", which transformers compiles on a GPU; there, and with --compile, streaming and verified
have compiled sides, too. "one slot" is streaming decoding with a window of one slot: this package's own step with one
row. A small batch size has several batches, so that each kind of task takes part. Latencies are of batch size 1, from
runs of their own with a streamer.

Of the ratio of tokens per forward, the ratio of tokens per second keeps a share, printed as "kept"; were a step with a
window as fast as one with a row, it would be the share that "one slot" keeps. The goal beside it is 0.6 at batch size
1, and else 0.9 times the milliseconds of a "one slot" forward over those of a forward with a window.
"""

import argparse
import statistics
import time
from itertools import count
from pathlib import Path

import torch
from common import Panel, add_model_arguments, model_of, now, plot, spread
from huggingface_hub.utils import tqdm
from transformers import AutoTokenizer, CompileConfig, PreTrainedModel, PreTrainedTokenizerBase

from wedlm.demo.tasks import KINDS, held_out_examples, training_example
from wedlm.evaluation.provenance import write_report

STATIC = {"cache_implementation": "static"}
SIDES = {
    "autoregressive": {"decoding": "autoregressive"},
    "static": {"decoding": "autoregressive", **STATIC},
    "one slot": {"decoding": "streaming", "window_size": 1},
    "streaming": {"decoding": "streaming"},
    "verified": {"decoding": "verified"},
    "blockwise": {"decoding": "blockwise"},
}
COMPILED = {f"{name}, compiled": {**SIDES[name], **STATIC} for name in ("streaming", "verified")}
BASELINE = "autoregressive"


class Clock:
    """A streamer of one row: when what was committed."""

    def __init__(self):
        self.start, self.times, self.has_prompt = time.perf_counter(), [], False

    def put(self, tokens: torch.Tensor) -> None:
        if self.has_prompt:
            self.times.append(time.perf_counter() - self.start)
        self.has_prompt = True

    def end(self) -> None:
        pass


def chat(tokenizer: PreTrainedTokenizerBase, number: int, length: int) -> list[dict[str, str]]:
    """A held-out question with answered ones in front, `length` tokens at most but for the question alone."""
    messages = held_out_examples(KINDS[number % len(KINDS)], number // len(KINDS) + 1)[-1].messages[:1]
    for position in count(1000 * number):
        longer = training_example(0, position).messages + messages
        if len(tokenizer.apply_chat_template(longer, add_generation_prompt=True)["input_ids"]) > length:
            return messages
        messages = longer


def prompts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, batch_size: int, length: int, number: int = 0
) -> dict:
    """The batch of this number; each kind of task comes in turn."""
    if tokenizer is None:
        tokens = torch.randint(0, model.config.vocab_size - 1, (batch_size, length))
        tokens = tokens.where(tokens != model.config.mask_token_id, 0).to(model.device)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    chats = [chat(tokenizer, number * batch_size + i, length) for i in range(batch_size)]
    return tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    ).to(model.device)


def measure(
    model: PreTrainedModel, batches: list[dict], new_tokens: int, more: dict, repeats: int, bar: tqdm
) -> dict[str, dict]:
    seconds, tokens, forwards = ({side: [] for side in SIDES} for _ in range(3))
    settings = {"max_new_tokens": new_tokens, "do_sample": False, "return_dict_in_generate": True, **more}
    for i in range(repeats + 1):
        for side, decoding in SIDES.items():
            start = now(model.device)
            outputs = [model.generate(**inputs, **{**settings, **decoding}) for inputs in batches]
            if i > 0:  # the first warms up
                seconds[side].append(now(model.device) - start)
                tokens[side].append(sum((o.tokens_per_forward * o.forwards).sum().round().item() for o in outputs))
                forwards[side].append(sum(output.forwards.max().item() for output in outputs))
            bar.update()
    measured, batch_size = {}, len(batches[0]["input_ids"])
    for side in SIDES:
        rates = [number / taken for number, taken in zip(tokens[side], seconds[side], strict=True)]
        measured[side] = {
            "tokens_per_second": spread(rates),
            "tokens_per_forward": tokens[side][0] / batch_size / forwards[side][0],
            "milliseconds_per_forward": 1e3 * statistics.median(seconds[side]) / forwards[side][0],
        }
        if batch_size == 1:
            measured[side] |= latencies(model, batches, {**settings, **SIDES[side]}, repeats)
    for side in SIDES:
        row, base = measured[side], measured[BASELINE]
        row["times_autoregressive"] = row["tokens_per_second"]["median"] / base["tokens_per_second"]["median"]
        row["share_kept"] = row["times_autoregressive"] * base["tokens_per_forward"] / row["tokens_per_forward"]
    return measured


def latencies(model: PreTrainedModel, batches: list[dict], settings: dict, repeats: int) -> dict[str, float]:
    first, between = [], []
    for inputs in batches * repeats:
        clock = Clock()
        model.generate(**inputs, **settings, streamer=clock)
        first.append(clock.times[0])
        between += [later - earlier for earlier, later in zip(clock.times, clock.times[1:], strict=False)]
    return {
        "milliseconds_to_first_token": 1e3 * statistics.median(first),
        "milliseconds_between_commits": 1e3 * statistics.median(between or first),
    }


def table(cells: list[dict]) -> str:
    """In Markdown."""
    lines = [
        "| batch | prompt | decoding | tokens/s (min - max) | times AR | tokens/forward | kept (goal) | ms/forward"
        " | first |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for cell in cells:
        for side, row in cell["sides"].items():
            rate = row["tokens_per_second"]
            goal = 0.6
            if cell["batch_size"] > 1:
                one_slot = cell["sides"]["one slot"]["milliseconds_per_forward"]
                goal = 0.9 * one_slot / row["milliseconds_per_forward"]
            is_window = side.partition(",")[0] in ("streaming", "verified", "blockwise")
            kept = f"{row['share_kept']:.2f} ({goal:.2f})" if is_window else f"{row['share_kept']:.2f}"
            first = f"{row['milliseconds_to_first_token']:.1f}" if "milliseconds_to_first_token" in row else ""
            lines.append(
                f"| {cell['batch_size']} | {cell['prompt_length']} | {side}"
                f" | {rate['median']:.0f} ({rate['min']:.0f} - {rate['max']:.0f}) | {row['times_autoregressive']:.2f}"
                f" | {row['tokens_per_forward']:.2f} | {kept} | {row['milliseconds_per_forward']:.2f}"
                f" | {first} |"
            )
    return "\n".join(lines)


def panels(cells: list[dict]) -> list[Panel]:
    return [
        Panel(
            f"prompts of {length} tokens",
            "batch size",
            "tokens per second",
            {
                side: [
                    (cell["batch_size"], cell["sides"][side]["tokens_per_second"]["median"])
                    for cell in cells
                    if cell["prompt_length"] == length
                ]
                for side in cells[0]["sides"]
            },
        )
        for length in sorted({cell["prompt_length"] for cell in cells})
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--prompt-lengths", type=int, nargs="+", default=[128])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--window-size", type=int, help="the checkpoint's by default")
    parser.add_argument("--compile", action="store_true", help="on a CPU as well, which takes a minute or two")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "decode.json")
    given = parser.parse_args()
    model = model_of(given)
    if given.compile or torch.cuda.is_available():
        for name, settings in COMPILED.items():
            SIDES[name] = {**settings, "compile_config": CompileConfig()}
    tokenizer = None if given.shape is not None else AutoTokenizer.from_pretrained(given.model)
    cells = []
    num_runs = len(given.batch_sizes) * len(given.prompt_lengths) * len(SIDES) * (given.repeats + 1)
    with tqdm(total=num_runs, unit=" runs") as bar:
        for batch_size in given.batch_sizes:
            for length in given.prompt_lengths:
                torch.manual_seed(0)
                batches = [
                    prompts(model, tokenizer, batch_size, length, i) for i in range(max(1, len(KINDS) // batch_size))
                ]
                more = {} if given.window_size is None else {"window_size": given.window_size}
                measured = measure(model, batches, given.new_tokens, more, given.repeats, bar)
                cells.append({"batch_size": batch_size, "prompt_length": length, "sides": measured})
    print(table(cells))
    about = {"shape": given.shape, "dtype": str(model.dtype), "repeats": given.repeats}
    write_report(given.out, cells, model.device, window_size=given.window_size, **about)
    plot(given.out, panels(cells))
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
