"""Linear layers with int8 weights, one scale for each row."""

import torch
from torch import nn

from wedlm.fused.product import Product


class Int8Linear(nn.Module):
    """A linear layer whose weights are rounded to int8. Activations stay as they are."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())
        self.register_state_dict_pre_hook(refuse_saving)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        product = Product(self.weight, self.bias, scales=self.scales.float())
        if torch.is_grad_enabled() and hidden_states.requires_grad:
            return product.by_torch(hidden_states)
        return product(hidden_states)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def refuse_saving(*args) -> None:
    raise ValueError(
        'fuse(model, weights="int8") has rounded the weights of this model, so it cannot be saved; load it again.'
    )


def to_int8(module: nn.Module) -> None:
    """Replaces the linear layers in a module, but those of adapters, which PEFT keeps in a ModuleDict."""
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear and not isinstance(parent, nn.ModuleDict):
                setattr(parent, name, Int8Linear(layer))
