"""The settings of an evaluation, and recipes: YAML files that name tasks, shots, decodings and settings together."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from wedlm.evaluation.decodings import check_decoding

RECIPES = Path(__file__).parent / "recipes"
KEYS = {"about", "tasks", "decodings", "settings", "include_path"}


@dataclass(frozen=True)
class EvalSettings:
    """How tasks are asked, as the options of `wedlm eval` say; None leaves the choice to the task."""

    num_fewshot: int | None = None
    limit: int | None = None
    batch_size: int = 8
    seed: int = 1234  # of solved examples, of tasks that draw their questions, and of sampling
    apply_chat_template: bool = False
    system_instruction: str | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    run_code: bool = False

    def __post_init__(self):
        for name, kind in get_type_hints(EvalSettings).items():
            value = getattr(self, name)
            kinds = kind | int if kind == float | None else kind
            if not isinstance(value, kinds) or isinstance(value, bool) != (kind is bool):
                raise ValueError(f"{name}={value!r} is not of the type {getattr(kind, '__name__', kind)}; correct it.")
        for name, least in (("num_fewshot", 0), ("limit", 1), ("batch_size", 1), ("max_new_tokens", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value < 2**31:
                raise ValueError(f"{name}={value} is too small or too large; give {least} or more.")
        if self.temperature is not None and not 0 <= self.temperature < 1e6:
            raise ValueError(f"temperature={self.temperature} is not a temperature; give 0 or a finite number.")

    def generation_arguments(self) -> dict[str, Any]:
        """The settings of generation under lm-eval's names."""
        arguments = {} if self.max_new_tokens is None else {"max_gen_toks": self.max_new_tokens}
        if self.temperature is not None:
            arguments |= {"do_sample": self.temperature > 0, "temperature": self.temperature}
        return arguments


@dataclass(frozen=True)
class Recipe:
    """The tasks and settings behind somebody's reported numbers."""

    tasks: dict[str, int | None]  # the shots of each
    decodings: dict[str, dict[str, Any]]  # arguments of generate() by label
    settings: dict[str, Any]  # of EvalSettings
    include_path: Path | None


def read_recipe(name: str) -> Recipe:
    """Reads one of the recipes of this package, such as `"table1-base"`, or a YAML file."""
    ours = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    path = ours.get(name, Path(name))
    if not path.is_file():
        raise ValueError(f"--recipe {name} is neither one of {', '.join(ours)} nor a file; give one of them.")
    try:
        return parse_recipe(yaml.safe_load(path.read_text(encoding="utf-8")), path.parent)
    except (OSError, yaml.YAMLError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
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
        check_decoding(arguments)
    known = {field.name for field in fields(EvalSettings)} - {"run_code"}  # which only the caller may allow
    if unknown := settings.keys() - known:
        raise ValueError(f"there is no setting {min(unknown)!r}, but {', '.join(sorted(known))}")
    EvalSettings(**settings)
    include_path = content.get("include_path")
    return Recipe(tasks, decodings, settings, None if include_path is None else (folder / include_path).resolve())
