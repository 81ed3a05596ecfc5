"""The options of the commands, and values that are refused."""

import pytest
from command_line import CONTEXT, PROMPT, SHORT, run

from wedlm.commands.answering import MOVED, model_and_prompts
from wedlm.commands.shared_options import GenerationOptions, check_out_file


@pytest.mark.parametrize(
    "options, sentence",
    [
        (("--entropy-threshold", "-1"), "entropy_threshold=-1.0 is not an entropy; "),
        (("--distance-penalty", "nan"), "distance_penalty=nan is not a penalty; "),
        (("--max-new-tokens", 10**30), f"{10**30} is more than max_position_embeddings={CONTEXT} of this model; "),
        (("--temperature", "1", "--top-p", "1.5"), "--top-p 1.5 is no share; "),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_bad_settings_are_one_sentence_and_exit_code_2(checkpoint, options, sentence):
    result = run("generate", checkpoint, PROMPT, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr and result.stderr.count("\n") == 1 and result.stderr.endswith(".\n")


@pytest.mark.parametrize("command", ["generate", "chat", "compare", "trace"])
def test_a_model_that_cannot_answer_is_one_sentence(command):
    for model, sentence in (
        ("", "The name of the checkpoint is empty; "),
        (__file__, "test_shared_options.py is a file; give the folder"),
    ):
        result = run(command, model, *([] if command == "chat" else [PROMPT]))
        assert (result.exit_code, result.stdout) == (2, "")
        assert sentence in result.stderr and result.stderr.count("\n") == 1


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
    assert capsys.readouterr().err == ("" if old is None else f"{MOVED}\n")


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
    assert (old.exit_code, old.stdout) == (0, new.stdout) and MOVED in old.stderr and MOVED not in new.stderr


@pytest.mark.parametrize("words", ["generate x --dtype fp16", "generate x --seed=y", "serve --port 99999"])
def test_a_value_of_the_wrong_kind_is_refused(words):
    option = words.split()[2].partition("=")[0] if "generate" in words else "--port"
    result = run(*words.split())
    assert (result.exit_code, result.stdout) == (2, "") and option in result.stderr


def test_options_that_are_not_given_are_no_arguments():
    assert GenerationOptions().arguments() == {"max_new_tokens": 256, "do_sample": False}
    options = GenerationOptions(
        decoding="streaming", entropy_threshold="None", distance_penalty=0.0, temperature=0.5, top_p=0.9, seed=1
    )
    assert options.arguments() == {
        "decoding": "streaming", "entropy_threshold": None, "distance_penalty": 0.0,
        "temperature": 0.5, "top_p": 0.9, "max_new_tokens": 256, "do_sample": True,
    }  # fmt: skip


def test_places_of_out_that_are_refused(tmp_path):
    file = tmp_path / "eval.json"
    check_out_file(file, overwrite=False)
    file.touch()
    check_out_file(file, overwrite=True)
    with pytest.raises(ValueError, match="eval.json exists; choose another file, or pass --overwrite.$"):
        check_out_file(file, overwrite=False)
    for out in (tmp_path, tmp_path / "no" / "eval.json"):
        with pytest.raises(ValueError, match="is a folder, or lies in one that is not there; choose a file.$"):
            check_out_file(out, overwrite=True)
