"""Registers WeDLM with transformers' Auto classes, generate() and PEFT, importing none before somebody else does."""

import importlib
import sys
from collections.abc import Callable
from functools import wraps
from importlib.abc import MetaPathFinder
from inspect import signature
from types import ModuleType
from typing import Any

from wedlm.checkpoints.idlm import SDAR
from wedlm.modeling_wedlm.model_type import MODEL_TYPE

CONFIG_CLASS = "WeDLMConfig"
CONFIG_MODULE = "transformers.models.auto.configuration_auto"
MODEL_MODULE = "transformers.models.auto.modeling_auto"
PEFT_MODULE = "peft"
STRATEGY_MODULE = "wedlm.generation.custom_generate"
BATCHING_MODULE = "wedlm.generation.generation_wedlm"
GENERATION_MODULE = "transformers.generation.utils"
MODULES = (CONFIG_MODULE, MODEL_MODULE, PEFT_MODULE, GENERATION_MODULE)


def register(module: ModuleType) -> None:
    """Registers the classes by name, as transformers lists its own; the Auto classes import them at their first use.

    The public AutoModel.register() takes the class itself, whose imports would cost every process two seconds.
    """
    if module.__name__ == PEFT_MODULE:
        importlib.import_module("wedlm.training.draft_lora")  # it registers draft adapters
    elif module.__name__ == GENERATION_MODULE:
        take_decoding(module.GenerationMixin)
    elif module.__name__ == CONFIG_MODULE:
        module.CONFIG_MAPPING._mapping[MODEL_TYPE] = CONFIG_CLASS
        module.CONFIG_MAPPING._modules[MODEL_TYPE] = sys.modules["wedlm"]
        module.CONFIG_MAPPING._mapping[SDAR] = "SDARConfig"  # which makes a WeDLMConfig
        module.CONFIG_MAPPING._modules[SDAR] = sys.modules["wedlm"]
    else:
        register_model(module.MODEL_MAPPING, "WeDLMModel")
        register_model(module.MODEL_FOR_CAUSAL_LM_MAPPING, "WeDLMForCausalLM")


def register_model(mapping, class_name):
    mapping._model_mapping[MODEL_TYPE] = class_name
    mapping._reverse_config_mapping[CONFIG_CLASS] = MODEL_TYPE
    mapping._modules[MODEL_TYPE] = sys.modules["wedlm"]


def take_decoding(mixin: type) -> None:
    """Lets `generate()` of every model take `decoding="verified"`, `custom_generate="wedlm"` and `wedlm.verified`.

    transformers refuses `decoding` and "wedlm". It takes a function, but hands it neither the streamer nor the
    tokenizer of stop strings. Where `generate_batch()` and `init_continuous_batching()` are asked for a decoding, they
    take our running batch. All other calls are transformers' own.
    """
    own, methods = mixin.generate, (mixin.generate_batch, mixin.init_continuous_batching)

    @wraps(own)
    def generate(self, *args, **kwargs):
        if not is_asked(own, self, args, kwargs):
            return own(self, *args, **kwargs)
        return importlib.import_module(STRATEGY_MODULE).answer(self, own, args, kwargs)

    mixin.generate = generate
    for method in methods:
        setattr(mixin, method.__name__, with_our_batch(method))


def with_our_batch(own: Callable) -> Callable:
    @wraps(own)
    def method(self, *args, **kwargs):
        if not is_asked(own, self, args, kwargs):
            return own(self, *args, **kwargs)
        ours = importlib.import_module(BATCHING_MODULE).WeDLMGenerationMixin
        return getattr(ours, own.__name__)(self, *args, **kwargs)

    return method


def is_asked(own: Callable, model: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a call of transformers' own method asks for a decoding of this package."""
    given = signature(own).bind_partial(model, *args, **kwargs).arguments
    given |= given.get("kwargs", {})
    strategy = given.get("custom_generate")
    if strategy is None and model.config.model_type != MODEL_TYPE:
        configs = (given.get("generation_config"), model.generation_config)
        return "decoding" in given or any(getattr(config, "decoding", None) for config in configs)
    return strategy == "wedlm" or STRATEGY_MODULE in {each.__module__ for each in type(strategy).__mro__}


class RegisterOnImport(MetaPathFinder):
    """Calls `register` when one of the modules has been executed, before its importer can use it."""

    def find_spec(self, name, path=None, target=None):
        if name not in MODULES:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module):
                execute(module)
                register(module)

            spec.loader.exec_module = execute_and_register
        return spec


def register_when_transformers_is_used() -> None:
    """Registers at once with modules that are imported already, and with the others when they are."""
    sys.meta_path.insert(0, RegisterOnImport())
    for name in MODULES:
        if name in sys.modules:
            register(importlib.import_module(name))  # waits for a thread that is importing it
