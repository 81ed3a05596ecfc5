"""`make demo-model`: trains the demo checkpoint from nothing with WeDLMTrainer, and goes on where it was stopped.

    python -m wedlm.demo.recipe build/demo-model [--steps 2500 4000 5500 --learning_rate 3e-3 ...]

There are three stages. The first learns the kinds of questions from their generators, in blocks of 16 tokens. The
second learns to draft further ahead, in blocks of 32. The third goes on while the learning rate falls. For stories
both learn from the answers of the stage before, where a checker accepts them. Where the device has instructions for
bfloat16 they are used, which spares a CPU a quarter of the time; the weights stay in float32 while they are trained.

A stage leaves a checkpoint, such as build/demo-model/text/model, from which the next one goes on. The last one's,
build/demo-model/end/model, becomes a whole Hub repository except for the card, with training.json and loss.png. Its
weights are in bfloat16 and load as float32, which costs nothing at this size and lets all decodings that are compared
round alike.
"""

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_callback import ExportableState

from wedlm import WeDLMForCausalLM, WeDLMTrainer, WeDLMTrainingArguments
from wedlm.checkpoints.whole_file import write_whole
from wedlm.demo.model import SEED, MuonAndAdamW, random_model
from wedlm.demo.own_answers import own_answers, with_own_answers
from wedlm.demo.tasks import Example, conversation, messages_of
from wedlm.demo.tokenizer import demo_tokenizer
from wedlm.evaluation.provenance import command, conditions, weights_digest, write_report
from wedlm.evaluation.work_file import digest_of
from wedlm.training.data import prepare_dataset
from wedlm.training.data_options import DataOptions
from wedlm.training.resume import newest_complete

ROW_TOKENS = 192  # no example is longer
ROWS_PER_STEP = 12
CONVERSATIONS_PER_ROW = 2.5  # an upper bound of the mean, so that no row is needed twice
STEPS = (2500, 4000, 5500)  # of the stages
WARMUP_STEPS = 100
# The settings of decoding in the checkpoint. On most kinds this window is the fastest one tried in verified decoding,
# on two cores. Threshold and penalty are the fastest tried with which streaming loses at most three points on four of
# the six kinds.
DECODING = {"decoding": "verified", "window_size": 16, "entropy_threshold": 0.2, "distance_penalty": 0.03}
SETTINGS = ("learning_rate", "suffix_mask_probability", "hidden_size", "num_layers", "bf16")  # that decide the weights
SETTINGS_FILE = "settings.json"  # of a stage


class Stage(NamedTuple):
    """A part of the training, with masks and a schedule of its own, and the part of the training stream it sees."""

    name: str
    max_steps: int
    block_size: int
    falls: bool  # whether the learning rate falls to 0; elsewhere it stays, for the next stage
    steps_before: int


def stages_of(steps: tuple[int, int, int]) -> tuple[Stage, Stage, Stage]:
    text, drafts, end = steps
    return (
        Stage("text", text, block_size=16, falls=False, steps_before=0),
        Stage("drafts", drafts, block_size=32, falls=False, steps_before=text),
        Stage("end", end, block_size=32, falls=True, steps_before=text + drafts),
    )


def num_conversations(num_steps: int) -> int:
    return int(num_steps * ROWS_PER_STEP * CONVERSATIONS_PER_ROW)


def conversations_of(stage: Stage) -> list[list[Example]]:
    """The part of the training stream that a stage sees."""
    start, stop = (num_conversations(steps) for steps in (stage.steps_before, stage.steps_before + stage.max_steps))
    return [conversation(SEED, number) for number in range(start, stop)]


def training_rows(tokenizer: PreTrainedTokenizerBase, conversations: list[list[Example]]) -> Dataset:
    """Conversations packed into rows of a batch."""
    rows, summary = prepare_dataset(
        Dataset.from_list([{"messages": messages_of(examples)} for examples in conversations]),
        tokenizer,
        DataOptions(max_length=ROW_TOKENS, packing=True, overlong="drop"),
    )
    print(summary)
    return rows


class Clock(TrainerCallback, ExportableState):
    """Counts the seconds of training, those before a stop too."""

    def __init__(self, seconds: float = 0.0):
        self.seconds, self.since = seconds, None

    def on_step_begin(self, args, state, control, **kwargs):
        self.since = self.since or time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self.seconds, self.since = self.seconds + now - self.since, now

    def state(self) -> dict:
        return {"args": {"seconds": self.seconds}, "attributes": {}}


def train(
    stage: Stage, model: WeDLMForCausalLM, tokenizer: PreTrainedTokenizerBase, rows: Dataset, given: argparse.Namespace
) -> dict:
    """Trains the model in a stage; returns the losses, the seconds and the step at which this run began."""
    arguments, clock = training_arguments(stage, given.out / stage.name, given), Clock()
    last = newest_complete(arguments)
    first_step = int(last.rpartition("-")[2]) if last else 0
    trainer = WeDLMTrainer(
        model,
        arguments,
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[clock],
        optimizers=(MuonAndAdamW(model, given.learning_rate), None),
    )
    trainer.train(resume_from_checkpoint=last)
    clock = next(each for each in trainer.callback_handler.callbacks if isinstance(each, Clock))
    return {
        "losses": [entry for entry in trainer.state.log_history if "mlm_loss" in entry],
        "seconds": clock.seconds,
        "first_step": first_step,
    }


def training_arguments(stage: Stage, folder: Path, given: argparse.Namespace) -> WeDLMTrainingArguments:
    falling = {
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": max(1, stage.max_steps - WARMUP_STEPS), "decay_type": "1-sqrt"},
    }
    return WeDLMTrainingArguments(
        str(folder),
        seed=SEED,
        max_steps=stage.max_steps,
        per_device_train_batch_size=ROWS_PER_STEP,
        learning_rate=given.learning_rate,
        warmup_steps=WARMUP_STEPS,
        **(falling if stage.falls else {"lr_scheduler_type": "constant_with_warmup"}),
        suffix_mask_probability=given.suffix_mask_probability,
        ar_loss_weight=0.5,  # the autoregressive loss falls first, and masked tokens are harder to learn
        block_size=stage.block_size,
        attn_implementation="eager",  # the fastest in rows this short
        bf16=given.bf16,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=given.logging_steps,
        save_steps=given.save_steps,
        save_total_limit=2,
        restore_callback_states_from_checkpoint=True,  # the clock
        report_to="none",
        disable_tqdm=True,
    )


def save(model: WeDLMForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    model = model.to(torch.bfloat16)
    model.generation_config.update(**DECODING)
    model.save_pretrained(folder)
    model.config.dtype = torch.float32  # in which from_pretrained loads the weights
    model.config.use_cache = True  # Trainer switched it off
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def plot(log: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5))
    for name, label in (("mlm_loss", "masked tokens"), ("ar_loss", "next tokens")):
        axes.plot([entry["step"] for entry in log], [float(entry[name]) for entry in log], label=label)
    axes.set(xlabel="step", ylabel="loss (nats per token)", yscale="log")
    axes.legend()
    figure.savefig(path, dpi=100, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def has_bfloat16(cpu: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the device of the training multiplies matrices in bfloat16."""
    flags = cpu.read_text(encoding="utf-8").split() if cpu.exists() else []
    return torch.cuda.is_available() or "avx512_bf16" in flags or "amx_bf16" in flags


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, nargs=3, default=STEPS, help="optimizer steps of the stages")
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--suffix_mask_probability", type=float, default=0.5)
    parser.add_argument("--hidden_size", type=int, default=256)
    parser.add_argument("--num_layers", type=int, default=6)
    parser.add_argument(
        "--bf16",
        action=argparse.BooleanOptionalAction,
        default=has_bfloat16(),
        help="compute in bfloat16, as by default where the device has instructions for it",
    )
    parser.add_argument("--logging_steps", type=int, default=25)
    parser.add_argument("--save_steps", type=int, default=250)
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    tokenizer = demo_tokenizer()
    stages = stages_of(given.steps)
    checkpoints = [given.out / stage.name / "model" for stage in stages]
    finished = [number for number, folder in enumerate(checkpoints) if (folder / "training.json").exists()]
    for stage in stages:
        check_settings(given.out / stage.name / SETTINGS_FILE, settings_of(stage, given))
    for number in range(max(finished, default=-1) + 1, len(stages)):
        pass_stage(stages[number], tokenizer, checkpoints[number - 1] if number else None, checkpoints[number], given)


def settings_of(stage: Stage, given: argparse.Namespace) -> dict[str, object]:
    """All that decides the weights of a stage, but for its conversations."""
    return {**stage._asdict(), **{name: getattr(given, name) for name in SETTINGS}}


def check_settings(file: Path, settings: dict[str, object]) -> None:
    """Refuses to go on with a stage that was begun with other settings."""
    begun = json.loads(file.read_text(encoding="utf-8")) if file.exists() else settings
    if other := [name for name in settings if settings[name] != begun.get(name)]:
        raise SystemExit(
            f"{file.parent} was begun with {other[0]}={begun.get(other[0])} and not with {settings[other[0]]}; pass "
            "the same arguments, or another folder."
        )


def pass_stage(
    stage: Stage, tokenizer: PreTrainedTokenizerBase, before: Path | None, checkpoint: Path, given: argparse.Namespace
) -> None:
    """Trains the checkpoint of a stage from the one before it, which the report of losses continues."""
    conversations = conversations_of(stage)
    answers = {}
    if before is None:
        model = random_model(tokenizer, given.hidden_size, given.num_layers)
        losses, stages = [], []
    else:
        model = WeDLMForCausalLM.from_pretrained(before)
        asked = [example for examples in conversations for example in examples]
        answers = own_answers(model.eval(), tokenizer, asked, given.out / stage.name, weights_digest(before))
        conversations = [with_own_answers(examples, answers) for examples in conversations]
        report = json.loads((before / "training.json").read_text(encoding="utf-8"))
        losses, stages = report["results"], report["stages"]
    file = given.out / stage.name / SETTINGS_FILE
    settings = settings_of(stage, given) | {"conversations": digest_of(conversations)}
    check_settings(file, settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(settings, indent=2) + "\n")

    told = train(stage, model, tokenizer, training_rows(tokenizer, conversations), given)
    save(model, tokenizer, checkpoint)
    for entry in told["losses"]:
        entry["step"] += stage.steps_before
        del entry["epoch"]  # of this stage alone; no conversation comes twice
    losses += told["losses"]
    plot(losses, checkpoint / "loss.png")
    origin = {"command": command(), **conditions(model.device), "seconds": told["seconds"]}
    stages.append({"stage": stage.name, "own_answers": len(answers), **origin})
    about = {
        "parameters": model.num_parameters(),
        "steps": given.steps,
        "first_step": stage.steps_before + told["first_step"],
        "seconds": sum(each["seconds"] for each in stages),
        "stages": stages,
    }
    write_report(checkpoint / "training.json", losses, model.device, **about)


if __name__ == "__main__":
    main()
