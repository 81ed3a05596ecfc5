"""Writes the pages of docs/ that show records, from their templates here."""

import json
import os
from pathlib import Path
from statistics import mean
from typing import Any

import ablations
import arithmetic
import evidence_real
import gpu_checks
import gpu_kit
import real_training
import task_comparison
import task_training
import trainer_speed
from common import ADAPTER, RESULTS, plot

from examples.demo.card import goals_table
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.whole_file import write_whole
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.provenance import REPOSITORY, commit_text
from wedlm.hub_card.reports import REPORT_FILE

DOCS = REPOSITORY / "docs"


def recorded(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def origin(file: Path) -> str:
    """The command of a record, its file, and where and with which versions it ran."""
    record = recorded(file)
    versions, threads = record["versions"], record["threads"]
    return (
        f"`{record['command']}`, in [{file.name}]({os.path.relpath(file, DOCS)}): {record['device']}, {threads} "
        f"thread{'s' * (threads != 1)}, torch {versions['torch']}, transformers {versions['transformers']}, "
        f"{commit_text(record['commit'])}."
    )


def figure(name: str) -> str:
    """The plot, the table and the origin of a figure of decoding."""
    file = RESULTS / ablations.file_of(name)
    plot = f"![{name}](evidence/{ablations.plot_of(name)})"
    return f"{plot}\n\n{ablations.table(recorded(file)['results'])}\n\n{origin(file)}"


def real_model() -> dict[str, Any]:
    """What the template shows of the real model: settings, and the tables of all records."""
    records = evidence_real.read_records()
    about = evidence_real.lowest(records).about
    alone, together = (cell["prompts"] for cell in records[0].cells if cell["group"] == evidence_real.ALL)
    numbers = {"alone": alone, "together": together, "speed_tables": evidence_real.speed_tables(records)}
    numbers |= {"overview": evidence_real.overview(records), "compared": evidence_real.compared(records)}
    return about | numbers | {"details": "\n\n".join(map(details, records))}


def details(record: evidence_real.Record) -> str:
    """What a record says of the prompts one at a time."""
    versions = record.about["peers_versions"].items()
    peers = ", ".join(f"{name} {version}" for name, version in versions if version) or "no other library"
    plot = f"![Speed by kind of prompt](evidence/{evidence_real.plot_of(record)})\n\n"
    cpu, bandwidth = evidence_real.name_of(record), record.bytes_per_second / 1e9
    return (
        f"**{cpu} in {record.dtype}, one at a time,** with {bandwidth:.1f} GB per second.\n\n"
        f"{evidence_real.detail_table(record)}\n\n{plot if record.dtype == 'float32' else ''}{origin(record.file)} "
        f"Other engines: {peers}."
    )


def trained_model() -> dict[str, Any]:
    record = recorded(real_training.FILE)
    results = record["results"]
    last = results["moments"][-1]["ways"]
    return {
        **record,
        **results["training"],
        "streamed": real_training.tokens_per_forward(last[real_training.STREAMING]),
        "verified": real_training.tokens_per_forward(last[real_training.VERIFIED]),
        "adapted": real_training.tokens_per_forward(results["adapter"]),
        "num_prompts": results["prompts"],
        "price_table": real_training.price_table(results),
        "texts_table": real_training.texts_table(results),
        "precision": "bfloat16, with weights in float32" if record["bf16"] else "float32",
        "places": real_training.places(results),
        "two_linearly": real_training.when(results, real_training.STREAMING, 2.0, logarithmic=False),
        "two_logarithmically": real_training.when(results, real_training.STREAMING, 2.0, logarithmic=True),
        "origin": origin(real_training.FILE),
    }


def on_gpu(name: str) -> Path:
    return RESULTS / "gpu" / f"{name}.json"


def gpu() -> dict[str, Any]:
    """What was checked and measured on a GPU, and what the training of the adapter took there."""
    log = recorded(REPOSITORY / ADAPTER / REPORT_FILE)["results"]["log"]
    (trained,) = (entry for entry in log if "train_runtime" in entry)
    steps, real, tasks = recorded(on_gpu("steps")), evidence_real.read_record(on_gpu("evidence")), on_gpu("tasks")
    one, many = (
        steps["results"][f"qwen3-8b, batch 1, captured, {queries} queries"]["milliseconds"]["median"]
        for queries in (1, 32)
    )
    return {
        "checks": "\n\n".join(map(checks, ("checks", "checks_captured"))),
        "adapter_steps": trained["step"],
        "adapter_seconds": trained["train_runtime"],
        "length": steps["length"],
        "more_queries": many / one,
        "steps": gpu_kit.table(steps["results"]),
        "steps_origin": origin(on_gpu("steps")),
        "prompts": real.cell(1)["prompts"],
        "answer_tokens": real.about["new_tokens"],
        "real": evidence_real.short_table(real),
        "real_origin": origin(real.file),
        "training_speed": training_speed(),
        "tasks": task_training.table(recorded(tasks)["results"]),
        "training": recorded(tasks)["results"]["training"],
        "rank": recorded(tasks)["rank"],
        "questions": recorded(tasks)["questions"],
        "later": recorded(tasks)["results"]["later"],
        "tasks_origin": origin(tasks),
    }


def training_speed() -> str:
    file = on_gpu("training")
    if not file.exists():
        return "Not measured yet: `python benchmarks/gpu_kit.py training`."
    return f"{trainer_speed.table(recorded(file)['results'])}\n\n{origin(file)}"


def checks(name: str) -> str:
    """The checks of a record that the script still makes."""
    results = [result for result in recorded(on_gpu(name))["results"] if result["check"] in gpu_checks.CHECKS]
    return f"{gpu_checks.table(results)}\n\n{origin(on_gpu(name))}"


def gpu_headline() -> str:
    """For README.md, which a test compares."""
    steps, real = recorded(on_gpu("steps")), evidence_real.read_record(on_gpu("evidence"))
    shape = "qwen3-8b, batch 1, "
    ways = gpu_kit.CAPTURED, f"verified, {gpu_kit.SOME_QUERIES} queries", "stock"
    captured, verified, stock = (steps["results"][shape + name] for name in ways)
    ours, same = (
        evidence_real.times(real.cell(1), evidence_real.CAPTURED),
        evidence_real.same_texts(real, evidence_real.CAPTURED),
    )
    return (
        f"On an {steps['device']} in {real.dtype}, with random weights in the shape of Qwen3-8B, a decoding step "
        f"takes {stock['milliseconds']['median']:.1f} ms in plain `generate()`. A verified step of 8 input tokens "
        f"takes {verified['milliseconds']['median']:.1f} ms, and {captured['milliseconds']['median']:.1f} ms as a "
        f"CUDA graph. With verified decoding and such graphs, SmolLM2-135M-Instruct (converted to a WeDLM) is "
        f"{ours:.2f} times as fast as plain `generate()` ({real.cell(1)['prompts']} prompts, one at a time; {same} "
        f"outputs are identical)."
    )


def demo_headline() -> str:
    """For README.md, which a test compares."""
    results = recorded(DEMO_FOLDER / REPORT_FILE)["results"].values()
    window = recorded(DEMO_FOLDER / "generation_config.json")["window_size"]

    def passes(decoding: str) -> str:
        tokens = [kind[decoding]["tokens_per_forward"] for kind in results]
        return f"{min(tokens):.1f} to {max(tokens):.1f}"

    def right(decoding: str) -> str:
        return f"{100 * mean(kind[decoding]['accuracy'] for kind in results):.0f} %"

    return (
        f"On {len(results)} kinds of held-out questions, the demo checkpoint (a toy) streams {passes('streaming')} "
        f"tokens per forward pass and gets {right('streaming')} of the answers right. Verified decoding generates "
        f"{passes('verified')} tokens per forward pass (window {window}) and gets {right('verified')} right; token by "
        f"token it gets {right(BASELINE)} right."
    )


def pages() -> dict[Path, str]:
    """The text of each page."""
    figures = {name.replace("-", "_"): figure(name) for name in ablations.FIGURES}
    measured = recorded(RESULTS / ablations.file_of("threshold"))["results"][ablations.ALL]
    goals = goals_table(recorded(DEMO_FOLDER / "report.json"))
    template, of_study, of_figures, of_arithmetic = (
        Path(__file__).with_name(f"{name}_template.md").read_text(encoding="utf-8")
        for name in ("evidence", "study", "figures", "arithmetic")
    )
    return {
        DOCS / "EVIDENCE.md": template.format(real=real_model(), gpu=gpu()),
        DOCS / "study.md": of_study.format(trained=trained_model()),
        DOCS / "figures.md": of_figures.format(**figures, goals=goals, measured=measured),
        DOCS / "arithmetic.md": of_arithmetic.format(**arithmetic.shown()),
    }


def main() -> None:
    evidence_real.draw_overview(evidence_real.read_records(), DOCS / "evidence")
    for record in evidence_real.read_records():
        if record.dtype == "float32":
            evidence_real.draw(record, DOCS / "evidence")
    answers = {}
    for record in sorted(RESULTS.glob("task_comparison*.json")):
        answers |= recorded(record)["results"]["answers"]
    plot(DOCS / "images" / "task_comparison", task_comparison.panels(answers))
    for page, text in pages().items():
        write_whole(page, text)
        print(f"written to {page.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
