"""The ids of the prompts of a run. All are read before the model answers the first one."""

from transformers import PreTrainedTokenizerBase

from wedlm.adapt.settings import AdaptError, AdaptSettings
from wedlm.adapt.tasks import Task, Tasks
from wedlm.checkpoints.prompt_ids import encode
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM


def encode_all(
    model: WeDLMForCausalLM, tokenizer: PreTrainedTokenizerBase, tasks: list[Task], max_new_tokens: int
) -> list[list[int]]:
    """Returns the ids of all prompts; refuses one that leaves no room for an answer."""
    all_ids = []
    most = model.config.max_position_embeddings
    if max_new_tokens >= most:
        raise AdaptError(
            f"--max-new-tokens {max_new_tokens} leaves no room for a prompt, since the model reads {most} tokens in "
            "all; give a smaller number."
        )
    for task in tasks:
        try:
            ids = encode(model, tokenizer, task.prompt)
        except Exception as error:  # MASK in a prompt, or a chat that the template refuses, which can raise anything
            raise AdaptError(f"{task.where}: {' '.join(str(error).split())}") from error
        if len(ids) + max_new_tokens > most:
            raise AdaptError(
                f"{task.where}: the prompt has {len(ids)} tokens, which with --max-new-tokens {max_new_tokens} are "
                f"more than the {most} that the model reads; shorten or remove it, or give a smaller number."
            )
        all_ids.append(ids)
    return all_ids


def check_prompts(
    model: WeDLMForCausalLM, tokenizer: PreTrainedTokenizerBase, tasks: Tasks, settings: AdaptSettings
) -> str | None:
    """Refuses prompts that cannot be answered; returns a sentence if some are too long to be trained on."""
    for group in (tasks.held_out, tasks.also):
        encode_all(model, tokenizer, group, settings.max_new_tokens)
    lengths = [len(ids) for ids in encode_all(model, tokenizer, tasks.train, settings.max_new_tokens)]
    num_long = sum(length >= settings.max_length for length in lengths)
    if num_long == 0:
        return None
    found = f"{num_long} of {len(lengths)} prompts have --max-length {settings.max_length} tokens or more"
    if num_long == len(lengths):
        raise AdaptError(f"{found}, so there is nothing to train on; give a larger number than {max(lengths)}.")
    return f"{found}, and are not trained on; a larger number takes them in."
