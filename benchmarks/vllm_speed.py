"""Does vLLM become faster with our drafter, for one request and for many at once?

    .venv-vllm/bin/python benchmarks/vllm_speed.py [--models demo adapter] [--clients 1 8 32] [--new-tokens 64]
                                                   [--rounds 3] [--drafts 8] [--out benchmarks/results/vllm_speed.json]

`make .venv-vllm/installed real-model` comes first. `demo` is the demo checkpoint, `adapter` SmolLM2-135M-Instruct with
the draft adapter of `hub_card/`; `wedlm export --vllm` writes both. Both forms of vLLM are in this process and take
turns in every round; --clients requests are asked at once, greedily, and each round has prompts of its own. A first
round warms up. Texts are counted that are the same with and without the drafter.
"""

import argparse
import os
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from common import ADAPTER, markdown, median_and_range, new_parser, question, save, with_range
from serving import MODELS, adapter_questions, device_of, same_texts
from tqdm.auto import tqdm

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.new_folder import DRAFTER, TARGET
from wedlm.evaluation.timing import interleaved
from wedlm.for_vllm.plugin import draft_counts
from wedlm.for_vllm.vllm_export import SPECULATIVE, export_for_vllm

if TYPE_CHECKING:
    from vllm import LLM

ALONE, DRAFTING = "vLLM", "vLLM with the drafter"
LONGEST = 1024


def engines(folder: Path, given: argparse.Namespace) -> "dict[str, LLM]":
    """vLLM without and with the drafter of an export. (The one made last keeps the counts of drafts.)"""
    from vllm import LLM

    speculative = {**SPECULATIVE, "model": str(folder / DRAFTER), "num_speculative_tokens": given.drafts}
    fixed = {"dtype": given.dtype, "max_model_len": LONGEST, "max_num_seqs": max(given.clients), "seed": 0}
    make = partial(LLM, str(folder / TARGET), enforce_eager=given.eager, disable_log_stats=False, **fixed)
    return {ALONE: make(), DRAFTING: make(speculative_config=speculative)}


def measure(model: str, folder: Path, given: argparse.Namespace, bar: tqdm) -> list[dict[str, Any]]:
    """Measures a model at every number of clients."""
    from vllm import SamplingParams

    sides, numbers = engines(folder, given), count()
    parameters = SamplingParams(temperature=0, max_tokens=given.new_tokens)
    cells = []
    for clients in given.clients:
        texts, speeds = {side: [] for side in sides}, {side: [] for side in sides}
        for number in range(given.rounds + 1):
            chats = [[{"role": "user", "content": question_of(model, next(numbers))}] for _ in range(clients)]
            if number == 1:
                before = draft_counts(sides[DRAFTING])
            calls = {side: partial(llm.chat, chats, parameters, use_tqdm=False) for side, llm in sides.items()}
            for turn in interleaved(calls, device_of(), 1, 0, first=number % len(calls)):
                bar.update()
                if number > 0:
                    answers = [answer.outputs[0] for answer in turn.result]
                    texts[turn.name].append([answer.text for answer in answers])
                    speeds[turn.name].append(sum(len(answer.token_ids) for answer in answers) / turn.seconds)
        after = draft_counts(sides[DRAFTING])
        steps, *accepted = (new - old for new, old in zip(after, before, strict=True))
        cells.append(
            {
                "model": model,
                "clients": clients,
                "tokens_per_second": {side: median_and_range(each) for side, each in speeds.items()},
                "steps": steps,
                "accepted_by_place": accepted,
                "tokens_per_step": 1 + sum(accepted) / steps,
                "same_texts": same_texts(*texts.values()),
            }
        )
    return cells


def question_of(model: str, number: int) -> str:
    return question(number) if model == "demo" else adapter_questions()[number % len(adapter_questions())]


def table(cells: list[dict]) -> str:
    """For docs/reference/vllm.md."""
    lines = []
    for cell in cells:
        speeds, same = cell["tokens_per_second"], cell["same_texts"]
        lines.append(
            [
                cell["model"],
                cell["clients"],
                *(with_range(speeds[side], ".0f") for side in (ALONE, DRAFTING)),
                f"{speeds[DRAFTING]['median'] / speeds[ALONE]['median']:.2f}",
                f"{cell['tokens_per_step']:.2f}",
                f"{same['same']} of {same['texts']}",
            ]
        )
    names = ["model", "clients", f"{ALONE}, tokens/s (min - max)", f"{DRAFTING}, tokens/s (min - max)"]
    return markdown([*names, "times as fast", "tokens per step", "same text"], lines, left={"model"})


def accepted_table(cells: list[dict]) -> str:
    """For docs/reference/vllm.md: the accepted drafts at the greatest number of clients."""
    most = max(cell["clients"] for cell in cells)
    lines = [
        [cell["model"], cell["same_texts"]["texts"], cell["steps"], ", ".join(map(str, cell["accepted_by_place"]))]
        + [f"{cell['tokens_per_step']:.2f}"]
        for cell in cells
        if cell["clients"] == most
    ]
    names = ["model", "answers", "steps", "accepted by place", "tokens per pass of the target"]
    return markdown(names, lines, left={"model", "accepted by place"})


def main() -> None:
    parser = new_parser(__doc__, "vllm_speed")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--adapter", type=Path, default=ADAPTER)
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drafts", type=int, default=8, help="num_speculative_tokens; the last one is wasted")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    given = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # before vllm is imported
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GB
    import vllm

    turns = 2 * (given.rounds + 1) * len(given.clients) * len(given.models)
    results = []
    with TemporaryDirectory() as work, tqdm(total=turns, unit=" turns") as bar:
        for model in given.models:
            folder = Path(work, model)
            export_for_vllm(str(DEMO_FOLDER if model == "demo" else given.adapter), folder)
            results += measure(model, folder, given, bar)
    print(table(results))
    about = {name: value for name, value in vars(given).items() if name not in ("out", "adapter")}
    save(given.out, results, device_of(), vllm=vllm.__version__, **about)


if __name__ == "__main__":
    main()
