import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields

import pytest
import torch
import yaml
from helpers import REPOSITORY, run_python
from peft import PeftModel
from qwen_checkpoints import save_qwen
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments
from typer.testing import CliRunner

from wedlm import WeDLMTrainingArguments, convert_to_wedlm
from wedlm.commands import cli
from wedlm.training.errors import TrainingError
from wedlm.training.merge import merge_adapter
from wedlm.training.train import RunArguments, parse, train, without_secrets

CONFIGS = REPOSITORY / "training" / "configs"
TOY = {  # what makes a step of any config a matter of a moment
    "max_steps": 2,
    "save_steps": 1,
    "logging_steps": 1,
    "max_length": 32,
    "block_size": 4,
    "gradient_accumulation_steps": 2,
    "use_cpu": True,
    "disable_tqdm": True,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Tiny checkpoints and data, and the folder they are in."""
    place = tmp_path_factory.mktemp("place")
    (place / "qwen").mkdir()
    save_qwen(place / "qwen", rows=300)
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
    for name, rows in (("chats", chats), ("texts", texts)):
        (place / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return place


def words(**fields):
    return [word for name, value in fields.items() for word in (f"--{name}", str(value))]


def run(place, out, config="full", **fields):
    """`wedlm train` of an example config at toy size; the folder it leaves."""
    defaults = {"model": place / "model", "train_data": place / "chats.jsonl", "output_dir": out, **TOY}
    train([str(CONFIGS / f"{config}.yaml"), *words(**{**defaults, **fields})])
    return out


# --- What it leaves ---


def test_full_fine_tuning(place, tmp_path, capsys):
    out = run(place, tmp_path / "out", eval_data=place / "chats.jsonl", hub_token="secret")
    assert "10 rows read, 10 samples" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.dtype == torch.float32  # trained in float32, with bf16 as the type of its products
    before = AutoModelForCausalLM.from_pretrained(place / "model")
    assert not torch.equal(model.lm_head.weight, before.lm_head.weight)
    assert AutoTokenizer.from_pretrained(out).mask_token_id == model.config.mask_token_id
    report = json.loads((out / "training_report.json").read_text())
    assert "secret" not in report["command"]
    assert report["command"].startswith("wedlm train") and report["versions"].keys() >= {"torch", "transformers"}
    assert report["data"]["train"]["num_samples"] == 10 and report["train"]["step"] == 2
    assert report["train"]["mlm_loss"] > 0 and report["eval"]["eval_loss"] > 0
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in out.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}
    code = (
        "from transformers import AutoModelForCausalLM as A\nprint(A.from_pretrained('out', trust_remote_code=True))"
    )
    assert "WeDLMForCausalLM" in run_python(code, tmp_path, wedlm=False)


def test_continued_pretraining_of_a_qwen(place, tmp_path):
    fields = {"model": place / "qwen", "train_data": f"{place}/text*.jsonl"}
    out = run(place, tmp_path / "out", "continued_pretraining", **fields)
    assert AutoModelForCausalLM.from_pretrained(out / "converted").config.mask_row == "unused"
    assert type(AutoModelForCausalLM.from_pretrained(out)).__name__ == "WeDLMForCausalLM"


def test_lora_and_merge(place, tmp_path):
    out = run(place, tmp_path / "out", "lora", lora_r=4, learning_rate=1e-2)
    merged = CliRunner().invoke(cli.app, ["merge", str(out), str(tmp_path / "merged")])
    assert merged.exit_code == 0 and "Written to" in merged.stdout
    base = AutoModelForCausalLM.from_pretrained(place / "model")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    mask = base.config.mask_token_id
    rows = (whole.model.embed_tokens.weight != base.model.embed_tokens.weight).any(-1).nonzero().flatten()
    assert rows.tolist() == [mask]
    with_adapter = PeftModel.from_pretrained(base, out).eval()
    input_ids = torch.tensor([[3, 4, 5, mask, mask]])
    torch.testing.assert_close(whole(input_ids).logits, with_adapter(input_ids).logits, rtol=1e-4, atol=1e-4)
    code = "from transformers import AutoModelForCausalLM as A\nA.from_pretrained('merged', trust_remote_code=True)"
    run_python(code, tmp_path, wedlm=False)


def test_lora_follows_the_seed_and_merge_takes_its_tokenizer(place, tmp_path):
    first = run(place, tmp_path / "first", "lora", lora_r=2)
    second = run(place, tmp_path / "second", "lora", lora_r=2)
    adapter = "adapter_model.safetensors"
    assert (first / adapter).read_bytes() == (second / adapter).read_bytes()
    (first / "chat_template.jinja").write_text("another")
    merge_adapter(str(first), tmp_path / "merged")
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template == "another"


@pytest.mark.slow
def test_qlora_and_merge(place, tmp_path):
    out = run(place, tmp_path / "out", "qlora", lora_r=4)
    report = json.loads((out / "training_report.json").read_text())
    assert 0 < report["train"]["loss"] < 20
    result = CliRunner().invoke(cli.app, ["merge", str(out), str(tmp_path / "merged")])
    assert result.exit_code == 0
    AutoModelForCausalLM.from_pretrained(tmp_path / "merged")


@pytest.mark.slow
@pytest.mark.parametrize("config", ["full", "fsdp"])
def test_two_processes(place, tmp_path, config):
    fields = {"model": place / "qwen", "train_data": place / "chats.jsonl", "output_dir": tmp_path / "out", **TOY}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "wedlm"]
    command = [*launch, "train", CONFIGS / f"{config}.yaml", *words(**fields, bf16=False)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("10 rows read") == 1, "each process reports"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.mask_row == "unused"
    assert json.loads((tmp_path / "out" / "training_report.json").read_text())["train"]["step"] == 2


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
    assert "observed" in out and "masked" in out and "10 rows read" in out
    assert not (tmp_path / "out").exists()


# --- Arguments ---


def test_the_command_line_overrides_the_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "model: a\ntrain_data: [b, c]\noutput_dir: d\nlearning_rate: 1e-4\npacking: true\nfsdp_config: {x: 1}\n"
    )
    run, training = parse([str(path), "--train_data", "e", "--block_size=4"])
    assert (run.model, run.train_data, training.learning_rate, training.packing) == ("a", ["e"], 1e-4, True)
    assert training.block_size == 4
    run, training = parse([str(path), "--packing", "false"])
    assert run.train_data == ["b", "c"] and not training.packing


def test_the_defaults_are_those_of_the_paper(tmp_path):
    _, training = parse(["--model", "a", "--train_data", "b", "--output_dir", str(tmp_path)])
    assert (training.block_size, training.ar_loss_weight, training.loss_weighting) == (32, 1.0, "weighted")
    assert training.suffix_mask_probability == 0


REFUSED = {
    "an unknown argument": (
        ["--learning_rat", "1"],
        "no argument 'learning_rat' .on the command line.; did you mean le",
    ),
    "a strange argument": (["--qqqqqqqq", "1"], "no argument 'qqqqqqqq' .*docs/train.md"),
    "a word that belongs to none": (["--model", "a", "b"], "'b' belongs to no argument"),
    "no number": (["--learning_rate", "fast"], "argument --learning_rate.*: invalid float value: 'fast'"),
    "no model": ([], "the following arguments are required: --model, --train_data"),
    "no file": (["nothing.yaml"], "nothing.yaml cannot be read as YAML .*correct"),
    "a block of nothing": (["--block_size", "0"], "block_size=0 is no number of tokens; pass 1 or more"),
    "a negative weight": (["--ar_loss_weight", "-1"], "ar_loss_weight=-1.0 is negative; pass 0"),
    "a choice that is none": (["--overlong", "cut"], "--overlong: invalid choice: 'cut'"),
    "a length of nothing": (["--max_length", "1"], "max_length=1 is too small"),
    "missing data": (["--train_data", "nowhere.jsonl"], "nowhere.jsonl"),
    "no checkpoint": (["--model", "."], "model=. is no checkpoint with a tokenizer .*; give a folder or a name"),
    "no rank": (["--lora_r", "-1"], "lora_r=-1 is no rank"),
    "QLoRA from scratch": (
        ["--load_in_4bit", "true", "--lora_r", "4", "--random_weights", "true"],
        "load_in_4bit=True and random_weights=True exclude each other",
    ),
    "a stream without an end": (["--streaming", "true", "--max_steps", "-1"], "streaming=True needs max_steps"),
    "evaluation of nothing": (["--eval_strategy", "steps"], "eval_strategy=steps needs eval_data"),
    "a type that is none": (["--dtype", "float31"], "dtype='float31' is none of torch's"),
    "an output that is a file": (["--output_dir", "file"], "output_dir=file is a file"),
    "attention that cannot": (
        ["--attn_implementation", "flash_attention_2"],
        "cannot express the attention of the two",
    ),
    "smoothed labels": (["--label_smoothing_factor", "0.1"], "label_smoothing_factor=0.1 is not offered"),
    "modules that are none": (["--lora_r", "4", "--lora_target_modules", "nothing"], "nothing"),
    "a logger that is not there": (["--report_to", "wandb"], "wandb"),
    "QLoRA without LoRA": (["--load_in_4bit", "true"], "load_in_4bit=True needs lora_r"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_sentence_and_exit_code_2(place, tmp_path, monkeypatch, name):
    arguments, message = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    start = words(model=place / "qwen", train_data=place / "chats.jsonl", output_dir="out", **TOY)
    if name in ("no model", "no file"):
        start = []
    result = CliRunner().invoke(cli.app, ["train", *(arguments if name == "no file" else [*start, *arguments])])
    if name == "no model":
        result = CliRunner().invoke(cli.app, ["train", "--output_dir", "out"])
    assert result.exit_code == 2, result.output + repr(result.exception)
    assert re.search(message, result.stderr), result.stderr
    assert result.stderr.endswith((".\n", "?\n"))
    # What only the model or Trainer can say comes when Qwen's checkpoint has been converted.
    assert (tmp_path / "out").exists() == (name in ("modules that are none", "a logger that is not there"))
    if not (tmp_path / "out").exists():
        assert result.stderr.count("\n") == 1


def test_what_yaml_means(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "model: a\ntrain_data: b\noutput_dir: d\nsave_strategy: no\neval_data: []\nlora_target_modules: [q, v]\n"
        "run_name: -x\nwarmup_steps: null\npacking: false\n"
    )
    run, training = parse([str(path)])
    assert (training.save_strategy, run.eval_data, run.lora_target_modules) == ("no", [], ["q", "v"])
    assert (training.run_name, training.packing) == ("-x", False)


def test_secrets_are_not_written():
    words = ["a.yaml", "--hub_token", "secret", "--push_to_hub_token=secret", "--hub-token=secret", "--lr", "1"]
    written = " ".join(without_secrets(words))
    assert "secret" not in written and "--lr 1" in written and "a.yaml" in written


def test_an_unknown_name_in_the_file(tmp_path):
    (tmp_path / "config.yaml").write_text("modle: a\n")
    with pytest.raises(TrainingError, match="no argument 'modle' .in .*config.yaml.; did you mean model"):
        parse([str(tmp_path / "config.yaml")])
    (tmp_path / "config.yaml").write_text("- a\n")
    with pytest.raises(TrainingError, match="holds no arguments; write a line"):
        parse([str(tmp_path / "config.yaml")])


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_config_parses(path, monkeypatch, tmp_path):
    fields = yaml.safe_load(path.read_text())
    more = ["--use_cpu", "true"]
    if "deepspeed" in fields:
        more += ["--deepspeed", ""]  # which the test below is for
    run, training = parse([str(path), *more])
    assert (run.model, training.learning_rate) == (fields["model"], fields["learning_rate"])
    assert "wedlm train" in path.read_text() or "-m wedlm train" in path.read_text()


def test_zero3_keys_are_deepspeeds():
    """The keys that DeepSpeed documents for these sections; its own check runs where it is installed."""
    documented = {
        "bf16": {"enabled"},
        "fp16": {"enabled"},
        "zero_optimization": {
            "stage", "overlap_comm", "contiguous_gradients", "reduce_bucket_size", "stage3_prefetch_bucket_size",
            "stage3_param_persistence_threshold", "stage3_gather_16bit_weights_on_model_save",
        },
        "gradient_accumulation_steps": None,
        "gradient_clipping": None,
        "train_batch_size": None,
        "train_micro_batch_size_per_gpu": None,
    }  # fmt: skip
    content = json.loads((CONFIGS / "zero3.json").read_text())
    assert content.keys() <= documented.keys()
    for name, section in content.items():
        if isinstance(section, dict):
            assert section.keys() <= documented[name], name
    assert content["zero_optimization"]["stage"] == 3


def test_zero3_through_training_arguments(tmp_path):
    pytest.importorskip("deepspeed", reason="deepspeed is not installed, so ZeRO-3 is not run")
    _, training = parse([str(CONFIGS / "zero3.yaml"), "--output_dir", str(tmp_path)])
    assert training.hf_deepspeed_config.is_zero3()


def test_a_merge_that_cannot_be(tmp_path, place):
    for adapter, message in ((tmp_path, "is no adapter of PEFT"), (place / "model", "is no adapter of PEFT")):
        result = CliRunner().invoke(cli.app, ["merge", str(adapter), str(tmp_path / "out")])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert message in result.stderr
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "gone")})
    )
    result = CliRunner().invoke(cli.app, ["merge", str(tmp_path / "adapter"), str(tmp_path / "out")])
    assert result.exit_code == 2 and "that" in result.stderr and "cannot be loaded" in result.stderr
    adapter = json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(place / "model")})
    (tmp_path / "adapter" / "adapter_config.json").write_text(adapter)  # and no weights
    result = CliRunner().invoke(cli.app, ["merge", str(tmp_path / "adapter"), str(tmp_path / "out")])
    assert (result.exit_code, "cannot be merged" in result.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_every_argument_is_documented():
    table = (REPOSITORY / "docs" / "train.md").read_text()
    own = {item.name for kind in (RunArguments, WeDLMTrainingArguments) for item in fields(kind) if item.init}
    own -= {item.name for item in fields(TrainingArguments)} - {"attn_implementation"}
    documented = {
        name for line in table.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)
    }
    assert own <= documented, own - documented


def test_the_python_of_the_documentation_runs(place, tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "train.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    shutil.copy(place / "chats.jsonl", tmp_path)
    code = code.replace("max_steps=1000", "max_steps=1, use_cpu=True, report_to='none'")
    exec(code, {"folder": str(place / "model")})
    assert (tmp_path / "out" / "modeling_wedlm.py").exists() and (tmp_path / "out" / "tokenizer.json").exists()
