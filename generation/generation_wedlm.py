from transformers import GenerationMixin, LogitsProcessorList, SuppressTokensLogitsProcessor


class WeDLMGenerationMixin(GenerationMixin):
    """`generate()` of a WeDLM model: token-by-token decoding that never produces the MASK token."""

    def _get_logits_processor(self, *args, **kwargs) -> LogitsProcessorList:
        processors = super()._get_logits_processor(*args, **kwargs)
        mask_token_id = self.config.mask_token_id
        if mask_token_id is not None:
            # First, so that no later processor sees a score for MASK.
            processors.insert(0, SuppressTokensLogitsProcessor([mask_token_id], device=self.device))
        return processors
