"""The report of a run, its plot, and its card."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from wedlm.drafts.settings import AdaptSettings
from wedlm.evaluation.provenance import write_report
from wedlm.hub_card.draft_report import PLOT_FILE, REPORT_FILE, draft_section, labelled, table_of
from wedlm.hub_card.markdown import escaped

CARD = """\
# {name}

A draft adapter of rank {rank} for {model}: a LoRA and an embedding of MASK, which act at MASK tokens and nowhere else.
So verified decoding with it writes the text of its base, up to rounding, in fewer forwards.

```bash
wedlm generate {name} "Why is the sky blue?"
```

In Python `import wedlm` comes first, and then `PeftModel.from_pretrained` and the Auto classes know the adapter;
without it they say `KeyError: 'WEDLM_DRAFT'`. The tokenizer is that of the base.

`wedlm export {name} REPOSITORY` makes one repository of the base and the adapter, for the Hub; with `--adapter-only`
the adapter goes alone.

## {title}

{text}
"""


def write_adapter_report(settings: AdaptSettings, results: dict[str, Any], folder: Path, name: str) -> None:
    """Writes report.json, the plot and the card, and prints the table."""
    write_report(folder / REPORT_FILE, results, results["device"], ("peft",), settings=settings.recorded())
    plot(results, folder / PLOT_FILE)
    section = draft_section(json.loads((folder / REPORT_FILE).read_text(encoding="utf-8")))
    model = escaped(Path(settings.model).resolve().name if Path(settings.model).is_dir() else settings.model)
    card = CARD.format(name=name, rank=settings.rank, model=model, title=section.title, text=section.text)
    (folder / "README.md").write_text(card, encoding="utf-8")
    print(table_of(results))
    print(
        "Tokens/s are medians over the prompts. Times as fast is the median of the ratios of single prompts, with its "
        "quartiles, and not the ratio of these medians."
    )


def plot(results: dict[str, Any], path: Path) -> None:
    """Draws the tokens per forward that training expects, step by step, and those measured, kind by kind."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    curve, bars = figure.subplots(1, 2)
    for name, style, title, width in (
        ("tokens_per_forward", "-", "training, a mean of ten", 10),
        ("eval_tokens_per_forward", "o-", "held-out answers", 1),
    ):
        points = [(entry["step"], entry[name]) for entry in results["log"] if name in entry]
        if points:
            steps, values = zip(*points, strict=True)
            curve.plot(steps, smoothed(values, width), style, linewidth=1, label=title)
    curve.set_xlabel("optimizer step")
    curve.set_ylabel("tokens per forward, by the accepted drafts")
    curve.legend()
    rows = labelled(results)
    bars.barh(list(rows)[::-1], [one["tokens_per_forward"] for one in rows.values()][::-1])
    bars.axvline(1, color="black", linewidth=1)
    bars.set_xlabel("tokens per forward, measured")
    figure.savefig(path, dpi=120)


def smoothed(values: Sequence[float], width: int) -> list[float]:
    """The mean of each value and those just before it: smoothed([1, 3, 5], width=2) == [1, 2, 4]"""
    return [mean(values[max(0, end - width) : end]) for end in range(1, len(values) + 1)]
