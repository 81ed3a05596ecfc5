"""Runs the commands in process, on a tiny random checkpoint."""

import os
import re
import signal
import subprocess
import sys

import torch
from tiny_tokenizer import QWEN25, make_tokenizer
from typer.testing import CliRunner

from wedlm import WeDLMConfig, WeDLMForCausalLM
from wedlm.commands import cli

PROMPT = "the cat sat on the mat"
CONTEXT = 600


def save_checkpoint(folder, seed=0, chat_template=QWEN25, **generation):
    """Saves a model with random weights, in float64 so that no rounding decides, that writes printable text only."""
    tokenizer = make_tokenizer(chat_template)
    torch.manual_seed(seed)
    config = WeDLMConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=CONTEXT, eos_token_id=0, pad_token_id=0,
        mask_token_id=3, tie_word_embeddings=False, initializer_range=0.5,
    )  # fmt: skip
    model = WeDLMForCausalLM(config).double()
    texts = [tokenizer.decode([i]) for i in range(len(tokenizer))]
    unreadable = [i for i, text in enumerate(texts) if i > 0 and not (text.isascii() and text.isprintable())]
    model.generation_config.update(suppress_tokens=unreadable, **generation)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(*arguments, **options):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], **options)


def ids_of(tokenizer, messages):
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)


def user(text):
    return [{"role": "user", "content": text}]


def assert_counted(line, output, prompt_length):
    """The line states the counts of the output."""
    tokens, forwards = output.sequences.shape[1] - prompt_length, output.forwards.item()
    expected = rf"{tokens} tokens?, {forwards} forward pass(es)?, {tokens / forwards:.2f} tokens per pass, \d+\.\d\d s"
    expected += rf"(; stopped at --max-new-tokens {tokens})?\n"
    assert re.fullmatch(expected, line), line


# A threshold at which a random model fills several slots per forward.
SHORT = ("--max-new-tokens", "40", "--entropy-threshold", "3")
TIMEOUT = 300  # seconds, on a busy machine
# A short text with spaces in it, at which streamers write.
SPACED = ("--max-new-tokens", 60, "--decoding", "autoregressive", "--temperature", 2, "--seed", 0)
ENDLESS = ("--max-new-tokens", 10**5, "--decoding", "autoregressive", "--temperature", 2, "--seed", 0)


def generated(loaded, inputs, **arguments):
    """The text and the output of model.generate()."""
    model, tokenizer = loaded
    arguments = {"max_new_tokens": 40, "entropy_threshold": 3.0, **arguments}
    output = model.generate(**inputs, **arguments, return_dict_in_generate=True)
    new = output.sequences[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(new, skip_special_tokens=True), output


def start(*arguments, **pipes):
    """A command in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    command = [sys.executable, "-m", "wedlm", *map(str, arguments)]
    return subprocess.Popen(
        command,
        env={**environment, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
        **pipes,
    )
