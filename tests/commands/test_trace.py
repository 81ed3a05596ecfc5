"""`wedlm trace`: its lines and its page tell what each forward did."""

import json
import re

import pytest
import torch
from command_line import assert_counted, ids_of, run, user
from tiny_tokenizer import make_tokenizer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint
from wedlm.commands.trace import Slot, Step, Tracer, line, page, visible
from wedlm.generation.parameters import DECODINGS

QUESTIONS = [
    "Count by 4 from 12 to 60.",
    "Solve 3x + 7 = 22 for x.",
    "Tell me a story: a doctor called Jonas, a hat, and the river.",
]


@pytest.fixture(scope="module")
def demo():
    return load_checkpoint(DEMO_FOLDER)


def traced(demo, question, **arguments):
    model, tokenizer = demo
    inputs = ids_of(tokenizer, user(question))
    shown = []
    tracer = Tracer(tokenizer, arguments["decoding"] == "verified", lambda *step: shown.append(step))
    arguments = {"max_new_tokens": 60, "return_dict_in_generate": True, **arguments}
    output = model.generate(**inputs, **arguments, streamer=tracer)
    assert shown == list(enumerate(tracer.steps, start=1))
    return tracer, output, output.sequences[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.few(4)
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("decoding", DECODINGS)
def test_every_forward_is_told(demo, decoding, question):
    tracer, output, new = traced(demo, question, decoding=decoding)
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


@pytest.mark.parametrize("question", QUESTIONS)
def test_verdicts_are_those_that_the_output_counts(demo, question):
    tracer, output, _ = traced(demo, question, decoding="verified")
    assert sum(step.num_accepted for step in tracer.steps) == output.accepted_drafts.sum() > 5
    num_refuted = sum(step.refuted is not None for step in tracer.steps)
    assert num_refuted == (output.judged_drafts - output.accepted_drafts).sum()
    assert num_refuted > 0 or not question.startswith("Tell"), "where not every draft is right"


def test_a_forward_fills_what_it_says():
    """Three slots by hand, the second of which is filled first."""
    tokenizer = make_tokenizer()
    a, b, c, other = (tokenizer(text)["input_ids"][0] for text in ("a", "b", "c", "d"))
    shown = []
    tracer = Tracer(tokenizer, False, lambda *step: shown.append(step))
    tracer.put(torch.tensor([[a, a]]))  # the prompt
    tracer.put_window(torch.tensor([other, b, other]), torch.tensor([False, True, False]))
    tracer.put(torch.tensor([a, b]))
    tracer.put_window(torch.tensor([other]), torch.tensor([False]))
    tracer.put(torch.tensor([c]))
    tracer.end()
    open_slot = Slot("d", None)
    assert shown == [
        (1, Step([], [open_slot, Slot("b", 1), open_slot], 0, None)),
        (2, Step([Slot("a", 2), Slot("b", 1)], [open_slot], 0, None)),
        (3, Step([Slot("c", 3)], [], 0, None)),
    ]
    assert [line(*step, False).plain for step in shown] == ["   1   │ ·b·", "   2  ab │ ·", "   3  c │ "]


def test_a_draft_is_accepted_up_to_the_first_that_differs():
    tokenizer = make_tokenizer()
    a, b, c, d = (tokenizer(text)["input_ids"][0] for text in "abcd")
    shown = []
    tracer = Tracer(tokenizer, True, lambda *step: shown.append(step))
    drafts = torch.tensor([a, b, c]), torch.zeros(3).bool()
    tracer.put(torch.tensor([[a]]))
    for new in ([a], [a, b, d], [a, b, c, d], [d]):
        tracer.put(torch.tensor(new))
        tracer.put_window(*drafts)
    assert [(step.num_accepted, step.refuted) for _, step in shown] == [(0, None), (2, "c"), (3, None), (0, "a")]
    assert [line(*step, True).plain.partition(" │ ")[2] for step in shown] == [
        "abc", "abc  [2 accepted, refuted: c]", "abc  [3 accepted]", "abc  [0 accepted, refuted: a]",
    ]  # fmt: skip


def test_a_character_of_several_tokens_comes_whole():
    tokenizer = make_tokenizer()
    ids = tokenizer("aé€b")["input_ids"]
    assert len(ids) > 4, "it has no tokens for these"
    tracer = Tracer(tokenizer, False, lambda *step: None)
    tracer.put(torch.tensor([[0]]))
    for i in ids:
        tracer.put(torch.tensor([i]))
    tracer.end()
    texts = [slot.text for step in tracer.steps for slot in step.new]
    assert "".join(texts) == "aé€b" and "\N{REPLACEMENT CHARACTER}" not in "".join(texts)


def test_nothing_acts_on_the_terminal():
    assert visible("a\n\x1b[31m\t\u202eb[red]é") == "a⏎\\x1b[31m\\t\\u202eb[red]é"
    step = Step([Slot("[red]\x1b[31m", 1)], [Slot("[/red]", 1)], 0, None)
    assert line(1, step, False).plain == "   1  [red]\\x1b[31m │ [/red]"


# --- The command ---


@pytest.mark.few(2)
@pytest.mark.parametrize("decoding", DECODINGS)
def test_a_line_for_each_forward(demo, decoding):
    _, output, new = traced(demo, QUESTIONS[0], decoding=decoding)
    result = run("trace", QUESTIONS[0], "--max-new-tokens", 60, "--decoding", decoding)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [int(text[:4]) for text in lines] == list(range(1, output.forwards.item() + 1))
    text = "".join(text[6:].partition(" │ ")[0] for text in lines)
    assert text == visible(demo[1].decode(new, skip_special_tokens=True))
    assert_counted(result.stderr, output, output.sequences.shape[1] - len(new))


def recorded(text):
    """The trace in a page."""
    return json.loads(re.search(r'<script type="application/json" id="trace">(.*?)</script>', text, re.DOTALL)[1])


def test_the_page_holds_the_whole_trace(demo, tmp_path):
    file = tmp_path / "trace.html"
    file.write_text("what was there")
    result = run("trace", QUESTIONS[1], "--decoding", "verified", "--max-new-tokens", 60, "--html", file)
    assert result.exit_code == 0 and result.stderr.endswith(f"Written to {file}.\n")
    tracer, output, new = traced(demo, QUESTIONS[1], decoding="verified")
    trace = recorded(file.read_text(encoding="utf-8"))
    assert {name: trace[name] for name in ("prompt", "decoding", "tokens", "forwards")} == {
        "prompt": QUESTIONS[1], "decoding": "verified", "tokens": len(new), "forwards": output.forwards.item(),
    }  # fmt: skip
    assert [
        Step([Slot(**slot) for slot in step["new"]], [Slot(**slot) for slot in step["window"]],
             step["num_accepted"], step["refuted"])
        for step in trace["steps"]
    ] == tracer.steps  # fmt: skip
    assert list(tmp_path.iterdir()) == [file]


def test_no_text_becomes_markup():
    class Got:
        tokens, forwards = 1, 1

    text = "</script><script>document.title = 'taken'</script>{{trace}}<!--"
    step = Step([Slot(text, 1)], [Slot(text, None)], 0, text)
    written = page(text, "verified", [step], Got)
    assert recorded(written)["prompt"] == text and recorded(written)["steps"][0]["refuted"] == text
    plain = page("", "verified", [], Got)
    assert [written.count(mark) for mark in ("<script", "</script>", "<!--")] == [
        plain.count(mark) for mark in ("<script", "</script>", "<!--")
    ]
    assert "http://" not in plain and "https://" not in plain, "it needs nothing from elsewhere"


@pytest.mark.parametrize("where", ["no/such/folder/trace.html", "."])
def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path, where, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("trace", "x", "--html", where, "--model", "nothing/here")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"--html {where} cannot be written; give the name of a file in a folder that you may write to.\n"
    )


def test_an_empty_prompt_is_refused():
    result = run("trace", " ")
    assert (result.exit_code, result.stderr) == (2, "The prompt is empty; give it some text.\n")
