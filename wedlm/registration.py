"""Makes transformers' Auto classes know WeDLM, without importing transformers for those who never use it."""

import sys
from functools import partial
from importlib.abc import MetaPathFinder

AUTO_MODULE = "transformers.models.auto.configuration_auto"  # every Auto class needs it


def register_auto_classes() -> None:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig

    AutoConfig.register(WeDLMConfig.model_type, WeDLMConfig, exist_ok=True)
    for mapping, class_name in ((MODEL_MAPPING, "WeDLMModel"), (MODEL_FOR_CAUSAL_LM_MAPPING, "WeDLMForCausalLM")):
        # By name, the way transformers lists its own models, so that the class is imported when it is asked for:
        # AutoModel.register() wants the class itself, and that costs every process two seconds.
        mapping._model_mapping[WeDLMConfig.model_type] = class_name
        mapping._reverse_config_mapping[WeDLMConfig.__name__] = WeDLMConfig.model_type
        mapping._modules[WeDLMConfig.model_type] = sys.modules["wedlm"]


class RegisterAfterImport(MetaPathFinder):
    """Registers once the Auto classes are imported and no module of transformers or wedlm is still half-way in.

    Half-way modules matter: modeling files import the Auto classes themselves, and ours import modeling files.
    """

    def __init__(self):
        self.half_way = []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ("transformers", "wedlm"):
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader.exec_module = partial(self.exec_module, spec.loader.exec_module)
        return spec

    def exec_module(self, exec_module, module):
        self.half_way.append(module)
        try:
            exec_module(module)
        finally:
            self.half_way.pop()
        if AUTO_MODULE in sys.modules and not self.half_way and self in sys.meta_path:
            sys.meta_path.remove(self)
            register_auto_classes()


def register_when_transformers_is_used() -> None:
    if AUTO_MODULE in sys.modules:
        register_auto_classes()
    else:
        sys.meta_path.insert(0, RegisterAfterImport())
