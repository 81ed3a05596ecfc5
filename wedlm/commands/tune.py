"""`wedlm tune`: the fastest decoding that keeps quality on somebody's own examples, into generation_config.json."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

from rich.table import Table
from transformers import PreTrainedTokenizerBase, logging

from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.prompt_ids import encode
from wedlm.checkpoints.resolve import FROM_MODEL, GENERATION_FILE
from wedlm.checkpoints.whole_file import write_whole
from wedlm.commands.checks import TunePlan
from wedlm.commands.options import TuneOptions
from wedlm.commands.reports import table_console
from wedlm.evaluation.decodings import BASELINE, is_exact, whole
from wedlm.evaluation.provenance import checkpoint_identity, conditions, write_report
from wedlm.evaluation.query_cost import measured_query_cost
from wedlm.evaluation.sweep import Question, front, summaries, sweep
from wedlm.evaluation.tuning import (
    AGREEMENT,
    MEASURES,
    Example,
    TuningError,
    allowed,
    examples_needed,
    most_lost,
    settings_to_try,
    verdict,
    why_nothing_is_shown,
)
from wedlm.evaluation.work_file import WorkFile, resumable
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

QUERY_COST = ("query_cost",)  # among the results of a work file


def tune(options: TuneOptions, asked: TunePlan) -> None:
    """Answers all examples in all settings, reports them, and writes the chosen setting into the checkpoint.

    What a query costs on this machine is measured first, for verified decoding.
    """
    loss, examples, measure, config = asked
    model, tokenizer = load_checkpoint(options.model, options.dtype, options.device, only_decodes=True)
    logging.set_verbosity_error()
    questions = questions_of(examples, measure, model, tokenizer, options)
    identity = {
        **checkpoint_identity(model, options.model),
        "measure": measure,
        "max_new_tokens": options.max_new_tokens,
    }
    answered = [example.answer for example in examples]
    about = {**identity, **conditions(model.device), "answers": answered}
    work = WorkFile(options.out.with_name(f"{options.out.name}.work"), about)
    with resumable(work):
        if QUERY_COST not in work:
            work.add(QUERY_COST, measured_query_cost(model))
        model.generation_config.query_cost = work[QUERY_COST]
        decodings = {label: whole(chosen, model) for label, chosen in settings_to_try().items()}
        answers = sweep(model, tokenizer, questions, decodings, options.max_new_tokens, work)
    if measure == AGREEMENT:
        answers = with_agreement(answers)
    bounds = most_lost(answers, decodings)
    results = {label: result | {"most_lost": bounds[label]} for label, result in summaries(answers, decodings).items()}
    fastest = allowed(results, loss)[0]
    nothing = why_nothing_is_shown(answers, decodings, loss, fastest)
    chosen = None if nothing else fastest
    write_report(
        options.out,
        results,
        model.device,
        **identity,
        num_examples=len(examples),
        max_quality_loss=loss,
        chosen=chosen,
        query_cost=work[QUERY_COST],
        front=front(results),
    )
    work.remove()
    print_front(results, chosen)
    if nothing:
        print(f"Nothing is written into {options.model / GENERATION_FILE}: {nothing}.", file=sys.stderr)
        return
    explain_choice(results, chosen, loss, len(examples))
    print(f"One more query costs {100 * work[QUERY_COST]:.1f} % of a forward with one.", file=sys.stderr)
    if options.dry_run:
        print(f"Not written into {options.model / GENERATION_FILE} (--dry-run).", file=sys.stderr)
    else:
        write_config(options, config, decodings[chosen] | {"query_cost": work[QUERY_COST]})


def questions_of(
    examples: list[Example],
    measure: str,
    model: WeDLMForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    options: TuneOptions,
) -> list[Question]:
    """The examples with their ids and the judge of their answers; refuses a --max-new-tokens that leaves no room."""
    all_ids = [encoded(model, tokenizer, example, options.data) for example in examples]
    most = model.config.max_position_embeddings - max(map(len, all_ids))
    if not 1 <= options.max_new_tokens <= most:
        raise TuningError(
            f"--max-new-tokens {options.max_new_tokens} is not from 1 to {most}, the room behind the longest prompt; "
            "give a number in between."
        )
    return [Question(ids, judge(measure, example.answer)) for ids, example in zip(all_ids, examples, strict=True)]


def encoded(model: WeDLMForCausalLM, tokenizer: PreTrainedTokenizerBase, example: Example, data: Path) -> list[int]:
    try:
        return encode(model, tokenizer, example.prompt)
    except Exception as error:  # a prompt that is too long or has MASK in it, or a chat that the template refuses
        raise TuningError(f"{data}, line {example.line}: {' '.join(str(error).split())}") from error


def judge(measure: str, right: str | None) -> Callable[[str], float]:
    """A function from a text to its quality; agreement is judged later, when the autoregressive texts are known."""
    is_right = MEASURES.get(measure)
    return (lambda text: float(is_right(text, right))) if is_right else lambda text: 0.0


def with_agreement(answers: dict[str, list]) -> dict[str, list]:
    """The answers, with the quality 1 where the text is the autoregressive one."""
    return {
        label: [
            answer._replace(quality=float(answer.text == base.text))
            for answer, base in zip(of_label, answers[BASELINE], strict=True)
        ]
        for label, of_label in answers.items()
    }


def write_config(options: TuneOptions, config: dict[str, Any], taken: dict[str, Any]) -> None:
    if config.get(FROM_MODEL, not config):
        config = config | {FROM_MODEL: False}
    config = config | taken
    write_whole(options.model / GENERATION_FILE, json.dumps(config, indent=2) + "\n")
    print(f"Written into {options.model / GENERATION_FILE}; every number is in {options.out}.", file=sys.stderr)
    print(f'Next: wedlm generate {quote(str(options.model))} "Why is the sky blue?"', file=sys.stderr)
    if config.get("do_sample"):
        print(f"{GENERATION_FILE} says do_sample, and the settings were compared on greedy texts.", file=sys.stderr)


def print_front(results: dict[str, dict], chosen: str | None) -> None:
    table = Table(title="The front: nothing tried is both faster and more often right", title_justify="left")
    for name in ("", "setting", "right", "over autoregressive", "which is", "times as fast", "tokens/forward"):
        table.add_column(name, justify="left" if name in ("", "setting", "which is") else "right")
    shown = dict.fromkeys(filter(None, [BASELINE, *front(results), chosen]))
    for label in sorted(shown, key=lambda label: results[label]["times_autoregressive"]["median"]):
        result = results[label]
        low, high = (100 * bound for bound in result["quality_over_autoregressive_interval"])
        slow, fast = result["times_autoregressive"]["quartiles"]
        table.add_row(
            ">" if label == chosen else "",
            label,
            f"{100 * result['quality']:.1f} %",
            f"{100 * result['quality_over_autoregressive']:+.1f} ({low:+.1f} to {high:+.1f})",
            verdict(result),
            f"{result['times_autoregressive']['median']:.2f} ({slow:.2f} to {fast:.2f})",
            f"{result['tokens_per_forward']:.2f}",
        )
    table_console().print(table)


def explain_choice(results: dict[str, dict], chosen: str, loss: float, num_examples: int) -> None:
    """Says on standard error what was chosen, and how many examples streaming would need."""
    num_uncertain = sum(not is_exact(result["arguments"]) for result in results.values())
    print(
        f"Taken: {chosen}, the fastest of those that lose at most {100 * loss:g} % of the answers, shown with 95 % "
        f"confidence for all {len(results)} settings together.",
        file=sys.stderr,
    )
    needed = examples_needed(loss, num_uncertain)
    if is_exact(results[chosen]["arguments"]) and (needed is None or num_examples < needed):
        more = "no number of examples can" if needed is None else f"at least {needed} of them would be needed"
        print(f"{num_examples} examples cannot show that streaming loses so little; {more}.", file=sys.stderr)
