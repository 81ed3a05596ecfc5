"""`wedlm chat`: turns that share a cache, its commands, and Ctrl-C."""

import os
import pty
import re
import select
import signal

import pytest
from command_line import CONTEXT, ENDLESS, SHORT, SPACED, TIMEOUT, assert_counted, generated, ids_of, run, start, user
from tiny_tokenizer import QWEN3, QWEN25, THINKING, make_tokenizer

from wedlm.commands.answering import AnswerStreamer
from wedlm.commands.chat import Chat
from wedlm.commands.shared_options import GenerationOptions
from wedlm.generation.parameters import DECODINGS

QUESTIONS = ["the dog", "the log and the mat", "a cat", "on the dog"]


def fresh_answers(loaded, questions, **arguments):
    """The answer to each turn without a cache."""
    messages, texts = [], []
    for question in questions:
        messages += user(question)
        text, _ = generated(loaded, ids_of(loaded[1], messages), **arguments)
        messages.append({"role": "assistant", "content": text})
        texts.append(text)
    return texts


@pytest.mark.parametrize(
    ("template", "decoding"), [(QWEN25, "streaming"), (QWEN3, "verified"), (THINKING, "autoregressive")]
)
def test_turns_with_the_cache_answer_as_without(loaded, capsys, template, decoding):
    """It holds for templates that write earlier turns anew, and for texts that are encoded into other tokens."""
    model, tokenizer = loaded[0], make_tokenizer(template)
    options = GenerationOptions(max_new_tokens=16, entropy_threshold="3", decoding=decoding)
    conversation = Chat(model, tokenizer, options)
    for question in QUESTIONS:
        conversation.say(question)
    texts = fresh_answers((model, tokenizer), QUESTIONS, decoding=decoding, max_new_tokens=16)
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in texts)
    assert conversation.messages[1::2] == [{"role": "assistant", "content": text} for text in texts]
    assert conversation.reused > 0


def test_a_turn_reads_what_the_cache_does_not_have(loaded, capsys):
    conversation = Chat(*loaded, GenerationOptions(max_new_tokens=9, entropy_threshold="3"))
    conversation.say(QUESTIONS[0])
    ids = ids_of(loaded[1], [*conversation.messages, *user(QUESTIONS[1])])["input_ids"][0].tolist()
    shared = len(os.path.commonprefix([conversation.cached_ids, ids]))
    lengths = []
    handle = loaded[0].model.register_forward_hook(
        lambda module, args, kwargs, output: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    conversation.say(QUESTIONS[1])
    handle.remove()
    assert conversation.reused == shared > 10
    assert lengths[0] == len(ids) - shared + 8  # the window of 8


def test_commands_of_a_chat(checkpoint, loaded):
    lines = "/stats,/mode,the dog,/stats,,/mode fast,/mode autoregressive,/mode,the dog,/help,/reset,the dog,/nothing"
    lines += ",/mode a b,/exit,the dog"
    result = run("chat", checkpoint, *SHORT, input=lines.replace(",", "\n"))
    assert result.exit_code == 0
    first, output = generated(loaded, ids_of(loaded[1], user("the dog")))
    messages = [*user("the dog"), {"role": "assistant", "content": first}, *user("the dog")]
    second, _ = generated(loaded, ids_of(loaded[1], messages), decoding="autoregressive")
    again, _ = generated(loaded, ids_of(loaded[1], user("the dog")), decoding="autoregressive")
    out = result.stdout
    stats = re.search(r"\n1 answered: (.* s); 0 tokens of prompts were in the cache\n", out)
    assert_counted(stats[1] + "\n", output, ids_of(loaded[1], user("the dog"))["input_ids"].shape[1])
    help_text = re.search(r"/mode  .*\n/mode DECODING .*\n/stats .*\n/reset .*\n/exit .*\n", out)
    assert out == (
        f"Nothing has been answered yet.\nstreaming\n{first}{stats[0]}"
        f"fast is not a decoding; choose one of {', '.join(DECODINGS)}.\nautoregressive\nautoregressive\n{second}\n"
        f"{help_text[0]}The conversation is forgotten.\n{again}\n/nothing is not a command; /help lists them.\n"
        f"a b is not a decoding; choose one of {', '.join(DECODINGS)}.\n"
    )
    assert len({first, second, again}) == 3


def test_an_answer_that_is_stopped_has_said_that_much(loaded, capsys, monkeypatch):
    conversation = Chat(*loaded, GenerationOptions(max_new_tokens=40, entropy_threshold="3", window_size=16))
    conversation.say(QUESTIONS[0])
    before = conversation.messages

    def interrupted(self, text, stream_end=False):
        if self.text:
            raise KeyboardInterrupt
        self.text += text

    with monkeypatch.context() as patch:
        patch.setattr(AnswerStreamer, "on_finalized_text", interrupted)
        with pytest.raises(KeyboardInterrupt):
            conversation.say("a cat")
    partial = conversation.messages[-1]["content"]
    assert conversation.messages == [*before, *user("a cat"), {"role": "assistant", "content": partial}] and partial
    assert conversation.turns == 1 and conversation.cache is None  # Ctrl-C may have come between keys and values
    capsys.readouterr()
    messages = [*conversation.messages, *user("the log")]
    conversation.say("the log")
    assert capsys.readouterr().out == generated(loaded, ids_of(loaded[1], messages), window_size=16)[0] + "\n"


def test_a_turn_that_fails_has_not_been(checkpoint, loaded, capsys):
    conversation = Chat(*loaded, GenerationOptions(max_new_tokens=40, entropy_threshold="3"))
    conversation.say(QUESTIONS[0])
    with pytest.raises(ValueError, match="shorten it"):
        conversation.say("the cat " * CONTEXT)
    conversation.say(QUESTIONS[1])
    texts = fresh_answers(loaded, QUESTIONS[:2])
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in texts) and conversation.reused > 0
    result = run("chat", checkpoint, *SHORT, input="the cat " * CONTEXT + "\nthe dog\n")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1


@pytest.mark.full
def test_ctrl_c_stops_an_answer_and_ctrl_d_leaves_a_chat(endless):
    """A chat on a terminal, in a process of its own that gets real signals."""
    ours, theirs = pty.openpty()
    process = start("chat", endless, *ENDLESS, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""

    def wait_for(text):
        nonlocal shown
        while text not in shown:
            assert select.select([ours], [], [], TIMEOUT)[0], shown
            shown += os.read(ours, 4096)
        shown = shown[shown.index(text) + len(text) :]

    wait_for(b"Ctrl-D leaves.\r\n")
    wait_for(b"> ")
    os.write(ours, b"the dog\n")
    wait_for(b"the dog\r\n")
    shown += os.read(ours, 4096)  # the answer has begun
    process.send_signal(signal.SIGINT)
    wait_for(b"\r\n> ")
    os.write(ours, b"/stats\n")
    wait_for(b"Nothing has been answered yet.")
    wait_for(b"> ")
    process.send_signal(signal.SIGINT)  # at the prompt it only gives up the line
    while not select.select([ours], [], [], 1)[0]:  # readline misses a signal that comes before it waits
        process.send_signal(signal.SIGINT)
    wait_for(b"> ")
    os.write(ours, b"\x04")
    assert process.wait(TIMEOUT) == 0
    os.close(ours)


def test_ctrl_c_ends_a_chat_in_a_pipe_with_130(checkpoint, ctrl_c_at_first_text):
    result = run("chat", checkpoint, *SPACED, input="the dog\na cat\n")
    assert (result.exit_code, result.stderr) == (130, "")
    assert result.stdout == "".join(ctrl_c_at_first_text) + "\n"
