"""The arguments of `wedlm train`, and the sentences that refuse them."""

import re
from dataclasses import fields

import pytest
import yaml
from helpers import REPOSITORY
from training_runs import CONFIGS, TOY, words
from transformers import TrainingArguments
from typer.testing import CliRunner

from wedlm import WeDLMTrainingArguments
from wedlm.commands import cli
from wedlm.training.run_arguments import RunArguments, parse
from wedlm.training.run_errors import TrainingError


def test_the_command_line_overrides_the_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "model: a\ntrain_data: [b, c]\noutput_dir: d\nlearning_rate: 1e-4\npacking: true\nfsdp_config: {x: 1}\n"
        "save_strategy: no\neval_data: []\nrun_name: -x\nwarmup_steps: null\n"
    )
    run, training = parse([str(path)])
    assert (run.model, run.train_data, run.eval_data, training.learning_rate) == ("a", ["b", "c"], [], 1e-4)
    assert (training.packing, training.save_strategy, training.run_name) == (True, "no", "-x")
    run, training = parse([str(path), "--train_data", "e", "--block_size=4", "--packing", "false"])
    assert (run.train_data, training.block_size, training.packing) == (["e"], 4, False)


FOUND_BY_TRANSFORMERS = ("modules that are none", "a streamed dataset without an end", "evaluation of nothing")
REFUSED = {
    "an unknown argument": (["--learning_rat", "1"], "no argument 'learning_rat'; did you mean le"),
    "a strange argument": (["--qqqqqqqq", "1"], "no argument 'qqqqqqqq'; docs/reference/train.md"),
    "a word that belongs to none": (["--seed", "1", "b"], "'b' belongs to no argument"),
    "no number": (["--learning_rate", "fast"], "argument --learning_rate.*: invalid float value: 'fast'"),
    "no model": ([], "the following arguments are required: --model, --train_data"),
    "a negative weight": (["--ar_loss_weight", "-1"], "ar_loss_weight=-1 is not a weight; pass a number from 0"),
    "a choice that is none": (["--overlong", "cut"], "--overlong: invalid choice: 'cut'"),
    "one token": (["--max_length", "1"], "max_length=1 is too small; pass at least 2 tokens"),
    "negative end tokens": (["--extra_end_tokens", "-1"], "extra_end_tokens=-1 is negative; pass 0 or more"),
    "no process": (["--num_proc", "0"], "num_proc=0 is not a number of processes; pass 1 or more"),
    "a window of one": (["--draft_window", "1"], "draft_window=1 is not from 2 to 32: .*; pass a number in between"),
    "a wide window": (["--draft_window", "33"], "draft_window=33 is not from 2 to 32"),
    "missing data": (["--train_data", "nowhere.jsonl"], "nowhere.jsonl"),
    "no checkpoint": (
        ["--model", "."],
        r"^\. has no config.json, so it is not a checkpoint; give the folder of one",
    ),
    "no rank": (["--lora_r", "-1"], "lora_r=-1 is not a rank"),
    "QLoRA from scratch": (
        ["--load_in_4bit", "true", "--lora_r", "4", "--random_weights", "true"],
        "load_in_4bit=True and random_weights=True exclude each other",
    ),
    "a streamed dataset without an end": (
        ["--streaming", "true", "--max_steps", "-1"],
        "max_steps has to be specified",
    ),
    "evaluation of nothing": (["--eval_strategy", "steps"], "didn.t pass an `eval_dataset`"),
    "an output that is a file": (["--output_dir", "file"], r"output_dir=file cannot be written \(Not a directory"),
    "attention that cannot": (["--attn_implementation", "flash_attention_2"], "cannot express the attention of the"),
    "smoothed labels": (["--label_smoothing_factor", "0.1"], "label_smoothing_factor=0.1 is not supported, .*leave"),
    "modules that are none": (["--lora_r", "4", "--lora_target_modules", "nothing"], "nothing"),
    "a draft adapter without LoRA": (["--objective", "draft"], 'objective="draft" needs lora_r'),
    "QLoRA without LoRA": (["--load_in_4bit", "true"], "load_in_4bit=True needs lora_r"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_sentence_and_exit_code_2(place, tmp_path, monkeypatch, name):
    arguments, message = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    start = words(model=place / "qwen", train_data=place / "chats.jsonl", output_dir="out", **TOY)
    if name == "no model":
        start = ["--output_dir", "out"]
    result = CliRunner().invoke(cli.app, ["train", *start, *arguments])
    assert result.exit_code == 2, result.output + repr(result.exception)
    assert re.search(message, result.stderr), result.stderr
    assert result.stderr.endswith((".\n", "?\n"))
    # Errors that only the model or Trainer raises come after the conversion of Qwen's checkpoint.
    assert (tmp_path / "out").exists() == (name in FOUND_BY_TRANSFORMERS)
    if not (tmp_path / "out").exists():
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("modle: a", "no argument 'modle'; did you mean model"),
        ("- a", "holds no arguments; write a line"),
        ("a: [", r"cannot be read as YAML \(.*\); correct the name or the file"),
    ],
)
def test_files_that_are_refused(tmp_path, content, sentence):
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(TrainingError, match=sentence):
        parse([str(tmp_path / "config.yaml")])


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_config_parses(path):
    fields = yaml.safe_load(path.read_text())
    without_deepspeed = ["--deepspeed", ""] if "deepspeed" in fields else []
    run, training = parse([str(path), "--use_cpu", "true", *without_deepspeed])
    assert (run.model, training.learning_rate) == (fields["model"], fields["learning_rate"])


def test_every_argument_is_documented():
    table = (REPOSITORY / "docs" / "reference" / "train.md").read_text()
    own = {item.name for kind in (RunArguments, WeDLMTrainingArguments) for item in fields(kind) if item.init}
    own -= {item.name for item in fields(TrainingArguments)} - {"attn_implementation"}
    documented = {
        name for line in table.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)
    }
    assert own <= documented, own - documented
