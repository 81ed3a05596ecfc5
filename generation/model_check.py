"""Whether a stock model attends as verified decoding needs it, by a few short forwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from wedlm.generation.model_kind import is_stock, kind_of
from wedlm.generation.row_cache import RowCache
from wedlm.generation.sequences import Queries, Text
from wedlm.generation.transformers_internals import attention_of
from wedlm.generation.validation import REMEDY_OF_UNFIT

LOCK = Lock()
# The attention implementation with which a model has passed.
FITS: WeakKeyDictionary[PreTrainedModel, str] = WeakKeyDictionary()


def check_fits(model: PreTrainedModel, num_rows: int = 1) -> None:
    """Refuses a model that does not attend as it is told to, by forwards over a few tokens at its first call.

    Two branches behind one text, in one forward, have to get the logits that each gets alone; and a forward behind
    tokens that were not committed has to get those that it gets without them.
    """
    if not is_stock(model) or FITS.get(model) == attention_of(model.config):
        return
    with LOCK:
        if FITS.get(model) != attention_of(model.config):  # unless another thread has checked it meanwhile
            with in_evaluation(model):
                check_anew(model, num_rows)
            FITS[model] = attention_of(model.config)


@contextmanager
def in_evaluation(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout; every module gets its own mode back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def check_anew(model: PreTrainedModel, num_rows: int) -> None:
    """`num_rows` are those of the call: an adapter may be chosen for each."""
    try:
        # By rounding, a mixture of experts may now and then take another expert.
        fits = any(branches_are_apart(model, first_id, num_rows) for first_id in (0, 10, 20))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} does not fit verified decoding: a forward with a mask of four dimensions and a "
            f"cache with a length for each row fails ({type(error).__name__}: {' '.join(str(error).split())}); "
            f"{REMEDY_OF_UNFIT}."
        ) from error
    if not fits:
        raise ValueError(
            f"{type(model).__name__} does not fit verified decoding: two branches in one forward see each other, or "
            f"tokens that were taken back (its attention or its cache does not follow the mask); {REMEDY_OF_UNFIT}."
        )


@torch.no_grad()
def branches_are_apart(model: PreTrainedModel, first_id: int, num_rows: int) -> bool:
    """Whether logits are much nearer to those of each branch alone than to those where every query sees all before."""
    device = "cpu" if model.device.type == "meta" else model.device
    ids = torch.arange(first_id, first_id + 10, device=device) * 7919 % kind_of(model).config.vocab_size
    # [L a b c d e]: a and b are one branch behind the text and L, c and d the other, e comes later.
    text, last, first, second, later = ids[:4], ids[4:5], ids[5:7], ids[7:9], ids[9:]
    parts = [each.expand(num_rows, -1) for each in (text, last, first, second, later)]
    got, blind = branch_logits(model, parts, False), branch_logits(model, parts, True)
    alone = [plain_logits(model, torch.cat([*parts[:2], branch], dim=-1)) for branch in parts[2:]]
    wanted = torch.cat([alone[0][:1], alone[0][-2:], alone[1][-2:], alone[2][-1:]]).float()
    distance, blind_distance = (got.float() - wanted).norm(), (blind.float() - wanted).norm()
    return bool(distance <= 1e-4 * wanted.norm() or distance < 0.3 * blind_distance)


def branch_logits(model: PreTrainedModel, parts: list[Tensor], is_blind: bool) -> Tensor:
    """The logits of the text's first token, of both branches, and of what comes later, `[6, vocabulary]`.

    They are those of the first row, as a verified step computes them. With `is_blind` every query sees all before it.
    """
    text, last, first, second, later = parts
    num_rows, length = text.shape
    forward = kind_of(model).forward
    cache = RowCache(num_rows, length + 8, text.device)
    prefix = Text(text, text.new_full((num_rows,), length), text.new_zeros(num_rows))
    rows = [forward(Queries.of_text(prefix), cache, length)[0]]
    cache.commit(prefix.lengths)
    steps = [(torch.cat([last, first, second], dim=-1), [0, 1, 2, 1, 2], [0, 0, 0, 1, 1]), (later, [1], [0])]
    for ids, offsets, visible in steps:
        query = torch.arange(ids.shape[1], device=text.device).expand_as(ids)
        queries = Queries(
            input_ids=ids,
            position_ids=(text.new_tensor(offsets) + length).expand_as(ids),
            logits_indices=query,
            predicted_slots=query,
            is_predicted=query >= 0,
            visible_prefix=None if is_blind else text.new_tensor(visible).expand_as(ids),
        )
        rows.append(forward(queries, cache, int(cache.lengths[0]) + ids.shape[1])[0])
        cache.commit(text.new_ones(num_rows))  # the branches are taken back
    return torch.cat([rows[0], rows[1][1:], rows[2]])


def plain_logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return model(input_ids=ids, use_cache=False, return_dict=True).logits[0]
