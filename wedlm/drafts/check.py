"""Refuses what `wedlm adapt` cannot work with, before torch is imported and anything is written."""

import json
import os
from dataclasses import asdict
from hashlib import file_digest, sha256
from pathlib import Path

from wedlm.checkpoints.new_folder import check_apart, check_out
from wedlm.checkpoints.resolve import (
    ADAPTER_FILE,
    ADAPTER_WEIGHTS,
    check_weights,
    checkpoint_folder,
    draft_adapter,
    has_draft_type,
    read_config,
    require_own_format,
    require_tokenizer,
)
from wedlm.checkpoints.shards import read_json, shard_names
from wedlm.checkpoints.whole_file import write_whole
from wedlm.drafts.prompt_split import Examples, examples_of
from wedlm.drafts.settings import AdaptSettings, option, work_folder

SETTINGS_FILE = "settings.json"
FREE = ("model", "measure_also", "device")  # settings that a continued run may change; `weights` stands for the model


def check_adapt(settings: AdaptSettings, out: Path, overwrite: bool) -> Examples:
    """Refuses a model, files, or an OUT that no adapter can be made with; returns the prompts."""
    check_out(out, overwrite)
    if draft_adapter(settings.model) is not None:
        raise ValueError(
            f"{settings.model} is a draft adapter itself; give its base, and --start-from {settings.model} to train "
            "it further."
        )
    folder = checkpoint_folder(settings.model, with_weights=False)
    read_config(settings.model, folder)
    require_own_format(settings.model, folder)
    require_tokenizer(settings.model, folder)
    if Path(settings.model).is_dir():
        check_weights(settings.model, folder)
    check_apart(out, folder)
    examples = examples_of(settings)
    if (start := settings.start_from) is not None:
        if not (has_draft_type(start) and (start / ADAPTER_WEIGHTS).is_file()):
            raise ValueError(f"--start-from {start} is not a folder of a draft adapter; give one, or leave it out.")
        fields = read_json(start / ADAPTER_FILE)
        if (rank := fields.get("r")) != settings.rank:
            raise ValueError(f"--start-from {start} has the rank {rank}, and not {settings.rank}; pass --rank {rank}.")
        if fields.get("mask_shift", False) != settings.mask_shift:
            predicted, own = ("of their own places", "--no-") if settings.mask_shift else ("behind them", "--")
            raise ValueError(
                f"The MASKs of --start-from {start} predict the tokens {predicted}; pass {own}mask-shift."
            )
    check_settings(settings, work_folder(out))
    return examples


def what_is_done(settings: AdaptSettings, examples: Examples) -> str:
    """The first line of the command, before the minutes in which torch is imported and the model is loaded."""
    how_long = f"for {settings.minutes:g} minutes" if settings.steps is None else f"in {settings.steps:,} steps"
    num_to_answer = sum(example.answer is None for example in examples.train + examples.held_out)
    return (
        f"{settings.model} answers {num_to_answer:,} prompts, an adapter is trained on the answers {how_long}, and "
        f"{len(examples.held_out) + len(examples.also):,} prompts are measured; how long this takes is said when the "
        "model is loaded. After a stop the same command goes on."
    )


# --- A stopped run ---


def record_of(settings: AdaptSettings) -> dict[str, object]:
    """The settings as JSON. A file and the weights of the model are recorded by a hash, which shows a change."""
    digests = {}
    for name, value in asdict(settings).items():
        if isinstance(value, Path):
            digests[name] = digest(value / ADAPTER_WEIGHTS if name == "start_from" else value)
    return asdict(settings) | digests | {"weights": weights_of(settings.model)}


def digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); give a file that can.") from None


def weights_of(model: str) -> str:
    """Identifies the weights of a checkpoint: the commit on the Hub, or a digest of the files in a folder."""
    folder = checkpoint_folder(model, with_weights=False)
    if not Path(model).is_dir():
        return folder.name
    digests = [f"{name} {digest(folder / name)}" for name in shard_names(folder)]
    return sha256("\n".join(digests).encode()).hexdigest()


def check_settings(settings: AdaptSettings, work: Path) -> None:
    """Refuses settings other than those of the stopped run in `work`."""
    path = work / SETTINGS_FILE
    wanted = record_of(settings)
    if not path.exists() or os.listdir(work) == [SETTINGS_FILE]:
        return
    recorded = json.loads(path.read_text(encoding="utf-8"))
    name = next((name for name in wanted if name not in FREE and recorded.get(name) != wanted[name]), None)
    if name is None:
        return
    if name == "weights":
        kind = "another MODEL, or with other weights of it"
    elif isinstance(getattr(settings, name), Path):
        kind = f"another {option(name)}, or an earlier content of it"
    else:
        kind = f"{option(name)} {recorded.get(name)}, and not {wanted[name]}"
    raise ValueError(f"{work} holds a run with {kind}; give its options to go on, or remove the folder to start anew.")


def record_settings(settings: AdaptSettings, work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    write_whole(work / SETTINGS_FILE, json.dumps(record_of(settings), indent=2) + "\n")
