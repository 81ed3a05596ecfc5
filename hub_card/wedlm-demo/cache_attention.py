"""Attention of a forward's queries over a RowCache: it reads keys and values where they lie."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedConfig
from transformers.integrations.flash_attention import get_target_dtype
from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

from .transformers_internals import attention_of

MOST_QUERIES = 64  # up to so many, query heads that share keys become further queries


def seen_entries(last: torch.Tensor, queries_seen: torch.Tensor | None, live: int) -> torch.Tensor:
    """Says which of the first `live` entries each query sees.

    Args:
        last (`torch.LongTensor` of shape `(batch, queries)`): The entry of each query, the last one that it may see.
        queries_seen (`torch.LongTensor` of shape `(batch, queries)`, *optional*): See `WindowQueries`.
        live (`int`): The number of entries.

    Returns:
        `torch.BoolTensor` of shape `(batch, 1, queries, live)`.
    """
    entries = torch.arange(live, device=last.device)
    is_seen = entries <= last[..., None]
    if queries_seen is not None:
        query = entries - last[:, :1]  # [batch, live]: the query at each entry, negative for those of earlier forwards
        same_number = queries_seen.gather(1, query.clamp(0, queries_seen.shape[1] - 1))[:, None]
        is_seen &= (same_number == queries_seen[..., None]) | (query[:, None] < queries_seen[..., None])
    return is_seen[:, None]


def score_bias(
    is_seen: torch.Tensor | None, num_queries: int, config: PreTrainedConfig, like: torch.Tensor
) -> torch.Tensor | None:
    """Turns what queries see into what `attend` takes: a bias that is added to the scores.

    The query heads that share a head of keys become further queries, so the bias is repeated for each. A prompt has
    too many queries for that, its mask would be the larger tensor: the mask stays as it is.

    Args:
        is_seen (`torch.BoolTensor` of shape `(batch, 1, queries, entries)`, *optional*): None stands for plain
            causality among the queries.
        num_queries (`int`): The number of queries.
        config (`PreTrainedConfig`): The model's config.
        like (`torch.Tensor`): A tensor with the dtype and device of the scores.
    """
    is_eager = attention_of(config) == "eager"
    if is_seen is None:
        if not is_eager:
            return None
        is_seen = torch.ones(1, 1, num_queries, num_queries, dtype=torch.bool, device=like.device).tril()
    if num_queries > MOST_QUERIES and not is_eager:
        return is_seen
    bias = torch.where(is_seen, like.new_zeros(()), torch.finfo(like.dtype).min)
    return bias if is_eager else bias.repeat(1, 1, config.num_attention_heads // config.num_key_value_heads, 1)


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    """Attends to the entries of a cache by sdpa.

    With a mask, sdpa has no fast kernel for query heads that share keys. So these heads become further queries of one
    head, instead of copies of its keys.

    Args:
        query (`torch.Tensor` of shape `(batch, heads, queries, head_dim)`): The queries.
        keys, values (`torch.Tensor` of shape `(batch, key_value_heads, entries, head_dim)`): The entries.
        bias (`torch.Tensor`, *optional*): As `score_bias` makes it. None: the queries are the only entries, and
            causal.
        scaling (`float`): The factor of the scores.
        dropout (`float`): The share of dropped scores.

    Returns:
        `torch.Tensor` of shape `(batch, heads, queries, head_dim)`.
    """
    more = {"dropout_p": dropout, "scale": scaling}
    if bias is None:
        return scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True, **more)
    batch, heads, num_queries, width = query.shape
    if bias.dtype == torch.bool:
        keys, values = (states.repeat_interleave(heads // states.shape[1], dim=1) for states in (keys, values))
    else:
        query, bias = query.reshape(batch, keys.shape[1], -1, width), bias.to(query.dtype)
    attended = scaled_dot_product_attention(query, keys, values, attn_mask=bias, **more)
    return attended.reshape(batch, heads, num_queries, width)


def attend_up_to(
    ends: torch.Tensor, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, module: nn.Module
) -> torch.Tensor:
    """Attends by flash-attn: the last query of row b sees the first `ends[b]` entries, and no further one is read."""
    attention = flash_function(module.config)
    dtype = (
        get_target_dtype(query, module) or query.dtype
    )  # flash-attn takes no float32, which PEFT and norms may make
    query, keys, values = (states.transpose(1, 2).to(dtype) for states in (query, keys, values))
    ends = ends.to(query.device)
    attended = attention(query, keys, values, cache_seqlens=ends, softmax_scale=module.scaling, causal=True)
    return attended.transpose(1, 2)


def flash_function(config: PreTrainedConfig) -> Callable | None:
    """flash-attn's function for caches, from the version or kernel that the model is set to; None if it has none."""
    return lazy_import_flash_attention(attention_of(config))[0][2]
