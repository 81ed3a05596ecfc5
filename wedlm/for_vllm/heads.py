"""Heads made wider with zeros, for engines whose attention has some widths only; the logits stay the same.

RoPE turns channel i of a head together with channel i + width/2. So the zeros stand behind both halves of a head, and
another base of RoPE leaves the angles of the old channels as they were. Attention divides by the root of the width, so
the queries grow by the root of the ratio of widths. Where a norm follows, it sees as many zeros as the scale makes up
for, and the keys grow too, to be divided by their norm's weight.
"""

import re
from typing import NamedTuple

import torch
from torch.nn.functional import pad

WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # of vLLM's attention on a CPU


class Widening(NamedTuple):
    """The change of a model's heads from one width to another."""

    old: int
    new: int
    has_norms: bool  # of queries and keys

    def config(self, fields: dict) -> dict:
        """Returns a stock config.json with the new width."""
        return {**fields, "head_dim": self.new, "rope_theta": fields["rope_theta"] ** (self.new / self.old)}

    def weight(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a weight, or a matrix of a draft adapter, of the model with the new width.

        One that is scaled is in float32. A checkpoint in bfloat16 that is loaded in float32 loses nothing so; loaded
        in bfloat16, as its config.json says, its logits differ by about 1e-4.
        """
        found = re.search(r"\.([qkvo])_(proj|norm)\.(weight|bias|down|up)$", name)
        if found is None:
            return tensor
        which, kind, part = found.groups()
        if (which == "o") != (part == "down") and not (which == "o" and part == "weight"):
            return tensor  # the side of a product that has no heads
        scale = (self.new / self.old) ** 0.5
        if kind == "norm":
            return self.widen(tensor, 0).float() / scale if which == "k" else self.widen(tensor, 0)
        widened = self.widen(tensor, 1 if which == "o" else 0)
        return widened.float() * scale if which == "q" or which == "k" and self.has_norms else widened

    def widen(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        halves = tensor.unflatten(dim, (-1, self.old // 2))
        zeros = [0, 0] * (halves.dim() - dim - 2) + [0, (self.new - self.old) // 2]
        return pad(halves, zeros).flatten(dim, dim + 1)


def widening(fields: dict) -> Widening | None:
    """Returns the change that the heads of a stock config.json need for vLLM's attention on a CPU.

    None means that they need none, or that the change would alter the logits.
    """
    old = head_dim_of(fields)
    new = next((width for width in WIDTHS if width >= old), None)
    can_change = fields["model_type"] != "qwen2" and fields["rope_scaling"] is None and old % 2 == 0
    return Widening(old, new, fields["model_type"] == "qwen3") if can_change and new not in (None, old) else None


def head_dim_of(fields: dict) -> int:
    return fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
