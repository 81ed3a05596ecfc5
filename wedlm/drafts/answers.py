"""Lets the model answer prompts in batches; a stopped run goes on behind its last batch."""

import json
import shutil
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import torch
from accelerate import PartialState
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from wedlm.checkpoints.whole_file import write_whole
from wedlm.drafts.prompt_split import Examples
from wedlm.drafts.settings import AdaptSettings
from wedlm.evaluation.timing import timed
from wedlm.evaluation.tuning import Example, encoded
from wedlm.evaluation.work_file import WorkFile, read_results

PROBED_TOKENS = 16
TIMES_MEASURED = 5  # a prompt is answered token by token, and verified twice, each in at most twice that time


@dataclass
class Answerer:
    """The model of a run with its tokenizer, which answers prompts in batches."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    settings: AdaptSettings

    def answer_all(self, examples: list[Example], file: Path) -> None:
        """Writes a record for training for each example to a file of JSON Lines, in the order of the examples.

        Several processes share the batches. Each keeps its answers in a work file of its own until all are there.
        """
        state, size = PartialState(), self.settings.batch_size
        prompts = list(zip(examples, self.encode(examples), strict=True))
        batches = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        folder = file.with_name(f"{file.stem}.answers")
        earlier = all_results(folder)
        state.wait_for_everyone()  # nobody writes before all have read
        work = WorkFile(folder, {"process": state.process_index})
        missing = [number for number in range(len(batches)) if (number,) not in earlier]
        num_done = sum(len(batch) for number, batch in enumerate(batches) if number not in missing)
        is_quiet = not state.is_main_process
        with tqdm(total=len(examples), initial=num_done, unit=" answers", desc=file.stem, disable=is_quiet) as bar:
            for number in missing[state.process_index :: state.num_processes]:
                work.add((number,), self.answers(batches[number], number))
                bar.update(min(len(batches[number]) * state.num_processes, len(examples) - bar.n))
        state.wait_for_everyone()
        if state.is_main_process:
            results = all_results(folder)
            texts = [text for number in range(len(batches)) for text in results[(number,)]]
            self.write_records(examples, texts, file)
            shutil.rmtree(folder)
        state.wait_for_everyone()

    def answers(self, batch: list[tuple[Example, list[int]]], number: int) -> list[str]:
        """Answers a batch of prompts. What is drawn depends on the number of the batch alone."""
        prompts = [ids for example, ids in batch if example.answer is None]
        texts = iter(self.generate(prompts, number, self.settings.max_new_tokens) if prompts else [])
        return [next(texts) if example.answer is None else example.answer for example, _ in batch]

    def generate(self, prompts: list[list[int]], number: int, max_new_tokens: int) -> list[str]:
        rows = [torch.tensor(ids) for ids in prompts]
        input_ids, attention_mask = (
            pad_sequence(each, batch_first=True, padding_side="left").to(self.model.device)
            for each in (rows, [torch.ones_like(row) for row in rows])
        )
        temperature = self.settings.temperature
        torch.manual_seed(self.settings.seed + number)
        with torch.inference_mode():
            sequences = self.model.generate(
                input_ids,
                attention_mask=attention_mask,
                max_new_tokens=max_new_tokens,
                decoding="autoregressive",
                return_dict_in_generate=False,
                do_sample=temperature > 0,
                **({"temperature": temperature} if temperature > 0 else {}),
            )
        return self.tokenizer.batch_decode(sequences[:, input_ids.shape[1] :], skip_special_tokens=True)

    def write_records(self, examples: list[Example], texts: list[str], file: Path) -> None:
        """Writes the examples with their answers as training data; a blank answer teaches nothing, and is left out."""
        pairs = [(example, text) for example, text in zip(examples, texts, strict=True) if text.strip()]
        if num_blank := len(texts) - len(pairs):
            print(f"{num_blank} of {len(texts)} answers are blank, and are left out of {file.name}.")
        if not pairs:
            raise ValueError(f"All {len(texts)} answers for {file.name} are blank; give other prompts.")
        write_whole(file, "".join(json.dumps(self.record(*pair)) + "\n" for pair in pairs))

    def record(self, example: Example, text: str) -> dict:
        """Returns an example with its answer as a record of training data."""
        if isinstance(example.prompt, str) and self.tokenizer.chat_template is None:
            return {"kind": example.kind, "prompt": example.prompt, "completion": text}
        return {"kind": example.kind, "messages": [*example.messages(), {"role": "assistant", "content": text}]}

    # --- Before a run ---

    def encode(self, examples: list[Example]) -> list[list[int]]:
        return encoded(examples, self.model, self.tokenizer, self.settings.max_new_tokens)

    def check(self, examples: Examples) -> str | None:
        """Refuses prompts that cannot be answered; returns a sentence if some are too long to be trained on."""
        self.encode([*examples.held_out, *examples.also])
        lengths = [len(ids) for ids in self.encode(examples.train)]
        num_long = sum(length >= self.settings.max_length for length in lengths)
        if num_long == 0:
            return None
        found = f"{num_long} of {len(lengths)} prompts have --max-length {self.settings.max_length} tokens or more"
        if num_long == len(lengths):
            raise ValueError(f"{found}, so there is nothing to train on; give a larger number than {max(lengths)}.")
        return f"{found}, and are not trained on; a larger number takes them in."

    def expected_minutes(self, to_answer: list[Example], to_measure: list[Example], num_processes: int) -> str:
        """Says how long a run takes at most, by the time of a few tokens."""
        settings = self.settings
        of_answers = ceil(self.minutes(to_answer, settings.batch_size) / num_processes)
        of_measurement = ceil(TIMES_MEASURED * self.minutes(to_measure, 1))
        training = f"{settings.minutes:g} min" if settings.steps is None else f"{settings.steps:,} steps"
        return (
            f"{len(to_answer):,} answers take at most {of_answers:,} min, the training {training}, and the "
            f"measurement on {len(to_measure):,} prompts at most {of_measurement:,} min."
        )

    def minutes(self, examples: list[Example], batch_size: int) -> float:
        """The time in which this process would answer all the examples."""
        if not examples:
            return 0.0
        prompts = self.encode(examples[:batch_size])

        def seconds(num_tokens: int) -> float:
            return timed(lambda: self.generate(prompts, 0, num_tokens), self.model.device)[1]

        seconds(2)  # a first call is slow
        first, some = seconds(2), seconds(2 + PROBED_TOKENS)
        of_token = max(0.0, some - first) / PROBED_TOKENS  # on a busy machine the longer text may take less time
        of_batch = first + of_token * (self.settings.max_new_tokens - 2)
        return of_batch * ceil(len(examples) / batch_size) / 60


def all_results(folder: Path) -> dict[tuple, list[str]]:
    """The answers of all processes, also of a stopped run with another number of them."""
    results = {}
    for path in sorted(folder.glob("*.jsonl")):
        results |= read_results(path)
    return results
