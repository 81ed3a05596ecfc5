"""The formula that selects which open slots a forward fills."""

import torch


def entropy_of(logits: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of the softmax over the last dimension, in float32."""
    return torch.special.entr(logits.float().softmax(-1)).sum(-1)


def select_slots(
    entropy: torch.Tensor,
    slots: torch.Tensor,
    is_open: torch.Tensor,
    entropy_threshold: float | None,
    distance_penalty: float,
) -> torch.Tensor:
    """Selects the open slots to fill now; every row with an open slot fills at least one.

    adjusted = entropy + distance_penalty * (slot - first open slot)

    A slot is selected where adjusted < entropy_threshold. If there is none, or the threshold is None, the slot with
    the least adjusted entropy is selected, the first one on ties.

    Args:
        entropy (`torch.Tensor` of shape `(batch, slots)`): The entropy of each slot's prediction, in nats.
        slots (`torch.LongTensor` of shape `(batch, slots)`): The slots in ascending order, the first open one in
            front.
        is_open (`torch.BoolTensor` of shape `(batch, slots)`): False behind a row's last open slot.
        entropy_threshold (`float`, *optional*): In nats.
        distance_penalty (`float`): In nats for each slot of distance.

    Returns:
        `torch.BoolTensor` of shape `(batch, slots)`: The slots to fill.

    >>> select_slots(torch.tensor([[0.5, 0.1, 0.1]]), torch.tensor([[4, 5, 7]]), torch.ones(1, 3).bool(), 0.2, 0.02)
    tensor([[False,  True,  True]])
    >>> select_slots(torch.tensor([[0.5, 0.1, 0.1]]), torch.tensor([[4, 5, 7]]), torch.ones(1, 3).bool(), None, 0.02)
    tensor([[False,  True, False]])
    """
    adjusted = entropy + distance_penalty * (slots - slots[:, :1])
    adjusted = adjusted.masked_fill(~is_open, torch.inf)
    least = torch.zeros_like(is_open).scatter(-1, adjusted.argmin(-1, keepdim=True), True)
    if entropy_threshold is None:
        return least & is_open
    certain = adjusted < entropy_threshold
    return torch.where(certain.any(-1, keepdim=True), certain, least) & is_open


def run_lengths(selected: torch.Tensor, is_open: torch.Tensor) -> torch.Tensor:
    """Counts the slots selected without a gap from the first open one on, `[batch]`; at least one if any is open.

    >>> run_lengths(torch.tensor([[True, True, False, True], [False, True, True, True]]), torch.ones(2, 4).bool())
    tensor([2, 1])
    """
    return torch.maximum(selected.cumprod(-1).sum(-1), is_open[:, 0].long())
