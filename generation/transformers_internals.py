"""What this package takes from transformers and torch that is private, or that differs between their versions.

An upgrade of transformers is checked here: all names exist, with the meaning given, in 5.17.0 to 5.24.0 and torch 2.11
to 2.15. Each private name is read in one function, with its reason.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature

import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.cache_utils import Cache
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import output_capturing
from transformers.utils.deprecation import deprecate_kwarg

from wedlm.generation.package import NEWEST_TRANSFORMERS, OLDEST_TRANSFORMERS, VERSION

# --- The cache ---

# transformers 5.24 renamed past_key_values to cache: the argument of forward() and generate(), the key of model_kwargs
# and the field of outputs. Our signatures keep the old name while older versions are supported, because these pass the
# memory of their continuous batching as `cache`.
CACHE = "cache" if "cache" in signature(CausalLMOutputWithPast).parameters else "past_key_values"


def deprecates_old_name(function: Callable) -> Callable:
    """Lets a function take past_key_values for cache, with the warning that transformers' own functions give."""
    if CACHE == "past_key_values":
        return function
    return deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")(function)


def takes_cache(forward: Callable) -> Callable:
    """Lets a forward with the argument past_key_values take it by the name that this version of transformers uses.

    A cache by a name that the forward does not know is refused: **kwargs would swallow it.
    """
    declared = signature(forward)
    names = {*declared.parameters, CACHE}

    @wraps(forward)
    def with_cache(*args, **kwargs):
        for name, value in kwargs.items():
            if isinstance(value, Cache) and name not in names:
                raise TypeError(f"This forward takes a cache as {CACHE}=, not as {name}=; {REMEDY}")
        if CACHE in kwargs:
            kwargs["past_key_values"] = kwargs.pop(CACHE)
        return forward(*args, **kwargs)

    parameters = declared.parameters.values()
    renamed = [each.replace(name=CACHE) if each.name == "past_key_values" else each for each in parameters]
    with_cache.__signature__ = declared.replace(parameters=renamed)  # type: ignore[attr-defined]
    return deprecates_old_name(with_cache)


REMEDY = (
    f"the code of wedlm {VERSION} was tested with transformers {OLDEST_TRANSFORMERS} to {NEWEST_TRANSFORMERS}, and "
    f"this is {transformers.__version__}: install one of those, or a newer wedlm, whose `wedlm export` renews the "
    "code beside a checkpoint."
)


def check_is_filled(is_filled: bool) -> None:
    """Refuses to go on behind a first forward that has put nothing into the cache."""
    if not is_filled:
        raise RuntimeError(f"The first forward left the cache empty, so later ones would not see the text; {REMEDY}")


def drops_cache(model):
    """Whether forwards of this model ignore a cache, as gradient checkpointing lets them."""
    is_recording = CACHE == "past_key_values" or torch.is_grad_enabled()  # from 5.24 on, only where gradients are
    return (
        model.training
        and is_recording
        and any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    )


# --- Training arguments ---


def rename_checkpointing(arguments):
    """Moves gradient_checkpointing to activation_checkpointing, its name since transformers 5.23, where that is known.

    A config for all versions says the old name, of which newer versions would warn.
    """
    for old in ("gradient_checkpointing", "gradient_checkpointing_kwargs"):
        new = old.replace("gradient", "activation")
        if hasattr(arguments, new) and getattr(arguments, new) is None:
            setattr(arguments, new, getattr(arguments, old))


# --- The generation config that generate() has resolved ---


def resolved_generation_config(model, generation_config=None, **arguments):
    """The generation config that `model.generate(**arguments)` would decode with; refuses what generate() refuses."""
    return model._prepare_generation_config(generation_config, **arguments)[0]


def end_tokens_of(generation_config):
    """`[n]` tensor of the end tokens, or None; eos_token_id itself may be one number, a list or None."""
    return generation_config._eos_token_tensor


def pad_token_of(generation_config):
    """Tensor of the padding token, or None; transformers takes an end token where pad_token_id is None."""
    return generation_config._pad_token_tensor


def dropped_mask_length(generation_config):
    """Columns of an attention mask of ones that transformers has dropped, or None where it dropped none."""
    return getattr(generation_config, "_mask_length", None)


def keep_on_save(generation_config):
    """Lets `save_pretrained` write all fields: a config that says it came from the model config loses unknown ones."""
    generation_config._from_model_config = False


def processors_of(model, generation_config, input_ids):
    """The logits processors that generate() makes of a generation config for a prompt."""
    model._prepare_special_tokens(generation_config, device=input_ids.device)  # tensors that processors need
    return model._get_logits_processor(
        generation_config,
        input_ids_seq_length=input_ids.shape[1],
        encoder_input_ids=input_ids,
        device=input_ids.device,
    )


# --- The loop ---


def has_unfinished_rows(model, num_alive, synced_gpus, device):
    """Whether to go on: while rows are alive here or, with synced_gpus, on any rank; every rank calls it as often."""
    return model._has_unfinished_sequences(num_alive == 0, synced_gpus, device=device)


def is_passed_by_caller(cache):
    """Whether generate() was given this cache by its caller, who then expects it to hold the text."""
    return getattr(cache, "_is_user_defined", False)


def own_loop(model):
    """transformers' own loop of greedy decoding and sampling."""
    return model._sample


def waits_for_other_ranks(model):
    """The default of synced_gpus, which transformers computes for its own loops and not for a function."""
    is_sharded = is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
    return is_sharded and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def has_weights_elsewhere(module):
    """Whether autograd has to see a call of the module itself: FSDP and ZeRO-3 gather its weights for each call, and a
    replica of DataParallel holds copies that parameters() does not list."""
    is_gathered = is_deepspeed_zero3_enabled() or is_fsdp_managed_module(module)
    return is_gathered or getattr(module, "_is_replica", False)


def keeps_state(model):
    """Whether a model keeps a state besides its cache, which cannot be taken back, as recurrent models do."""
    return getattr(model, "_is_stateful", False)


def would_compile(model, cache, generation_config):
    """Whether transformers would compile the forward of its own loop for this cache on this device."""
    return model._valid_auto_compile_criteria({CACHE: cache}, generation_config)


def compile_on_any_device(compile_config):
    """Lifts transformers' rule that a compile_config counts on a GPU only."""
    compile_config._compile_all_devices = True


def has_hooks_on(modules):
    """Whether any of these modules has a forward hook that may count on the rows of the batch.

    A forward with output_hidden_states=True leaves hooks of transformers' own on the modules. They record nothing
    unless a later forward asks for it.
    """
    for module in modules:
        if module._forward_pre_hooks or module._forward_hooks:
            for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
                if getattr(hook, "__module__", None) != "transformers.utils.output_capturing":
                    return True
    return False


def records_outputs():
    """Whether the forward at hand was asked for hidden states or attentions, which those hooks record."""
    return bool(output_capturing._active_collector.get())


# --- Attention ---


def attention_of(config):
    """The attention implementation that a model was set to; the public field is write-only."""
    return config._attn_implementation


# --- Products on a CPU ---


def has_onednn():
    """Whether torch contains oneDNN, and its product of float32."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_linear(x, weight, bias=None):
    """The product of a linear layer by oneDNN, on the weights as they lie; torch takes MKL's for float32."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


# --- torch.compile ---


def keep_address(tensor):
    """Tells CUDA graphs that a buffer stays where it is; torch has no public name for it."""
    torch._dynamo.mark_static_address(tensor)


def fix_length(tensor, dim):
    """Lets a compiled function have a graph for each length of this dimension."""
    torch._dynamo.mark_static(tensor, dim)


def allow_any_length(tensor, dim):
    """Tells torch.compile that the length of a dimension varies, so that one graph serves all lengths."""
    torch._dynamo.mark_dynamic(tensor, dim)


# --- CUDA graphs ---


class Waits(TorchDispatchMode):
    """Collects the operations for which the host waits for the device: no graph can hold them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if shape_depends_on_values(func, args) or is_copy_between_devices(func, args, output):
            self.seen.append(str(func))
        return output


def num_changes(tensor):
    """How often a tensor was changed in place; one of inference mode counts none."""
    return 0 if tensor.is_inference() else tensor._version


def shape_depends_on_values(func, args):
    """Whether the host has to wait for the values of an operator's inputs, as .item() and nonzero() do."""
    if func is torch.ops.aten.index.Tensor:  # by places, or by booleans
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.isdisjoint(func.tags)


def is_copy_between_devices(func, args, output):
    if func.overloadpacket not in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
        return False
    return any(each.device != output.device for each in args[:2] if isinstance(each, Tensor))
