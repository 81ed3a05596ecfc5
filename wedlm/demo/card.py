"""The demo checkpoint's model card, written from the numbers beside it.

python -m wedlm.demo.card [FOLDER]
"""

import json
import sys
from pathlib import Path

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.demo.report import BASELINE

CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
tags: [wedlm, diffusion, parallel-decoding]
---
# WeDLM demo

A WeDLM language model ([arXiv 2512.22737](https://arxiv.org/abs/2512.22737)) of {parameters} parameters, made to be
simply there: for trying parallel decoding, for tests and for benchmarks. It knows six kinds of tasks, from text
without any choice (counting) to text full of it (stories), and nothing else. It was trained from nothing, on generated
data only, in {minutes} minutes on {training_device} ({training_threads} threads).

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "wedlm-demo"  # this repository: a folder, or its name on the Hub
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
chat = [{{"role": "user", "content": {prompt}}}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=160, return_dict_in_generate=True)
print(tokenizer.decode(output.sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
print(output.forwards)
```

It needs transformers and torch; with the package `wedlm` installed, `import wedlm` takes the place of
`trust_remote_code=True`.
{examples}
## Results

On {num_examples} held-out examples of each kind, greedy, at most 160 new tokens. No problem of them is in the training
data, in whatever words. "Right" is what a checker finds that reads the question alone; functions are run, stories have
only their form checked. The interval behind an accuracy holds 95 % of the differences to autoregressive decoding when
the examples are resampled in pairs. "Cacheable" is the prefix cacheability of the paper (Eq. 4): tokens per row that
went through the model behind the prompt. "nll" is the negative log-likelihood per token, in nats, of what was
written, judged by this model, each token after those before it. Tokens per second are at batch 1, of {num_timed}
examples in {rounds} rounds in which the decodings take turns: the median, and how many times autoregressive decoding
that is, with quartiles. {device}, {threads} threads, torch {torch}, transformers {transformers}.

{tables}
The negative log-likelihood per token of the answers that the generators wrote: {held_out_nll}.

## Goals

What the checkpoint was meant to reach, and what it reached:

| goal | target | reached | |
| --- | ---: | ---: | --- |
{goals}

## What to expect of it

- Questions like those that `wedlm/demo/` of the repository generates, numbers of at most three digits, English.
  Anything else gets an answer that looks like one of the six kinds.
- The fewer the choices, the more tokens a forward can fill: the tables go from text with none to stories. That is the
  method, not the size.
- A forward of a model this small costs mostly overhead, so tokens per second say little about large models.

## How it was made

`make demo-model` and `make demo-report` in the repository make this folder again: {training_command} (commit
{training_commit}), then {command} (commit {commit}). Training is WeDLMTrainer's dual-stream objective.

![The two losses during training](loss.png)

`training.json` holds the losses, `report.json` every number of this card.
"""


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def spread(measured: dict, digits: int) -> str:
    low, high = measured["quartiles"]
    return f"{measured['median']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def table(kind: str, rows: dict[str, dict]) -> str:
    lines = [
        f"### {kind.replace('_', ' ').capitalize()}",
        "",
        "| decoding | right | over autoregressive | tokens per forward | cacheable | nll | tokens/s | times |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for decoding, row in rows.items():
        low, high = row["accuracy_over_autoregressive_interval"]
        over = "" if decoding == BASELINE else f"{100 * low:+.1f} to {100 * high:+.1f}"
        cells = [
            decoding,
            percent(row["accuracy"]),
            over,
            f"{row['tokens_per_forward']:.2f}",
            f"{row['prefix_cacheability']:.2f}",
            f"{row['nll_per_token']:.3f}",
            f"{row['tokens_per_second']['median']:.0f}",
            "" if decoding == BASELINE else spread(row["times_autoregressive"], 1),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def example(shown: dict) -> str:
    forwards = "forward" if shown["forwards"] == 1 else "forwards"
    counts = f"{shown['tokens']} tokens in {shown['forwards']} {forwards}."
    return f"\n> {shown['prompt']}\n\n```\n{shown['text']}\n```\n\n{counts}\n"


def goal_row(goal: dict) -> str:
    met = "met" if goal["met"] else "**missed**"
    return f"| {goal['goal']} | {goal['target']:g} | {goal['reached']:.3g} | {met} |"


def card(report: dict, training: dict) -> str:
    return CARD.format(
        parameters=f"{training['parameters'] / 1e6:.1f} million",
        minutes=round(training["seconds"] / 60),
        training_device=training["device"],
        training_threads=training["threads"],
        training_command=f"`{training['command']}`",
        training_commit=training["commit"][:12],
        prompt=json.dumps(report["examples"][0]["prompt"]),
        examples="".join(map(example, report["examples"])),
        num_examples=f"{report['num_examples']:,}",
        num_timed=report["num_timed"],
        rounds=report["rounds"],
        device=report["device"],
        threads=report["threads"],
        torch=report["versions"]["torch"],
        transformers=report["versions"]["transformers"],
        tables="\n".join(table(kind, rows) for kind, rows in report["results"].items()),
        held_out_nll=", ".join(f"{kind.replace('_', ' ')} {nll:.3f}" for kind, nll in report["held_out_nll"].items()),
        goals="\n".join(map(goal_row, report["goals"])),
        command=f"`{report['command']}`",
        commit=report["commit"][:12],
    )


def overview(report: dict) -> str:
    """For the README: of each kind what is right, tokens per forward, and how many times as fast as autoregressive."""
    decodings = ("autoregressive", "streaming", "verified")
    lines = [f"| | {' | '.join(decodings)} |", "| --- | ---: | ---: | ---: |"]
    for kind, rows in report["results"].items():
        cells = [percent(rows[BASELINE]["accuracy"])]
        for decoding in decodings[1:]:
            row = rows[decoding]
            times = row["times_autoregressive"]["median"]
            cells.append(f"{percent(row['accuracy'])}, {row['tokens_per_forward']:.1f}, {times:.1f}×")
        lines.append(f"| {kind.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEMO_FOLDER
    report, training = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("report.json", "training.json")
    )
    (folder / "README.md").write_text(card(report, training), encoding="utf-8")


if __name__ == "__main__":
    main()
