"""Measures what one more query adds to a forward, as a share of a forward with one."""

from statistics import median

import torch
from transformers import PreTrainedModel

from wedlm.evaluation.turns import seconds_in_turns
from wedlm.generation.decoding import forward_queries
from wedlm.generation.row_cache import RowCache
from wedlm.generation.window import Text, WindowQueries

NUM_QUERIES = (1, 8, 16)
NUM_CACHED = 64  # tokens
NUM_ROUNDS = 15


def query_cost_of(seconds: dict[int, float]) -> float:
    """The slope of the line through the seconds by the number of queries, divided by the seconds of one query.

    query_cost_of({1: 2.0, 8: 2.7, 16: 3.5}) == 0.05
    """
    mean_number, mean_seconds = (sum(values) / len(seconds) for values in (seconds, seconds.values()))
    rise = sum((number - mean_number) * (each - mean_seconds) for number, each in seconds.items())
    slope = rise / sum((number - mean_number) ** 2 for number in seconds)
    return round(max(0.0, slope / seconds[1]), 3)


@torch.inference_mode()
def measured_query_cost(model: PreTrainedModel) -> float:
    """The `query_cost` of verified decoding with this model on this machine.

    Args:
        model (`PreTrainedModel`): A model as it decodes, with its draft adapter.
    """
    device = torch.device("cpu") if model.device.type == "meta" else model.device
    cache = RowCache(1, NUM_CACHED + max(NUM_QUERIES), device)

    def queries_at(begin: int, number: int) -> WindowQueries:
        """Text, and as many MASKs behind it; the logits of all are read."""
        tokens = torch.arange(number, device=device) % model.config.mask_token_id
        tokens[(number + 1) // 2 :] = model.config.mask_token_id
        text = Text(tokens[None], tokens.new_tensor([number]), tokens.new_tensor([begin]))
        return WindowQueries.of_text(text)._replace(logits_indices=torch.arange(number, device=device)[None])

    def forward(number: int) -> None:
        seen = torch.arange(1, number + 1, device=device)[None]  # so that a mask is made, as in decoding
        queries = queries_at(NUM_CACHED, number)._replace(visible_prefix=seen)
        forward_queries(model, queries, cache, NUM_CACHED + number)

    forward_queries(model, queries_at(0, NUM_CACHED), cache, NUM_CACHED)
    cache.commit(torch.tensor([NUM_CACHED], device=device))
    calls = {number: lambda number=number: forward(number) for number in NUM_QUERIES}
    seconds = seconds_in_turns(calls, device, NUM_ROUNDS, num_warm_up=3)
    return query_cost_of({number: median(values) for number, values in seconds.items()})
