"""`make demo-model`: trains the demo checkpoint from nothing with WeDLMTrainer, and goes on where it was stopped.

    python -m examples.demo.recipe build/demo-model [--steps 2500 4000 5500 --hidden_size 256 --num_layers 6 --bf16]

There are three stages. The first learns the kinds of questions from their generators, in blocks of 16 tokens. The
second learns to draft further ahead, in blocks of 32. The third goes on while the learning rate falls. For stories
both learn from the answers of the stage before, where a checker accepts them: verified decoding accepts a draft if the
model itself would choose it. Where the device has instructions for bfloat16 they are used, which spares a CPU a
quarter of the time; the weights stay in float32 while they are trained.

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
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_callback import ExportableState

from examples.demo.example import Example
from examples.demo.model import SEED, MuonAndAdamW, demo_tokenizer, random_model
from examples.demo.tasks import MAX_NEW_TOKENS, batch_of, check, conversation, messages_of
from wedlm import WeDLMForCausalLM, WeDLMTrainer, WeDLMTrainingArguments
from wedlm.checkpoints.whole_file import write_whole
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import command, conditions, weights_digest, write_report
from wedlm.evaluation.work_file import WorkFile, digest_of
from wedlm.training.data_options import DataOptions
from wedlm.training.dataset import prepare_dataset
from wedlm.training.resume import newest_complete

ROW_TOKENS = 192  # no example is longer
ROWS_PER_STEP = 12
CONVERSATIONS_PER_STEP = 30  # an upper bound of the mean, so that no row is needed twice
STEPS = (2500, 4000, 5500)  # of the stages
LEARNING_RATE, WARMUP_STEPS = 3e-3, 100
LOGGING_STEPS, SAVE_STEPS = 25, 250
# The settings of decoding in the checkpoint. On most kinds this window is the fastest one tried in verified decoding,
# on two cores. Threshold and penalty are the fastest tried with which streaming loses at most three points on four of
# the six kinds.
DECODING = {"decoding": "verified", "window_size": 16, "entropy_threshold": 0.2, "distance_penalty": 0.03}
OWN_KIND = "stories"  # the kind whose questions leave many choices
BATCH_SIZE = 128  # of the own answers


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


def conversations_of(stage: Stage) -> list[list[Example]]:
    """The part of the training stream that a stage sees."""
    steps = range(stage.steps_before, stage.steps_before + stage.max_steps)
    return [
        conversation(SEED, number)
        for number in range(steps.start * CONVERSATIONS_PER_STEP, steps.stop * CONVERSATIONS_PER_STEP)
    ]


def training_rows(tokenizer: PreTrainedTokenizerBase, conversations: list[list[Example]]) -> Dataset:
    """Conversations packed into rows of a batch."""
    rows, summary = prepare_dataset(
        Dataset.from_list([{"messages": messages_of(examples)} for examples in conversations]),
        tokenizer,
        DataOptions(max_length=ROW_TOKENS, packing=True, overlong="drop"),
    )
    print(summary)
    return rows


@torch.no_grad()
def own_answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example], folder: Path, weights: str
) -> dict[str, str]:
    """The model's greedy answers to stories that a checker accepts, by prompt; `folder` keeps them for a next run."""
    questions = list({example.prompt: example for example in examples if example.kind == OWN_KIND}.values())
    work = WorkFile(folder, {"weights": weights, "batch_size": BATCH_SIZE, "max_new_tokens": MAX_NEW_TOKENS})
    answers = {}
    for start in tqdm(range(0, len(questions), BATCH_SIZE), unit=" batches", desc="own answers"):
        batch = questions[start : start + BATCH_SIZE]
        key = (digest_of([example.prompt for example in batch]),)
        if key not in work:
            work.add(key, texts_of(model, tokenizer, batch))
        answers |= {each.prompt: text for each, text in zip(batch, work[key], strict=True) if check(each, text)}
    return answers


def texts_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example]) -> list[str]:
    inputs = batch_of(tokenizer, examples, model.device)
    ids = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, decoding=BASELINE)
    return tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


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
) -> tuple[list[dict], float]:
    """Trains the model in a stage; returns the losses and the seconds."""
    falling = {
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": max(1, stage.max_steps - WARMUP_STEPS), "decay_type": "1-sqrt"},
    }
    arguments = WeDLMTrainingArguments(
        str(given.out / stage.name),
        seed=SEED,
        max_steps=stage.max_steps,
        per_device_train_batch_size=ROWS_PER_STEP,
        learning_rate=LEARNING_RATE,
        warmup_steps=WARMUP_STEPS,
        **(falling if stage.falls else {"lr_scheduler_type": "constant_with_warmup"}),
        suffix_mask_probability=0.5,
        ar_loss_weight=0.5,  # the autoregressive loss falls first, and masked tokens are harder to learn
        block_size=stage.block_size,
        attn_implementation="eager",  # the fastest in rows this short
        bf16=given.bf16,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=LOGGING_STEPS,
        save_steps=SAVE_STEPS,
        save_total_limit=2,
        restore_callback_states_from_checkpoint=True,  # the clock
        report_to="none",
        disable_tqdm=True,
    )
    optimizers = MuonAndAdamW(model, LEARNING_RATE), None
    trainer = WeDLMTrainer(
        model, arguments, train_dataset=rows, processing_class=tokenizer, callbacks=[Clock()], optimizers=optimizers
    )
    trainer.train(resume_from_checkpoint=newest_complete(arguments))
    clock = next(each for each in trainer.callback_handler.callbacks if isinstance(each, Clock))
    return [entry for entry in trainer.state.log_history if "mlm_loss" in entry], clock.seconds


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


def check_settings(given: argparse.Namespace) -> None:
    """Refuses to go on with a run that was begun with other settings or other conversations."""
    settings = {name: value for name, value in vars(given).items() if name != "out"}
    settings["conversations"] = digest_of([conversation(SEED, number) for number in range(1000)])
    file = given.out / "settings.json"
    begun = json.loads(file.read_text(encoding="utf-8")) if file.exists() else settings
    if other := [name for name in settings if settings[name] != begun.get(name)]:
        raise SystemExit(
            f"{given.out} was begun with {other[0]}={begun.get(other[0])} and not with {settings[other[0]]}; pass "
            "the same arguments, or another folder."
        )
    given.out.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(settings, indent=2) + "\n")


def pass_stage(
    stage: Stage, tokenizer: PreTrainedTokenizerBase, before: Path | None, checkpoint: Path, given: argparse.Namespace
) -> None:
    """Trains the checkpoint of a stage from the one before it, which the report of losses continues."""
    conversations, answers, losses, stages = conversations_of(stage), {}, [], []
    if before is None:
        model = random_model(tokenizer, given.hidden_size, given.num_layers)
    else:
        model = WeDLMForCausalLM.from_pretrained(before)
        questions = [example for examples in conversations for example in examples]
        answers = own_answers(model.eval(), tokenizer, questions, given.out / stage.name, weights_digest(before))
        conversations = [
            [example._replace(answer=answers.get(example.prompt, example.answer)) for example in examples]
            for examples in conversations
        ]
        report = json.loads((before / "training.json").read_text(encoding="utf-8"))
        losses, stages = report["results"], report["stages"]
    own_losses, seconds = train(stage, model, tokenizer, training_rows(tokenizer, conversations), given)
    save(model, tokenizer, checkpoint)
    for entry in own_losses:
        entry["step"] += stage.steps_before
        del entry["epoch"]  # of this stage alone; no conversation comes twice
    losses += own_losses
    plot(losses, checkpoint / "loss.png")
    origin = {"command": command(), **conditions(model.device), "seconds": seconds}
    stages.append({"stage": stage.name, "own_answers": len(answers), **origin})
    write_report(
        checkpoint / "training.json",
        losses,
        model.device,
        parameters=model.num_parameters(),
        steps=given.steps,
        seconds=sum(each["seconds"] for each in stages),
        stages=stages,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, nargs=3, default=list(STEPS), help="optimizer steps of the stages")
    parser.add_argument("--hidden_size", type=int, default=256)
    parser.add_argument("--num_layers", type=int, default=6)
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=has_bfloat16())
    given = parser.parse_args()
    check_settings(given)
    tokenizer, stages = demo_tokenizer(), stages_of(given.steps)
    checkpoints = [given.out / stage.name / "model" for stage in stages]
    finished = [number for number, folder in enumerate(checkpoints) if (folder / "training.json").exists()]
    for number in range(max(finished, default=-1) + 1, len(stages)):
        pass_stage(stages[number], tokenizer, checkpoints[number - 1] if number else None, checkpoints[number], given)


if __name__ == "__main__":
    main()
