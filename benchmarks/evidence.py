"""Writes docs/EVIDENCE.md from evidence_template.md and the records of ablations, evidence_real and real_training."""

import json
from pathlib import Path
from typing import Any

import ablations
import evidence_real
import real_training
from common import RESULTS

from wedlm.checkpoints.whole_file import write_whole
from wedlm.evaluation.provenance import REPOSITORY, commit_text

PAGE = REPOSITORY / "docs" / "EVIDENCE.md"
TEMPLATE = Path(__file__).with_name("evidence_template.md")


def recorded(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def origin(file: Path) -> str:
    """The command of a record, its file, and where and with which versions it ran."""
    record = recorded(file)
    versions, threads = record["versions"], record["threads"]
    return (
        f"`{record['command']}`, in [{file.name}](../benchmarks/results/{file.name}): {record['device']}, {threads} "
        f"thread{'s' * (threads != 1)}, torch {versions['torch']}, transformers {versions['transformers']}, "
        f"{commit_text(record['commit'])}."
    )


def figure(name: str) -> str:
    """The plot, the table and the origin of a figure of decoding."""
    file = RESULTS / ablations.file_of(name)
    plot = f"![{name}](evidence/{ablations.plot_of(name)})"
    return f"{plot}\n\n{ablations.table(recorded(file)['results'])}\n\n{origin(file)}"


def real_model(dtype: str) -> dict[str, Any]:
    """What the template shows of the real model: the settings, sentences and tables of a record."""
    file = evidence_real.FILES[dtype]
    record = recorded(file)
    return {
        **record,
        **evidence_real.sentences_and_tables(record["results"], dtype),
        "origin": origin(file),
    }


def trained_model() -> dict[str, Any]:
    record = recorded(real_training.FILE)
    results = record["results"]
    return {
        **record,
        **results["training"],
        "num_prompts": results["prompts"],
        "price_table": real_training.price_table(results),
        "texts_table": real_training.texts_table(results),
        "precision": "bfloat16, with weights in float32" if record["bf16"] else "float32",
        "places": real_training.places(results),
        "origin": origin(real_training.FILE),
    }


def page() -> str:
    figures = {name.replace("-", "_"): figure(name) for name in ablations.FIGURES}
    real = {"real": real_model("float32"), "bfloat16": real_model("bfloat16"), "trained": trained_model()}
    return TEMPLATE.read_text(encoding="utf-8").format(**figures, **real)


def main() -> None:
    write_whole(PAGE, page())
    print(f"written to {PAGE.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
