"""WeDLMTrainer, transformers' Trainer for all objectives."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from datasets import Dataset, IterableDataset
from peft import PeftModel
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback
from transformers.trainer_utils import has_length

from wedlm.checkpoints.load import read_model
from wedlm.checkpoints.resolve import (
    DRAFT_TYPE,
    draft_adapter,
    how_to_convert,
    require_own_format,
    wedlm_folder,
)
from wedlm.checkpoints.tokenizer_files import load_tokenizer
from wedlm.generation.model_kind import is_stock, kind_of, masks_shift
from wedlm.generation.parameters import AS_IT_IS
from wedlm.generation.transformers_internals import attention_of
from wedlm.modeling_wedlm.hub_code import flat_files
from wedlm.modeling_wedlm.model_type import MODEL_TYPE
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM, WeDLMTrainingOutput
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.collator import StreamCollator
from wedlm.training.data_options import BALANCED
from wedlm.training.dataset import prepare_dataset
from wedlm.training.draft_loss import NO_TEACHER
from wedlm.training.kept_memory import kept_memory
from wedlm.training.resume import last_complete_checkpoint, newest_complete
from wedlm.training.run_errors import TrainingError
from wedlm.training.target_loss import NO_TARGET, scale_weights, weight_sums
from wedlm.training.training_metrics import METRICS, ONLY_FOR_METRICS, balancing_weight

# The values of a query without loss, in the batches of all objectives.
NO_LOSS = {"targets": NO_TARGET, "gammas": 0, "teachers": NO_TEACHER, "draft_places": 0, "target_weights": 0}
SHOWN_TOKENS = 24  # of the first sample whose loss is not finite


class WeDLMTrainer(Trainer):
    """transformers' Trainer with the objective of dual-stream training, of I-DLM, or of draft adapters.

    Args:
        model (`PreTrainedModel`, `PeftModel`, `str` or `os.PathLike`):
            A `WeDLMForCausalLM`, with or without adapters; or the folder or the name on the Hub of a WeDLM checkpoint.
            The Trainer loads it in float32, and takes its tokenizer if you pass no `processing_class`.
        args (`WeDLMTrainingArguments`, *optional*):
            The arguments; by default `WeDLMTrainingArguments("trainer_output")`.
        train_dataset, eval_dataset (`Dataset` or `IterableDataset`, *optional*):
            Records with `messages`, `prompt` and `completion`, or `text`; or sequences from `prepare_dataset`.
        processing_class (`PreTrainedTokenizerBase`, *optional*):
            The tokenizer. Records need one, prepared sequences do not.

    All other arguments are those of `Trainer`, except `compute_metrics` and `compute_loss_func`, which are refused.

    Example:

        trainer = WeDLMTrainer(
            model, WeDLMTrainingArguments("out"), train_dataset=records, processing_class=tokenizer
        )
        trainer.train()
    """

    def __init__(
        self,
        model=None,
        args=None,
        data_collator=None,
        train_dataset=None,
        eval_dataset=None,
        processing_class=None,
        callbacks=None,
        **kwargs,
    ):
        args = WeDLMTrainingArguments("trainer_output") if args is None else args
        if isinstance(model, str | os.PathLike):
            model, tokenizer = load_checkpoint(model)
            processing_class = tokenizer if processing_class is None else processing_class
        check_arguments(model, args, **kwargs)
        record_absolute_base(model)
        if data_collator is None:
            mask_token_id = kind_of(model).mask_token_id if is_stock(model) else model.config.mask_token_id
            data_collator = args.collator(mask_token_id, masks_shift(model))
        eval_dataset = prepare(eval_dataset, processing_class, args)
        train_dataset = prepare(train_dataset, processing_class, args)
        self.is_streamed = isinstance(train_dataset, IterableDataset)
        super().__init__(
            model,
            args,
            data_collator,
            train_dataset,
            eval_dataset,
            processing_class,
            # FiniteWeights comes last, because other callbacks decide what is saved.
            callbacks=[CollatorEpoch(data_collator, self.is_streamed), *(callbacks or ()), FiniteWeights()],
            **kwargs,
        )
        self.metrics = METRICS[args.objective]
        self.compute_metrics = self.evaluation_metrics
        self.sums_since_log = None

    @contextmanager
    def training_attention(self) -> Iterator[None]:
        """Gives the model the attention of the arguments, and afterwards its own back."""
        if is_stock(self.model):
            yield
            return
        before = attention_of(self.model.config)
        self.model.set_attn_implementation(self.args.attn_implementation)
        try:
            yield
        finally:
            self.model.set_attn_implementation(before)

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_complete_checkpoint(self.args)
        if self.args.objective != "draft":
            self.model.config.mask_trained = True  # of the base of an adapter too
            self.model.config.mask_shift = self.args.objective == "i-dlm"
            (self.model.config.drafts or {}).pop("mask_shift", None)  # of drafts inside, which learn the same
            if self.model.config.mask_shift and self.model.generation_config.decoding not in AS_IT_IS:
                self.model.generation_config.decoding = "verified"
        with self.training_attention(), kept_memory(self.args.device):
            output = super().train(resume_from_checkpoint, *args, **kwargs)
        if self.is_streamed and self.state.global_step < self.state.max_steps:
            raise ValueError(
                f"The streamed dataset has too few batches for a step of gradient_accumulation_steps="
                f"{self.args.gradient_accumulation_steps}; lower it, or give more data."
            )
        return output

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Returns the batches of an optimizer step, with weights scaled over all batches of the step on all ranks."""
        if self.state.global_step >= self.state.max_steps:
            # The run resumes at its own end. transformers would take one more step.
            return [], None
        batches, num_targets = super().get_batch_samples(epoch_iterator, num_batches, device)
        if batches and self.accelerator.gradient_state.end_of_dataloader:
            batches[-1] = self.without_repeats(batches[-1])
        is_short = torch.full((1,), float(len(batches) < num_batches), device=device)
        sums = sum((weight_sums(batch).to(device) for batch in batches), torch.zeros(2, device=device))
        *sums, num_short = self.accelerator.reduce(torch.cat([sums, is_short]), reduction="sum")
        if num_short > 0:
            # A streamed dataset ends here. transformers would add these gradients to those of the next step.
            return [], num_targets
        weight = self.memory_weight(batches)
        return [scale_weights(batch, torch.stack(sums), weight) for batch in batches], num_targets

    def memory_weight(self, batches: list[dict[str, torch.Tensor]]) -> float:
        """The weight of the memory stream in the loss of a step."""
        if self.args.objective == "draft":
            return 0.0  # a draft adapter does not act there
        if self.args.ar_loss_weight != BALANCED:
            return self.args.ar_loss_weight
        self.model_wrapped.eval()  # dropout would draw numbers that a resumed run does not draw
        with torch.no_grad(), self.compute_loss_context_manager():
            prepared = map(self._prepare_inputs, batches)
            rows = [self.metrics.row_sums(batch, self.model_wrapped(**of_model(batch))) for batch in prepared]
        sums = self.accelerator.reduce(torch.cat(rows).sum(dim=0), reduction="sum")
        return balancing_weight(self.metrics.logged(sums))

    def without_repeats(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Takes the loss from the rows that accelerate repeats to fill the last batches of an epoch on all ranks."""
        num_ranks, num_rows = self.accelerator.num_processes, len(batch["input_ids"])
        if num_ranks == 1 or self.args.dataloader_drop_last or not has_length(self.train_dataset):
            return batch
        # The first rows are new, in the order of the ranks.
        num_new = (len(self.train_dataset) - 1) % (num_ranks * num_rows) + 1
        first = self.accelerator.process_index * num_rows
        is_new = (torch.arange(first, first + num_rows, device=batch["input_ids"].device) < num_new)[:, None]
        return batch | {name: batch[name].where(is_new, none) for name, none in NO_LOSS.items() if name in batch}

    def _get_num_items_in_batch(self, batch_samples, device):
        # With None, transformers would divide the loss by the number of batches, but the weights are scaled already.
        return 1

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**of_model(inputs))
        if model.training:
            if not outputs.loss.isfinite().all():  # waits for the device, as the filter of transformers does
                self.refuse_loss(inputs, outputs)
            sums = self.metrics.row_sums(inputs, outputs).sum(dim=0)
            self.sums_since_log = sums if self.sums_since_log is None else self.sums_since_log + sums
        # The loss of a step is the sum over the processes, but gradients are averaged over them.
        loss = outputs.loss * (self.args.n_gpu if self.args.n_gpu > 1 else self.accelerator.num_processes)
        return (loss, outputs) if return_outputs else loss

    def refuse_loss(self, batch: Mapping[str, torch.Tensor], outputs: WeDLMTrainingOutput) -> None:
        rows = (~outputs.target_losses.isfinite()).any(dim=-1).nonzero().flatten().tolist() or [0]
        first = batch["input_ids"][rows[0], :SHOWN_TOKENS].tolist()
        sample = f"the tokens {first}" if self.processing_class is None else repr(self.processing_class.decode(first))
        raise TrainingError(
            f"The loss of a batch of step {self.state.global_step + 1} is {outputs.loss.sum().item()}, from "
            f"{len(rows)} of {len(batch['input_ids'])} rows, the first of which begins with {sample}; "
            f"{remedy(self.args)}"
        )

    def log(self, logs, start_time=None):
        if "loss" in logs and self.sums_since_log is not None:
            logs |= self.metrics.logged(self.accelerator.reduce(self.sums_since_log, reduction="sum"))
            self.sums_since_log = None
        super().log(logs, start_time)

    # --- Evaluation ---

    def get_eval_dataloader(self, eval_dataset=None):
        training_collator = self.data_collator
        # transformers takes the collator of every loader from here.
        self.data_collator = training_collator.for_evaluation()
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = training_collator

    def get_test_dataloader(self, test_dataset):
        return self.get_eval_dataloader(test_dataset)

    def evaluation_loop(self, *args, **kwargs):
        with self.training_attention():
            return super().evaluation_loop(*args, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Returns the sums of each row where transformers expects logits, which it gathers over all processes."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            sums = self.metrics.row_sums(inputs, model(**of_model(inputs)))
        return None, sums, torch.zeros_like(sums)

    def evaluation_metrics(self, prediction) -> dict[str, float]:
        sums = torch.from_numpy(prediction.predictions).double().sum(dim=0)
        metrics = self.metrics.logged(sums)
        weight = self.args.ar_loss_weight
        weight = balancing_weight(metrics) if weight == BALANCED else weight
        return {"loss": self.metrics.loss(metrics, weight), **metrics}

    # --- The Hub ---

    def _push_from_checkpoint(self, checkpoint_folder):
        # transformers copies the weights and the config of a checkpoint into the folder that it uploads, but no code.
        if self.is_world_process_zero():
            for name, text in flat_files().items():
                (Path(self.args.output_dir) / name).write_text(text, encoding="utf-8")
        super()._push_from_checkpoint(checkpoint_folder)


# --- Callbacks ---


class CollatorEpoch(TrainerCallback):
    """Sets the epoch of the collator, from which it draws masks."""

    def __init__(self, collator: StreamCollator, is_streamed: bool):
        self.collator, self.is_streamed = collator, is_streamed

    def on_train_begin(self, args, state, control, **kwargs):
        self.epoch = int(state.epoch or 0)  # not 0 in a resumed run
        if self.epoch and self.is_streamed:
            raise ValueError(
                f"resume_from_checkpoint: the run was in pass {self.epoch + 1} over its streamed dataset, but "
                "transformers resumes in the first pass only; start a new run from the checkpoint's weights."
            )

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.collator.set_epoch(self.epoch)
        self.epoch += 1  # state.epoch will not do: for a streamed dataset it is a share of max_steps


class FiniteWeights(TrainerCallback):
    """Refuses to save weights that are not finite."""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if control.should_save:
            self.on_train_end(args, state, control, model)

    on_epoch_end = on_step_end

    def on_train_end(self, args, state, control, model=None, **kwargs):
        if not all(map(is_finite, model.parameters())):
            raise TrainingError(f"The weights are not finite after step {state.global_step}; {remedy(args)}")


def is_finite(weight: torch.Tensor) -> bool:
    if not weight.requires_grad:
        return True
    if isinstance(weight, DTensor):  # under FSDP2
        weight = weight.to_local()
    return bool(getattr(weight, "ds_tensor", weight).isfinite().all())  # under ZeRO-3, the part of this rank


def remedy(args: WeDLMTrainingArguments) -> str:
    last = newest_complete(args)
    start = f"resume from {last}, which was saved before" if last else "start anew"
    return f"lower learning_rate={args.learning_rate} or set max_grad_norm, and {start}."


# --- Arguments ---


def load_checkpoint(name: str | os.PathLike) -> tuple[WeDLMForCausalLM, PreTrainedTokenizerBase]:
    """Loads a WeDLM checkpoint for training; one of another kind is refused with the line that converts it."""
    if draft_adapter(name) is not None:
        raise ValueError(
            f"{name} is a draft adapter; pass PeftModel.from_pretrained(model, {str(name)!r}, is_trainable=True) with "
            "its base as model."
        )
    folder = wedlm_folder(name, with_weights=True)
    require_own_format(name, folder)
    return read_model(WeDLMForCausalLM, name, folder, dtype=torch.float32), load_tokenizer(folder, name)


def record_absolute_base(model) -> None:
    """Makes adapters record the absolute path of a checkpoint in a folder, so that it is found from other folders."""
    if isinstance(model, PeftModel):
        for config in model.peft_config.values():
            if config.base_model_name_or_path and Path(config.base_model_name_or_path).is_dir():
                config.base_model_name_or_path = str(Path(config.base_model_name_or_path).absolute())


def check_arguments(model, args, compute_metrics=None, compute_loss_func=None, **kwargs) -> None:
    if not isinstance(args, WeDLMTrainingArguments):
        raise ValueError(f"args is {type(args).__name__}; pass arguments as WeDLMTrainingArguments.")
    config = getattr(model, "config", None)
    has_drafts = isinstance(model, PeftModel) and model.active_peft_config.peft_type == DRAFT_TYPE
    if (kind := getattr(config, "model_type", None)) != MODEL_TYPE and not has_drafts:
        name = getattr(config, "name_or_path", "") or "MODEL"
        raise ValueError(
            f"model is a {type(model).__name__}, and WeDLMTrainer trains a WeDLM; {how_to_convert(name, kind)}, and "
            "WeDLMTrainer takes that folder as model."
        )
    if has_drafts != (args.objective == "draft"):
        raise ValueError(
            f"objective={args.objective!r} does not fit the model, which {'has a' if has_drafts else 'has no'} draft "
            'adapter; train a draft adapter with objective="draft" and get_peft_model(model, DraftLoraConfig()), '
            'and everything else with "dual_stream" or "i-dlm".'
        )
    shift = args.objective == "i-dlm"
    if isinstance(model, PeftModel) and not has_drafts and config.mask_shift != shift:
        raise ValueError(
            f"objective={args.objective!r} does not fit mask_shift={config.mask_shift} in the config of the base, "
            f"which an adapter does not change; set mask_shift to {json.dumps(shift)} in its config.json"
            f"{', and decoding to verified in its generation_config.json' if shift else ''}, and load it again."
        )
    if compute_metrics is not None or compute_loss_func is not None:
        raise ValueError(
            "compute_metrics and compute_loss_func are not supported, because the model returns its loss and no "
            "logits; evaluate texts with generate() in a callback's on_evaluate."
        )


def of_model(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the model takes of a batch."""
    return {name: values for name, values in batch.items() if name not in ONLY_FOR_METRICS}


def prepare(dataset, tokenizer: PreTrainedTokenizerBase | None, args: WeDLMTrainingArguments):
    """Prepares a dataset of records, or a dict of them. Sequences, None and other datasets stay as they are."""
    if isinstance(dataset, dict):
        return {name: prepare(each, tokenizer, args) for name, each in dataset.items()}
    if not isinstance(dataset, Dataset | IterableDataset):
        return dataset  # the collator checks its elements
    if "sample_indices" in (dataset.column_names or ()):
        return dataset
    if tokenizer is None:
        raise ValueError(
            "processing_class is None, but the datasets hold text; pass the tokenizer, or datasets that "
            "prepare_dataset has made."
        )
    dataset, summary = prepare_dataset(dataset, tokenizer, args.data_options())
    if args.process_index == 0 and summary.num_read:
        print(summary)
    return dataset
