"""The model of the command line, in place of transformers' manager of many models."""

import time

from transformers import PreTrainedTokenizerBase
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import Modality

from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM


class OneModel(ModelManager):
    """A model that is loaded already; no request can load another.

    Args:
        name (`str`): The name that requests call it by.
        model (`WeDLMForCausalLM`): The model.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
    """

    def __init__(self, name: str, model: WeDLMForCausalLM, tokenizer: PreTrainedTokenizerBase):
        self.model, self.tokenizer, self.created = model, tokenizer, int(time.time())
        super().__init__(force_model=name)

    @staticmethod
    def process_model_name(model_id: str) -> str:
        return model_id

    @staticmethod
    def get_model_modality(model: WeDLMForCausalLM, processor=None) -> Modality:
        return Modality.LLM

    def load_model_and_processor(self, model_id_and_revision: str, progress_callback=None, **kwargs):
        if model_id_and_revision != self.force_model:
            raise ValueError(f"This server has {self.force_model} only, not {model_id_and_revision}.")
        if progress_callback is not None:
            progress_callback({"status": "ready", "model": self.force_model, "cached": True})
        return self.model, self.tokenizer

    def get_gen_models(self) -> list[dict]:
        return [{"id": self.force_model, "object": "model", "created": self.created, "owned_by": "wedlm"}]
