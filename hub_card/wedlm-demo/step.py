import torch
from transformers import PreTrainedModel
from transformers.utils.generic import is_flash_attention_requested

from .policy import Policy
from .row_attention import seen_entries
from .row_cache import RowCache
from .streaming import fill_selected
from .support import refuse_impossible
from .text_readers import TextReaders
from .verified import judge_and_draft
from .window import NO_SLOT, Status, Window, WindowQueries


def take_step(
    model: PreTrainedModel,
    policy: Policy,
    window: Window,
    rows: WindowQueries,
    cache: RowCache | None,
    live: int,
    readers: TextReaders | None = None,
) -> torch.Tensor:
    """One forward, which reads `live` entries of the cache, and what follows from it, all on the device.

    Window and cache move on; the `Status` that they have come to is returned as a tensor.
    """
    # 1. Forward
    logits = forward_rows(model, rows, cache, live)  # [batch, slots, vocabulary]
    window.count_forward(rows)

    # 2. Fill
    fill = judge_and_draft if policy.decoding == "verified" else fill_selected
    impossible = fill(window, rows, logits, policy, readers)
    del logits  # or it would live through what follows

    # 3. Commit
    num_final = window.commit(rows.num_final)
    if cache is not None:
        cache.commit(num_final)

    # 4. Advance
    slots, in_run = window.new_run(policy.window_size)
    num_run = in_run.sum(-1)
    if readers is None:
        window.end_at(policy.end_tokens, slots, in_run, num_run)
    else:
        readers.end(window, slots[:, 0] + num_run)
    window.refill(num_run, policy.decoding == "blockwise")
    return window.status(rows.open_slots, impossible)


def read_status(values: list[list[int]], window: Window) -> Status:
    status = Status(*values)
    for i, slot in enumerate(status.impossible):
        if slot != NO_SLOT:
            refuse_impossible(window.batch_rows[i].item(), window.prompt_lengths[i].item() + slot)
    return status


def forward_rows(model: PreTrainedModel, rows: WindowQueries, cache: RowCache | None, live: int) -> torch.Tensor:
    """The logits of the open slots, `[batch, slots, vocabulary]`."""
    where = rows.input_ids.device
    device = where if model.device.type == "meta" else model.device  # meta: offloaded, and moved by accelerate
    num_rows, attention_mask = rows.input_ids.shape[1], None
    if cache is not None:
        # (Not in static steps: flash-attn's function for caches is no part of a compiled graph.)
        knows_ends = not cache.is_static and is_flash_attention_requested(model.config)
        attention_mask = cache.begin_forward(num_rows, live, rows.queries_seen, knows_ends)
    elif rows.queries_seen is not None:
        last = torch.arange(num_rows, device=where).expand_as(rows.queries_seen)
        attention_mask = seen_entries(last, rows.queries_seen, num_rows)
    rows = rows.to(device)
    return model(
        input_ids=rows.input_ids,
        position_ids=rows.position_ids,
        attention_mask=None if attention_mask is None else attention_mask.to(device),
        past_key_values=cache,
        use_cache=cache is not None,
        queries_to_keep=rows.open_rows.clamp(min=0),  # -1 in verified rows that have ended, which nothing reads
        return_dict=True,
    ).logits.to(where)
