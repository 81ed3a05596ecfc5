"""`wedlm export`: a checkpoint as a Hub repository with a card, of which nothing counts before its snippet has run.

Only what is named here goes in: config and our code, generation_config, the tokenizer, LICENSE and NOTICE, the
weights, README.md and the plot of the loss. Of the checkpoint's README.md only metadata is taken over.
"""

import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.utils import validate_repo_id
from rich.console import Console

from wedlm.checkpoints.architectures import check_shapes, wedlm_model
from wedlm.checkpoints.errors import one_line
from wedlm.checkpoints.facts import limits_of_parallel_decoding, offered_decodings
from wedlm.checkpoints.new_folder import check_apart, check_out, check_space, complete_or_absent
from wedlm.checkpoints.plan import SPARE_BYTES, Plan, write_companions, write_weights
from wedlm.checkpoints.resolve import (
    GENERATION_FILE,
    check_weights,
    checkpoint_folder,
    read_config,
    read_generation_fields,
    require_tokenizer,
    require_wedlm,
)
from wedlm.checkpoints.shards import Shard, read_shards
from wedlm.checkpoints.tokenizer_files import TokenizerFiles
from wedlm.evaluation.provenance import weights_digest
from wedlm.generation.support import DEFAULTS
from wedlm.hub_card.leaks import environment_without_secrets, find_leak, secrets_here
from wedlm.hub_card.model_card import (
    CardOptions,
    ExportError,
    as_list,
    card_data,
    escaped,
    read_evaluation,
    read_metadata,
    read_training,
)
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig

TEMPLATE = Path(__file__).parent / "card_template.md"
TRAINING_FILES = ("training_report.json", "training.json")
LOSS_PLOT = "loss.png"
PROMPT = "Solve 3x + 7 = 22 for x."
PNG_START = b"\x89PNG"
# Of tokenizer_config.json: where somebody once loaded it from.
PLACES_OF_TOKENIZERS = {"name_or_path", "_name_or_path", "special_tokens_map_file", "tokenizer_file"}
DECODINGS = {
    "streaming": "several tokens per forward: slots that are certain enough are filled, each final when none is open "
    "before it",
    "verified": "the autoregressive text, but for rounding, in fewer forwards: drafts are judged by the same forward",
    "blockwise": "as streaming, but a window is final when all of it is filled",
    "autoregressive": "token by token, transformers' own",
}
WITHOUT_WEDLM = "import sys\nsys.modules['wedlm'] = None  # as if it were not installed\n"


class Exported(NamedTuple):
    """What an export left: the folder, its address on the Hub if it was pushed, and what to know, a sentence each."""

    folder: Path
    url: str | None
    notes: list[str]


class Checkpoint(NamedTuple):
    """What is known of a checkpoint without its weights."""

    name: str
    folder: Path
    config: WeDLMConfig
    parameters: int
    shards: list[Shard]
    changed: dict[str, dict]  # files with another content than in `folder`
    generation: dict[str, Any]  # the defaults of parallel decoding
    decodings: list[str]
    has_chat_template: bool
    limits: list[str]
    notes: list[str]


def export(
    model: str,
    out: str | os.PathLike,
    options: CardOptions,
    *,
    push: str | None = None,
    private: bool = False,
    overwrite: bool = False,
) -> Exported:
    """Writes the checkpoint `model`, a folder or a name on the Hub, to the folder `out` as a Hub repository.

    export("out/full", "my-wedlm", CardOptions(license="apache-2.0"), push="me/my-wedlm")

    `out` appears when the snippet of its card has run. A push that fails leaves it as it is.
    """
    out = check_out(out, overwrite)
    if push is not None:
        check_push(push)
    elif private:
        raise ExportError("--private is about what is pushed; pass --push REPO with it, or leave it out.")
    folder = checkpoint_folder(model, with_weights=True)
    check_apart(out, folder)
    checkpoint = read_checkpoint(model, folder)
    card, data, loss_plot = make_card(checkpoint, options, push or out.name)
    check_space(out, sum(shard.num_bytes for shard in checkpoint.shards) + SPARE_BYTES)
    with complete_or_absent(out, overwrite) as new:
        plan = Plan(checkpoint.config, checkpoint.shards, {}, folder, checkpoint.changed, None, [])
        write_companions(plan, new)
        card.save(new / "README.md")
        check_card(new / "README.md", data)
        if loss_plot is not None:
            shutil.copyfile(loss_plot, new / LOSS_PLOT)
        write_weights(plan, new)
        check_leaks(checkpoint, new, [folder.absolute(), folder.resolve(), out])
        with Console(stderr=True).status("Running the snippet of the card in a clean process"):
            run_snippet(new, push or out.name)
    return Exported(out, None if push is None else pushed(out, push, private, card), checkpoint.notes)


# --- What is read ---


def read_checkpoint(name: str, folder: Path) -> Checkpoint:
    fields = read_config(name, folder)
    require_wedlm(name, fields)
    check_weights(name, folder)
    require_tokenizer(name, folder)
    config, model = wedlm_model(fields, name)
    shards = read_shards(folder)
    check_shapes(shards, model, name)
    tokenizer_config = TokenizerFiles.read(folder).file("tokenizer_config.json")
    changed, notes = {}, []
    if tokenizer_config.keys() & PLACES_OF_TOKENIZERS:
        changed["tokenizer_config.json"] = without(tokenizer_config, *PLACES_OF_TOKENIZERS)
    generation = read_generation_fields(folder)
    if not generation:
        generation = changed[GENERATION_FILE] = json.loads(model.generation_config.to_json_string())
    if "max_new_tokens" in generation:
        notes.append(
            f"max_new_tokens={generation['max_new_tokens']} of {GENERATION_FILE} is left out: callers say it."
        )
        generation = changed[GENERATION_FILE] = without(generation, "max_new_tokens")
    limits = limits_of_parallel_decoding(model, generation)
    config.architectures, config.auto_map = ["WeDLMForCausalLM"], None  # our code's, which is written beside it
    return Checkpoint(
        name,
        folder,
        config,
        model.num_parameters(),
        shards,
        changed,
        {name: generation.get(name, default) for name, default in DEFAULTS.items()},
        offered_decodings(model, generation),
        bool(tokenizer_config.get("chat_template")) or any(folder.glob("chat_template.*")),
        limits,
        notes + limits,
    )


def without(fields: dict, *names: str) -> dict:
    return {name: value for name, value in fields.items() if name not in names}


# --- The card ---


class Card(NamedTuple):
    card: ModelCard
    data: ModelCardData
    loss_plot: Path | None  # that it shows


def make_card(checkpoint: Checkpoint, options: CardOptions, repository: str) -> Card:
    metadata = read_metadata(checkpoint.folder, options)
    digest = weights_digest(checkpoint.folder) if options.evaluation_files else ""
    evaluations = [read_evaluation(path, digest, checkpoint.name) for path in options.evaluation_files]
    found = [path for name in TRAINING_FILES if (path := checkpoint.folder / name).exists()]
    training_file = options.training_file or next(iter(found), None)
    loss_plot = plot_beside(training_file)
    title = " ".join((options.title or repository.rpartition("/")[2]).split())
    data = card_data(metadata, title, evaluations)
    card = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        title=escaped(title),
        repository=json.dumps(repository, ensure_ascii=False),
        prompt=json.dumps(options.prompt or PROMPT, ensure_ascii=False),
        parameters=parameters_text(checkpoint.parameters),
        family="Qwen3" if checkpoint.config.qk_norm else "Qwen2.5",
        made_from=" and ".join(map(hub_link, as_list(metadata.get("base_model")))),
        has_chat_template=checkpoint.has_chat_template,
        decodings=[(name, text) for name, text in DECODINGS.items() if name in checkpoint.decodings],
        defaults={name: repr(value) for name, value in checkpoint.generation.items()},
        evaluations=[evaluation.for_card() for evaluation in evaluations],
        training=None if training_file is None else read_training(training_file),
        has_loss_plot=loss_plot is not None,
        context=f"{checkpoint.config.max_position_embeddings:,}",
        limits=list(map(escaped, checkpoint.limits)),
        licence=licence_text(metadata),
    )
    return Card(card, data, loss_plot)


def plot_beside(training_file: Path | None) -> Path | None:
    plot = None if training_file is None else training_file.parent / LOSS_PLOT
    return plot if plot is not None and plot.is_file() and plot.read_bytes().startswith(PNG_START) else None


def parameters_text(parameters: int) -> str:
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f} billion"
    return f"{parameters / 1e6:.1f} million" if parameters >= 1e5 else f"{parameters:,}"


def hub_link(name: str) -> str:
    return f"[{name}](https://huggingface.co/{name})"


def licence_text(metadata: dict[str, Any]) -> str:
    if metadata["license"] != "other":
        return f"{metadata['license']}."
    return f"{escaped(metadata['license_name'])}: {escaped(metadata['license_link'])}"


# --- What is checked before OUT appears ---


def check_card(readme: Path, data: ModelCardData) -> None:
    if ModelCard.load(readme).data.to_dict() != data.to_dict():
        raise ExportError(
            f"The metadata of the card is another when it is read again: {data.to_dict()}; change what --name and the "
            "evaluation files say."
        )


def check_leaks(checkpoint: Checkpoint, new: Path, places: list[Path]) -> None:
    """Looks through every file in `new`; of the weights it is what their headers say besides names and shapes."""
    texts = {new / shard.path.name: json.dumps(shard.metadata) for shard in checkpoint.shards}
    files = (path for path in new.rglob("*") if path.is_file() and path not in texts)
    texts |= {path: path.read_bytes().decode("utf-8", errors="replace") for path in files}
    secrets = secrets_here()
    for path, text in texts.items():
        if leak := find_leak(text, places, secrets):
            name = path.relative_to(new)
            source = "what the card is made of" if name == Path("README.md") else f"that file of {checkpoint.name}"
            raise ExportError(f"{name} would hold {leak}; take it out of {source}, and export again.")


def run_snippet(folder: Path, repository: str) -> None:
    """Runs the card's first block of Python as it stands, in a process that has no wedlm, no network and no token."""
    readme = (folder / "README.md").read_text(encoding="utf-8")
    snippet = re.search(r"^```python\n(.*?)^```$", readme, flags=re.MULTILINE | re.DOTALL)[1]
    with tempfile.TemporaryDirectory() as place:
        home, link = Path(place, "home"), Path(place, "here", repository)
        home.mkdir()
        link.parent.mkdir(parents=True)
        link.symlink_to(folder, target_is_directory=True)  # what the snippet calls it is found there
        environment = environment_without_secrets() | {
            "HOME": str(home),
            "PYTHONUSERBASE": site.getuserbase(),  # or what is installed there would go with the old home
            "HF_HOME": str(home / "huggingface"),
            "HF_MODULES_CACHE": str(home / "modules"),
            "HF_HUB_OFFLINE": "1",
        }
        ran = subprocess.run(
            [sys.executable, "-c", WITHOUT_WEDLM + snippet],
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
        reason = last_line if ran.returncode > 0 else f"signal {-ran.returncode}, as when memory is short"
        raise ExportError(
            f"The snippet of the card does not run without wedlm ({one_line(reason)}); correct the checkpoint, or "
            "export where there is room for it."
        )


# --- The Hub ---


def check_push(repository: str) -> None:
    try:
        validate_repo_id(repository)
        if repository.count("/") != 1:
            raise ValueError("there is no owner before it")
    except ValueError as error:
        raise ExportError(
            f"--push {repository} names no repository ({one_line(error)}); give OWNER/NAME, such as me/my-wedlm."
        ) from error
    try:
        HfApi().whoami()
    except Exception as error:  # of any kind: no token, a wrong one, no network
        raise ExportError(
            f"--push {repository} needs the Hub, which says no ({one_line(error)}); log in with `hf auth login`, or "
            "leave --push out."
        ) from error


def pushed(out: Path, repository: str, private: bool, card: ModelCard) -> str:
    """The address of what `out` was uploaded to."""
    api = HfApi()
    try:
        card.validate()
        url = api.create_repo(repository, private=private or None, exist_ok=True)
        if private and not api.model_info(repository).private:
            raise ValueError("it was there before, and is public")
        api.upload_folder(repo_id=repository, folder_path=out)
    except Exception as error:  # of any kind: the Hub's, the network's
        raise ExportError(
            f"{out} is complete, and was not pushed to {repository} ({one_line(error)}); when that is put right, "
            f"`hf upload {repository} {shlex.quote(str(out))}` does it."
        ) from error
    return str(url)
