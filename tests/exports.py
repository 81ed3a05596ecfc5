"""Checkpoints, evaluation files and runs of `wedlm export` for tests."""

import json
import re
from pathlib import Path

import torch
from draft_models import save_adapter, tiny_model
from tiny_tokenizer import QWEN25, make_tokenizer
from typer.testing import CliRunner

from wedlm.commands import cli
from wedlm.evaluation.provenance import weights_digest
from wedlm.modeling_wedlm.hub_code import flat_files

TOKEN = "hf_" + "abcdefghij" * 3 + "ABCD"
TOKENIZER = {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"}
WHOLE = {"README.md", "config.json", "generation_config.json", "model.safetensors", *flat_files()}


def run(*arguments):
    return CliRunner().invoke(cli.app, ["export", *map(str, arguments)])


def refused(*arguments):
    """Returns the sentence of a refused export, and checks that nothing stands at OUT or beside it."""
    before = sorted(Path(arguments[1]).parent.iterdir())
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1 and result.stderr.endswith(".\n"), result.stderr
    assert sorted(Path(arguments[1]).parent.iterdir()) == before
    return result.stderr


def save_base_and_adapter(folder, flavour="qwen3", dtype=torch.float32, saving=None, **fields):
    """Saves a tiny model with a tokenizer as `base`, and a random draft adapter for it as `adapter`."""
    tokenizer = make_tokenizer(QWEN25)
    tiny_model(flavour, **{"vocab_size": len(tokenizer), **fields}).to(dtype).save_pretrained(
        folder / "base", **saving or {}
    )
    tokenizer.save_pretrained(folder / "base")
    return save_adapter(folder / "adapter", base=folder / "base")


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def readme_with(folder, yaml):
    (folder / "README.md").write_text(f"---\n{yaml}\n---\n# Card\n")
    return folder


def snippet_of(readme):
    return re.search(r"```python\n(.*?)```", readme, flags=re.DOTALL)[1]


def result_of(**fields):
    """A result of an evaluation file."""
    metric = {"name": "exact_match", "filter": "none", "value": 0.93, "stderr": 0.01, "higher_is_better": True}
    return {
        "task": "demo_counting", "title": "Counting", "dataset": "wedlm-demo/counting", "dataset_config": None,
        "split": "test", "num_fewshot": 0, "num_examples": 1000, "decoding": "streaming, threshold 0.1",
        "arguments": {"decoding": "streaming", "entropy_threshold": 0.1}, "metrics": [metric],
        "tokens_per_forward": 2.345, "prefix_cacheability": 0.5, "tokens_per_second": 1234.5, "num_tokens": 42,
        **fields,
    }  # fmt: skip


def write_evaluation(path, folder, results=None, **fields):
    content = {
        "command": "wedlm eval /home/me/model --out /home/me/eval.json", "commit": "0123456789abcdef+changes",
        "versions": {"torch": "2.13.0", "lm_eval": "0.4.13"}, "device": "A <device>", "threads": 2, "model": "model",
        "weights_sha256": weights_digest(folder),
        "settings": {"apply_chat_template": True, "limit": None, "metadata": {}, "batch_size": 1},
        "results": [result_of()] if results is None else results, **fields,
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path
