import torch
from transformers import GenerationConfig, LogitsProcessorList

from .position_selection import entropy_of, select_slots
from .text_readers import TextReaders
from .token_sampling import choose_tokens
from .window import Window, WindowRows


def fill_selected(
    window: Window,
    rows: WindowRows,
    logits: torch.Tensor,
    processors: LogitsProcessorList,
    generation_config: GenerationConfig,
    readers: TextReaders | None,
) -> torch.Tensor:
    """Fills the slots that are selected by their entropy; returns, like `rows.open_slots`, what nothing can fill."""
    selected = select_slots(
        entropy_of(logits),
        rows.open_slots,
        rows.is_open,
        generation_config.entropy_threshold,
        generation_config.distance_penalty,
    )
    if readers is not None:
        return readers.fill(window, rows, selected, logits)
    tokens, is_possible, _ = choose_tokens(logits, processors, generation_config.do_sample)
    window.fill(rows.open_slots, selected, tokens)
    return selected & ~is_possible
