"""The work of `wedlm adapt`: lets a model answer prompts, trains a draft adapter on the answers, and measures it.

A stopped run goes on where it was stopped when the same command is given again.
"""

import json
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from accelerate import PartialState
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, logging

from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.new_folder import complete_or_absent
from wedlm.checkpoints.plan import copy_files
from wedlm.checkpoints.resolve import (
    ADAPTER_FILE,
    ADAPTER_WEIGHTS,
    GENERATION_FILE,
    OF_A_TOKENIZER,
    base_of,
    checkpoint_folder,
)
from wedlm.drafts.adapter_training import LOG_FILE, train_adapter
from wedlm.drafts.answers import Answerer
from wedlm.drafts.check import record_settings
from wedlm.drafts.measure import measure, write_adapter_report
from wedlm.drafts.prompt_split import Examples
from wedlm.drafts.settings import FILES, AdaptSettings, work_folder
from wedlm.generation.model_check import check_fits
from wedlm.training.draft_lora import LAYERS

ON_A_CPU = (
    "On a CPU an adapter brings little: measured decoding was between 4 % slower and 10 % faster than with prompt "
    "lookup alone (docs/adapt.md, When it pays)."
)


def adapt(settings: AdaptSettings, examples: Examples, out: Path, overwrite: bool = False) -> None:
    """Makes a draft adapter, and prints its table."""
    on_cpu = not torch.cuda.is_available() if settings.device is None else settings.device == "cpu"
    # Processes wait for each other behind the answers, which take hours.
    state = PartialState(cpu=on_cpu, timeout=timedelta(days=7))
    logging.set_verbosity_error()
    if on_cpu:
        state.print(ON_A_CPU, flush=True)
    work = work_folder(out)
    try:
        answer(settings, examples, work, state)
        tokenizer = AutoTokenizer.from_pretrained(settings.model, trust_remote_code=False)
        adapter = train_adapter(settings, tokenizer, work)
    except KeyboardInterrupt:
        state.print(f"\nStopped; the same command goes on from {work}.", file=sys.stderr)
        raise
    if state.is_main_process:
        print("The prompts that were held out are answered token by token and verified.", flush=True)
        finish(settings, measure(settings, examples, adapter, work), adapter, out, overwrite)


def check_model(model: PreTrainedModel) -> None:
    """Refuses a model that no draft adapter can be made for, before it answers for hours."""
    layers = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not layers & set(LAYERS):
        raise ValueError(
            f"{type(model).__name__} has none of the linear layers {', '.join(LAYERS)}, which a draft adapter works "
            "on; give a model that has."
        )
    check_fits(model)


def answer(settings: AdaptSettings, examples: Examples, work: Path, state: PartialState) -> None:
    """Lets the model answer the prompts that have no answer yet, and says first how long everything may take."""
    files = [file for name in FILES if not (file := work / f"{name}.jsonl").exists()]
    if not files:
        return
    device = settings.device or state.device.type
    model, tokenizer = load_checkpoint(settings.model, settings.dtype, device, only_decodes=True, or_stock=True)
    check_model(model)
    state.print("The model is loaded, and a few tokens are timed.", flush=True)
    answerer = Answerer(model, tokenizer, settings)
    note = answerer.check(examples)
    if state.is_main_process:
        record_settings(settings, work)
        to_answer = [example for file in files for example in getattr(examples, file.stem) if example.answer is None]
        minutes = answerer.expected_minutes(to_answer, [*examples.held_out, *examples.also], state.num_processes)
        print(*filter(None, (note, minutes)), sep="\n", flush=True)
    for file in files:
        answerer.answer_all(getattr(examples, file.stem), file)


def finish(settings: AdaptSettings, results: dict[str, Any], adapter: Path, out: Path, overwrite: bool) -> None:
    """Writes OUT: the adapter, its report with the plot, and its card."""
    results["log"] = json.loads((adapter / LOG_FILE).read_text(encoding="utf-8"))
    with complete_or_absent(out, overwrite) as new:
        for name in (ADAPTER_FILE, ADAPTER_WEIGHTS, GENERATION_FILE):
            shutil.copyfile(adapter / name, new / name)
        copy_files(checkpoint_folder(base_of(new), with_weights=False), new, OF_A_TOKENIZER)
        write_adapter_report(settings, results, new, out.name)
    work = work_folder(out)
    size = sum(file.stat().st_size for file in work.rglob("*") if file.is_file()) / 1e6
    print(
        f"Written to {out}; {work} ({size:,.1f} MB) keeps the answers and can be removed.\n"
        f'Next: wedlm generate {quote(str(out))} "Why is the sky blue?"'
    )
