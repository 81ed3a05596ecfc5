"""The options of the commands: values that are refused, and dataclasses that become options."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from command_line import CONTEXT, PROMPT, run
from helpers import CHECKPOINTS
from typer.testing import CliRunner

from wedlm.commands.options import (
    Debug,
    GenerationOptions,
    ServeOptions,
    decoding_arguments,
    read_threshold,
    with_options,
)


@pytest.mark.parametrize("command", ["generate", "chat", "compare"])
@pytest.mark.parametrize(
    "options, sentence",
    [
        (("--model", "nothing"), "nothing is no folder here"),
        (("--model", "somebody/nothing"), "connect to the network, or give a folder."),
        (("--model", CHECKPOINTS / "q3"), "has no tokenizer"),
        (("--decoding", "fast"), "decoding='fast' is unknown; choose one of 'streaming', "),
        (("--window-size", "0"), "window_size=0 is not a number of slots; "),
        (("--entropy-threshold", "-1"), "entropy_threshold=-1.0 is not an entropy; "),
        (("--entropy-threshold", "low"), "--entropy-threshold low is neither a number of nats nor none."),
        (("--distance-penalty", "nan"), "distance_penalty=nan is not a penalty; "),
        (("--acceptance-ratio", "0"), "acceptance_ratio=0.0 is not a share; "),
        (("--max-new-tokens", "0"), "--max-new-tokens 0 leaves no room for an answer; give 1 or more."),
        (("--max-new-tokens", 10**30), f"{10**30} is more than max_position_embeddings={CONTEXT} of this model; "),
        (("--device", "meta"), "The device 'meta' holds no weights; "),
        (("--model", ""), "The name of the checkpoint is empty; "),
        (("--model", __file__), "test_options.py is a file; give the folder"),
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


def test_each_field_of_the_dataclass_becomes_an_option():
    @dataclass(frozen=True)
    class Options:
        place: Annotated[str, typer.Argument()]
        count: Annotated[int, typer.Option(help="How many.")] = 3
        debug: Debug = False

    app, called = typer.Typer(), []

    @app.command()
    @with_options
    def command(first: str, options: Options, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        """Shouts."""
        called.append((first, options, loud))

    assert CliRunner().invoke(app, ["one", "two"]).exit_code == 0
    assert CliRunner().invoke(app, ["one", "two", "--count", "5", "--loud", "--debug"]).exit_code == 0
    assert called == [("one", Options("two"), False), ("one", Options("two", 5, True), True)]
    assert CliRunner().invoke(app, ["one"]).exit_code == 2
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert "Shouts." in shown and "How many." in shown and "[default: 3]" in shown


def test_options_that_are_not_given_are_no_arguments():
    assert decoding_arguments(ServeOptions()) == {}
    options = ServeOptions(decoding="streaming", window_size=3, entropy_threshold="none", distance_penalty=0.0)
    assert decoding_arguments(options) == {
        "decoding": "streaming", "window_size": 3, "entropy_threshold": None, "distance_penalty": 0.0
    }  # fmt: skip
    assert decoding_arguments(ServeOptions(acceptance_ratio=0.5)) == {"acceptance_ratio": 0.5}
    assert GenerationOptions().arguments() == {"max_new_tokens": 256, "do_sample": False}
    drawing = GenerationOptions(temperature=0.5, top_p=0.9, seed=1).arguments()
    assert drawing == {"temperature": 0.5, "top_p": 0.9, "max_new_tokens": 256, "do_sample": True}


def test_a_threshold_may_be_none():
    assert (read_threshold("none"), read_threshold("None"), read_threshold("0.3")) == (None, None, 0.3)
