"""The content of a model card, and the generator that writes it by card_template.md."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from wedlm.checkpoints.architectures import family_of
from wedlm.hub_card.checkpoint import Checkpoint
from wedlm.hub_card.markdown import escaped
from wedlm.hub_card.metadata import as_list, card_data
from wedlm.hub_card.options import ExportError

TEMPLATE = Path(__file__).parent / "card_template.md"
DECODINGS = {
    "streaming": "each forward fills the slots whose prediction is certain enough; a slot is final when no slot "
    "before it is open",
    "verified": "writes the autoregressive text, up to rounding, in fewer forwards; each forward also checks the "
    "drafts of earlier forwards",
    "blockwise": "like streaming, but a window of slots becomes final when all its slots are filled",
    "autoregressive": "writes token by token, as transformers does for other models",
}


class Example(NamedTuple):
    """A question, and what the checkpoint answers by default."""

    prompt: str
    text: str
    tokens: int
    forwards: int


class TaskTable(NamedTuple):
    """The measurements on one task, in Markdown."""

    title: str
    description: str
    table: str


class EvaluationSection(NamedTuple):
    """One evaluation, in Markdown.

    Args:
        conditions (`str`):
            How it was measured, in front of the command.
        command (`str`):
            The command that measured it.
        tasks (`list[TaskTable]`):
            Its tables.
        limit (`int`, *optional*):
            The number of questions of each task that were asked, where not all were.
    """

    conditions: str
    command: str
    tasks: list[TaskTable]
    limit: int | None = None


class TrainingSection(NamedTuple):
    """The training, in Markdown: its command, and facts by name."""

    command: str
    facts: dict[str, str]


class Section(NamedTuple):
    """A section of a checkpoint's own, in Markdown."""

    title: str
    text: str


class AdapterBase(NamedTuple):
    """The base of a draft adapter that is published alone.

    Args:
        name (`str`):
            The name on the Hub of the base, or of the model that it was converted from.
        to_convert (`bool`):
            Whether `wedlm convert` makes the base from that name.
    """

    name: str
    to_convert: bool

    @property
    def loaded(self) -> str:
        """The name or folder that the snippet loads."""
        return "base" if self.to_convert else self.name


@dataclass(frozen=True)
class CardContent:
    """Everything that a card says.

    Args:
        title (`str`):
            The title, and the name of the model.
        repository (`str`):
            The name by which the snippet loads the checkpoint.
        prompt (`str`):
            The question that the snippet asks.
        checkpoint (`Checkpoint`):
            The result of `read_checkpoint`.
        metadata (`dict[str, Any]`):
            Licence, base models, datasets, languages and tags.
        introduction (`str`, *optional*):
            A paragraph below the first one, in Markdown.
        examples (`Sequence[Example]`, *optional*):
            Questions with their answers.
        evaluations (`Sequence[EvaluationSection]`, *optional*):
            The measurements.
        hub_results (`Sequence[EvalResult]`, *optional*):
            The same for the Hub's model-index.
        training (`TrainingSection`, *optional*):
            How it was trained.
        loss_plot (`Path`, *optional*):
            The picture of the loss, which the card shows as `loss.png`.
        sections (`Sequence[Section]`, *optional*):
            Further sections, in front of the limits.
        base (`AdapterBase`, *optional*):
            The base, if the card is about a draft adapter alone.
    """

    title: str
    repository: str
    prompt: str
    checkpoint: Checkpoint
    metadata: dict[str, Any]
    introduction: str = ""
    examples: Sequence[Example] = ()
    evaluations: Sequence[EvaluationSection] = ()
    hub_results: Sequence[EvalResult] = ()
    training: TrainingSection | None = None
    loss_plot: Path | None = None
    sections: Sequence[Section] = ()
    base: AdapterBase | None = None

    @property
    def is_measured(self) -> bool:
        """Whether an evaluation has asked all questions of its tasks."""
        return any(evaluation.limit is None for evaluation in self.evaluations)


class Card(NamedTuple):
    """A card, and the metadata that it was given."""

    card: ModelCard
    data: ModelCardData


def make_card(content: CardContent) -> Card:
    """Writes a card by the template."""
    checkpoint, metadata = content.checkpoint, content.metadata
    drafts, bases = checkpoint.config.drafts, as_list(metadata.get("base_model"))
    relation = {"base_model_relation": "adapter"} if drafts is not None and bases else {}
    library = "transformers" if content.base is None else "peft"
    data = card_data(metadata | relation, content.title, content.hub_results, library)
    adapter_parameters = sum(value.numel() for value in checkpoint.added.values())
    card = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        content=content,
        title=escaped(content.title),
        repository=json.dumps(content.repository, ensure_ascii=False),
        prompt=json.dumps(content.prompt, ensure_ascii=False),
        parameters=shown_parameters(checkpoint.parameters if content.base is None else adapter_parameters),
        family=family_of(checkpoint.config),
        made_from=" and ".join(map(hub_link, bases)),
        drafts=drafts,
        has_chat_template=checkpoint.has_chat_template,
        decodings={name: text for name, text in DECODINGS.items() if name in checkpoint.decodings},
        defaults={name: repr(value) for name, value in checkpoint.generation.items()},
        context=f"{checkpoint.config.max_position_embeddings:,}",
        limits=list(map(escaped, checkpoint.limits)),
        licence=shown_licence(metadata),
    )
    return Card(card, data)


def check_card(readme: Path, data: ModelCardData) -> None:
    """Refuses a written card whose metadata is not `data` when huggingface_hub reads it again."""
    if ModelCard.load(readme).data.to_dict() != data.to_dict():
        raise ExportError(
            f"The metadata of the card is another when it is read again: {data.to_dict()}; change --name or the "
            "evaluation files that it comes from."
        )


def shown_parameters(parameters: int) -> str:
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f} billion"
    return f"{parameters / 1e6:.1f} million" if parameters >= 1e5 else f"{parameters:,}"


def hub_link(name: str) -> str:
    return f"[{name}](https://huggingface.co/{name})"


def shown_licence(metadata: dict[str, Any]) -> str:
    if metadata["license"] != "other":
        return f"{metadata['license']}."
    return f"{escaped(metadata['license_name'])}: {escaped(metadata['license_link'])}"
