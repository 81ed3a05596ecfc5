"""Seconds, tokens per forward and peak memory on a real model, beside transformers' own class with the same weights.

    python benchmarks/real_model.py [--stock build/smollm2-135m] [--model build/smollm2-135m-wedlm] [--questions 8]
                                    [--new-tokens 64] [--repeats 3] [--out benchmarks/results/real_model.json]

`make real-model` makes both checkpoints. Each decoding answers the same questions greedily, one at a time, and the
decodings take turns. Peak memory is that of a fresh process which loads the model and answers one question.
"""

import argparse
from collections.abc import Callable

import torch
from common import in_fresh_process, load, markdown, new_parser, peak_bytes, save, with_range
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from wedlm.demo.real_questions import QUESTIONS
from wedlm.evaluation.turns import median_and_range, take_turns

STOCK = "transformers"
DECODINGS = {
    "autoregressive": {"decoding": "autoregressive"},
    "verified, window of 4": {"decoding": "verified", "window_size": 4},
    "verified, window of 8": {"decoding": "verified", "window_size": 8},
    "verified, window of 16": {"decoding": "verified", "window_size": 16},
}


def model_for(name: str, given: argparse.Namespace) -> PreTrainedModel:
    if name == STOCK:
        return AutoModelForCausalLM.from_pretrained(given.stock).eval()
    return load(given.model)[0]


def caller(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: list[str], new_tokens: int
) -> Callable[[], dict]:
    """A call that answers all questions and counts tokens and forwards."""

    def call() -> dict:
        texts, forwards = [], 0
        for question in questions:
            inputs = tokenizer.apply_chat_template(
                [{"role": "user", "content": question}],
                add_generation_prompt=True,
                return_dict=True,
                return_tensors="pt",
            )
            output = model.generate(
                **inputs,
                max_new_tokens=new_tokens,
                do_sample=False,
                return_dict_in_generate=True,
                **DECODINGS.get(name, {}),
            )
            texts.append(output.sequences[0, inputs["input_ids"].shape[1] :].tolist())
            forwards += int(output.forwards.sum()) if "forwards" in output else len(texts[-1])
        return {"texts": texts, "tokens": sum(map(len, texts)), "forwards": forwards}

    return call


def peak_of(name: str, given: argparse.Namespace) -> int:
    """The peak of a process that loads the model and answers one question, in bytes."""
    caller(name, model_for(name, given), load_tokenizer(given), QUESTIONS[:1], given.new_tokens)()
    return peak_bytes()


def load_tokenizer(given: argparse.Namespace) -> PreTrainedTokenizerBase:
    return load(given.model)[1]


def table(cells: list[dict]) -> str:
    """For benchmarks/RESULTS.md."""
    lines = [
        [
            cell["decoding"],
            with_range(cell["seconds"], ".1f"),
            f"{cell['tokens_per_second']:.1f}",
            f"{cell['tokens_per_forward']:.2f}",
            f"{cell['same_texts']} of {cell['questions']}",
            f"{cell['peak_bytes'] / 1e6:.0f}",
        ]
        for cell in cells
    ]
    header = ["decoding", "seconds", "tokens/s", "tokens per forward", "same text as transformers", "peak MB"]
    return markdown(header, lines, left={"decoding"})


def main() -> None:
    parser = new_parser(__doc__, "real_model")
    parser.add_argument("--stock", default="build/smollm2-135m")
    parser.add_argument("--model", default="build/smollm2-135m-wedlm")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    questions = QUESTIONS[:: len(QUESTIONS) // given.questions][: given.questions]
    peaks = {name: in_fresh_process(peak_of, name, given) for name in (STOCK, *DECODINGS)}
    tokenizer, stock, model = load_tokenizer(given), model_for(STOCK, given), load(given.model)[0]
    calls = {
        name: caller(name, stock if name == STOCK else model, tokenizer, questions, given.new_tokens)
        for name in (STOCK, *DECODINGS)
    }
    seconds, results = {name: [] for name in calls}, {}
    with tqdm(total=(given.repeats + 1) * len(calls), unit=" calls") as bar, torch.inference_mode():
        for turn in take_turns(calls, "cpu", given.repeats, bar=bar):
            seconds[turn.name].append(turn.seconds)
            results[turn.name] = turn.result
    cells = [
        {
            "decoding": name,
            "seconds": median_and_range(seconds[name]),
            "tokens_per_second": result["tokens"] / median_and_range(seconds[name])["median"],
            "tokens": result["tokens"],
            "tokens_per_forward": result["tokens"] / result["forwards"],
            "questions": len(questions),
            "same_texts": sum(map(list.__eq__, result["texts"], results[STOCK]["texts"])),
            "peak_bytes": peaks[name],
        }
        for name, result in results.items()
    ]
    print(table(cells))
    save(given.out, cells, "cpu", stock=given.stock, model=given.model)


if __name__ == "__main__":
    main()
