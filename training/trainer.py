from contextlib import contextmanager
from pathlib import Path

import torch
from datasets import Dataset, IterableDataset
from transformers import Trainer, TrainerCallback

from wedlm.modeling_wedlm.hub_code import flat_files
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.collator import DualStreamCollator
from wedlm.training.data import prepare_dataset
from wedlm.training.loss import scale_weights, weight_sums
from wedlm.training.metrics import combined_loss, report, row_sums


class EpochOfDraws(TrainerCallback):
    """Tells the collator the epoch, from which it draws."""

    def __init__(self, collator: DualStreamCollator, is_stream: bool):
        self.collator, self.is_stream = collator, is_stream

    def on_train_begin(self, args, state, control, **kwargs):
        self.epoch = int(state.epoch or 0)  # of a resumed run
        if self.epoch and self.is_stream:
            raise ValueError(
                f"resume_from_checkpoint: the run was in pass {self.epoch + 1} over its stream, and transformers "
                "finds a place in the first pass only; start a new run from the checkpoint's weights instead."
            )

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.collator.set_epoch(self.epoch)
        self.epoch += 1  # counted, since a stream's state.epoch is a share of max_steps


class WeDLMTrainer(Trainer):
    """transformers' Trainer with the dual-stream objective.

    Datasets are rows with `messages`, `prompt` and `completion`, or `text`, or what `prepare_dataset` made of them.

        trainer = WeDLMTrainer(
            model, WeDLMTrainingArguments("out"), train_dataset=rows, eval_dataset=others, processing_class=tokenizer
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
        if model is None or not isinstance(args, WeDLMTrainingArguments):
            raise ValueError(
                f"model is {type(model).__name__} and args {type(args).__name__}; pass a model, and arguments as "
                "WeDLMTrainingArguments."
            )
        if kwargs.get("compute_metrics") is not None or kwargs.get("compute_loss_func") is not None:
            raise ValueError(
                "compute_metrics and compute_loss_func are not offered, since the model returns its loss and no "
                "logits; evaluate texts with generate() in a callback's on_evaluate."
            )
        if data_collator is None:
            data_collator = args.collator(model.config.mask_token_id)

        def prepared(dataset):
            if not isinstance(dataset, Dataset | IterableDataset):
                return dataset  # None, or rows of another kind, which the collator checks
            if "sample_indices" in (dataset.column_names or ()):
                return dataset
            if processing_class is None:
                raise ValueError(
                    "processing_class is None, and the datasets hold text; pass the tokenizer, or what "
                    "prepare_dataset made of them."
                )
            dataset, summary = prepare_dataset(dataset, processing_class, args.data_options())
            if args.process_index == 0 and summary.num_read:
                print(summary)
            return dataset

        if isinstance(eval_dataset, dict):
            eval_dataset = {name: prepared(dataset) for name, dataset in eval_dataset.items()}
        else:
            eval_dataset = prepared(eval_dataset)
        train_dataset = prepared(train_dataset)
        self.is_stream = isinstance(train_dataset, IterableDataset)
        super().__init__(
            model,
            args,
            data_collator,
            train_dataset,
            eval_dataset,
            processing_class,
            callbacks=[EpochOfDraws(data_collator, self.is_stream), *(callbacks or ())],
            **kwargs,
        )
        self.compute_metrics = self.metrics_of_sums
        self.logged_sums = None

    @contextmanager
    def attention(self):
        """The model attends as the arguments say while it is trained or evaluated, and afterwards as before."""
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation(self.args.attn_implementation)
        try:
            yield
        finally:
            self.model.set_attn_implementation(before)

    def train(self, *args, **kwargs):
        with self.attention():
            output = super().train(*args, **kwargs)
        if self.is_stream and self.state.global_step < self.state.max_steps:
            raise ValueError(
                f"The stream gives too few batches for a step of gradient_accumulation_steps="
                f"{self.args.gradient_accumulation_steps}; lower it, or give more data."
            )
        return output

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The batches of an optimizer step, their weights normalised over all of them on all ranks."""
        batches, num_targets = super().get_batch_samples(epoch_iterator, num_batches, device)
        is_short = torch.full((1,), float(len(batches) < num_batches), device=device)
        sums = sum((weight_sums(batch).to(device) for batch in batches), torch.zeros(2, device=device))
        *sums, num_short = self.accelerator.reduce(torch.cat([sums, is_short]), reduction="sum")
        if num_short > 0:  # the end of a stream: transformers would take no step, and keep the gradients for the next
            return [], num_targets
        return [scale_weights(batch, torch.stack(sums), self.args.ar_loss_weight) for batch in batches], num_targets

    def _get_num_items_in_batch(self, batch_samples, device):
        # None would make transformers divide by the number of batches, and the weights are normalised already.
        return 1

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        if model.training:
            sums = row_sums(inputs, outputs).sum(dim=0)
            self.logged_sums = sums if self.logged_sums is None else self.logged_sums + sums
        # Gradients are averaged over processes, and the loss is a sum over them.
        loss = outputs.loss * (self.args.n_gpu if self.args.n_gpu > 1 else self.accelerator.num_processes)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, start_time=None):
        if "loss" in logs and self.logged_sums is not None:
            logs |= report(self.accelerator.reduce(self.logged_sums, reduction="sum"))
            self.logged_sums = None
        super().log(logs, start_time)

    # --- Evaluation ---

    def get_eval_dataloader(self, eval_dataset=None):
        training_collator = self.data_collator
        self.data_collator = training_collator.for_evaluation()
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = training_collator

    def get_test_dataloader(self, test_dataset):
        return self.get_eval_dataloader(test_dataset)

    def evaluate(self, *args, **kwargs):
        with self.attention():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args, **kwargs):
        with self.attention():
            return super().predict(*args, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Sums per row take the place of logits: gathered by transformers, and added up over the whole set."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            sums = row_sums(inputs, model(**inputs))
        return None, sums, torch.zeros_like(sums)

    def metrics_of_sums(self, prediction) -> dict[str, float]:
        sums = torch.from_numpy(prediction.predictions).double().sum(dim=0)
        return {"loss": combined_loss(sums, self.args.ar_loss_weight), **report(sums)}

    # --- The Hub ---

    def _push_from_checkpoint(self, checkpoint_folder):
        # transformers copies weights and config of a checkpoint to be uploaded, and not the code.
        if self.is_world_process_zero():
            for name, text in flat_files().items():
                (Path(self.args.output_dir) / name).write_text(text, encoding="utf-8")
        super()._push_from_checkpoint(checkpoint_folder)
