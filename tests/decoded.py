"""Decodes prompts, and says what came of each row."""

from contextlib import contextmanager
from unittest.mock import patch

import torch
from helpers import CHECKPOINTS, EOS, MASK, PAD, PROMPTS, left_padded, load
from reference_decoder import Decoded
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import BaseStreamer

from wedlm.generation import branches, verified
from wedlm.generation.decoding import WeDLMGenerateOutput
from wedlm.generation.parameters import DEFAULTS
from wedlm.generation.sequences import Sequences, Settings, Strategy


def generate(model, prompts, **arguments) -> list[Decoded]:
    """Decodes a ragged batch and takes the output apart into what the reference returns."""
    arguments = {**SPECIAL, **arguments}
    inputs = left_padded(prompts)
    output = model.generate(**inputs, **arguments, return_dict_in_generate=True)
    assert isinstance(output, WeDLMGenerateOutput)
    width = inputs["input_ids"].shape[1]
    assert torch.equal(output.sequences[:, :width], inputs["input_ids"])
    decoded = []
    for b in range(len(prompts)):
        num_tokens = round((output.tokens_per_forward[b] * output.forwards[b]).item())
        new = output.sequences[b, width:].tolist()
        assert set(new[num_tokens:]) <= {PAD}
        window_queries = round(num_tokens / output.prefix_cacheability[b].item())
        decoded.append(Decoded(new[:num_tokens], output.forwards[b].item(), window_queries))
    assert output.sequences.shape[1] == width + max(len(row.ids) for row in decoded)
    return decoded


def agree(got: Decoded, expected: Decoded) -> bool:
    # prefix_cacheability counts window rows only where there were at least as many as tokens.
    rows = max(expected.window_queries, len(expected.ids))
    return (got.ids, got.forwards, got.window_queries) == (expected.ids, expected.forwards, rows)


def settings_of(run):
    return {name: run[name] for name in ("window_size", "entropy_threshold", "distance_penalty", "max_new_tokens")}


def recorded(run, decoding):
    prefix = "blockwise_" if decoding == "blockwise" else ""
    return Decoded(run[f"{prefix}ids"], run[f"{prefix}forwards"], run[f"{prefix}window_rows"])


def forwards_seen(model):
    """Shapes of every forward: rows in, and hidden states that reach the head."""
    seen = []
    forward = model.model.forward

    def watched(**kwargs):  # (no hook, which would keep rows in the batch)
        output = forward(**kwargs)
        seen.append((tuple(kwargs["input_ids"].shape), output[0].shape[1]))
        return output

    model.model.forward = watched
    return seen


def prefer(model, token):
    """Makes `token` the model's favourite at every position."""
    model.lm_head.register_forward_hook(lambda module, args, out: out.index_fill(-1, torch.tensor([token]), 100.0))
    return model


MODELS = {name: load(CHECKPOINTS / name) for name in ("q25", "q3")}
PARALLEL = ("streaming", "blockwise", "verified")
STATIC = {"cache_implementation": "static"}
SPECIAL = {"eos_token_id": EOS, "pad_token_id": PAD}
ARGUMENTS = {"max_new_tokens": 16, "query_cost": 0, "entropy_threshold": 1.0, **SPECIAL}


def run(model, prompts=PROMPTS, **arguments):
    return model.generate(**left_padded(prompts), **{**ARGUMENTS, **arguments}, return_dict_in_generate=True)


def settings_with(strategy: Strategy, window_size: int, query_cost: float = 0.0, **fields) -> Settings:
    """The settings of a greedy call with default values, without end tokens and look-up; `fields` replace its own."""
    generation_config = GenerationConfig(**DEFAULTS, num_looked_up=0, max_matching_ngram_size=None)
    settings = Settings(
        window_size=window_size,
        mask_token_id=MASK,
        masks_shift=False,
        end_tokens=torch.empty(0).long(),
        processors=LogitsProcessorList(),
        processors_read_text=False,
        arange=torch.arange(2 * window_size + 1),
        noise=None,
        strategy=strategy,
        rule=strategy.rule(generation_config, window_size, query_cost, torch.device("cpu")),
    )
    return settings._replace(**fields)


def begun(strategy: Strategy, settings: Settings, prompt_lengths, max_new_tokens: int):
    """The state before the first forward pass over prompts of these lengths."""
    lengths = torch.tensor(prompt_lengths)
    prompt = torch.ones(len(lengths), int(lengths.max())).long()
    return strategy.begin(Sequences.of_prompts(prompt, lengths, max_new_tokens, MASK), settings)


class Recorder(BaseStreamer):
    def __init__(self):
        self.calls = []

    def put(self, value):
        self.calls.append(("put", value.tolist()))

    def end(self):
        self.calls.append(("end", None))

    def of(self, kind):
        return [value for name, value in self.calls if name == kind]


class DraftRecorder(Recorder):
    def put_draft(self, value):
        self.calls.append(("draft", value.tolist()))


@contextmanager
def steps_of_rows(num_rows: int):
    """The drafts and the sizes of the branches of MASKs in each verified step of each row, as they are taken."""
    verify, steps = verified.verify, [[] for _ in range(num_rows)]

    def noted(state, queries, *more, **named):
        sequences, kept = state
        for i in queries.is_predicted[:, 0].nonzero()[:, 0].tolist():
            drafts = kept.tokens[i, : kept.num_drafts[i]].tolist()
            steps[sequences.number[i]].append((drafts, kept.bounds[i].diff().tolist()))
        return verify(state, queries, *more, **named)

    with patch.object(branches, "verify", noted):
        yield steps
