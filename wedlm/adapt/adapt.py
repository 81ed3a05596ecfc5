"""The work of `wedlm adapt`: converts a model if need be, lets it answer prompts, trains a draft adapter, measures it.

A stopped run goes on where it was stopped when the same command is given again.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import AutoTokenizer, logging

from wedlm.adapt.answers import answer_all, expected_minutes
from wedlm.adapt.measure import measure
from wedlm.adapt.report import write_adapter_report
from wedlm.adapt.settings import FILES, AdaptSettings, Places, record_settings
from wedlm.adapt.tasks import Tasks, read_tasks
from wedlm.adapt.train_adapter import LOG_FILE, train_adapter
from wedlm.checkpoints.convert import convert_to_wedlm
from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.new_folder import complete_or_absent
from wedlm.checkpoints.resolve import checkpoint_folder, read_config
from wedlm.modeling_wedlm.model_type import MODEL_TYPE


def adapt(settings: AdaptSettings, places: Places, overwrite: bool = False) -> None:
    """Makes a draft adapter, and prints its table.

    Args:
        settings (`AdaptSettings`): The settings.
        places (`Places`): The folders. `check_adapt` has accepted both.
        overwrite (`bool`, *optional*, defaults to `False`): Whether OUT may hold an adapter, which is replaced.
    """
    state = PartialState(cpu=settings.device == "cpu")
    logging.set_verbosity_error()
    if state.is_main_process:
        record_settings(settings, places.work)
    state.wait_for_everyone()
    tasks = read_tasks(settings)
    base = wedlm_base(settings.model, places, state)
    answer(settings, tasks, base, places.work, state)
    tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=False)
    adapter = train_adapter(settings, base, tokenizer, places.work)
    if state.is_main_process:
        results = measure(settings, tasks, adapter, places.work)
        finish(settings, results, adapter, places.out, overwrite)


def wedlm_base(model: str, places: Places, state: PartialState) -> str:
    """Returns the model itself if it is a WeDLM, and otherwise the folder of the WeDLM that it is converted to."""
    if read_config(model, checkpoint_folder(model, with_weights=False)).get("model_type") == MODEL_TYPE:
        return model
    with state.main_process_first():
        if not places.base.exists():
            for note in convert_to_wedlm(model, places.base).notes:
                print(f"Note: {note}")
    return str(places.base)


def answer(settings: AdaptSettings, tasks: Tasks, base: str, work: Path, state: PartialState) -> None:
    """Lets the model answer the prompts that have no answer yet, and says first how long everything may take."""
    if all((work / f"{name}.jsonl").exists() for name in FILES):
        return
    model, tokenizer = load_checkpoint(base, settings.dtype, settings.device or str(state.device))
    if state.is_main_process:
        print(expected_minutes(model, tokenizer, tasks, settings, state.num_processes))
    for name in FILES:
        answer_all(model, tokenizer, getattr(tasks, name), settings, work / f"{name}.jsonl")


def finish(settings: AdaptSettings, results: dict[str, Any], adapter: Path, out: Path, overwrite: bool) -> None:
    """Writes OUT: the adapter, its report with the plot, and its card."""
    results["log"] = json.loads((adapter / LOG_FILE).read_text(encoding="utf-8"))
    with complete_or_absent(out, overwrite) as new:
        for file in adapter.glob("adapter_*"):
            shutil.copyfile(file, new / file.name)
        write_adapter_report(settings, results, new, out.name)
