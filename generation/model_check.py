"""Whether a stock model attends as verified decoding needs it, by a few short forwards."""

import torch
from transformers import PreTrainedModel

from wedlm.generation.decoding import forward_queries
from wedlm.generation.row_cache import RowCache
from wedlm.generation.stock import FITS, is_stock, text_config_of
from wedlm.generation.transformers_internals import attention_of
from wedlm.generation.window import Text, WindowQueries


def check_fits(model: PreTrainedModel) -> None:
    """Refuses a model that does not attend as it is told to, by forwards over a few tokens at its first call.

    Two branches behind one text, in one forward, have to get the logits that each gets alone; and a forward behind
    tokens that were not committed has to get those that it gets without them.
    """
    if not is_stock(model) or FITS.get(model) == attention_of(model.config):
        return
    was_training = model.training
    try:
        model.eval()
        # By rounding, a mixture of experts may now and then take another expert.
        fits = any(branches_are_apart(model, first_id) for first_id in (0, 10, 20))
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} does not fit verified decoding: a forward with a mask of four dimensions and a "
            f"cache with a length for each row fails ({type(error).__name__}: {' '.join(str(error).split())}); leave "
            "out custom_generate."
        ) from error
    finally:
        model.train(was_training)
    if not fits:
        raise ValueError(
            f"{type(model).__name__} does not fit verified decoding: two branches in one forward see each other, or "
            "tokens that were taken back (its attention or its cache does not follow the mask); leave out "
            "custom_generate."
        )
    FITS[model] = attention_of(model.config)


@torch.no_grad()
def branches_are_apart(model: PreTrainedModel, first_id: int) -> bool:
    """Whether logits are much nearer to those of each branch alone than to those where every query sees all before."""
    device = "cpu" if model.device.type == "meta" else model.device
    ids = torch.arange(first_id, first_id + 10, device=device) * 7919 % text_config_of(model).vocab_size
    # [L a b c d e]: a and b are one branch behind the text and L, c and d the other, e comes later.
    text, last, first, second, later = ids[:4], ids[4:5], ids[5:7], ids[7:9], ids[9:]
    got = branch_logits(model, text, last, first, second, later, is_blind=False)
    blind = branch_logits(model, text, last, first, second, later, is_blind=True)
    alone = [plain_logits(model, torch.cat([text, last, branch])) for branch in (first, second, later)]
    wanted = torch.cat([alone[0][-2:], alone[1][-2:], alone[2][-1:]]).float()
    distance, blind_distance = (got.float() - wanted).norm(), (blind.float() - wanted).norm()
    return bool(distance <= 1e-4 * wanted.norm() or distance < 0.3 * blind_distance)


def branch_logits(model, text, last, first, second, later, is_blind: bool) -> torch.Tensor:
    """The logits of both branches and of what comes later, `[5, vocabulary]`, as a verified step computes them.

    With `is_blind` every query sees all before it.
    """
    cache = RowCache(1, len(text) + 8, text.device)
    prefix = Text(text[None], text.new_tensor([len(text)]), text.new_zeros(1))
    forward_queries(model, WindowQueries.of_text(prefix), cache, len(text))
    cache.commit(prefix.lengths)
    steps = [(torch.cat([last, first, second]), [0, 1, 2, 1, 2], [0, 0, 0, 1, 1]), (later, [1], [0])]
    rows = []
    for ids, offsets, visible in steps:
        query = torch.arange(len(ids), device=text.device)[None]
        queries = WindowQueries(
            input_ids=ids[None],
            position_ids=text.new_tensor(offsets)[None] + len(text),
            logits_indices=query,
            predicted_slots=query,
            is_predicted=query >= 0,
            visible_prefix=None if is_blind else text.new_tensor(visible)[None],
        )
        held = int(cache.lengths)
        rows.append(forward_queries(model, queries, cache, held + len(ids))[0])
        cache.commit(text.new_tensor([1]))  # the branches are taken back
    return torch.cat([rows[0][1:], rows[1]])


def plain_logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids[None], use_cache=False, return_dict=True).logits[0]
