"""The memory of static steps, which a model keeps from call to call until `model.free_static_memory()`.

A call takes it away and brings it back when it has succeeded, so that two threads never share it.
"""

from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

KEPT: WeakKeyDictionary[PreTrainedModel, object] = WeakKeyDictionary()


def take_static_steps(model: PreTrainedModel):
    """The static steps that the model's last call left, or None. They are the caller's now."""
    return KEPT.pop(model, None)


def keep_static_steps(model: PreTrainedModel, steps) -> None:
    """Keeps static steps, with their window and cache, for the model's next call."""
    KEPT[model] = steps
