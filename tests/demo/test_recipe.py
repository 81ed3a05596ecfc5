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
from examples.demo.recipe import DECODING, STEPS, conversations_of, stages_of
from examples.demo.tasks import KINDS, check, conversation, example, held_out_examples
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


def prompts_of(stage):
    return {example.prompt for examples in conversations_of(stage) for example in examples}


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


@pytest.mark.slow
def test_a_run_that_was_stopped_behind_its_last_step_takes_no_further_one(run, tmp_path):
    whole = run(tmp_path, *SMALL, steps=(1, 1, 3))
    weights = (tmp_path / "end" / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "end" / "model")
    (tmp_path / "end" / "checkpoint-3" / "optimizer.pt").unlink()  # cut short by a kill
    (tmp_path / "end" / "checkpoint-3").rename(tmp_path / "end" / "checkpoint-4")
    again = run(tmp_path, *SMALL, steps=(1, 1, 3))
    assert losses(again) == losses(whole)
    assert (tmp_path / "end" / "model" / "model.safetensors").read_bytes() == weights
    for name in ("text", "drafts/checkpoint-1", "end"):  # the last finished stage is enough
        shutil.rmtree(tmp_path / name)
    run(tmp_path, *SMALL, steps=(1, 1, 3))
    assert (tmp_path / "end" / "model" / "model.safetensors").read_bytes() == weights


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
    assert all(check("stories", prompt, text) for prompt, text in answers.items())
    monkeypatch.setattr(recipe, "texts_of", None)  # nothing is generated again
    assert recipe.own_answers(*demo, examples, tmp_path, "weights") == answers
    monkeypatch.setattr(recipe, "texts_of", lambda model, tokenizer, examples: ["No."] * len(examples))
    assert recipe.own_answers(*demo, examples, tmp_path / "wrong", "weights") == {}


@pytest.mark.slow
def test_no_held_out_question_is_in_the_training_stream():
    """All of it, and by the words of the question: the key alone is what the generators keep apart by."""
    held_out = {hash(example.prompt) for kind in KINDS for example in held_out_examples(kind, 1000)}
    assert len(held_out) > 5900
    prompts = {hash(prompt) for stage in stages_of(STEPS) for prompt in prompts_of(stage)}
    assert len(prompts) > 100_000 and not prompts & held_out
