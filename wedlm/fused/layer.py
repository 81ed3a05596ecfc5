"""The forward of a decoder layer with few operators, for decoding."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import pad
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from wedlm.fused.int8 import Int8Linear
from wedlm.fused.product import Product, address, attend_few, rotate
from wedlm.generation.transformers_internals import CACHE, attention_of, num_changes
from wedlm.modeling_wedlm.drafts import MASKED

RANK_STEP = 32  # ranks are filled up to it, so that product.c can take tiles of them
# Decoder layers of transformers, and ours: RMS norms, rotated queries and keys, a gated MLP.
CLASSES = {f"{family}DecoderLayer" for family in ("Llama", "Mistral", "Qwen2", "Qwen3", "WeDLM")}


class Merged(Product):
    """Linear layers of a module that read the same input as one product, with their draft products.

    Their weights move into one tensor, one below the other, and become views of its rows. So nothing is kept twice,
    and they can be trained and saved as before.
    """

    def __init__(
        self, module: nn.Module, names: tuple[str, ...], norm: nn.Module | None = None, is_gated: bool = False
    ):
        self.module, self.names = module, names
        layers = [linear_of(module._modules[name]) for name in names]
        weight, bias, scales = (together(layers, name) for name in ("weight", "bias", "scales"))
        super().__init__(weight, bias, norm, is_gated, scales)
        self.draft_versions, self.draft_products, self.draft = [], [], None
        self.known_modules = [(module._modules, name, module._modules[name]) for name in names]
        modules = [each for each in (*layers, norm) if each is not None]
        owners = [owner for each in modules for owner in (each._parameters, each._buffers)]
        self.known_weights = [(owner, name, address(owner[name])) for owner in owners for name in owner]

    def refresh_draft(self, dtype: torch.dtype) -> None:
        """Puts the draft products that are active now together, as one low-rank product in the dtype of the input."""
        products = [draft_products(self.module, name) for name in self.names]
        versions = [(*version(down), *version(up), scale) for layer in products for down, up, scale in layer]
        if versions == self.draft_versions:
            return
        self.draft_versions, self.draft = versions, None
        self.draft_products = products  # as long as these live, no other tensor has their ids
        if versions:
            downs = [down for layer in products for down, _, _ in layer]
            ups = [self.up_of(name, layer) for name, layer in zip(self.names, products, strict=True)]
            down, up = torch.cat(downs).to(dtype), torch.block_diag(*ups).to(dtype)
            more = -len(down) % RANK_STEP
            self.draft = Product(pad(down, (0, 0, 0, more)), norm=self.norm_module), Product(pad(up, (0, more)))

    def up_of(self, name: str, products: list) -> torch.Tensor:
        """The second matrices of a layer's draft products beside one another."""
        weight = linear_of(self.module._modules[name]).weight
        none = torch.zeros(len(weight), 0, device=weight.device)
        return torch.cat([none, *(up * scale for _, up, scale in products)], dim=1)

    def __call__(self, x, is_text=None, added=None) -> torch.Tensor:
        """The product with `x`, with the draft products where the input of the model is MASK."""
        return super().__call__(x, added, None if is_text is None else self.draft, is_text)


def version(tensor: torch.Tensor) -> tuple[int, int]:
    """What is another for each tensor, and after each change of one."""
    return id(tensor), num_changes(tensor)


def linear_of(layer: nn.Module) -> nn.Module:
    """The layer below a draft adapter of PEFT, whose class nobody can import without PEFT."""
    return layer.base_layer if getattr(type(layer), "acts_on_masks", False) else layer


def together(layers: list[nn.Module], name: str) -> torch.Tensor | None:
    """Returns one tensor with the rows of a weight of all layers, which become views of it; None if they lack it."""
    weights = [getattr(layer, name, None) for layer in layers]
    if weights[0] is None:
        return None
    with torch.inference_mode(False), torch.no_grad():
        merged = torch.cat([weight.detach() for weight in weights]) if len(weights) > 1 else weights[0].detach()
        for weight, rows in zip(weights, merged.split([len(weight) for weight in weights]), strict=True):
            weight.data = rows
    return merged


def draft_products(module: nn.Module, name: str) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    """The matrices and the factor of each active draft product of a linear layer."""
    own = module._modules.get("drafts")
    if own is not None and name in own._modules:
        return [(own._modules[name].down, own._modules[name].up, 1.0)]
    layer = module._modules[name]
    if linear_of(layer) is layer or layer.disable_adapters:
        return []
    downs, ups = layer._modules["lora_A"]._modules, layer._modules["lora_B"]._modules
    return [
        (downs[adapter].weight, ups[adapter].weight, layer.scaling[adapter])
        for adapter in layer.active_adapters
        if adapter in downs
    ]


class FusedLayer:
    """The merged weights of a decoder layer, and what its attention needs."""

    def __init__(self, layer: nn.Module):
        attention, mlp = layer.self_attn, layer.mlp
        self.query_key_value = Merged(attention, ("q_proj", "k_proj", "v_proj"), layer.input_layernorm)
        self.output = Merged(attention, ("o_proj",))
        self.gate_up = Merged(mlp, ("gate_proj", "up_proj"), layer.post_attention_layernorm, is_gated=True)
        self.down = Merged(mlp, ("down_proj",))
        self.merged = (self.query_key_value, self.output, self.gate_up, self.down)
        config = attention.config
        self.num_queries, self.num_keys = config.num_attention_heads, config.num_key_value_heads
        # Mistral has a window for all layers, and the config of a Llama may have one by mistake.
        self.window_owner = config if type(layer).__name__ == "MistralDecoderLayer" else attention
        norms = head_norms(attention)
        self.norms, self.head_norms = list(norms.values()), [norm.weight.detach() for norm in norms.values()]
        self.known_modules = [known for merged in self.merged for known in merged.known_modules]
        self.known_modules += [(layer._modules, name, part) for name, part in layer.named_children()]
        self.known_modules += [(attention._modules, name, norm) for name, norm in norms.items()]
        self.known_weights = [known for merged in self.merged for known in merged.known_weights]
        self.known_weights += [(norm._parameters, "weight", address(norm.weight)) for norm in norms.values()]

    def __reduce__(self):  # a copy of the model merges its own weights, in its first forward
        return type(None), ()

    def is_current(self) -> bool:
        """Whether the layer still has these modules, with weights that are rows of the merged tensors."""
        for modules, name, module in self.known_modules:
            if modules[name] is not module:
                return False
        for weights, name, known in self.known_weights:
            weight = weights[name]
            if (0 if weight is None else weight.data_ptr()) != known:
                return False
        return True


def head_norms(attention: nn.Module) -> dict[str, nn.Module]:
    """The RMS norms of queries and keys of an attention that has them."""
    norms = {name: attention._modules.get(name) for name in ("q_norm", "k_norm")}
    return {name: norm for name, norm in norms.items() if not isinstance(norm, nn.Identity | None)}


def why_not_fused(layer: nn.Module) -> str | None:
    """Says what keeps a decoder layer from being fused, or returns None."""
    if type(layer).__name__ not in CLASSES:
        return f"{type(layer).__name__} is none of {', '.join(sorted(CLASSES))}"
    attention, mlp = layer.self_attn, layer.mlp
    if attention.config.hidden_act != "silu":
        return f"its activation is {attention.config.hidden_act}"
    modules = {attention: ("q_proj", "k_proj", "v_proj"), mlp: ("gate_proj", "up_proj")}
    projections = [attention._modules["o_proj"], mlp._modules["down_proj"]]
    together = [[linear_of(module._modules[name]) for name in names] for module, names in modules.items()]
    norms = [layer.input_layernorm, layer.post_attention_layernorm, *head_norms(attention).values()]
    weights = [norm.weight for norm in norms]
    for projection in [*map(linear_of, projections), *together[0], *together[1]]:
        if type(projection) not in (nn.Linear, Int8Linear) or type(projection.weight.data) is not torch.Tensor:
            return f"it has a {type(projection).__name__}, and no plain linear layer"
        weights += projection.parameters()
    if weights[0].device.type == "meta" or any(hasattr(each, "_hf_hook") for each in layer.modules()):
        return "accelerate moves its weights"
    if len({(weight.dtype, weight.device) for weight in weights}) > 1:
        return "its weights have several dtypes or devices"
    if any(len({each.bias is None for each in linears}) > 1 for linears in together):
        return "of its projections only some have a bias"
    return None


def fused_forward(layer: nn.Module, hidden_states: torch.Tensor, *args, **kwargs):
    """The forward of a fused decoder layer: its own where it trains, under autocast and in eager attention."""
    is_text, is_compiling = kwargs.get("is_text", MASKED.is_text), torch.compiler.is_compiling()
    implementation = attention_of(layer.self_attn.config)
    is_own = torch.is_grad_enabled() or layer.training or args or implementation == "eager"
    is_own = is_own or torch.is_autocast_enabled(hidden_states.device.type)
    if not (is_own or is_compiling):
        refresh(layer, hidden_states, has_masks=is_text is not None)
    fused = layer.fused
    if is_own or fused is None or is_compiling and may_have_changed(fused, hidden_states, is_text):
        return type(layer).forward(layer, hidden_states, *args, **kwargs)
    kwargs.pop("is_text", None)
    projected = fused.query_key_value(hidden_states, is_text)
    attended = attend(layer.self_attn, fused, ALL_ATTENTION_FUNCTIONS.get(implementation), projected, **kwargs)
    hidden_states = fused.output(attended, is_text, hidden_states)
    return fused.down(fused.gate_up(hidden_states, is_text), is_text, hidden_states)


def refresh(layer: nn.Module, hidden_states: torch.Tensor, has_masks: bool) -> None:
    """Merges weights anew that were cast or moved since the last forward, or have got an adapter."""
    if layer.fused is None or not layer.fused.is_current():
        layer.fused = FusedLayer(layer) if why_not_fused(layer) is None else None
    if has_masks and layer.fused is not None:
        for merged in layer.fused.merged:
            merged.refresh_draft(hidden_states.dtype)


def may_have_changed(fused: FusedLayer, hidden_states: torch.Tensor, is_text: torch.Tensor | None) -> bool:
    """Whether compiled code, in which nobody checks adapters and addresses, has to run the layer's own forward."""
    weight = fused.query_key_value.weight
    return is_text is not None or (weight.dtype, weight.device) != (hidden_states.dtype, hidden_states.device)


def attend(
    attention: nn.Module,
    fused: FusedLayer,
    function: Callable,
    projected: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
    position_ids: torch.LongTensor | None = None,
    use_cache: bool | None = None,
    **kwargs,
) -> torch.Tensor:
    """Attention behind the projections: `[batch, queries, heads * head_dim]`."""
    cache = kwargs.pop(CACHE, None)
    num_queries, num_keys = fused.num_queries, fused.num_keys
    heads = projected.view(*projected.shape[:-1], num_queries + 2 * num_keys, attention.head_dim)
    norms = [*fused.head_norms, *[norm.variance_epsilon for norm in fused.norms]]
    rotated = rotate(heads, num_queries, num_queries + num_keys, *position_embeddings, *norms)
    query, key = rotated.transpose(1, 2).split((num_queries, num_keys), dim=1)
    value = heads[:, :, -num_keys:].transpose(1, 2)
    if cache is not None:
        key, value = cache.update(key, value, attention.layer_idx, kwargs=kwargs)
    attended = None
    if function is sdpa_attention_forward:
        attended = attend_few(query, key, value, attention_mask, attention.scaling)
    if attended is None and hasattr(attention, "attend"):
        attended, _ = attention.attend(query, key, value, attention_mask, cache, **kwargs)
    elif attended is None:
        window = getattr(fused.window_owner, "sliding_window", None)
        more = {"scaling": attention.scaling, "sliding_window": window, "position_ids": position_ids}
        attended, _ = function(attention, query, key, value, attention_mask, **more, **kwargs)
    return attended.flatten(2)
