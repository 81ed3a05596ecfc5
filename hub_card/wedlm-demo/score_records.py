"""The scores and logits of every new token, where the caller asked for them."""

import torch
from transformers import GenerationConfig

from .token_sampling import processed
from .window import Window, WindowQueries


class ScoreRecords:
    """A `[batch, vocabulary]` of scores, of logits, or of both for each new token; zeros behind a row's end.

    Args:
        batch_size (`int`): The rows of the batch.
        generation_config (`GenerationConfig`): `output_scores` and `output_logits` say what is recorded, where
            `return_dict_in_generate` returns it.
    """

    def __init__(self, batch_size: int, generation_config: GenerationConfig):
        asked_for = {"scores": generation_config.output_scores, "logits": generation_config.output_logits}
        returns = generation_config.return_dict_in_generate
        self.batch_size = batch_size
        self.columns: dict[str, list[torch.Tensor]] = {
            name: [] for name, asked in asked_for.items() if returns and asked
        }

    def put(self, slot: int, rows: list[int], **values: torch.Tensor) -> None:
        """Records `scores` and `logits`, `[rows, vocabulary]` each, of one slot."""
        for name, columns in self.columns.items():
            value = values[name].float()
            while len(columns) <= slot:
                columns.append(value.new_zeros(self.batch_size, value.shape[-1]))
            columns[slot][rows] = value

    def put_selected(
        self, window: Window, queries: WindowQueries, selected: torch.Tensor, logits: torch.Tensor, processors
    ) -> None:
        """Records what the tokens of the selected slots were chosen from."""
        if not self.columns:
            return
        where = selected.nonzero()
        rows, slots = window.batch_rows[where[:, 0]], queries.asked_slots[tuple(where.T)]
        logits = logits[tuple(where.T)]  # [selected, vocabulary]
        scores = processed(logits, processors)
        for i, (row, slot) in enumerate(zip(rows.tolist(), slots.tolist(), strict=True)):
            self.put(slot, [row], logits=logits[i], scores=scores[i])

    def scores_up_to(self, slot: int) -> tuple[torch.Tensor, ...] | None:
        """The scores of the slots through `slot`, as criteria get them; None where they are not recorded."""
        return tuple(self.columns["scores"][: slot + 1]) if "scores" in self.columns else None

    def of_text(self, num_tokens: torch.Tensor) -> dict[str, tuple[torch.Tensor, ...]]:
        """The records of each row's first `num_tokens` tokens, by name."""
        longest = int(num_tokens.max())
        return {
            name: tuple(
                torch.where((slot < num_tokens)[:, None], column, 0) for slot, column in enumerate(columns[:longest])
            )
            for name, columns in self.columns.items()
        }
