"""The recipe trains from nothing, goes on where it was stopped, and never sees a held-out question."""

import json
import shutil
import sys
from argparse import Namespace

import pytest
import torch
from helpers import load
from safetensors import safe_open

from examples.demo import recipe
from examples.demo.recipe import DECODING
from examples.demo.tasks import check, conversation, example
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint

SMALL = ("--hidden_size", 128, "--num_layers", 1)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(recipe, "LOGGING_STEPS", 1)
    monkeypatch.setattr(recipe, "SAVE_STEPS", 1)

    def run(folder, *arguments, steps):
        words = [folder, "--steps", *steps, "--no-bf16", *arguments]
        monkeypatch.setattr(sys, "argv", ["recipe", *map(str, words)])
        recipe.main()
        return json.loads((folder / "end" / "model" / "training.json").read_text())

    return run


def losses(report):
    return [(entry["step"], entry["mlm_loss"], entry["ar_loss"]) for entry in report["results"]]


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_losses(run, monkeypatch, tmp_path):
    begin = recipe.Clock.on_step_begin
    whole = run(tmp_path, *SMALL, steps=(2, 3, 4))
    assert [step for step, *_ in losses(whole)] == [*range(1, 10)]
    folder = tmp_path / "end" / "model"
    weights = (folder / "model.safetensors").read_bytes()

    def stopped(clock, args, state, control, **given):
        if (state.max_steps, state.global_step) == (4, 1):
            raise KeyboardInterrupt
        begin(clock, args, state, control, **given)

    shutil.rmtree(tmp_path / "end")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(recipe.Clock, "on_step_begin", stopped)
        run(tmp_path, *SMALL, steps=(2, 3, 4))
    resumed = run(tmp_path, *SMALL, steps=(2, 3, 4))
    assert losses(resumed) == losses(whole)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert resumed["seconds"] > whole["seconds"] / 2, "those before the stop too"

    assert {"config.json", "tokenizer.json", "modeling_wedlm.py", "loss.png"} <= {
        path.name for path in folder.iterdir()
    }
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}
    model = load(folder)
    assert model.dtype == torch.float32 and model.num_parameters() == resumed["parameters"]
    assert DECODING["decoding"] == "verified" and DECODING.items() <= model.generation_config.to_dict().items()
    assert [each["stage"] for each in resumed["stages"]] == ["text", "drafts", "end"]
    shutil.rmtree(tmp_path / "drafts")
    run(tmp_path, *SMALL, steps=(2, 3, 4))
    assert not (tmp_path / "drafts").exists(), "the last finished stage is enough"


def test_a_run_of_other_settings_or_conversations_is_refused(monkeypatch, tmp_path):
    """Trainer would skip as many batches as the run has seen, and these would be others."""
    given = {"out": tmp_path, "steps": [1, 1, 1], "hidden_size": 128, "num_layers": 1, "bf16": False}
    recipe.check_settings(Namespace(**given))
    recipe.check_settings(Namespace(**given))
    with pytest.raises(SystemExit, match=r"was begun with steps=\[1, 1, 1\] and not with \[1, 1, 2\]; pass the same"):
        recipe.check_settings(Namespace(**given | {"steps": [1, 1, 2]}))
    monkeypatch.setattr(recipe, "conversation", lambda seed, number: conversation(seed, number + 1))
    with pytest.raises(SystemExit, match=r"was begun with conversations=\w+ and not with \w+; pass the same"):
        recipe.check_settings(Namespace(**given))


def test_right_answers_to_stories_are_kept(tmp_path, monkeypatch):
    demo = _, tokenizer = load_checkpoint(DEMO_FOLDER)
    tokenizer.padding_side = "left"
    examples = [example(kind, "train", index) for index in range(3) for kind in ("counting", "stories")]
    monkeypatch.setattr(recipe, "BATCH_SIZE", 2)
    answers = recipe.own_answers(*demo, examples, tmp_path, "weights")
    stories = [each for each in examples if each.kind == "stories"]
    assert answers and answers.keys() <= {story.prompt for story in stories}
    assert all(check(story, answers[story.prompt]) for story in stories if story.prompt in answers)
    monkeypatch.setattr(recipe, "texts_of", None)  # nothing is generated again
    assert recipe.own_answers(*demo, examples, tmp_path, "weights") == answers
    monkeypatch.setattr(recipe, "texts_of", lambda model, tokenizer, examples: ["No."] * len(examples))
    assert recipe.own_answers(*demo, examples, tmp_path / "wrong", "weights") == {}
