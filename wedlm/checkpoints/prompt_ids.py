"""The ids of a prompt, as a message where the tokenizer has a chat template."""

import sys
from functools import cache, lru_cache

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from wedlm.checkpoints.limited_process import Refused
from wedlm.checkpoints.rendering import render
from wedlm.generation.model_kind import max_positions_of


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
    is_chat = not isinstance(prompt, str)
    if is_chat:
        try:
            prompt = render(tokenizer, prompt, add_generation_prompt=True)
        except Refused as error:
            raise ValueError(
                f"The chat template of {tokenizer.name_or_path} cannot write the prompt ({error}); correct it, "
                "or continue a text without it by `wedlm generate --raw`."
            ) from error
    check_size(prompt, model, tokenizer)
    ids = tokenizer(prompt, add_special_tokens=not is_chat)["input_ids"]  # a chat template writes them
    if not ids:
        raise ValueError("The prompt has no tokens; give it some text (a chat template may have written none).")
    if len(ids) >= (most := max_positions_of(model)):
        raise ValueError(
            f"The prompt has {len(ids)} tokens, and the model reads {most} with the answer; shorten it (in a chat, "
            "/reset forgets the conversation)."
        )
    if (mask_token_id := getattr(model.config, "mask_token_id", None)) in ids:
        mask = tokenizer.decode([mask_token_id])
        raise ValueError(f"The prompt holds {mask}, the MASK token, which stands for an open slot; take it out.")
    return ids


def check_size(text: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a text that has more characters than the model can read, before it is tokenized, which may take long."""
    positions = max_positions_of(model)
    if len(text) <= positions:
        return
    if len(text) > (most := positions * longest_token(tokenizer)):
        raise ValueError(
            f"The prompt has {len(text)} characters, and the model reads at most {most}; shorten it (a chat template "
            "may have written a part of it)."
        )


@lru_cache(1)
def longest_token(tokenizer: PreTrainedTokenizerBase) -> int:
    return max(len(token.encode()) for token in tokenizer.get_vocab())


@cache
def say_that_text_is_continued(name: str) -> None:
    """Prints the notice about a checkpoint once, however many prompts follow."""
    print(f"{name} has no chat template, so the prompt is continued as plain text.", file=sys.stderr)
