"""Measures an adapter: held-out prompts are answered token by token, and verified, in turns; its report and its card.

Verified decoding is measured with its defaults, and with full windows (query_cost=0). The defaults leave out MASKs
that cost more time on the device than they save; with full windows adapters compare on every device alike.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from wedlm.checkpoints.load import load_checkpoint
from wedlm.drafts.check import record_of
from wedlm.drafts.prompt_split import Examples
from wedlm.drafts.settings import AdaptSettings
from wedlm.evaluation.decodings import BASELINE, with_defaults
from wedlm.evaluation.provenance import checkpoint_identity, conditions, write_report
from wedlm.evaluation.sweep import Answer, Question, summary, sweep
from wedlm.evaluation.tuning import Example, encoded
from wedlm.evaluation.work_file import WorkFile, resumable
from wedlm.hub_card.markdown import escaped
from wedlm.hub_card.reports import PLOT_FILE, REPORT_FILE, draft_section, labelled, table_of

VERIFIED, FULL_WINDOWS = "verified", "verified, full windows"
ALL = "all"
NAMES = (
    "num_questions", "same_text_as_autoregressive", "tokens_per_forward", "tokens_per_second", "times_autoregressive",
)  # fmt: skip
CARD = """\
# {name}

A draft adapter of rank {rank} for {model}, to be used with the Python package `wedlm` (parallel decoding, after the
[WeDLM paper](https://arxiv.org/abs/2512.22737)). The adapter is a LoRA and an embedding for a MASK token. It is active
at MASK tokens only, where it proposes the next tokens (*drafts*). *Verified decoding* checks the drafts with the base
itself, so the base generates several tokens per forward pass, with the same output as without the adapter, up to
rounding.

```bash
wedlm generate {name} "Why is the sky blue?"
```

In Python, `import wedlm` comes first: it lets `PeftModel.from_pretrained` and the Auto classes load the adapter.
Without it they raise `KeyError: 'WEDLM_DRAFT'`. The tokenizer is that of the base.

```python
import wedlm
from transformers import AutoModelForCausalLM, AutoTokenizer

model = wedlm.fuse(AutoModelForCausalLM.from_pretrained("{name}"))
tokenizer = AutoTokenizer.from_pretrained("{name}")
chat = [{{"role": "user", "content": "Why is the sky blue?"}}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
output = model.generate(**inputs, decoding="verified", max_new_tokens=100)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
```

`wedlm export {name} REPOSITORY` writes a repository for the Hub with the base and the adapter. With `--adapter-only`,
it has the adapter alone.

## {title}

{text}
"""


def measure(settings: AdaptSettings, examples: Examples, adapter: Path, work: Path) -> dict[str, Any]:
    """Answers the held-out prompts, and those of --measure-also; returns the numbers by group and kind."""
    model, tokenizer = load_checkpoint(adapter, "auto", settings.device, only_decodes=True, or_stock=True)
    decodings = {
        BASELINE: {"decoding": BASELINE},
        VERIFIED: with_defaults({"decoding": VERIFIED, "acceptance_ratio": 1.0}, model),
    }
    decodings[FULL_WINDOWS] = decodings[VERIFIED] | {"query_cost": 0.0}
    measured, most = [*examples.held_out, *examples.also], settings.max_new_tokens
    questions = [Question(ids, lambda text: 0.0) for ids in encoded(measured, model, tokenizer, most)]
    identity = checkpoint_identity(model, adapter)
    work_file = WorkFile(work / "measurement", {**identity, **conditions(model.device), "max_new_tokens": most})
    with resumable(work_file):
        answers = sweep(model, tokenizer, questions, decodings, most, work_file)
    num_held_out = len(examples.held_out)
    held_out, also = (
        {name: made[part] for name, made in answers.items()}
        for part in (slice(num_held_out), slice(num_held_out, None))
    )
    return {
        **identity,
        "device": str(model.device),
        "arguments": decodings[VERIFIED],
        "held_out": by_kind(examples.held_out, held_out),
        "also": by_kind(examples.also, also),
    }


def by_kind(examples: list[Example], answers: dict[str, list[Answer]]) -> dict[str, dict]:
    """The numbers of all prompts together, and of each kind if there are several; nothing if there are no prompts."""
    kinds = [example.kind for example in examples]
    rows = {ALL: range(len(examples))} if examples else {}
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


# --- The report ---


def write_adapter_report(settings: AdaptSettings, results: dict[str, Any], folder: Path, name: str) -> None:
    """Writes report.json, the plot and the card, and prints the table."""
    write_report(folder / REPORT_FILE, results, results["device"], ("peft",), settings=record_of(settings))
    plot(results, folder / PLOT_FILE)
    model = Path(settings.model).resolve().name if Path(settings.model).is_dir() else settings.model
    report = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
    (folder / "README.md").write_text(adapter_card(report, name, model), encoding="utf-8")
    print(table_of(results))
    print(
        "Tokens/s are medians over the prompts. Times as fast is the median of the speed-ups of single prompts, with "
        "the interquartile range; it is not the ratio of these medians."
    )


def adapter_card(report: dict[str, Any], name: str, model: str) -> str:
    """The card of an adapter by the report of its measurement; `name` is its folder's, and `model` its base's."""
    section, rank = draft_section(report), report["settings"]["rank"]
    return CARD.format(name=name, rank=rank, model=escaped(model), title=section.title, text=section.text)


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
    curve.set_ylabel("tokens per pass, by the accepted drafts")
    curve.legend()
    rows = labelled(results)
    bars.barh(list(rows)[::-1], [one["tokens_per_forward"] for one in rows.values()][::-1])
    bars.axvline(1, color="black", linewidth=1)
    bars.set_xlabel("tokens per pass, measured")
    figure.savefig(path, dpi=120)


def smoothed(values: Sequence[float], width: int) -> list[float]:
    """The mean of each value and those just before it: smoothed([1, 3, 5], width=2) == [1, 2, 4]"""
    return [mean(values[max(0, end - width) : end]) for end in range(1, len(values) + 1)]
