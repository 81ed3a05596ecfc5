"""The forward of a decoder layer with few operators, for decoding."""

from operator import is_

import torch
from torch import nn
from torch.nn.functional import pad
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from wedlm.fused import native
from wedlm.fused.blocks import TYPES
from wedlm.fused.packed import PackedLinear
from wedlm.fused.product import MOST_ROWS, MOST_WIDTH, Product, address, rotate
from wedlm.generation.transformers_internals import CACHE, attention_of, num_changes
from wedlm.modeling_wedlm.drafts import MASKED

RANK_STEP = 32  # ranks are filled up to it, so that products can take tiles of them
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
        is_packed = isinstance(layers[0], PackedLinear)
        weight = [layer.packed for layer in layers] if is_packed else together(layers, "weight")
        super().__init__(weight, together(layers, "bias"), norm, is_gated)
        self.draft_versions, self.draft_products = [], []

    def refresh_draft(self, dtype: torch.dtype) -> bool:
        """Puts the draft products that are active now together, as one low-rank product in the dtype of the input.

        Returns whether they are others than before.
        """
        products = [draft_products(self.module, name) for name in self.names]
        versions = [(*version(down), *version(up), scale, dtype) for layer in products for down, up, scale in layer]
        if versions == self.draft_versions:
            return False
        self.draft_versions, self.draft = versions, None
        self.draft_products = products  # as long as these live, no other tensor has their ids
        if versions:
            downs = [down for layer in products for down, _, _ in layer]
            ups = [self.up_of(name, layer) for name, layer in zip(self.names, products, strict=True)]
            down, up = torch.cat(downs).to(dtype), torch.block_diag(*ups).to(dtype)
            more = -len(down) % RANK_STEP
            self.draft = Product(pad(down, (0, 0, 0, more)), norm=self.norm_module), Product(pad(up, (0, more)))
        return True

    def up_of(self, name: str, products: list) -> torch.Tensor:
        """The second matrices of a layer's draft products beside one another."""
        weight = linear_of(self.module._modules[name]).weight
        none = torch.zeros(len(weight), 0, device=weight.device)
        return torch.cat([none, *(up * scale for _, up, scale in products)], dim=1)


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


def draft_places(module: nn.Module, name: str) -> list[tuple[dict, str]]:
    """What decides on the draft products of a linear layer: entries of dicts, the weights last."""
    places: list[tuple[dict, str]] = [(module._modules, name)]
    own, layer = module._modules.get("drafts"), module._modules[name]
    if own is not None:
        places.append((module._modules, "drafts"))
        if name in own._modules:
            product = own._modules[name]
            return [*places, (own._modules, name), (product._parameters, "down"), (product._parameters, "up")]
    if linear_of(layer) is layer:
        return places
    for matrices in (layer._modules["lora_A"]._modules, layer._modules["lora_B"]._modules):
        for adapter in layer.active_adapters:
            if adapter in matrices:
                places += [(layer.scaling, adapter), (matrices, adapter), (matrices[adapter]._parameters, "weight")]
    return places


class KnownDrafts:
    """The draft products of which something was made: whether they are still the same."""

    def __init__(self, merged: list[Merged]):
        places = [place for each in merged for name in each.names for place in draft_places(each.module, name)]
        parts = [owner[name] for owner, name in places]
        self.parts = [owner for owner, _ in places], [name for _, name in places], parts, [], [], []
        self.tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        self.versions = list(map(num_changes, self.tensors))
        modules = [each.module._modules[name] for each in merged for name in each.names]
        self.adapters = [layer for layer in modules if linear_of(layer) is not layer]
        self.states = list(map(adapter_state, self.adapters))

    def are_current(self) -> bool:
        if not are_same(*self.parts) or list(map(num_changes, self.tensors)) != self.versions:
            return False
        return list(map(adapter_state, self.adapters)) == self.states


def adapter_state(layer: nn.Module) -> tuple[bool, list[str]]:
    """Which adapters of a layer of PEFT act."""
    return layer.disable_adapters, list(layer.active_adapters)


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
        self.width, self.scaling = attention.head_dim, attention.scaling
        # Mistral has a window for all layers, and the config of a Llama may have one by mistake.
        self.window_owner = config if type(layer).__name__ == "MistralDecoderLayer" else attention
        self.dtype = layer.input_layernorm.weight.dtype
        norms = head_norms(attention)
        self.norms, self.head_norms = list(norms.values()), [norm.weight.detach() for norm in norms.values()]
        linears = [linear_of(merged.module._modules[name]) for merged in self.merged for name in merged.names]
        self.known = Known()
        self.known.add(
            layer, attention, mlp, *linears, layer.input_layernorm, layer.post_attention_layernorm, *self.norms
        )
        self.described = self.description()
        products = [(merged.inputs, merged.outputs) for merged in self.merged]
        self.shape = (products, self.num_queries, self.num_keys, self.width, self.scaling, self.dtype)

    def __reduce__(self):  # a copy of the model merges its own weights, in its first forward
        return type(None), ()

    def refresh_drafts(self, dtype: torch.dtype) -> None:
        """Takes the draft products that are active now."""
        if any([merged.refresh_draft(dtype) for merged in self.merged]):
            self.described = self.description()

    def description(self) -> native.Layer | None:
        """The layer as C reads it; None where torch multiplies."""
        if not all(self.dtype in merged.dtypes for merged in self.merged) or self.width > MOST_WIDTH:
            return None
        described, parts = native.Layer(), [merged.described() for merged in self.merged]
        for name, part in zip(("query_key_value", "output", "gate_up", "down"), parts, strict=True):
            setattr(described, name, part)
        described.kept = parts, [merged.draft for merged in self.merged]
        for name, norm in zip(("query", "key"), self.norms, strict=False):
            setattr(described, f"{name}_norm", address(norm.weight))
            setattr(described, f"{name}_epsilon", norm.variance_epsilon)
        return described

    def takes(self, hidden_states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]) -> bool:
        """Whether C knows such rows."""
        if self.described is None or hidden_states.numel() == 0:
            return False
        angles = [(each.shape[-1], each.dtype) for each in position_embeddings]
        return hidden_states.is_cpu and hidden_states.dtype == self.dtype and angles == [(self.width, self.dtype)] * 2

    def forward_of(self, hidden_states, position_embeddings, is_text) -> tuple[native.Forward, list]:
        """The forward of some rows through this layer, and what has to live as long. C changes `hidden_states`."""
        batch, queries, _ = hidden_states.shape
        cos, sin = (each.contiguous() for each in position_embeddings)
        is_text = None if is_text is None else is_text.contiguous()
        forward = native.Forward(
            layers=native.addressof(self.described), num_layers=1, set=native.NUMBER, threads=torch.get_num_threads(),
            hidden=hidden_states.data_ptr(), cosines=cos.data_ptr(), sines=sin.data_ptr(), is_text=address(is_text),
            angle_stride=queries * self.width if len(cos) > 1 else 0, batch=batch, queries=queries, entries=queries,
            num_heads=self.num_queries, num_key_heads=self.num_keys, width=self.width,
            scaling=self.scaling, type=TYPES[self.dtype],
        )  # fmt: skip
        return forward, [self.described, cos, sin, is_text]


def are_same(owners: list, names: list, parts: list, weight_owners: list, weight_names: list, addresses: list) -> bool:
    """Whether each owner has that part by that name, and a weight at that address."""
    if not all(map(is_, map(dict.get, owners, names), parts)):
        return False
    try:
        return list(map(torch.Tensor.data_ptr, map(dict.get, weight_owners, weight_names))) == addresses
    except (TypeError, RuntimeError):  # one is missing, or has no memory
        return False


class Known:
    """The modules, weights and epsilons of which something was made: whether they are still the same."""

    def __init__(self) -> None:
        # Owners, names and modules, or None for a weight that is missing; then those of weights, and their addresses.
        self.parts: tuple[list, ...] = ([], [], [], [], [], [])
        self.norms: list[nn.Module] = []
        self.epsilons: list[float] = []

    def add(self, *modules: nn.Module) -> None:
        """Adds modules' own parts: their modules, and their weights."""
        for module in modules:
            in_blocks = isinstance(module, PackedLinear)  # its buffers are replaced, and never become others
            for owner in (module._modules, module._parameters, module._buffers):
                for name, part in owner.items():
                    if in_blocks and part is None:
                        continue
                    is_weight = isinstance(part, torch.Tensor) and not (in_blocks and owner is module._buffers)
                    known = (owner, name, part.data_ptr() if is_weight else part)
                    for values, value in zip(self.parts[3:] if is_weight else self.parts[:3], known, strict=True):
                        values.append(value)
            if hasattr(module, "variance_epsilon"):
                self.norms.append(module)
                self.epsilons.append(module.variance_epsilon)

    @classmethod
    def of_all(cls, several: list["Known"]) -> "Known":
        together = cls()
        for each in several:
            for values, more in zip(together.parts, each.parts, strict=True):
                values += more
            together.norms += each.norms
            together.epsilons += each.epsilons
        return together

    def is_current(self) -> bool:
        return are_same(*self.parts) and [norm.variance_epsilon for norm in self.norms] == self.epsilons


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
        if type(projection) not in (nn.Linear, PackedLinear) or type(projection.weight.data) is not torch.Tensor:
            return f"it has a {type(projection).__name__}, and no plain linear layer"
        weights += projection.parameters()
    if weights[0].device.type == "meta" or any(hasattr(each, "_hf_hook") for each in layer.modules()):
        return "accelerate moves its weights"
    if len({(weight.dtype, weight.device) for weight in weights}) > 1:
        return "its weights have several dtypes or devices"
    if any(len({each.bias is None for each in linears}) > 1 for linears in together):
        return "of its projections only some have a bias"
    if any(len({type(each) for each in linears}) > 1 for linears in together):
        return "of its projections only some have their weights in blocks"
    return None


def fused_forward(layer: nn.Module, hidden_states: torch.Tensor, *args, **kwargs):
    """The forward of a fused decoder layer: its own where it trains, under autocast and in eager attention."""
    is_text, is_compiling = kwargs.get("is_text", MASKED.is_text), torch.compiler.is_compiling()
    is_own = bool(args) or has_own_forward(layer, hidden_states)
    if not (is_own or is_compiling):
        refresh(layer, hidden_states.dtype, has_masks=is_text is not None)
    fused = layer.fused
    if is_own or fused is None or is_compiling and may_have_changed(fused, hidden_states, is_text):
        return type(layer).forward(layer, hidden_states, *args, **kwargs)
    kwargs.pop("is_text", None)
    if not is_compiling and are_few(hidden_states) and fused.takes(hidden_states, kwargs["position_embeddings"]):
        return forward_in_c(layer.self_attn, fused, hidden_states, is_text, **kwargs)
    return forward_by_torch(layer.self_attn, fused, hidden_states, is_text, **kwargs)


def has_own_forward(layer: nn.Module, hidden_states: torch.Tensor) -> bool:
    is_autocast = torch.is_autocast_enabled(hidden_states.device.type)
    return torch.is_grad_enabled() or layer.training or is_autocast or attention_of(layer.self_attn.config) == "eager"


def refresh(layer: nn.Module, dtype: torch.dtype, has_masks: bool) -> None:
    """Merges weights anew that were cast or moved since the last forward, or have got an adapter."""
    if layer.fused is None or not layer.fused.known.is_current():
        layer.fused = FusedLayer(layer) if why_not_fused(layer) is None else None
    if has_masks and layer.fused is not None:
        layer.fused.refresh_drafts(dtype)


def are_few(hidden_states: torch.Tensor) -> bool:
    """Whether products of these rows are computed in C."""
    return hidden_states.shape[0] * hidden_states.shape[1] <= MOST_ROWS


def may_have_changed(fused: FusedLayer, hidden_states: torch.Tensor, is_text: torch.Tensor | None) -> bool:
    """Whether compiled code, in which nobody checks adapters and addresses, has to run the layer's own forward."""
    weight = fused.query_key_value.norm  # those in blocks have no dtype
    return is_text is not None or (weight.dtype, weight.device) != (hidden_states.dtype, hidden_states.device)


def attend(
    attention: nn.Module, fused: FusedLayer, query, key, value, attention_mask=None, position_ids=None, use_cache=None,
    **kwargs,
) -> torch.Tensor:  # fmt: skip
    """Attention by the function that the model is set to: `[batch, queries, heads * head_dim]`."""
    cache = kwargs.pop(CACHE, None)
    if hasattr(attention, "attend"):
        attended, _ = attention.attend(query, key, value, attention_mask, cache, **kwargs)
    else:
        function = ALL_ATTENTION_FUNCTIONS.get(attention_of(attention.config))
        window = getattr(fused.window_owner, "sliding_window", None)
        more = {"scaling": attention.scaling, "sliding_window": window, "position_ids": position_ids}
        attended, _ = function(attention, query, key, value, attention_mask, **more, **kwargs)
    return attended.flatten(2)


def forward_in_c(
    attention: nn.Module, fused: FusedLayer, hidden_states, is_text, position_embeddings, **kwargs
) -> torch.Tensor:
    """A layer in C, in two parts: the cache puts keys and values away in between."""
    batch, queries, _ = hidden_states.shape
    hidden_states = hidden_states.clone(memory_format=torch.contiguous_format)
    forward, _kept = fused.forward_of(hidden_states, position_embeddings, is_text)
    heads = hidden_states.new_empty(batch, queries, fused.num_queries + 2 * fused.num_keys, fused.width)
    forward.heads, forward.stages = heads.data_ptr(), native.PROJECT
    native.forward(forward)
    query, key, value = heads.transpose(1, 2).split((fused.num_queries, fused.num_keys, fused.num_keys), dim=1)
    if kwargs.get(CACHE) is not None:
        key, value = kwargs[CACHE].update(key, value, attention.layer_idx, kwargs=kwargs)
    forward.entries = key.shape[2]
    is_known = knows_attention(attention, query.dtype, **kwargs) and have_rows((key, value), query)
    if is_known and sees(forward, attention, **kwargs):
        states = native.States(keys=key.data_ptr(), values=value.data_ptr())
        forward.states, forward.stages = native.addressof(states), native.ATTEND | native.COMPLETE
        forward.key_strides[:], forward.value_strides[:] = key.stride()[:3], value.stride()[:3]
    else:
        attended = attend(attention, fused, query, key, value, **kwargs).contiguous()
        forward.attended, forward.stages = attended.data_ptr(), native.COMPLETE
    native.forward(forward)
    return hidden_states


def forward_by_torch(
    attention: nn.Module, fused: FusedLayer, hidden_states, is_text, position_embeddings, **kwargs
) -> torch.Tensor:
    """A layer by torch's operators."""
    heads = fused.query_key_value(hidden_states, is_text=is_text)
    heads = heads.view(*heads.shape[:-1], fused.num_queries + 2 * fused.num_keys, fused.width)
    norms = [*fused.head_norms, *[norm.variance_epsilon for norm in fused.norms]]
    num_rotated = fused.num_queries + fused.num_keys
    rotated = rotate(heads, fused.num_queries, num_rotated, *position_embeddings, *norms)
    query, key = rotated.transpose(1, 2).split((fused.num_queries, fused.num_keys), dim=1)
    value = heads[:, :, num_rotated:].transpose(1, 2)
    if kwargs.get(CACHE) is not None:
        key, value = kwargs[CACHE].update(key, value, attention.layer_idx, kwargs=kwargs)
    attended = attend(attention, fused, query, key, value, **kwargs)
    hidden_states = fused.output(attended, hidden_states, is_text)
    return fused.down(fused.gate_up(hidden_states, is_text=is_text), hidden_states, is_text)


def have_rows(tensors: tuple[torch.Tensor, ...], query: torch.Tensor) -> bool:
    """Whether keys and values are as C reads them."""
    sizes = len(query), query.shape[3]
    return all(
        (len(each), each.shape[3], each.dtype, each.stride(3)) == (*sizes, query.dtype, 1) and each.is_cpu
        for each in tensors
    )


def knows_attention(
    attention: nn.Module, dtype: torch.dtype, attention_mask=None, position_bias=None, **kwargs
) -> bool:
    """Whether C has the attention of the model, with such a mask."""
    function = ALL_ATTENTION_FUNCTIONS.get(attention_of(attention.config))
    if function is not sdpa_attention_forward or position_bias is not None:
        return False
    if attention_mask is None:
        return True
    is_tensor = isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 4 and attention_mask.is_cpu
    is_tensor = is_tensor and attention_mask.dtype in (torch.bool, dtype)
    return is_tensor and attention_mask.shape[1] == attention_mask.stride(3) == 1


def sees(forward: native.Forward, attention: nn.Module, attention_mask=None, is_causal=None, **kwargs) -> bool:
    """Tells C what the queries see; False where it cannot say that.

    The mask, `[batch, 1, n, entries]`, is added to the scores, or says which entries are seen; the first of its n rows
    are those of the queries. Without it attention is causal.
    """
    if attention_mask is None:
        is_causal = getattr(attention, "is_causal", True) if is_causal is None else is_causal
        return forward.queries == 1 or bool(is_causal) and forward.queries == forward.entries
    rows, _, queries, entries = attention_mask.shape
    if (rows, entries) != (forward.batch, forward.entries) or queries < forward.queries:
        return False
    forward.bias = attention_mask.data_ptr()
    forward.bias_kind = native.SEEN if attention_mask.dtype == torch.bool else native.ADDED
    forward.bias_strides[:] = attention_mask.stride(0), attention_mask.stride(2)
    return True
