"""Refuses what `wedlm adapt` cannot work with, before torch is imported and anything is written."""

from pathlib import Path

from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.new_folder import check_apart, check_out
from wedlm.checkpoints.resolve import (
    ADAPTER_FILE,
    ADAPTER_WEIGHTS,
    check_weights,
    checkpoint_folder,
    draft_adapter,
    has_draft_type,
    read_config,
    require_tokenizer,
)
from wedlm.checkpoints.shards import read_json
from wedlm.drafts.prompt_split import Tasks, read_tasks
from wedlm.drafts.settings import AdaptError, AdaptSettings, check_settings, work_folder


def check_adapt(settings: AdaptSettings, out: Path, overwrite: bool) -> Tasks:
    """Refuses a model, files, or an OUT that no adapter can be made with; returns the prompts."""
    check_out(out, overwrite)
    if draft_adapter(settings.model) is not None:
        raise CheckpointError(
            f"{settings.model} is a draft adapter itself; give its base, and --start-from {settings.model} to train "
            "it further."
        )
    folder = checkpoint_folder(settings.model, with_weights=False)
    read_config(settings.model, folder)
    require_tokenizer(settings.model, folder)
    if Path(settings.model).is_dir():
        check_weights(settings.model, folder)
    check_apart(out, folder)
    tasks = read_tasks(settings)
    if (start := settings.start_from) is not None:
        if not (has_draft_type(start) and (start / ADAPTER_WEIGHTS).is_file()):
            raise AdaptError(f"--start-from {start} is no folder of a draft adapter; give one, or leave it out.")
        if (rank := read_json(start / ADAPTER_FILE).get("r")) != settings.rank:
            raise AdaptError(f"--start-from {start} has the rank {rank}, and not {settings.rank}; pass --rank {rank}.")
    check_settings(settings, work_folder(out))
    return tasks


def what_is_done(settings: AdaptSettings, tasks: Tasks) -> str:
    """The first line of the command, before the minutes in which torch is imported and the model is loaded."""
    how_long = f"for {settings.minutes:g} minutes" if settings.steps is None else f"in {settings.steps:,} steps"
    return (
        f"{settings.model} answers {sum(task.answer is None for task in tasks.train + tasks.held_out):,} prompts, an "
        f"adapter is trained on the answers {how_long}, and {len(tasks.held_out) + len(tasks.also):,} prompts are "
        "measured; how long this takes is said when the model is loaded. After a stop the same command goes on."
    )
