"""The options of the card, and the error of an export that is impossible."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class ExportError(ValueError):
    """A checkpoint that cannot be published as asked; the message is one sentence with the remedy, shown as it is."""


@dataclass(frozen=True)
class CardOptions:
    """The options of the card from the command line. They override the metadata of the checkpoint's README.md.

    Args:
        license (`str`, *optional*):
            Licence as the Hub writes it, such as `"apache-2.0"`.
        base_models (`Sequence[str]`, *optional*):
            Names on the Hub of the models that the checkpoint was made from.
        datasets (`Sequence[str]`, *optional*):
            Names on the Hub of the data that it was trained on.
        languages (`Sequence[str]`, *optional*):
            Codes of languages such as `"en"`.
        title (`str`, *optional*):
            Title of the card; by default the name of the repository.
        prompt (`str`, *optional*):
            The question that the card's snippet asks.
        evaluation_files (`Sequence[Path]`, *optional*):
            Files that `wedlm eval` wrote.
        training_file (`Path`, *optional*):
            File that `wedlm train` wrote; by default the one in the checkpoint's folder.
        adapter_only (`bool`, defaults to `False`):
            Publish a draft adapter without its base.
    """

    license: str | None = None
    base_models: Sequence[str] = ()
    datasets: Sequence[str] = ()
    languages: Sequence[str] = ()
    title: str | None = None
    prompt: str | None = None
    evaluation_files: Sequence[Path] = ()
    training_file: Path | None = None
    adapter_only: bool = False
