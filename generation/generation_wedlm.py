from transformers import GenerationMixin, LogitsProcessorList, SuppressTokensLogitsProcessor


class WeDLMGenerationMixin(GenerationMixin):
    """`generate()` of a WeDLM model: token-by-token decoding that never produces the MASK token."""

    def _get_logits_processor(self, *args, device=None, **kwargs) -> LogitsProcessorList:
        processors = super()._get_logits_processor(*args, device=device, **kwargs)
        if self.config.mask_token_id is not None:
            # First, so that no later processor sees a score for MASK. (An offloaded model's own device is meta.)
            processors.insert(
                0, SuppressTokensLogitsProcessor([self.config.mask_token_id], device=device or self.device)
            )
        return processors
