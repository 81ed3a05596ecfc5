"""The settings of a run of `wedlm adapt`, and the folders that it writes."""

import json
import os
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from math import inf
from pathlib import Path

from wedlm.checkpoints.resolve import ADAPTER_WEIGHTS, checkpoint_folder
from wedlm.checkpoints.shards import shard_names
from wedlm.checkpoints.whole_file import write_whole
from wedlm.drafts.prompts import most_prompts
from wedlm.training.data_options import MAX_WINDOW

SETTINGS_FILE = "settings.json"
FILES = ("train", "held_out")  # of answers: the names of files of JSON Lines, and of the fields of Tasks
FREE = ("model", "measure_also", "device")  # settings that a continued run may change; `weights` stands for the model


class AdaptError(ValueError):
    """Input that no adapter can be made from; the message is one sentence with the remedy, shown as it is."""


@dataclass(frozen=True)
class AdaptSettings:
    """The options of `wedlm adapt`; docs/reference/adapt.md says what each of them does."""

    model: str  # a WeDLM checkpoint, or a stock one
    prompts: Path | None = None  # JSON Lines; by default the package's own prompts
    answers: Path | None = None  # JSON Lines of prompts with the model's own answers, in place of `prompts`
    measure_also: Path | None = None  # JSON Lines of prompts that are only measured
    num_prompts: int = 3000  # of the package's own
    num_held_out: int = 60
    max_new_tokens: int = 256
    temperature: float = 0.0  # of the answers for training
    minutes: float = 60.0
    steps: int | None = None  # in place of `minutes`
    rank: int = 16
    window_size: int = 8  # the most MASKs of a draft branch in training
    mask_shift: bool = False  # whether a MASK predicts the token behind it, as in I-DLM
    learning_rate: float = 4e-4
    max_length: int = 1024
    batch_size: int = 32  # of answers
    start_from: Path | None = None  # the folder of an adapter of the same base and rank
    seed: int = 0
    dtype: str = "auto"
    device: str | None = None

    def __post_init__(self):
        if self.prompts is not None and self.answers is not None:
            raise AdaptError(
                f"--prompts {self.prompts} and --answers {self.answers} exclude each other; the answers bring their "
                "own prompts, so leave out --prompts."
            )
        for name, least, most in (
            ("num_prompts", 1, most_prompts(False)),
            ("num_held_out", 1, most_prompts(True)),
            ("max_new_tokens", 2, inf),
            ("steps", 1, inf),
            ("rank", 1, inf),
            ("window_size", 2, MAX_WINDOW),
            ("max_length", 16, inf),
            ("batch_size", 1, inf),
            ("seed", 0, 2**32 - 1),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                fitting = f"{least} or more" if value < least else f"{most} or less"
                raise AdaptError(
                    f"{option(name)} {value} is too {'small' if value < least else 'large'}; pass {fitting}."
                )
        for name in ("minutes", "learning_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise AdaptError(f"{option(name)} {getattr(self, name)} is not a number above 0; pass one.")
        if not 0 <= self.temperature < float("inf"):
            raise AdaptError(f"--temperature {self.temperature} is negative or no number; pass 0 or more.")
        if self.device is not None and ":" in self.device:
            raise AdaptError(
                f"--device {self.device} names one of several GPUs, but training takes those that it sees; set "
                "CUDA_VISIBLE_DEVICES, and pass --device cuda."
            )

    def recorded(self) -> dict[str, object]:
        """The settings as JSON. A file and the weights of the model are recorded by a hash, which shows a change."""
        digests = {}
        for name, value in asdict(self).items():
            if isinstance(value, Path):
                digests[name] = digest(value / ADAPTER_WEIGHTS if name == "start_from" else value)
        return asdict(self) | digests | {"weights": weights_of(self.model)}


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AdaptError(f"{path} cannot be read ({error.strerror}); give a file that can.") from None


def weights_of(model: str) -> str:
    """Identifies the weights of a checkpoint: the commit on the Hub, or a digest of the files in a folder."""
    folder = checkpoint_folder(model, with_weights=False)
    if not Path(model).is_dir():
        return folder.name
    digests = [f"{name} {digest(folder / name)}" for name in shard_names(folder)]
    return sha256("\n".join(digests).encode()).hexdigest()


def work_folder(out: Path) -> Path:
    """The folder beside OUT with everything that a stopped run goes on from."""
    return out.with_name(f"{out.name}.work")


def check_settings(settings: AdaptSettings, work: Path) -> None:
    """Refuses settings other than those of the stopped run in `work`."""
    path = work / SETTINGS_FILE
    wanted = settings.recorded()
    if not path.exists() or os.listdir(work) == [SETTINGS_FILE]:
        return
    recorded = json.loads(path.read_text(encoding="utf-8"))
    name = next((name for name in wanted if name not in FREE and recorded.get(name) != wanted[name]), None)
    if name is None:
        return
    if name == "weights":
        kind = "another MODEL, or with other weights of it"
    elif isinstance(getattr(settings, name), Path):
        kind = f"another {option(name)}, or an earlier content of it"
    else:
        kind = f"{option(name)} {recorded.get(name)}, and not {wanted[name]}"
    raise AdaptError(f"{work} holds a run with {kind}; give its options to go on, or remove the folder to start anew.")


def record_settings(settings: AdaptSettings, work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    write_whole(work / SETTINGS_FILE, json.dumps(settings.recorded(), indent=2) + "\n")
