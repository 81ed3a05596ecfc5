"""How the steps of one call decode: the settings that they read, resolved once."""

import math
from typing import NamedTuple

import torch
from transformers import GenerationConfig, LogitsProcessorList

from .look_up import MOST_MATCHED
from .reader_kinds import reads_no_text
from .step_plan import relative_cost
from .transformers_internals import end_tokens_of


class Policy(NamedTuple):
    """The settings of one call.

    Args:
        window_size (`int`): Slots behind the committed text.
        mask_token_id (`int`): The MASK token.
        end_tokens (`torch.LongTensor` of shape `(n,)`): The tokens that end a text; empty where there is none.
        entropy_threshold (`torch.FloatTensor` of shape `()`, *optional*): In nats; a tensor, so that one compiled step
            serves all values.
        distance_penalty (`torch.FloatTensor` of shape `()`): Likewise.
        processors (`LogitsProcessorList`): The logits processors.
        left_to_right (`bool`): Whether a processor reads the text, so that each token waits for those before it.
        num_looked_up (`int`): The most drafts that are looked up in the text, prompt_lookup_num_tokens of the call.
        most_matched (`int`): The most last tokens that are compared for that, max_matching_ngram_size of the call.
        noise (`torch.FloatTensor` of shape `(batch, slots, vocabulary)`, *optional*): The values of a `SlotNoise`,
            where tokens are drawn.
        acceptance_margin (`torch.FloatTensor` of shape `()`, *optional*): How far below the best score that of an
            accepted draft may be, which is -log(acceptance_ratio); None where only the best token is accepted.
        query_cost (`float`): The query_cost of the call.
        relative_cost (`torch.FloatTensor` of shape `()`, *optional*): What one more query in each row costs, as a
            share of the forward.
    """

    window_size: int
    mask_token_id: int
    end_tokens: torch.Tensor
    entropy_threshold: torch.Tensor | None
    distance_penalty: torch.Tensor
    processors: LogitsProcessorList
    left_to_right: bool
    num_looked_up: int = 0
    most_matched: int = MOST_MATCHED
    noise: torch.Tensor | None = None
    acceptance_margin: torch.Tensor | None = None
    query_cost: float = 0.0
    relative_cost: torch.Tensor | None = None

    @classmethod
    def of(
        cls,
        generation_config: GenerationConfig,
        processors: LogitsProcessorList,
        window_size: int,
        mask_token_id: int,
        device: torch.device,
        query_cost: float = 0.0,
    ) -> "Policy":
        """Resolves the settings, for one row."""
        end_tokens, threshold = end_tokens_of(generation_config), generation_config.entropy_threshold
        most_matched, num_looked_up = generation_config.max_matching_ngram_size, generation_config.num_looked_up
        num_looked_up = window_size - 1 if num_looked_up is None else num_looked_up
        margin = -math.log(generation_config.acceptance_ratio)
        return cls(
            window_size=window_size,
            mask_token_id=mask_token_id,
            end_tokens=torch.empty(0, dtype=torch.long, device=device) if end_tokens is None else end_tokens,
            entropy_threshold=None if threshold is None else torch.full((), float(threshold), device=device),
            distance_penalty=torch.full((), float(generation_config.distance_penalty), device=device),
            processors=processors,
            left_to_right=not all(map(reads_no_text, processors)),
            num_looked_up=num_looked_up,
            most_matched=MOST_MATCHED if most_matched is None else min(most_matched, MOST_MATCHED),
            acceptance_margin=torch.full((), margin, device=device) if margin > 0 else None,
            query_cost=query_cost,
        ).among(1)

    def among(self, num_rows: int) -> "Policy":
        """The settings for steps over so many rows."""
        cost = relative_cost(self.query_cost, num_rows)
        return self._replace(relative_cost=torch.full((), cost, dtype=torch.float32, device=self.end_tokens.device))
