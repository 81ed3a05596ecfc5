"""Measures an adapter: held-out prompts are answered token by token and verified, alternately, and texts compared."""

from pathlib import Path
from typing import Any

from wedlm.checkpoints.load import load_checkpoint
from wedlm.drafts.answers import Answerer
from wedlm.drafts.prompt_split import Task, Tasks
from wedlm.drafts.settings import AdaptSettings
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
    """Answers the held-out prompts, and those of --measure-also; returns the numbers by group and kind."""
    model, tokenizer = load_checkpoint(adapter, "auto", settings.device, only_decodes=True, or_stock=True)
    decodings = {
        BASELINE: {"decoding": BASELINE},
        VERIFIED: with_defaults({"decoding": VERIFIED, "acceptance_ratio": 1.0}, model),
    }
    measured, most = [*tasks.held_out, *tasks.also], settings.max_new_tokens
    questions = [Question(ids, lambda text: 0.0) for ids in Answerer(model, tokenizer, settings).encode(measured)]
    identity = checkpoint_identity(model, adapter)
    work_file = WorkFile(work / "measurement", {**identity, **conditions(model.device), "max_new_tokens": most})
    with resumable(work_file):
        answers = sweep(model, tokenizer, questions, decodings, most, work_file)
    base, verified, num_held_out = answers[BASELINE], answers[VERIFIED], len(tasks.held_out)
    return {
        **identity,
        "device": str(model.device),
        "arguments": decodings[VERIFIED],
        "held_out": by_kind(measured[:num_held_out], base[:num_held_out], verified[:num_held_out]),
        "also": by_kind(measured[num_held_out:], base[num_held_out:], verified[num_held_out:]),
    }


def by_kind(tasks: list[Task], base: list[Answer], verified: list[Answer]) -> dict[str, dict]:
    """The numbers of all prompts together, and of each kind if there are several; nothing if there are no prompts."""
    kinds = [task.kind for task in tasks]
    rows = {ALL: range(len(tasks))} if tasks else {}
    if len(set(kinds)) > 1:
        rows |= {kind: [i for i, own in enumerate(kinds) if own == kind] for kind in dict.fromkeys(kinds)}
    return {name: numbers([base[i] for i in own], [verified[i] for i in own]) for name, own in rows.items()}


def numbers(base: list[Answer], verified: list[Answer]) -> dict[str, Any]:
    """The numbers of verified decoding on some prompts, with the speed of autoregressive decoding on the same."""
    of_verified = summary(verified, base, is_exact=True)
    return {name: of_verified[name] for name in NAMES} | {
        "autoregressive_tokens_per_second": summary(base, base, is_exact=True)["tokens_per_second"]
    }
