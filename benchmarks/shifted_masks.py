"""Do MASKs that predict the token behind them draft better, and what do branches bring over one row of MASKs?

    python benchmarks/shifted_masks.py ANSWERS [--steps 150]

Trains two draft adapters of SmolLM2-135M-Instruct (`make real-model`) on the model's own answers, ANSWERS, which are
JSON Lines as `wedlm adapt` and `examples.real_adapter answers` write them: one whose MASKs predict the tokens of their
own places, and one whose MASKs predict those behind them, from the same seed, in as many steps. Then both answer
prompts that were held out, by drafts of MASKs alone. Counted are forward passes and their queries, so the table does
not depend on the machine. "One branch" is the plan of I-DLM: MASKs behind all drafts, which serve if all of these are
accepted. Writes results/shifted_masks.json; a run that was stopped goes on from build/shifted-masks.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from common import WEDLM, markdown, new_parser
from peft import PeftModel
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoTokenizer

import wedlm
from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.prompt_ids import encode
from wedlm.checkpoints.whole_file import write_whole
from wedlm.drafts import adapter_training
from wedlm.drafts.settings import AdaptSettings
from wedlm.evaluation.provenance import write_report
from wedlm.evaluation.work_file import WorkFile
from wedlm.generation import branches

WORK = Path("build/shifted-masks")
OWN, BEHIND = "its own place", "the place behind"  # what a MASK predicts the token of
BRANCHES, ONE_BRANCH = "in branches", "in one branch"
WINDOWS = (2, 4, 8)
BATCH_SIZE = 5  # prompts at once: where queries cost nothing, no row decides for another


def one_branch(
    chances: Tensor, next_chance: Tensor, num_open: Tensor, most: Tensor, cost: Any, is_alone: bool, shift: bool, rank
) -> Tensor:
    """In place of `plan_step`: all drafts, and behind them the MASKs of a whole window, as far as there are slots."""
    window = chances.shape[1] + 1
    num_drafts = torch.minimum((chances > 0).sum(-1), (num_open - 1).clamp(min=0))
    # The first MASK stands at the slot that the step writes; where MASKs shift, it makes the draft of the next slot.
    num_masks = torch.minimum(
        (num_open - num_drafts - (1 if shift else 0)).clamp(0, window - shift), most - num_drafts
    )
    num_masks = num_masks.masked_fill(num_masks <= (0 if shift else 1), 0) * (num_open > 0)
    branch = torch.arange(window + 1, device=chances.device)
    return num_drafts[:, None] + num_masks[:, None] * (branch > num_drafts[:, None])


@contextmanager
def planned(plan: str) -> Iterator[None]:
    original = branches.plan_step
    branches.plan_step = one_branch if plan == ONE_BRANCH else original
    try:
        yield
    finally:
        branches.plan_step = original


def read_answers(file: Path, num_held_out: int) -> tuple[list[dict], list[dict]]:
    """The records to train on, and those held out, every so many of the file; none has a prompt of the other part."""
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    held_out = records[:: len(records) // num_held_out][:num_held_out]
    asked = {record["messages"][0]["content"] for record in held_out}
    return [record for record in records if record["messages"][0]["content"] not in asked], held_out


def trained(settings: AdaptSettings, records: tuple[list[dict], list[dict]], work: Path) -> Path:
    work.mkdir(parents=True, exist_ok=True)
    for name, part in zip(("train", "held_out"), records, strict=True):
        write_whole(work / f"{name}.jsonl", "".join(json.dumps(record) + "\n" for record in part))
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    adapter_training.NUM_EVALUATIONS = 2
    return adapter_training.train_adapter(settings, tokenizer, work)


def counted(adapter: Path, held_out: list[dict], new_tokens: int, work: WorkFile, kind: str) -> list[dict]:
    """The forward passes and queries of each way to draft, over all held-out prompts."""
    tokenizer = AutoTokenizer.from_pretrained(WEDLM)
    base = WeDLMForCausalLM.from_pretrained(WEDLM, dtype=torch.bfloat16).eval()
    prompts = [encode(base, tokenizer, record["messages"][0]["content"]) for record in held_out]
    batches = [prompts[start : start + BATCH_SIZE] for start in range(0, len(prompts), BATCH_SIZE)]
    model = wedlm.fuse(PeftModel.from_pretrained(base, adapter).eval())
    rows = []
    for plan in (BRANCHES, ONE_BRANCH):
        for window in WINDOWS:
            with planned(plan):
                for number, batch in enumerate(tqdm(batches, desc=f"{kind}, {plan}, window of {window}")):
                    place = (kind, plan, window, number)
                    if place not in work:
                        output = model.generate(
                            **tokenizer.pad({"input_ids": batch}, padding_side="left", return_tensors="pt"),
                            decoding="verified",
                            window_size=window,
                            query_cost=0.0,
                            prompt_lookup_num_tokens=0,
                            max_new_tokens=new_tokens,
                            do_sample=False,
                            return_dict_in_generate=True,
                        )
                        num_tokens = output.tokens_per_forward * output.forwards
                        num_queries = num_tokens / output.prefix_cacheability
                        work.add(place, [each.sum().item() for each in (num_tokens, output.forwards, num_queries)])
            counts = [work[(kind, plan, window, number)] for number in range(len(batches))]
            tokens, forwards, queries = map(sum, zip(*counts, strict=True))
            row = {"kind": kind, "plan": plan, "window_size": window}
            rows.append(row | {"tokens_per_forward": tokens / forwards, "queries": queries / forwards})
    return rows


def table(rows: list[dict]) -> str:
    header = ["a MASK predicts", "MASKs", "window", "tokens per pass", "queries per pass"]
    shown = {OWN: "the token at its own position", BEHIND: "the next token"}
    lines = [
        [
            shown[row["kind"]],
            row["plan"],
            row["window_size"],
            f"{row['tokens_per_forward']:.2f}",
            f"{row['queries']:.1f}",
        ]
        for row in rows
    ]
    return markdown(header, lines, header[:2])


def main() -> None:
    parser = new_parser(__doc__, "shifted_masks")
    parser.add_argument("answers", type=Path, help="JSON Lines of prompts with the model's answers")
    parser.add_argument("--steps", type=int, default=150, help="the optimizer steps of each adapter")
    parser.add_argument("--num-held-out", type=int, default=30)
    parser.add_argument("--new-tokens", type=int, default=128)
    given = parser.parse_args()
    records = read_answers(given.answers, given.num_held_out)
    common = {"model": str(WEDLM), "answers": given.answers, "steps": given.steps, "dtype": "bfloat16"}
    rows, work = [], WorkFile(WORK / "counts", {name: str(value) for name, value in vars(given).items()})
    for kind, shift in ((OWN, False), (BEHIND, True)):
        settings = AdaptSettings(**common, mask_shift=shift)
        adapter = trained(settings, records, WORK / ("shifted" if shift else "own-place"))
        log = json.loads((adapter / "log.json").read_text(encoding="utf-8"))
        losses = [each["eval_loss"] for each in log if "eval_loss" in each]
        rows += [row | {"loss": losses[-1]} for row in counted(adapter, records[1], given.new_tokens, work, kind)]
    settings = {"steps": given.steps, "num_train": len(records[0]), "num_held_out": len(records[1])}
    write_report(given.out, rows, "cpu", ("peft",), **settings, new_tokens=given.new_tokens)
    print(table(rows))


if __name__ == "__main__":
    main()
