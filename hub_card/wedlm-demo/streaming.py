import torch

from .policy import Policy
from .position_selection import entropy_of, select_slots
from .text_readers import TextReaders
from .token_sampling import draw_tokens, over_slots, processed
from .window import Window, WindowQueries


def fill_selected(
    window: Window, rows: WindowQueries, logits: torch.Tensor, policy: Policy, readers: TextReaders | None
) -> torch.Tensor:
    """Fills the slots that are selected by their entropy; returns, like `rows.open_slots`, what nothing can fill."""
    left_to_right = readers is not None and readers.left_to_right

    def read(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if left_to_right:
            return (entropy_of(logits),)
        return entropy_of(logits), *draw_tokens(processed(logits, policy.processors), policy.do_sample)

    entropy, *chosen = over_slots(read, logits)
    selected = select_slots(entropy, rows.open_slots, rows.is_open, policy.entropy_threshold, policy.distance_penalty)
    if left_to_right:
        selected, tokens = readers.choose_run(window, rows, selected, logits)
        impossible = torch.zeros_like(selected)
    else:
        tokens, is_possible = chosen
        impossible = selected & ~is_possible
    window.fill(rows.open_slots, selected, tokens)
    if readers is not None:
        readers.note_filled(window, rows, selected, logits)
    return impossible
