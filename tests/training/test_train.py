"""Runs of `wedlm train` on tiny checkpoints."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import REPOSITORY, run_python
from training_runs import CONFIGS, TOY, run, words
from transformers import AutoModelForCausalLM, AutoTokenizer

from wedlm import WeDLMTrainingArguments
from wedlm.checkpoints.load import load_checkpoint
from wedlm.training.data import DataSummary
from wedlm.training.errors import TrainingError
from wedlm.training.run_arguments import RunArguments
from wedlm.training.train import convert_model, load_model, next_command, print_summaries, read_config_and_tokenizer

# --- Its results ---


@pytest.mark.full
def test_full_fine_tuning(place, full_run):
    out = full_run.folder
    assert "10 records read, 10 samples" in full_run.printed
    assert full_run.printed.endswith(f'Written to {out}.\nNext: wedlm generate {out} "Why is the sky blue?"\n')
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.dtype == torch.float32  # trained in float32, with bf16 as the type of its products
    before = AutoModelForCausalLM.from_pretrained(place / "model")
    assert not torch.equal(model.lm_head.weight, before.lm_head.weight)
    assert AutoTokenizer.from_pretrained(out).mask_token_id == model.config.mask_token_id
    assert {path.name for path in out.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}


@pytest.mark.full
def test_every_checkpoint_loads_without_the_package(full_run, merge, tmp_path):
    """One process loads them all, because its start takes longer than the loading."""
    folders = [full_run.folder, full_run.folder / "checkpoint-1", merge.folder]
    code = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
for folder in {folders}:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = model.generate(**tokenizer("abc", return_tensors="pt"), max_new_tokens=3)
    print(type(model).__name__, type(model).__module__.partition(".")[0], len(text), model.generation_config.decoding)
"""
    printed = run_python(code.format(folders=list(map(str, folders))), tmp_path, wedlm=False)
    assert printed.count("WeDLMForCausalLM transformers_modules 1 verified") == len(folders)


def test_lora_follows_the_seed(place, lora_run, tmp_path):
    second = run(place, tmp_path / "second", "lora", lora_r=4, learning_rate=1e-2)
    adapter = "adapter_model.safetensors"
    assert (lora_run / adapter).read_bytes() == (second / adapter).read_bytes()


def test_continued_pretraining_of_a_qwen(place, tmp_path):
    fields = {"model": place / "qwen", "train_data": f"{place}/text*.jsonl"}
    out = run(place, tmp_path / "out", "continued_pretraining", **fields)
    assert AutoModelForCausalLM.from_pretrained(out / "converted").config.mask_row == "unused"
    assert type(AutoModelForCausalLM.from_pretrained(out)).__name__ == "WeDLMForCausalLM"


# On GPUs accelerate starts DeepSpeed's communication before the model is loaded, and on CPUs it does not.
ZERO3 = """
import os
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
from wedlm.commands.cli import app

deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
app()
"""

FSDP2 = f"""
import sys
sys.path.insert(0, {str(REPOSITORY / "tests")!r})
from fsdp_on_cpus import allow_fsdp
from wedlm.commands.cli import app

allow_fsdp()
app()
"""


@pytest.mark.parametrize(
    "config",
    [
        pytest.param("full", marks=pytest.mark.slow),
        pytest.param("fsdp", marks=pytest.mark.slow),
        pytest.param("zero3", marks=pytest.mark.ecosystem),
    ],
)
def test_two_processes(place, tmp_path, config):
    out = tmp_path / "out"
    fields = {"model": place / "qwen", "train_data": place / "chats.jsonl", "output_dir": out, **TOY}
    fields |= {"bf16": False, "learning_rate": 1e-2, "warmup_steps": 0}
    program = ["-m", "wedlm"]
    if config != "full":
        program = [tmp_path / "program.py"]
        program[0].write_text({"fsdp": FSDP2, "zero3": ZERO3}[config])

    def launched(**more):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *program]
        command = [*launch, "train", CONFIGS / f"{config}.yaml", *words(**fields, **more)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert launched().count("10 records read") == 1, "each process reports"
    assert (out / "checkpoint-1" / "pytorch_model_fsdp.bin").exists() == (config == "fsdp")
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.mask_row == "unused"
    assert json.loads((out / "training_report.json").read_text())["train"]["step"] == 2
    (out / "model.safetensors").unlink()
    for path in (out / "checkpoint-2").rglob("*optim*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:100])
    assert f"The run resumes from {out}/checkpoint-1; left out: checkpoint-2" in launched(resume_from_checkpoint=True)
    weights = dict(model.named_parameters())
    for name, weight in AutoModelForCausalLM.from_pretrained(out).named_parameters():
        torch.testing.assert_close(weight, weights[name])


@pytest.mark.full
def test_weights_in_16_bits_are_trained_in_32(place, tmp_path):
    """Or steps as small as those of the paper would be lost in rounding."""
    AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    AutoTokenizer.from_pretrained(place / "model").save_pretrained(tmp_path / "half")
    out = run(place, tmp_path / "out", model=tmp_path / "half")
    assert json.loads((out / "config.json").read_text())["dtype"] == "float32"


def test_from_scratch(place, tmp_path):
    out = run(place, tmp_path / "out", random_weights=True, learning_rate=1e-9)
    weight = AutoModelForCausalLM.from_pretrained(out).lm_head.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.1)  # the source's have 0.2


def test_a_resumed_run(place, tmp_path):
    whole = run(place, tmp_path / "whole", max_steps=3)
    run(place, tmp_path / "again", max_steps=3)
    for name in ("checkpoint-3", "model.safetensors"):
        path = tmp_path / "again" / name
        path.unlink() if path.is_file() else shutil.rmtree(path)
    run(place, tmp_path / "again", max_steps=3, resume_from_checkpoint=True)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    with pytest.raises(TrainingError, match="resume_from_checkpoint=true: there is no checkpoint in .*new; name a"):
        run(place, tmp_path / "new", resume_from_checkpoint="true")
    with pytest.raises(TrainingError, match="there is no checkpoint in .*whole/checkpoint-9"):
        run(place, tmp_path / "new", resume_from_checkpoint=tmp_path / "whole" / "checkpoint-9")


@pytest.mark.parametrize("model", ["model", "qwen"])
def test_preview(place, tmp_path, capsys, model):
    run(place, tmp_path / "out", preview=True, model=place / model, packing=False)
    out = capsys.readouterr().out
    assert "<|im_start|>say 0<|im_end|><|im_start|>⟦0 said<|im_end|>⟧" in out
    assert "observed" in out and "masked" in out and "10 records read" in out
    assert not (tmp_path / "out").exists()


# --- Its parts ---


def arguments(**fields):
    return WeDLMTrainingArguments("out", use_cpu=True, **fields)


def copy_with(folder, out, name, **fields):
    """Copies a checkpoint and sets fields of one of its JSON files."""
    shutil.copytree(folder, out)
    path = out / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return str(out)


def test_code_in_a_checkpoint_is_not_run_and_nobody_is_asked(place, tmp_path, monkeypatch):
    questions = []
    monkeypatch.setattr("builtins.input", lambda question="": questions.append(question) or "y")
    code = "raise AssertionError('runs')\n"
    config = {"model_type": "foreign", "auto_map": {"AutoConfig": "foreign.Config"}}
    folder = copy_with(place / "qwen", tmp_path / "config", "config.json", **config)
    (tmp_path / "config" / "foreign.py").write_text(code)
    with pytest.raises(TrainingError, match="config is no checkpoint with a tokenizer .*trust_remote_code"):
        read_config_and_tokenizer(RunArguments(folder, []))
    tokenizer = {"tokenizer_class": "Foreign", "auto_map": {"AutoTokenizer": ["foreign.Foreign", None]}}
    folder = copy_with(place / "model", tmp_path / "tokenizer", "tokenizer_config.json", **tokenizer)
    (tmp_path / "tokenizer" / "foreign.py").write_text(code)
    with pytest.raises(TrainingError, match="tokenizer is no checkpoint with a tokenizer .*trust_remote_code"):
        read_config_and_tokenizer(RunArguments(folder, []))
    assert questions == []


def test_only_the_tokenizer_of_a_qwen_gets_a_mask_token(place, tmp_path):
    def mask_token(folder):
        return read_config_and_tokenizer(RunArguments(str(folder), []))[1].mask_token

    assert mask_token(place / "qwen") == mask_token(place / "model") == "<|mask|>"
    assert mask_token(copy_with(place / "qwen", tmp_path / "own", "tokenizer_config.json", mask_token="#")) == "#"
    without = copy_with(place / "model", tmp_path / "without", "tokenizer_config.json", mask_token=None)
    assert mask_token(without) is None


def test_summaries_are_printed_by_one_process_once_something_is_read(capsys):
    read, unread = DataSummary(8, num_read=3), DataSummary(8)
    main, other = (SimpleNamespace(process_index=i) for i in (0, 1))
    for training in (main, other):
        print_summaries({"train": read, "eval": unread}, training)
    assert capsys.readouterr().out.startswith("train: 3 records read") and not capsys.readouterr().out
    print_summaries({"eval": unread}, main)
    assert not capsys.readouterr().out


def test_a_qwen_is_converted_unless_a_resumed_run_has_done_it(place, tmp_path):
    run_arguments = RunArguments(str(place / "qwen"), [])
    training = arguments()
    training.output_dir = str(tmp_path)
    times = []
    for is_resumed in (True, True, False):
        folder = convert_model(run_arguments, training, is_resumed)
        times.append((Path(folder) / "config.json").stat().st_mtime_ns)
    assert times[0] == times[1] < times[2]


@pytest.mark.parametrize(
    ("asked", "rank", "dtype"),
    [
        ("auto", 0, torch.float32),
        ("auto", 4, torch.bfloat16),
        ("bfloat16", 0, torch.bfloat16),
        ("float32", 4, torch.float32),
    ],
)
@pytest.mark.parametrize("random_weights", [False, True])
def test_the_type_of_the_weights(place, tmp_path, asked, rank, dtype, random_weights):
    AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    folder = str(tmp_path / "half")
    run_arguments = RunArguments(folder, [], dtype=asked, lora_r=rank, random_weights=random_weights)
    assert load_model(folder, run_arguments, arguments()).get_input_embeddings().weight.dtype == dtype


@pytest.mark.parametrize(("given", "alpha"), [(None, 8), (3, 3)])
def test_lora_alpha_is_twice_the_rank_by_default(place, given, alpha):
    folder = str(place / "model")
    model = load_model(folder, RunArguments(folder, [], lora_r=4, lora_alpha=given), arguments())
    assert model.peft_config["default"].lora_alpha == alpha


def test_a_model_without_mask_token_id_is_refused(place, tmp_path):
    folder = copy_with(place / "model", tmp_path / "maskless", "config.json", mask_token_id=None)
    with pytest.raises(TrainingError, match="model=.*maskless has no mask_token_id in its config; set it there"):
        load_model(folder, RunArguments(folder, []), arguments())


@pytest.mark.parametrize(
    ("objective", "rank", "command"),
    [
        ("dual_stream", 0, 'wedlm generate out "Why is the sky blue?"'),
        ("dual_stream", 4, "wedlm merge out out-merged"),
        ("draft", 4, 'wedlm generate out "Why is the sky blue?"'),
    ],
)
def test_the_next_command(objective, rank, command):
    assert next_command(RunArguments("model", [], lora_r=rank), arguments(objective=objective)) == command


# --- The documentation ---


def test_the_python_of_the_documentation_runs(place, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "train.md").read_text(), re.DOTALL)
    code = "".join(block for block in blocks if "from trl" not in block)
    assert "max_steps=1000" in code
    monkeypatch.chdir(tmp_path)
    shutil.copy(place / "chats.jsonl", tmp_path)
    code = re.sub("max_steps=[0-9]+", "max_steps=1, use_cpu=True, report_to='none'", code)
    assert 'folder = "hub_card/wedlm-demo"' in code
    exec(code.replace('"hub_card/wedlm-demo"', repr(str(place / "model"))), {})
    assert (tmp_path / "out" / "modeling_wedlm.py").exists() and (tmp_path / "out" / "tokenizer.json").exists()


def test_a_run_of_a_draft_adapter(place, tmp_path):
    out = run(place, tmp_path / "out", "lora", objective="draft", draft_window=4, lora_r=4)
    fields = json.loads((out / "adapter_config.json").read_text())
    assert fields["peft_type"] == "WEDLM_DRAFT" and fields["base_model_name_or_path"] == str(place / "model")
    model, _ = load_checkpoint(out)
    assert model.config.drafts["rank"] == 4 and model.model.layers[0].mlp.drafts["up_proj"].up.any()
