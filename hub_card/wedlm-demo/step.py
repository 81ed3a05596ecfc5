"""One step of parallel decoding, all of it on the device."""

import torch
from transformers import PreTrainedModel
from transformers.utils.generic import is_flash_attention_requested

from .cache_attention import seen_entries
from .policy import Policy
from .row_cache import RowCache
from .support import refuse_impossible
from .text_readers import TextReaders
from .transformers_internals import CACHE, check_is_filled
from .window import NO_SLOT, Status, Window, WindowQueries


def take_step(
    model: PreTrainedModel,
    policy: Policy,
    window: Window,
    queries: WindowQueries,
    cache: RowCache | None,
    live: int,
    readers: TextReaders | None = None,
) -> torch.Tensor:
    """Takes one step: a forward, and everything that follows from its logits. Window and cache move on.

    1. Forward: the queries go through the model.
    2. Fill: slots of the window get their tokens.
    3. End: rows whose text is complete end.
    4. Commit: queries whose tokens are final stay in the cache.
    5. Refill: the window is made ready for the next forward.

    Args:
        model (`PreTrainedModel`): The model.
        policy (`Policy`): The settings of the call.
        window (`Window`): The window of the rows, changed by the step.
        queries (`WindowQueries`): The queries of the forward.
        cache (`RowCache`, *optional*): The cache of the rows, changed by the step.
        live (`int`): The number of leading entries of the cache that the forward reads.
        readers (`TextReaders`, *optional*): The processors, criteria and streamer that read the text.

    Returns:
        `torch.LongTensor` of shape `(4, batch)`: The `Status` of the window.
    """
    # 1. Forward (the logits are held by nobody else, or they would live through the rest of the step)
    num_kept, status = move_on(policy, window, queries, forward_queries(model, queries, cache, live), readers)
    if cache is not None:
        cache.commit(queries.num_text + num_kept)
    return status


def move_on(
    policy: Policy, window: Window, queries: WindowQueries, logits: torch.Tensor, readers: TextReaders | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a step does with the logits of its forward, `[batch, asked, vocabulary]`.

    Returns:
        `tuple[torch.LongTensor, torch.LongTensor]`: How many of the window's queries stay in the cache, `[batch]`, and
        the `Status` of the window, `[4, batch]`.
    """
    window.count_forward(queries)

    # 2. Fill
    impossible = window.fill(queries, logits, policy, readers)
    del logits

    # 3. End
    slots, in_run = window.new_run(policy.window_size)
    num_run = in_run.sum(-1)
    if readers is None:
        window.end_at(policy.end_tokens, slots, in_run)
    else:
        readers.end(window, slots[:, 0] + num_run)

    # 4. Commit
    num_kept = window.commit(num_run)

    # 5. Refill
    window.refill(num_run, policy)
    return num_kept, window.status(queries.asked_slots, impossible)


def read_status(values: list[list[int]], window: Window) -> Status:
    """The status as the host reads it; refuses to go on if no token had a finite score for some slot."""
    status = Status(*values)
    for i, slot in enumerate(status.impossible):
        if slot != NO_SLOT:
            refuse_impossible(window.batch_rows[i].item(), window.prompt_lengths[i].item() + slot)
    return status


def forward_queries(model: PreTrainedModel, queries: WindowQueries, cache: RowCache | None, live: int) -> torch.Tensor:
    """The logits of the asked queries, `[batch, asked, vocabulary]`."""
    home = queries.input_ids.device
    device = home if model.device.type == "meta" else model.device  # meta: offloaded, and moved by accelerate
    num_queries, attention_mask = queries.input_ids.shape[1], None
    if cache is not None:
        # (Static steps need a mask: a compiled graph cannot hold flash-attn's function for caches.)
        knows_ends = not cache.is_static and is_flash_attention_requested(model.config)
        attention_mask = cache.begin_forward(num_queries, live, queries.queries_seen, knows_ends)
    elif queries.queries_seen is not None:
        last = torch.arange(num_queries, device=home).expand_as(queries.queries_seen)
        attention_mask = seen_entries(last, queries.queries_seen, num_queries)
    queries = queries.to(device)
    logits = model(
        input_ids=queries.input_ids,
        position_ids=queries.position_ids,
        attention_mask=None if attention_mask is None else attention_mask.to(device),
        use_cache=cache is not None,
        queries_to_keep=queries.asked.clamp(min=0),  # -1 in rows that have ended, where nothing is read
        return_dict=True,
        **{CACHE: cache},
    ).logits
    if cache is not None:
        check_is_filled(cache.holds(live))
    return logits.to(home)
