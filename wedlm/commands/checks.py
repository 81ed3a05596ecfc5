"""The checks of the commands that need no torch, so that bad input is refused before the seconds of importing it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from wedlm.commands.options import (
    EvalOptions,
    ExportOptions,
    GenerationOptions,
    ServeOptions,
    TuneOptions,
    decoding_arguments,
    read_threshold,
)
from wedlm.commands.reports import check_out_file
from wedlm.evaluation.choices import Choices, EvaluationError
from wedlm.evaluation.decodings import combinations
from wedlm.evaluation.sandbox import check_boundary
from wedlm.generation.parameters import DEFAULTS, check_parameters

if TYPE_CHECKING:
    from wedlm.evaluation.tuning import Example
    from wedlm.hub_card.options import CardOptions

MOVED = "MODEL is the first argument since 0.3.0; the old form of this call works in 0.3 alone."
CHOICES = ("num_fewshot", "limit", "batch_size", "system_instruction", "max_new_tokens", "temperature", "seed")


# --- Commands that answer ---


def check_generation(options: GenerationOptions | ServeOptions) -> None:
    """Refuses options and checkpoints that no answer can come from."""
    from wedlm.checkpoints.resolve import wedlm_folder  # it imports huggingface_hub

    arguments = options.arguments() if isinstance(options, GenerationOptions) else decoding_arguments(options)
    check_parameters(SimpleNamespace(**DEFAULTS | arguments))
    wedlm_folder(options.model, with_weights=False)


def model_and_prompts(
    words: list[str], options: GenerationOptions, most: int | None
) -> tuple[GenerationOptions, list[str]]:
    """Divides the words of a command line: MODEL comes first, and may be left out before a single PROMPT.

    Args:
        words (`list[str]`): The words.
        options (`GenerationOptions`): The options, which get the model.
        most (`int`, *optional*): The largest number of prompts; None for any number.
    """
    from wedlm.checkpoints.new_folder import is_checkpoint

    prompts = words
    if options.model != GenerationOptions.model:
        print(MOVED, file=sys.stderr)
    elif len(words) > 1 and " " in words[0] and not Path(words[0]).exists() and most is None:
        print(MOVED, file=sys.stderr)  # several prompts for the demo checkpoint
    elif len(words) > 1:
        options, prompts = replace(options, model=words[0]), words[1:]
    elif words[0] and is_checkpoint(Path(words[0])):
        raise ValueError(f"{words[0]} is a checkpoint, and no PROMPT follows it; give one.")
    if most is not None and len(prompts) > most:
        raise ValueError(
            f"{prompts[1]!r} follows the prompt {prompts[0]!r}, and this command takes one; put quotes around a "
            "prompt."
        )
    return options, [read_prompt(prompt) for prompt in prompts]


@contextmanager
def text_of_standard_input() -> Iterator[None]:
    """Turns bytes that are no text into a sentence that names standard input."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"Standard input is not UTF-8 ({error}); convert it, such as with iconv.") from error


def read_prompt(prompt: str) -> str:
    """The prompt of the command line, where - stands for standard input."""
    if prompt == "-":
        with text_of_standard_input():
            prompt = "" if sys.stdin is None else sys.stdin.read().removesuffix("\n")
    if not prompt.strip():
        raise ValueError("The prompt is empty; give it some text.")
    if any("\ud800" <= char <= "\udfff" for char in prompt):
        raise ValueError(f"The prompt {prompt!r} is not UTF-8; convert it, or read it from standard input.")
    return prompt


# --- wedlm info, convert and export ---


def check_readable(name: str) -> Path:
    """Returns the folder of a checkpoint; refuses one without a config."""
    from wedlm.checkpoints.resolve import checkpoint_folder, read_config

    folder = checkpoint_folder(name, with_weights=False)
    read_config(name, folder)
    return folder


def check_source_and_out(source: str, out: str, overwrite: bool) -> None:
    """Refuses a source without a config, and a place that nothing may be written to."""
    from wedlm.checkpoints.new_folder import check_apart, check_out

    check_apart(check_out(out, overwrite), check_readable(source))


def check_export(options: ExportOptions, card: "CardOptions") -> None:
    """Refuses a push that cannot be, and files and metadata that cannot become a card."""
    if options.target is not None:
        raise ValueError(
            "--target names the model that MODEL drafts for in vLLM; pass --vllm with it, or leave it out."
        )
    from wedlm.checkpoints.new_folder import check_apart, check_out
    from wedlm.checkpoints.resolve import draft_adapter, wedlm_folder
    from wedlm.hub_card.metadata import read_metadata
    from wedlm.hub_card.push import check_push
    from wedlm.hub_card.report_file import read_json

    check_push(options.push, options.private)
    out = check_out(options.out, options.overwrite)
    folder, adapter = wedlm_folder(options.model, with_weights=False), draft_adapter(options.model)
    for source in (path for path in (folder, adapter) if path is not None):
        check_apart(out, source)
    for path in card.evaluation_files:
        read_json(path, "wedlm eval")
    if card.training_file is not None:
        read_json(card.training_file, "wedlm train")
    read_metadata(folder, card, adapter)


def check_export_for_vllm(options: ExportOptions) -> None:
    """Refuses options of the repository, and checkpoints that are no WeDLM."""
    from wedlm.checkpoints.new_folder import check_apart, check_out
    from wedlm.checkpoints.resolve import wedlm_folder

    fitting = {"model", "out", "vllm", "target", "overwrite", "debug"}
    for name in (field.name for field in fields(options) if field.name not in fitting):
        if getattr(options, name):
            raise ValueError(
                f"--{name.replace('_', '-')} is about a repository, and --vllm writes none; leave it out."
            )
    check_apart(check_out(options.out, options.overwrite), wedlm_folder(options.model, with_weights=False))


# --- wedlm eval ---


class EvalPlan(NamedTuple):
    """The request of a `wedlm eval`."""

    tasks: dict[str, int | None]  # the shots of each
    folders: list[Path]
    choices: Choices
    decodings: dict[str, dict]  # by label
    metadata: dict[str, Any]


def plan_eval(options: EvalOptions) -> EvalPlan:
    """Reads the options and the recipe of `wedlm eval`, and refuses those that cannot be followed."""
    from wedlm.checkpoints.resolve import wedlm_folder

    check_out_file(options.out, options.overwrite)
    task_names = [name for name in options.tasks.replace(" ", "").split(",") if name]
    names: dict[str, int | None] = dict.fromkeys(task_names)
    folders, choices, decodings = options.include_path or [], Choices(), {}
    given = given_choices(options)
    if options.recipe is not None:
        from wedlm.evaluation.recipe import read_recipe

        recipe = read_recipe(options.recipe)
        names = recipe.tasks | names
        if "num_fewshot" in given:
            names = dict.fromkeys(names)
        folders = [*folders, *filter(None, [recipe.include_path])]
        choices, decodings = replace(choices, **recipe.choices), recipe.decodings
    choices = replace(choices, **given)
    check_choices(choices)
    thresholds = [read_threshold(threshold) for threshold in options.entropy_threshold or []]
    values = (
        options.window_size, thresholds, options.distance_penalty, options.acceptance_ratio, options.query_cost
    )  # fmt: skip
    if options.decoding:
        decodings = combinations(options.decoding, *values)
    elif any(values):
        raise EvaluationError("--window-size and its like need a --decoding that reads them; name one, say streaming.")
    for arguments in decodings.values():
        check_parameters(SimpleNamespace(**DEFAULTS | arguments))
    if not names:
        raise EvaluationError("No task is named; pass --tasks NAME,NAME or --recipe NAME.")
    for folder in folders:
        if not folder.is_dir():
            raise EvaluationError(f"--include-path {folder} is no folder; give one with YAML files of tasks.")
    metadata = metadata_of(options.metadata)
    wedlm_folder(options.model, with_weights=False)
    if options.run_code:
        check_boundary(options.unsafe_run_code)
    return EvalPlan(names, folders, choices, decodings, metadata)


def given_choices(options: EvalOptions) -> dict[str, Any]:
    """The fields of `Choices` that the command line gives."""
    given = {name: getattr(options, name) for name in CHOICES if getattr(options, name) is not None}
    if options.apply_chat_template:
        given["apply_chat_template"] = True
    return given | {"run_code": options.run_code}


def check_choices(choices: Choices) -> None:
    for name, least in (("num_fewshot", 0), ("limit", 1), ("batch_size", 1), ("max_new_tokens", 1), ("seed", 0)):
        value = getattr(choices, name)
        if value is not None and not (isinstance(value, int) and least <= value < 2**31):
            raise EvaluationError(
                f"--{name.replace('_', '-')} {value} is too small or too large; give {least} or more."
            )
    if choices.temperature is not None and not 0 <= choices.temperature < 1e6:
        raise EvaluationError(f"--temperature {choices.temperature} is no temperature; give 0 or a finite number.")


def metadata_of(text: str | None) -> dict[str, Any]:
    try:
        metadata = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"--metadata {text} is no JSON ({error}); write it as '{{\"seed\": 1}}'.") from error
    if not isinstance(metadata, dict):
        raise EvaluationError(f"--metadata {text} is no JSON object; write it as '{{\"seed\": 1}}'.")
    return metadata


# --- wedlm tune ---


class TunePlan(NamedTuple):
    """The request of a `wedlm tune`."""

    loss: float
    examples: "list[Example]"
    measure: str
    config: dict  # the content of generation_config.json


def plan_tune(options: TuneOptions) -> TunePlan:
    """Reads the options and the files of `wedlm tune`, and refuses those that cannot be followed."""
    from wedlm.checkpoints.resolve import GENERATION_FILE, read_generation_fields, wedlm_folder
    from wedlm.evaluation.tuning import TuningError, measure_of, read_examples, read_share

    loss = read_share(options.max_quality_loss)
    check_out_file(options.out, options.overwrite)
    if options.out.resolve() == options.data.resolve():
        raise TuningError(f"--out {options.out} is the file of --data, which would be replaced; choose another one.")
    examples = read_examples(options.data)
    measure = measure_of(options.measure, examples)
    if not options.model.is_dir():
        raise TuningError(
            f"{options.model} is no folder, and {GENERATION_FILE} is written into one; download it (`hf download NAME "
            "--local-dir FOLDER`) and give that."
        )
    config = read_generation_fields(options.model)
    folder = wedlm_folder(options.model, with_weights=False)  # another one, if the model is a draft adapter
    return TunePlan(loss, examples, measure, config or read_generation_fields(folder))
