"""The recipe trains from nothing, goes on where it was stopped, and never sees a held-out question."""

import json
import shutil
import sys
from itertools import combinations

import pytest
import torch
from helpers import REPOSITORY, load
from safetensors import safe_open

from wedlm.demo import recipe
from wedlm.demo.recipe import DECODING, STEPS, conversations_of, stages_of
from wedlm.demo.tasks import KINDS, held_out_examples


@pytest.fixture
def run(monkeypatch):
    def run(folder, *arguments, steps):
        words = [folder, "--steps", *steps, "--logging_steps", 1, "--no-bf16", *arguments]
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
    small, begin = ("--save_steps", 1, "--hidden_size", 128, "--num_layers", 1), recipe.Clock.on_step_begin
    whole = run(tmp_path, *small, steps=(2, 3, 4))
    assert whole["first_step"] == 5 and [step for step, *_ in losses(whole)] == [*range(1, 10)]
    folder = tmp_path / "end" / "model"
    weights = (folder / "model.safetensors").read_bytes()

    def stopped(clock, args, state, control, **given):
        if (state.max_steps, state.global_step) == (4, 1):
            raise KeyboardInterrupt
        begin(clock, args, state, control, **given)

    shutil.rmtree(tmp_path / "end")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(recipe.Clock, "on_step_begin", stopped)
        run(tmp_path, *small, steps=(2, 3, 4))
    resumed = run(tmp_path, *small, steps=(2, 3, 4))
    assert resumed["first_step"] == 6 and losses(resumed) == losses(whole)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert resumed["seconds"] > whole["seconds"] / 2, "those before the stop too"

    for name in ("text/model", "text/checkpoint-2", "drafts", "end"):  # stopped in the first stage
        shutil.rmtree(tmp_path / name)
    assert losses(run(tmp_path, *small, steps=(2, 3, 4))) == losses(whole)

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
    small = ("--save_steps", 1, "--hidden_size", 128, "--num_layers", 1)
    whole = run(tmp_path, *small, steps=(1, 1, 3))
    weights = (tmp_path / "end" / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "end" / "model")
    (tmp_path / "end" / "checkpoint-3" / "optimizer.pt").unlink()  # cut short by a kill
    (tmp_path / "end" / "checkpoint-3").rename(tmp_path / "end" / "checkpoint-4")
    again = run(tmp_path, *small, steps=(1, 1, 3))
    assert losses(again) == losses(whole)
    assert (tmp_path / "end" / "model" / "model.safetensors").read_bytes() == weights
    for name in ("text", "drafts/checkpoint-1", "end"):  # the last finished stage is enough
        shutil.rmtree(tmp_path / name)
    run(tmp_path, *small, steps=(1, 1, 3))
    assert (tmp_path / "end" / "model" / "model.safetensors").read_bytes() == weights


@pytest.mark.full
def test_a_stage_of_other_settings_is_refused(run, tmp_path):
    small = ("--hidden_size", 128, "--num_layers", 1)
    run(tmp_path, *small, steps=(1, 1, 1))
    with pytest.raises(SystemExit, match=r"text was begun with learning_rate=0.003 and not with 0.001; pass the same"):
        run(tmp_path, *small, "--learning_rate", 1e-3, steps=(1, 1, 1))
    with pytest.raises(SystemExit, match=r"end was begun with max_steps=1 and not with 2"):
        run(tmp_path, *small, steps=(1, 1, 2))
    shutil.rmtree(tmp_path / "text")
    with pytest.raises(SystemExit, match="drafts was begun with learning_rate=0.003 and not with 0.001; pass"):
        run(tmp_path, *small, "--learning_rate", 1e-3, steps=(1, 1, 1))
    assert not (tmp_path / "text").exists(), "a refused command begins nothing"


@pytest.mark.full
def test_a_stage_of_other_conversations_is_refused(run, monkeypatch, tmp_path):
    """Trainer would skip as many batches as the run has seen, and these would be others."""
    small = ("--hidden_size", 128, "--num_layers", 1)
    run(tmp_path, *small, steps=(1, 1, 1))
    shutil.rmtree(tmp_path / "end" / "model")
    monkeypatch.setattr(recipe, "conversations_of", lambda stage: conversations_of(stage)[1:])
    with pytest.raises(SystemExit, match=r"end was begun with conversations=\w+ and not with \w+; pass the same"):
        run(tmp_path, *small, steps=(1, 1, 1))


@pytest.mark.full
def test_bfloat16_trains_weights_of_float32(run, tmp_path):
    small = ("--hidden_size", 128, "--num_layers", 1)
    exact, rounded = (
        losses(run(tmp_path / name, *small, *bf16, steps=(2, 1, 1)))
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
