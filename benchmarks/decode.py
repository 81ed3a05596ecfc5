"""Tokens per second of every decoding, the time to the first token, and the time between commits.

    python benchmarks/decode.py [--shape qwen3-8b] [--batch-sizes 1 4 16] [--prompt-lengths 128 1024]
                                [--new-tokens 128] [--repeats 5] [--out benchmarks/results/decode.json]

Prompts are conversations about the demo's tasks, as many turns as the length has room for, the last question held out;
with --shape they are random tokens, and every decoding writes all --new-tokens (of random weights tokens per forward
say nothing). All decodings take turns in each cell. "autoregressive" is transformers' own with a DynamicCache,
"static" the same with cache_implementation="static", which transformers compiles on a GPU. Latencies are of batch
size 1, from runs of their own with a streamer.
"""

import argparse
import statistics
import time
from itertools import count
from pathlib import Path

import torch
from common import add_model_arguments, model_of, now
from huggingface_hub.utils import tqdm
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from wedlm.hub_card.demo.tasks import KINDS, held_out_examples, training_example
from wedlm.hub_card.provenance import write_report

SIDES = {
    "autoregressive": {"decoding": "autoregressive"},
    "static": {"decoding": "autoregressive", "cache_implementation": "static"},
    "streaming": {"decoding": "streaming"},
    "verified": {"decoding": "verified"},
    "blockwise": {"decoding": "blockwise"},
}
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


def prompts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, batch_size: int, length: int) -> dict:
    if tokenizer is None:
        tokens = torch.randint(0, model.config.vocab_size - 1, (batch_size, length))
        tokens = tokens.where(tokens != model.config.mask_token_id, 0).to(model.device)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    chats = [chat(tokenizer, number, length) for number in range(batch_size)]
    return tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    ).to(model.device)


def measure(model: PreTrainedModel, inputs: dict, new_tokens: int, repeats: int, bar: tqdm) -> dict[str, dict]:
    seconds, tokens, forwards = ({side: [] for side in SIDES} for _ in range(3))
    settings = {"max_new_tokens": new_tokens, "do_sample": False, "return_dict_in_generate": True}
    for i in range(repeats + 1):
        for side, decoding in SIDES.items():
            start = now(model.device)
            output = model.generate(**inputs, **settings, **decoding)
            if i > 0:  # the first warms up
                seconds[side].append(now(model.device) - start)
                tokens[side].append((output.tokens_per_forward * output.forwards).sum().round().item())
                forwards[side].append(output.forwards.max().item())
            bar.update()
    measured = {}
    for side in SIDES:
        rates = [number / taken for number, taken in zip(tokens[side], seconds[side], strict=True)]
        measured[side] = {
            "tokens_per_second": {"median": statistics.median(rates), "min": min(rates), "max": max(rates)},
            "tokens_per_forward": tokens[side][0] / len(inputs["input_ids"]) / forwards[side][0],
            "milliseconds_per_forward": 1e3 * statistics.median(seconds[side]) / forwards[side][0],
        }
        if len(inputs["input_ids"]) == 1:
            measured[side] |= latencies(model, inputs, {**settings, **SIDES[side]}, repeats)
    for side in SIDES:
        ratio = measured[side]["tokens_per_second"]["median"] / measured[BASELINE]["tokens_per_second"]["median"]
        measured[side]["times_autoregressive"] = ratio
    return measured


def latencies(model: PreTrainedModel, inputs: dict, settings: dict, repeats: int) -> dict[str, float]:
    first, between = [], []
    for _ in range(repeats):
        clock = Clock()
        model.generate(**inputs, **settings, streamer=clock)
        first.append(clock.times[0])
        between += [later - earlier for earlier, later in zip(clock.times, clock.times[1:], strict=False)]
    return {
        "milliseconds_to_first_token": 1e3 * statistics.median(first),
        "milliseconds_between_commits": 1e3 * statistics.median(between or first),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--prompt-lengths", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "decode.json")
    given = parser.parse_args()
    model = model_of(given)
    tokenizer = None if given.shape is not None else AutoTokenizer.from_pretrained(given.model)
    cells = []
    num_runs = len(given.batch_sizes) * len(given.prompt_lengths) * len(SIDES) * (given.repeats + 1)
    with tqdm(total=num_runs, unit=" runs") as bar:
        for batch_size in given.batch_sizes:
            for length in given.prompt_lengths:
                torch.manual_seed(0)
                inputs = prompts(model, tokenizer, batch_size, length)
                measured = measure(model, inputs, given.new_tokens, given.repeats, bar)
                cells.append({"batch_size": batch_size, "prompt_length": length, "sides": measured})
    print(
        "batch  prompt  decoding        tokens/s  (min - max)   x AR  tokens/forward  ms/forward  first ms  between ms"
    )
    for cell in cells:
        for side, row in cell["sides"].items():
            rate = row["tokens_per_second"]
            late = [f"{row[name]:9.1f}" for name in row if name.startswith("milliseconds_") and "forward" not in name]
            print(
                f"{cell['batch_size']:5} {cell['prompt_length']:7}  {side:14} {rate['median']:9.1f}"
                f"  ({rate['min']:.1f} - {rate['max']:.1f}) {row['times_autoregressive']:6.2f}"
                f" {row['tokens_per_forward']:12.2f} {row['milliseconds_per_forward']:14.2f} {' '.join(late)}"
            )
    write_report(given.out, cells, model.device, shape=given.shape, dtype=str(model.dtype), repeats=given.repeats)
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
