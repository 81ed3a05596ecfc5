"""Attention of a forward's rows over a RowCache, which reads keys and values where they lie."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedConfig
from transformers.integrations.flash_attention import get_target_dtype
from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

MOST_ROWS = 64  # whose query heads become rows


def seen_entries(last: torch.Tensor, queries_seen: torch.Tensor | None, live: int) -> torch.Tensor:
    """Which of the first `live` entries each row sees, `[batch, 1, rows, live]`.

    A row stands at entry `last`, `[batch, rows]`, and sees what is before it, in other rows as `queries_seen` says (see
    `WindowQueries`).
    """
    entries = torch.arange(live, device=last.device)
    is_seen = entries <= last[..., None]
    if queries_seen is not None:
        row = entries - last[:, :1]  # [batch, live]: of an entry, negative where it was there before
        with_same = queries_seen.gather(1, row.clamp(0, queries_seen.shape[1] - 1))[:, None] == queries_seen[..., None]
        is_seen &= with_same | (row[:, None] < queries_seen[..., None])
    return is_seen[:, None]


def row_bias(
    is_seen: torch.Tensor | None, num_rows: int, config: PreTrainedConfig, like: torch.Tensor
) -> torch.Tensor | None:
    """What `attend` takes for `is_seen`, `[batch, 1, rows, entries]`, of which None stands for plain causality.

    It is added to the scores, once for each of the query heads that share a head of keys, as these become rows. (Many
    rows, of a prompt, stay as they are: their mask would be the larger thing.)
    """
    is_eager = config._attn_implementation == "eager"
    if is_seen is None:
        if not is_eager:
            return None
        is_seen = torch.ones(1, 1, num_rows, num_rows, dtype=torch.bool, device=like.device).tril()
    if num_rows > MOST_ROWS and not is_eager:
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
    """What the rows of query, `[batch, heads, rows, head_dim]`, take from the entries of a cache; without a bias they
    are its only ones, and causal.

    With a mask there is no kernel for query heads that share keys but the plainest.
    """
    more = {"dropout_p": dropout, "scale": scaling}
    if bias is None:
        return scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True, **more)
    batch, heads, num_rows, width = query.shape
    if bias.dtype == torch.bool:
        keys, values = (states.repeat_interleave(heads // states.shape[1], dim=1) for states in (keys, values))
    else:
        query, bias = query.reshape(batch, keys.shape[1], -1, width), bias.to(query.dtype)
    attended = scaled_dot_product_attention(query, keys, values, attn_mask=bias, **more)
    return attended.reshape(batch, heads, num_rows, width)


def attend_up_to(
    ends: torch.Tensor, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, module: nn.Module
) -> torch.Tensor:
    """The same by flash-attn: the last row of batch row b sees its first `ends[b]` keys, and no other key is read."""
    attention = flash_function(module.config)
    dtype = get_target_dtype(query, module) or query.dtype  # it knows no float32, which PEFT and norms may make
    query, keys, values = (states.transpose(1, 2).to(dtype) for states in (query, keys, values))
    ends = ends.to(query.device)
    return attention(query, keys, values, cache_seqlens=ends, softmax_scale=module.scaling, causal=True).transpose(
        1, 2
    )


def flash_function(config: PreTrainedConfig) -> Callable | None:
    """flash-attn's function for caches, of the version or the kernel that is chosen, if it has one."""
    return lazy_import_flash_attention(config._attn_implementation)[0][2]
