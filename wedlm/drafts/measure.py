"""Measures an adapter: held-out prompts are answered token by token, and verified, in turns, and texts are compared.

Verified decoding is measured with its defaults, and with full windows (query_cost=0). The defaults leave out MASKs
that cost more time on the device than they save; with full windows adapters compare on every device alike.
"""

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

VERIFIED, FULL_WINDOWS = "verified", "verified, full windows"
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
    decodings[FULL_WINDOWS] = decodings[VERIFIED] | {"query_cost": 0.0}
    measured, most = [*tasks.held_out, *tasks.also], settings.max_new_tokens
    questions = [Question(ids, lambda text: 0.0) for ids in Answerer(model, tokenizer, settings).encode(measured)]
    identity = checkpoint_identity(model, adapter)
    work_file = WorkFile(work / "measurement", {**identity, **conditions(model.device), "max_new_tokens": most})
    with resumable(work_file):
        answers = sweep(model, tokenizer, questions, decodings, most, work_file)
    num_held_out = len(tasks.held_out)
    held_out, also = (
        {name: made[part] for name, made in answers.items()}
        for part in (slice(num_held_out), slice(num_held_out, None))
    )
    return {
        **identity,
        "device": str(model.device),
        "arguments": decodings[VERIFIED],
        "held_out": by_kind(tasks.held_out, held_out),
        "also": by_kind(tasks.also, also),
    }


def by_kind(tasks: list[Task], answers: dict[str, list[Answer]]) -> dict[str, dict]:
    """The numbers of all prompts together, and of each kind if there are several; nothing if there are no prompts."""
    kinds = [task.kind for task in tasks]
    rows = {ALL: range(len(tasks))} if tasks else {}
    if len(set(kinds)) > 1:
        rows |= {kind: [i for i, own in enumerate(kinds) if own == kind] for kind in dict.fromkeys(kinds)}
    return {
        name: numbers({each: [made[i] for i in own] for each, made in answers.items()}) for name, own in rows.items()
    }


def numbers(answers: dict[str, list[Answer]]) -> dict[str, Any]:
    """The numbers of verified decoding on some prompts, and what those of the other decodings add."""
    of_base, of_verified, of_full = (
        summary(answers[name], answers[BASELINE], is_exact=True) for name in (BASELINE, VERIFIED, FULL_WINDOWS)
    )
    return {name: of_verified[name] for name in NAMES} | {
        "tokens_per_forward_of_full_windows": of_full["tokens_per_forward"],
        "autoregressive_tokens_per_second": of_base["tokens_per_second"],
    }
