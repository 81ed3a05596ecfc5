"""Streamers in parallel decoding: tokens are put as soon as they are final, in the shapes that transformers puts."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from callback_cases import word_tokenizer
from decoded import DraftRecorder, Recorder, prefer
from helpers import CHECKPOINTS, EOS, MASK, PAD, PROMPTS, left_padded, load, logits_of
from reference_decoder import decode
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TextIteratorStreamer,
)
from transformers.generation import TextDiffusionStreamer

MODEL = load(CHECKPOINTS / "q3").double()  # where no rounding decides
TOKENIZER = word_tokenizer()
PLAIN = {"eos_token_id": EOS, "pad_token_id": PAD, "max_new_tokens": 28, "entropy_threshold": 1.0, "window_size": 16}
ENDING = [PROMPTS[4], PROMPTS[3], PROMPTS[0]]  # the last never


@pytest.fixture(params=["streaming", "blockwise"])
def decoding(request):
    return request.param


def record(model, prompts, recorder, **arguments):
    """The new tokens of the output, and those that a streamer was given."""
    inputs = left_padded(prompts)
    torch.manual_seed(0)
    output = model.generate(**inputs, **{**PLAIN, **arguments}, streamer=recorder)
    prompt, *new = recorder.of("put")
    assert prompt == inputs["input_ids"].tolist()
    assert [name for name, _ in recorder.calls].index("end") == len(recorder.calls) - 1, "end comes once, and last"
    return output[:, len(prompt[0]) :], new


# --- What is put ---

CALLBACKS = {
    "plain": {},
    "a processor that reads the text": {"repetition_penalty": 1.5},
    "a processor that may keep state": {"logits_processor": LogitsProcessorList([lambda ids, scores: scores])},
    "stop strings": {"stop_strings": ["w124", "5 w1"], "tokenizer": TOKENIZER},
    "chunks": {"prefill_chunk_size": 2},
    "samples of a processor that reads the text": {"do_sample": True, "repetition_penalty": 1.5},
}


@pytest.mark.parametrize("decoding", ["streaming", "blockwise", "verified", "autoregressive"])
@pytest.mark.parametrize("callback", CALLBACKS)
def test_a_batch_is_put_in_columns(decoding, callback):
    """As transformers' own loop puts it, with padding for rows that have ended."""
    arguments = {"decoding": decoding, **CALLBACKS[callback]}
    if decoding == "autoregressive":
        arguments.pop("prefill_chunk_size", None)  # takes no padding there
    new, columns = record(MODEL, ENDING, Recorder(), **arguments)
    assert new.T.tolist() == columns
    if callback == "plain" and decoding in ("streaming", "blockwise"):
        assert new[:2, -1].tolist() == [PAD, PAD] and new.shape[1] == 28
    for prompt in ENDING:
        new, runs = record(MODEL, [prompt], Recorder(), **arguments)
        assert sum(runs, []) == new[0].tolist(), "a row alone is put in runs"


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
def test_text_is_put_one_forward_before_it_is_committed_and_drafts_show_the_rest(decoding, callback):
    for prompt in ENDING:
        reference = Reference(MODEL, prompt, decoding, callback)
        groups = per_forward(MODEL, DraftRecorder(), [prompt], decoding, callback)
        before, expected = 0, []
        for k, known in enumerate(reference.known):
            expected.append([("put", reference.ids[before:known])] if before < known else [])
            if k < len(groups) - 1:  # no draft once the text has ended
                expected[-1].append(("draft", reference.draft(k)))
            before = known
        assert groups == expected


def test_a_draft_never_shows_mask(decoding):
    model = prefer(load(CHECKPOINTS / "q3"), MASK)
    recorder = DraftRecorder()
    record(model, [PROMPTS[2]], recorder, decoding=decoding, entropy_threshold=None)
    drafts = recorder.of("draft")
    assert max(map(len, drafts)) == 15 and MASK not in sum(drafts, [])


def test_drafts_are_printed_and_taken_back(decoding, capsys):
    streamer = TextDiffusionStreamer(TOKENIZER)
    output = MODEL.generate(**left_padded([PROMPTS[2]]), **PLAIN, decoding=decoding, streamer=streamer)
    draft = r"\x1b7\x1b\[33m[w0-9 ]*\x1b\[0m\x1b8\x1b\[J"  # saves the place of the cursor, goes back, wipes
    text, num_drafts = re.subn(draft, "", capsys.readouterr().out)
    assert text == TOKENIZER.decode(output[0]) + "\n"
    assert num_drafts > 2


# --- Failures ---


@pytest.mark.parametrize(
    "more, error, message",
    [
        ({}, None, ""),
        ({"window_size": 0}, ValueError, "window_size=0 is not a number of slots"),
        ({}, KeyboardInterrupt, "by hand"),
        ({"decoding": "autoregressive", "min_new_tokens": 9}, RuntimeError, "third call"),
    ],
)
def test_an_iterator_in_another_thread_ends(more, error, message):
    """Whether or not generation fails, and also with a streamer that is passed by its place."""
    numbers = iter(range(1000))

    def fail(ids, scores):
        if next(numbers) == 2 and error is not None:
            raise error(message)
        return scores

    inputs = left_padded([PROMPTS[2]])
    streamer = TextIteratorStreamer(TOKENIZER, timeout=20.0)
    args = (inputs["input_ids"], None, LogitsProcessorList([fail]), None, None, None, None, streamer)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(MODEL.generate, *args, attention_mask=inputs["attention_mask"], **{**PLAIN, **more})
        text = "".join(streamer)
    assert streamer.text_queue.empty(), "the iterator ends once"
    if error is None:
        assert text == TOKENIZER.decode(call.result()[0])
    else:
        assert type(call.exception()) is error and message in str(call.exception())
        assert text == "" if error is ValueError else text.startswith(TOKENIZER.decode(PROMPTS[2]))


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
