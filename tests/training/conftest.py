"""Fixtures of the tests of training: a cache of datasets, tiny checkpoints with data, and runs on them."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import datasets
import pytest
from stock_checkpoints import save_stock
from typer.testing import CliRunner, Result

from wedlm import convert_to_wedlm
from wedlm.commands import cli

datasets.disable_progress_bars()


@pytest.fixture
def datasets_cache(tmp_path_factory, monkeypatch):
    """An empty cache of datasets for each test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


# Each run is made once, and tests only read its files. The fixtures import `wedlm train`, without which most of the
# tests here start faster.


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with tiny checkpoints, `qwen` and `model`, and data, `chats.jsonl` and `texts.jsonl`."""
    place = tmp_path_factory.mktemp("place")
    (place / "qwen").mkdir()
    save_stock(place / "qwen", rows=300)
    convert_to_wedlm(place / "qwen", place / "model")
    template = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
    template += "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    for name in ("qwen", "model"):
        (place / name / "chat_template.jinja").write_text(template)
    chats = [
        {"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"{i} said"}]}
        for i in range(10)
    ]
    texts = [{"text": f"the {i} th text"} for i in range(10)]
    for name, records in (("chats", chats), ("texts", texts)):
        (place / f"{name}.jsonl").write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return place


class FullRun(NamedTuple):
    folder: Path
    printed: str


@pytest.fixture(scope="session")
def full_run(place, tmp_path_factory):
    """Full fine-tuning with evaluation."""
    from training_runs import run

    out = tmp_path_factory.mktemp("full") / "out"
    with redirect_stdout(StringIO()) as printed:
        run(place, out, eval_data=place / "chats.jsonl", hub_token="secret")
    return FullRun(out, printed.getvalue())


@pytest.fixture(scope="session")
def lora_run(place, tmp_path_factory):
    """The folder of a LoRA adapter."""
    from training_runs import run

    return run(place, tmp_path_factory.mktemp("lora") / "out", "lora", lora_r=4, learning_rate=1e-2)


@pytest.fixture(scope="session")
def three_steps(place, tmp_path_factory):
    """Full fine-tuning of three steps, with a checkpoint after each."""
    from training_runs import run

    return run(place, tmp_path_factory.mktemp("three") / "out", max_steps=3)


class Merge(NamedTuple):
    folder: Path
    result: Result


@pytest.fixture(scope="session")
def merge(lora_run, tmp_path_factory):
    """`wedlm merge` of the LoRA run."""
    out = tmp_path_factory.mktemp("merge") / "merged"
    return Merge(out, CliRunner().invoke(cli.app, ["merge", str(lora_run), str(out)]))
