"""WeDLMTrainer: one step however it is cut, evaluation, resuming and saving."""

import os
import platform
import re
import resource
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from draft_models import save_adapter
from helpers import CHECKPOINTS, MASK, load, run_python
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from trainer_runs import LENGTHS, arguments, assert_same, samples, trained
from training_runs import run
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

from wedlm import DualStreamCollator, WeDLMTrainer
from wedlm.modeling_wedlm.hub_code import flat_files
from wedlm.training.packing import pack
from wedlm.training.run_errors import TrainingError
from wedlm.training.target_loss import scale_weights, weight_sums
from wedlm.training.trainer import is_finite


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """Two epochs of one step each, a batch of all samples."""
    return trained(tmp_path_factory.mktemp("two"))


def assert_equal(weights, expected):
    for name, weight in weights.items():
        assert torch.equal(weight, expected[name]), name


@pytest.fixture
def evaluator(two_steps, tmp_path):
    """A trainer around the trained model, new for each test.

    Making TrainingArguments empties the state that all of accelerate's objects share, and only making a Trainer fills
    it again. A trainer that outlives a test therefore works or fails by which test ran in between.
    """
    _, _, trainer = two_steps
    return WeDLMTrainer(trainer.model, arguments(tmp_path))


# --- One step, however it is cut ---


def test_steps_are_gradient_descent_on_the_objective(two_steps):
    """Against the formula, with the draws of the epoch; the order of the samples plays no part."""
    weights, log, _ = two_steps
    model = load(CHECKPOINTS / "q3")
    collator = DualStreamCollator(mask_token_id=MASK, block_size=8, seed=42)
    for epoch in (0, 1):
        collator.set_epoch(epoch)
        batch = collator(list(samples()))
        gammas, query_weights = batch["gammas"], batch["target_weights"]
        outputs = model(**batch)
        logits = model(**{name: batch[name] for name in batch if "target" not in name and name != "gammas"}).logits
        losses = torch.nn.functional.cross_entropy(logits.mT, batch["targets"], reduction="none")
        mlm = (query_weights * losses)[gammas > 0].sum() / query_weights[gammas > 0].sum()
        ar = losses[(gammas == 0) & (query_weights > 0)].mean()
        assert log[epoch]["mlm_loss"] == pytest.approx(mlm.item(), rel=1e-4)
        assert log[epoch]["ar_loss"] == pytest.approx(ar.item(), rel=1e-4)
        assert log[epoch]["loss"] == pytest.approx((mlm + ar).item() / 2, rel=1e-4)
        for low, high in pairwise((0, 0.25, 0.5, 0.75, 1)):
            hits = outputs.target_hits[(gammas > low) & (gammas <= high)].float()
            assert log[epoch][f"masked_accuracy_to_{high if high < 1 else 1.0}"] == pytest.approx(hits.mean().item())
        ((mlm + ar) / 2).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.02 * weight.grad
                weight.grad = None
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weights[name], weight.detach(), rtol=1e-3, atol=3e-6)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "fields",
    [
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
        {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3},  # batches of 3, 3 and 2
        {"gradient_checkpointing": True},
        {"average_tokens_across_devices": False, "attn_implementation": "eager"},
        {"room": 64},
    ],
    ids=lambda fields: " ".join(f"{name}={value}" for name, value in fields.items()),
)
def test_the_same_step_in_other_ways(two_steps, tmp_path, fields):
    run = trained(tmp_path, **fields)
    assert_same(two_steps, run)
    assert run[2].model.config.mask_trained


def test_other_weights(tmp_path):
    _, (entry, _), trainer = trained(tmp_path, loss_weighting="uniform", ar_loss_weight=0.5)
    assert entry["loss"] == pytest.approx((entry["mlm_loss"] + 0.5 * entry["ar_loss"]) / 1.5, rel=1e-4)
    evaluated = trainer.evaluate(samples())
    expected = (evaluated["eval_mlm_loss"] + 0.5 * evaluated["eval_ar_loss"]) / 1.5
    assert evaluated["eval_loss"] == pytest.approx(expected, rel=1e-6)


# --- Streamed datasets ---


@pytest.mark.full
def test_a_streamed_dataset_takes_whole_steps_only(tmp_path):
    """Batches left over at the end of a pass would be added to the next step. Masks are drawn anew for each pass."""
    streamed = samples((*LENGTHS, 14, 25)).to_iterable_dataset()
    fields = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "learning_rate": 0.0}
    _, log, _ = trained(tmp_path, dataset=streamed, max_steps=6, **fields)
    assert len(log) == 6 and max(entry["loss"] for entry in log) < 1.5 * min(entry["loss"] for entry in log)
    for entry in log:
        assert entry["loss"] == pytest.approx((entry["mlm_loss"] + entry["ar_loss"]) / 2, rel=1e-4)
    assert len({entry["mlm_loss"] for entry in log}) == 6  # three passes over the same two batches, other masks
    assert log[0]["ar_loss"] == pytest.approx(log[2]["ar_loss"], rel=1e-5)


@pytest.mark.full
def test_a_streamed_dataset_resumes_in_its_first_pass_only(tmp_path):
    fields = {"max_steps": 5, "per_device_train_batch_size": 2, "save_strategy": "steps", "save_steps": 2}
    fields["dataset"] = samples().to_iterable_dataset()
    weights, _, _ = trained(tmp_path / "whole", **fields)
    resumed, _, _ = trained(tmp_path / "again", resume=str(tmp_path / "whole" / "checkpoint-2"), **fields)
    assert_equal(resumed, weights)
    with pytest.raises(ValueError, match="was in pass 2 over its streamed dataset, .*start a new run"):
        trained(tmp_path / "again", resume=str(tmp_path / "whole" / "checkpoint-5"), **fields | {"max_steps": 7})


# --- Evaluation ---


def test_evaluation_does_not_depend_on_batches_or_epoch(evaluator):
    evaluated = []
    for batch_size, dataset in ((1, samples()), (3, samples()), (8, samples()), (2, pack(samples(), 64))):
        evaluator.args.per_device_eval_batch_size = batch_size
        evaluated.append(evaluator.evaluate(dataset))
        evaluator.data_collator.set_epoch(batch_size)
    names = {name for name in evaluated[0] if "loss" in name or "accuracy" in name}
    assert {"eval_loss", "eval_mlm_loss", "eval_ar_loss", "eval_masked_accuracy_to_1.0"} <= names
    for name in names:
        assert [other[name] for other in evaluated] == pytest.approx([evaluated[0][name]] * 4, rel=1e-5), name
    assert evaluated[0]["eval_loss"] == pytest.approx(
        (evaluated[0]["eval_mlm_loss"] + evaluated[0]["eval_ar_loss"]) / 2
    )


def test_evaluation_is_the_formula(evaluator):
    model = evaluator.model.eval()
    batch = DualStreamCollator(mask_token_id=MASK, block_size=8, seed=42).for_evaluation()(list(samples()))
    with torch.no_grad():
        total = model(**scale_weights(batch, weight_sums(batch))).loss.item()
    assert evaluator.evaluate(samples())["eval_loss"] == pytest.approx(total, rel=1e-5)


# --- Resuming and saving ---


def test_a_resumed_run_goes_on_exactly(tmp_path):
    """Weights, optimizer, order and draws, from the middle of an epoch."""
    fields = {
        "max_steps": 5,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "optim": "adamw_torch",
        "learning_rate": 1e-3,
        "lr_scheduler_type": "linear",
        "save_strategy": "steps",
        "save_steps": 3,
    }
    weights, log, _ = trained(tmp_path / "whole", **fields)
    resumed, again, _ = trained(tmp_path / "again", resume=str(tmp_path / "whole" / "checkpoint-3"), **fields)
    for entry, other in zip(log, again, strict=True):
        assert {**entry, "epoch": 0} == {**other, "epoch": 0}
    assert_equal(resumed, weights)


def test_a_run_that_resumes_at_its_end_takes_no_further_step(tmp_path):
    """transformers looks at max_steps behind a step only."""
    fields = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    weights, _, _ = trained(tmp_path, **fields)
    resumed, _, trainer = trained(tmp_path, resume=str(tmp_path / "checkpoint-2"), **fields)
    assert trainer.state.global_step == 2
    assert_equal(resumed, weights)


@pytest.mark.full
def test_uploads_of_checkpoints_carry_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "_push_from_checkpoint", lambda *_: None)
    _, _, trainer = trained(tmp_path)
    trainer._push_from_checkpoint(str(tmp_path / "checkpoint-1"))
    assert flat_files().keys() <= {path.name for path in tmp_path.iterdir()}


# --- Losses and weights that are not finite ---


def test_a_run_stops_at_its_first_step(place, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(place / "model")
    model.lm_head.weight.data[5, 0] = torch.nan
    model.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(place / "model").save_pretrained(tmp_path / "broken")
    with pytest.raises(TrainingError, match=r"of step 1 is nan, from 1 of 1 rows, .*'<\|im_start\|>"):
        run(place, tmp_path / "out", model=tmp_path / "broken")
    assert not list((tmp_path / "out").glob("**/*.safetensors"))


class BreakWeights(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step + 1 == self.step:
            model.lm_head.weight.data[0, 0] = torch.inf


@pytest.mark.parametrize("step", [2, 3])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, step):
    """Neither in a checkpoint, nor after the last step."""
    args = arguments(tmp_path, max_steps=3, save_strategy="steps", save_steps=1 if step == 2 else 2)
    trainer = WeDLMTrainer(load(CHECKPOINTS / "q3"), args, train_dataset=samples(), callbacks=[BreakWeights(step)])
    with pytest.raises(
        TrainingError, match=rf"not finite after step {step}; .* resume from .*checkpoint-{step - 1}, "
    ):
        trainer.train()
    (saved,) = tmp_path.glob("checkpoint-*")
    assert all(weight.isfinite().all() for weight in load_file(saved / "model.safetensors").values())


@pytest.mark.parametrize("value", [1.0, torch.nan])
def test_a_part_of_a_weight_under_zero3(value):
    """DeepSpeed leaves the weight empty, and keeps the part of the rank beside it."""
    weight = torch.nn.Parameter(torch.empty(0))
    weight.ds_tensor = torch.tensor([0.0, value])
    assert is_finite(weight) == (value == 1.0)


# --- Datasets and refusals ---


def test_a_name_is_loaded_with_its_tokenizer(place, tmp_path):
    records = Dataset.from_list([{"text": "a b c"}])
    trainer = WeDLMTrainer(str(place / "model"), arguments(tmp_path), train_dataset=records)
    assert type(trainer.model).__name__ == "WeDLMForCausalLM" and trainer.model.dtype == torch.float32
    assert trainer.processing_class.mask_token_id == trainer.model.config.mask_token_id
    assert len(trainer.train_dataset) == 1
    given = AutoTokenizer.from_pretrained(place / "model")
    assert WeDLMTrainer(place / "model", arguments(tmp_path), processing_class=given).processing_class is given


def test_a_stock_model_is_refused_with_the_line_that_converts_it(place, lora_run, tmp_path):
    line = f"`wedlm convert {place / 'qwen'} OUT` makes a WeDLM checkpoint of it"
    model = AutoModelForCausalLM.from_pretrained(place / "qwen")
    for given in (model, get_peft_model(model, LoraConfig())):
        with pytest.raises(
            ValueError, match=f"^model is a .*, and WeDLMTrainer trains a WeDLM; {line}, and W.* as model"
        ):
            WeDLMTrainer(given, arguments(tmp_path))
    with pytest.raises(ValueError, match=f"^{place / 'qwen'} is of model_type 'qwen3', .*; {line}.$"):
        WeDLMTrainer(place / "qwen", arguments(tmp_path))
    with pytest.raises(ValueError, match=f"^{lora_run} is an adapter; `wedlm merge {lora_run} OUT` makes a whole"):
        WeDLMTrainer(lora_run, arguments(tmp_path))
    with pytest.raises(ValueError, match="^nowhere is not a folder here and was not downloaded before"):
        WeDLMTrainer("nowhere", arguments(tmp_path))
    drafts = save_adapter(tmp_path / "drafts", base=place / "model")
    with pytest.raises(ValueError, match=f"^{drafts} is a draft adapter; pass PeftModel.from_pretrained.* its base"):
        WeDLMTrainer(drafts, arguments(tmp_path))


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="model is a NoneType, and WeDLMTrainer trains a WeDLM"):
        WeDLMTrainer(None, arguments(tmp_path))
    with pytest.raises(ValueError, match="args is TrainingArguments; pass .*WeDLMTrainingArguments"):
        WeDLMTrainer(load(CHECKPOINTS / "q3"), TrainingArguments(str(tmp_path)))
    with pytest.raises(ValueError, match="compute_metrics and compute_loss_func are not supported, .*generate"):
        WeDLMTrainer(load(CHECKPOINTS / "q3"), arguments(tmp_path), compute_metrics=len)
    with pytest.raises(ValueError, match="processing_class .*tokenizer"):
        WeDLMTrainer(load(CHECKPOINTS / "q3"), arguments(tmp_path), train_dataset=Dataset.from_list([{"text": "a"}]))


# --- Memory ---

FAULTS = """
import os, resource
import torch
from transformers import TrainerCallback
from helpers import CHECKPOINTS, load
from trainer_runs import arguments, samples
from wedlm import WeDLMTrainer

SIZE = 2**26  # bytes, more than any tensor of the tiny model


def faults_of_a_later_tensor():  # aligned memory does not always fit where as much of it was
    torch.ones(2 * SIZE, dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(SIZE, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


class Watch(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        print("step", name, faults_of_a_later_tensor())


for name in ("none", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"):
    os.environ.update({name: "0"} if name != "none" else {})
    WeDLMTrainer(load(CHECKPOINTS / "q3"), arguments("."), train_dataset=samples(), callbacks=[Watch()]).train()
    print("after", name, faults_of_a_later_tensor())
    os.environ.pop(name, None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep memory as they do")
def test_training_on_a_cpu_keeps_the_memory_of_tensors_and_gives_it_back(tmp_path, monkeypatch):
    """In a process of its own: a thread that once found no memory takes it from elsewhere, and keeps none."""
    for name in [name for name in os.environ if name == "GLIBC_TUNABLES" or name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    output = run_python(FAULTS, tmp_path, PYTHONPATH=str(Path(__file__).parents[1]))
    faults = {}
    for when, name, number in re.findall(r"^(step|after) (\w+) (\d+)$", output, re.MULTILINE):
        faults.setdefault((when, name), []).append(int(number))
    many = 2**26 // resource.getpagesize() // 512  # or huge pages
    assert max(faults.pop(("step", "none"))) < many
    assert len(faults) == 5 and min(min(each) for each in faults.values()) >= many
