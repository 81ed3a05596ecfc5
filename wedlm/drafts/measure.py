"""Measures an adapter: held-out prompts are answered token by token and verified, in turns, and texts compared."""

from pathlib import Path
from typing import Any, NamedTuple

from wedlm.checkpoints.load import load_checkpoint
from wedlm.drafts.answers import encode_all
from wedlm.drafts.settings import AdaptSettings
from wedlm.drafts.tasks import Task, Tasks
from wedlm.evaluation.decodings import BASELINE, with_defaults
from wedlm.evaluation.provenance import checkpoint_identity, conditions
from wedlm.evaluation.sweep import Answer, Question, summary, sweep
from wedlm.evaluation.work_file import WorkFile, resumable

VERIFIED = "verified"
ALL = "all"
NAMES = (
    "num_questions", "same_text_as_autoregressive", "tokens_per_forward", "tokens_per_second", "times_autoregressive",
)  # fmt: skip


def measure(settings: AdaptSettings, tasks: Tasks, adapter: Path, work: Path) -> dict[str, Any]:
    """Answers the held-out prompts, and those of --measure-also; returns the numbers by group and kind.

    Args:
        settings (`AdaptSettings`): The length of answers, and the device.
        tasks (`Tasks`): The prompts.
        adapter (`Path`): The folder of the adapter. Its base is loaded in the dtype on disk.
        work (`Path`): Where answers are kept, so that a stopped run goes on.
    """
    model, tokenizer = load_checkpoint(adapter, "auto", settings.device, only_decodes=True)
    decodings = {
        BASELINE: {"decoding": BASELINE},
        VERIFIED: with_defaults({"decoding": VERIFIED, "acceptance_ratio": 1.0}, model),
    }
    asked, most = [*tasks.held_out, *tasks.also], settings.max_new_tokens
    questions = [Question(ids, lambda text: 0.0) for ids in encode_all(model, tokenizer, asked, most)]
    identity = checkpoint_identity(model, adapter)
    kept = WorkFile(work / "measurement", {**identity, **conditions(model.device), "max_new_tokens": most})
    with resumable(kept):
        answers = sweep(model, tokenizer, questions, decodings, most, kept)
    answered = [Answered(*one) for one in zip(asked, answers[BASELINE], answers[VERIFIED], strict=True)]
    num_held_out = len(tasks.held_out)
    return {
        **identity,
        "device": str(model.device),
        "arguments": decodings[VERIFIED],
        "held_out": by_kind(answered[:num_held_out]),
        "also": by_kind(answered[num_held_out:]),
    }


class Answered(NamedTuple):
    """A prompt with both answers to it."""

    task: Task
    autoregressive: Answer
    verified: Answer


def by_kind(answered: list[Answered]) -> dict[str, dict]:
    """The numbers of all prompts together, and of each kind if there are several; nothing if there are no prompts."""
    kinds = list(dict.fromkeys(one.task.kind for one in answered))
    groups = {ALL: answered} if answered else {}
    if len(kinds) > 1:
        groups |= {kind: [one for one in answered if one.task.kind == kind] for kind in kinds}
    return {name: numbers(group) for name, group in groups.items()}


def numbers(answered: list[Answered]) -> dict[str, Any]:
    """The numbers of verified decoding on some prompts, with the speed of autoregressive decoding on the same."""
    base, verified = ([getattr(one, name) for one in answered] for name in (BASELINE, VERIFIED))
    of_verified = summary(verified, base, is_exact=True)
    return {name: of_verified[name] for name in NAMES} | {
        "autoregressive_tokens_per_second": summary(base, base, is_exact=True)["tokens_per_second"]
    }
