"""The ids of a prompt, as a message where the tokenizer has a chat template."""

import sys
from functools import cache

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from wedlm.generation.stock import max_positions_of


def encode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str | list[dict], raw: bool = False
) -> list[int]:
    """Returns the ids of a text or of the messages of a chat, and refuses those that the model cannot read.

    A text becomes a message where the tokenizer has a chat template, and with `raw` it is continued as it is.
    """
    if isinstance(prompt, str) and not raw:
        if tokenizer.chat_template is None:
            say_that_text_is_continued(tokenizer.name_or_path)
        else:
            prompt = [{"role": "user", "content": prompt}]
    if isinstance(prompt, str):
        ids = tokenizer(prompt)["input_ids"]
    else:
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    if len(ids) >= (most := max_positions_of(model)):
        raise ValueError(
            f"The prompt has {len(ids)} tokens, and the model reads {most} with the answer; shorten it (in a chat, "
            "/reset forgets the conversation)."
        )
    if (mask_token_id := getattr(model.config, "mask_token_id", None)) in ids:
        mask = tokenizer.decode([mask_token_id])
        raise ValueError(f"The prompt holds {mask}, the MASK token, which stands for an open slot; take it out.")
    return ids


@cache
def say_that_text_is_continued(name: str) -> None:
    """Prints the notice about a checkpoint once, however many prompts follow."""
    print(f"{name} has no chat template, so the prompt is continued as plain text.", file=sys.stderr)
