"""A step of training a draft adapter on a stock model, which knows neither MASK nor the two streams."""

from collections.abc import Mapping
from unittest.mock import patch

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from wedlm.generation.model_kind import masks_of_layers
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMTrainingOutput
from wedlm.training.draft_loss import draft_loss
from wedlm.training.dual_stream import StreamQueries, dense_mask


def stock_draft_output(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> WeDLMTrainingOutput:
    """What `WeDLMForCausalLM` returns for a batch of `DraftCollator`, for a model with a draft adapter on it."""
    if model.training and any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            "gradient_checkpointing computes layers again without knowing where MASK stands, so a draft adapter of a "
            f"{type(model).__name__} cannot be trained with it; leave it out, or convert the model (`wedlm convert`)."
        )
    input_ids, position_ids = batch["input_ids"], batch["position_ids"]
    index = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    is_seen = dense_mask(StreamQueries(batch["sample_ids"], batch["stream_ids"], batch["block_ids"], index))
    with model.get_input_embeddings().drafts_at(input_ids):
        hidden_states = model.get_decoder()(
            input_ids=input_ids,
            attention_mask=masks_of_layers(model, is_seen, position_ids, None),
            position_ids=position_ids,
            use_cache=False,
        ).last_hidden_state
    loss, distances, hits = draft_loss(Head(model), hidden_states, batch["teachers"], batch["target_weights"], None)
    return WeDLMTrainingOutput(loss=loss, target_losses=distances, target_hits=hits)


class Head(nn.Module):
    """All that a model does behind its decoder, which may be more than one layer: Gemma 2 caps its logits."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.models = (model,)  # not a child of this module

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        (model,) = self.models
        known = MoeModelOutputWithPast(last_hidden_state=hidden_states[None])
        with patch.object(model.get_decoder(), "forward", lambda *args, **kwargs: known):
            return model(input_ids=torch.zeros(1, len(hidden_states), dtype=torch.long)).logits[0]
