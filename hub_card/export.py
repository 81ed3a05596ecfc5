"""`wedlm export`: makes a Hub repository with a card from a checkpoint, which appears once its snippet has run."""

import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import validate_repo_id
from rich.console import Console

from wedlm.checkpoints.convert import convert_to_wedlm
from wedlm.checkpoints.errors import CheckpointError, one_line
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
from wedlm.hub_card.leaks import check_leaks, environment_without_secrets
from wedlm.hub_card.metadata import CardOptions, read_metadata
from wedlm.hub_card.reports import PLOT_FILE, REPORT_FILE, read_draft_report, read_evaluation, read_training
from wedlm.modeling_wedlm.model_type import MODEL_TYPE

TRAINING_FILES = ("training_report.json", "training.json")
LOSS_PLOT = "loss.png"
PROMPT = "Solve 3x + 7 = 22 for x."
PNG_START = b"\x89PNG"


class Exported(NamedTuple):
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
    """Yields the folder of a checkpoint, or of its conversion if it is a stock model with a draft adapter."""
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
        check_leaks(adapter or checkpoint.plan.name, new, places)
        with Console(stderr=True).status("Running the snippet of the card in a clean process"):
            run_snippet(new, content.repository, None if base is None else {base.loaded: plan.folder})


def card_content(checkpoint: Checkpoint, options: CardOptions, repository: str) -> CardContent:
    """Returns what the card of an exported checkpoint says; the snippet loads it by the name `repository`."""
    adapter, name, folder = checkpoint.adapter, checkpoint.plan.name, checkpoint.plan.folder
    metadata = read_metadata(folder, options, adapter)
    draft_report = report_beside(adapter)
    expected = {}
    if options.evaluation_files or draft_report:
        measured = folder if adapter is None else checkpoint_folder(base_of(adapter), with_weights=True)
        expected = digests(measured, adapter)
    evaluations = [read_evaluation(path, expected, adapter or name) for path in options.evaluation_files]
    reports = (path for name in TRAINING_FILES if (path := (adapter or folder) / name).exists())
    training_file = options.training_file or next(reports, None)
    return CardContent(
        title=" ".join((options.title or repository.rpartition("/")[2]).split()),
        repository=repository,
        prompt=options.prompt or PROMPT,
        checkpoint=checkpoint,
        metadata=metadata,
        evaluations=evaluations,
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
        raise CheckpointError(
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
    return [
        f"{path} comes from a run with --limit {evaluation.limit}; the card calls it partial, and the metadata leaves "
        "it out."
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


# --- The snippet ---

WITHOUT_WEDLM = "import sys\nsys.modules['wedlm'] = None  # import wedlm fails, as if it were not installed\n"


def run_snippet(folder: Path, repository: str, bases: dict[str, Path] | None = None) -> None:
    """Runs the first Python block of README.md as it stands, and refuses a card whose snippet fails.

    The snippet loads `folder`, the repository as it is published, by the name `repository`. `bases` are the folders,
    by name, of other checkpoints that it loads with wedlm; without any it runs without wedlm.
    """
    readme = (folder / "README.md").read_text(encoding="utf-8")
    snippet = re.search(r"^```python\n(.*?)^```$", readme, flags=re.MULTILINE | re.DOTALL)[1]
    with tempfile.TemporaryDirectory() as place:
        home = Path(place, "home")
        home.mkdir()
        for name, target in {repository: folder, **(bases or {})}.items():
            link = Path(place, "here", name)  # the snippet finds the folder under its name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target.absolute(), target_is_directory=True)
        environment = environment_without_secrets() | {
            "HOME": str(home),
            "PYTHONUSERBASE": site.getuserbase(),  # finds the user's packages in spite of the other home
            "HF_HOME": str(home / "huggingface"),
            "HF_MODULES_CACHE": str(home / "modules"),
            "HF_HUB_OFFLINE": "1",
        }
        ran = subprocess.run(
            [sys.executable, "-c", snippet if bases else WITHOUT_WEDLM + snippet],
            cwd=place + "/here",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    if ran.returncode:
        *_, last_line = ["", *filter(None, map(str.strip, ran.stderr.splitlines()))]
        reason = last_line if ran.returncode > 0 else f"signal {-ran.returncode}, as if memory ran out"
        where = "" if bases else " without wedlm"
        raise CheckpointError(
            f"The snippet of the card does not run{where} ({one_line(reason)}); correct the checkpoint, or "
            "export on a machine with enough memory."
        )


# --- The Hub ---


def check_push(repository: str | None, private: bool) -> None:
    """Refuses a repository that is not a valid name, and a user who is not logged in; None means no push."""
    if repository is None:
        if private:
            raise CheckpointError(
                "--private applies to the repository of --push; pass --push OWNER/NAME with it, or leave it out."
            )
        return
    try:
        validate_repo_id(repository)
        if repository.count("/") != 1:
            raise ValueError("it has no owner")
    except ValueError as error:
        raise CheckpointError(
            f"--push {repository} is not the name of a repository ({one_line(error)}); pass OWNER/NAME, such as "
            "me/my-wedlm."
        ) from error
    try:
        HfApi().whoami()
    except Exception as error:  # of any kind: no token, a wrong one, no network
        raise CheckpointError(
            f"--push {repository} needs the Hub, where the login failed ({one_line(error)}); log in with `hf auth "
            "login`, or leave --push out."
        ) from error


def push_folder(out: Path, repository: str, private: bool, card: ModelCard) -> str:
    """Uploads a folder, which stays as it is if that fails, and returns its address on the Hub.

    The Hub validates the card first. With `private`, a public repository that exists is refused.
    """
    api = HfApi()
    try:
        card.validate()
        url = api.create_repo(repository, private=private or None, exist_ok=True)
        if private and not api.model_info(repository).private:
            raise ValueError("it already exists and is public")
        api.upload_folder(repo_id=repository, folder_path=out)
    except Exception as error:  # of any kind: the Hub's, the network's
        raise CheckpointError(
            f"{out} is complete, but the push to {repository} failed ({one_line(error)}); fix the cause, and run "
            f"`hf upload {repository} {shlex.quote(str(out))}`."
        ) from error
    return str(url)
