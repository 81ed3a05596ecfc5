"""The recipe trains from nothing, goes on where it was stopped, and never sees a held-out question."""

import copy
import json
import shutil
import sys

import pytest
import torch
from helpers import load
from safetensors import safe_open

from wedlm.demo import recipe
from wedlm.demo.recipe import MAX_STEPS, SEED, MuonAndAdamW, num_conversations, random_model
from wedlm.demo.tasks import KINDS, conversation, held_out_examples
from wedlm.demo.tokenizer import demo_tokenizer


@pytest.fixture
def run(monkeypatch):
    def run(folder, *arguments, steps):
        words = [folder, "--max_steps", steps, "--logging_steps", 1, *arguments]
        monkeypatch.setattr(sys, "argv", ["recipe", *map(str, words)])
        recipe.main()
        return json.loads((folder / "checkpoint" / "training.json").read_text())

    return run


def losses(report):
    return [(entry["mlm_loss"], entry["ar_loss"]) for entry in report["results"]]


@pytest.mark.full
def test_an_interrupted_run_goes_on_to_the_same_losses(run, tmp_path):
    small = ("--save_steps", 1, "--hidden_size", 128, "--num_layers", 1)
    whole = run(tmp_path, *small, steps=3)
    assert whole["first_step"] == 0 and len(losses(whole)) == 3
    shutil.rmtree(tmp_path / "run" / "checkpoint-3")
    shutil.rmtree(tmp_path / "checkpoint")
    resumed = run(tmp_path, *small, steps=3)
    assert resumed["first_step"] == 2 and losses(resumed) == losses(whole)

    folder = tmp_path / "checkpoint"
    assert {"config.json", "tokenizer.json", "modeling_wedlm.py", "loss.png"} <= {
        path.name for path in folder.iterdir()
    }
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.bfloat16}
    model = load(folder)
    assert model.dtype == torch.float32 and model.num_parameters() == resumed["parameters"]
    settings = model.generation_config
    assert (settings.decoding, settings.window_size) == ("verified", 16)
    assert resumed["seconds"] > 0 and "--num_layers 1" in resumed["command"]


@pytest.mark.full
def test_the_optimizer_goes_on_where_it_stopped():
    """With the schedule, and for every weight."""

    def made():
        model = random_model(demo_tokenizer(), 128, 1)
        optimizer = MuonAndAdamW(model, 1e-2)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))

    def step(model, optimizer, schedule, ids):
        model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    first, second = [5, 6, 7], [8, 7, 6]
    model, *rest = made()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    step(model, *rest, first)
    states = copy.deepcopy([part.state_dict() for part in (model, *rest)])
    step(model, *rest, second)
    after = dict(model.named_parameters())
    # (Of one layer and a text of three tokens every weight has a gradient but the vectors of other words.)
    assert [name for name in after if torch.equal(after[name], before[name])] == []

    resumed, *rest = made()
    for part, state in zip((resumed, *rest), states, strict=True):
        part.load_state_dict(state)
    step(resumed, *rest, second)
    for name, weight in resumed.named_parameters():
        assert torch.equal(weight, after[name]), name
    assert [group["lr"] for group in rest[0].param_groups] == pytest.approx([1e-2 / 3] * 2)


@pytest.mark.slow
def test_two_hundred_steps_have_the_same_losses_again(run, tmp_path):
    first, second = (run(tmp_path / name, steps=200) for name in ("first", "second"))
    assert len(losses(first)) == 200 and losses(first) == losses(second)


@pytest.mark.slow
def test_no_held_out_question_is_in_the_training_stream():
    """All of it, and by the words of the question: the key alone is what the generators keep apart by."""
    held_out = {hash(example.prompt) for kind in KINDS for example in held_out_examples(kind, 1000)}
    assert len(held_out) > 5900
    asked = set()
    for number in range(num_conversations(MAX_STEPS)):
        asked.update(hash(message["content"]) for message in conversation(SEED, number) if message["role"] == "user")
    assert len(asked) > 100_000 and not asked & held_out
