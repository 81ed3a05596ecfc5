"""Recipes: YAML files that name tasks, their shots, decodings and settings together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from wedlm.evaluation.choices import Choices, EvaluationError
from wedlm.evaluation.decodings import check_decoding

RECIPES = Path(__file__).parent / "recipes"
KEYS = {"about", "tasks", "decodings", "settings", "include_path"}


@dataclass(frozen=True)
class Recipe:
    """The tasks and settings behind somebody's reported numbers.

    Args:
        tasks (`dict[str, int | None]`):
            Number of shots by name of the task.
        decodings (`dict[str, dict]`):
            Arguments of `generate()` by label.
        choices (`dict[str, Any]`):
            Values for fields of `Choices`.
        include_path (`Path`, *optional*):
            Folder with further tasks.
    """

    tasks: dict[str, int | None]
    decodings: dict[str, dict[str, Any]]
    choices: dict[str, Any]
    include_path: Path | None = None


def read_recipe(name: str) -> Recipe:
    """Reads one of the recipes of this package, or a YAML file.

    Args:
        name (`str`):
            Name of a recipe such as `"table1-base"`, or the path of a file.
    """
    ours = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    path = ours.get(name, Path(name))
    if not path.is_file():
        raise EvaluationError(f"--recipe {name} is neither one of {', '.join(ours)} nor a file; give one of them.")
    try:
        return parse_recipe(yaml.safe_load(path.read_text(encoding="utf-8")), path.parent)
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise EvaluationError(
            f"--recipe {name} cannot be used ({type(error).__name__}: {' '.join(str(error).split())}); it needs "
            "`tasks:` with the shots of each, and may have `decodings:`, `settings:`, `include_path:` and `about:`."
        ) from error


def parse_recipe(content: dict[str, Any], folder: Path) -> Recipe:
    unknown = content.keys() - KEYS
    tasks, decodings, settings = dict(content["tasks"]), content.get("decodings", {}), content.get("settings", {})
    if unknown:
        raise ValueError(f"it has {', '.join(sorted(unknown))}")
    for task, shots in tasks.items():
        if not (shots is None or type(shots) is int and shots >= 0):
            raise ValueError(f"{task} has {shots!r} shots")
    for arguments in decodings.values():
        check_decoding(arguments, "decodings")
    check_settings(settings)
    include_path = content.get("include_path")
    return Recipe(tasks, decodings, settings, None if include_path is None else (folder / include_path).resolve())


def check_settings(settings: dict[str, Any]) -> None:
    known = get_type_hints(Choices)
    del known["run_code"]  # only the caller may allow this
    for name, value in settings.items():
        if name not in known:
            raise ValueError(f"there is no setting {name!r}, but {', '.join(sorted(known))}")
        kind = known[name] | int if known[name] == float | None else known[name]
        if not isinstance(value, kind) or isinstance(value, bool) != (known[name] is bool):
            raise ValueError(f"the setting {name} is {value!r}")
