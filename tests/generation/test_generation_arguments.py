"""docs/reference/generate.md has a line for every argument of generate(), and every line says what happens.

What works does as in a loop that writes token by token: transformers' own, or an obvious one.
"""

import re
from contextlib import nullcontext, suppress
from inspect import signature
from unittest.mock import patch

import pytest
import torch
from callback_cases import CALLBACKS
from helpers import CHECKPOINTS, EOS, MASK, PAD, PROMPTS, REPOSITORY, left_padded, load, logits_of, stock_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CompileConfig,
    ContinuousBatchingConfig,
    GenerationConfig,
    GenerationMixin,
    MaxLengthCriteria,
    PreTrainedTokenizerFast,
    RepetitionPenaltyLogitsProcessor,
)

import wedlm

STATUSES = ("works", "verified only", "autoregressive only", "refused", "no effect")
OURS = {"decoding", "window_size", "query_cost", "entropy_threshold", "distance_penalty", "acceptance_ratio"}
PARALLEL = ("streaming", "blockwise", "verified")
MODELS = {name: load(CHECKPOINTS / name).double() for name in ("q25", "q3")}  # where no rounding decides


def read_tables() -> list[dict[str, str]]:
    """The arguments and their status, for each table of the page."""
    tables, is_inside = [], False
    for line in (REPOSITORY / "docs" / "reference" / "generate.md").read_text().splitlines():
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


def lines(wanted: str) -> list[str]:
    return [name for name, status in (OF_CONFIG | OF_GENERATE).items() if status == wanted]


def test_every_argument_has_a_line():
    attributes = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert set(OF_CONFIG) == attributes - {"transformers_version"} | OURS
    arguments = set(signature(GenerationMixin.generate).parameters) - {"self", "kwargs"}
    assert arguments <= set(OF_GENERATE) and not set(OF_GENERATE) & set(OF_CONFIG)


@pytest.fixture
def model():
    return MODELS["q3"]


def make_tokenizer():
    words = ["<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(3, MASK)), "<mask>", "abcdef"]  # for stop strings
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", **special)


TOKENIZER = make_tokenizer()
BASE = {**left_padded([PROMPTS[0], PROMPTS[1]]), "eos_token_id": EOS, "pad_token_id": PAD, "max_new_tokens": 12}
WIDTH = BASE["input_ids"].shape[1]
ONE_ROW = left_padded(PROMPTS[1:2])
NO_INPUT = {"input_ids": ..., "attention_mask": ...}
SAMPLED = ONE_ROW | {"do_sample": True, "top_k": 0}
SEVERAL_ENDS = {"eos_token_id": list(range(2, MASK, 3))}
DICT = {"return_dict_in_generate": True}
NEGATIVE = {"guidance_scale": 1.8, "negative_prompt_ids": torch.tensor([[PAD, 6], [7, 8]])}
HALF_WORD = left_padded([[44, 71, 5]])  # w5, which may become w50


def texts(model, arguments: dict, **more):
    """The sequences of a call; `...` leaves an argument out."""
    given = {name: value for name, value in (BASE | arguments).items() if value is not ...}
    torch.manual_seed(0)
    output = model.generate(**given, **more)
    return output if torch.is_tensor(output) else output.sequences


@torch.no_grad()
def token_by_token(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
    """The obvious loop: a column at a time, each from one MASK behind the text, without a cache."""
    forward, width, scores = logits_of(model), input_ids.shape[1], ()
    mask = kwargs.get("attention_mask")  # None if it had ones alone
    is_text = torch.ones_like(input_ids).bool() if mask is None else mask.bool()
    alive = torch.ones(len(input_ids), dtype=torch.bool)
    while alive.any():
        logits = torch.zeros(len(input_ids), model.config.vocab_size)
        for row in alive.nonzero()[:, 0].tolist():
            text = input_ids[row, :width][is_text[row]].tolist() + input_ids[row, width:].tolist()
            logits[row] = forward([*text, MASK], list(range(len(text) + 1)))[-1]
        scores += (logits_processor(input_ids, logits),)
        if generation_config.do_sample:
            tokens = torch.multinomial(scores[-1].softmax(-1), 1)[:, 0]
        else:
            tokens = scores[-1].argmax(-1)
        tokens = torch.where(alive, tokens, generation_config._pad_token_tensor)
        input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
        alive = alive & ~stopping_criteria(input_ids, scores)
    return input_ids


def assert_as_token_by_token(model, arguments: dict, decoding: str) -> torch.Tensor:
    if decoding == "verified":
        got = texts(model, arguments, decoding="verified")
        expected = texts(model, arguments, decoding="autoregressive")
    else:
        got = texts(model, arguments, decoding=decoding, window_size=1)
        expected = texts(model, arguments, custom_generate=token_by_token)
    assert torch.equal(got, expected)
    return got


WORKS = {  # each with what it needs beside it; without the argument itself the text is another
    **{next(iter(given)): given for name, given in CALLBACKS.items() if len(given) == 1},
    "sequence_bias": {"sequence_bias": [[[17], 1e4]]},
    "max_length": {"max_length": WIDTH + 5, "max_new_tokens": None},
    "max_new_tokens": {"max_new_tokens": 5},
    "min_length": {"min_length": WIDTH + 8} | SEVERAL_ENDS,
    "min_new_tokens": {"min_new_tokens": 8} | SEVERAL_ENDS,
    "max_time": {"max_time": 1e-9},
    "eos_token_id": SEVERAL_ENDS,
    "stop_strings": {"stop_strings": "w1", "tokenizer": TOKENIZER},
    "do_sample": ONE_ROW | {"do_sample": True},
    "temperature": SAMPLED | {"temperature": 3.0},
    "top_k": SAMPLED | {"top_k": 2},
    "top_p": SAMPLED | {"top_p": 0.2},
    "min_p": SAMPLED | {"min_p": 0.6},
    "top_h": SAMPLED | {"top_h": 0.1},
    "typical_p": SAMPLED | {"typical_p": 0.2},
    "epsilon_cutoff": SAMPLED | {"epsilon_cutoff": 0.1},
    "eta_cutoff": SAMPLED | {"eta_cutoff": 0.3},
    "num_return_sequences": {"num_return_sequences": 2, "do_sample": True, "top_k": 1},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1} | left_padded([list(range(3, 130))]),
    "forced_bos_token_id": {"forced_bos_token_id": 8} | left_padded([[5], [6]]),
    "suppress_tokens": {"suppress_tokens": list(range(3, 120))},
    "token_healing": {"token_healing": True, "tokenizer": TOKENIZER} | HALF_WORD,
    "pad_token_id": {"pad_token_id": 7} | SEVERAL_ENDS,
    "bos_token_id": {"bos_token_id": 7} | NO_INPUT,
    "is_assistant": {"is_assistant": True, "assistant_confidence_threshold": 0.9, "output_scores": True} | DICT,
    "inputs": NO_INPUT | {"inputs": ONE_ROW["input_ids"]},
    "input_ids": NO_INPUT | {"input_ids": ONE_ROW["input_ids"]},
    "attention_mask": {"input_ids": torch.tensor([[9, 9, 7, 8]]), "attention_mask": torch.tensor([[0, 0, 1, 1]])},
    "negative_prompt_ids": NEGATIVE,
    "negative_prompt_attention_mask": NEGATIVE | {"negative_prompt_attention_mask": torch.tensor([[0, 1], [1, 1]])},
    "generation_config": {"generation_config": GenerationConfig(max_new_tokens=3), "max_new_tokens": ...},
    "logits_processor": {"logits_processor": [RepetitionPenaltyLogitsProcessor(1.5)]},
    "stopping_criteria": {"stopping_criteria": [MaxLengthCriteria(WIDTH + 3)]},
    "tokenizer": {"tokenizer": TOKENIZER, "stop_strings": "w1"},
}  # fmt: skip
SAME_TEXT = {  # what else they do is tested with the caches, the streamers and the scores
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "renormalize_logits": True,
    "use_cache": False,
    "cache_implementation": "static",
    "prefill_chunk_size": 7,
    "synced_gpus": True,
}


def test_every_line_that_says_works_is_tested():
    elsewhere = OURS | {"custom_generate", "remove_invalid_values", "streamer", "cache"}
    assert elsewhere | WORKS.keys() | SAME_TEXT.keys() == set(lines("works"))


@pytest.mark.parametrize(
    "decoding, name",  # custom_generate gets no tokenizer
    [(decoding, name) for decoding in PARALLEL for name in WORKS
     if decoding == "verified" or "tokenizer" not in WORKS[name]],
)  # fmt: skip
def test_what_works_is_what_it_is_token_by_token(model, name, decoding):
    given = WORKS[name]
    got = assert_as_token_by_token(model, given, decoding)
    if name == "tokenizer":
        with pytest.raises(ValueError):
            texts(model, given | {name: ...}, decoding=decoding)
    else:
        window = {} if decoding == "verified" else {"window_size": 1}
        without = texts(model, given | {name: ...}, decoding=decoding, **window)
        assert got.shape != without.shape or not torch.equal(got, without)


@pytest.mark.parametrize("name", SAME_TEXT)
@pytest.mark.parametrize("decoding", PARALLEL)
def test_what_changes_no_text(model, name, decoding):
    beside = DICT if name.startswith("output_") else {}
    with patch("torch.distributed.all_reduce") as all_reduce:
        got = texts(model, beside | {name: SAME_TEXT[name]}, decoding=decoding)
    assert torch.equal(got, texts(model, {}, decoding=decoding))
    assert all_reduce.called == (name == "synced_gpus")


@pytest.mark.parametrize("decoding", PARALLEL)
def test_invalid_values_are_removed(model, decoding):
    hook = model.lm_head.register_forward_hook(lambda *given: given[-1].index_fill(-1, torch.tensor([5]), torch.nan))
    with pytest.raises(ValueError):
        texts(model, {}, decoding=decoding)
    assert_as_token_by_token(model, {"remove_invalid_values": True}, decoding)
    hook.remove()


def test_healing_that_makes_prompts_shorter_is_refused(model):
    """It drops special tokens, and the mask no longer fits."""
    given = left_padded([[1, 44, 71, 5]]) | {"token_healing": True, "tokenizer": TOKENIZER}
    with pytest.raises(ValueError, match=r"attention_mask has shape \(1, 4\), input_ids \(1, 3\); pass"):
        texts(model, given)


def test_healing_and_stop_strings_reach_every_way_to_ask_for_a_decoding(model):
    given = WORKS["token_healing"] | {"stop_strings": ["w3"]}
    expected = texts(model, given, decoding="verified")
    assert torch.equal(texts(model, given, custom_generate=wedlm.verified), expected)
    stock = stock_model(model)
    assert torch.equal(texts(stock, given, decoding="autoregressive"), texts(stock, given))


# --- What only some decodings do ---

LOOK_UP = {"prompt_lookup_num_tokens": 3}
REPEATS = left_padded([[5 + k * k // 3 % 5 for k in range(40)]])  # has matches of several lengths


@pytest.mark.parametrize("given", [{"prompt_lookup_num_tokens": 0}, LOOK_UP | {"max_matching_ngram_size": 1}], ids=str)
def test_what_only_verified_decoding_does(model, given):
    name, value = list(given.items())[-1]
    assert name in lines("verified only") and len(lines("verified only")) == 2
    more = REPEATS | DICT | {"window_size": 4, "query_cost": 0, "max_new_tokens": 60, "decoding": "verified"}
    outputs = [model.generate(**BASE | more | given | change) for change in ({}, {name: None})]
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    assert not torch.equal(outputs[0].verified_drafts, outputs[1].verified_drafts)
    for decoding in ("streaming", "blockwise"):
        with pytest.raises(ValueError, match=f"prompt_lookup_num_tokens=3 is not offered by decoding='{decoding}'"):
            texts(model, LOOK_UP, decoding=decoding)


def test_autoregressive_decoding_looks_up_drafts_of_one_row(model):
    """In transformers' own assisted decoding."""
    plain, looked_up = (texts(model, REPEATS | more, decoding="autoregressive") for more in ({}, LOOK_UP))
    assert torch.equal(plain, looked_up)
    with pytest.raises(ValueError, match="only supported for batch_size = 1"):
        texts(model, LOOK_UP, decoding="autoregressive")


POSITIONS = (BASE["attention_mask"].cumsum(-1) - 1).clamp(min=0)
AUTOREGRESSIVE_ONLY = {
    "output_attentions": {"output_attentions": True},
    "output_hidden_states": {"output_hidden_states": True},
    "num_beams": {"num_beams": 2},
    "assistant_early_exit": {"assistant_early_exit": 1} | ONE_ROW,
    "position_ids": {"position_ids": POSITIONS * 2},
    "inputs_embeds": {"inputs_embeds": torch.zeros(2, WIDTH, 48, dtype=torch.double)},
    "assistant_model": {"assistant_model": MODELS["q25"]} | ONE_ROW,
}


@pytest.mark.parametrize("name", lines("autoregressive only"))
def test_what_only_autoregressive_decoding_does(name):
    model, given = load(CHECKPOINTS / "q3").double(), AUTOREGRESSIVE_ONLY[name]
    begin = "position_ids differ from 0, 1, 2, ... over" if name == "position_ids" else f"{name}="
    for decoding in PARALLEL:
        with pytest.raises(ValueError, match="autoregressive") as error:
            texts(model, given, decoding=decoding)
        assert str(error.value).startswith(begin)
    with suppress(TypeError) if name == "assistant_early_exit" else nullcontext():  # fails in transformers 5.17
        texts(model, given, decoding="autoregressive")


def test_positions_that_the_mask_implies_are_accepted(model):
    for decoding in PARALLEL:
        plain, given = (texts(model, more, decoding=decoding) for more in ({}, {"position_ids": POSITIONS}))
        assert torch.equal(plain, given)


REFUSED = {  # and what transformers says
    "constraints": ({"constraints": [1]}, "Constrained Beam Search requires"),
    "force_words_ids": ({"force_words_ids": [[5]]}, "Constrained Beam Search requires"),
    "penalty_alpha": ({"penalty_alpha": 0.6}, "Contrastive Search requires"),
    "dola_layers": ({"dola_layers": "low"}, "Dola Generation requires"),
    "use_mtp": ({"use_mtp": True}, "Could not find `num_mtp_layers`"),
}


@pytest.mark.parametrize("name", lines("refused"))
def test_what_no_decoding_takes(model, name):
    given, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        texts(model, given, decoding="autoregressive")
    ours = "use_mtp=True" if name == "use_mtp" else "generation mode=.*"
    for decoding in PARALLEL:
        with pytest.raises(ValueError, match=f"{ours} is not offered by decoding='{decoding}'"):
            texts(model, given | {"trust_remote_code": True}, decoding=decoding)


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


@pytest.mark.parametrize("decoding", PARALLEL)
def test_what_has_no_effect(model, decoding):
    expected = texts(model, {}, decoding=decoding)
    assert NO_EFFECT.keys() == set(lines("no effect"))
    for name, value in NO_EFFECT.items():
        assert torch.equal(texts(model, {name: value}, decoding=decoding), expected), name
