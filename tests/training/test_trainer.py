"""WeDLMTrainer: one step however it is cut, evaluation, resuming and saving."""

import json
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from datasets import Dataset
from draft_models import save_adapter
from fsdp_on_cpus import FSDP
from helpers import CHECKPOINTS, MASK, load, random_tokens
from peft import LoraConfig, get_peft_model
from processes import run_two_processes
from stock_checkpoints import save_stock, save_tokenizer
from training_runs import CONFIGS
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

from wedlm import DualStreamCollator, WeDLMTrainer, WeDLMTrainingArguments, convert_to_wedlm
from wedlm.modeling_wedlm.hub_code import flat_files
from wedlm.training.loss import scale_weights, weight_sums
from wedlm.training.packing import pack
from wedlm.training.trainer import prepared

LENGTHS = (40, 21, 9, 33, 12, 27, 18, 30)


def samples(lengths=LENGTHS):
    """Samples as `prepare_dataset` makes them, of random tokens; two of three begin with a prompt."""
    made = []
    for index, length in enumerate(lengths):
        text = random_tokens(1, length, seed=index)[0].tolist()
        prompt = 3 * (index % 3)
        labels = [-100] * prompt + text[prompt:]
        made.append({"input_ids": text, "labels": labels, "sample_lengths": [length], "sample_indices": [index]})
    return Dataset.from_list(made)


def arguments(folder, **fields):
    defaults = {
        "block_size": 8,
        "per_device_train_batch_size": 8,
        "max_steps": 1,
        "learning_rate": 0.02,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return WeDLMTrainingArguments(str(folder), **{**defaults, **fields})


def trained(folder, model=None, dataset=None, **fields):
    """The weights that training changes, the log, and the trainer."""
    model = load(CHECKPOINTS / "q3") if model is None else model
    trainer = WeDLMTrainer(model, arguments(folder, **fields), train_dataset=samples() if dataset is None else dataset)
    trainer.train()
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}
    return weights, [entry for entry in trainer.state.log_history if "loss" in entry], trainer


def assert_same(first, second, **tolerance):
    (weights, log, _), (other_weights, other_log, _) = first, second
    for name, weight in weights.items():
        torch.testing.assert_close(other_weights[name], weight, rtol=1e-3, atol=3e-6)
    for entry, other in zip(log, other_log, strict=True):
        for name in entry.keys() - {"epoch"}:
            assert other[name] == pytest.approx(entry[name], rel=2e-4), name


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """Two epochs of one step each, a batch of all samples."""
    return trained(tmp_path_factory.mktemp("two"), max_steps=2)


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


def test_no_query_is_made_for_a_block_without_a_masked_token(tmp_path):
    """The step above has the loss of all blocks."""
    (sample,) = samples([40])
    labels = [-100] * 33 + sample["labels"][33:]
    batch = arguments(tmp_path).collator(MASK)([{**sample, "labels": labels}])
    assert batch["block_ids"][batch["stream_ids"] == 1].tolist() == [4] * 8


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "fields",
    [
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
        {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3},  # batches of 3, 3 and 2
        {"gradient_checkpointing": True},
        {"attn_implementation": "sdpa"},
        {"attn_implementation": "eager"},
        {"dataloader_num_workers": 2, "dataloader_persistent_workers": True},
        {"average_tokens_across_devices": False},
    ],
    ids=lambda fields: " ".join(f"{name}={value}" for name, value in fields.items()),
)
def test_the_same_step_in_other_ways(two_steps, tmp_path, fields):
    run = trained(tmp_path, max_steps=2, **fields)
    assert_same(two_steps, run)
    # Workers that persist end at once while the loader is alive, and only after 10 seconds as part of cyclic garbage.
    run[2].callback_handler.train_dataloader = None
    run[2].accelerator.free_memory()


def test_packing_changes_nothing(two_steps, tmp_path):
    packed = pack(samples(), 64)
    assert len(packed) < len(LENGTHS)
    run = trained(tmp_path, dataset=packed, max_steps=2)
    assert_same(two_steps, run)
    assert run[2].model.config.mask_trained


@pytest.mark.full
def test_a_last_step_of_fewer_batches(tmp_path):
    dataset = samples((*LENGTHS, 14, 25))
    whole = trained(tmp_path / "a", dataset=dataset, max_steps=4)
    cut = trained(
        tmp_path / "b", dataset=dataset, max_steps=4, per_device_train_batch_size=1, gradient_accumulation_steps=8
    )
    assert_same(whole, cut)
    assert whole[2].state.epoch == cut[2].state.epoch == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("weighting, ar_loss_weight", [("uniform", 0.5), ("weighted", 0.0)])
def test_other_weights(tmp_path, weighting, ar_loss_weight):
    fields = {"loss_weighting": weighting, "ar_loss_weight": ar_loss_weight}
    whole = trained(tmp_path / "a", **fields)
    entry = whole[1][0]
    assert entry["loss"] == pytest.approx(
        (entry["mlm_loss"] + ar_loss_weight * entry.get("ar_loss", 0)) / (1 + ar_loss_weight), rel=1e-4
    )
    assert_same(whole, trained(tmp_path / "b", per_device_train_batch_size=2, gradient_accumulation_steps=4, **fields))


@pytest.mark.full
def test_lora_in_other_ways(tmp_path):
    def lora():
        torch.manual_seed(0)
        config = LoraConfig(
            task_type="CAUSAL_LM",
            target_modules="all-linear",
            init_lora_weights=False,
            trainable_token_indices={"embed_tokens": [MASK]},
        )
        return get_peft_model(load(CHECKPOINTS / "q25"), config)

    whole = trained(tmp_path / "a", lora(), max_steps=2)
    assert any("trainable_tokens" in name for name in whole[0])
    for fields in (
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
        {"gradient_checkpointing": True, "attn_implementation": "sdpa"},
    ):
        assert_same(whole, trained(tmp_path / "b", lora(), max_steps=2, **fields))


RANKS = """
import datetime, json, os, sys
os.environ["DS_ACCELERATOR"] = "cpu"  # for DeepSpeed
import torch
import torch.distributed as dist
from transformers import logging

folder, tests = sys.argv[1:]
sys.path[:0] = [tests, tests + '/training']
import fsdp_on_cpus, test_trainer
from wedlm.training import target_loss

logging.disable_progress_bar()
torch.set_num_threads(1)
ways = json.load(open(f"{folder}/ways.json"))
if any("fsdp" in fields for fields in ways.values()):
    fsdp_on_cpus.allow_fsdp()
    target_loss.QUERIES_PER_CHUNK = 10  # so that one rank calls the head more often than the other
else:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))  # a rank that waits longer fails
for name, fields in ways.items():
    dataset = test_trainer.packed_samples(fields.pop("lengths", test_trainer.LENGTHS), fields.pop("room", 0))
    model = test_trainer.load(test_trainer.CHECKPOINTS / fields.pop("checkpoint", "q3"))
    _, log, trainer = test_trainer.trained(f"{folder}/{name}", model, dataset, **fields)
    if "fsdp" in fields:
        fsdp_on_cpus.check_sharded(trainer)
    evaluated = trainer.evaluate(test_trainer.samples((15, 22, 31)))
    trainer.save_model()
    if dist.get_rank() == 0:
        torch.save((log, evaluated), f"{folder}/{name}.pt")
dist.destroy_process_group()
"""


def packed_samples(lengths, room):
    return pack(samples(lengths), room) if room else samples(lengths)


def in_two_processes(folder, ways):
    """Trains in several ways on two ranks; returns for each way its weights and log, and its evaluation."""
    (folder / "ways.json").write_text(json.dumps(ways))
    run_two_processes(RANKS, folder, folder, Path(__file__).parents[1])
    results = {}
    for name in ways:
        log, evaluated = torch.load(folder / f"{name}.pt")
        results[name] = (dict(load(folder / name).named_parameters()), log, None), evaluated
    return results


@pytest.mark.full
def test_two_processes_take_the_same_steps(two_steps, evaluator, tmp_path):
    ways = {
        "ddp": {"max_steps": 2, "per_device_train_batch_size": 4},
        "accumulated": {"max_steps": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
    }
    expected = evaluator.evaluate(samples((15, 22, 31)))
    for name, (run, evaluated) in in_two_processes(tmp_path, ways).items():
        assert_same(two_steps, run)
        assert evaluated["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-4), name


@pytest.mark.full
def test_data_that_do_not_divide_by_the_processes(tmp_path):
    """accelerate repeats samples, so that the last batches are full on both ranks; the repeated ones have no loss."""
    lengths = [*LENGTHS, 14, 25, 38]
    ways = {
        "short": {"lengths": lengths, "per_device_train_batch_size": 4, "max_steps": 4},
        "accumulated": {"lengths": lengths, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        "packed": {"lengths": lengths, "room": 64, "per_device_train_batch_size": 1},
        "few": {"lengths": lengths[:3], "per_device_train_batch_size": 4},
    }
    ways = {name: {"max_steps": 5, **fields} for name, fields in ways.items()}
    for name, (run, _) in in_two_processes(tmp_path, ways).items():
        fields = ways[name]
        dataset = packed_samples(fields.pop("lengths"), fields.pop("room", 0))
        fields["per_device_train_batch_size"] *= 2
        assert_same(trained(tmp_path / "alone" / name, dataset=dataset, **fields), run)


@pytest.mark.full
def test_fsdp_takes_the_same_steps(two_steps, evaluator, tmp_path):
    lengths = [*LENGTHS, 14, 25, 38]
    ways = {
        "one batch": {"per_device_train_batch_size": 4},
        "accumulated": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        "checkpointed": {"per_device_train_batch_size": 4, "gradient_checkpointing": True},
        "clipped": {"per_device_train_batch_size": 4, "max_grad_norm": 0.1},
        "uneven": {"per_device_train_batch_size": 4, "max_steps": 4, "lengths": lengths},
        "untied": {"per_device_train_batch_size": 4, "checkpoint": "q25"},
        "bf16": {"per_device_train_batch_size": 4, "bf16": True},
    }
    ways = {name: {"max_steps": 2, **FSDP, **fields} for name, fields in ways.items()}
    expected = {
        "clipped": trained(tmp_path / "alone", max_steps=2, max_grad_norm=0.1),
        "uneven": trained(tmp_path / "alone", dataset=samples(lengths), max_steps=4),
        "untied": trained(tmp_path / "alone", load(CHECKPOINTS / "q25"), max_steps=2),
    }
    results = in_two_processes(tmp_path, ways)
    (_, rounded, _), _ = results.pop("bf16")
    for name, (run, _) in results.items():
        assert_same(expected.get(name, two_steps), run)
    assert [entry["loss"] for entry in rounded] == pytest.approx([entry["loss"] for entry in two_steps[1]], rel=0.02)
    loss = evaluator.evaluate(samples((15, 22, 31)))["eval_loss"]
    assert results["one batch"][1]["eval_loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.ecosystem
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_takes_the_same_steps(two_steps, evaluator, tmp_path, stage):
    config = json.loads((CONFIGS / "zero3.json").read_text())
    config["zero_optimization"]["stage"] = stage
    ways = {
        "one batch": {"per_device_train_batch_size": 4},
        "accumulated": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        "uneven": {"lengths": [*LENGTHS, 14, 25, 38], "per_device_train_batch_size": 4},
    }
    ways = {name: {"max_steps": 2, "deepspeed": config, **fields} for name, fields in ways.items()}
    results = in_two_processes(tmp_path, ways)
    expected = evaluator.evaluate(samples((15, 22, 31)))
    uneven = trained(tmp_path / "alone", dataset=samples(ways["uneven"]["lengths"]), max_steps=2)
    for name, (run, evaluated) in results.items():
        if name == "uneven":
            assert_same(uneven, run)
        else:
            assert_same(two_steps, run)
            assert evaluated["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-4), name


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
def test_a_streamed_dataset_too_short_for_a_step_is_refused(tmp_path):
    with pytest.raises(ValueError, match="too few batches for a step of gradient_accumulation_steps=8; lower it"):
        trained(
            tmp_path,
            dataset=samples((9, 12, 15)).to_iterable_dataset(),
            per_device_train_batch_size=1,
            gradient_accumulation_steps=8,
        )


@pytest.mark.full
def test_a_streamed_dataset_resumes_in_its_first_pass_only(tmp_path):
    fields = {"max_steps": 5, "per_device_train_batch_size": 2, "save_strategy": "steps", "save_steps": 2}
    weights, _, _ = trained(tmp_path / "whole", dataset=samples().to_iterable_dataset(), **fields)

    def resumed(step):
        args = arguments(tmp_path / "again", **fields)
        trainer = WeDLMTrainer(load(CHECKPOINTS / "q3"), args, train_dataset=samples().to_iterable_dataset())
        trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        return dict(trainer.model.named_parameters())

    for name, weight in resumed(2).items():
        assert torch.equal(weight, weights[name]), name
    (tmp_path / "whole" / "checkpoint-5").rename(tmp_path / "whole" / "checkpoint-6")
    with pytest.raises(ValueError, match="was in pass 2 over its streamed dataset, .*start a new run"):
        resumed(6)


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


def test_evaluation_weighs_its_parts(tmp_path):
    trainer = WeDLMTrainer(load(CHECKPOINTS / "q3"), arguments(tmp_path, ar_loss_weight=0.25))
    evaluated = trainer.evaluate(samples())
    expected = (evaluated["eval_mlm_loss"] + 0.25 * evaluated["eval_ar_loss"]) / 1.25
    assert evaluated["eval_loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.full
def test_training_draws_after_an_evaluation(two_steps, tmp_path):
    model = load(CHECKPOINTS / "q3")
    trainer = WeDLMTrainer(model, arguments(tmp_path, max_steps=2), train_dataset=samples())
    trainer.evaluate(samples())
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert_same(two_steps, (dict(model.named_parameters()), log, trainer))


@pytest.mark.full
def test_the_model_attends_as_asked(tmp_path):
    seen = []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            seen.append(model.config._attn_implementation)

        def on_prediction_step(self, args, state, control, model=None, **kwargs):
            seen.append(model.config._attn_implementation)

    args = arguments(tmp_path, attn_implementation="eager")
    trainer = WeDLMTrainer(load(CHECKPOINTS / "q3"), args, train_dataset=samples(), callbacks=[Watch()])
    trainer.train()
    trainer.evaluate(samples())
    assert seen == ["eager", "eager"]


def test_prediction_is_evaluation(evaluator):
    evaluated = evaluator.evaluate(samples())
    evaluator.data_collator.set_epoch(7)
    assert evaluator.predict(samples()).metrics["test_loss"] == pytest.approx(evaluated["eval_loss"], rel=1e-6)


@pytest.mark.full
def test_the_model_attends_as_before_when_it_is_done(tmp_path):
    _, _, trainer = trained(tmp_path)
    assert trainer.model.config._attn_implementation == "sdpa"
    trainer.evaluate(samples())
    assert trainer.model.config._attn_implementation == "sdpa"


# --- Resuming and saving ---


def converted(tmp_path):
    """A tiny Qwen in tmp_path/"converted" after conversion; returns its tokenizer."""
    (tmp_path / "source").mkdir()
    save_stock(tmp_path / "source", rows=300)
    convert_to_wedlm(tmp_path / "source", tmp_path / "converted")
    return AutoTokenizer.from_pretrained(tmp_path / "converted")


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
    trainer = WeDLMTrainer(load(CHECKPOINTS / "q3"), arguments(tmp_path / "again", **fields), train_dataset=samples())
    trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    again = [entry for entry in trainer.state.log_history if "loss" in entry]
    for entry, other in zip(log, again, strict=True):
        assert {**entry, "epoch": 0} == {**other, "epoch": 0}
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(weight, weights[name]), name


def test_a_run_that_resumes_at_its_end_takes_no_further_step(tmp_path):
    """transformers looks at max_steps behind a step only."""
    fields = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    weights, _, _ = trained(tmp_path, **fields)
    trainer = WeDLMTrainer(load(CHECKPOINTS / "q3"), arguments(tmp_path, **fields), train_dataset=samples())
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert trainer.state.global_step == 2
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(weight, weights[name]), name


def test_true_resumes_from_the_last_complete_checkpoint(tmp_path):
    fields = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    weights, _, _ = trained(tmp_path, **fields)
    (tmp_path / "checkpoint-2" / "trainer_state.json").unlink()
    trainer = WeDLMTrainer(load(CHECKPOINTS / "q3"), arguments(tmp_path, **fields), train_dataset=samples())
    trainer.train(resume_from_checkpoint=True)
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(weight, weights[name]), name


@pytest.mark.full
def test_uploads_of_checkpoints_carry_the_code(tmp_path, monkeypatch):
    uploaded = []

    def upload(self, checkpoint_folder):
        uploaded.append({path.name for path in Path(self.args.output_dir).iterdir()})

    monkeypatch.setattr(Trainer, "_push_from_checkpoint", upload)
    _, _, trainer = trained(tmp_path)
    trainer._push_from_checkpoint(str(tmp_path / "checkpoint-1"))
    assert flat_files().keys() <= uploaded[0]


# --- Datasets and refusals ---


@pytest.mark.full
def test_any_list_of_sequences_will_do(two_steps, tmp_path):
    assert_same(two_steps, trained(tmp_path, dataset=list(samples()), max_steps=2))


@pytest.mark.full
def test_records_are_prepared(tmp_path):
    tokenizer = converted(tmp_path)
    records = Dataset.from_list([{"prompt": "a b", "completion": " c"}, {"prompt": "d", "completion": " e f g h i"}])
    trainer = WeDLMTrainer(
        load(tmp_path / "converted"),
        arguments(tmp_path / "out", max_length=8, overlong="drop"),
        train_dataset=records,
        eval_dataset={"one": records},
        processing_class=tokenizer,
    )
    assert trainer.train_dataset["sample_indices"] == [[0]]
    trainer.train()
    assert "eval_one_loss" in trainer.evaluate()


def test_the_summary_of_records_is_printed_once(tmp_path, capsys):
    tokenizer = converted(tmp_path)
    records = Dataset.from_list([{"text": "a b c"}])
    args = arguments(tmp_path / "out")
    assert len(prepared(records, tokenizer, args)) == 1
    assert capsys.readouterr().out.startswith("1 records read, 1 samples")
    prepared(records.to_iterable_dataset(), tokenizer, args)  # nothing of it is read yet
    with patch.object(type(args), "process_index", 1):
        prepared(records, tokenizer, args)
    assert not capsys.readouterr().out


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
    with pytest.raises(ValueError, match="^nowhere is no folder here and was not downloaded before"):
        WeDLMTrainer("nowhere", arguments(tmp_path))
    drafts = save_adapter(tmp_path / "drafts", base=place / "model")
    with pytest.raises(ValueError, match=f"^{drafts} is a draft adapter; pass PeftModel.from_pretrained.* its base"):
        WeDLMTrainer(drafts, arguments(tmp_path))


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="ar_loss_weight=-1.0 is negative; pass 0"):
        trained(tmp_path, ar_loss_weight=-1.0)
    with pytest.raises(ValueError, match="model is NoneType and args is WeDLMTrainingArguments; pass a model"):
        WeDLMTrainer(None, arguments(tmp_path))
    with pytest.raises(ValueError, match="args is TrainingArguments; pass .*WeDLMTrainingArguments"):
        WeDLMTrainer(load(CHECKPOINTS / "q3"), TrainingArguments(str(tmp_path)))
    with pytest.raises(ValueError, match="compute_metrics and compute_loss_func are not supported, .*generate"):
        WeDLMTrainer(load(CHECKPOINTS / "q3"), arguments(tmp_path), compute_metrics=len)
    with pytest.raises(ValueError, match="no mask token"):
        records = Dataset.from_list([{"text": "a"}])
        (tmp_path / "source").mkdir()
        save_tokenizer(tmp_path / "source")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "source")
        WeDLMTrainer(load(CHECKPOINTS / "q3"), arguments(tmp_path), train_dataset=records, processing_class=tokenizer)
    with pytest.raises(ValueError, match="processing_class .*tokenizer"):
        WeDLMTrainer(load(CHECKPOINTS / "q3"), arguments(tmp_path), train_dataset=records)
