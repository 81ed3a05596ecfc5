"""docs/generate.md has a line for every argument of generate(), and every line says what happens."""

import re
from collections.abc import Callable
from copy import copy
from inspect import signature
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from helpers import CHECKPOINTS, EOS, MASK, NAMES, PAD, PROMPTS, REPOSITORY, left_padded, load, stock_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CompileConfig,
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    WatermarkingConfig,
)
from transformers.generation import BaseStreamer
from transformers.utils import ModelOutput

from wedlm.generation.transformers_internals import CACHE

STATUSES = ("works", "verified only", "autoregressive only", "refused", "no effect")
OURS = {"decoding", "window_size", "query_cost", "entropy_threshold", "distance_penalty", "acceptance_ratio"}
OF_VERIFIED = ("query_cost", "acceptance_ratio")
PARALLEL = ("streaming", "blockwise", "verified")
MODELS = {name: load(CHECKPOINTS / name).double() for name in ("q25", "q3")}  # where no rounding decides


def read_tables() -> list[dict[str, str]]:
    """Returns the arguments and their status, for each table of the page."""
    tables, is_inside = [], False
    for line in (REPOSITORY / "docs" / "generate.md").read_text().splitlines():
        if line == "| argument | parallel decoding | note |":
            tables.append({})
            is_inside = True
        elif not line.startswith("|"):
            is_inside = False
        elif is_inside and not re.fullmatch(r"\| --- \| --- \| --- \||\| \*\*[\w ()]+\*\* \| \| \|", line):
            name, status = re.fullmatch(r"\| `(\w+)` \| ([a-z ]+) \|(?: [^|]+)? \|", line).groups()
            assert status in STATUSES and name not in tables[-1], line
            tables[-1][name] = status
    return tables


OF_CONFIG, OF_GENERATE = read_tables()
LINES = OF_CONFIG | OF_GENERATE


def lines(*statuses: str) -> list[str]:
    return [name for name, status in LINES.items() if status in statuses]


def test_every_attribute_of_generation_config_has_a_line():
    attributes = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert set(OF_CONFIG) == attributes - {"transformers_version"} | OURS


def test_every_argument_of_generate_has_a_line():
    arguments = set(signature(GenerationMixin.generate).parameters) - {"self", "kwargs"}
    assert arguments <= set(OF_GENERATE)
    assert not set(OF_GENERATE) & set(OF_CONFIG)


def make_tokenizer():
    words = [
        "<pad>",
        "<bos>",
        "<eos>",
        *(f"w{i}" for i in range(3, MASK)),
        "<mask>",
        "abcdef",
    ]  # for StopStringCriteria
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", **special)


TOKENIZER = make_tokenizer()
BASE = {
    **left_padded([PROMPTS[0], PROMPTS[1], PROMPTS[4]]),
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "max_new_tokens": 16,
    "entropy_threshold": 2.0,
}
WIDTH = BASE["input_ids"].shape[1]


class Ran:
    """A call of generate() and what there is to see of it; `...` leaves an argument out."""

    def __init__(self, model, arguments: dict, asked: dict, spoil: Callable | None = None, seed: int = 0):
        self.model, self.given, self.asked, self.spoil = model, arguments, asked, spoil
        self.arguments = {name: value for name, value in arguments.items() if value is not ...}
        self.widths: list[int] = []  # of every forward
        self.all_reduces = 0
        hooks = [model.register_forward_pre_hook(self.count, with_kwargs=True)]
        if spoil is not None:
            hooks.append(model.lm_head.register_forward_hook(spoil))
        torch.manual_seed(seed)
        try:
            with patch("torch.distributed.all_reduce", self.all_reduce):
                self.output = model.generate(**self.arguments)
        finally:
            for hook in hooks:
                hook.remove()
        self.sequences = self.output.sequences if isinstance(self.output, ModelOutput) else self.output
        prompt = self.arguments.get("input_ids", self.arguments.get("inputs", torch.zeros(1, 1)))
        self.width = prompt.shape[1]
        self.prompts, self.rows = self.sequences[:, : self.width].tolist(), self.sequences[:, self.width :].tolist()
        ends = self.arguments.get("eos_token_id")
        ends = ends if isinstance(ends, list) else [ends]
        self.new = []  # each row up to its end token
        for row in self.rows:
            end = next((i for i, token in enumerate(row) if token in ends), len(row))
            self.new.append(row[: end + 1])

    def count(self, module, args, kwargs):
        given = [*args, kwargs.get("input_ids"), kwargs.get("inputs_embeds")]
        self.widths.append(next(tensor.shape[1] for tensor in given if tensor is not None))

    def all_reduce(self, *args, **kwargs):
        self.all_reduces += 1

    def again(self, seed: int = 0, **more) -> "Ran":
        return Ran(self.model, self.given | more, self.asked, self.spoil, seed)

    def without_padding(self) -> list[list[int]]:
        """For rows that end otherwise than at an end token; 0 counts as padding."""
        return [row[: max((i + 1 for i, token in enumerate(row) if token != PAD), default=0)] for row in self.rows]

    def logits_and_scores(self):
        """Yields the logits and the scores of every new token, MASK left out."""
        for slot, (logits, scores) in enumerate(zip(self.output.logits, self.output.scores, strict=True)):
            for row, new in enumerate(self.new):
                if slot < len(new):
                    yield logits[row, :MASK], scores[row, :MASK]


class Line(NamedTuple):
    """A call that asks for an argument, and what then holds, and does not if the call leaves it out."""

    asks: dict[str, Any] | Callable[[Ran], dict[str, Any]]  # or what to ask for, seen what came without
    holds: Callable[[Ran], bool]
    beside: dict[str, Any] = {}
    same_text: bool = False
    fails_without: bool = False
    spoil: Callable | None = None


# --- What a line asks for beside its own argument ---

DICT = {"return_dict_in_generate": True}
SCORES = DICT | {"output_scores": True, "output_logits": True}
SAMPLED = {"do_sample": True, "top_k": 0}
SEVERAL_ENDS = {"eos_token_id": list(range(2, MASK, 6))}
NO_INPUT = {"input_ids": ..., "attention_mask": ...}
ONE_ROW = left_padded(PROMPTS[1:2])
MANY_WORDS = left_padded([list(range(3, 130))])
ONE_COLUMN = left_padded([[5], [6], [7]])
HALF_WORD = left_padded([[44, 71, 5]])  # w5, which may become w50
TWO_PARTS = {"input_ids": torch.tensor([[9, 9, 7, 8]]), "attention_mask": torch.tensor([[0, 0, 1, 1]])}
NEGATIVE = {"negative_prompt_ids": torch.tensor([[PAD, 6], [7, 8], [9, 9]])}
NEGATIVE_MASK = torch.tensor([[0, 1], [1, 1], [1, 1]])
GREENS = 160 // 4  # WatermarkingConfig's own share of the vocabulary
AUTOREGRESSIVE = {"decoding": "autoregressive"}


# --- What then holds ---


def ends_at_first(is_end: Callable[[Ran, int], bool]) -> Callable[[Ran], bool]:
    """Some row ends at such a token, and none goes on behind one."""

    def holds(ran):
        found = [[is_end(ran, token) for token in new] for new in ran.without_padding()]
        return any(map(any, found)) and not any(any(row[:-1]) for row in found)

    return holds


def kept(rule: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Ran], bool]:
    """The tokens that keep a finite score are those that `rule` chooses by their probabilities, for each new token."""

    def holds(ran):
        return all(
            torch.equal(scores.isfinite(), rule(logits.softmax(-1))) for logits, scores in ran.logits_and_scores()
        )

    return holds


def likeliest(p: torch.Tensor) -> torch.Tensor:
    return p == p.max()


def nucleus(mass: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda p: ((p > p[:, None]) * p).sum(-1) < mass


def top_h(share: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """The likeliest, as many as have that share of the entropy of the likeliest hundred."""

    def rule(p):
        order = p.argsort(descending=True)[:100]
        terms = torch.special.entr(p[order] / p[order].sum()).cumsum(-1)
        return torch.zeros_like(p, dtype=torch.bool).index_fill(
            0, order[terms <= share * terms[-1]], True
        ) | likeliest(p)

    return rule


def typical(mass: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def rule(p):
        surprise = (-p.log() - torch.special.entr(p).sum()).abs()
        return ((surprise < surprise[:, None]) * p).sum(-1) < mass

    return rule


def eta(epsilon: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda p: (p >= min(epsilon, epsilon**0.5 * (-torch.special.entr(p).sum()).exp())) | likeliest(p)


def never(name: str, first: int | None = None) -> Callable[[Ran], bool]:
    """No new token, or none of the first so many, is one of those asked for."""

    def holds(ran):
        banned = torch.tensor(ran.asked[name]).flatten().tolist()
        return not any(token in banned for new in ran.new for token in new[:first])

    return holds


def is_guided(ran: Ran) -> bool:
    """The first scores are the formula of transformers."""
    first = {"input_ids": ran.asked.get("negative_prompt_ids", ran.arguments.get("negative_prompt_ids"))}
    if first["input_ids"] is None:
        first["input_ids"] = ran.arguments["input_ids"][:, -1:]
    if (mask := ran.asked.get("negative_prompt_attention_mask")) is not None:
        first["attention_mask"] = mask
    with torch.no_grad():
        without = ran.model(**first).logits[:, -1].float().log_softmax(-1)
    logits = ran.output.logits[0].index_fill(-1, torch.tensor([MASK]), -torch.inf).log_softmax(-1)
    guided = without + 1.8 * (logits - without)
    return torch.allclose(ran.output.scores[0][:, :MASK].float(), guided[:, :MASK], atol=1e-4)


def texts(ran: Ran) -> list[tuple[list[int], list[int]]]:
    return list(zip(ran.prompts, ran.new, strict=True))


def repeats_nothing(ran: Ran) -> bool:
    """No new token stands in its row before, padding left out."""
    return not any(token in [*prompt, *new[:i]] for prompt, new in texts(ran) for i, token in enumerate(new) if token)


def repeats_no_bigram(ran: Ran) -> bool:
    for prompt, new in texts(ran):
        row = prompt + new
        pairs = list(zip(row, row[1:], strict=False))
        if any(pair in pairs[:i] for i, pair in enumerate(pairs) if i >= len(prompt) - 1):
            return False
    return True


def prefers_the_prompt(ran: Ran) -> bool:
    """Checks the first row, whose prompt is one token."""
    token = PROMPTS[0][-1]
    logits = torch.stack([column[0, token] for column in ran.output.logits])
    scores = torch.stack([column[0, token] for column in ran.output.scores])
    return torch.allclose(scores.to(logits), torch.where(logits > 0, logits * 1e4, logits / 1e4))


def is_drawn(ran: Ran) -> bool:
    return ran.rows == ran.again().rows != ran.again(seed=1).rows


def comes_twice(ran: Ran) -> bool:
    return ran.prompts == BASE["input_ids"].repeat_interleave(2, 0).tolist() and ran.rows[0] != ran.rows[1]


def is_watermarked(ran: Ran) -> bool:
    """A quarter of the vocabulary, which may hold MASK, is likelier."""
    return all((scores - logits).gt(2).sum() in (GREENS - 1, GREENS) for logits, scores in ran.logits_and_scores())


def counts_up(ran: Ran) -> bool:
    rows = [prompt[-1:] + new for prompt, new in texts(ran)]
    return all(b == following(None, torch.tensor([a]))[0] for row in rows for a, b in zip(row, row[1:], strict=False))


def following(batch_id, ids):
    return [(ids[-1].item() + 1) % 100 + 10]


def is_padded_with_seven(ran: Ran) -> bool:
    return {token for row, new in zip(ran.rows, ran.new, strict=True) for token in row[len(new) :]} == {7}


def has_scores(ran: Ran) -> bool:
    """A column per new token, minus infinity at MASK, zeros behind a row's end."""
    scores = ran.output.scores
    return scores is not None and is_aligned(ran, scores, lambda column: column[MASK] == -torch.inf)


def has_logits(ran: Ran) -> bool:
    return ran.output.logits is not None and is_aligned(ran, ran.output.logits, lambda column: column.isfinite().all())


def is_aligned(ran: Ran, columns: tuple[torch.Tensor, ...], is_right: Callable[[torch.Tensor], bool]) -> bool:
    assert min(map(len, ran.new)) < max(map(len, ran.new)), "rows of one length"
    behind = [column[row] for row, new in enumerate(ran.new) for column in columns[len(new) :]]
    right = [is_right(column[row]) for row, new in enumerate(ran.new) for column in columns[: len(new)]]
    is_parallel = ran.arguments["decoding"] != "autoregressive"  # transformers has scores for padding, too
    return len(columns) == len(ran.rows[0]) and all(right) and not (is_parallel and any(row.any() for row in behind))


def is_sure_until_its_end(ran: Ran) -> bool:
    columns = ran.output.scores[: len(ran.new[0])]
    sure = [scores[0].softmax(-1)[token] >= 0.9 for scores, token in zip(columns, ran.new[0], strict=True)]
    return all(sure[:-1]) and not sure[-1]


def is_healed(ran: Ran) -> bool:
    return ran.prompts[0][:-1] == [44, 71] and ran.prompts[0][-1] in range(50, 60)


def is_static(ran: Ran) -> bool:
    """A StaticCache, or in parallel decoding steps of one shape behind the first, and one in vain."""
    cache, num_forwards = ran.output[CACHE], ran.output.forwards.max().item()
    has_static_steps = set(ran.widths[1:]) == {16} and len(ran.widths) == num_forwards + 1  # of two whole windows
    return (cache.is_compileable and type(cache) is not DynamicCache) or has_static_steps


def drafts(ran: Ran) -> bool:
    return max(ran.widths[1:]) > 1


def judged(ran: Ran) -> list[list[int]]:
    return ran.output.verified_drafts.tolist()


class Banned(LogitsProcessor):
    """Bans even tokens but the end token."""

    def __init__(self):
        self.widths = []

    def __call__(self, input_ids, scores):
        self.widths.append(input_ids.shape[1])
        return scores.index_fill(-1, torch.tensor([0, *range(4, MASK, 2)]), -torch.inf)


class SixTokens(StoppingCriteria):
    def __init__(self):
        self.widths = []

    def __call__(self, input_ids, scores, **kwargs):
        self.widths.append(input_ids.shape[1])
        return torch.full((len(input_ids),), input_ids.shape[1] == WIDTH + 6)


class Listener(BaseStreamer):
    def __init__(self):
        self.columns, self.has_ended = [], False

    def put(self, value):
        self.columns.append(value if value.dim() == 2 else value[:, None])

    def end(self):
        self.has_ended = True


def is_called_once_per_width(ran: Ran) -> bool:
    if "logits_processor" not in ran.arguments:
        return False
    (own,) = ran.arguments["logits_processor"]
    is_odd = all(token % 2 == 1 or token == EOS for new in ran.new for token in new)
    return is_odd and own.widths == list(range(WIDTH, ran.sequences.shape[1]))


def stops_after_six(ran: Ran) -> bool:
    if "stopping_criteria" not in ran.arguments:
        return False
    (own,) = ran.arguments["stopping_criteria"]
    return ran.sequences.shape[1] == WIDTH + 6 and own.widths == list(range(WIDTH + 1, WIDTH + 7))


def is_heard(ran: Ran) -> bool:
    listener = ran.arguments.get("streamer")
    return listener is not None and listener.has_ended and torch.equal(torch.cat(listener.columns, -1), ran.sequences)


def next_turn(ran: Ran) -> dict[str, torch.Tensor]:
    mask = torch.cat([BASE["attention_mask"], torch.ones_like(ran.sequences[:, WIDTH:])], dim=-1)
    return {"input_ids": ran.sequences, "attention_mask": mask}


def goes_on_from_cache(ran: Ran) -> bool:
    """The cache passed is the one that comes back, over what all rows have in it; the next turn starts from it."""
    past = ran.arguments.get(CACHE)
    if past is None:
        return False
    is_filled = WIDTH <= past.get_seq_length() < ran.sequences.shape[1] and type(past) is DynamicCache
    turn = next_turn(ran)
    fresh = ran.again(**turn, **{CACHE: ...})
    seen = ran.again(**turn)
    return is_filled and ran.output[CACHE] is past and seen.rows == fresh.rows and seen.widths < fresh.widths


def spoil(module, args, output):
    return output.index_fill(-1, torch.tensor([5]), torch.nan)


def words(ran: Ran, at: slice) -> list[int]:
    """Tokens that the rows hold there, end tokens left out."""
    return sorted({token for new in ran.new for token in new[at]} - {EOS})


def long_word(ran: Ran) -> int:
    """One whose name no other begins with."""
    return next(token for new in ran.new for token in new[:-1] if token >= 100)


WORKS = {
    # Parallel decoding
    "decoding": Line(AUTOREGRESSIVE, lambda r: set(r.widths[1:]) == {1}),
    "window_size": Line({"window_size": 2}, lambda r: r.widths[0] <= WIDTH + 2 and max(r.widths[1:]) <= 4),
    "entropy_threshold": Line({"entropy_threshold": 100.0}, lambda r: len(r.widths) == 1, {"window_size": 16}),
    "distance_penalty": Line({"distance_penalty": 100.0}, lambda r: len(r.widths) == max(map(len, r.new))),
    "acceptance_ratio": Line(
        {"acceptance_ratio": 1e-9},
        lambda r: len(r.widths) <= max(map(len, r.new)) / 2,
        {"window_size": 16, "query_cost": 0},
    ),
    "query_cost": Line({"query_cost": 1000}, lambda r: set(r.widths[1:]) == {1}),
    # Length
    "max_length": Line(
        {"max_length": WIDTH + 5}, lambda r: r.sequences.shape[1] == WIDTH + 5, {"max_new_tokens": None}
    ),
    "max_new_tokens": Line({"max_new_tokens": 5}, lambda r: r.sequences.shape[1] == WIDTH + 5),
    "min_length": Line({"min_length": WIDTH + 12}, lambda r: min(map(len, r.new)) > 12, SEVERAL_ENDS),
    "min_new_tokens": Line({"min_new_tokens": 12}, lambda r: min(map(len, r.new)) > 12, SEVERAL_ENDS),
    "max_time": Line({"max_time": 1e-9}, lambda r: [len(row) for row in r.rows] == [1, 1, 1]),
    # Stopping
    "eos_token_id": Line(
        lambda r: {"eos_token_id": long_word(r)}, ends_at_first(lambda r, token: token == r.asked["eos_token_id"])
    ),
    "stop_strings": Line(
        lambda r: {"stop_strings": f"w{long_word(r)}"},
        ends_at_first(lambda r, token: f"w{token}" == r.asked["stop_strings"]),
        {"tokenizer": TOKENIZER},
    ),
    # Sampling
    "do_sample": Line({"do_sample": True}, is_drawn),
    "temperature": Line(
        {"temperature": 0.7},
        lambda r: all(torch.allclose(s, x / 0.7) for x, s in r.logits_and_scores()),
        SAMPLED | SCORES,
    ),
    "top_k": Line({"top_k": 5}, kept(lambda p: p >= p.topk(5).values[-1]), SAMPLED | SCORES),
    "top_p": Line({"top_p": 0.4}, kept(nucleus(0.4)), SAMPLED | SCORES),
    "min_p": Line({"min_p": 0.2}, kept(lambda p: p >= 0.2 * p.max()), SAMPLED | SCORES),
    "top_h": Line({"top_h": 0.3}, kept(top_h(0.3)), SAMPLED | SCORES),
    "typical_p": Line({"typical_p": 0.4}, kept(typical(0.4)), SAMPLED | SCORES),
    "epsilon_cutoff": Line({"epsilon_cutoff": 0.02}, kept(lambda p: (p >= 0.02) | likeliest(p)), SAMPLED | SCORES),
    "eta_cutoff": Line({"eta_cutoff": 0.1}, kept(eta(0.1)), SAMPLED | SCORES),
    "num_return_sequences": Line({"num_return_sequences": 2}, comes_twice, SAMPLED),
    # Processors
    "repetition_penalty": Line({"repetition_penalty": 1e4}, repeats_nothing),
    "encoder_repetition_penalty": Line({"encoder_repetition_penalty": 1e4}, prefers_the_prompt, SCORES),
    "no_repeat_ngram_size": Line({"no_repeat_ngram_size": 2}, repeats_no_bigram),
    "encoder_no_repeat_ngram_size": Line(
        {"encoder_no_repeat_ngram_size": 1}, lambda r: not set(r.prompts[0]) & set(r.new[0]), MANY_WORDS
    ),
    "bad_words_ids": Line(
        lambda r: {"bad_words_ids": [[token] for token in words(r, slice(3))]}, never("bad_words_ids")
    ),
    "sequence_bias": Line(
        {"sequence_bias": [[[17], 1e4]]}, lambda r: {token for new in r.new for token in new} == {17}
    ),
    "forced_bos_token_id": Line(
        {"forced_bos_token_id": 8}, lambda r: [new[0] for new in r.new] == [8, 8, 8], ONE_COLUMN
    ),
    "forced_eos_token_id": Line(
        {"forced_eos_token_id": 9}, lambda r: {new[15] for new in r.new if len(new) == 16} == {9}
    ),
    "exponential_decay_length_penalty": Line(
        {"exponential_decay_length_penalty": (3, 9.0)}, lambda r: all(new[-1] == EOS for new in r.new)
    ),
    "suppress_tokens": Line(lambda r: {"suppress_tokens": words(r, slice(3))}, never("suppress_tokens")),
    "begin_suppress_tokens": Line(
        lambda r: {"begin_suppress_tokens": words(r, slice(1))}, never("begin_suppress_tokens", 1)
    ),
    "guidance_scale": Line({"guidance_scale": 1.8}, is_guided, SCORES),
    "watermarking_config": Line({"watermarking_config": WatermarkingConfig(bias=3.0)}, is_watermarked, SCORES),
    "remove_invalid_values": Line(
        {"remove_invalid_values": True}, lambda r: not any(5 in new for new in r.new), fails_without=True, spoil=spoil
    ),
    "renormalize_logits": Line(
        {"renormalize_logits": True},
        lambda r: all(s.logsumexp(-1).abs() < 1e-4 for _, s in r.logits_and_scores()),
        SCORES,
    ),
    "token_healing": Line({"token_healing": True}, is_healed, HALF_WORD | {"tokenizer": TOKENIZER}),
    # Output
    "return_dict_in_generate": Line(DICT, lambda r: isinstance(r.output, ModelOutput), same_text=True),
    "output_scores": Line({"output_scores": True}, has_scores, DICT | SEVERAL_ENDS, same_text=True),
    "output_logits": Line({"output_logits": True}, has_logits, DICT | SEVERAL_ENDS, same_text=True),
    # Cache
    "use_cache": Line({"use_cache": False}, lambda r: r.output.get(CACHE) is None, DICT, same_text=True),
    "cache_implementation": Line({"cache_implementation": "static"}, is_static, DICT, same_text=True),
    "prefill_chunk_size": Line({"prefill_chunk_size": 7}, lambda r: r.widths[:5] == [7] * 5, same_text=True),
    # Special tokens
    "pad_token_id": Line({"pad_token_id": 7}, is_padded_with_seven, SEVERAL_ENDS),
    "bos_token_id": Line({"bos_token_id": 7}, lambda r: r.prompts == [[7]], NO_INPUT),
    # Assistants
    "is_assistant": Line(
        {"is_assistant": True}, is_sure_until_its_end, SCORES | {"assistant_confidence_threshold": 0.9}
    ),
    # Input
    "inputs": Line({"inputs": ONE_ROW["input_ids"]}, lambda r: r.prompts == PROMPTS[1:2], NO_INPUT),
    "input_ids": Line({"input_ids": ONE_ROW["input_ids"]}, lambda r: r.prompts == PROMPTS[1:2], NO_INPUT),
    "attention_mask": Line(
        {"attention_mask": TWO_PARTS["attention_mask"]},
        lambda r: r.rows == r.again(**left_padded([[7, 8]])).rows,
        TWO_PARTS | {"attention_mask": ...},
    ),
    "cache": Line(
        lambda r: {CACHE: DynamicCache()},
        goes_on_from_cache,
        DICT | {"eos_token_id": None},
        same_text=True,
    ),
    "negative_prompt_ids": Line(NEGATIVE, is_guided, SCORES | {"guidance_scale": 1.8}),
    "negative_prompt_attention_mask": Line(
        {"negative_prompt_attention_mask": NEGATIVE_MASK}, is_guided, SCORES | NEGATIVE | {"guidance_scale": 1.8}
    ),
    # Control
    "generation_config": Line(
        {"generation_config": GenerationConfig(max_new_tokens=3)},
        lambda r: r.sequences.shape[1] == WIDTH + 3,
        {"max_new_tokens": ...},
    ),
    "logits_processor": Line(lambda r: {"logits_processor": [Banned()]}, is_called_once_per_width),
    "stopping_criteria": Line(lambda r: {"stopping_criteria": [SixTokens()]}, stops_after_six),
    "prefix_allowed_tokens_fn": Line({"prefix_allowed_tokens_fn": following}, counts_up),
    "streamer": Line(lambda r: {"streamer": Listener()}, is_heard, same_text=True),
    "tokenizer": Line(
        {"tokenizer": TOKENIZER},
        ends_at_first(lambda r, token: str(token)[0] == "1"),
        {"stop_strings": "w1"},
        fails_without=True,
    ),
    "synced_gpus": Line({"synced_gpus": True}, lambda r: r.all_reduces >= len(r.widths), same_text=True),
    "custom_generate": Line(
        {"custom_generate": lambda model, input_ids, **kwargs: input_ids}, lambda r: r.sequences.shape[1] == WIDTH
    ),
}

OTHERS = (BASE["input_ids"] + 3) % 150
EMBEDDED = {model: model.get_input_embeddings()(OTHERS).detach() for model in MODELS.values()}
SHIFTED = (BASE["attention_mask"].cumsum(-1) - 1).clamp(min=0) + 1

LOOK_UP = {"prompt_lookup_num_tokens": 3}
LONG = {"window_size": 4, "query_cost": 0, "max_new_tokens": 60, "return_dict_in_generate": True}
VERIFIED_ONLY = {
    "prompt_lookup_num_tokens": Line(
        {"prompt_lookup_num_tokens": 0},
        lambda r: judged(r) != judged(r.again(prompt_lookup_num_tokens=...)),
        LONG,
        same_text=True,
    ),
    "max_matching_ngram_size": Line(
        {"max_matching_ngram_size": 1},
        lambda r: judged(r) != judged(r.again(max_matching_ngram_size=...)),
        LONG | LOOK_UP | left_padded([[5 + k * k // 3 % 5 for k in range(40)]]),  # has matches of several lengths
        same_text=True,
    ),
}
AUTOREGRESSIVE_ONLY = {
    "output_attentions": Line(
        {"output_attentions": True}, lambda r: len(r.output.attentions or ()) == len(r.rows[0]), DICT
    ),
    "output_hidden_states": Line(
        {"output_hidden_states": True}, lambda r: len(r.output.hidden_states or ()) == len(r.rows[0]), DICT
    ),
    "num_beams": Line({"num_beams": 2}, lambda r: hasattr(r.output, "beam_indices"), DICT),
    "assistant_early_exit": Line({"assistant_early_exit": 1}, drafts, ONE_ROW, same_text=True),
    "position_ids": Line({"position_ids": SHIFTED * 2}, lambda r: r.rows != r.again(position_ids=...).rows),
    "inputs_embeds": Line(
        lambda r: {"inputs_embeds": EMBEDDED[r.model]},
        lambda r: r.rows == r.again(input_ids=OTHERS, inputs_embeds=...).rows,
    ),
    "assistant_model": Line({"assistant_model": MODELS["q25"]}, drafts, ONE_ROW, same_text=True),
}
# Where the error does not begin with the argument and its value.
ERRORS = {
    "position_ids": "position_ids differ from 0, 1, 2, ... over",
}

REFUSED = {  # and what transformers says
    "constraints": ({"constraints": [1]}, "Constrained Beam Search requires"),
    "force_words_ids": ({"force_words_ids": [[5]]}, "Constrained Beam Search requires"),
    "penalty_alpha": ({"penalty_alpha": 0.6}, "Contrastive Search requires"),
    "dola_layers": ({"dola_layers": "low"}, "Dola Generation requires"),
    "use_mtp": ({"use_mtp": True}, "Could not find `num_mtp_layers`"),
}

NO_EFFECT = {
    "cache_config": {"nbits": 4},
    "max_cache_len": 99,
    "compile_config": CompileConfig(),
    "disable_compile": True,
    "continuous_batching_config": ContinuousBatchingConfig(),
    "decoder_start_token_id": 7,
    "early_stopping": True,
    "length_penalty": 2.0,
    "low_memory": True,
    "num_beam_groups": 2,
    "diversity_penalty": 0.5,
    "assistant_confidence_threshold": 0.9,
    "num_assistant_tokens": 3,
    "num_assistant_tokens_schedule": "heuristic",
    "assistant_lookbehind": 3,
    "target_lookbehind": 3,
    "assistant_ensemble_weight": 0.5,
    "speculation_type": "dflash",
    "trust_remote_code": True,
    "assistant_tokenizer": TOKENIZER,
}


@pytest.fixture(params=NAMES)
def model(request):
    return MODELS[request.param]


PLAIN = {}  # calls that leave the argument out, which many lines share


def plain(model, arguments: dict, spoil: Callable | None = None) -> Ran:
    key = (model, spoil, tuple((name, id(value)) for name, value in sorted(arguments.items())))
    if key not in PLAIN:
        PLAIN[key] = Ran(model, arguments, {}, spoil)
    return copy(PLAIN[key])


def exercise(model, name: str, line: Line, decoding: str) -> None:
    base = BASE | line.beside | {"decoding": decoding}
    without = None
    if line.fails_without and decoding != "autoregressive":
        with pytest.raises(ValueError):
            Ran(model, base, {}, line.spoil)
    elif not line.fails_without:
        without = plain(model, base, line.spoil)
    asked = line.asks(without) if callable(line.asks) else line.asks
    assert list(asked) == [CACHE if name == "cache" else name]
    ran = Ran(model, base | asked, asked, line.spoil)
    assert line.holds(ran)
    if without is not None:
        without.asked = asked
        assert not line.holds(without), "it holds without the argument, too"
        assert not line.same_text or ran.rows == without.rows


@pytest.mark.parametrize(
    "name, decoding",
    [
        (name, decoding)
        for name in lines("works")
        for decoding in PARALLEL
        if name not in (("entropy_threshold", "distance_penalty") if decoding == "verified" else OF_VERIFIED)
    ],
)
def test_what_works(model, name, decoding):
    exercise(model, name, WORKS[name], decoding)


@pytest.mark.few(15)
@pytest.mark.parametrize("name", [name for name in lines("works") if name not in OURS])
def test_what_works_is_what_transformers_does(name):
    exercise(MODELS["q25"], name, WORKS[name], "autoregressive")


@pytest.mark.parametrize("name", lines("verified only"))
def test_what_only_verified_decoding_does(model, name):
    exercise(model, name, VERIFIED_ONLY[name], "verified")
    for decoding in ("streaming", "blockwise"):
        with pytest.raises(ValueError, match=f"prompt_lookup_num_tokens=3 is not offered by decoding='{decoding}'"):
            Ran(model, BASE | {"prompt_lookup_num_tokens": 3, "decoding": decoding}, {})


@pytest.mark.parametrize("more", [{}, {"max_matching_ngram_size": 1}], ids=str)
def test_autoregressive_decoding_looks_up_drafts_of_one_row(model, more):
    """In transformers' own assisted decoding."""
    line = Line(LOOK_UP, drafts, left_padded([[5, 6, 7] * 4]) | more, same_text=True)
    exercise(model, "prompt_lookup_num_tokens", line, "autoregressive")
    with pytest.raises(ValueError, match="only supported for batch_size = 1"):
        Ran(model, BASE | LOOK_UP | AUTOREGRESSIVE, LOOK_UP)


@pytest.mark.parametrize("name", lines("autoregressive only"))
def test_what_only_autoregressive_decoding_does(model, name):
    line = AUTOREGRESSIVE_ONLY[name]
    asked = line.asks
    if callable(asked):
        asked = asked(plain(model, BASE | line.beside))
    for decoding in PARALLEL:
        with pytest.raises(ValueError, match="autoregressive") as error:
            Ran(model, BASE | line.beside | asked | {"decoding": decoding}, asked)
        assert str(error.value).startswith(ERRORS.get(name, f"{name}="))
    if name == "assistant_early_exit":
        stock = stock_model(model)
        try:
            stock.generate(**ONE_ROW, **asked, max_new_tokens=16, eos_token_id=EOS, pad_token_id=PAD)
        except TypeError:
            pytest.skip("fails in this transformers for its own models, too, and leaves them with one layer")
    exercise(model, name, line, "autoregressive")


@pytest.mark.parametrize("name", lines("refused"))
def test_what_no_decoding_takes(model, name):
    asked, message = REFUSED[name]
    assert list(asked) == [CACHE if name == "cache" else name]
    ours = "use_mtp=True" if name == "use_mtp" else "generation mode=.*"
    for decoding in (*PARALLEL, "autoregressive"):
        with pytest.raises(ValueError, match=ours if name == "use_mtp" and decoding in PARALLEL else message):
            Ran(model, BASE | asked | {"decoding": decoding}, asked)
    for decoding in PARALLEL:
        with pytest.raises(ValueError, match=f"{ours} is not offered by decoding='{decoding}'"):
            Ran(model, BASE | asked | {"decoding": decoding, "trust_remote_code": True}, asked)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", lines("no effect"))
def test_what_has_no_effect(model, name):
    for decoding in PARALLEL:
        without = plain(model, BASE | SCORES | {"decoding": decoding})
        ran = without.again(**{name: NO_EFFECT[name]})
        assert torch.equal(ran.sequences, without.sequences) and ran.widths == without.widths
        for got, expected in zip(ran.output.scores, without.output.scores, strict=True):
            assert torch.equal(got, expected)


def test_positions_that_the_mask_implies_are_accepted(model):
    for decoding in PARALLEL:
        base = BASE | {"decoding": decoding}
        assert Ran(model, base | {"position_ids": SHIFTED - 1}, {}).rows == Ran(model, base, {}).rows


def test_a_cache_is_as_it_was_when_the_call_fails(model):
    past = DynamicCache()
    base = BASE | {CACHE: past, "eos_token_id": None}
    first = Ran(model, base, {})
    keys, length = past.layers[0].keys.clone(), past.get_seq_length()
    assert length >= WIDTH

    def fail(batch_id, ids):
        if len(ids) == first.sequences.shape[1] + 3:
            raise KeyError("three tokens in")
        return [9]

    with pytest.raises(KeyError):
        Ran(model, base | next_turn(first) | {"prefix_allowed_tokens_fn": fail}, {})
    assert past.get_seq_length() == length and torch.equal(past.layers[0].keys, keys)


def test_a_paged_cache_is_refused_by_name(model):
    for decoding in PARALLEL:
        with pytest.raises(ValueError, match="cache_implementation='paged'.*autoregressive"):
            model.generate(**BASE, decoding=decoding, cache_implementation="paged")
