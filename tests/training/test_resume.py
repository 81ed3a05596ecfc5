"""The checkpoint that a run resumes from, where a kill may have left the newest one incomplete."""

import shutil

import pytest

from wedlm import WeDLMTrainingArguments
from wedlm.training.resume import checkpoint_to_resume, last_complete_checkpoint
from wedlm.training.run_errors import TrainingError

FILES = ["trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"]


def damage(path, share):
    if share is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def resuming(folder, asked="true", **fields):
    return WeDLMTrainingArguments(str(folder), resume_from_checkpoint=str(asked), use_cpu=True, **fields)


@pytest.mark.parametrize(
    ("name", "share"),
    [*((name, None) for name in FILES), *((name, 0.5) for name in FILES), ("optimizer.pt", 0.0)],
)
def test_the_last_complete_checkpoint(three_steps, tmp_path, capsys, name, share):
    out = tmp_path / "out"
    shutil.copytree(three_steps, out)
    shutil.copytree(out / "checkpoint-3", out / "checkpoint-best-500")  # a copy of the user's
    assert checkpoint_to_resume(resuming(out)) == str(out / "checkpoint-3") and not capsys.readouterr().out
    damage(out / "checkpoint-3" / name, share)
    assert checkpoint_to_resume(resuming(out)) == str(out / "checkpoint-2")
    reason = f"its {name} is {'missing' if share is None else 'cut short'}"
    left_out = f"left out: checkpoint-3, because {reason}"
    assert capsys.readouterr().out == f"The run resumes from {out}/checkpoint-2; {left_out}.\n"
    with pytest.raises(TrainingError, match=f"/checkpoint-3 is not a complete checkpoint, because {reason}; name"):
        checkpoint_to_resume(resuming(out, out / "checkpoint-3"))
    shutil.rmtree(out / "checkpoint-2")  # save_total_limit has removed the first
    with pytest.raises(TrainingError, match=rf"no complete checkpoint in .* \({left_out}\); .* start anew"):
        checkpoint_to_resume(resuming(out))


def test_the_newest_checkpoint_has_the_highest_step(three_steps, tmp_path):
    for step, name in ((2, "checkpoint-9"), (3, "checkpoint-10")):
        shutil.copytree(three_steps / f"checkpoint-{step}", tmp_path / name)
    assert checkpoint_to_resume(resuming(tmp_path)) == str(tmp_path / "checkpoint-10")


def test_an_adapter_and_a_model_without_an_optimizer(lora_run, three_steps, tmp_path, capsys):
    shutil.copytree(lora_run, tmp_path / "lora")
    assert last_complete_checkpoint(resuming(tmp_path / "lora")).endswith("checkpoint-2")
    for share, kind in ((0.5, "cut short"), (None, "missing")):
        damage(tmp_path / "lora" / "checkpoint-2" / "adapter_model.safetensors", share)
        assert last_complete_checkpoint(resuming(tmp_path / "lora")).endswith("checkpoint-1")
        assert f"because its adapter_model.safetensors is {kind}." in capsys.readouterr().out
    shutil.copytree(three_steps, tmp_path / "out")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (tmp_path / "out" / "checkpoint-3" / name).unlink()
    assert last_complete_checkpoint(resuming(tmp_path / "out", save_only_model=True)).endswith("checkpoint-3")


def test_fsdp_has_files_of_its_own(three_steps, tmp_path, monkeypatch):
    shutil.copytree(three_steps, tmp_path / "out")
    newest = tmp_path / "out" / "checkpoint-3"
    for name in ("optimizer.pt", "model.safetensors"):
        (newest / name).unlink()
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    training = resuming(tmp_path / "out")
    assert last_complete_checkpoint(training) == str(newest)
    (newest / "optimizer.bin").write_bytes(b"half")
    assert last_complete_checkpoint(training).endswith("checkpoint-2")


def test_a_sharded_model(three_steps, tmp_path):
    from transformers import AutoModelForCausalLM

    shutil.copytree(three_steps, tmp_path / "out")
    newest = tmp_path / "out" / "checkpoint-3"
    model = AutoModelForCausalLM.from_pretrained(newest)
    (newest / "model.safetensors").unlink()
    model.save_pretrained(newest, max_shard_size="50KB")
    assert checkpoint_to_resume(resuming(tmp_path / "out")) == str(newest)
    max(newest.glob("model-*.safetensors")).unlink()
    assert checkpoint_to_resume(resuming(tmp_path / "out")).endswith("checkpoint-2")
    damage(newest / "model.safetensors.index.json", 0.5)
    assert checkpoint_to_resume(resuming(tmp_path / "out")).endswith("checkpoint-2")
