"""Runs of `wedlm adapt` on a tiny stock model, in process."""

import json

from command_line import run
from stock_checkpoints import save_stock

NUM_PROMPTS = 20


def write_prompts(path, num_prompts=NUM_PROMPTS, suffix="", **fields):
    records = [{"prompt": f"the cat sat on mat {number}{suffix}", **fields} for number in range(num_prompts)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def prepared(folder):
    """The folder of a stock model and a file of prompts."""
    save_stock(folder / "stock", "llama", initializer_range=0.5)
    return folder / "stock", write_prompts(folder / "prompts.jsonl")


def adapt(model, out, *arguments, **options):
    """Runs the command with few tokens and steps."""
    few = ("--max-new-tokens", "8", "--batch-size", "4", "--num-held-out", "3", "--steps", "6", "--max-length", "64")
    return run("adapt", model, out, *few, "--rank", "2", *arguments, **options)


def records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
