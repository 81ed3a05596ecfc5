"""Stops training where a loss or a weight is no longer finite, before anything of it is saved."""

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase, TrainerCallback

from wedlm.modeling_wedlm.modeling_wedlm import WeDLMTrainingOutput
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.dual_stream import PREDICTION
from wedlm.training.errors import TrainingError
from wedlm.training.resume import newest_complete

SHOWN_TOKENS = 24  # of the first sample with such a loss


class FiniteWeights(TrainerCallback):
    """Refuses to save weights that are not finite. It comes last, because other callbacks decide what is saved."""

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


def check_loss(
    batch: Mapping[str, torch.Tensor],
    outputs: WeDLMTrainingOutput,
    step: int,
    args: WeDLMTrainingArguments,
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Raises a TrainingError where the loss of a batch is not finite.

    Args:
        batch (`Mapping[str, torch.Tensor]`): A batch of the collator.
        outputs (`WeDLMTrainingOutput`): The output of the model for the batch.
        step (`int`): The number of the optimizer step, from 1.
        args (`WeDLMTrainingArguments`): The arguments of the run.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): Writes the beginning of the sample as text.
    """
    if outputs.loss.isfinite().all():  # waits for the device, as the filter of transformers does
        return
    is_bad = ~outputs.target_losses.isfinite()
    is_masked = batch["stream_ids"] == PREDICTION
    parts = {"masked": is_bad & is_masked, "next": is_bad & ~is_masked}
    names = " and ".join(name for name, part in parts.items() if part.any())
    rows = is_bad.any(dim=-1).nonzero().flatten().tolist()
    place = f"in all of its {len(is_bad)} rows" if len(rows) == len(is_bad) else f"in row {', '.join(map(str, rows))}"
    first = batch["input_ids"][rows[0] if rows else 0, :SHOWN_TOKENS].tolist()
    sample = repr(tokenizer.decode(first)) if tokenizer is not None else f"the tokens {first}"
    raise TrainingError(
        f"The loss of a batch of step {step} is {outputs.loss.sum().item()}, from the {names or 'sum of all'} tokens "
        f"{place}, the first of which begins with {sample}; {remedy(args)}"
    )


def remedy(args: WeDLMTrainingArguments) -> str:
    last = newest_complete(args)
    start = f"resume from {last}, which was saved before" if last else "start anew"
    return f"lower learning_rate={args.learning_rate} or set max_grad_norm, and {start}."
