"""`wedlm export`: makes a Hub repository with a card from a checkpoint, and lets it appear once its snippet has run.

Only named files go in: config and the package's code, generation_config.json, the tokenizer, LICENSE and NOTICE, the
weights, README.md and the plot of the loss. From the checkpoint's README.md only metadata is taken. Of a draft adapter
alone: its config, weights and generation_config.json, its base's tokenizer, LICENSE and NOTICE, README.md and plots.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import ModelCard
from rich.console import Console

from wedlm.checkpoints.convert import convert_to_wedlm
from wedlm.checkpoints.new_folder import check_apart, check_links, check_out, check_space, complete_or_absent
from wedlm.checkpoints.plan import SPARE_BYTES, copy_files, write_companions, write_json, write_weights
from wedlm.checkpoints.resolve import (
    ADAPTER_FILE,
    ADAPTER_WEIGHTS,
    GENERATION_FILE,
    OF_A_TOKENIZER,
    STOCK_FAMILIES,
    base_of,
    checkpoint_folder,
    checkpoint_of,
    draft_adapter,
    read_config,
)
from wedlm.checkpoints.shards import read_json
from wedlm.evaluation.provenance import digests
from wedlm.hub_card.card import AdapterBase, CardContent, make_card
from wedlm.hub_card.checkpoint import Checkpoint, read_checkpoint
from wedlm.hub_card.draft_report import PLOT_FILE, REPORT_FILE, read_draft_report
from wedlm.hub_card.evaluation_report import read_evaluation
from wedlm.hub_card.leaks import check_leaks
from wedlm.hub_card.metadata import read_metadata
from wedlm.hub_card.options import CardOptions, ExportError
from wedlm.hub_card.push import check_push, push_folder
from wedlm.hub_card.snippet import run_snippet
from wedlm.hub_card.training_report import read_training
from wedlm.modeling_wedlm.model_type import MODEL_TYPE

TRAINING_FILES = ("training_report.json", "training.json")
LOSS_PLOT = "loss.png"
PROMPT = "Solve 3x + 7 = 22 for x."
PNG_START = b"\x89PNG"


class Exported(NamedTuple):
    """The result of an export."""

    folder: Path
    url: str | None  # its address on the Hub, if it was pushed
    notes: list[str]  # sentences for whoever exported it


def export(
    model: str,
    out: str | os.PathLike,
    options: CardOptions,
    *,
    push: str | None = None,
    private: bool = False,
    overwrite: bool = False,
) -> Exported:
    """Writes a checkpoint as a Hub repository to a folder, which appears once the snippet of its card has run.

    A draft adapter becomes one whole checkpoint with its base, unless the options ask for the adapter only.

        export("out/full", "my-wedlm", CardOptions(license="apache-2.0"), push="me/my-wedlm")

    Args:
        model (`str`): The checkpoint or draft adapter: a folder, or a name on the Hub.
        out (`str` or `os.PathLike`): The folder that the repository becomes.
        options (`CardOptions`): The content of the card.
        push (`str`, *optional*): The repository on the Hub that the folder is uploaded to. If that fails, the folder
            stays.
        private (`bool`, *optional*, defaults to `False`): Whether the repository on the Hub is made private.
        overwrite (`bool`, *optional*, defaults to `False`): Whether a checkpoint that `out` holds is replaced.
    """
    out = check_out(out, overwrite)
    check_push(push, private)
    name, adapter = checkpoint_of(model), draft_adapter(model)
    folder = checkpoint_folder(name, with_weights=True)
    sources = [path for path in (folder, adapter) if path is not None]
    for source in sources:
        check_apart(out, source)
        check_links(source)
    with as_wedlm(name, folder, out, adapter) as folder:
        checkpoint = read_checkpoint(name, folder, adapter)
        content = card_content(checkpoint, options, push or out.name)
        card = make_card(content)
        write_repository(content, card, out, overwrite, [*sources, folder, out])
    notes = checkpoint.plan.notes + partial_runs(options, content)
    return Exported(out, None if push is None else push_folder(out, push, private, card), notes)


@contextmanager
def as_wedlm(name: str, folder: Path, out: Path, adapter: Path | None) -> Iterator[Path]:
    """The folder of a checkpoint; where a draft adapter was trained on a stock model, that of its conversion."""
    if adapter is None or read_config(name, folder).get("model_type") not in STOCK_FAMILIES:
        yield folder
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.incomplete-", dir=out.parent) as beside:
        convert_to_wedlm(folder, Path(beside, "base"))
        yield Path(beside, "base")


def write_repository(content: CardContent, card: ModelCard, out: Path, overwrite: bool, places: list[Path]) -> None:
    """Writes a folder that appears once the snippet of its card has run; `places` must not be named in it."""
    checkpoint, base = content.checkpoint, content.base
    adapter = checkpoint.adapter
    plan = checkpoint.plan
    check_space(out, plan.num_bytes() if base is None else SPARE_BYTES + (adapter / ADAPTER_WEIGHTS).stat().st_size)
    with complete_or_absent(out, overwrite) as new:
        if base is None:
            write_companions(plan, new)
        else:
            write_adapter(checkpoint, base.name, new)
        card.save(new / "README.md")
        if content.loss_plot is not None:
            shutil.copyfile(content.loss_plot, new / LOSS_PLOT)
        if report_beside(adapter) is not None:
            shutil.copyfile(adapter / PLOT_FILE, new / PLOT_FILE)
        if base is None:
            write_weights(plan, new)
        check_leaks(adapter or checkpoint.name, new, places)
        with Console(stderr=True).status("Running the snippet of the card in a clean process"):
            run_snippet(new, content.repository, None if base is None else {base.loaded: plan.folder})


def card_content(checkpoint: Checkpoint, options: CardOptions, repository: str) -> CardContent:
    """Returns what the card of an exported checkpoint says; the snippet loads it by the name `repository`."""
    adapter, folder = checkpoint.adapter, checkpoint.plan.folder
    metadata = read_metadata(folder, options, adapter)
    draft_report = report_beside(adapter)
    expected = {}
    if options.evaluation_files or draft_report:
        measured = folder if adapter is None else checkpoint_folder(base_of(adapter), with_weights=True)
        expected = digests(measured, adapter)
    evaluations = [read_evaluation(path, expected, adapter or checkpoint.name) for path in options.evaluation_files]
    reports = (path for name in TRAINING_FILES if (path := (adapter or folder) / name).exists())
    training_file = options.training_file or next(reports, None)
    return CardContent(
        title=" ".join((options.title or repository.rpartition("/")[2]).split()),
        repository=repository,
        prompt=options.prompt or PROMPT,
        checkpoint=checkpoint,
        metadata=metadata,
        evaluations=[evaluation.section for evaluation in evaluations],
        hub_results=[result for evaluation in evaluations for result in evaluation.hub_results],
        training=None if training_file is None else read_training(training_file),
        loss_plot=plot_beside(training_file),
        sections=[read_draft_report(draft_report, expected, adapter)] if draft_report else [],
        base=adapter_base(checkpoint, metadata["base_model"], repository) if options.adapter_only else None,
    )


def adapter_base(checkpoint: Checkpoint, name: str, repository: str) -> AdapterBase:
    """Returns the base of a draft adapter that is published alone, and refuses names that the snippet confuses."""
    trained_on = base_of(checkpoint.adapter)
    fields = read_config(trained_on, checkpoint_folder(trained_on, with_weights=False))
    is_there = not Path(trained_on).is_dir() and fields.get("model_type") == MODEL_TYPE  # on the Hub, as a WeDLM
    base = AdapterBase(name, to_convert=checkpoint.plan.config.converted_from is not None and not is_there)
    links = (Path(repository), Path(base.loaded))
    if links[0] == links[1] or links[0] in links[1].parents or links[1] in links[0].parents:
        raise ExportError(
            f"The card's snippet would load the adapter as {repository} and its base as {base.loaded}, which cannot "
            "both be folders; choose another name for OUT."
        )
    return base


def write_adapter(checkpoint: Checkpoint, base: str, new: Path) -> None:
    """Writes the files of a draft adapter that records the name `base`, and the tokenizer of its base."""
    adapter, plan = checkpoint.adapter, checkpoint.plan
    write_json(new / ADAPTER_FILE, read_json(adapter / ADAPTER_FILE) | {"base_model_name_or_path": base})
    if (adapter / GENERATION_FILE).exists():
        write_json(new / GENERATION_FILE, plan.changed[GENERATION_FILE])
    copy_files(adapter, new, (ADAPTER_WEIGHTS, "LICENSE*", "NOTICE*"))
    copy_files(plan.folder, new, OF_A_TOKENIZER)
    if "tokenizer_config.json" in plan.changed:
        write_json(new / "tokenizer_config.json", plan.changed["tokenizer_config.json"])


def partial_runs(options: CardOptions, content: CardContent) -> list[str]:
    """Returns a sentence for each evaluation that has not asked all questions."""
    return [
        f"{path} is of a run with --limit {evaluation.limit}; the card calls it partial, and the metadata leaves it "
        "out."
        for path, evaluation in zip(options.evaluation_files, content.evaluations, strict=True)
        if evaluation.limit is not None
    ]


def plot_beside(training_file: Path | None) -> Path | None:
    plot = None if training_file is None else training_file.parent / LOSS_PLOT
    return plot if plot is not None and plot.is_file() and plot.read_bytes().startswith(PNG_START) else None


def report_beside(adapter: Path | None) -> Path | None:
    """Returns the report of `wedlm adapt` in the folder of an adapter, if it is there with its plot."""
    found = adapter is not None and all((adapter / name).is_file() for name in (REPORT_FILE, PLOT_FILE))
    return adapter / REPORT_FILE if found else None
