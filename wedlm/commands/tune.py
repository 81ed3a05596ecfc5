"""`wedlm tune`: decoding settings for somebody's own examples, into generation_config.json."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerBase, logging

from wedlm.checkpoints.load import load_checkpoint
from wedlm.commands.compare import PIPE_WIDTH
from wedlm.commands.evaluate import check_out, identity_of, told_where_it_goes_on
from wedlm.commands.generate import encode
from wedlm.commands.trace import write_whole
from wedlm.evaluation.decodings import BASELINE, EXACT, READS, whole
from wedlm.evaluation.provenance import conditions, write_report
from wedlm.evaluation.sweep import Question, front, summaries, sweep
from wedlm.evaluation.tuning import (
    AGREEMENT,
    MEASURES,
    Example,
    TuningError,
    allowed,
    examples_needed,
    measure_of,
    most_lost,
    read_examples,
    read_share,
    settings_to_try,
    verdict,
)
from wedlm.evaluation.work_file import WorkFile
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

CONFIG = "generation_config.json"


@dataclass(frozen=True)
class Tuning:
    model: Path
    data: Path
    max_quality_loss: str
    measure: str | None
    max_new_tokens: int
    out: Path
    overwrite: bool
    dry_run: bool
    dtype: str
    device: str | None


def tune(given: Tuning) -> None:
    loss = read_share(given.max_quality_loss)
    check_out(given.out, given.overwrite)
    if given.out.resolve() == given.data.resolve():
        raise TuningError(f"--out {given.out} is the file of --data, which would be replaced; choose another one.")
    examples = read_examples(given.data)
    measure = measure_of(given.measure, examples)
    if not given.model.is_dir():
        raise TuningError(
            f"{given.model} is no folder, and {CONFIG} is written into one; download it (`hf download NAME "
            "--local-dir FOLDER`) and give that."
        )
    config = read_config(given.model)
    model, tokenizer = load_checkpoint(given.model, given.dtype, given.device)
    logging.set_verbosity_error()
    all_ids = [encoded(model, tokenizer, example, given.data) for example in examples]
    most = model.config.max_position_embeddings - max(map(len, all_ids))
    if not 1 <= given.max_new_tokens <= most:
        raise TuningError(f"--max-new-tokens {given.max_new_tokens} is not from 1 to {most}, for which there is room.")
    decodings = {label: whole(chosen, model) for label, chosen in settings_to_try().items()}
    judge = MEASURES.get(measure)
    questions = [
        Question(ids, (lambda text, right=example.answer: float(judge(text, right))) if judge else lambda text: 0.0)
        for ids, example in zip(all_ids, examples, strict=True)
    ]
    identity = {
        **identity_of(model, given.model),
        "measure": measure,
        "max_new_tokens": given.max_new_tokens,
    }
    answered = [example.answer for example in examples]
    about = {**identity, **conditions(model.device), "answers": answered}
    work = WorkFile(given.out.with_name(f"{given.out.name}.work"), about)
    with told_where_it_goes_on(work):
        answers = sweep(model, tokenizer, questions, decodings, given.max_new_tokens, work)
    if measure == AGREEMENT:
        answers = {
            label: [
                answer._replace(quality=float(answer.text == base.text))
                for answer, base in zip(of_label, answers[BASELINE], strict=True)
            ]
            for label, of_label in answers.items()
        }
    bounds = most_lost(answers, decodings)
    rows = {label: row | {"most_lost": bounds[label]} for label, row in summaries(answers, decodings).items()}
    chosen = allowed(rows, loss)[0]
    write_report(
        given.out,
        rows,
        model.device,
        **identity,
        num_examples=len(examples),
        max_quality_loss=loss,
        chosen=chosen,
        front=front(rows),
    )
    work.remove()
    print_front(rows, chosen)
    told(rows, chosen, loss, len(examples))
    if given.dry_run:
        print(f"Not written into {given.model / CONFIG} (--dry-run).", file=sys.stderr)
        return
    taken = decodings[chosen]
    names = ("decoding", *READS[taken["decoding"]])
    write_whole(given.model / CONFIG, json.dumps(config | {name: taken[name] for name in names}, indent=2) + "\n")
    print(f"Written into {given.model / CONFIG}; every number is in {given.out}.", file=sys.stderr)
    if config.get("do_sample"):
        print(f"{CONFIG} says do_sample: the texts were judged as greedy ones.", file=sys.stderr)


def read_config(folder: Path) -> dict:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"_from_model_config": False}
    except (OSError, ValueError) as error:
        raise TuningError(f"{path} cannot be read ({error}); correct it, or take it away.") from error
    if not isinstance(config, dict):
        raise TuningError(f"{path} holds no JSON object; correct it, or take it away.")
    return config


def print_front(rows: dict[str, dict], chosen: str) -> None:
    table = Table(title="The front: nothing tried is both faster and more often right", title_justify="left")
    for name in ("", "setting", "right", "over autoregressive", "which is", "times as fast", "tokens/forward"):
        table.add_column(name, justify="left" if name in ("", "setting", "which is") else "right")
    shown = dict.fromkeys([BASELINE, *front(rows), chosen])
    for label in sorted(shown, key=lambda label: rows[label]["times_autoregressive"]["median"]):
        row = rows[label]
        low, high = (100 * bound for bound in row["quality_over_autoregressive_interval"])
        slow, fast = row["times_autoregressive"]["quartiles"]
        table.add_row(
            ">" if label == chosen else "",
            label,
            f"{100 * row['quality']:.1f} %",
            f"{100 * row['quality_over_autoregressive']:+.1f} ({low:+.1f} to {high:+.1f})",
            verdict(row),
            f"{row['times_autoregressive']['median']:.2f} ({slow:.2f} to {fast:.2f})",
            f"{row['tokens_per_forward']:.2f}",
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)


def told(rows: dict[str, dict], chosen: str, loss: float, num_examples: int) -> None:
    num_uncertain = sum(row["arguments"]["decoding"] not in EXACT for row in rows.values())
    print(
        f"Taken: {chosen}, the fastest of those that lose at most {100 * loss:g} % of the answers, shown with 95 % "
        f"confidence for all {len(rows)} settings together.",
        file=sys.stderr,
    )
    needed = examples_needed(loss, num_uncertain)
    if rows[chosen]["arguments"]["decoding"] in EXACT and (needed is None or num_examples < needed):
        more = "no number of examples can" if needed is None else f"at least {needed} of them would be needed"
        print(f"{num_examples} examples cannot show that streaming loses so little; {more}.", file=sys.stderr)


def encoded(model: WeDLMForCausalLM, tokenizer: PreTrainedTokenizerBase, example: Example, data: Path) -> list[int]:
    try:
        return encode(model, tokenizer, example.prompt)
    except Exception as error:  # too long, with MASK in it, or a chat that the template refuses
        raise TuningError(f"{data}, line {example.line}: {' '.join(str(error).split())}") from error
