"""The content of a model card, and the generator that writes it by card_template.md."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCard

from wedlm.checkpoints.architectures import family_of
from wedlm.checkpoints.errors import CheckpointError
from wedlm.hub_card.checkpoint import Checkpoint
from wedlm.hub_card.markdown import escaped
from wedlm.hub_card.metadata import as_list, card_data

TEMPLATE = Path(__file__).parent / "card_template.md"
DECODINGS = {
    "streaming": "each forward pass fills the slots whose prediction is certain enough, and verifies nothing; a token "
    "is final when all slots before it are filled",
    "verified": "each forward pass verifies the drafts of earlier ones: the same output as autoregressive decoding, "
    "up to rounding, in fewer passes",
    "blockwise": "like streaming, but a window becomes final as a whole, when all its slots are filled",
    "autoregressive": "token by token, as transformers decodes other models",
}


class Section(NamedTuple):
    title: str
    text: str


class EvaluationSection(NamedTuple):
    """One evaluation, in Markdown."""

    conditions: str  # how it was measured, in front of the command
    command: str
    tasks: list[Section]
    limit: int | None = None  # the number of questions of each task that were asked, where not all were
    hub_results: Sequence[EvalResult] = ()  # the same measurements for the Hub's model-index


class TrainingSection(NamedTuple):
    """The training, in Markdown: its command, and facts by name."""

    command: str
    facts: dict[str, str]


class AdapterBase(NamedTuple):
    """The base of a draft adapter that is published alone."""

    name: str  # on the Hub, of the base or of the model that it was converted from
    to_convert: bool  # whether `wedlm convert` makes the base from that name

    @property
    def loaded(self) -> str:
        """The name or folder that the snippet loads."""
        return "base" if self.to_convert else self.name


@dataclass(frozen=True)
class CardContent:
    title: str  # of the card, and the name of the model
    repository: str  # the name by which the snippet loads the checkpoint
    prompt: str  # the question that the snippet asks
    checkpoint: Checkpoint
    metadata: dict[str, Any]  # licence, base models, datasets, languages and tags
    introduction: str = ""  # a paragraph below the first one, in Markdown
    examples: Sequence[dict] = ()  # each with a `prompt`, and the `text`, `tokens` and `forwards` of the default
    evaluations: Sequence[EvaluationSection] = ()
    training: TrainingSection | None = None
    loss_plot: Path | None = None  # which the card shows as `loss.png`
    sections: Sequence[Section] = ()  # in front of the limits
    base: AdapterBase | None = None  # if the card is about a draft adapter alone

    @property
    def is_measured(self) -> bool:
        """Whether an evaluation has asked all questions of its tasks."""
        return any(evaluation.limit is None for evaluation in self.evaluations)


def make_card(content: CardContent) -> ModelCard:
    """Writes a card by the template, and refuses one whose metadata huggingface_hub reads as another."""
    checkpoint, metadata = content.checkpoint, content.metadata
    config, added = checkpoint.plan.config, checkpoint.plan.added
    bases = as_list(metadata.get("base_model"))
    relation = {"base_model_relation": "adapter"} if config.drafts is not None and bases else {}
    library = "transformers" if content.base is None else "peft"
    results = [result for evaluation in content.evaluations for result in evaluation.hub_results]
    data = card_data(metadata | relation, content.title, results, library)
    adapter_parameters = sum(value.numel() for value in added.values())
    card = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        content=content,
        title=escaped(content.title),
        repository=json.dumps(content.repository, ensure_ascii=False),
        prompt=json.dumps(content.prompt, ensure_ascii=False),
        parameters=shown_parameters(checkpoint.parameters if content.base is None else adapter_parameters),
        family=family_of(config),
        made_from=" and ".join(map(hub_link, bases)),
        drafts=config.drafts,
        has_chat_template=checkpoint.has_chat_template,
        decodings={name: text for name, text in DECODINGS.items() if name in checkpoint.decodings},
        defaults={name: repr(value) for name, value in checkpoint.generation.items()},
        context=f"{config.max_position_embeddings:,}",
        limits=list(map(escaped, checkpoint.limits)),
        licence=shown_licence(metadata),
    )
    if card.data.to_dict() != data.to_dict():
        raise CheckpointError(
            f"huggingface_hub reads the metadata of the card differently than it was written: {data.to_dict()}; "
            "change --name, or the evaluation files that it comes from."
        )
    return card


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
