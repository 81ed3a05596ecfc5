"""Runs of `wedlm train` on tiny checkpoints."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import REPOSITORY, run_python
from training_runs import CONFIGS, TOY, run, words
from transformers import AutoModelForCausalLM

from wedlm import WeDLMTrainingArguments
from wedlm.checkpoints.load import load_checkpoint
from wedlm.training.dataset import DataSummary
from wedlm.training.run_arguments import RunArguments
from wedlm.training.train import convert_model, load_model, read_config_and_tokenizer, write_report

# --- Its results ---


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


def test_from_scratch(place, tmp_path):
    out = run(place, tmp_path / "out", random_weights=True, learning_rate=1e-9)
    weight = AutoModelForCausalLM.from_pretrained(out).lm_head.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.1)  # the source's have 0.2


def test_preview(place, tmp_path, capsys):
    run(place, tmp_path / "out", preview=True, model=place / "qwen", packing=False)
    out = capsys.readouterr().out
    assert "<|im_start|>say 0<|im_end|><|im_start|>⟦0 said<|im_end|>⟧" in out
    assert "observed" in out and "masked" in out and "10 records read" in out
    assert not (tmp_path / "out").exists()


# --- Its parts ---


@pytest.mark.parametrize(
    ("source", "name", "fields", "sentence"),
    [
        ("qwen", "config.json", {"model_type": "foreign", "auto_map": {"AutoConfig": "foreign.Config"}},
         "model is of model_type 'foreign'; supported is"),
        ("model", "tokenizer_config.json",
         {"tokenizer_class": "Foreign", "auto_map": {"AutoTokenizer": ["foreign.Foreign", None]}},
         "The tokenizer in .*model cannot be loaded .it needs code of its own, which is never run"),
    ],
)  # fmt: skip
def test_code_in_a_checkpoint_is_not_run_and_nobody_is_asked(
    place, tmp_path, monkeypatch, source, name, fields, sentence
):
    monkeypatch.setattr("builtins.input", lambda question="": pytest.fail(question))
    folder = shutil.copytree(place / source, tmp_path / "model")
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | fields))
    (folder / "foreign.py").write_text("raise AssertionError('runs')\n")
    with pytest.raises(ValueError, match=sentence):
        read_config_and_tokenizer(RunArguments(str(folder), []))


def test_a_qwen_is_converted_unless_a_resumed_run_has_done_it(place, tmp_path):
    run_arguments = RunArguments(str(place / "qwen"), [])
    training = WeDLMTrainingArguments(str(tmp_path), use_cpu=True)
    times = []
    for is_resumed in (True, True, False):
        folder = convert_model(run_arguments, training, is_resumed)
        times.append((Path(folder) / "config.json").stat().st_mtime_ns)
    assert times[0] == times[1] < times[2]


@pytest.mark.parametrize(
    ("asked", "rank", "dtype"),
    [("auto", 0, torch.float32), ("auto", 4, torch.bfloat16), ("bfloat16", 0, torch.bfloat16)],
)
def test_the_type_of_the_weights(place, tmp_path, asked, rank, dtype):
    AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    folder = str(tmp_path / "half")
    run_arguments = RunArguments(folder, [], dtype=asked, lora_r=rank)
    model = load_model(folder, run_arguments, WeDLMTrainingArguments("out", use_cpu=True))
    assert model.get_input_embeddings().weight.dtype == dtype


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


# --- The report ---


@pytest.mark.full
def test_the_report_of_a_run(full_run):
    assert full_run.printed.endswith(
        f'Written to {full_run.folder}.\nNext: wedlm generate {full_run.folder} "Why is the sky blue?"\n'
    )
    report = json.loads((full_run.folder / "training_report.json").read_text())
    assert report["command"].startswith("wedlm train") and report["versions"].keys() >= {"torch", "transformers"}
    assert report["data"]["train"]["num_samples"] == 10 and report["train"]["step"] == 2
    assert report["train"]["mlm_loss"] > 0 and report["eval"]["eval_loss"] > 0
    assert (full_run.folder / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_without_steps_counts_the_records_that_were_dropped(tmp_path):
    words = ["a.yaml", "--hub_token", "secret", "--push_to_hub_token=secret", "--hub-token=secret", "--lr", "1"]
    summary = DataSummary(8)
    summary.count("blank text", 0, 0, 0, 0)
    write_report(tmp_path, words, [], {"train": summary})
    report = json.loads((tmp_path / "training_report.json").read_text())
    assert "secret" not in report["command"] and report["command"].endswith("--lr 1")
    assert report["data"]["train"]["dropped"] == {"blank text": 1} and report["train"] is None
    assert (tmp_path / "loss.png").exists()
