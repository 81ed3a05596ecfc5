import json
import subprocess
import sys

from helpers import REPOSITORY


def losses(folder):
    command = [sys.executable, "-m", "wedlm.hub_card.demo.recipe", folder, "--max_steps", "2", "--logging_steps", "1"]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    state = json.loads((folder / "run" / "checkpoint-2" / "trainer_state.json").read_text())
    assert (folder / "checkpoint" / "modeling_wedlm.py").exists()
    return [entry["loss"] for entry in state["log_history"]]


def test_two_runs_of_the_recipe_have_the_same_losses(tmp_path):
    first = losses(tmp_path / "first")
    assert len(first) == 2 and first == losses(tmp_path / "second")
