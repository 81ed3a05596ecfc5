"""The commands that generate text, and `wedlm info`, over a tiny random checkpoint."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys

import pytest
import torch
from command_line import CONTEXT, PROMPT, assert_counted, ids_of, run, save_checkpoint, user
from helpers import CHECKPOINTS
from rich.console import Console
from tiny_tokenizer import QWEN3, QWEN25, THINKING, make_tokenizer
from transformers import DynamicCache, PreTrainedModel, logging

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.facts import read_facts
from wedlm.checkpoints.load import load_checkpoint
from wedlm.commands.chat import Chat, Recorder
from wedlm.commands.compare import difference, table
from wedlm.commands.generate import Answer, read_prompt
from wedlm.commands.settings import Settings
from wedlm.generation.support import DECODINGS, DEFAULTS

MASK_TEXT = make_tokenizer(QWEN25).decode([3])
SHORT = ("--max-new-tokens", "40", "--entropy-threshold", "3")  # several tokens per forward, though it is random


@pytest.fixture(autouse=True)
def same_verbosity():
    """The commands silence transformers, for their process."""
    before = logging.get_verbosity()
    yield
    logging.set_verbosity(before)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("checkpoint") / "model")


@pytest.fixture(scope="module")
def loaded(checkpoint):
    return load_checkpoint(checkpoint)


def generated(loaded, inputs, **arguments):
    """The text and the output of model.generate()."""
    model, tokenizer = loaded
    arguments = {"max_new_tokens": 40, "entropy_threshold": 3.0, **arguments}
    output = model.generate(**inputs, **arguments, return_dict_in_generate=True)
    new = output.sequences[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(new, skip_special_tokens=True), output


# --- generate ---


@pytest.mark.parametrize(
    "options, arguments",
    [
        ((), {}),
        *(((f"--decoding={name}",), {"decoding": name}) for name in DECODINGS),
        (("--window-size=3",), {"window_size": 3}),
        (("--entropy-threshold=none",), {"entropy_threshold": None}),
        (("--distance-penalty=0.9",), {"distance_penalty": 0.9}),
        (("--max-new-tokens=1",), {"max_new_tokens": 1}),
        (("--temperature=2", "--seed=5"), {"do_sample": True, "temperature": 2.0}),
        (("--temperature=2", "--seed=5", "--top-p=0.4"), {"do_sample": True, "temperature": 2.0, "top_p": 0.4}),
    ],
    ids=str,
)
def test_the_text_is_that_of_model_generate(checkpoint, loaded, options, arguments):
    inputs = ids_of(loaded[1], user(PROMPT))
    torch.manual_seed(5)
    text, output = generated(loaded, inputs, **arguments)
    result = run("generate", PROMPT, "--model", checkpoint, *SHORT, *options)
    assert (result.exit_code, result.stdout) == (0, text + "\n")
    assert_counted(result.stderr, output, inputs["input_ids"].shape[1])
    assert ("stopped at" in result.stderr) == (output.sequences[0, -1].item() != 0)  # the end token


def test_each_of_these_settings_writes_another_text(loaded):
    """Or the test above would not see one that is dropped."""
    inputs = ids_of(loaded[1], user(PROMPT))
    torch.manual_seed(5)
    counts = {}
    for name, arguments in {
        "plain": {}, "window": {"window_size": 3}, "one": {"entropy_threshold": None},
        "penalty": {"distance_penalty": 0.9}, "block": {"decoding": "blockwise"},
        "tokens": {"decoding": "autoregressive"}, "drawn": {"do_sample": True, "temperature": 2.0},
        "share": {"do_sample": True, "temperature": 2.0, "top_p": 0.4},
    }.items():  # fmt: skip
        text, output = generated(loaded, inputs, **arguments)
        counts[name] = (text, output.forwards.item())
    assert len(set(counts.values())) == len(counts)
    assert counts["plain"][1] < 40, "no forward filled several tokens"


def test_raw_and_standard_input(checkpoint, loaded):
    text, _ = generated(loaded, loaded[1](PROMPT, return_tensors="pt"))
    assert run("generate", PROMPT, "--raw", "--model", checkpoint, *SHORT).stdout == text + "\n"
    got = run("generate", "-", "--raw", "--model", checkpoint, *SHORT, input=f"{PROMPT}\n")
    assert got.stdout == text + "\n"
    assert text != generated(loaded, ids_of(loaded[1], user(PROMPT)))[0]


def test_without_a_template_the_text_is_continued(tmp_path):
    folder = save_checkpoint(tmp_path / "base", chat_template=None)
    assert (
        run("generate", PROMPT, "--model", folder).stdout == run("generate", PROMPT, "--raw", "--model", folder).stdout
    )
    result = run("chat", "--model", folder, input="hello\n")
    assert result.exit_code == 2 and "has no chat template; use `wedlm generate`" in result.stderr


def test_without_a_temperature_nothing_is_drawn(tmp_path, loaded):
    """Also if the checkpoint would draw."""
    folder = save_checkpoint(tmp_path / "drawing", do_sample=True, temperature=5.0)
    text, _ = generated(loaded, ids_of(loaded[1], user(PROMPT)))
    assert run("generate", PROMPT, "--model", folder, *SHORT).stdout == text + "\n"


# --- Bad input ---


@pytest.mark.parametrize("command", ["generate", "chat", "compare"])
@pytest.mark.parametrize(
    "options, sentence",
    [
        (("--model", "nothing"), "nothing does not exist; "),
        (("--model", "somebody/nothing"), "connect to the network, or give a folder."),
        (("--model", CHECKPOINTS / "q3"), "has no tokenizer"),
        (("--decoding", "fast"), "decoding='fast' is unknown; choose one of 'streaming', "),
        (("--window-size", "0"), "window_size=0 is not a number of slots; "),
        (("--entropy-threshold", "-1"), "entropy_threshold=-1.0 is not an entropy; "),
        (("--entropy-threshold", "low"), "--entropy-threshold low is neither a number of nats nor none."),
        (("--distance-penalty", "nan"), "distance_penalty=nan is not a penalty; "),
        (("--max-new-tokens", "0"), "`max_new_tokens` must be greater than 0"),
        (("--max-new-tokens", 10**30), f"{10**30} is more than max_position_embeddings={CONTEXT} of this model; "),
        (("--device", "meta"), "The device 'meta' holds no weights; "),
        (("--model", ""), "The name of the checkpoint is empty; "),
        (("--model", __file__), "test_commands.py is a file; give the folder"),
        (("--temperature", "-1"), "--temperature -1.0 is no temperature; "),
        (("--temperature", "1", "--top-p", "1.5"), "--top-p 1.5 is no share; "),
        (("--top-p", "0.5"), "--top-p 0.5 needs draws, "),
        (("--seed", "-1"), "--seed -1 is no seed; "),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_bad_settings_are_one_sentence_and_exit_code_2(checkpoint, command, options, sentence):
    result = run(command, *([] if command == "chat" else [PROMPT]), "--model", checkpoint, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr and result.stderr.count("\n") == 1 and result.stderr.endswith(".\n")


def test_standard_input_that_is_closed_or_not_text(checkpoint, monkeypatch):
    result = run("generate", "-", "--model", checkpoint, input=b"\xff")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Standard input is not UTF-8 (") and result.stderr.endswith(
        "such as with iconv.\n"
    )
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="The prompt is empty"):
        read_prompt("-")


def test_too_little_memory_is_one_sentence(monkeypatch):
    def load_checkpoint(*arguments):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr("wedlm.commands.generate.load_checkpoint", load_checkpoint)
    result = run("generate", "x")
    assert result.exit_code == 2 and result.stderr.startswith("There is not enough memory (DefaultCPUAllocator: ")
    assert result.stderr.endswith("; ask for fewer tokens, or choose another --dtype or --device.\n")


@pytest.mark.slow
def test_a_terminal_that_knows_fewer_letters(checkpoint):
    result = subprocess.run(
        [sys.executable, "-m", "wedlm", "trace", PROMPT, "--model", checkpoint, *SHORT],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True,
    )  # fmt: skip
    assert result.returncode == 0 and b" ? " in result.stdout


@pytest.mark.slow
def test_a_pipe_that_nobody_reads_is_no_error():
    result = subprocess.run(
        f"{sys.executable} -m wedlm info | true", shell=True, capture_output=True, text=True, executable="/bin/bash"
    )
    assert result.stderr == ""


@pytest.mark.parametrize("command", ["generate", "compare"])
def test_prompts_that_are_empty_or_too_long(checkpoint, command):
    for prompt, sentence in (
        ("", "The prompt is empty; give it some text.\n"),
        (" \n", "The prompt is empty; give it some text.\n"),
        (
            "the cat " * CONTEXT,
            f"tokens, and the model reads {CONTEXT} with the answer; shorten it (a chat forgets what was said by "
            "/reset).\n",
        ),
        ("the cat \udcff", "The prompt 'the cat \\udcff' is not UTF-8; convert it, or read it from standard input.\n"),
        (
            MASK_TEXT,
            f"The prompt holds {MASK_TEXT}, the MASK token, which stands for what is to be written; take it out.\n",
        ),
    ):
        result = run(command, prompt, "--model", checkpoint)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.endswith(sentence) and result.stderr.count("\n") == 1


def test_debug_shows_where_an_error_comes_from():
    for arguments in (["generate", PROMPT, "--model", "nothing"], ["info", "nothing"]):
        assert isinstance(run(*arguments).exception, SystemExit)
        assert isinstance(run(*arguments, "--debug").exception, ValueError)


# --- chat ---

QUESTIONS = ["the dog", "the log and the mat", "a cat", "on the dog"]


def fresh_answers(loaded, questions, **arguments):
    """Every turn from nothing."""
    messages, texts = [], []
    for question in questions:
        messages += user(question)
        text, _ = generated(loaded, ids_of(loaded[1], messages), **arguments)
        messages.append({"role": "assistant", "content": text})
        texts.append(text)
    return texts


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("template", [QWEN25, QWEN3, THINKING], ids=["qwen25", "qwen3", "thinking"])
def test_turns_with_the_cache_answer_as_without(loaded, capsys, decoding, template):
    """Also if a template writes earlier turns anew, or a text is read back as other tokens."""
    model, tokenizer = loaded[0], make_tokenizer(template)
    settings = Settings(max_new_tokens=40, entropy_threshold="3", decoding=decoding)
    conversation = Chat(model, tokenizer, settings)
    for question in QUESTIONS:
        conversation.say(question)
    texts = fresh_answers((model, tokenizer), QUESTIONS, decoding=decoding)
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in texts)
    assert conversation.messages[1::2] == [{"role": "assistant", "content": text} for text in texts]
    assert conversation.reused > 0


def test_a_turn_reads_what_the_cache_does_not_have(loaded, capsys):
    conversation = Chat(*loaded, Settings(max_new_tokens=9, entropy_threshold="3"))
    conversation.say(QUESTIONS[0])
    ids = ids_of(loaded[1], [*conversation.messages, *user(QUESTIONS[1])])["input_ids"][0].tolist()
    shared = 0
    while conversation.cached_ids[shared : shared + 1] == [ids[shared]]:
        shared += 1
    rows = []
    handle = loaded[0].model.register_forward_hook(
        lambda module, args, kwargs, output: rows.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    conversation.say(QUESTIONS[1])
    handle.remove()
    assert conversation.reused == shared > 10
    assert rows[0] == len(ids) - shared + 8  # and the window


def test_a_prompt_that_is_cached_to_its_end(loaded):
    """One token of it is left to read, or there would be nothing to decode from."""
    conversation = Chat(*loaded, Settings())
    conversation.cache = DynamicCache()
    ids = [5, 6, 7, 8]
    loaded[0](torch.tensor([ids]), past_key_values=conversation.cache)
    conversation.cached_ids = ids
    cache, shared = conversation.reusable(ids)
    assert shared == cache.get_seq_length() == 3


def test_commands_of_a_chat(checkpoint, loaded):
    lines = [
        "/stats",
        "/mode",
        "the dog",
        "/stats",
        "",
        "/mode fast",
        "/mode autoregressive",
        "/mode",
        "the dog",
        "/help",
    ]
    lines += ["/reset", "the dog", "/nothing", "/mode a b", "/exit", "the dog"]
    result = run("chat", "--model", checkpoint, *SHORT, input="\n".join(lines))
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
        f"fast is no decoding; choose one of {', '.join(DECODINGS)}.\nautoregressive\nautoregressive\n{second}\n"
        f"{help_text[0]}The conversation is forgotten.\n{again}\n/nothing is no command; /help lists them.\n"
        f"a b is no decoding; choose one of {', '.join(DECODINGS)}.\n"
    )
    assert len({first, second, again}) == 3


def test_an_answer_that_is_stopped_has_said_that_much(loaded, capsys, monkeypatch):
    conversation = Chat(*loaded, Settings(max_new_tokens=40, entropy_threshold="3", window_size=16))
    conversation.say(QUESTIONS[0])
    before = conversation.messages

    def interrupted(self, text, stream_end=False):
        if self.text:
            raise KeyboardInterrupt
        self.text += text

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_finalized_text", interrupted)
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
    conversation = Chat(*loaded, Settings(max_new_tokens=40, entropy_threshold="3"))
    conversation.say(QUESTIONS[0])
    with pytest.raises(ValueError, match="shorten it"):
        conversation.say("the cat " * CONTEXT)
    conversation.say(QUESTIONS[1])
    texts = fresh_answers(loaded, QUESTIONS[:2])
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in texts) and conversation.reused > 0
    result = run("chat", "--model", checkpoint, *SHORT, input="the cat " * CONTEXT + "\nthe dog\n")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1


# --- compare ---


def table_of(text):
    """The cells of each row, by the decoding it is about."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in rows}


def test_compare_counts_and_finds_the_first_difference(checkpoint, loaded):
    result = run("compare", PROMPT, "the dog", "--model", checkpoint, *SHORT)
    assert (result.exit_code, result.stderr) == (0, "")
    for prompt, shown in zip((PROMPT, "the dog"), re.split("^> ", result.stdout, flags=re.M)[1:], strict=True):
        assert shown.startswith(prompt + "\n")
        inputs = ids_of(loaded[1], user(prompt))
        rows = table_of(shown)
        assert list(rows) == [
            "autoregressive",
            *(name for name in DECODINGS if name not in ("autoregressive", "blockwise")),
        ]
        texts = {}
        for decoding, (seconds, forwards, tokens, per_forward, per_second, _) in rows.items():
            texts[decoding], output = generated(loaded, inputs, decoding=decoding)
            length = output.sequences.shape[1] - inputs["input_ids"].shape[1]
            assert (int(forwards), int(tokens)) == (output.forwards.item(), length)
            assert per_forward == f"{length / int(forwards):.2f}"
            assert float(per_second) * float(seconds) == pytest.approx(length, rel=0.2)
            assert texts[decoding] in shown
        for decoding, row in rows.items():
            is_same = texts[decoding] == texts["autoregressive"]
            assert row[-1] == ("" if decoding == "autoregressive" else "same" if is_same else "differs")
            parted = "" if is_same else difference(texts["autoregressive"], texts[decoding])
            assert is_same or f"\n{decoding} differs {parted}\n" in shown
        assert rows["streaming"][-1] == "differs"


def test_the_table_fits_a_terminal(loaded):
    ids = [5, 6]
    answers = {name: Answer("a text", ids, 250, False, 250, 12.345, None) for name in DECODINGS}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(answers))
    shown = console.export_text()
    assert "…" not in shown and len(table_of(shown)) == len(DECODINGS)
    assert table_of(shown)["autoregressive"][:5] == ["12.345", "250", "250", "1.00", "20.3"]


def test_compare_with_what_was_asked_for(checkpoint):
    for decoding in DECODINGS:
        result = run("compare", PROMPT, "--model", checkpoint, *SHORT, "--decoding", decoding)
        assert list(table_of(result.stdout)) == list(dict.fromkeys(["autoregressive", decoding]))


def test_compare_says_same(tmp_path, loaded):
    """Every token looks alike to this model, so all decodings write one and the same."""
    folder = save_checkpoint(tmp_path / "alike")
    model, tokenizer = load_checkpoint(folder)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(model.model.embed_tokens.weight[5].expand(len(tokenizer), -1))
    model.save_pretrained(folder)
    result = run("compare", PROMPT, "--model", folder, "--max-new-tokens", 20)
    rows = table_of(result.stdout)
    assert [row[-1] for row in rows.values()] == ["", *["same"] * (len(rows) - 1)]
    assert f"{', '.join(rows)}:\n" in result.stdout  # and the text once
    text, _ = generated((model, tokenizer), ids_of(tokenizer, user(PROMPT)), max_new_tokens=20)
    assert text and result.stdout.count(text) == 1


@pytest.mark.parametrize(
    "expected, got, sentence",
    [
        ("3, 6, 9", "3, 7, 9", "from character 4 on: '7,' for '6,'"),
        ("a cat sat", "a cap sat", "from character 5 on: 'cap' for 'cat'"),
        ("a cat", "a cats", "from character 6 on: 'cats' for 'cat'"),
        ("a cat", "a cat sat", "from character 6 on: 'cat sat' for 'cat'"),
        ("猫" * 99, "猫" * 50, f"from character 51 on: {'猫' * 20!r} for {'猫' * 40!r}"),
        ("a ", "a b", "from character 3 on: 'b' for the end"),
        ("a\n b", "a\n\n", r"from character 3 on: '\n' for ' b'"),
    ],
)
def test_where_two_texts_part(expected, got, sentence):
    assert difference(expected, got) == sentence


def test_compare_warms_up_times_alone_and_draws_the_same(checkpoint, monkeypatch):
    calls = []
    generate = WeDLMForCausalLM.generate

    def watched(self, *args, **kwargs):
        output = generate(self, *args, **kwargs)
        calls.append((kwargs["decoding"], kwargs["streamer"] is not None, output.sequences.tolist()))
        return output

    monkeypatch.setattr(WeDLMForCausalLM, "generate", watched)
    assert run("compare", PROMPT, "--model", checkpoint, *SHORT, "--temperature", 1).exit_code == 0
    seen, timed = calls[::2], calls[1::2]
    assert all(is_watched for _, is_watched, _ in seen) and not any(is_watched for _, is_watched, _ in timed)
    assert [(name, ids) for name, _, ids in seen] == [(name, ids) for name, _, ids in timed]
    assert len(timed) == len({name for name, _, _ in timed}) > 1


def test_on_a_terminal_columns_fill(checkpoint, loaded):
    result = run("compare", PROMPT, "--model", checkpoint, *SHORT, env={"FORCE_COLOR": "1", "COLUMNS": "400"})
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in result.stdout.splitlines()]
    texts = [
        generated(loaded, ids_of(loaded[1], user(PROMPT)), decoding=name)[0]
        for name in ("autoregressive", "streaming")
    ]
    texts = [text.strip() for text in texts]  # a column pads them
    assert all(0 < len(text) < 90 for text in texts)
    columns = [[cell.strip() for cell in line.split("│")] for line in lines if line.count("│") >= 4]
    final = max(i for i, cells in enumerate(columns) if {*texts} <= {*cells})
    growing = [cells for cells in columns[:final] if texts[0] in cells and texts[1] not in cells]
    assert any(texts[1].startswith(cells[cells.index(texts[0]) + 2]) for cells in growing)
    assert [line.split()[1] for line in lines if line.startswith("│ ")][-len(DECODINGS) + 1 :][0] == "autoregressive"


# --- info ---

DYNAMIC_ROPE = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


def shown_rows(result):
    assert (result.exit_code, result.stderr) == (0, "")
    return dict(re.split(r"  +", line, maxsplit=1) for line in result.stdout.splitlines())


def test_the_numbers_of_info_are_those_of_the_loaded_model(checkpoint, loaded, monkeypatch):
    model, _ = loaded

    def loads(*arguments, **options):
        raise AssertionError("info loads the weights")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", loads)
    facts = read_facts(checkpoint)
    assert facts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert facts.weight_bytes(torch.bfloat16) == 2 * facts.parameters
    assert facts.bytes_on_disk() == {"float64": sum(parameter.nbytes for parameter in model.parameters())}
    cache = DynamicCache()
    model(torch.full((1, 70), 9), past_key_values=cache)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert facts.cache_bytes(torch.float64, 70) == held
    assert {name: facts.generation[name] for name in DEFAULTS} == DEFAULTS
    rows = shown_rows(run("info", checkpoint))
    assert rows["kind"] == "WeDLM in the style of Qwen3"
    assert rows["parameters"] == f"{model.num_parameters():,}"
    assert rows["shape"] == "2 layers, 32 wide, 2 heads and 1 key-value heads of 16"
    assert rows["context"] == "600 tokens" and rows["MASK token"] == "3 <|mask|>"
    assert rows["on disk"] == f"{facts.parameters * 8 / 1e6:.2f} MB float64, in 1 file"
    assert rows["memory of the cache, 1,000 tokens"] == "0.26 MB float32, 0.13 MB bfloat16"
    assert rows["generation"] == ", ".join(f"{name}={value}" for name, value in DEFAULTS.items())
    assert rows["decodings"] == ", ".join(DECODINGS)
    assert rows["its own code"] == "travels with it"


@pytest.mark.parametrize(
    "change, decodings, note",
    [
        ({}, DECODINGS, None),
        ({"mask_token_id": None}, ["autoregressive"], None),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            ["autoregressive"],
            "rope_type",
        ),
    ],
    ids=["all", "no mask", "rope"],
)
def test_what_a_checkpoint_can_do(tmp_path, change, decodings, note):
    save_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    rows = shown_rows(run("info", tmp_path))
    assert rows["decodings"] == ", ".join(decodings)
    assert note is None or note in rows["note"]
    model, tokenizer = load_checkpoint(tmp_path)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    for decoding in DECODINGS:
        if decoding in decodings:
            model.generate(**inputs, decoding=decoding, max_new_tokens=2)
        else:
            with pytest.raises(ValueError):
                model.generate(**inputs, decoding=decoding, max_new_tokens=2)


def test_generation_settings_of_the_checkpoint_are_shown(tmp_path):
    save_checkpoint(tmp_path, repetition_penalty=1.2, window_size=5)
    rows = shown_rows(run("info", tmp_path))
    assert "window_size=5" in rows["generation"] and "repetition_penalty=1.2" in rows["generation"]
    assert "it reads the text" in rows["note"]


def test_a_checkpoint_without_weights(tmp_path):
    save_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert shown_rows(run("info", tmp_path))["on disk"] == "no weights here"


def test_a_checkpoint_that_is_not_wedlm(tmp_path):
    for family in ("qwen2", "qwen3"):
        source = CHECKPOINTS / {"qwen2": "q25", "qwen3": "q3"}[family]
        folder = tmp_path / family
        assert run("convert", "--to-autoregressive", source, folder).exit_code == 0
        rows = shown_rows(run("info", folder))
        assert rows["kind"] == f"{family.capitalize()}, not WeDLM"
        assert rows["what to do"].startswith(f"`wedlm convert {folder} OUT` makes a WeDLM checkpoint of it")
        assert "decodings" not in rows and rows["MASK token"] == "none"
        assert (
            rows["parameters"]
            == f"{load_checkpoint.__globals__['AutoModelForCausalLM'].from_pretrained(folder).num_parameters():,}"
        )
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    result = run("info", tmp_path)
    assert result.exit_code == 2 and "is of model_type 'llama'" in result.stderr and result.stderr.count("\n") == 1


def test_what_info_refuses(tmp_path, checkpoint):
    for name, sentence in (
        ("nothing", "does not exist"),
        ("somebody/nothing", "cannot be reached"),
        (tmp_path, "has no config.json"),
    ):
        result = run("info", name)
        assert (result.exit_code, result.stdout) == (2, "") and sentence in result.stderr
        assert result.stderr.count("\n") == 1


# --- In a shell ---


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """Nothing ends its text but the limit, and there are spaces in it, at which streamers write."""
    folder = save_checkpoint(tmp_path_factory.mktemp("endless") / "model")
    for name, changes in {"generation_config.json": {}, "config.json": {"max_position_embeddings": 10**6}}.items():
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, "eos_token_id": None, **changes}))
    return folder


def start(*arguments, **pipes):
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    command = [sys.executable, "-m", "wedlm", *map(str, arguments)]
    return subprocess.Popen(
        command,
        env={**environment, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what a shell starts with & ignores it
        **pipes,
    )


TIMEOUT = 300  # seconds, on a busy machine
ENDLESS = ("--max-new-tokens", 10**5, "--decoding", "autoregressive", "--temperature", 2, "--seed", 0)


def test_a_closed_pipe_ends_the_command_in_silence(endless):
    process = start("generate", PROMPT, "--model", endless, *ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(TIMEOUT) == 1
    assert process.stderr.read() == b""


def test_ctrl_c_ends_generate_with_130(endless):
    process = start("generate", PROMPT, "--model", endless, *ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (130, b"")


def test_ctrl_c_stops_an_answer_and_ctrl_d_leaves_a_chat(endless):
    """On a terminal; in a pipe Ctrl-C ends the chat."""
    ours, theirs = pty.openpty()
    process = start("chat", "--model", endless, *ENDLESS, stdin=theirs, stdout=theirs, stderr=theirs)
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
    process.send_signal(signal.SIGINT)  # at the prompt it leaves the line only
    while not select.select([ours], [], [], 1)[0]:  # readline misses one that comes before it waits
        process.send_signal(signal.SIGINT)
    wait_for(b"> ")
    os.write(ours, b"\x04")
    assert process.wait(TIMEOUT) == 0
    os.close(ours)
    process = start("chat", "--model", endless, *ENDLESS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"the dog\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
