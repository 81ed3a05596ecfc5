"""The metadata of a card: read from README.md and the command line, checked, and put into the Hub's form."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData, metadata_load
from huggingface_hub.utils import validate_repo_id

from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.resolve import HUB_NAME, base_of
from wedlm.hub_card.markdown import on_one_line

# The identifiers of https://huggingface.co/docs/hub/repositories-licenses.
LICENCES = """
afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0
cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0
cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2
fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community h-research intel-research isc lgpl
lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by
ofl-1.1 open-mdw openmdw-1.0 openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib
""".split()
LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[A-Za-z]+)*|code|multilingual")
README_FIELDS = ("license", "license_name", "license_link", "base_model", "datasets", "language", "tags")
TASK = "text-generation"


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


def read_metadata(folder: Path, options: CardOptions, adapter: Path | None = None) -> dict[str, Any]:
    """Returns the metadata of a card, checked: that of the README.md in the folder, if there is one.

    That of a draft adapter overrides it, and the options override both.
    """
    readme = folder / "README.md"
    metadata = read_readme(readme)
    if adapter is not None:
        readme = adapter / "README.md"
        metadata |= of_adapter(read_readme(readme), base_of(adapter))
    if options.license is not None:
        metadata = {name: value for name, value in metadata.items() if not name.startswith("license")}
        metadata["license"] = options.license
    given = {"base_model": options.base_models, "datasets": options.datasets, "language": options.languages}
    metadata |= {name: list(values) for name, values in given.items() if values}
    if options.adapter_only:
        metadata["base_model"] = base_on_hub(folder, options, adapter)
    check_licence(metadata, readme)
    for name in (name for name in given if name in metadata):
        values = as_list(metadata[name])
        for value in values:
            (check_language if name == "language" else check_hub_name)(name, value)
        metadata[name] = values if name == "datasets" or len(values) > 1 else values[0]
    return metadata


def read_readme(readme: Path) -> dict[str, Any]:
    """Returns the metadata of a README.md, which may be missing, but for what an export finds out itself."""
    try:
        written = (metadata_load(readme) or {}) if readme.exists() else {}
    except (ValueError, OSError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(f"The metadata of {readme} cannot be read ({one_line(error)}); correct it.") from error
    return {name: written[name] for name in README_FIELDS if written.get(name) is not None}


def of_adapter(metadata: dict[str, Any], base: str) -> dict[str, Any]:
    """Returns the metadata of an adapter, where PEFT has written the base, even a local path, into README.md."""
    tags = [tag for tag in as_list(metadata.get("tags")) if not str(tag).startswith("base_model:")]
    own = {name: value for name, value in metadata.items() if name not in ("base_model", "tags")}
    of_base = {} if Path(base).is_dir() else {"base_model": base}
    return own | of_base | ({"tags": tags} if tags else {})


def base_on_hub(folder: Path, options: CardOptions, adapter: Path | None) -> str:
    """Returns the name by which others get the base, in `folder`, of a draft adapter that is published alone."""
    if adapter is None:
        raise CheckpointError(f"{folder} is not a draft adapter; leave out --adapter-only, which needs one.")
    names = options.base_models or ([] if Path(base_of(adapter)).is_dir() else [base_of(adapter)])
    if len(names) != 1 or not re.fullmatch(HUB_NAME, names[0]):
        raise CheckpointError(
            f"Others need one name on the Hub for {folder}, the base of {adapter}; pass --base-model once, with the "
            "name of that checkpoint, or of the model that it was converted from."
        )
    return names[0]


def check_licence(metadata: dict[str, Any], readme: Path) -> None:
    value = metadata.get("license")
    if value is None:
        raise CheckpointError(
            f"There is no licence, neither in {readme} nor in the options; pass --license, such as apache-2.0."
        )
    if value not in LICENCES:
        near = get_close_matches(str(value).lower(), LICENCES) or ["apache-2.0", "mit"]
        raise CheckpointError(
            f"license={value!r} is not an identifier of the Hub; pass --license with one that is, such as "
            f"{' or '.join(near)}, or write 'other' with a license_name and a license_link into {readme}."
        )
    if value == "other" and not {"license_name", "license_link"} <= metadata.keys():
        raise CheckpointError(
            f"The licence 'other' needs a license_name and a license_link; write all three into the metadata of "
            f"{readme}, and leave out --license."
        )


def check_language(name: str, value: object) -> None:
    if not isinstance(value, str) or not LANGUAGE.fullmatch(value):
        raise CheckpointError(f"{name}={value!r} is not a language code; pass --language with one, such as en or deu.")


def check_hub_name(name: str, value: object) -> None:
    option = {"base_model": "--base-model", "datasets": "--dataset"}[name]
    try:
        if not isinstance(value, str):
            raise ValueError("it is not a string")
        validate_repo_id(value)
    except ValueError as error:
        raise CheckpointError(
            f"{name}={value!r} is not a name on the Hub ({one_line(error)}); pass {option} with one, such as "
            "Qwen/Qwen3-8B."
        ) from error


def as_list(value: Any) -> list:
    return value if isinstance(value, list) else [] if value is None else [value]


def card_data(
    metadata: dict[str, Any], title: str, results: Sequence[EvalResult], library: str = "transformers"
) -> ModelCardData:
    """Returns metadata in the Hub's form, with a title and results for its model-index."""
    return ModelCardData(
        **{name: value for name, value in metadata.items() if name != "tags"},
        library_name=library,
        pipeline_tag=TASK,
        tags=["wedlm", *as_list(metadata.get("tags"))],  # ModelCardData drops duplicates
        model_name=on_one_line(title) if results else None,  # huggingface_hub loses U+0085, a line break
        eval_results=list(results) or None,
    )
