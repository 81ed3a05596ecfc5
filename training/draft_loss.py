"""The loss of draft adapters: how far each MASK's prediction is from the model's own prediction for that token."""

import torch
from torch import nn
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

NO_TEACHER = -1
QUERIES_PER_CHUNK = 256  # the logits of each and of its teacher: 0.3 GB in float32 at 152k tokens
QUERIES_AT_A_TIME = 16  # on a CPU: their two distributions fit into its caches, which is three times as fast
CROSS_ENTROPY_WEIGHT = 0.1  # total variation has next to no gradient as long as the predictions have nothing in common


def draft_loss(
    lm_head: nn.Module,
    hidden_states: torch.Tensor,
    teachers: torch.Tensor,
    weights: torch.Tensor,
    mask_token_id: int | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes the weighted sum of the losses of the queries that have a teacher.

    The teacher of a query is the query of the same row that predicts the same token from all tokens before it. With
    their distributions q and p, the loss of a query is

        1/2 * sum(|p - q|) - 0.1 * log q(argmax p)

    The first term is the chance that a draft drawn from q is refused where p decides.

    The head sees only queries with a teacher and their teachers, and gets no gradient itself. Both distributions leave
    out `mask_token_id`, which no decoding writes. `teachers` are positions in the row, NO_TEACHER for none; all but
    the head are `[batch, queries, ...]`.

    Returns the loss, and two detached tensors `[batch, queries]`: the total variation of each query, and whether its
    most likely token is that of its teacher. Queries without a teacher have 0 and False.
    """
    device = hidden_states.device
    teachers, weights = teachers.to(device), weights.to(device)
    first_of_row = torch.arange(len(teachers), device=device)[:, None] * teachers.shape[1]
    all_teachers = (first_of_row + teachers).flatten()
    has_teacher = teachers.flatten() != NO_TEACHER
    chosen = has_teacher.nonzero()[:, 0]  # waits for the device, the only time
    if len(chosen) == 0:
        # The loss of the first query, times 0: its graph reaches the adapter, and every process calls the head alike.
        chosen, weights = torch.zeros(1, dtype=torch.long, device=device), torch.zeros_like(weights)
        all_teachers[0] = 0
    flat = hidden_states.flatten(0, 1)
    loss, some_distances, some_hits = LossOfQueries.apply(
        flat[chosen], flat[all_teachers[chosen]].detach(), weights.flatten()[chosen], lm_head, mask_token_id
    )
    distances, hits = (
        torch.zeros_like(has_teacher, dtype=some.dtype).index_copy_(0, chosen, some) * has_teacher
        for some in (some_distances, some_hits)
    )
    return loss, distances.view(teachers.shape), hits.view(teachers.shape)


class LossOfQueries(torch.autograd.Function):
    """The weighted loss of queries that all have a teacher. It computes the gradient too, and so keeps no logits."""

    @staticmethod
    def forward(ctx, hidden_states, of_teachers, weights, lm_head, mask_token_id):
        queries_per_chunk = len(weights) if is_deepspeed_zero3_enabled() else QUERIES_PER_CHUNK
        columns = (x.split(queries_per_chunk) for x in (hidden_states, of_teachers, weights))
        results, gradients, is_training = [], [], ctx.needs_input_grad[0]
        head = lm_head
        for queries, teachers, weight in zip(*columns, strict=True):
            teacher_logits = head(teachers)
            if not is_deepspeed_zero3_enabled():
                # As in target_loss(). FSDP would also take the gradient below for the backward of the whole model.
                head = lm_head.forward
            queries = queries.detach().requires_grad_(is_training)
            with torch.set_grad_enabled(is_training):
                logits = head(queries)
            slopes = torch.empty_like(logits)  # [queries, vocabulary]
            at_a_time = QUERIES_AT_A_TIME if logits.device.type == "cpu" else len(logits)  # a GPU waits for launches
            columns_of_chunk = (x.split(at_a_time) for x in (logits.detach(), teacher_logits, slopes))
            results += [losses_and_slopes(*part, mask_token_id) for part in zip(*columns_of_chunk, strict=True)]
            if is_training:
                slopes *= weight[:, None]
                gradients += torch.autograd.grad(logits, queries, slopes)
        if is_training:
            ctx.save_for_backward(torch.cat(gradients))
        losses, distances, hits = map(torch.cat, zip(*results, strict=True))
        ctx.mark_non_differentiable(distances, hits)
        return (weights * losses).sum(), distances, hits

    @staticmethod
    def backward(ctx, of_loss, *of_others):
        (gradient,) = ctx.saved_tensors
        return of_loss.to(gradient.dtype) * gradient, None, None, None, None


def losses_and_slopes(
    logits: torch.Tensor, of_teachers: torch.Tensor, slopes: torch.Tensor, mask_token_id: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns loss, total variation and hit of each query, and writes the slopes of its loss by its logits.

    With s the sign of q - p, the total variation has the slopes q * (s - sum(s * q)) / 2. The cross entropy with the
    teacher's best token has the slopes q - 1 at that token, and q elsewhere.
    """
    logits, of_teachers = (x.to(torch.float32, copy=True) for x in (logits, of_teachers))
    if mask_token_id is not None:
        logits[:, mask_token_id] = of_teachers[:, mask_token_id] = -torch.inf
    best = of_teachers.argmax(-1, keepdim=True)
    q = logits.softmax(-1)
    differences = q - of_teachers.softmax(-1)
    distances = torch.linalg.vector_norm(differences, ord=1, dim=-1) / 2
    cross_entropy = logits.logsumexp(-1) - logits.gather(-1, best)[:, 0]
    half_signs = differences.sign_().div_(2)
    mean = (half_signs * q).sum(-1, keepdim=True)
    gradient = half_signs.sub_(mean - CROSS_ENTROPY_WEIGHT).mul_(q)
    slopes.copy_(gradient.scatter_add_(-1, best, torch.full_like(mean, -CROSS_ENTROPY_WEIGHT)))
    return distances + CROSS_ENTROPY_WEIGHT * cross_entropy, distances, logits.argmax(-1) == best[:, 0]
