"""Linear layers whose weights are packed for a CPU.

torch reads the weights of a layer as they lie, and its products with few rows, as in a step of decoding, are slow.
oneDNN packs the weights in blocks first, and its products with few rows are then several times faster.
"""

from collections.abc import Callable, Iterator

import torch
from torch import nn

SMALLEST = 2**16  # weights of a layer; products with fewer of them gain nothing


class PackedLinear(nn.Module):
    """A linear layer for decoding on a CPU. Its weights are no parameter, and cannot be read any more.

    Args:
        layer (`nn.Linear`): The layer, whose weights are not needed any more.

    Attributes:
        is_finite (`bool`): Whether all weights and the bias are finite.
    """

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.is_finite = all(bool(each.isfinite().all()) for each in layer.parameters())
        self.in_features, self.out_features, self.dtype = layer.in_features, layer.out_features, layer.weight.dtype
        self.packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
        self.bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        inputs = hidden_states.to(self.dtype)  # autocast may bring another dtype
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def train(self, mode: bool = True) -> "PackedLinear":
        if mode:
            refuse_packed(self, "trained")
        return super().train(mode)

    def _apply(self, fn, recurse: bool = True) -> "PackedLinear":
        refuse_change(self, fn)
        return self

    def state_dict(self, *args, **kwargs):
        refuse_packed(self, "saved")

    def __reduce_ex__(self, protocol):
        refuse_packed(self, "copied")


def refuse_packed(model: nn.Module, done: str) -> None:
    """Refuses a model with packed weights where something would be done that needs them as parameters.

    Args:
        model (`nn.Module`): The model.
        done (`str`): The end of the sentence "it cannot be ...".
    """
    if any(packed_layers(model)):
        raise ValueError(
            f"The weights of this model are packed for decoding on a CPU, so it cannot be {done}; do that before "
            "pack_for_cpu(), or load it again."
        )


def refuse_change(model: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Refuses a model with packed weights if `fn`, as `nn.Module._apply` takes it, moves or casts parameters."""
    for layer in packed_layers(model):
        applied = fn(torch.empty(0, dtype=layer.dtype))
        if applied.dtype != layer.dtype or applied.device.type != "cpu":
            refuse_packed(model, "moved or cast")


def refuse_backward(model: nn.Module, args: tuple, output: object) -> None:
    """Lets backward() of a loss say that the weights are packed; torch would say that nothing requires a gradient."""
    loss = getattr(output, "loss", None)
    if loss is not None and torch.is_grad_enabled():
        loss.requires_grad_().register_hook(lambda gradient: refuse_packed(model, "trained"))


def packed_layers(model: nn.Module) -> Iterator[PackedLinear]:
    return (layer for layer in model.modules() if isinstance(layer, PackedLinear))


def why_not_packed(model: nn.Module) -> str | None:
    """The reason why the weights of a model cannot be packed, as a sentence with the remedy, or None."""
    if not torch.backends.mkldnn.is_available():
        return "pack_for_cpu() needs a torch with oneDNN, which this one lacks; leave the call out."
    for name, weight in model.named_parameters():
        if weight.device.type != "cpu" or type(weight.data) is not torch.Tensor:
            return (
                f"pack_for_cpu() needs whole weights on a CPU, and {name} is elsewhere, in parts or quantized; leave "
                "the call out."
            )
    dtypes = [torch.float32, *([torch.bfloat16] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else [])]
    for parent, name in packable(model):
        dtype = getattr(parent, name).weight.dtype
        if dtype not in dtypes:
            return (
                f"pack_for_cpu() takes weights in {' or '.join(map(str, dtypes))} on this CPU, and these are in "
                f"{dtype}; load the model with another dtype, or leave the call out."
            )
    return None


def packable(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """The linear layers that are worth packing, by parent and name.

    (PEFT reads the weights of the layers of an adapter, which it keeps in a ModuleDict.)
    """
    return [
        (parent, name)
        for parent in model.modules()
        if not isinstance(parent, nn.ModuleDict)
        for name, layer in parent.named_children()
        if type(layer) is nn.Linear and layer.weight.numel() >= SMALLEST
    ]


def pack_linear_layers(model: nn.Module) -> None:
    """Packs the weights of the linear layers of a model in place, one after another; it can only decode afterwards.

    Raises:
        `ValueError`: if they cannot be packed.
    """
    if reason := why_not_packed(model):
        raise ValueError(reason)
    for parent, name in packable(model):
        setattr(parent, name, PackedLinear(getattr(parent, name)))
    model.requires_grad_(False)
    model.register_forward_hook(refuse_backward)
    model.eval()
