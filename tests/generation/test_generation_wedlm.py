import math
import threading

import pytest
import torch
from helpers import (
    CHECKPOINTS,
    DECODE,
    EOS,
    MASK,
    PAD,
    PROMPTS,
    Waits,
    left_padded,
    load,
    logits_of,
    random_tokens,
    stock_model,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from reference_decoder import Decoded, decode
from transformers import (
    AutoConfig,
    DynamicCache,
    GenerationConfig,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
)

from wedlm import WeDLMForCausalLM
from wedlm.generation import decoding_run
from wedlm.generation.decoding_run import WINDOWS
from wedlm.generation.outputs import WeDLMGenerateOutput
from wedlm.generation.policy import default_window_size
from wedlm.generation.row_cache import RowCache
from wedlm.generation.window import Window, statistics


def generate(model, prompts, **arguments) -> list[Decoded]:
    """Decodes a ragged batch and takes the output apart into what the reference returns."""
    arguments = {"eos_token_id": EOS, "pad_token_id": PAD, **arguments}
    inputs = left_padded(prompts)
    output = model.generate(**inputs, **arguments, return_dict_in_generate=True)
    assert isinstance(output, WeDLMGenerateOutput)
    width = inputs["input_ids"].shape[1]
    assert torch.equal(output.sequences[:, :width], inputs["input_ids"])
    decoded = []
    for b in range(len(prompts)):
        num_tokens = round((output.tokens_per_forward[b] * output.forwards[b]).item())
        ids, padding = output.sequences[b, width:].tolist(), None
        ids, padding = ids[:num_tokens], ids[num_tokens:]
        assert set(padding) <= {PAD}
        window_rows = round(num_tokens / output.prefix_cacheability[b].item())
        decoded.append(Decoded(ids, output.forwards[b].item(), window_rows))
    assert output.sequences.shape[1] == width + max(len(row.ids) for row in decoded)
    return decoded


def agree(got: Decoded, expected: Decoded) -> bool:
    # prefix_cacheability counts window rows only where there were at least as many as tokens.
    rows = max(expected.window_rows, len(expected.ids))
    return (got.ids, got.forwards, got.window_rows) == (expected.ids, expected.forwards, rows)


@pytest.fixture
def steps(monkeypatch):
    """Records what each forward of the first row did, as the golden runs do."""
    recorded = []
    put_tokens = Window.put_tokens

    def recording(self, slots, selected, tokens):
        window = slice(self.start[0], self.end[0])
        recorded.append(
            {
                "committed": self.start[0].item(),
                "window": self.tokens[0, window].tolist(),
                "open": "".join("01"[not filled] for filled in self.filled[0, window].tolist()),
                "filled": [
                    [(self.prompt_lengths[0] + slot).item(), token.item()]
                    for slot, chosen, token in zip(slots[0], selected[0], tokens[0], strict=True)
                    if chosen
                ],
            }
        )
        put_tokens(self, slots, selected, tokens)

    monkeypatch.setattr(Window, "put_tokens", recording)
    return recorded


# --- Against the slow reference and the recorded runs ---


def models(attention):
    return {name: load(CHECKPOINTS / name, attn_implementation=attention) for name in ("q25", "q3")}


def settings_of(run):
    return {name: run[name] for name in ("window_size", "entropy_threshold", "distance_penalty", "max_new_tokens")}


def recorded(run, decoding):
    prefix = "blockwise_" if decoding == "blockwise" else ""
    return Decoded(run[f"{prefix}ids"], run[f"{prefix}forwards"], run[f"{prefix}window_rows"])


@pytest.mark.parametrize("attention, cache, every", [("eager", None, 4), ("sdpa", None, 1), ("sdpa", "static", 4)])
@pytest.mark.parametrize("decoding", ["streaming", "blockwise"])
def test_recorded_runs(attention, cache, every, decoding, steps):
    """Alone, and every other one as a row of ragged batches of 2, 5 and 8; in rarer ways not all of them."""
    assert DECODE["eos_token_id"] == EOS
    model = models(attention)
    runs = [run for run in DECODE["runs"] if decoding == "streaming" or "blockwise_ids" in run]
    assert len(runs) > 20
    for i, run in enumerate(runs[::every]):
        expected = recorded(run, decoding)
        arguments = {"decoding": decoding, "cache_implementation": cache, **settings_of(run)}
        prompt = DECODE["prompts"][run["prompt"]]
        steps.clear()
        (alone,) = generate(model[run["checkpoint"]], [prompt], **arguments)
        assert agree(alone, expected), run
        if decoding == "streaming" and "steps" in run:
            assert steps[: alone.forwards] == run["steps"]
            assert len(steps) <= alone.forwards + (cache == "static")
        if i % 2 == 0:
            continue
        others = [DECODE["prompts"][(run["prompt"] + k) % 5] for k in range(1, (2, 5, 8)[i % 3])]
        in_a_batch = generate(model[run["checkpoint"]], [prompt, *others], **arguments)
        assert agree(in_a_batch[0], expected), run


@pytest.mark.parametrize("name", ["q25", "q3"])
def test_the_reference_reproduces_the_recorded_runs(name):
    """In float64, where no rounding decides: so it may judge the cases below."""
    forward = logits_of(load(CHECKPOINTS / name).double())
    for run in DECODE["runs"][:: 3 if name == "q25" else 4]:
        if run["checkpoint"] == name:
            for decoding in ("streaming", "blockwise") if "blockwise_ids" in run else ("streaming",):
                got = decode(
                    forward, DECODE["prompts"][run["prompt"]], mask_token_id=MASK, eos_token_ids=[EOS],
                    decoding=decoding, **settings_of(run),
                )  # fmt: skip
                expected = recorded(run, decoding)
                assert (got.ids, got.forwards, got.window_rows) == (
                    expected.ids,
                    expected.forwards,
                    expected.window_rows,
                )
                if decoding == "streaming" and "steps" in run:
                    assert got.steps == run["steps"]


MODELS = {name: load(CHECKPOINTS / name) for name in ("q25", "q3")}


@given(st.data())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_batch_equals_the_reference_row_by_row(data):
    model = MODELS[data.draw(st.sampled_from(["q25", "q3"]), "model")]
    tokens = st.integers(3, 158)
    prompts = data.draw(st.lists(st.lists(tokens, min_size=1, max_size=20), min_size=1, max_size=5), "prompts")
    arguments = {
        "max_new_tokens": data.draw(st.integers(1, 24), "max_new_tokens"),
        "window_size": data.draw(st.integers(1, 18), "window_size"),
        "entropy_threshold": data.draw(st.sampled_from([None, 0.0, 0.05, 0.4, 1.0, 2.0, 4.0, 100.0]), "threshold"),
        "distance_penalty": data.draw(st.sampled_from([0.0, 0.02, 0.1, 0.5]), "penalty"),
        "decoding": data.draw(st.sampled_from(["streaming", "blockwise"]), "decoding"),
    }
    # Tokens that the text is likely to hold, so that rows end early and at different times.
    end_tokens = data.draw(st.lists(tokens, max_size=8, unique=True), "end tokens")
    if data.draw(st.booleans(), "end inside the text"):
        text = decode(logits_of(model), prompts[0], mask_token_id=MASK, eos_token_ids=[], **arguments).ids
        end_tokens.append(data.draw(st.sampled_from(text), "end token"))
    cache = data.draw(st.sampled_from([None, "static"]), "cache")
    got = generate(model, prompts, **arguments, eos_token_id=end_tokens or None, cache_implementation=cache)
    for row, prompt in zip(got, prompts, strict=True):
        expected = decode(logits_of(model), prompt, mask_token_id=MASK, eos_token_ids=end_tokens, **arguments)
        assert agree(row, expected) or expected.margin < 1e-4, (row, expected)


# --- Consequences ---


@pytest.mark.parametrize("decoding", ["streaming", "blockwise", "verified"])
def test_the_cache_equals_a_fresh_prefill_after_every_step(model, decoding, monkeypatch):
    snapshots = []
    kind = WINDOWS[decoding]
    begin, refill = RowCache.begin_forward, kind.refill
    caches = []
    monkeypatch.setattr(RowCache, "begin_forward", lambda self, *args: (caches.append(self), begin(self, *args))[1])

    def snapshot(self, *args):
        keys, values = ([getattr(layer, kind).clone() for layer in caches[-1].layers] for kind in ("keys", "values"))
        snapshots.append(
            (caches[-1].lengths.clone(), self.prompt_lengths, self.start, self.tokens.clone(), keys, values)
        )
        refill(self, *args)

    monkeypatch.setattr(kind, "refill", snapshot)
    generate(model, PROMPTS[:3], max_new_tokens=24, entropy_threshold=1.0, window_size=4, decoding=decoding)
    assert len(snapshots) > 5
    monkeypatch.undo()
    checked = 0
    for lengths, prompt_lengths, start, tokens, keys, values in snapshots:
        assert torch.equal(lengths, prompt_lengths + start)
        for b in range(len(lengths)):
            prompt = next(p for p in PROMPTS[:3] if len(p) == prompt_lengths[b])
            fresh = DynamicCache()
            model(torch.tensor([prompt + tokens[b, : start[b]].tolist()]), past_key_values=fresh)
            for i, layer in enumerate(fresh.layers):
                for got, expected in ((keys[i], layer.keys), (values[i], layer.values)):
                    torch.testing.assert_close(got[b, :, : lengths[b]], expected[0], atol=1e-5, rtol=1e-4)
                    checked += 1
    assert checked > 100


@pytest.mark.parametrize("threshold", [None, 0.0, 0.4])
def test_every_forward_fills_at_least_one_slot_and_without_a_threshold_exactly_one(model, threshold, monkeypatch):
    filled = []
    put_tokens = Window.put_tokens
    monkeypatch.setattr(
        Window, "put_tokens", lambda self, slots, selected, tokens: (
            filled.extend(selected.sum(-1)[self.alive].tolist()), put_tokens(self, slots, selected, tokens)
        )
    )  # fmt: skip
    decoded = generate(model, PROMPTS, max_new_tokens=20, entropy_threshold=threshold)
    assert len(filled) == sum(row.forwards for row in decoded)
    assert min(filled) == 1
    assert max(filled) == 1 or threshold == 0.4
    if threshold is not None and threshold > 0:
        assert max(filled) > 1


def test_masks_behind_the_window_change_nothing(model, monkeypatch):
    expected = generate(model, PROMPTS, max_new_tokens=30, entropy_threshold=1.0)
    read = decoding_run.read_status

    def wider(*arguments):
        status = read(*arguments)
        return status._replace(num_queries=[number + 7 for number in status.num_queries])

    monkeypatch.setattr(decoding_run, "read_status", wider)
    assert generate(model, PROMPTS, max_new_tokens=30, entropy_threshold=1.0) == expected


def test_window_reaches_the_limit_exactly(model):
    for max_new_tokens in range(1, 20):
        for decoding in ("streaming", "blockwise"):
            (row,) = generate(
                model, [PROMPTS[2]], max_new_tokens=max_new_tokens, window_size=7, eos_token_id=None,
                entropy_threshold=100.0, decoding=decoding,
            )  # fmt: skip
            assert len(row.ids) == max_new_tokens
            assert row.forwards == math.ceil(max_new_tokens / 7), "all slots of a window are filled at once"


def test_the_end_token_is_kept_and_nothing_follows_it(model):
    (free,) = generate(model, [PROMPTS[2]], max_new_tokens=30, eos_token_id=None, entropy_threshold=1.0)
    for k, token in enumerate(free.ids):
        (row,) = generate(model, [PROMPTS[2]], max_new_tokens=30, eos_token_id=[token], entropy_threshold=1.0)
        assert row.ids == free.ids[: free.ids.index(token) + 1]
        assert row.forwards <= free.forwards
        if k == 0:
            assert row.forwards < free.forwards


def test_length_limits_are_transformers_own(model):
    prompt = torch.tensor([PROMPTS[2]])
    inputs = {"attention_mask": torch.ones_like(prompt), "eos_token_id": None, "pad_token_id": 0}
    assert model.generate(prompt, **inputs, max_length=20).shape == (1, 20)
    assert model.generate(prompt, **inputs, max_new_tokens=5).shape == (1, 17)
    default = model.generate(prompt, **inputs, decoding="autoregressive").shape
    assert model.generate(prompt, **inputs).shape == default
    with pytest.raises(ValueError, match="max_new_tokens|max_length"):
        model.generate(prompt, **inputs, max_new_tokens=0)


def test_num_return_sequences_repeats_the_row(model):
    prompt = torch.tensor([PROMPTS[2]])
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, num_return_sequences=3,
                            do_sample=True, top_k=1)  # fmt: skip
    assert output.shape[0] == 3
    assert torch.equal(output[0], output[1]) and torch.equal(output[0], output[2])


def test_statistics_of_known_counts():
    """By hand: 5 tokens in 2 forwards over 8 window rows; 4 tokens in 1 forward that needed fewer rows than tokens."""
    got = statistics(torch.tensor([5, 4]), torch.tensor([2, 1]), torch.tensor([8, 3]))
    assert got["forwards"].tolist() == [2, 1]
    assert got["tokens_per_forward"].tolist() == [2.5, 4.0]
    assert got["prefix_cacheability"].tolist() == [0.625, 1.0]


# --- Cost ---


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


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_rows_stay_where_a_hook_may_count_on_them(model, kind):
    """As one that steers each row by a vector of its own."""
    vectors = torch.randn(5, 1, 48, generator=torch.Generator().manual_seed(0))
    layer = model.model.layers[1]

    def steer(batch_rows):
        if kind == "register_forward_hook":
            return layer.register_forward_hook(lambda module, args, output: output + vectors[batch_rows])
        return layer.register_forward_pre_hook(lambda module, args: (args[0] + vectors[batch_rows], *args[1:]))

    alone = []
    for row, prompt in enumerate(PROMPTS):
        handle = steer([row])
        alone += generate(model, [prompt], max_new_tokens=30, entropy_threshold=1.0)
        handle.remove()
    assert len({row.forwards for row in alone}) > 1
    steer(slice(None))
    assert generate(model, PROMPTS, max_new_tokens=30, entropy_threshold=1.0) == alone


def test_the_head_sees_open_slots_only_and_the_prompt_carries_the_window(model):
    seen = forwards_seen(model)
    (row,) = generate(model, [PROMPTS[4]], max_new_tokens=40, window_size=6, entropy_threshold=1.0)
    assert len(seen) == row.forwards, "a forward that is not counted"
    assert seen[0] == ((1, 40 + 6), 6)
    assert all(shape[1] <= 12 and head <= 6 for shape, head in seen[1:])
    assert {shape[1] for shape, _ in seen[1:]} > {6}, "windows of several widths"


def test_finished_rows_leave_the_batch(model):
    alone = [generate(model, [prompt], max_new_tokens=40, entropy_threshold=1.0)[0] for prompt in PROMPTS]
    ends = sorted(row.forwards for row in alone)
    assert ends[0] < ends[-1], "rows that end at different times"
    seen = forwards_seen(model)
    assert generate(model, PROMPTS, max_new_tokens=40, entropy_threshold=1.0) == alone
    expected, size = [], len(PROMPTS)
    for k in range(ends[-1]):
        num_alive = sum(row.forwards > k for row in alone)
        if 2 * num_alive <= size:
            size = num_alive
        expected.append(size)
    assert [shape[0] for shape, _ in seen] == expected
    assert len(set(expected)) > 1, "no row left"


def test_no_step_copies_the_cache(model, monkeypatch):
    addresses, reads = [], []
    begin = RowCache.begin_forward

    def watch(self, *args):
        addresses.extend(layer.keys.data_ptr() for layer in self.layers[:1])
        mask = begin(self, *args)
        reads.append((self.place.live, self.layers[0].keys.shape[2] if self.layers else self.place.live))
        return mask

    monkeypatch.setattr(RowCache, "begin_forward", watch)
    generate(model, [PROMPTS[2]], max_new_tokens=200, eos_token_id=None, entropy_threshold=None, window_size=4)
    moves = sum(a != b for a, b in zip(addresses, addresses[1:], strict=False))
    assert len(addresses) == 199
    assert moves <= math.log2(220 / 16)
    assert reads[-1][0] == 12 + 196 + 8 - 4, "the forward reads the live entries only"
    assert max(capacity for _, capacity in reads) <= 12 + 200 + 8


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"do_sample": True, "top_k": 5},
        {"entropy_threshold": 1.0, "eos_token_id": list(range(3, 40))},
        {"decoding": "verified"},
        {"decoding": "verified", "do_sample": True, "top_k": 5},
    ],
    ids=str,
)
def test_one_look_of_the_host_per_step(model, monkeypatch, arguments):
    """No operation that waits for the device but the look at the status, once per forward."""
    looks = {"status": 0, "other": []}
    read = decoding_run.read_status

    def counted(*arguments):
        looks["status"] += 1
        return read(*arguments)

    monkeypatch.setattr(decoding_run, "read_status", counted)
    counts = []
    arguments = {"entropy_threshold": 0.0, "eos_token_id": None, **arguments}
    for max_new_tokens in (8, 40):
        looks.update(status=0, other=[])
        with Waits(looks["other"]):
            rows = generate(model, PROMPTS, max_new_tokens=max_new_tokens, **arguments)
        assert looks["status"] == max(row.forwards for row in rows)
        counts.append((looks["status"], len(looks["other"])))
    if arguments["eos_token_id"] is not None:
        assert len({row.forwards for row in rows}) > 1, "no row leaves early"
    assert counts[0][0] < counts[1][0]
    assert counts[0][1] == counts[1][1], f"looks grow with the forwards: {counts}"


# --- Sampling ---


def tiny_model(vocabulary=12):
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(CHECKPOINTS / "q3", vocab_size=vocabulary, mask_token_id=vocabulary - 1)
    config.initializer_range = 0.3
    return WeDLMForCausalLM(config).eval()


def p_value(counts, probabilities):
    expected = probabilities * counts.sum()
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]]).double()
    expected = torch.cat([expected[common], expected[~common].sum()[None].clamp(min=1e-9)]).double()
    statistic = ((observed - expected) ** 2 / expected).sum()
    return torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2).double(), statistic / 2).item()


def test_samples_follow_the_models_distribution():
    model, prompt = tiny_model(), torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        rows = torch.cat([prompt, torch.tensor([[11]])], dim=-1)
        logits = model(rows).logits[0, -1].index_fill(0, torch.tensor(11), -torch.inf)
    assert 0.5 < torch.distributions.Categorical(logits=logits).entropy() < 2.3
    torch.manual_seed(1)
    arguments = {"max_new_tokens": 1, "window_size": 1, "entropy_threshold": None, "do_sample": True, "top_k": 0}
    inputs = {"input_ids": prompt.expand(4000, -1), "attention_mask": torch.ones(4000, 4, dtype=torch.long)}
    for temperature, low, high in ((1.0, 1e-3, 1), (1.4, 0, 1e-6)):
        output = model.generate(**inputs, **arguments, temperature=temperature, eos_token_id=None, pad_token_id=0)
        counts = torch.bincount(output[:, -1], minlength=12).float()
        assert low <= p_value(counts, logits.softmax(-1)) <= high


def test_seeds_reproduce_and_warpers_restrict(model):
    prompts = left_padded(PROMPTS)
    arguments = {"max_new_tokens": 16, "do_sample": True, "pad_token_id": 0, "entropy_threshold": 2.0}

    def run(seed, **more):
        torch.manual_seed(seed)
        return model.generate(**prompts, **arguments, **more)

    assert torch.equal(run(0, temperature=3.0), run(0, temperature=3.0))
    assert not torch.equal(run(0, temperature=3.0), run(1, temperature=3.0))
    greedy = model.generate(**prompts, **{**arguments, "do_sample": False})
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"top_h": 1e-6}, {"temperature": 1e-4}):
        assert torch.equal(run(0, **narrow), greedy), narrow


# --- Autoregressive, and MASK ---


def prefer(model, token):
    """Makes `token` the model's favourite at every position."""
    model.lm_head.register_forward_hook(lambda module, args, out: out.index_fill(-1, torch.tensor([token]), 100.0))
    return model


@pytest.mark.parametrize(
    "arguments",
    [
        {"decoding": "streaming"},
        {"decoding": "streaming", "do_sample": True},
        {"decoding": "streaming", "entropy_threshold": 100.0},
        {"decoding": "blockwise"},
        {"decoding": "autoregressive"},
        {"decoding": "autoregressive", "do_sample": True},
        {"decoding": "autoregressive", "num_beams": 3},
        {"decoding": "autoregressive", "num_beams": 2, "do_sample": True},
        {"decoding": "autoregressive", "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_mask_is_never_produced(model, arguments):
    torch.manual_seed(0)
    prompt = random_tokens(2, 6)
    prefer(model, MASK)
    assert model(prompt).logits.argmax(-1).eq(MASK).all(), "the test would not notice a missing ban"
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, **arguments)
    assert output.shape[1] > 6
    assert not output.eq(MASK).any()


def test_without_a_mask_token_autoregressive_decoding_goes_on(model):
    model.config.mask_token_id = None
    prompt = random_tokens(1, 6)
    output = prefer(model, MASK).generate(prompt, max_new_tokens=4, decoding="autoregressive")
    assert output[0, 6:].tolist() == [MASK] * 4
    with pytest.raises(ValueError, match=r"mask_token_id is None .* set model\.config\.mask_token_id"):
        model.generate(prompt, max_new_tokens=4)


@pytest.mark.parametrize("arguments", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=str)
def test_autoregressive_text_is_that_of_an_ordinary_qwen(model, arguments):
    stock = stock_model(model)
    prompt = random_tokens(2, 6)
    inputs = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 12, "pad_token_id": 0, **arguments}
    outputs = []
    for generate, more in ((model.generate, {"decoding": "autoregressive"}), (stock.generate, {})):
        torch.manual_seed(0)
        outputs.append(generate(prompt, **inputs, **more, suppress_tokens=[MASK]))
    assert torch.equal(*outputs)


def test_recorded_autoregressive_runs():
    assert len(DECODE["autoregressive"]) > 1
    for run in DECODE["autoregressive"]:
        prompt = torch.tensor([PROMPTS[run["prompt"]]])
        output = MODELS[run["checkpoint"]].generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            decoding="autoregressive",
            max_new_tokens=run["max_new_tokens"],
        )
        assert output[0, prompt.shape[1] :].tolist() == run["ids"]


@pytest.mark.parametrize("pad_token_id", [PAD, 11])
def test_autoregressive_decoding_counts_a_forward_per_token(model, pad_token_id):
    inputs = left_padded(PROMPTS)
    arguments = {"decoding": "autoregressive", "max_new_tokens": 12, "return_dict_in_generate": True}
    free = model.generate(**inputs, **arguments, pad_token_id=PAD, eos_token_id=None).sequences[:, 40:]
    end_token = free[0, 4].item()
    ended = model.generate(**inputs, **arguments, pad_token_id=pad_token_id, eos_token_id=[end_token, 11])
    expected = [next((i + 1 for i, token in enumerate(row) if token in (end_token, 11)), 12) for row in free.tolist()]
    assert min(expected) < 12
    assert ended.forwards.tolist() == expected
    assert ended.tokens_per_forward.tolist() == ended.prefix_cacheability.tolist() == [1.0] * 5


class StopsTheFirstRow(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.arange(len(input_ids)).eq(0) & (input_ids.shape[1] >= 43)


def test_autoregressive_rows_that_a_criterion_ended_count_no_padding(model):
    output = model.generate(
        **left_padded(PROMPTS),
        decoding="autoregressive",
        max_new_tokens=12,
        return_dict_in_generate=True,
        eos_token_id=158,
        suppress_tokens=[158],
        pad_token_id=PAD,
        stopping_criteria=StoppingCriteriaList([StopsTheFirstRow()]),
    )
    assert not output.sequences[:, 40:].eq(158).any()
    assert output.forwards.tolist() == [3, 12, 12, 12, 12]


def test_assisted_decoding_is_left_to_transformers():
    model, assistant = prefer(load(CHECKPOINTS / "q3"), MASK), prefer(load(CHECKPOINTS / "q3"), MASK)
    assistant.generation_config.decoding = "autoregressive"
    output = model.generate(
        random_tokens(1, 6), assistant_model=assistant, max_new_tokens=8, decoding="autoregressive"
    )
    assert output.shape[1] > 6
    assert not output.eq(MASK).any()


# --- Where the four parameters live ---


def test_defaults_live_on_the_generation_config(model):
    config = model.generation_config
    assert (config.decoding, config.window_size, config.entropy_threshold, config.distance_penalty) == (
        "streaming",
        None,
        0.4,
        0.02,
    )


@pytest.mark.parametrize("threshold", [None, 0.0, 0.7])
def test_changed_defaults_survive_saving(model, tmp_path, threshold):
    changes = {"decoding": "blockwise", "window_size": 5, "entropy_threshold": threshold, "distance_penalty": 0.0}
    for name, value in changes.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert {name: getattr(again.generation_config, name) for name in changes} == changes
    fresh = load(CHECKPOINTS / "q3" if model.config.qk_norm else CHECKPOINTS / "q25")
    expected = generate(fresh, PROMPTS, max_new_tokens=12, **changes)
    assert generate(again, PROMPTS, max_new_tokens=12) == expected
    assert generate(fresh, PROMPTS, max_new_tokens=12) != expected


def test_a_call_or_its_config_overrides_the_defaults(model):
    sequential = generate(model, [PROMPTS[2]], max_new_tokens=12, entropy_threshold=None)
    assert sequential[0].forwards == 12 > generate(model, [PROMPTS[2]], max_new_tokens=12, window_size=16)[0].forwards
    config = GenerationConfig(max_new_tokens=12, entropy_threshold=None)
    prompt = torch.tensor([PROMPTS[2]])
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), generation_config=config, return_dict_in_generate=True
    )
    assert output.forwards.tolist() == [12]
    assert vars(config).get("window_size") is None, "the caller's config was changed"
    assert model.generation_config.entropy_threshold == 0.4


def test_the_window_is_as_large_as_suits_the_device(model):
    settings = {"max_new_tokens": 40, "entropy_threshold": 100.0, "eos_token_id": None}
    on_a_cpu = generate(model, PROMPTS, **settings)
    assert on_a_cpu == generate(model, PROMPTS, **settings, window_size=None)
    assert on_a_cpu == generate(model, PROMPTS, **settings, window_size=8)
    assert on_a_cpu != generate(model, PROMPTS, **settings, window_size=16)
    assert [default_window_size(torch.device(device)) for device in ("cpu", "cuda", "mps")] == [8, 16, 16]


# --- Refusals ---


REFUSED = [
    (
        {"decoding": "diffusion"},
        "decoding='diffusion' is unknown; choose one of 'streaming', 'blockwise', 'verified', ",
    ),
    ({"window_size": 0}, "window_size=0 is not a number of slots; set it to an integer of 1 or more"),
    ({"window_size": 2.5}, "window_size=2.5 is not a number of slots"),
    ({"window_size": True}, "window_size=True is not a number of slots; .* or to None"),
    ({"entropy_threshold": -0.1}, "entropy_threshold=-0.1 is not an entropy; .* or to None"),
    ({"entropy_threshold": math.nan}, "entropy_threshold=nan is not an entropy"),
    ({"entropy_threshold": math.inf}, "entropy_threshold=inf is not an entropy"),
    ({"distance_penalty": -1}, "distance_penalty=-1 is not a penalty; set it to a finite number, 0 or more"),
    ({"distance_penalty": math.inf}, "distance_penalty=inf is not a penalty"),
    ({"distance_penalty": None}, "distance_penalty=None is not a penalty"),
    ({"window_sise": 4}, "not used by the model: .*window_sise"),
    (
        {"num_beams": 2},
        "num_beams=2 is not offered by decoding='streaming'; leave it out .*, or pass decoding=\"autoreg",
    ),
    ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3 is not offered"),
    (
        {"past_key_values": StaticCache(MODELS["q3"].config, 8)},
        "past_key_values=StaticCache is not offered .* a plain D",
    ),
    (
        {"past_key_values": DynamicCache(offloading=True)},
        r"past_key_values=DynamicCache\(offloading=True\) is not offer",
    ),
    ({"past_key_values": ()}, "past_key_values=tuple is not offered"),
    (
        {"use_cache": False, "past_key_values": DynamicCache()},
        "past_key_values is a cache and use_cache=False wants",
    ),
    (
        {"use_cache": False, "prefill_chunk_size": 4},
        "prefill_chunk_size=4 needs a cache, and use_cache=False has none",
    ),
    (
        {"cache_implementation": "offloaded"},
        r"cache_implementation='offloaded' is not offered .* \(or reset it in model.generation_config\)",
    ),
    (
        {"cache_implementation": "static", "past_key_values": DynamicCache()},
        "both `cache_implementation` .* and `past_key_values`",
    ),
    ({"cache_implementation": "quantized"}, "cache_implementation='quantized' is not offered"),
    ({"cache_implementation": "paged"}, "cache_implementation='paged' is not offered"),
    ({"output_attentions": True}, "output_attentions=True is not offered"),
    ({"output_hidden_states": True}, "output_hidden_states=True is not offered"),
    (
        {"position_ids": torch.arange(6)[None] + 1},
        "position_ids differ from 0, 1, 2, ... over the ones of ",
    ),
]


@pytest.mark.parametrize("arguments, message", REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_not_offered_is_refused_by_name(arguments, message):
    model = MODELS["q3"]
    before = (model.generation_config.to_dict(), model.config.to_dict())
    prompt = random_tokens(1, 6)
    with pytest.raises(ValueError, match=message):
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, **arguments)
    assert (model.generation_config.to_dict(), model.config.to_dict()) == before
    assert torch.equal(prompt, random_tokens(1, 6))


def test_an_assistant_and_a_batch_are_refused_by_name():
    model, prompt = MODELS["q3"], random_tokens(1, 6)
    with pytest.raises(ValueError, match="assistant_model='WeDLMForCausalLM' is not offered"):
        model.generate(prompt, assistant_model=model, max_new_tokens=4)
    with pytest.raises(ValueError, match="continuous batching=.*generate_batch.* is not offered"):
        model.generate_batch([[3, 4, 5]])
    with pytest.raises(ValueError, match="continuous batching=.* is not offered"):
        model.init_continuous_batching()
    with pytest.raises(ValueError, match="inputs_embeds='Tensor' is not offered"):
        model.generate(inputs_embeds=model.model.embed_tokens(prompt), max_new_tokens=4)


@pytest.mark.parametrize(
    "rope", [{"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "longrope", "long_factor": [1.0] * 8}]
)
def test_rope_types_that_look_at_the_batch_are_refused_by_name(rope):
    more = {"short_factor": [1.0] * 8, "original_max_position_embeddings": 32} if "long_factor" in rope else {}
    config = AutoConfig.from_pretrained(CHECKPOINTS / "q3", rope_parameters={"rope_theta": 1e6, **rope, **more})
    with pytest.raises(ValueError, match=rf"rope_type='{rope['rope_type']}' is not offered"):
        WeDLMForCausalLM(config).generate(random_tokens(1, 6), max_new_tokens=4)


def test_gradient_checkpointing_in_training_is_refused(model):
    model.gradient_checkpointing_enable()
    prompt = random_tokens(1, 6)
    text = model.generate(prompt, max_new_tokens=4)
    with pytest.raises(ValueError, match=r"in training with gradient checkpointing, .* call model\.eval\(\) first"):
        model.train().generate(prompt, max_new_tokens=4)
    assert torch.equal(model.generate(prompt, max_new_tokens=4, use_cache=False), text)
    assert torch.equal(model.eval().generate(prompt, max_new_tokens=4), text)


def test_sliding_layers_are_refused_by_name():
    config = AutoConfig.from_pretrained(
        CHECKPOINTS / "q3", use_sliding_window=True, sliding_window=4, layer_types=["sliding_attention"] * 3
    )
    with pytest.raises(ValueError, match="layer_types=.*sliding_attention.* is not offered"):
        WeDLMForCausalLM(config).generate(random_tokens(1, 6), max_new_tokens=4)


@pytest.mark.parametrize(
    "input_ids, attention_mask, message",
    [
        ([[5, 6, MASK, 7]], None, "input_ids holds the MASK token, mask_token_id=159, .*take it out"),
        ([[5, 6, 7], [5, 6, 0]], [[1, 1, 1], [1, 1, 0]], "attention_mask .* has zeros behind .* pad on the left"),
        ([[5, 6, 7]], [[0, 1, 1, 1]], r"attention_mask has shape \(1, 4\), input_ids \(1, 3\); pass the mask that"),
        ([[5, 6, 7], [0, 0, 0]], [[1, 1, 1], [0, 0, 0]], "input_ids holds an empty prompt; give every row"),
    ],
)
def test_prompts_that_cannot_be_are_refused(input_ids, attention_mask, message):
    input_ids = torch.tensor(input_ids)
    attention_mask = torch.ones_like(input_ids) if attention_mask is None else torch.tensor(attention_mask)
    with pytest.raises(ValueError, match=message):
        MODELS["q3"].generate(input_ids, attention_mask=attention_mask, max_new_tokens=4)


@pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig, PromptEncoderConfig])
def test_prompt_learning_is_refused_by_name(model, kind):
    adapted = get_peft_model(model, kind(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    prompt = random_tokens(1, 6)
    inputs = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt), "max_new_tokens": 4}
    inputs |= {"eos_token_id": None, "pad_token_id": PAD}  # the adapter is random
    with pytest.raises(ValueError, match="prepare_inputs_for_generation='PeftModelForCausalLM' is not offered"):
        adapted.generate(**inputs)
    assert adapted.generate(**inputs, decoding="autoregressive").shape == (1, 10)
    assert model.generate(prompt, max_new_tokens=4).shape == (1, 10), "the model itself decodes as before"


@pytest.mark.parametrize("do_sample", [False, True])
def test_when_no_token_can_be_chosen_row_and_position_are_named(model, do_sample):
    everything = list(range(160))
    arguments = {"max_new_tokens": 4, "window_size": 1, "do_sample": do_sample}
    message = r"No token has a finite score in row 0 at position 12: .* suppress_tokens .*; loosen them"
    with pytest.raises(ValueError, match=message):
        generate(model, PROMPTS[2:4], **arguments, suppress_tokens=everything)
    model.lm_head.register_forward_hook(lambda module, args, out: out.index_fill(0, torch.tensor([1]), torch.nan))
    with pytest.raises(
        ValueError, match="No token has a finite score in row 1 at position 23: the logits are not finite"
    ):
        generate(model, PROMPTS[2:4], **arguments)


def test_logits_of_minus_infinity_change_nothing_but_their_token(model):
    """As in a padded vocabulary; its entropy is that of the other tokens."""
    hook = lambda value: lambda module, args, out: out.index_fill(-1, torch.tensor([7]), value)  # noqa: E731
    decoded = []
    for value in (-torch.inf, -1e30):
        handle = model.lm_head.register_forward_hook(hook(value))
        decoded.append(generate(model, PROMPTS, max_new_tokens=20, entropy_threshold=2.0))
        handle.remove()
    assert decoded[0] == decoded[1]
    assert max(row.forwards for row in decoded[0]) < 20


def test_any_window_size_is_as_good_as_the_largest_useful_one(model):
    expected = generate(model, PROMPTS, max_new_tokens=9, window_size=9)
    for window_size in (10, 10**6, 10**20):
        assert generate(model, PROMPTS, max_new_tokens=9, window_size=window_size) == expected


def test_a_batch_of_no_rows_is_refused():
    empty = torch.zeros(0, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="input_ids holds no rows; pass at least one prompt"):
        MODELS["q3"].generate(empty, attention_mask=empty, max_new_tokens=4)


def test_a_masked_out_mask_token_is_padding():
    ids, mask = torch.tensor([[MASK, 5, 6]]), torch.tensor([[0, 1, 1]])
    output = MODELS["q3"].generate(ids, attention_mask=mask, max_new_tokens=4)
    assert torch.equal(output[0, 3:], MODELS["q3"].generate(ids[:, 1:], max_new_tokens=4)[0, 2:])


def test_prompts_beyond_the_models_positions(caplog):
    model = WeDLMForCausalLM(AutoConfig.from_pretrained(CHECKPOINTS / "q3", max_position_embeddings=16)).eval()
    with pytest.raises(ValueError, match="input_ids has 16 tokens in a row, .*max_position_embeddings=16; shorten"):
        model.generate(random_tokens(1, 16), max_new_tokens=4)
    from transformers import logging

    logging.enable_propagation()
    try:
        model.generate(random_tokens(1, 12), max_new_tokens=4)
        assert "max_position_embeddings" not in caplog.text
        model.generate(random_tokens(1, 12), max_new_tokens=5)
        assert "reach beyond max_position_embeddings=16" in caplog.text
    finally:
        logging.disable_propagation()


# --- In use ---


def test_eight_threads_on_one_model(model):
    expected = [generate(model, [prompt], max_new_tokens=24, entropy_threshold=1.0) for prompt in PROMPTS]
    got = [None] * 8

    def work(k):
        got[k] = [generate(model, [PROMPTS[(k + j) % 5]], max_new_tokens=24, entropy_threshold=1.0) for j in range(5)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [[expected[(k + j) % 5] for j in range(5)] for k in range(8)]


@pytest.mark.slow
def test_memory_does_not_grow(model):
    import psutil

    process = psutil.Process()
    for i in range(1200):
        if i == 200:
            before = process.memory_info().rss
        k = i % 5
        generate(model, PROMPTS[: 1 + k], max_new_tokens=4 + 3 * (i % 7), entropy_threshold=1.0, window_size=4 + i % 9)
    assert process.memory_info().rss - before < 5e6
