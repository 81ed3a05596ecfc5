"""`wedlm generate`: the text of `model.generate()`, in a pipe and under Ctrl-C."""

import re
import subprocess
import sys

import pytest
import torch
from command_line import (
    CONTEXT,
    ENDLESS,
    PROMPT,
    SHORT,
    SPACED,
    TIMEOUT,
    assert_counted,
    generated,
    ids_of,
    run,
    save_checkpoint,
    start,
    user,
)
from draft_models import save_adapter
from peft import get_peft_model
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from wedlm import DraftLoraConfig
from wedlm.checkpoints.prompt_ids import say_that_text_is_continued
from wedlm.commands.shared_options import read_prompt


@pytest.mark.parametrize(
    "options, arguments",
    [
        ((), {}),
        (("--decoding=blockwise", "--window-size=3"), {"decoding": "blockwise", "window_size": 3}),
        (("--entropy-threshold=none",), {"entropy_threshold": None}),
        (("--decoding=verified", "--acceptance-ratio=0.1"), {"decoding": "verified", "acceptance_ratio": 0.1}),
        (("--temperature=2", "--seed=5", "--top-p=0.4"), {"do_sample": True, "temperature": 2.0, "top_p": 0.4}),
    ],
    ids=str,
)
def test_the_text_is_that_of_model_generate(checkpoint, loaded, options, arguments):
    inputs = ids_of(loaded[1], user(PROMPT))
    torch.manual_seed(5)
    text, output = generated(loaded, inputs, **arguments)
    result = run("generate", checkpoint, PROMPT, *SHORT, *options)
    assert (result.exit_code, result.stdout) == (0, text + "\n")
    assert_counted(result.stderr, output, inputs["input_ids"].shape[1])
    assert ("stopped at" in result.stderr) == (output.sequences[0, -1].item() != 0)  # the end token


def test_raw_and_standard_input(checkpoint, loaded):
    text, _ = generated(loaded, loaded[1](PROMPT, return_tensors="pt"))
    assert run("generate", checkpoint, PROMPT, "--raw", *SHORT).stdout == text + "\n"
    got = run("generate", checkpoint, "-", "--raw", *SHORT, input=f"{PROMPT}\n")
    assert got.stdout == text + "\n"
    assert text != generated(loaded, ids_of(loaded[1], user(PROMPT)))[0]


def test_without_a_template_the_text_is_continued_and_one_notice_says_so(tmp_path):
    folder = save_checkpoint(tmp_path / "base", chat_template=None)
    raw = run("generate", folder, PROMPT, "--raw", *SHORT)
    result = run("generate", folder, PROMPT, *SHORT)
    assert result.stdout == raw.stdout
    notice = f"{folder} has no chat template, so the prompt is continued as plain text.\n"
    assert result.stderr.startswith(notice) and notice not in raw.stderr
    for command, *prompts in (("compare", PROMPT, PROMPT), ("trace", PROMPT)):
        say_that_text_is_continued.cache_clear()  # as in a process of its own
        assert run(command, folder, *prompts, "--max-new-tokens", 4).stderr.count(notice) == 1
    result = run("chat", folder, input="hello\n")
    assert result.exit_code == 2 and "has no chat template; use `wedlm generate`" in result.stderr


def test_without_a_temperature_nothing_is_drawn(tmp_path, loaded):
    """Not even if the checkpoint asks for draws."""
    folder = save_checkpoint(tmp_path / "drawing", do_sample=True, temperature=5.0)
    text, _ = generated(loaded, ids_of(loaded[1], user(PROMPT)))
    assert run("generate", folder, PROMPT, *SHORT).stdout == text + "\n"


@pytest.mark.full
def test_a_closed_pipe_ends_the_command_in_silence(endless):
    process = start("generate", endless, PROMPT, *ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(TIMEOUT) == 1
    assert process.stderr.read() == b""


def test_ctrl_c_ends_generate_with_130(checkpoint, ctrl_c_at_first_text):
    result = run("generate", checkpoint, PROMPT, *SPACED)
    assert (result.exit_code, result.stderr) == (130, "")
    assert result.stdout == "".join(ctrl_c_at_first_text) + "\n"


def test_a_seed_without_draws_has_no_effect(checkpoint):
    result = run("generate", checkpoint, PROMPT, *SHORT, "--seed", 3)
    assert result.stderr.startswith("--seed 3 has no effect without draws; give a --temperature above 0.\n")


def test_a_draft_adapter_writes_the_text_of_its_base(checkpoint, tmp_path):
    adapter = save_adapter(tmp_path / "adapter", base=checkpoint)
    base = run("generate", checkpoint, PROMPT, "--max-new-tokens", 40, "--decoding", "autoregressive")
    result = run("generate", adapter, PROMPT, "--max-new-tokens", 40)
    assert (result.exit_code, result.stdout) == (0, base.stdout), result.output


def test_prompts_that_cannot_be_read(checkpoint, monkeypatch):
    for command, arguments in (("generate", ["-"]), ("chat", [])):
        result = run(command, checkpoint, *arguments, input=b"\xff")
        assert result.exit_code == 2 and result.stderr.startswith("Standard input is not UTF-8 (")
    result = run("generate", checkpoint, "the cat " * CONTEXT)
    assert result.exit_code == 2 and f"tokens, and the model reads {CONTEXT} with the answer; shorten" in result.stderr
    result = run("generate", checkpoint, "the cat \udcff")
    assert result.exit_code == 2 and "is not UTF-8; convert it, or read it from standard input." in result.stderr
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="The prompt is empty"):
        read_prompt("-")


@pytest.mark.full
def test_standard_error_has_the_counts_and_nothing_that_packages_say_to_programmers(checkpoint, tmp_path):
    """PEFT asks for an old name of transformers, and imports bitsandbytes, which misses a package on some CPUs."""
    config = LlamaConfig(
        vocab_size=400, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "stock")
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(tmp_path / "stock")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "stock")
    get_peft_model(model, DraftLoraConfig(r=2)).save_pretrained(tmp_path / "adapter")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = start("generate", tmp_path / "adapter", PROMPT, "--max-new-tokens", 3, "--raw", **pipes)
    _, said = command.communicate(timeout=TIMEOUT)
    assert command.returncode == 0 and re.fullmatch(r"\d tokens?, \d forward passes, .*\n", said.decode())
