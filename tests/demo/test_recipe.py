"""The recipe trains from nothing, goes on where it was stopped, and never sees a held-out question."""

import json
import shutil
import sys
from argparse import Namespace
from itertools import combinations

import pytest
import torch
from helpers import REPOSITORY, load
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

    for name in ("text/model", "text/checkpoint-2", "drafts", "end"):  # stopped in the first stage
        shutil.rmtree(tmp_path / name)
    assert losses(run(tmp_path, *SMALL, steps=(2, 3, 4))) == losses(whole)

    assert {"config.json", "tokenizer.json", "modeling_wedlm.py", "loss.png"} <= {
        path.name for path in folder.iterdir()
    }
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}
    model = load(folder)
    assert model.dtype == torch.float32 and model.num_parameters() == resumed["parameters"]
    assert DECODING["decoding"] == "verified" and DECODING.items() <= model.generation_config.to_dict().items()
    assert "--num_layers 1" in resumed["command"]
    assert [each["stage"] for each in resumed["stages"]] == ["text", "drafts", "end"]
    assert resumed["seconds"] == sum(each["seconds"] for each in resumed["stages"])
    assert all(
        each["device"] and each["threads"] and each["commit"] == resumed["commit"] for each in resumed["stages"]
    )


@pytest.mark.full
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
    demo = model, tokenizer = load_checkpoint(DEMO_FOLDER)
    tokenizer.padding_side = "left"
    examples = [example(kind, "train", index) for index in range(3) for kind in ("counting", "stories")]
    monkeypatch.setattr(recipe, "BATCH_SIZE", 2)
    answers = recipe.own_answers(*demo, examples, tmp_path, "weights")
    stories = [each for each in examples if each.kind == "stories"]
    assert answers and answers.keys() <= {story.prompt for story in stories}
    assert all(check("stories", prompt, text) for prompt, text in answers.items())
    for story in stories:
        inputs = tokenizer.apply_chat_template(
            story.messages[:1], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        ids = model.generate(**inputs, max_new_tokens=160, decoding="autoregressive")
        text = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert answers.get(story.prompt, text) == text

    monkeypatch.setattr(recipe, "texts_of", None)  # nothing is asked again
    assert recipe.own_answers(*demo, examples, tmp_path, "weights") == answers
    asked = []
    monkeypatch.setattr(
        recipe, "texts_of", lambda model, tokenizer, batch: asked.extend(batch) or ["No."] * len(batch)
    )
    more = [*examples, example("stories", "train", 3)]
    kept = recipe.own_answers(*demo, more, tmp_path, "weights")
    assert asked == more[-2:], "kept answers are found by their batch of questions"
    assert kept == {story.prompt: answers[story.prompt] for story in stories[:2] if story.prompt in answers}
    monkeypatch.setattr(recipe, "texts_of", lambda model, tokenizer, examples: ["No."] * len(examples))
    assert recipe.own_answers(*demo, examples, tmp_path / "wrong", "weights") == {}


@pytest.mark.full
def test_bfloat16_trains_weights_of_float32(run, tmp_path):
    exact, rounded = (
        losses(run(tmp_path / name, *SMALL, *bf16, steps=(2, 1, 1)))
        for name, bf16 in (("exact", []), ("rounded", ["--bf16"]))
    )
    assert rounded != exact
    assert [loss for entry in rounded for loss in entry] == pytest.approx(
        [loss for entry in exact for loss in entry], rel=1e-3
    )
    with safe_open(tmp_path / "rounded" / "text" / "checkpoint-2" / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.timeout(3600)  # 40 of its 400 steps take two minutes on two cores
def test_two_hundred_steps_have_the_same_losses_again(run, tmp_path):
    first, second = (run(tmp_path / name, steps=(80, 60, 60)) for name in ("first", "second"))
    assert len(losses(first)) == 200 and losses(first) == losses(second)


def test_bfloat16_is_the_default_where_the_processor_has_it(tmp_path):
    (tmp_path / "with").write_text("model name : A\nflags\t: fpu avx512_bf16 vme\n")
    (tmp_path / "without").write_text("model name : avx512_bf16_not\nflags\t: fpu vme\n")
    found = [recipe.has_bfloat16(tmp_path / name) for name in ("with", "without", "missing")]
    assert found == [True, torch.cuda.is_available(), torch.cuda.is_available()]


def test_the_checkpoint_of_the_last_stage_becomes_the_demo():
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert f"cp build/demo-model/{stages_of(STEPS)[-1].name}/model/* $(DEMO)" in makefile


def test_each_stage_sees_another_part_of_the_stream():
    seen = [prompts_of(stage) for stage in stages_of((2, 3, 4))]
    assert [len(prompts) > least for prompts, least in zip(seen, (50, 80, 110), strict=True)] == [True] * 3
    for first, second in combinations(seen, 2):
        assert len(first & second) < 5, "the same question may be drawn twice"


@pytest.mark.slow
def test_no_held_out_question_is_in_the_training_stream():
    """All of it, and by the words of the question: the key alone is what the generators keep apart by."""
    held_out = {hash(example.prompt) for kind in KINDS for example in held_out_examples(kind, 1000)}
    assert len(held_out) > 5900
    asked = {hash(prompt) for stage in stages_of(STEPS) for prompt in prompts_of(stage)}
    assert len(asked) > 100_000 and not asked & held_out
