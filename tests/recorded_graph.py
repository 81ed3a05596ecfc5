"""A graph on the CPU that repeats operations on the tensors that it was captured with, as a CUDA graph does."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


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
