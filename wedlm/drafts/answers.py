"""Lets the model answer prompts in batches; a stopped run goes on behind its last batch."""

import json
import shutil
from dataclasses import replace
from math import ceil
from pathlib import Path

import torch
from accelerate import PartialState
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from wedlm.checkpoints.prompt_ids import encode
from wedlm.checkpoints.whole_file import write_whole
from wedlm.drafts.prompt_split import Task, Tasks
from wedlm.drafts.settings import AdaptError, AdaptSettings
from wedlm.evaluation.timing import timed
from wedlm.evaluation.work_file import WorkFile, read_results
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM


def answer_all(
    model: WeDLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    tasks: list[Task],
    settings: AdaptSettings,
    file: Path,
) -> None:
    """Writes a record for training for each task to a file of JSON Lines, in the order of the tasks.

    Several processes share the batches. Each keeps its answers in a work file of its own until all are there.
    """
    state = PartialState()
    prompts = list(zip(tasks, encode_all(model, tokenizer, tasks, settings.max_new_tokens), strict=True))
    batches = [prompts[start : start + settings.batch_size] for start in range(0, len(prompts), settings.batch_size)]
    folder = file.with_name(f"{file.stem}.answers")
    earlier = all_results(folder)
    state.wait_for_everyone()  # nobody writes before all have read
    work = WorkFile(folder, {"process": state.process_index})
    missing = [number for number in range(len(batches)) if (number,) not in earlier]
    num_done = sum(len(batch) for number, batch in enumerate(batches) if number not in missing)
    is_quiet = not state.is_main_process
    with tqdm(total=len(tasks), initial=num_done, unit=" answers", desc=file.stem, disable=is_quiet) as bar:
        for number in missing[state.process_index :: state.num_processes]:
            work.add((number,), answers_of(model, tokenizer, batches[number], settings, number))
            bar.update(min(len(batches[number]) * state.num_processes, len(tasks) - bar.n))
    state.wait_for_everyone()
    if state.is_main_process:
        results = all_results(folder)
        answers = [text for number in range(len(batches)) for text in results[(number,)]]
        write_records(tokenizer, tasks, answers, file)
        shutil.rmtree(folder)
    state.wait_for_everyone()


def all_results(folder: Path) -> dict[tuple, list[str]]:
    """The answers of all processes, also of a stopped run with another number of them."""
    results = {}
    for path in sorted(folder.glob("*.jsonl")):
        results |= read_results(path)
    return results


def answers_of(
    model: WeDLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    batch: list[tuple[Task, list[int]]],
    settings: AdaptSettings,
    number: int,
) -> list[str]:
    """Answers a batch of prompts. What is drawn depends on the number of the batch alone, and not on earlier ones."""
    prompts = [ids for task, ids in batch if task.answer is None]
    texts = iter(generate(model, tokenizer, prompts, settings, number) if prompts else [])
    return [next(texts) if task.answer is None else task.answer for task, _ in batch]


def generate(
    model: WeDLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    settings: AdaptSettings,
    number: int,
) -> list[str]:
    rows = [torch.tensor(ids) for ids in prompts]
    input_ids, attention_mask = (
        pad_sequence(each, batch_first=True, padding_side="left").to(model.device)
        for each in (rows, [torch.ones_like(row) for row in rows])
    )
    sampling = {"temperature": settings.temperature} if settings.temperature > 0 else {}
    torch.manual_seed(settings.seed + number)
    with torch.inference_mode():
        sequences = model.generate(
            input_ids,
            attention_mask=attention_mask,
            max_new_tokens=settings.max_new_tokens,
            decoding="autoregressive",
            return_dict_in_generate=False,
            do_sample=settings.temperature > 0,
            **sampling,
        )
    return tokenizer.batch_decode(sequences[:, input_ids.shape[1] :], skip_special_tokens=True)


def write_records(tokenizer: PreTrainedTokenizerBase, tasks: list[Task], answers: list[str], file: Path) -> None:
    """Writes the tasks with their answers as training data; a blank answer teaches nothing, and is left out."""
    pairs = [(task, answer) for task, answer in zip(tasks, answers, strict=True) if answer.strip()]
    if num_blank := len(answers) - len(pairs):
        print(f"{num_blank} of {len(answers)} answers are blank, and are left out of {file.name}.")
    if not pairs:
        raise AdaptError(f"All {len(answers)} answers for {file.name} are blank; give other prompts.")
    write_whole(file, "".join(json.dumps(record(tokenizer, *pair)) + "\n" for pair in pairs))


def record(tokenizer: PreTrainedTokenizerBase, task: Task, answer: str) -> dict:
    """Returns a task with its answer as a record of training data."""
    if isinstance(task.prompt, str) and tokenizer.chat_template is None:
        return {"kind": task.kind, "prompt": task.prompt, "completion": answer}
    return {"kind": task.kind, "messages": [*task.messages(), {"role": "assistant", "content": answer}]}


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


# --- The time that a run will take ---

PROBED_TOKENS = 8
TIMES_MEASURED = 3  # a prompt is answered token by token, and verified in at most twice that time


def expected_minutes(
    model: WeDLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    to_answer: list[Task],
    to_measure: list[Task],
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
        return of_batch * ceil(len(tasks) / batch_size) / 60

    training = f"{settings.minutes:g} min" if settings.steps is None else f"{settings.steps:,} steps"
    of_answers = ceil(minutes(to_answer, settings.batch_size) / num_processes)
    of_measurement = ceil(TIMES_MEASURED * minutes(to_measure, 1))
    return (
        f"{len(to_answer):,} answers take at most {of_answers:,} min, the training {training}, and the measurement on "
        f"{len(to_measure):,} prompts at most {of_measurement:,} min."
    )
