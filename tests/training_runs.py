"""Runs of `wedlm train` on an example config that take a moment."""

from helpers import REPOSITORY

from wedlm.training.train import train

CONFIGS = REPOSITORY / "training" / "configs"
TOY = {
    "max_steps": 2,
    "save_steps": 1,
    "logging_steps": 1,
    "max_length": 32,
    "block_size": 4,
    "gradient_accumulation_steps": 2,
    "use_cpu": True,
    "disable_tqdm": True,
}


def words(**fields):
    return [word for name, value in fields.items() for word in (f"--{name}", str(value))]


def run(place, out, config="full", **fields):
    """`wedlm train` of an example config at toy size, on the files of the fixture `place`; the folder it leaves."""
    defaults = {"model": place / "model", "train_data": place / "chats.jsonl", "output_dir": out, **TOY}
    train([str(CONFIGS / f"{config}.yaml"), *words(**{**defaults, **fields})])
    return out
