"""How a checkpoint was trained, as a section of a card."""

from pathlib import Path
from typing import Any

from wedlm.evaluation.provenance import commit_text
from wedlm.hub_card.card import TrainingSection
from wedlm.hub_card.markdown import escaped, shown_command, shown_versions
from wedlm.hub_card.report_file import read_report

LOSSES = {"loss": "", "mlm_loss": "of masked tokens ", "ar_loss": "of next tokens "}


def read_training(path: Path) -> TrainingSection:
    """Reads a training_report.json of `wedlm train`, or a training.json of the demo checkpoint's recipe."""
    return read_report(path, parse_training, "wedlm train")


def parse_training(report: dict[str, Any]) -> TrainingSection:
    log = report["log"] if "log" in report else report["results"]
    steps = [entry for entry in log if "loss" in entry]
    last = (steps or log)[-1]  # a run shorter than logging_steps has only the summary
    evaluations = [entry for entry in log if "eval_loss" in entry]
    seconds = report.get("seconds", next((entry["train_runtime"] for entry in log if "train_runtime" in entry), None))
    facts = {"optimizer steps": f"{last['step']:,}"}
    if "epoch" in last:
        facts["epochs"] = f"{last['epoch']:.2f}"
    for name, data in report.get("data", {}).items():
        facts[f"data ({name})"] = (
            f"{data['num_samples']:,} samples from {data['num_read']:,} records: {data['num_tokens']:,} tokens, "
            f"{data['num_loss_tokens']:,} of them with loss"
        )
    losses = [f"{title}{float(last[name]):.3f}" for name, title in LOSSES.items() if name in last]
    if losses:
        facts["loss, nats per token"] = ", ".join(losses)
    if evaluations:
        facts["loss on held-out data"] = f"{evaluations[-1]['eval_loss']:.3f}"
    if seconds is not None:
        facts["time"] = duration(seconds)
    if "device" in report:
        facts["device"] = place(report)
    for stage in report.get("stages", []):
        facts[f"stage: {stage['stage']}"] = (
            f"{duration(stage['seconds'])}, {place(stage)}, {commit_text(stage['commit'])}"
        )
    facts["versions"] = shown_versions(report["versions"])
    if report.get("commit") is not None:
        facts["source"] = commit_text(report["commit"])
    return TrainingSection(
        shown_command(report["command"]), {escaped(name): escaped(fact) for name, fact in facts.items()}
    )


def duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


def place(report: dict[str, Any]) -> str:
    """Where a report was made: the device, and the number of threads."""
    return f"{report['device']}, {report['threads']} thread{'' if report['threads'] == 1 else 's'}"
