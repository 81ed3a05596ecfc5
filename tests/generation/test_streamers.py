"""Streamers in parallel decoding: tokens are put as soon as they are final, in the shapes that transformers puts."""

import re
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from helpers import CHECKPOINTS, EOS, MASK, PAD, PROMPTS, left_padded, load, logits_of
from reference_decoder import decode
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    TextIteratorStreamer,
    TextStreamer,
)
from transformers.generation import BaseStreamer, TextDiffusionStreamer

MODEL = load(CHECKPOINTS / "q3").double()  # where no rounding decides
VOCABULARY = {**{f"w{i:03}": i for i in range(160)}, "abcdef": 160}  # what StopStringCriteria asks for
PLAIN = {"eos_token_id": EOS, "pad_token_id": PAD, "max_new_tokens": 28, "entropy_threshold": 1.0, "window_size": 16}
ENDING = [PROMPTS[4], PROMPTS[3], PROMPTS[0]]  # the last never
TIMEOUT = 20.0  # seconds after which an iterator that never ends makes its test fail


@pytest.fixture(params=["streaming", "blockwise"])
def decoding(request):
    return request.param


@pytest.fixture(scope="module")
def tokenizer():
    """A word per id."""
    core = Tokenizer(models.WordLevel(VOCABULARY, unk_token="abcdef"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="w000", eos_token="w002", mask_token="w159")


class Recorder(BaseStreamer):
    def __init__(self):
        self.calls = []

    def put(self, value):
        self.calls.append(("put", value))

    def end(self):
        self.calls.append(("end", None))

    def of(self, kind):
        return [value for name, value in self.calls if name == kind]

    def new_tokens(self):
        return [value.tolist() for value in self.of("put")[1:]]


class DraftRecorder(Recorder):
    def put_draft(self, value):
        self.calls.append(("draft", value))


class EndsWith(StoppingCriteria):
    """Each row ends at its own time."""

    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.token


class FailsAtTheThirdCall(LogitsProcessor):
    def __init__(self, error):
        self.error = error
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return scores


def record(model, prompts, recorder=None, **arguments):
    """The calls of a streamer, and the new tokens of the output."""
    recorder = Recorder() if recorder is None else recorder
    inputs = left_padded(prompts)
    torch.manual_seed(0)
    output = model.generate(**inputs, **{**PLAIN, **arguments}, streamer=recorder)
    prompt = inputs["input_ids"].repeat_interleave(arguments.get("num_return_sequences", 1), 0)
    assert torch.equal(recorder.of("put")[0], prompt) and torch.equal(output[:, : prompt.shape[1]], prompt)
    assert [name for name, _ in recorder.calls].index("end") == len(recorder.calls) - 1, "end comes once, and last"
    return recorder, output[:, prompt.shape[1] :]


# --- What is put ---

CALLBACKS = {
    "plain": {},
    "a processor that reads the text": {"repetition_penalty": 1.5},
    "a processor that may keep state": {"logits_processor": LogitsProcessorList([lambda ids, scores: scores])},
    "stop strings": {"stop_strings": ["w124 w125"]},
    "chunks": {"prefill_chunk_size": 2},
    "samples of a processor that reads the text": {"do_sample": True, "repetition_penalty": 1.5},
}


def with_tokenizer(arguments, tokenizer):
    return {**arguments, "tokenizer": tokenizer} if "stop_strings" in arguments else arguments


@pytest.mark.parametrize("callback", CALLBACKS)
def test_one_row_is_put_in_runs(decoding, callback, tokenizer):
    arguments = {"decoding": decoding, **with_tokenizer(CALLBACKS[callback], tokenizer)}
    recorder, new = record(MODEL, [PROMPTS[2]], **arguments)
    runs = recorder.of("put")[1:]
    assert all(run.dim() == 1 and run.dtype == torch.long for run in runs)
    assert torch.equal(torch.cat(runs), new[0])
    assert min(map(len, runs)) > 0 and max(map(len, runs)) > 1
    torch.manual_seed(0)
    without = MODEL.generate(**left_padded([PROMPTS[2]]), **{**PLAIN, **arguments})
    assert torch.equal(without[0, len(PROMPTS[2]) :], new[0])


@pytest.mark.parametrize("end", ["end token", "stop string", "max_time"])
def test_nothing_behind_the_end_is_put(decoding, end, tokenizer):
    """The text ends within a run; the rest of the run was filled already, and is nobody's."""
    arguments = {"decoding": decoding}
    for prompt in PROMPTS:
        runs = record(MODEL, [prompt], **arguments)[0].new_tokens()
        ends = [(k, i) for k, run in enumerate(runs) for i in range(1, len(run) - 1) if is_first(runs, k, i)]
        if end == "max_time":
            ends = [(0, 0)] if len(runs[0]) > 1 else []
        if ends:
            break
    k, i = ends[0]
    token = runs[k][i]
    arguments |= {
        "end token": {"eos_token_id": token},
        "stop string": {"stop_strings": [f"w{token:03}"], "tokenizer": tokenizer},
        "max_time": {"max_time": 0.0},
    }[end]
    recorder, new = record(MODEL, [prompt], **arguments)
    assert recorder.new_tokens() == [*runs[:k], runs[k][: i + 1]]
    assert sum(recorder.new_tokens(), []) == new[0].tolist()


def is_first(runs, k, i):
    return runs[k][i] not in sum(runs[:k], runs[k][:i])


@pytest.mark.parametrize("decoding", ["streaming", "blockwise", "verified", "autoregressive"])
@pytest.mark.parametrize("callback", CALLBACKS)
def test_a_batch_is_put_in_columns(decoding, callback, tokenizer):
    """As transformers' own loop puts it, with padding for rows that have ended."""
    arguments = {"decoding": decoding, **with_tokenizer(CALLBACKS[callback], tokenizer)}
    if decoding == "autoregressive":
        arguments.pop("prefill_chunk_size", None)  # takes no padding there
    recorder, new = record(MODEL, ENDING, **arguments)
    columns = recorder.of("put")[1:]
    assert all(column.shape == (3,) for column in columns)
    assert torch.equal(torch.stack(columns, dim=1), new)
    if callback == "plain" and decoding in ("streaming", "blockwise"):
        assert new[:2, -1].tolist() == [PAD, PAD] and new.shape[1] == 28


# --- When it is put, by the reference ---


class Reference:
    """The slow decoder's knowledge of one row after each forward."""

    def __init__(self, model, prompt, decoding, callback="plain", padding=()):
        self.forwards = []  # of positions and logits
        forward = logits_of(model)

        def recording(tokens, positions):
            self.forwards.append((positions, forward(tokens, positions)))
            return self.forwards[-1][1]

        settings = {"entropy_threshold": 1.0, "decoding": decoding, "padding": padding}
        self.prompt_length = len(prompt)
        decoded = decode(recording, prompt, 28, MASK, [EOS], **settings, processors=PROCESSORS[callback])
        self.ids, self.steps = decoded.ids, decoded.steps
        # Before the first open slot of the next forward stands what it commits.
        self.known = [step["committed"] + (step["open"] + "1").index("1") for step in self.steps[1:]] + [len(self.ids)]
        self.committed = [step["committed"] for step in self.steps[1:]] + [len(self.ids)]

    def draft(self, k):
        """After forward k: the tokens from the first open slot to the end of its window, with its guess for each."""
        step, following = self.steps[k], self.steps[k + 1]
        tokens = []
        for slot in range(self.known[k], step["committed"] + len(step["window"])):
            i = slot - following["committed"]
            if following["open"][i] == "0":
                tokens.append(following["window"][i])
            else:
                positions, logits = self.forwards[k]
                scores = logits[positions.index(self.prompt_length + slot)].clone()
                scores[MASK] = -torch.inf
                tokens.append(scores.argmax().item())
        return tokens


def per_forward(model, recorder, prompts, decoding, callback):
    """The calls that follow each forward."""
    hook = model.model.register_forward_hook(lambda *args: recorder.calls.append(("forward", None)))
    try:
        record(model, prompts, recorder, decoding=decoding, logits_processor=PROCESSORS[callback])
    finally:
        hook.remove()
    groups = []
    for call in recorder.calls[1:-1]:
        if call[0] == "forward":
            groups.append([])
        else:
            groups[-1].append(call)
    return groups


PROCESSORS = {
    "plain": None,
    "a processor that reads the text": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.5)]),
}


@pytest.mark.parametrize("callback", PROCESSORS)
def test_text_is_put_one_forward_before_it_is_committed(decoding, callback):
    for prompt in ENDING:
        reference = Reference(MODEL, prompt, decoding, callback)
        groups = per_forward(MODEL, Recorder(), [prompt], decoding, callback)
        puts = [[value.tolist() for _, value in group] for group in groups]
        texts = [reference.ids[a:b] for a, b in zip([0, *reference.known], reference.known, strict=False)]
        assert puts == [[text] if text else [] for text in texts]
        assert reference.known > reference.committed


@pytest.mark.parametrize("callback", PROCESSORS)
def test_columns_are_put_when_all_rows_that_go_on_have_come_to_them(decoding, callback):
    prompts = ENDING
    width = max(map(len, prompts))
    references = [Reference(MODEL, prompt, decoding, callback, [PAD] * (width - len(prompt))) for prompt in prompts]
    expected = []
    for k in range(max(len(reference.steps) for reference in references)):
        going_on = [reference.known[k] for reference in references if k < len(reference.steps) - 1]
        expected.append(min(going_on, default=max(len(reference.ids) for reference in references)))
    groups = per_forward(MODEL, Recorder(), prompts, decoding, callback)
    assert torch.tensor([len(group) for group in groups]).cumsum(0).tolist() == expected


# --- Drafts ---


@pytest.mark.parametrize("callback", PROCESSORS)
def test_drafts_show_the_rest_of_the_window(decoding, callback):
    for prompt in ENDING:
        reference = Reference(MODEL, prompt, decoding, callback)
        *groups, last = per_forward(MODEL, DraftRecorder(), [prompt], decoding, callback)
        for k, group in enumerate(groups):
            *puts, (kind, draft) = group
            assert kind == "draft" and draft.dtype == torch.long
            assert draft.tolist() == reference.draft(k)
            assert [kind for kind, _ in puts] == ["put"] * len(puts), "one draft, behind what is put"
        assert [kind for kind, _ in last] == ["put"], "no draft once the text has ended"
        text = [value for group in [*groups, last] for kind, value in group if kind == "put"]
        assert torch.cat(text).tolist() == reference.ids


def test_a_draft_never_shows_mask(decoding):
    model = load(CHECKPOINTS / "q3")
    model.lm_head.register_forward_hook(lambda module, args, out: out.index_fill(-1, torch.tensor([MASK]), 100.0))
    recorder, _ = record(model, [PROMPTS[2]], DraftRecorder(), decoding=decoding, entropy_threshold=None)
    drafts = recorder.of("draft")
    assert max(map(len, drafts)) == 15 and not torch.cat(drafts).eq(MASK).any()


def test_drafts_are_printed_and_taken_back(decoding, tokenizer, capsys):
    streamer = TextDiffusionStreamer(tokenizer)
    output = MODEL.generate(**left_padded([PROMPTS[2]]), **PLAIN, decoding=decoding, streamer=streamer)
    draft = r"\x1b7\x1b\[33m[w0-9 ]*\x1b\[0m\x1b8\x1b\[J"  # saves the place of the cursor, goes back, wipes
    text, num_drafts = re.subn(draft, "", capsys.readouterr().out)
    assert text == tokenizer.decode(output[0]) + "\n"
    assert num_drafts > 2


# --- transformers' own streamers ---


def test_printed_text_is_that_of_the_output(decoding, tokenizer, capsys):
    prompt = ENDING[1]
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    output = MODEL.generate(**left_padded([prompt]), **PLAIN, decoding=decoding, streamer=streamer)[0]
    assert output[-1] == EOS
    text = tokenizer.decode(output[len(prompt) :], skip_special_tokens=True)
    assert capsys.readouterr().out == text + "\n"


def stream_from_a_thread(tokenizer, *args, **kwargs) -> tuple[str, Future]:
    """The joined pieces of an iterator, and the call of generate() in another thread, which takes it by any name."""
    streamer = TextIteratorStreamer(tokenizer, timeout=TIMEOUT)
    with ThreadPoolExecutor(1) as pool:
        if args:
            call = pool.submit(MODEL.generate, *args, streamer, **kwargs)
        else:
            call = pool.submit(MODEL.generate, streamer=streamer, **kwargs)
        text = "".join(streamer)
    assert streamer.text_queue.empty(), "the iterator ends once"
    return text, call


def test_an_iterator_in_another_thread(decoding, tokenizer):
    text, call = stream_from_a_thread(tokenizer, **left_padded([PROMPTS[2]]), **PLAIN, decoding=decoding)
    assert text == tokenizer.decode(call.result()[0])


FAILURES = {
    "before the loop": ({"window_size": 0}, ValueError, "window_size=0 is not a number of slots"),
    "in the loop": ({"logits_processor": RuntimeError("third call")}, RuntimeError, "third call"),
    "an interrupt": ({"logits_processor": KeyboardInterrupt("by hand")}, KeyboardInterrupt, "by hand"),
    "token by token": (
        {"logits_processor": RuntimeError("third call"), "decoding": "autoregressive", "min_new_tokens": 9},
        RuntimeError,
        "third call",
    ),
}


def failing(arguments):
    if (error := arguments.get("logits_processor")) is None:
        return arguments
    return {**arguments, "logits_processor": LogitsProcessorList([FailsAtTheThirdCall(error)])}


@pytest.mark.parametrize("failure, positional", [*((failure, False) for failure in FAILURES), ("in the loop", True)])
def test_an_iterator_ends_when_generation_fails(tokenizer, failure, positional):
    arguments, kind, message = FAILURES[failure]
    inputs = left_padded([PROMPTS[2]])
    arguments = {**inputs, **PLAIN, **failing(arguments)}
    args = ()
    if positional:
        args = (arguments.pop("input_ids"), None, arguments.pop("logits_processor", None), None, None, None, None)
    text, call = stream_from_a_thread(tokenizer, *args, **arguments)
    assert type(call.exception()) is kind and message in str(call.exception())
    prompt = tokenizer.decode(PROMPTS[2])
    assert text == "" if failure == "before the loop" else text.startswith(prompt)


def test_a_streamer_that_fails_is_ended_once(decoding):
    class Fails(Recorder):
        def put(self, value):
            super().put(value)
            if len(self.calls) == 3:
                raise RuntimeError("third put")

    recorder = Fails()
    with pytest.raises(RuntimeError, match="third put"):
        MODEL.generate(**left_padded([PROMPTS[0]]), **PLAIN, decoding=decoding, streamer=recorder)
    assert [name for name, _ in recorder.calls] == ["put", "put", "put", "end"]


def test_an_error_is_not_hidden_by_a_streamer_that_cannot_end():
    class Endless(Recorder):
        def end(self):
            raise RuntimeError("no end")

    with pytest.raises(ValueError, match="window_size=0"):
        MODEL.generate(**left_padded(PROMPTS[:1]), **{**PLAIN, "window_size": 0}, streamer=Endless())
