"""The report of `wedlm adapt` as a section of a card: how fast the adapter makes its base, on which prompts."""

from pathlib import Path
from typing import Any

from wedlm.evaluation.provenance import commit_text
from wedlm.hub_card.card import Section
from wedlm.hub_card.markdown import escaped, number, shown_command, shown_versions, table
from wedlm.hub_card.options import ExportError
from wedlm.hub_card.report_file import read_report

REPORT_FILE, PLOT_FILE = "report.json", "drafts.png"


def read_draft_report(path: Path, digests: dict[str, str], adapter: Path) -> Section:
    """Reads a report.json of `wedlm adapt`, and refuses one about weights of other `digests` than the adapter has."""

    def parse(report: dict[str, Any]) -> tuple[dict[str, str], Section]:
        return {name: report["results"][name] for name in digests}, draft_section(report)

    measured, section = read_report(path, parse, "wedlm adapt")
    if measured != digests:
        raise ExportError(
            f"{path} is about other weights than those of {adapter} and its base; remove it, and export again."
        )
    return section


def draft_section(report: dict[str, Any]) -> Section:
    """Returns what the adapter brings, with the command and the conditions of the measurement."""
    results = report["results"]
    fused = f", fused ({results['product']})" if results.get("product") else ""
    window = results["arguments"]["window_size"]
    verified = "verified" if window is None else f"verified (window of {window})"
    earlier = report["settings"]["start_from"]  # the SHA-256 of its weights
    if earlier is None:
        origin = "The command trained the adapter from nothing, and on none of the prompts of the table."
    else:  # an earlier run may have been trained on them
        origin = f"The command trained an earlier adapter further, whose weights have the SHA-256 `{earlier}`."
    return Section(
        "Speed",
        f"Prompts were answered greedily, one at a time, token by token and {verified}, in turns, "
        f"in {results['dtype']}{fused}, on {escaped(report['device'])}, with {shown_versions(report['versions'])}, "
        f"{commit_text(report['commit'])}.\n\n"
        f"```bash\n{shown_command(report['command'])}\n```\n\n"
        f"{origin}\n\n"
        f"{table_of(results)}\n\n"
        f"*Same text* counts the prompts whose answers are equal. *Full windows* are the tokens per forward with "
        f"`query_cost=0`; by default a step leaves out MASKs that cost more time than they save. *Tokens/s* and "
        f"*times as fast* are medians over the prompts, the latter with its quartiles.\n\n"
        f"![Tokens per forward in training, and measured]({PLOT_FILE})",
    )


def labelled(results: dict[str, Any]) -> dict[str, dict]:
    """The measured numbers by their names in the table: those of the held-out prompts, then those of the others."""
    other = {f"other prompts: {name}": one for name, one in results["also"].items()}
    return {name.replace("_", " "): one for name, one in (results["held_out"] | other).items()}


def table_of(results: dict[str, Any]) -> str:
    """Returns a table of the measured numbers, a line for each kind of prompts."""
    head = ["prompts", "number", "same text", "tokens per forward", "full windows", "tokens/s, token by token"]
    lines = [[*head, "verified", "times as fast"]]
    for name, one in labelled(results).items():
        times, (low, high) = one["times_autoregressive"]["median"], one["times_autoregressive"]["quartiles"]
        full = one.get("tokens_per_forward_of_full_windows")  # since 0.3.0
        lines.append(
            [
                escaped(name),
                str(one["num_questions"]),
                str(round(one["same_text_as_autoregressive"] * one["num_questions"])),
                number(one["tokens_per_forward"], 2),
                "" if full is None else number(full, 2),
                number(one["autoregressive_tokens_per_second"]["median"], 1),
                number(one["tokens_per_second"]["median"], 1),
                f"{times:.2f} ({low:.2f} to {high:.2f})",
            ]
        )
    return table(lines)
