"""The options of the card, and the error of an export that is impossible."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class ExportError(ValueError):
    """A checkpoint that cannot be published as asked; the message is one sentence with the remedy, shown as it is."""


@dataclass(frozen=True)
class CardOptions:
    """The options of the card from the command line. They override the metadata of the checkpoint's README.md."""

    license: str | None = None  # as the Hub writes it, such as "apache-2.0"
    base_models: Sequence[str] = ()  # names on the Hub of the models that the checkpoint was made from
    datasets: Sequence[str] = ()  # names on the Hub of the data that it was trained on
    languages: Sequence[str] = ()  # codes such as "en"
    title: str | None = None  # by default the name of the repository
    prompt: str | None = None  # the question of the snippet
    evaluation_files: Sequence[Path] = ()  # that `wedlm eval` wrote
    training_file: Path | None = None  # that `wedlm train` wrote; by default the one in the checkpoint's folder
    adapter_only: bool = False  # publish a draft adapter without its base
