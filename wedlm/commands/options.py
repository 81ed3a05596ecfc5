"""The options of the commands: a dataclass for each command that has many, with one field per option."""

import inspect
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import typer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.generation.parameters import DEFAULTS, READS


def option(help: str, panel: str = "Decoding", show_default: bool | str = False) -> Any:
    """An option in a panel of its own of the help."""
    return typer.Option(help=help, rich_help_panel=panel, show_default=show_default)


MODEL_HELP, DEMO = "A checkpoint: a folder, or a name on the Hub.", "the demo checkpoint"
Model = Annotated[str, typer.Argument(help=MODEL_HELP, metavar="MODEL", show_default=DEMO)]
Source = Annotated[str, typer.Argument(help=MODEL_HELP)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    option("The dtype of the weights; auto keeps the dtype on disk.", "Model", show_default=True),
]
Device = Annotated[
    str | None, option("The device, such as cpu or cuda:0; by default the GPU if there is one.", "Model")
]
Decoding = Annotated[str | None, option("The decoding: streaming, verified, blockwise or autoregressive.")]
WindowSize = Annotated[
    int | None,
    option(
        "Slots after the final text; by default the checkpoint's number, or else 16, on a CPU 8, verified what pays."
    ),
]
EntropyThreshold = Annotated[
    str | None, option("Fill the slots whose entropy in nats is below this number; none fills one slot per forward.")
]
DistancePenalty = Annotated[
    float | None, option("Add this number to the entropy for each slot of distance from the first open slot.")
]
AcceptanceRatio = Annotated[
    float | None,
    option("Accept a draft of verified decoding if its probability is at least this share of the best token's."),
]
QueryCost = Annotated[
    float | None,
    option("What one more token of a forward costs in verified decoding, as a share of a forward with one."),
]
OverwriteCheckpoint = Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is a checkpoint.")]
OverwriteFile = Annotated[bool, typer.Option("--overwrite", help="Replace FILE.")]
OutFile = Annotated[Path, typer.Option(help="The file for all numbers.", metavar="FILE")]


@dataclass(frozen=True)
class GenerationOptions:
    """Options of the commands that generate text; None leaves the choice to the checkpoint."""

    model: Annotated[str, typer.Option("--model", hidden=True)] = str(DEMO_FOLDER)  # an argument since 0.3
    dtype: Dtype = "auto"
    device: Device = None
    decoding: Decoding = None
    window_size: WindowSize = None
    entropy_threshold: EntropyThreshold = None
    distance_penalty: DistancePenalty = None
    acceptance_ratio: AcceptanceRatio = None
    query_cost: QueryCost = None
    max_new_tokens: Annotated[int, option("The largest number of tokens of an answer.", show_default=True)] = 256
    temperature: Annotated[float, option("Sample tokens at this temperature; 0 chooses the most likely token.")] = 0.0
    top_p: Annotated[float | None, option("Sample from the likeliest tokens that together have this probability.")] = (
        None
    )
    seed: Annotated[int | None, option("The seed of sampling; the same seed gives the same text.")] = None
    debug: Debug = False

    def with_decoding(self, decoding: str) -> Self:
        """The same options for another decoding than the one that is named, which may read fewer of them."""
        if decoding == self.decoding:
            return self
        unread = DEFAULTS.keys() - {"decoding", *READS[decoding]}
        return replace(self, decoding=decoding, **dict.fromkeys(unread))

    def arguments(self) -> dict[str, Any]:
        """The arguments of `generate()`; an option that it would not check is checked here."""
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"--temperature {self.temperature} is no temperature; give 0 or a finite number.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"--top-p {self.top_p} is no share; give a number above 0 and at most 1.")
        if self.top_p is not None and self.temperature == 0:
            raise ValueError(f"--top-p {self.top_p} needs draws, and there are none; give a --temperature above 0.")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed {self.seed} is no seed; give a whole number from 0 to 2**63 - 1.")
        if self.max_new_tokens < 1:
            raise ValueError(f"--max-new-tokens {self.max_new_tokens} leaves no room for an answer; give 1 or more.")
        arguments = decoding_arguments(self)
        if self.temperature:
            arguments["temperature"] = self.temperature
        if self.top_p is not None:
            arguments["top_p"] = self.top_p
        return arguments | {"max_new_tokens": self.max_new_tokens, "do_sample": self.temperature != 0}


@dataclass(frozen=True)
class EvalOptions:
    """Options of `wedlm eval`; an option that is given comes before what a recipe says."""

    model: Model = str(DEMO_FOLDER)
    tasks: Annotated[str, typer.Option(help="Tasks of lm-eval or of --include-path, separated by commas.")] = ""
    recipe: Annotated[
        str | None,
        typer.Option(help="Tasks, shots and settings together: speed, table1-base, ... or a YAML file."),
    ] = None
    include_path: Annotated[
        list[Path] | None,
        typer.Option(help="A folder with YAML files of tasks; may be given again.", metavar="FOLDER"),
    ] = None
    decoding: Annotated[
        list[str] | None,
        option("streaming, verified, blockwise or autoregressive; may be given again."),
    ] = None
    window_size: Annotated[list[int] | None, option("Slots after the final text; may be given again.")] = None
    entropy_threshold: Annotated[
        list[str] | None,
        option("The limit of the entropy in nats, or none; may be given again."),
    ] = None
    distance_penalty: Annotated[
        list[float] | None, option("Add this number to the entropy for each slot of distance; may be given again.")
    ] = None
    acceptance_ratio: Annotated[
        list[float] | None, option("The share of the best probability that a draft needs; may be given again.")
    ] = None
    query_cost: Annotated[
        list[float] | None,
        option("What one more token of a forward costs, as a share of a forward with one; may be given again."),
    ] = None
    num_fewshot: Annotated[int | None, typer.Option(help="The number of examples before each question.")] = None
    limit: Annotated[int | None, typer.Option(help="Ask only the first N questions of each task.")] = None
    batch_size: Annotated[int | None, typer.Option(help="Questions that are answered together; by default 8.")] = None
    apply_chat_template: Annotated[
        bool,
        typer.Option("--apply-chat-template", help="Use the chat template, for checkpoints trained for chats."),
    ] = False
    system_instruction: Annotated[str | None, typer.Option(help="A system message before each question.")] = None
    max_new_tokens: Annotated[int | None, typer.Option(help="The largest number of tokens of an answer.")] = None
    temperature: Annotated[
        float | None, typer.Option(help="Sample tokens at this temperature; 0 chooses the most likely token.")
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="The seed of the examples before questions and of sampling; by default 1234.")
    ] = None
    metadata: Annotated[
        str | None, typer.Option(help="JSON for the tasks; those of the demo read num_examples and seed.")
    ] = None
    run_code: Annotated[
        bool,
        typer.Option(
            "--run-code",
            help="Allow tasks that run the model's code, in a sandbox: it guards against accidents, not attackers.",
        ),
    ] = False
    unsafe_run_code: Annotated[
        bool,
        typer.Option(
            "--unsafe-run-code", help="Allow --run-code as root where the system keeps the code from nothing."
        ),
    ] = False
    out: OutFile = Path("eval.json")
    overwrite: OverwriteFile = False
    dtype: Dtype = "auto"
    device: Device = None
    debug: Debug = False


@dataclass(frozen=True)
class TuneOptions:
    """Options of `wedlm tune`."""

    model: Annotated[Path, typer.Argument(help="The folder of a WeDLM checkpoint.")]
    data: Annotated[Path, typer.Option(help="JSON Lines with prompt and answer, or with messages.", metavar="FILE")]
    max_quality_loss: Annotated[
        str, typer.Option(help="The share of answers that may be lost, compared with autoregressive decoding.")
    ] = "1%"
    measure: Annotated[
        str | None,
        typer.Option(
            help="When an answer is right: exact, contains, last-number, or agreement with the autoregressive text.",
            show_default="exact, or agreement if the data have no answers",
        ),
    ] = None
    max_new_tokens: Annotated[int, typer.Option(help="The largest number of tokens of an answer.")] = 256
    out: OutFile = Path("tune.json")
    overwrite: OverwriteFile = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do not change generation_config.json.")] = False
    dtype: Dtype = "auto"
    device: Device = None
    debug: Debug = False


@dataclass(frozen=True)
class ExportOptions:
    """Options of `wedlm export`."""

    model: Source
    out: Annotated[str, typer.Argument(help="The new folder for the repository.")]
    license: Annotated[
        str | None,
        typer.Option(help="The licence, such as apache-2.0; needed if MODEL's README.md has none."),
    ] = None
    base_model: Annotated[
        list[str] | None, typer.Option(help="A model on the Hub that MODEL was made from; may be given again.")
    ] = None
    dataset: Annotated[
        list[str] | None, typer.Option(help="A dataset on the Hub that MODEL was trained on; may be given again.")
    ] = None
    language: Annotated[list[str] | None, typer.Option(help="A language code such as en; may be given again.")] = None
    name: Annotated[str | None, typer.Option(help="The title of the card; by default the name of REPO or OUT.")] = None
    prompt: Annotated[str | None, typer.Option(help="The prompt of the card's snippet.")] = None
    eval: Annotated[
        list[Path] | None,
        typer.Option(help="The file of `wedlm eval MODEL`; may be given again.", metavar="FILE"),
    ] = None
    training: Annotated[
        Path | None,
        typer.Option(help="The report of `wedlm train`; by default MODEL's training_report.json.", metavar="FILE"),
    ] = None
    adapter_only: Annotated[
        bool, typer.Option("--adapter-only", help="Leave out the base of the draft adapter MODEL.")
    ] = False
    vllm: Annotated[
        bool, typer.Option("--vllm", help="Write a checkpoint for vLLM and the drafter beside it, and no repository.")
    ] = False
    target: Annotated[
        str | None, typer.Option(help="With --vllm: another model that MODEL drafts for.", metavar="NAME")
    ] = None
    push: Annotated[str | None, typer.Option(help="Upload OUT to the Hub as OWNER/NAME.", metavar="REPO")] = None
    private: Annotated[bool, typer.Option("--private", help="Make REPO private.")] = False
    overwrite: OverwriteCheckpoint = False
    debug: Debug = False


@dataclass(frozen=True)
class AdaptOptions:
    """Options of `wedlm adapt`, by the names of `AdaptSettings`."""

    model: Source
    out: Annotated[Path, typer.Argument(help="The new folder for the adapter; OUT.work keeps a stopped run.")]
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSON Lines with prompts like those of use; by default the package's own.", metavar="FILE"),
    ] = None
    answers: Annotated[
        Path | None,
        typer.Option(help="JSON Lines with prompts and MODEL's own answers, in place of --prompts.", metavar="FILE"),
    ] = None
    measure_also: Annotated[
        Path | None, typer.Option(help="JSON Lines with prompts that are only measured.", metavar="FILE")
    ] = None
    num_prompts: Annotated[int, typer.Option(help="Number of the package's own prompts.")] = 3000
    num_held_out: Annotated[int, typer.Option(help="Number of prompts to measure, and not to train on.")] = 60
    max_new_tokens: Annotated[int, typer.Option(help="The largest number of tokens of an answer.")] = 256
    temperature: Annotated[float, typer.Option(help="The temperature of the answers; 0 chooses likeliest tokens.")] = (
        0.0
    )
    minutes: Annotated[float, typer.Option(help="How long the adapter is trained.")] = 60.0
    steps: Annotated[int | None, typer.Option(help="The number of optimizer steps, in place of --minutes.")] = None
    rank: Annotated[int, typer.Option(help="The rank of the adapter.")] = 16
    window_size: Annotated[int, typer.Option(help="The most MASKs of a group in training.")] = 8
    learning_rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 4e-4
    max_length: Annotated[int, typer.Option(help="Tokens of a row in training; longer samples are cut.")] = 1024
    batch_size: Annotated[int, typer.Option(help="Number of prompts that are answered at a time.")] = 32
    start_from: Annotated[
        Path | None, typer.Option(help="An adapter of MODEL with the same rank, to train further.", metavar="FOLDER")
    ] = None
    seed: Annotated[int, typer.Option(help="The seed of everything that is drawn.")] = 0
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"], typer.Option(help="The dtype of MODEL for answers and training.")
    ] = "auto"
    device: Device = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is an adapter.")] = False
    debug: Debug = False


@dataclass(frozen=True)
class ServeOptions:
    """Options of `wedlm serve`; None leaves the choice to the checkpoint."""

    model: Model = str(DEMO_FOLDER)
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 accepts other machines.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="The port to listen on; 0 chooses a free port.", min=0, max=65535)] = 8000
    dtype: Dtype = "auto"
    device: Device = None
    decoding: Decoding = None
    window_size: WindowSize = None
    entropy_threshold: EntropyThreshold = None
    distance_penalty: DistancePenalty = None
    acceptance_ratio: AcceptanceRatio = None
    query_cost: QueryCost = None
    max_batch_size: Annotated[int, typer.Option(help="The most texts that are written at once.", min=1)] = 64
    max_cached_tokens: Annotated[
        int | None,
        typer.Option(
            help="The most tokens whose keys and values are in memory; by default half of the free memory.", min=1
        ),
    ] = None
    max_waiting: Annotated[
        int, typer.Option(help="The most requests that wait; the next one gets status 429.", min=0)
    ] = 256
    request_timeout: Annotated[
        float, typer.Option(help="The seconds after which a request ends with status 504; 0 for no limit.", min=0)
    ] = 600
    fixed_shapes: Annotated[
        bool,
        typer.Option("--fixed-shapes", help="Give equal requests one text in every dtype; slower for many."),
    ] = False
    api_key: Annotated[
        str | None,
        typer.Option(help="The key that requests must have.", envvar="WEDLM_API_KEY", show_envvar=True),
    ] = None
    cors: Annotated[
        list[str] | None,
        typer.Option(help="An origin whose web pages may send requests, or *; may be given again.", metavar="ORIGIN"),
    ] = None
    debug: Debug = False


def decoding_arguments(options: GenerationOptions | ServeOptions) -> dict[str, Any]:
    """The parameters of decoding that are given."""
    names = ("decoding", "window_size", "distance_penalty", "acceptance_ratio", "query_cost")
    given = {name: getattr(options, name) for name in names}
    arguments = {name: value for name, value in given.items() if value is not None}
    if options.entropy_threshold is not None:
        arguments["entropy_threshold"] = read_threshold(options.entropy_threshold)
    return arguments


def read_threshold(text: str) -> float | None:
    """The value of --entropy-threshold, where none is None."""
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--entropy-threshold {text} is neither a number of nats nor none.") from None


def with_options(command: Callable) -> Callable:
    """Makes an option of each field of the dataclass that annotates the parameter `options` of a command."""
    parameters = inspect.signature(command).parameters
    kind = parameters["options"].annotation
    own = [parameter for name, parameter in parameters.items() if name != "options"]
    from_fields = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=field.type,
        )
        for field in fields(kind)
    ]

    @wraps(command)
    def run(**values: Any) -> None:
        options = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values, options=options)

    run.__signature__ = inspect.Signature([*own, *from_fields])
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *from_fields]}
    return run
