"""Lets the model answer prompts in batches; a stopped run goes on behind its last batch."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from wedlm.adapt.settings import AdaptError, AdaptSettings
from wedlm.adapt.tasks import Task, Tasks
from wedlm.checkpoints.prompt_ids import encode
from wedlm.checkpoints.whole_file import write_whole
from wedlm.evaluation.turns import timed
from wedlm.evaluation.work_file import WorkFile, digest_of
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM


def encode_all(
    model: WeDLMForCausalLM, tokenizer: PreTrainedTokenizerBase, tasks: list[Task], max_new_tokens: int
) -> list[list[int]]:
    """Returns the ids of all prompts; refuses one that leaves no room for an answer."""
    all_ids = []
    most = model.config.max_position_embeddings - max_new_tokens
    for number, task in enumerate(tasks, start=1):
        try:
            ids = encode(model, tokenizer, task.prompt)
        except Exception as error:  # MASK in a prompt, or a chat that the template refuses, which can raise anything
            raise AdaptError(f"Prompt {number} of {task.kind}: {' '.join(str(error).split())}") from error
        if len(ids) > most:
            raise AdaptError(
                f"Prompt {number} of {task.kind} has {len(ids)} tokens, and with --max-new-tokens {max_new_tokens} "
                f"the model reads {most}; shorten or remove it, or give a smaller number."
            )
        all_ids.append(ids)
    return all_ids


def answer_all(
    model: WeDLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    tasks: list[Task],
    settings: AdaptSettings,
    file: Path,
) -> None:
    """Writes a record for training for each task to a file of JSON Lines, in the order of the tasks.

    Several processes share the batches. Each keeps its answers in a work file until all are there.

    Args:
        model (`WeDLMForCausalLM`): The model that answers.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        tasks (`list[Task]`): The prompts. A task that has an answer keeps it.
        settings (`AdaptSettings`): The length of answers, the temperature and the size of batches.
        file (`Path`): The file. If it is there, nothing is done.
    """
    if file.exists():
        return
    state = PartialState()
    all_ids = encode_all(model, tokenizer, tasks, settings.max_new_tokens)
    asked = list(zip(tasks, all_ids, strict=True))
    batches = [asked[start : start + settings.batch_size] for start in range(0, len(asked), settings.batch_size)]
    about = {**settings.recorded(), "tasks": digest_of(tasks), "processes": state.num_processes}
    works = [WorkFile(file.parent, about | {"process": process}) for process in range(state.num_processes)]
    work = works[state.process_index]
    with tqdm(total=len(tasks), unit=" answers", desc=file.stem, disable=not state.is_main_process) as bar:
        for number, batch in enumerate(batches):
            if number % state.num_processes == state.process_index and (number,) not in work:
                work.add((number,), answers_of(model, tokenizer, batch, settings, number))
            bar.update(len(batch))
    state.wait_for_everyone()
    if state.is_main_process:
        works = [WorkFile(file.parent, about | {"process": process}) for process in range(state.num_processes)]
        answers = [text for number in range(len(batches)) for text in works[number % len(works)][(number,)]]
        records = (record(tokenizer, *pair) for pair in zip(tasks, answers, strict=True))
        write_whole(file, "".join(json.dumps(one) + "\n" for one in records))
        for work in works:
            work.path.unlink()
    state.wait_for_everyone()


def answers_of(
    model: WeDLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    batch: list[tuple[Task, list[int]]],
    settings: AdaptSettings,
    number: int,
) -> list[str]:
    """Answers a batch of prompts. What is drawn depends on the number of the batch alone, and not on earlier ones."""
    asked = [ids for task, ids in batch if task.answer is None]
    texts = iter(generate(model, tokenizer, asked, settings, number) if asked else [])
    return [next(texts) if task.answer is None else task.answer for task, _ in batch]


def generate(
    model: WeDLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    settings: AdaptSettings,
    number: int,
) -> list[str]:
    longest = max(map(len, prompts))
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    input_ids = torch.tensor([[padding] * (longest - len(ids)) + ids for ids in prompts])
    attention_mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
    sampling = {"do_sample": False}
    if settings.temperature > 0:
        sampling = {"do_sample": True, "temperature": settings.temperature}
    torch.manual_seed(settings.seed + number)
    with torch.inference_mode():
        sequences = model.generate(
            input_ids.to(model.device),
            attention_mask=attention_mask.to(model.device),
            max_new_tokens=settings.max_new_tokens,
            decoding="autoregressive",
            return_dict_in_generate=False,
            **sampling,
        )
    return tokenizer.batch_decode(sequences[:, longest:], skip_special_tokens=True)


def record(tokenizer: PreTrainedTokenizerBase, task: Task, answer: str) -> dict:
    """Returns a task with its answer as a record of training data."""
    if isinstance(task.prompt, str) and tokenizer.chat_template is None:
        return {"kind": task.kind, "prompt": task.prompt, "completion": answer}
    messages = [{"role": "user", "content": task.prompt}] if isinstance(task.prompt, str) else task.prompt
    return {"kind": task.kind, "messages": [*messages, {"role": "assistant", "content": answer}]}


# --- The time that a run will take ---

PROBED_TOKENS = 8
TIMES_MEASURED = 3  # token by token and verified, which may be slower


def expected_minutes(
    model: WeDLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Tasks,
    settings: AdaptSettings,
    num_processes: int,
) -> str:
    """Says how long a run takes at most, by the time of a few tokens."""

    def minutes(tasks: list[Task], batch_size: int) -> float:
        """The time in which this process would answer all the tasks."""
        if not tasks:
            return 0.0
        prompts = encode_all(model, tokenizer, tasks[:batch_size], settings.max_new_tokens)

        def seconds(num_tokens: int) -> float:
            few = replace(settings, max_new_tokens=num_tokens)
            return timed(lambda: generate(model, tokenizer, prompts, few, number=0), model.device)[1]

        seconds(2)  # a first call is slow
        first, some = seconds(2), seconds(2 + PROBED_TOKENS)
        of_batch = first + (some - first) / PROBED_TOKENS * (settings.max_new_tokens - 2)
        return of_batch * -(-len(tasks) // batch_size) / 60

    asked = [task for task in (*tasks.train, *tasks.held_out) if task.answer is None]
    measured = [*tasks.held_out, *tasks.also]
    training = f"{settings.minutes:g} minutes" if settings.steps is None else f"{settings.steps:,} steps"
    of_answers = shown(minutes(asked, settings.batch_size) / num_processes)
    of_measurement = shown(TIMES_MEASURED * minutes(measured, 1))
    return (
        f"{len(asked):,} answers take at most {of_answers}, the training {training}, and the measurement on "
        f"{len(measured):,} prompts at most {of_measurement}."
    )


def shown(minutes: float) -> str:
    """shown(0.2) == "1 minute"; shown(200) == "3.3 hours" """
    if minutes > 90:
        return f"{minutes / 60:.1f} hours"
    whole = max(1, round(minutes))
    return f"{whole} minute{'s' * (whole != 1)}"
