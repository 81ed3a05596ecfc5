"""The run that output_dir holds: a finished one stays, a stopped one goes on, and a kill has left it incomplete."""

import json
import shutil
from pathlib import Path

import pytest
from training_runs import run

from wedlm import WeDLMTrainer, WeDLMTrainingArguments
from wedlm.training.errors import TrainingError
from wedlm.training.resume import RUN_FILE, checkpoint_to_resume, last_complete_checkpoint
from wedlm.training.run_report import REPORT_FILE

FILES = ["trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"]
DAMAGES = {"missing": None, "empty": 0.0, "truncated": 0.5}


@pytest.fixture(scope="module")
def three_steps(place, tmp_path_factory):
    return run(place, tmp_path_factory.mktemp("three") / "out", max_steps=3)


def damage(path, share):
    if share is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def resuming(folder, asked="true", **fields):
    return WeDLMTrainingArguments(str(folder), resume_from_checkpoint=str(asked), use_cpu=True, **fields)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", DAMAGES.values(), ids=DAMAGES)
def test_the_last_complete_checkpoint(three_steps, tmp_path, capsys, name, share):
    out = tmp_path / "out"
    shutil.copytree(three_steps, out)
    assert checkpoint_to_resume(resuming(out)) == str(out / "checkpoint-3") and not capsys.readouterr().out
    damage(out / "checkpoint-3" / name, share)
    assert checkpoint_to_resume(resuming(out)) == str(out / "checkpoint-2")
    reason = f"its {name} is {'missing' if share is None else 'cut short'}"
    left_out = f"left out: checkpoint-3, because {reason}"
    assert capsys.readouterr().out == f"The run resumes from {out}/checkpoint-2; {left_out}.\n"
    refusal = "there is no checkpoint in" if (name, share) == (FILES[0], None) else f"{reason}, so the run"
    with pytest.raises(TrainingError, match=f"/checkpoint-3: {refusal}"):
        checkpoint_to_resume(resuming(out, out / "checkpoint-3"))
    shutil.rmtree(out / "checkpoint-2")  # save_total_limit has removed the first
    with pytest.raises(TrainingError, match=rf"no complete checkpoint in .* \({left_out}\); .* start anew"):
        checkpoint_to_resume(resuming(out))


def test_a_run_goes_on_behind_a_kill(place, three_steps, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(three_steps, out)
    damage(out / "checkpoint-3" / "optimizer.pt", 0.5)
    (out / "model.safetensors").unlink()
    (out / "checkpoint-4").touch()
    (out / "runs").mkdir()
    run(place, out, max_steps=3, resume_from_checkpoint=True)
    assert f"resumes from {out}/checkpoint-2; left out: checkpoint-3, because" in capsys.readouterr().out
    for name in ("model.safetensors", "checkpoint-3/optimizer.pt"):
        assert (out / name).read_bytes() == (three_steps / name).read_bytes()


def test_an_adapter_and_a_model_without_an_optimizer(lora_run, three_steps, tmp_path, capsys):
    shutil.copytree(lora_run, tmp_path / "lora")
    assert last_complete_checkpoint(resuming(tmp_path / "lora")).endswith("checkpoint-2")
    damage(tmp_path / "lora" / "checkpoint-2" / "adapter_model.safetensors", 0.5)
    assert last_complete_checkpoint(resuming(tmp_path / "lora")).endswith("checkpoint-1")
    (tmp_path / "lora" / "checkpoint-2" / "adapter_model.safetensors").unlink()
    capsys.readouterr()
    assert last_complete_checkpoint(resuming(tmp_path / "lora")).endswith("checkpoint-1")
    assert "because its adapter_model.safetensors is missing." in capsys.readouterr().out
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


def test_deepspeed_has_a_folder_of_its_own(three_steps, tmp_path):
    shutil.copytree(three_steps, tmp_path / "out")
    folder = tmp_path / "out" / "checkpoint-3" / "global_step3"
    folder.mkdir()
    (folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt").write_bytes(b"half")
    assert last_complete_checkpoint(resuming(tmp_path / "out")).endswith("checkpoint-2")


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


# --- The run that output_dir holds ---


def contents(folder):
    return {path: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def stopped(finished, out):
    """What a kill behind the second step leaves of a run of three."""
    shutil.copytree(finished, out)
    shutil.rmtree(out / "checkpoint-3")
    for name in (REPORT_FILE, "model.safetensors", "config.json"):
        (out / name).unlink()
    return out


@pytest.mark.parametrize("fields", [{}, {"train_data": "texts.jsonl", "packing": False}, {"max_steps": 5}])
def test_a_finished_run_is_not_replaced_unasked(place, three_steps, fields):
    before = contents(three_steps)
    fields = {"max_steps": 3, **fields}
    if "train_data" in fields:
        fields["train_data"] = place / fields["train_data"]
    with pytest.raises(
        TrainingError,
        match=r"output_dir=.*out holds a finished run; pass --resume_from_checkpoint true to go on from its last "
        r"checkpoint, pass --overwrite to replace it, or choose another folder\.$",
    ):
        run(place, three_steps, **fields)
    assert contents(three_steps) == before


def test_a_checkpoint_of_another_origin_is_not_replaced_unasked(place, tmp_path):
    shutil.copytree(place / "model", tmp_path / "model")
    before = contents(tmp_path)
    with pytest.raises(TrainingError, match="model holds a checkpoint; pass --overwrite to replace it, or choose"):
        run(place, tmp_path / "model")
    with pytest.raises(TrainingError, match="^overwrite=True would remove model=.*, which lies in output_dir="):
        run(place, tmp_path / "model", model=tmp_path / "model", overwrite=True)
    assert contents(tmp_path) == before


def test_overwrite_keeps_a_model_in_a_folder_of_output_dir(place, three_steps, tmp_path):
    shutil.copytree(three_steps, tmp_path / "out")
    shutil.copytree(place / "model", tmp_path / "out" / "base")
    before = contents(tmp_path / "out" / "base")
    run(place, tmp_path / "out", model=tmp_path / "out" / "base", max_steps=1, overwrite=True)
    assert contents(tmp_path / "out" / "base") == before
    with pytest.raises(TrainingError, match="^overwrite=True would remove model=.*checkpoint-1, which lies in"):
        run(place, tmp_path / "out", model=tmp_path / "out" / "checkpoint-1", overwrite=True)


def test_overwrite_replaces_the_whole_run_and_nothing_else(place, three_steps, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(three_steps, out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(TrainingError, match="^overwrite=True would remove resume_from_checkpoint=.*checkpoint-3, "):
        run(place, out, overwrite=True, resume_from_checkpoint=True)
    run(place, out, "lora", lora_r=4, max_steps=1, overwrite=True)
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-1"]
    assert {path.name for path in out.glob("*.safetensors")} == {"adapter_model.safetensors"}
    assert not (out / "config.json").exists() and (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_stopped_run_goes_on_with_the_same_command(place, three_steps, tmp_path, capsys, overwrite):
    out = stopped(three_steps, tmp_path / "out")
    run(place, out, max_steps=3, overwrite=overwrite)
    assert f"The run was stopped, and goes on from {out}/checkpoint-2.\n" in capsys.readouterr().out
    for name in ("model.safetensors", "checkpoint-3/optimizer.pt"):
        assert (out / name).read_bytes() == (three_steps / name).read_bytes()
    assert (out / REPORT_FILE).exists()


def test_ctrl_c_says_from_where_the_same_command_goes_on(place, three_steps, tmp_path, monkeypatch, capsys):
    def interrupt(self, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(WeDLMTrainer, "train", interrupt)
    for out, where in (
        (stopped(three_steps, tmp_path / "out"), f"{tmp_path / 'out'}/checkpoint-2"),
        (tmp_path / "new", "the first step, because no checkpoint was saved (save_steps)"),
    ):
        with pytest.raises(KeyboardInterrupt):
            run(place, out, max_steps=3)
        assert capsys.readouterr().err.endswith(f"\nStopped; the same command goes on from {where}.\n")


def test_another_command_does_not_go_on_with_a_stopped_run(place, three_steps, tmp_path):
    out, data = stopped(three_steps, tmp_path / "out"), tmp_path / "chats.jsonl"
    before = contents(out)
    shutil.copy(place / "chats.jsonl", data)
    for fields, name in [({"learning_rate": 0.5}, "learning_rate"), ({"train_data": data}, "train_data")]:
        with pytest.raises(TrainingError, match=f"out holds a run with another {name}; pass --resume_from_checkpoint"):
            run(place, out, max_steps=3, **fields)
    record = json.loads((out / RUN_FILE).read_text())
    record["content of the data"] = {name: [1, 1] for name in record["content of the data"]}
    (out / RUN_FILE).write_text(json.dumps(record))
    with pytest.raises(TrainingError, match="out holds a run with another content of the data; pass"):
        run(place, out, max_steps=3)
    (out / RUN_FILE).unlink()  # as in a run of an earlier version
    with pytest.raises(TrainingError, match="out holds a checkpoint; pass --resume_from_checkpoint true to go on"):
        run(place, out, max_steps=3)
    assert contents(out) == {path: content for path, content in before.items() if path.name != RUN_FILE}
