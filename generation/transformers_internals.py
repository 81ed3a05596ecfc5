"""The private names of transformers and torch that this package reads, each in one function with its reason.

An upgrade of transformers is checked here: all names exist, with the meaning given, in 5.17.0 to 5.23.0 and torch 2.11
to 2.13. The module imports neither, because registration uses it before anybody has imported transformers.

The methods and attributes that our classes override, and that transformers calls, are in `OVERRIDDEN`.
"""

OVERRIDDEN = {
    "_sample": "the loop of greedy decoding and sampling; parallel decoding is another loop",
    "_prepare_generation_config": "resolves generation_config and keyword arguments; some parameters are ours",
    "_extract_generation_mode_kwargs": "sorts the arguments; a function that decodes keeps its tokenizer",
    "_validate_generation_mode": "refuses what a decoding does not offer, before anything is computed",
    "_get_logits_processor": "makes the processors; MASK is suppressed in front of and behind them",
    "_prepare_cache_for_generation": "makes the cache; static steps have their own",
    "_run_generation_loop": "the thread of continuous batching; a running batch of parallel decodings has its own",
    "_no_split_modules": "device_map and FSDP keep a decoder layer whole",
    "_apply": "moves and casts all parameters, which packed weights are not",
    "_can_record_outputs": "the layers whose hidden states and attentions forward may return",
}


# --- The generation config that generate() has resolved ---


def resolved_generation_config(model, **arguments):
    """The generation config that `model.generate(**arguments)` would decode with; refuses what generate() refuses."""
    return model._prepare_generation_config(None, **arguments)[0]


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


def would_compile(model, cache, generation_config):
    """Whether transformers would compile the forward of its own loop for this cache on this device."""
    return model._valid_auto_compile_criteria({"past_key_values": cache}, generation_config)


def compile_on_any_device(compile_config):
    """Lifts transformers' rule that a compile_config counts on a GPU only."""
    compile_config._compile_all_devices = True


def has_hooks(model):
    """Whether any module has a forward hook that may count on the rows of the batch.

    A forward with output_hidden_states=True leaves hooks of transformers' own on the modules. They record nothing
    unless a later forward asks for it.
    """
    hooks = (
        hook
        for module in model.modules()
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    )
    return any(getattr(hook, "__module__", None) != "transformers.utils.output_capturing" for hook in hooks)


# --- Attention ---


def attention_of(config):
    """The attention implementation that a model was set to; the public field is write-only."""
    return config._attn_implementation


# --- torch.compile ---


def keep_address(tensor):
    """Tells CUDA graphs that a buffer stays where it is; torch has no public name for it."""
    import torch

    torch._dynamo.mark_static_address(tensor)


def fix_length(tensor, dim):
    """Lets a compiled function have a graph for each length of this dimension."""
    import torch

    torch._dynamo.mark_static(tensor, dim)


def allow_any_length(tensor, dim):
    """Tells torch.compile that the length of a dimension varies, so that one graph serves all lengths."""
    import torch

    torch._dynamo.mark_dynamic(tensor, dim)


# --- The Auto classes ---


def enter_config_class(mapping, model_type, class_name, package):
    """Enters a config class by name into CONFIG_MAPPING, as transformers lists its own: it is imported when asked for.

    The public AutoConfig.register() takes the class itself, whose import costs every process two seconds.
    """
    mapping._mapping[model_type] = class_name
    mapping._modules[model_type] = package


def enter_model_class(mapping, model_type, config_class_name, class_name, package):
    """Enters a model class by name into one of the MODEL_..._MAPPINGs."""
    mapping._model_mapping[model_type] = class_name
    mapping._reverse_config_mapping[config_class_name] = model_type
    mapping._modules[model_type] = package
