"""Draft adapters for PEFT: a LoRA, and an embedding for MASK, that act where the input is MASK and nowhere else."""

from dataclasses import dataclass

import torch
from peft import LoraConfig
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners.lora import LoraModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from wedlm.modeling_wedlm.draft_gate import MaskedLinear

NOT_SUPPORTED = ("use_dora", "trainable_token_indices", "modules_to_save", "layers_to_transform", "alora_invocation_tokens")


class PeftTypeName(str):
    """A type of adapter beside those of the enumeration PeftType, which nobody can extend."""

    @property
    def value(self) -> str:
        return str(self)


# A type of its own: PEFT without this package refuses the adapter, instead of letting it act everywhere.
DRAFT_LORA = PeftTypeName("WEDLM_DRAFT")


@dataclass
class DraftLoraConfig(LoraConfig):
    """PEFT's LoraConfig for a draft adapter."""

    def __post_init__(self):
        super().__post_init__()
        self.peft_type = DRAFT_LORA


class MaskVector(nn.Module):
    """The embedding of MASK."""

    def __init__(self, values: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(values)


class MaskEmbedding(nn.Module, BaseTunerLayer):
    """The embedding of the model, where the active adapter has its own vector for MASK."""

    adapter_layer_names = ("lora_mask",)

    def __init__(self, base_layer: nn.Module, mask_token_id: int):
        super().__init__()
        self.base_layer = base_layer
        self.mask_token_id = mask_token_id
        self.lora_mask = nn.ModuleDict()

    def add(self, adapter_name: str) -> None:
        values = self.base_layer.weight[self.mask_token_id].detach().clone()
        self.lora_mask[adapter_name] = MaskVector(values)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        embeddings = self.base_layer(input_ids)
        if not self.disable_adapters:
            is_mask = (input_ids == self.mask_token_id)[..., None]
            for name in self.active_adapters:
                if name in self.lora_mask:
                    vector = self.lora_mask[name].weight.to(embeddings.dtype)
                    embeddings = torch.where(is_mask, vector, embeddings)
        return embeddings


class DraftLoraModel(LoraModel):
    """PEFT's LoraModel for draft adapters."""

    def _create_and_replace(self, lora_config, adapter_name, target, target_name, parent, *args, **kwargs):
        super()._create_and_replace(lora_config, adapter_name, target, target_name, parent, *args, **kwargs)
        downs = getattr(parent, target_name).lora_A
        gated = MaskedLinear(downs[adapter_name].in_features, downs[adapter_name].out_features, bias=False, device="meta")
        gated.weight = downs[adapter_name].weight
        downs[adapter_name] = gated

    def _post_injection_hook(self, model, config, adapter_name):
        super()._post_injection_hook(model, config, adapter_name)
        embedding = model.get_input_embeddings()
        if not isinstance(embedding, MaskEmbedding):
            embedding = MaskEmbedding(embedding, model.config.require_mask_token_id())
            model.set_input_embeddings(embedding)
        embedding.add(adapter_name)
        embedding.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    def _check_merge_allowed(self):
        raise ValueError(
            "A draft adapter cannot be merged: it acts in MASK positions only, and merged weights would act everywhere "
            "and change the model's text; keep the adapter as it is, or export model and adapter with `wedlm export`."
        )

    def add_weighted_adapter(self, *args, **kwargs):
        raise ValueError("Draft adapters cannot be combined into one; choose one of them with set_adapter.")


PEFT_TYPE_TO_CONFIG_MAPPING[DRAFT_LORA] = DraftLoraConfig
PEFT_TYPE_TO_TUNER_MAPPING[DRAFT_LORA] = DraftLoraModel
PEFT_TYPE_TO_PREFIX_MAPPING[DRAFT_LORA] = LoraModel.prefix
