"""A graph on the CPU that repeats operations on the tensors that it was captured with, as a CUDA graph does."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from wedlm.fused import native
from wedlm.generation import static_steps
from wedlm.modeling_wedlm import modeling_wedlm
from wedlm.training import draft_lora


def tensors_of(tree) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Tape(TorchDispatchMode):
    """Records the operations of a function, and takes back what they have written into tensors from outside."""

    def __init__(self):
        super().__init__()
        self.operations, self.before = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for parameter, given in zip(func._schema.arguments, args, strict=False):
            if parameter.alias_info is not None and parameter.alias_info.is_write:
                self.before.append((given, given.clone()))
        output = func(*args, **kwargs)
        there = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))  # memory, whatever tensors it gets
        self.operations.append((func, *there, output))
        return output

    def take_back(self) -> None:
        for tensor, before in reversed(self.before):
            tensor.copy_(before)

    def replay(self) -> None:
        for func, args, kwargs, recorded in self.operations:
            known = set(map(storage, tensors_of((args, kwargs))))
            output = func(*args, **kwargs)
            for old, new in zip(tensors_of(recorded), tensors_of(output), strict=True):
                if storage(old) not in known:  # no view, and nothing that was written in place
                    old.copy_(new)


def recorded_graph(captured: list):
    """What captures a step on the CPU, in place of `cuda_graph`; each graph is noted in `captured`."""

    def capture(step, device, pool):
        with Tape() as tape:
            status = step()
        tape.take_back()
        captured.append(tape)

        def replay():
            tape.replay()
            return status

        return replay

    return capture


@contextmanager
def captures_on_cpu() -> Iterator[list]:
    """Lets steps and forwards be captured on the CPU; yields the graphs."""
    graphs: list = []
    with (
        patch.dict(static_steps.CAPTURES, cpu=recorded_graph(graphs)),
        patch.object(native, "NUMBER", None),  # no operation of torch calls the products in C
        # On a CPU alone a draft adapter looks whether there is a MASK.
        patch.object(draft_lora, "are_known_to_be_true", lambda is_text: False),
        patch.object(modeling_wedlm, "are_known_to_be_true", lambda is_text: False),
    ):
        yield graphs
