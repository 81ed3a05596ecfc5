"""The folder of a run: it is checked, a finished run stays, and a stopped one goes on."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from training_runs import run

from wedlm import WeDLMTrainer, WeDLMTrainingArguments
from wedlm.checkpoints.errors import CheckpointError
from wedlm.training.output_dir import REPORT_FILE, RUN_FILE, checkpoint_size
from wedlm.training.run_arguments import RunArguments
from wedlm.training.run_errors import TrainingError


def test_a_folder_that_cannot_be_written_is_refused_before_the_data_are_read(place, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match=r"output_dir=.*file/out cannot be written \(Not a directory: .*; choose"):
        run(place, tmp_path / "file" / "out", train_data="nowhere.jsonl")
    with pytest.raises(TrainingError, match="There is no file nowhere.jsonl"):
        run(place, tmp_path / "new" / "out", train_data="nowhere.jsonl")
    assert not (tmp_path / "new").exists()


def test_room_for_a_checkpoint(place, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(CheckpointError, match="out/checkpoint needs 0.00 GB and its disk has 0.00 GB free; free"):
        run(place, tmp_path / "out", model=place / "qwen", train_data="nowhere.jsonl")
    assert not (tmp_path / "out").exists()


def test_the_size_is_that_of_a_checkpoint(place, full_run):
    config = json.loads((place / "model" / "config.json").read_text())
    checkpoint = full_run.folder / "checkpoint-2"
    weights = (checkpoint / "model.safetensors").stat().st_size
    optimizer = (checkpoint / "optimizer.pt").stat().st_size
    for save_only_model, rank, size in ((False, 0, weights + optimizer), (True, 0, weights), (False, 4, 0)):
        run_arguments = RunArguments(model=str(place / "model"), train_data=[], lora_r=rank)
        training = WeDLMTrainingArguments("out", use_cpu=True, save_only_model=save_only_model)
        assert 0.8 * size <= checkpoint_size(run_arguments, training, config) <= size


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


def test_a_finished_run_is_not_replaced_unasked(place, three_steps):
    before = contents(three_steps)
    remedies = "pass --resume_from_checkpoint true to go on from its last checkpoint, pass --overwrite to replace it"
    with pytest.raises(TrainingError, match=f"output_dir=.*out holds a finished run; {remedies}, or choose another"):
        run(place, three_steps, max_steps=3)
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
