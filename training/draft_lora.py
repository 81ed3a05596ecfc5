"""Draft adapters for PEFT: a LoRA, and an embedding for MASK, that act where the input is MASK and nowhere else."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from functools import cache

import torch
from peft import LoraConfig
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_PREFIX_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners.lora import LoraModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from wedlm.checkpoints.fingerprint import FIELDS, check_base, fingerprint
from wedlm.checkpoints.resolve import DRAFT_TYPE
from wedlm.fused.packed import PackedEmbedding
from wedlm.generation.model_kind import is_stock
from wedlm.modeling_wedlm.drafts import MASKED, MaskedLinear, are_known_to_be_true, drafts_outside
from wedlm.training.stock_drafts import stock_draft_output

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # of a decoder layer
# The fields of LoraConfig that may have any value; the others keep their defaults.
FREE_FIELDS = {
    "peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "r", "lora_alpha", "lora_dropout", "target_modules", "init_lora_weights",
}  # fmt: skip


class PeftTypeName(str):
    """A type of adapter beside those of the enumeration PeftType, which nobody can extend."""

    @property
    def value(self) -> str:
        return str(self)


# A type of its own: PEFT without this package refuses the adapter, instead of letting it act everywhere.
DRAFT_LORA = PeftTypeName(DRAFT_TYPE)


@dataclass
class DraftLoraConfig(LoraConfig):
    """PEFT's LoraConfig for a draft adapter.

    `r`, `lora_alpha` and `lora_dropout` are as in `LoraConfig`. `target_modules` are linear layers, by default all in
    the decoder layers, and `init_lora_weights` is True, False or "gaussian". All other fields keep the defaults of
    `LoraConfig`. `base_fingerprint` and `base_weights` are recorded when the adapter is made.

    The adapter has its own vector for MASK, unless `mask_token_id` names a row of the base's embedding that stands for
    MASK. With `mask_shift` a MASK predicts the next token, as in I-DLM.

    Example:

        model = get_peft_model(model, DraftLoraConfig(r=32, lora_alpha=256))
    """

    import_first: str = field(default="wedlm", metadata={"help": "The package that PEFT needs for this type."})
    base_fingerprint: str | None = field(default=None, metadata={"help": "Tells the base from other models."})
    base_weights: str | None = field(default=None, metadata={"help": "The same by all its weights."})
    mask_token_id: int | None = field(default=None, metadata={"help": "A row of the base that stands for MASK."})
    mask_shift: bool = field(default=False, metadata={"help": "Whether a MASK predicts the token behind it."})

    def __post_init__(self):
        super().__post_init__()
        self.peft_type = DRAFT_LORA
        self.task_type = self.task_type or "CAUSAL_LM"
        if self.target_modules in (None, "all-linear"):
            self.target_modules = set(LAYERS)
        check_fields(self)


def unusual_field(config: LoraConfig, *free: str) -> str | None:
    """The first field, as `name=value`, that a draft adapter cannot have. (Other libraries write [] for None.)"""
    defaults = LoraConfig()
    for name in sorted({each.name for each in fields(LoraConfig)} - {*FREE_FIELDS, *free}):
        value = getattr(config, name)
        if value != getattr(defaults, name) and (value or type(value) is int):  # (0 is a layer)
            return f"{name}={value!r}"
    return None


def check_fields(config: DraftLoraConfig) -> None:
    """Refuses settings of LoRA that a draft adapter cannot have."""
    if (unusual := unusual_field(config)) is not None:
        raise ValueError(
            f"{unusual} is not supported by draft adapters, which are plain products on linear layers; leave it out."
        )
    if config.init_lora_weights not in (True, False, "gaussian"):
        raise ValueError(
            f'init_lora_weights={config.init_lora_weights!r} would change the base; pass True, False or "gaussian".'
        )
    targets = config.target_modules
    if isinstance(targets, str) or not targets or (targets := set(targets) - set(LAYERS)):
        raise ValueError(
            f"target_modules={targets!r} are not linear layers of the decoder layers; pass some of "
            f"{', '.join(LAYERS)}, or an adapter of these alone."
        )


class MaskVector(nn.Module):
    """The embedding of MASK."""

    def __init__(self, values: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(values)

    def forward(self, embeddings: torch.Tensor, is_mask: torch.Tensor) -> torch.Tensor:
        return torch.where(is_mask, self.weight.to(embeddings.dtype), embeddings)


class MaskEmbedding(nn.Module, BaseTunerLayer):
    """The embedding of the model, where the active adapter has its own vector for MASK, or a row of the model's."""

    adapter_layer_names = ("lora_mask",)

    def __init__(self, base_layer: nn.Embedding, mask_token_id: int | None):
        super().__init__()
        self.base_layer = base_layer
        self.num_tokens = base_layer.weight.shape[0]
        self.is_beyond = mask_token_id is None  # the vocabulary has no MASK, so it is the number behind the last token
        self.mask_token_id = self.num_tokens if self.is_beyond else mask_token_id
        self.lora_mask = nn.ModuleDict()
        self.shifts: dict[str, bool] = {}  # of each adapter
        self.cast_input_dtype_enabled = True  # PEFT's disable_input_dtype_casting expects it in each of its layers

    def add(self, adapter_name: str, config: DraftLoraConfig) -> None:
        base = self.base_layer
        self.shifts[adapter_name] = config.mask_shift
        if config.mask_token_id is not None:
            return
        if not self.is_beyond:
            vector = base(torch.tensor(self.mask_token_id, device=base.weight.device)).detach()
        elif isinstance(base, PackedEmbedding):
            vector = base.mean()
        else:
            vector = base.weight.detach().mean(0)
        self.lora_mask[adapter_name] = MaskVector(vector)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        is_mask = (input_ids == self.mask_token_id)[..., None]
        embeddings = self.base_layer(input_ids.masked_fill(is_mask[..., 0], 0) if self.is_beyond else input_ids)
        if not self.disable_adapters:
            for name in self.active_adapters:
                if name in self.lora_mask:
                    embeddings = self.lora_mask[name](embeddings, is_mask)
        return embeddings

    @property
    def has_active_mask(self) -> bool:
        return not self.disable_adapters and any(name in self.shifts for name in self.active_adapters)

    @property
    def masks_shift(self) -> bool:
        return not self.disable_adapters and any(self.shifts.get(name, False) for name in self.active_adapters)

    def drafts_at(self, input_ids: torch.Tensor) -> AbstractContextManager:
        """Lets the adapter act in a forward of a stock model over these ids; a WeDLM sees to that itself."""
        is_text = (input_ids != self.mask_token_id)[..., None]
        return drafts_outside(None if are_known_to_be_true(is_text) else is_text)


class ForMasks:
    """Makes a layer of PEFT skip its product where the input of the model holds no MASK.

    Where one adapter is active, without dropout, it calls fewer operations than PEFT's own forward.
    """

    acts_on_masks = True  # for those who cannot import PEFT

    # The layer of PEFT has these.
    base_layer: nn.Module
    lora_A: Mapping[str, nn.Linear]  # a ModuleDict, as lora_B is
    lora_B: Mapping[str, nn.Linear]
    lora_dropout: Mapping[str, nn.Module]
    scaling: dict[str, float]
    active_adapters: list[str]
    disable_adapters: bool
    cast_input_dtype_enabled: bool
    training: bool

    def forward(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        if MASKED.is_text is None:
            return self.base_layer(hidden_states)
        name = self.active_adapters[0] if len(self.active_adapters) == 1 else None
        is_plain = name in self.lora_A and self.cast_input_dtype_enabled and not (args or kwargs)
        has_dropout = is_plain and self.training and not isinstance(self.lora_dropout[name], nn.Identity)
        if not is_plain or self.disable_adapters or has_dropout:
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]  # that of the layer of PEFT
        down, up = self.lora_A[name], self.lora_B[name]
        output = self.base_layer(hidden_states)
        if not torch.is_autocast_enabled(hidden_states.device.type):  # which casts for each product
            hidden_states = hidden_states.to(down.weight.dtype)
        product = up(down(hidden_states))
        return output.add(product, alpha=self.scaling[name]).to(output.dtype)

    def __reduce_ex__(self, protocol):  # pickle and deepcopy cannot find the class by its name
        return without_state, (type(self).__bases__[1],), self.__dict__


def without_state(layer_class: type) -> nn.Module:
    """Returns a layer of `for_masks(layer_class)` that pickle or deepcopy will fill."""
    return object.__new__(for_masks(layer_class))


@cache
def for_masks(layer_class: type[nn.Module]) -> type[nn.Module]:
    """Returns a class of PEFT's layers with `ForMasks`. (A replica of DataParallel runs the forward of its class.)"""
    return type(layer_class.__name__, (ForMasks, layer_class), {})


class DraftLoraModel(LoraModel):
    """PEFT's LoraModel for draft adapters."""

    tuner_layer_cls = BaseTunerLayer  # set_adapter switches MaskEmbedding as well

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_load_state_dict_pre_hook(check_loaded)

    def inject_adapter(self, model, adapter_name, *args, **kwargs):
        config = self.peft_config[adapter_name]
        if not is_stock(model):
            model.config.require_mask_token_id()
            if model.config.drafts is not None:
                raise ValueError("The model contains a draft adapter already; load its base without the adapter.")
        present = fingerprint(model)
        check_base(present, vars(config))
        for name, value in zip(FIELDS, present, strict=True):
            setattr(config, name, getattr(config, name) or value)
        super().inject_adapter(model, adapter_name, *args, **kwargs)
        embedding = model.get_input_embeddings()
        own = getattr(model.config, "mask_token_id", None)
        if not isinstance(embedding, MaskEmbedding):
            embedding = MaskEmbedding(embedding, own if config.mask_token_id is None else config.mask_token_id)
            model.set_input_embeddings(embedding)
        wanted = embedding.mask_token_id if config.mask_token_id is None else config.mask_token_id
        if wanted != embedding.mask_token_id or not embedding.is_beyond and wanted >= embedding.num_tokens:
            raise ValueError(
                f"mask_token_id={wanted} of the draft adapter does not fit the model, whose embedding has "
                f"{embedding.num_tokens} rows and MASK at {embedding.mask_token_id}; load it into its own base, or "
                "pass the id of the row that stands for MASK."
            )
        embedding.add(adapter_name, config)
        embedding.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    def forward(self, *args, **kwargs):
        """Takes the batches of `DraftCollator` for a stock model, too."""
        if kwargs.get("teachers") is None or not is_stock(self.model):
            return super().forward(*args, **kwargs)
        return stock_draft_output(self.model, kwargs)

    def _create_and_replace(self, lora_config, adapter_name, target, target_name, parent, *args, **kwargs):
        super()._create_and_replace(lora_config, adapter_name, target, target_name, parent, *args, **kwargs)
        layer = getattr(parent, target_name)
        down = layer.lora_A[adapter_name]
        layer.lora_A[adapter_name] = MaskedLinear(down.in_features, down.out_features, bias=False, device="meta")
        layer.lora_A[adapter_name].weight = down.weight
        if not isinstance(layer, ForMasks):
            layer.__class__ = for_masks(type(layer))

    def _enable_peft_forward_hooks(self, *args, **kwargs):
        if kwargs.get("adapter_names") is not None:
            raise ValueError(
                "adapter_names is not supported by draft adapters, which act in all rows alike; choose one with "
                "set_adapter."
            )
        return super()._enable_peft_forward_hooks(*args, **kwargs)

    def _check_merge_allowed(self):
        raise ValueError(
            "A draft adapter cannot be merged: it acts where the input is MASK only, and merged weights would act "
            "everywhere and change the model's text; keep the adapter as it is."
        )

    def add_weighted_adapter(self, *args, **kwargs):
        raise ValueError("Draft adapters cannot be combined into one; choose one of them with set_adapter.")


def check_loaded(module: DraftLoraModel, state_dict: dict[str, torch.Tensor], prefix: str, *args) -> None:
    """Refuses weights that are not those of whole adapters; PEFT would only warn."""
    wanted = module.state_dict(prefix=prefix, keep_vars=True)
    of_adapters = [{key for key in wanted if "lora_" in key and f".{name}." in key} for name in module.peft_config]
    missing = set().union(*(keys - state_dict.keys() for keys in of_adapters if keys & state_dict.keys()))
    if not any(keys & state_dict.keys() for keys in of_adapters):
        missing = of_adapters[-1]
    if wrong := sorted(missing | (state_dict.keys() - wanted.keys())):
        raise ValueError(
            f"The draft adapter and the model do not fit together: {wrong[0]} is in one of them only ({len(wrong)} "
            "such weights in all); load the adapter into its own base, or copy its folder again."
        )


PEFT_TYPE_TO_CONFIG_MAPPING[DRAFT_LORA] = DraftLoraConfig
PEFT_TYPE_TO_TUNER_MAPPING[DRAFT_LORA] = DraftLoraModel
PEFT_TYPE_TO_PREFIX_MAPPING[DRAFT_LORA] = LoraModel.prefix
