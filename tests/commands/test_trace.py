"""`wedlm trace`: its lines and its page tell what each forward did."""

import json
import re

import pytest
import torch
from command_line import assert_counted, ids_of, run, user
from tiny_tokenizer import make_tokenizer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint
from wedlm.commands import trace as module
from wedlm.commands.trace import NUM_ROUNDS, Forward, Recorder, Run, Slot, Step, Tracer, line, page, visible
from wedlm.evaluation.provenance import device_name
from wedlm.generation.parameters import DECODINGS

QUESTIONS = ["Count by 4 from 12 to 60.", "Solve 3x + 7 = 22 for x."]


@pytest.fixture(scope="module")
def demo():
    return load_checkpoint(DEMO_FOLDER)


def traced(demo, question, **arguments):
    model, tokenizer = demo
    inputs = ids_of(tokenizer, user(question))
    shown = []
    recorder = Recorder(shown.append)
    arguments = {"max_new_tokens": 60, "return_dict_in_generate": True, **arguments}
    output = model.generate(**inputs, **arguments, streamer=recorder)
    assert shown == recorder.forwards
    tracer = Tracer(tokenizer, arguments["decoding"] == "verified")
    assert [tracer.step(forward) for forward in shown] == tracer.steps
    return tracer, output, output.sequences[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("decoding", DECODINGS)
def test_every_forward_is_told(demo, decoding, question=QUESTIONS[0]):
    settings = {"entropy_threshold": 0.1, "distance_penalty": 0.0}  # with which far slots are as good as near ones
    tracer, output, new = traced(demo, question, decoding=decoding, **settings)
    steps, tokenizer = tracer.steps, demo[1]
    assert len(steps) == output.forwards.item() and tracer.ids == new
    told = [slot for step in steps for slot in step.new]
    assert len(told) == len(new)
    assert "".join(slot.text for slot in told) == tokenizer.decode(new, skip_special_tokens=True)

    num_final = 0
    for forward, step in enumerate(steps, start=1):
        num_final += len(step.new)
        assert all(1 <= slot.filled_in <= forward for slot in step.new)
        for slot, final, token in zip(step.window, told[num_final:], new[num_final:], strict=False):
            if slot.filled_in is not None:  # a filled slot keeps its token, unless an end token cuts it off
                assert (slot.text, slot.filled_in) == (tokenizer.decode([token]), final.filled_in)
    filled_early = sum(slot.filled_in < forward for forward, step in enumerate(steps, start=1) for slot in step.new)
    left_open = sum(slot.filled_in is None for step in steps for slot in step.window)
    assert bool(filled_early) == (decoding in ("streaming", "blockwise")), "these fill behind open slots"
    assert bool(left_open) == (decoding != "autoregressive")


@pytest.mark.parametrize("temperature", [None, 2.0])
def test_verdicts_are_those_that_the_output_counts(demo, temperature, question=QUESTIONS[1]):
    torch.manual_seed(0)
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {}
    tracer, output, _ = traced(demo, question, decoding="verified", **sampling)
    num_accepted, num_judged = output.accepted_drafts.sum(), output.verified_drafts.sum()
    assert sum(step.num_accepted for step in tracer.steps) == num_accepted
    assert sum(step.rejected is not None for step in tracer.steps) == num_judged - num_accepted
    assert num_judged > num_accepted if temperature else num_accepted > 5


def test_a_forward_fills_what_it_says():
    """Three slots by hand, the second of which is filled first."""
    tokenizer = make_tokenizer()
    a, b, c, other = (tokenizer(text)["input_ids"][0] for text in ("a", "b", "c", "d"))
    recorder, tracer = Recorder(), Tracer(tokenizer, False)
    recorder.put(torch.tensor([[a, a]]))  # the prompt
    recorder.put_window(torch.tensor([other, b, other]), torch.tensor([False, True, False]))
    recorder.put(torch.tensor([a, b]))
    recorder.put_window(torch.tensor([other]), torch.tensor([False]))
    recorder.put(torch.tensor([c]))
    recorder.end()
    open_slot = Slot("d", None)
    steps = [tracer.step(forward) for forward in recorder.forwards]
    assert steps == [
        Step([], [open_slot, Slot("b", 1), open_slot], 0, None),
        Step([Slot("a", 2), Slot("b", 1)], [open_slot], 0, None),
        Step([Slot("c", 3)], [], 0, None),
    ]
    lines = [line(number, step, False).plain for number, step in enumerate(steps, start=1)]
    assert lines == ["   1   │ ·b·", "   2  ab │ ·", "   3  c │ "]


def test_a_draft_is_accepted_up_to_the_first_that_differs():
    tokenizer = make_tokenizer()
    a, b, c, d = (tokenizer(text)["input_ids"][0] for text in "abcd")
    tracer = Tracer(tokenizer, True)
    steps = [tracer.step(Forward(0.0, new, [a, b, c], 3 * [False])) for new in ([a], [a, b, d], [a, b, c, d], [d])]
    assert [(step.num_accepted, step.rejected) for step in steps] == [(0, None), (2, "c"), (3, None), (0, "a")]
    assert [line(1, step, True).plain.partition(" │ ")[2] for step in steps] == [
        "abc", "abc  [2 accepted, rejected: c]", "abc  [3 accepted]", "abc  [0 accepted, rejected: a]",
    ]  # fmt: skip


def test_a_character_of_several_tokens_comes_whole():
    tokenizer = make_tokenizer()
    ids = tokenizer("aé€b")["input_ids"]
    assert len(ids) > 4, "it has no tokens for these"
    tracer = Tracer(tokenizer, False)
    for i in ids:
        tracer.step(Forward(0.0, [i], [], []))
    texts = [slot.text for step in tracer.steps for slot in step.new]
    assert "".join(texts) == "aé€b" and "\N{REPLACEMENT CHARACTER}" not in "".join(texts)


@pytest.mark.parametrize("skips", [False, True])
def test_special_tokens_are_shown_in_the_window_unless_they_are_skipped(skips):
    tokenizer = make_tokenizer()
    a, end = tokenizer("a")["input_ids"][0], tokenizer.eos_token_id
    tracer = Tracer(tokenizer, True, skip_special_tokens=skips)
    shown = "" if skips else tokenizer.eos_token
    drafts = Slot("a", None), Slot(shown, None)
    assert tracer.step(Forward(0.0, [a], [a, end], [False, False])) == Step([Slot("a", 1)], [*drafts], 0, None)
    assert tracer.step(Forward(0.0, [a, a], [end], [True])) == Step(
        [Slot("a", 2), Slot("a", 2)], [Slot(shown, 2)], 1, shown
    )
    assert tracer.step(Forward(0.0, [end], [], [])) == Step([Slot("", 2)], [], 1, None)


def test_nothing_acts_on_the_terminal():
    assert visible("a\n\x1b[31m\t\u202eb[red]é") == "a⏎\\x1b[31m\\t\\u202eb[red]é"
    step = Step([Slot("[red]\x1b[31m", 1)], [Slot("[/red]", 1)], 0, None)
    assert line(1, step, False).plain == "   1  [red]\\x1b[31m │ [/red]"


# --- The page ---


def told(text):
    """The data in a page."""
    return json.loads(re.search(r'<script type="application/json" id="trace">(.*?)</script>', text, re.DOTALL)[1])


def test_the_terminal_and_the_page_show_what_generate_did(demo, tmp_path):
    file = tmp_path / "trace.html"
    file.write_text("what was there")
    result = run("trace", QUESTIONS[1], "--decoding", "verified", "--max-new-tokens", 60, "--html", file)
    assert result.exit_code == 0, result.stderr
    counts, written = result.stderr.splitlines(keepends=True)
    assert written == f"Written to {file}.\n"
    data = told(file.read_text(encoding="utf-8"))
    runs = data.pop("runs")
    assert data == {
        "prompt": QUESTIONS[1], "model": "wedlm-demo", "fused": True, "device": device_name("cpu"),
        "threads": torch.get_num_threads(), "rounds": NUM_ROUNDS,
    }  # fmt: skip
    assert [one["decoding"] for one in runs] == ["autoregressive", "verified"]
    for one in runs:
        tracer, output, new = traced(demo, QUESTIONS[1], decoding=one["decoding"])
        shown = [[Slot(**slot) for slot in step["new"]] for step in one["steps"]]
        assert shown == [step.new for step in tracer.steps] and len(shown) == output.forwards.item()
        assert all(special not in json.dumps(one) for special in demo[1].all_special_tokens)
        seconds = [step["seconds"] for step in one["steps"]]
        assert 0 < seconds[0] and seconds == sorted(set(seconds)), "each forward ends after the one before it"
    lines = result.stdout.splitlines()
    assert [int(text[:4]) for text in lines] == list(range(1, output.forwards.item() + 1))
    text = "".join(text[6:].partition(" │ ")[0] for text in lines)
    assert text == visible(demo[1].decode(new, skip_special_tokens=True))
    assert_counted(counts, output, output.sequences.shape[1] - len(new))
    assert list(tmp_path.iterdir()) == [file]


def test_the_run_of_the_median_time_is_shown_with_its_own_steps(demo, monkeypatch, tmp_path):
    """`answer` is replaced by one with the times below, and one new token per tenth of a second."""
    times = {"autoregressive": [9.0, 3.0, 1.0, 2.0], "verified": [9.0, 0.5, 0.7, 0.6]}  # the first ones warm up
    order = []

    def answer(model, tokenizer, ids, options, recorder):
        seconds = times[options.decoding][order.count(options.decoding)]
        order.append(options.decoding)
        drawn.append(torch.rand(1).item())
        for forward in range(1, int(10 * seconds) + 1):
            recorder.forwards.append(Forward(forward / 10, [50], [], []))
        return answered

    drawn, answered = [], module.answer(*demo, [5, 6], module.GenerationOptions(max_new_tokens=1), Recorder())
    monkeypatch.setattr(module, "answer", answer)
    file = tmp_path / "trace.html"
    result = run("trace", "x", "--decoding", "verified", "--temperature", 1, "--html", file)
    assert result.exit_code == 0, result.stderr
    assert order == ["verified", "autoregressive", *3 * ["autoregressive", "verified"]]
    runs = told(file.read_text(encoding="utf-8"))["runs"]
    assert [(len(one["steps"]), one["steps"][-1]["seconds"]) for one in runs] == [(20, 2.0), (6, 0.6)]
    assert len(set(drawn)) == 1, "all runs draw the same"


def test_no_text_becomes_markup():
    text = "</script><script>document.title = 'taken'</script>{{trace}}<!--"
    step = Step([Slot(text, 1)], [Slot(text, None)], 0, text)
    written = page(text, text, torch.device("cpu"), [Run("verified", [step], [0.5])])
    (one,) = told(written)["runs"]
    assert (told(written)["prompt"], told(written)["model"]) == (text, text)
    assert one["steps"][0]["new"] == [{"text": text, "filled_in": 1}] and one["steps"][0]["rejected"] == text
    plain = page("", "", torch.device("cpu"), [])
    assert all(written.count(mark) == plain.count(mark) for mark in ("<script", "</script>", "<!--"))
    assert "http://" not in plain and "https://" not in plain, "it needs nothing from elsewhere"
    assert "default-src 'none'" in plain
