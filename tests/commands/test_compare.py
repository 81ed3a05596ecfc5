"""`wedlm compare`: counts, differences and columns."""

import re

import pytest
from command_line import PROMPT, SHORT, generated, ids_of, run, user

from wedlm import WeDLMForCausalLM
from wedlm.commands.compare import difference


def table_of(text):
    """The cells of each line, by its decoding."""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    return {cells[0]: cells[1:] for cells in lines}


def test_compare_counts_and_finds_the_first_difference(checkpoint, loaded):
    result = run("compare", checkpoint, PROMPT, "the dog", *SHORT)
    assert (result.exit_code, result.stderr) == (0, "")
    for prompt, shown in zip((PROMPT, "the dog"), re.split("^> ", result.stdout, flags=re.M)[1:], strict=True):
        assert shown.startswith(prompt + "\n")
        inputs = ids_of(loaded[1], user(prompt))
        table_lines = table_of(shown)
        assert list(table_lines) == ["autoregressive", "streaming", "verified"]
        texts = {}
        for decoding, (seconds, forwards, tokens, per_forward, per_second, _) in table_lines.items():
            texts[decoding], output = generated(loaded, inputs, decoding=decoding)
            length = output.sequences.shape[1] - inputs["input_ids"].shape[1]
            assert (int(forwards), int(tokens)) == (output.forwards.item(), length)
            assert per_forward == f"{length / int(forwards):.2f}"
            assert float(per_second) * float(seconds) == pytest.approx(length, rel=0.2)
            assert texts[decoding] in shown
        for decoding, cells in table_lines.items():
            is_same = texts[decoding] == texts["autoregressive"]
            assert cells[-1] == ("" if decoding == "autoregressive" else "same" if is_same else "differs")
            parted = "" if is_same else difference(texts["autoregressive"], texts[decoding])
            assert is_same or f"\n{decoding} differs {parted}\n" in shown
        assert (table_lines["streaming"][-1], table_lines["verified"][-1]) == ("differs", "same")
        assert f"autoregressive, verified:\n{texts['verified']}\n" in shown, "equal texts are printed once"


def test_blockwise_decoding_is_compared_by_its_name(checkpoint):
    result = run("compare", checkpoint, PROMPT, *SHORT, "--decoding", "blockwise")
    assert list(table_of(result.stdout)) == ["autoregressive", "blockwise"]


@pytest.mark.parametrize(
    "expected, got, sentence",
    [
        ("a cat", "a cats", "from character 6 on: 'cats' for 'cat'"),
        ("猫" * 99, "猫" * 50, f"from character 51 on: {'猫' * 20!r} for {'猫' * 40!r}"),
        ("a ", "a b", "from character 3 on: 'b' for the end"),
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
    assert run("compare", checkpoint, PROMPT, *SHORT, "--temperature", 1).exit_code == 0
    seen, timed = calls[::2], calls[1::2]
    assert all(is_watched for _, is_watched, _ in seen) and not any(is_watched for _, is_watched, _ in timed)
    assert [(name, ids) for name, _, ids in seen] == [(name, ids) for name, _, ids in timed]
    assert len(timed) == len({name for name, _, _ in timed}) > 1


def test_on_a_terminal_columns_fill(checkpoint, loaded):
    result = run("compare", checkpoint, PROMPT, *SHORT, env={"FORCE_COLOR": "1", "COLUMNS": "400"})
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in result.stdout.splitlines()]
    inputs = ids_of(loaded[1], user(PROMPT))
    # A column pads them.
    texts = [generated(loaded, inputs, decoding=name)[0].strip() for name in ("autoregressive", "streaming")]
    columns = [[cell.strip() for cell in line.split("│")] for line in lines if line.count("│") >= 4]
    final = max(i for i, cells in enumerate(columns) if {*texts} <= {*cells})
    growing = [cells for cells in columns[:final] if texts[0] in cells and texts[1] not in cells]
    assert any(texts[1].startswith(cells[cells.index(texts[0]) + 2]) for cells in growing)
