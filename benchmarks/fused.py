"""What wedlm.fuse() brings on a CPU: forwards beside the time of reading the weights, and the speed of generate().

    python benchmarks/fused.py [--dtypes float32 bfloat16] [--new-tokens 100] [--vllm .venv-vllm]
                               [--out benchmarks/results/fused.json]
    python benchmarks/fused.py --shape qwen3-0.6b --dtypes bfloat16 --out FILE

In one run, in turns:

- steps: forwards of 1 to 16 tokens behind 64 cached ones, by transformers' own model, by the WeDLM, and by the WeDLM
  fused, also with int8 weights. As in decoding several follow one another: a turn has four of them. The floor is the
  sum of as many bytes as the forward reads of the weights.
- memory: the peak of a process that loads the model and writes 16 tokens.
- operators: what a decoder layer calls in a step of decoding. Views and the memory for results are left out; calls of
  product.c count as operators.
- speed: a held-out prompt of each kind, one at a time and eight at once, by transformers' generate(), by the WeDLM
  token by token and verified with its adapter, fused and not, and by vLLM where it is installed in an environment of
  its own.

`make real-model` makes the models. With --shape only the steps are measured, with random weights of this shape.
"""

import argparse
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from common import QWEN3, SHAPES, in_fresh_process, markdown, new_parser, peak_bytes, save, with_range
from evidence_real_ways import VLLM, Way, Written, vllm_version, vllm_ways, way_of
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, logging

from wedlm import WeDLMConfig, WeDLMForCausalLM, fuse
from wedlm.checkpoints.load import load_checkpoint
from wedlm.checkpoints.prompt_ids import encode
from wedlm.drafts.prompts import KINDS, read_prompts
from wedlm.evaluation.resampling import median_and_quartiles
from wedlm.evaluation.turns import median_and_range, seconds_in_turns, take_turns
from wedlm.fused import product
from wedlm.fused.model import product_of
from wedlm.generation.transformers_internals import CACHE

TOKENS, CACHED, IN_A_ROW = (1, 2, 4, 8, 16), 64, 4
STOCK, PLAIN, FUSED, INT8, FLOOR = "transformers", "WeDLM", "fused", "fused, int8", "floor"
TOKEN_BY_TOKEN, ADAPTED = "WeDLM, token by token", "WeDLM, verified with the adapter"
FUSED_MARK = ", fused"
NOT_COUNTED = (torch.ops.aten.detach, torch.ops.aten.new_empty, torch.ops.aten._unsafe_view)


# --- Models ---


def models_of(given: argparse.Namespace, dtype: str) -> dict[str, PreTrainedModel]:
    """The models whose steps are measured, by name."""
    if given.shape is not None:
        config = WeDLMConfig(**{**QWEN3, **SHAPES[given.shape]}, tie_word_embeddings=True)
        make = partial(WeDLMForCausalLM._from_config, config, dtype=getattr(torch, dtype))
        return {PLAIN: make().eval(), FUSED: fuse(make().eval()), INT8: fuse(make().eval(), weights="int8")}
    stock = AutoModelForCausalLM.from_pretrained(given.stock, dtype=dtype).eval()
    plain, fused, rounded = (load_checkpoint(given.model, dtype, "cpu")[0] for _ in range(3))
    return {STOCK: stock, PLAIN: plain, FUSED: fuse(fused), INT8: fuse(rounded, weights="int8")}


class Step:
    """Forwards of some tokens behind cached ones, one after another."""

    def __init__(self, model: PreTrainedModel, num_tokens: int):
        self.model, self.num_tokens, self.cache = model, num_tokens, DynamicCache(config=model.config)
        self.tokens = torch.randint(5, min(500, model.config.vocab_size), (1, CACHED + num_tokens))
        model(self.tokens[:, :CACHED], **{CACHE: self.cache})

    def __call__(self) -> None:
        for _ in range(IN_A_ROW):
            self.model(self.tokens[:, CACHED:], **{CACHE: self.cache})
            self.cache.crop(-self.num_tokens)


# --- Steps ---


def steps_of(models: dict[str, PreTrainedModel], repeats: int) -> dict[str, dict]:
    """Milliseconds of a forward, by model and number of tokens, and of reading the weights."""
    calls = {(name, tokens): Step(model, tokens) for name, model in models.items() for tokens in TOKENS}
    read = torch.ones(sum(weight.nbytes for weight in models[PLAIN].parameters()) // 4)
    calls[FLOOR, 1] = lambda: [read.sum() for _ in range(IN_A_ROW)]
    seconds = seconds_in_turns(calls, "cpu", repeats, num_warm_up=3)
    results = {}
    for (name, tokens), values in seconds.items():
        results.setdefault(name, {})[str(tokens)] = median_and_range([1e3 * value / IN_A_ROW for value in values])
    for name, of_model in results.items():
        results[name] = {"milliseconds": of_model}
        if name != FLOOR:
            first = of_model["1"]["median"]
            results[name]["times_first"] = {tokens: one["median"] / first for tokens, one in of_model.items()}
    return results


# --- Memory ---


def peak_of(path: Path, dtype: str, weights: str | None, is_fused: bool) -> int:
    """The peak of this process with a model that writes a few tokens, in bytes."""
    model, _ = load_checkpoint(path, dtype, "cpu")
    if is_fused:
        fuse(model, weights=weights)
    model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=16, do_sample=False, decoding="autoregressive")
    return peak_bytes()


def peaks_of(given: argparse.Namespace, dtype: str) -> dict[str, int]:
    forms = {PLAIN: (None, False), FUSED: (None, True), INT8: ("int8", True)}
    return {name: in_fresh_process(peak_of, given.model, dtype, *form) for name, form in forms.items()}


# --- Operators ---


class LayerOperators(TorchDispatchMode):
    """Counts what one decoder layer calls, in each forward."""

    def __init__(self, layer: torch.nn.Module):
        super().__init__()
        self.counts, self.is_inside = [], False
        self.hooks = [layer.register_forward_pre_hook(self.enter), layer.register_forward_hook(self.leave)]

    def enter(self, *args) -> None:
        self.is_inside = True
        self.counts.append(0)

    def leave(self, *args) -> None:
        self.is_inside = False

    def count(self) -> None:
        if self.is_inside:
            self.counts[-1] += 1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and func.overloadpacket not in NOT_COUNTED:
            self.count()
        return func(*args, **(kwargs or {}))


def operators_of(given: argparse.Namespace) -> dict[str, dict[str, int]]:
    """The operators of a layer in a step token by token, and in one that drafts with the adapter."""
    results = {}
    for name, make, number in (
        ("plain", lambda model: model, None),
        ("fused", fuse, product.NUMBER),
        ("fused, by torch", fuse, None),
    ):
        known, product.NUMBER = product.NUMBER, number
        model, tokenizer = load_checkpoint(given.adapter, "float32", "cpu")
        make(model)
        inputs = torch.tensor([encode(model, tokenizer, "Write the numbers from 1 to 30.")])
        results[name] = {}
        for decoding, arguments in (("autoregressive", {}), ("verified", {"window_size": 8})):
            with LayerOperators(model.model.layers[1]) as operators, counted_calls(operators):
                model.generate(inputs, decoding=decoding, max_new_tokens=24, do_sample=False, **arguments)
            for hook in operators.hooks:
                hook.remove()
            results[name][decoding] = Counter(operators.counts[2:]).most_common(1)[0][0]
        product.NUMBER = known
    return results


class counted_calls(ExitStack):
    """Lets calls of product.c count as operators."""

    def __init__(self, operators: LayerOperators):
        super().__init__()
        for name in ("product", "rotate", "attend") if product.NUMBER is not None else ():
            call = getattr(product._product, name)

            def counting(*args, call=call):
                operators.count()
                return call(*args)

            setattr(product._product, name, counting)
            self.callback(setattr, product._product, name, call)


# --- Speed ---


def speed_of(ways: dict[str, Way], prompts: list[list[int]], batch_size: int, new_tokens: int, rounds: int) -> dict:
    """Tokens per second of all ways, in turns, and the speed as a multiple of the first one's on the same prompts."""
    seconds, written = {}, {}
    batches = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
    for place, batch in enumerate(batches):
        calls = {name: partial(way, batch, new_tokens) for name, way in ways.items()}
        for turn in take_turns(calls, "cpu", rounds, num_warm_up=int(place == 0), first=place % len(calls)):
            seconds.setdefault(turn.name, {}).setdefault(place, []).append(turn.seconds)
            written.setdefault(turn.name, {})[place] = turn.result
    base = next(iter(ways))

    def rate(name: str, place: int) -> float:
        tokens = sum(map(len, written[name][place].tokens))
        return tokens / median_and_quartiles(seconds[name][place])["median"]

    results = {}
    for name in ways:
        rates = [rate(name, place) for place in range(len(batches))]
        times = [one / rate(base, place) for place, one in enumerate(rates)]
        results[name] = {
            "tokens_per_second": median_and_range(rates),
            "times": median_and_range(times) | {"of_each": times},
            "same_texts": same(written[name], written[base]),
        }
        own = f"{TOKEN_BY_TOKEN}{FUSED_MARK if FUSED_MARK in name else ''}"
        if own in ways:
            results[name]["same_as_token_by_token"] = same(written[name], written[own])
        if written[name][0].forwards is not None:
            tokens = sum(len(row) for each in written[name].values() for row in each.tokens)
            results[name]["tokens_per_forward"] = tokens / sum(sum(each.forwards) for each in written[name].values())
    return results


def same(one: dict[int, Written], other: dict[int, Written]) -> int:
    """The number of equal texts."""
    return sum(a == b for place in one for a, b in zip(one[place].tokens, other[place].tokens, strict=True))


def speeds_of(given: argparse.Namespace, dtype: str) -> dict[str, dict]:
    stock = AutoModelForCausalLM.from_pretrained(given.stock, dtype=dtype).eval()
    model, tokenizer = load_checkpoint(given.adapter, dtype, "cpu", only_decodes=True)
    plain, _ = load_checkpoint(given.adapter, dtype, "cpu")
    prompts = [encode(model, tokenizer, prompt.text) for prompt in read_prompts(len(KINDS), held_out=True)]
    longest = max(map(len, prompts)) + given.new_tokens
    with ExitStack() as stack:
        others = {}
        if vllm_version(given.vllm) is not None:
            made = stack.enter_context(vllm_ways(given.vllm, given.adapter, dtype, longest, 8, given.threads, False))
            others = {VLLM: made[VLLM]}
        ways = {STOCK: way_of(stock)}
        for mark, one in (("", plain), (FUSED_MARK, model)):
            ways[f"{TOKEN_BY_TOKEN}{mark}"] = way_of(one, decoding="autoregressive")
            ways[f"{ADAPTED}{mark}"] = way_of(one, decoding="verified")
        ways[f"{ADAPTED}{FUSED_MARK}, all queries"] = way_of(model, decoding="verified", query_cost=0)
        ways |= others
        return {
            f"batches of {size}": speed_of(
                ways, prompts[: len(prompts) // size * size], size, given.new_tokens, given.rounds
            )
            for size in (1, 8)
        }


# --- Report ---


def table(results: dict) -> str:
    lines = []
    for dtype, steps in results["steps"].items():
        for name, of_model in steps.items():
            cells = of_model["milliseconds"]
            lines.append([dtype, name, *(with_range(cells[n], ".1f") if n in cells else "" for n in map(str, TOKENS))])
    return markdown(
        ["dtype", "milliseconds by tokens", *map(str, TOKENS)], lines, left={"dtype", "milliseconds by tokens"}
    )


def speed_table(results: dict) -> str:
    lines = [
        [dtype, size.removeprefix("batches of "), name, *cells(way)]
        for dtype, sizes in results["speed"].items()
        for size, ways in sizes.items()
        for name, way in ways.items()
    ]
    return markdown(
        ["dtype", "batch", "way", "tokens per forward", "tokens/s", "times", "same texts", "same as token by token"],
        lines,
        left={"dtype", "way"},
    )


def cells(way: dict) -> list[str]:
    forwards = f"{way['tokens_per_forward']:.2f}" if "tokens_per_forward" in way else ""
    return [
        forwards,
        f"{way['tokens_per_second']['median']:.1f}",
        with_range(way["times"], ".2f"),
        str(way["same_texts"]),
        str(way.get("same_as_token_by_token", "")),
    ]


@torch.no_grad()
def main() -> None:
    parser = new_parser(__doc__, "fused")
    parser.add_argument("--stock", type=Path, default=Path("build/smollm2-135m"))
    parser.add_argument("--model", type=Path, default=Path("build/smollm2-135m-wedlm"))
    parser.add_argument("--adapter", type=Path, default=Path("hub_card/smollm2-135m-adapter"))
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape; only the steps")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--vllm", type=Path, default=Path(".venv-vllm"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    results = {"steps": {}, "speed": {}}
    for dtype in given.dtypes:
        models = models_of(given, dtype)
        results["steps"][dtype] = steps_of(models, given.repeats)
        results["product"] = product_of(models[FUSED])
        del models
    print(table(results))
    if given.shape is None:
        results["operators"] = operators_of(given)
        results["peak_bytes"] = {dtype: peaks_of(given, dtype) for dtype in given.dtypes}
        print(results["operators"], results["peak_bytes"])
        for dtype in given.dtypes:
            results["speed"][dtype] = speeds_of(given, dtype)
        print(speed_table(results))
    more = {"shape": given.shape, "new_tokens": given.new_tokens, "rounds": given.rounds, "repeats": given.repeats}
    save(given.out, results, "cpu", vllm=vllm_version(given.vllm), **more)


if __name__ == "__main__":
    main()
