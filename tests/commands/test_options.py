"""The options of the commands: values that are refused, and dataclasses that become options."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from command_line import CONTEXT, PROMPT, SHORT, run
from helpers import CHECKPOINTS
from typer.testing import CliRunner

from wedlm.commands.checks import model_and_prompts
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
        (("--decoding", "fast"), "decoding='fast' is unknown; choose one of 'streaming', "),
        (("--window-size", "0"), "window_size=0 is not a number of slots; "),
        (("--entropy-threshold", "-1"), "entropy_threshold=-1.0 is not an entropy; "),
        (("--entropy-threshold", "low"), "--entropy-threshold low is neither a number of nats nor none."),
        (("--distance-penalty", "nan"), "distance_penalty=nan is not a penalty; "),
        (("--acceptance-ratio", "0"), "acceptance_ratio=0.0 is not a share; "),
        (("--max-new-tokens", "0"), "--max-new-tokens 0 leaves no room for an answer; give 1 or more."),
        (("--max-new-tokens", 10**30), f"{10**30} is more than max_position_embeddings={CONTEXT} of this model; "),
        (("--device", "meta"), "The device 'meta' holds no weights; "),
        (("--temperature", "-1"), "--temperature -1.0 is no temperature; "),
        (("--temperature", "1", "--top-p", "1.5"), "--top-p 1.5 is no share; "),
        (("--top-p", "0.5"), "--top-p 0.5 needs draws, "),
        (("--seed", "-1"), "--seed -1 is no seed; "),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_bad_settings_are_one_sentence_and_exit_code_2(checkpoint, command, options, sentence):
    result = run(command, checkpoint, *([] if command == "chat" else [PROMPT]), *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr and result.stderr.count("\n") == 1 and result.stderr.endswith(".\n")


@pytest.mark.parametrize("command", ["generate", "chat", "compare", "trace"])
@pytest.mark.parametrize(
    "model, sentence",
    [
        ("nothing", "nothing is no folder here"),
        ("somebody/nothing", "connect to the network, or give a folder."),
        (CHECKPOINTS / "q3", "has no tokenizer"),
        ("", "The name of the checkpoint is empty; "),
        (__file__, "test_options.py is a file; give the folder"),
    ],
)
def test_a_model_that_cannot_answer_is_one_sentence(command, model, sentence):
    result = run(command, model, *([] if command == "chat" else [PROMPT]))
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr and result.stderr.count("\n") == 1 and result.stderr.endswith(".\n")


SENTENCE = "MODEL is the first argument since 0.3.0; the old form of this call works in 0.3 alone.\n"


@pytest.mark.parametrize(
    ("words", "model", "old", "prompts"),
    [
        (["Why?"], GenerationOptions.model, None, ["Why?"]),
        (["there", "Why?"], "there", None, ["Why?"]),
        (["there", "Why?", "How?"], "there", None, ["Why?", "How?"]),
        (["Why?"], "there", "there", ["Why?"]),
        (["Why is it?", "How?"], GenerationOptions.model, "", ["Why is it?", "How?"]),  # two prompts
    ],
)
def test_the_model_comes_before_the_prompts(capsys, words, model, old, prompts):
    options = GenerationOptions(model=old) if old else GenerationOptions()
    assert model_and_prompts(words, options, None) == (GenerationOptions(model=model), prompts)
    assert capsys.readouterr().err == ("" if old is None else SENTENCE)


def test_a_prompt_that_is_missing_or_not_in_quotes(checkpoint):
    with pytest.raises(ValueError, match="^.* is a checkpoint, and no PROMPT follows it; give one.$"):
        model_and_prompts([str(checkpoint)], GenerationOptions(), 1)
    with pytest.raises(ValueError, match="^'is' follows the prompt 'why', and this command takes one; put quotes"):
        model_and_prompts(["model", "why", "is"], GenerationOptions(), 1)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_the_old_option_names_the_model_too(checkpoint, command):
    prompt = [] if command == "chat" else [PROMPT]
    new, old = (
        run(command, *words, *SHORT, input="") for words in ([checkpoint, *prompt], [*prompt, "--model", checkpoint])
    )
    assert (old.exit_code, old.stdout) == (0, new.stdout) and SENTENCE in old.stderr and SENTENCE not in new.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("generate x --dtype fp16", "--dtype fp16 is not accepted; pass auto, float32, bfloat16 or float16."),
        ("generate x --seed=y", "--seed y is not accepted; pass a whole number."),
        ("adapt a b --minutes soon", "--minutes soon is not accepted; pass a number."),
        ("serve --port 99999", "--port 99999 is not accepted; pass a whole number from 0 to 65535."),
        ("serve --max-batch-size 0", "--max-batch-size 0 is not accepted; pass a whole number, 1 or more."),
        ("eval --window-size 3 --window-size x", "--window-size 3, x is not accepted; pass a whole number."),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_sentence_with_what_is_accepted(words, sentence):
    result = run(*words.split())
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", sentence + "\n")


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
