"""`wedlm tune`: what it reads, what it takes, and what it writes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands import cli, tune
from wedlm.demo.tasks import held_out_examples
from wedlm.evaluation.decodings import BASELINE, combinations
from wedlm.evaluation.sweep import Answer
from wedlm.evaluation.tuning import (
    MEASURES,
    Example,
    TuningError,
    allowed,
    examples_needed,
    last_number,
    most_lost,
    read_examples,
    read_share,
    settings_to_try,
    verdict,
)

USER = {"role": "user", "content": "What is it?"}
RIGHT = {"role": "assistant", "content": "It is 4."}


def test_examples_of_every_form(tmp_path):
    path = tmp_path / "data.jsonl"
    rows = [
        {"prompt": "What is it?", "answer": "It is 4."},
        {"prompt": [USER], "answer": "It is 4.", "note": "ignored"},
        {"messages": [USER, RIGHT]},
        {"messages": [USER, RIGHT, USER, RIGHT]},
    ]
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    assert read_examples(path) == [
        Example("What is it?", "It is 4.", 1),
        Example([USER], "It is 4.", 3),
        Example([USER], "It is 4.", 5),
        Example([USER, RIGHT, USER], "It is 4.", 7),
    ]
    path.write_text("\ufeff" + json.dumps({"messages": [USER]}) + '\r\n{"prompt": "a\u2028b"}')
    assert read_examples(path) == [Example([USER], None, 1), Example("a\u2028b", None, 2)]


@pytest.mark.parametrize(
    ("second_line", "words"),
    [
        ("{", "line 2: no JSON ("),
        ("3", 'line 2: neither {"prompt"'),
        ('{"answer": "a"}', "line 2: neither"),
        ('{"prompt": " ", "answer": "a"}', "line 2: neither"),
        ('{"prompt": "a", "answer": 4}', "line 2: neither"),
        ('{"prompt": "a", "answer": " "}', "line 2: neither"),
        ('{"prompt": "\\ud800", "answer": "b"}', "line 2: no JSON ("),
        ('{"messages": [{"role": "user"}]}', "line 2: neither"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "line 2: messages holds an answer and nothing"),
        ('{"prompt": "a"}', "1 of 2 examples have an answer; give one to all or none."),
    ],
)
def test_a_bad_line_is_named(tmp_path, second_line, words):
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' + second_line)
    with pytest.raises(TuningError) as refused:
        read_examples(path)
    assert words in str(refused.value) and "data.jsonl" in str(refused.value) and "\n" not in str(refused.value)


def test_measures():
    assert MEASURES["exact"]("It  is\n4.", "It is 4.") and not MEASURES["exact"]("It is 4", "It is 4.")
    assert MEASURES["contains"]("Well, IT is 4. So.", "it is 4") and not MEASURES["contains"]("It is", "it is 4")
    assert MEASURES["last-number"]("2 + 2 = 1,004.50", "1004.5") and not MEASURES["last-number"]("4, not 5", "4")
    assert not MEASURES["last-number"]("none", "4")
    assert [last_number(text) for text in ("a", "-3 and", "2,500", "1.5.")] == [None, -3, 2500, 1.5]
    assert [read_share(text) for text in ("1%", "0.5 %", "0.01", "0")] == [0.01, 0.005, 0.01, 0]


def row(decoding, interval, times, lost):
    return {
        "arguments": {"decoding": decoding},
        "quality_over_autoregressive_interval": interval,
        "most_lost": lost,
        "times_autoregressive": {"median": times},
    }


ROWS = {
    BASELINE: row(BASELINE, [0, 0], 1.0, 0.0),
    "verified": row("verified", [0, 0], 3.0, 0.0),
    "noisy": row("streaming", [-0.02, 0.02], 5.0, 0.02),
    "bad": row("streaming", [-0.2, -0.1], 6.0, 0.25),
    "good": row("streaming", [0.01, 0.1], 2.0, 0.0),
}


def test_the_fastest_that_is_shown_to_lose_little_enough_is_taken():
    assert allowed(ROWS, 0.01) == ["verified", "good", BASELINE]
    assert allowed(ROWS, 0.02)[0] == "noisy"
    assert allowed(ROWS, 0.3)[0] == "bad"
    assert allowed({name: ROWS[name] for name in (BASELINE, "noisy")}, 0.0) == [BASELINE]
    said = {name: verdict(one) for name, one in ROWS.items()}
    assert said == {
        BASELINE: "the measure", "verified": "the same", "noisy": "within noise", "bad": "worse", "good": "better"
    }  # fmt: skip


def qualities(values):
    return [Answer("x", float(value), 10, 5, 20, 1.0) for value in values]


def test_what_is_lost_at_most_is_bounded_for_all_settings_at_once(monkeypatch):
    """Of runs with settings that all lose two answers in a hundred, few show one of them to lose no more."""
    monkeypatch.setattr("wedlm.evaluation.resampling.NUM_RESAMPLES", 50)
    decodings = combinations([BASELINE, "streaming"], entropy_threshold=[number / 10 for number in range(12)])
    random, wrong = np.random.default_rng(0), 0
    for _ in range(60):
        answers = {label: qualities(random.random(300) >= 0.02) for label in decodings}
        answers[BASELINE] = qualities([1] * 300)
        bounds = most_lost(answers, decodings)
        wrong += any(bound <= 0.02 for label, bound in bounds.items() if label != BASELINE)
    assert wrong / 60 <= 0.05 and bounds[BASELINE] == 0


@pytest.mark.parametrize(("loss", "settings"), [(0.01, 24), (0.05, 1)])
def test_so_many_examples_are_needed(monkeypatch, loss, settings):
    monkeypatch.setattr("wedlm.evaluation.resampling.NUM_RESAMPLES", 50)
    decodings = combinations([BASELINE, "streaming"], entropy_threshold=[number / 10 for number in range(settings)])
    number = examples_needed(loss, settings)
    for size, is_shown in ((number, True), (number - 1, False)):
        bounds = most_lost({label: qualities([1] * size) for label in decodings}, decodings)
        assert (max(bounds.values()) <= loss) == is_shown
    assert examples_needed(0, settings) is None


def test_what_is_tried_holds_every_decoding_once():
    tried = settings_to_try()
    assert tried[BASELINE] == {"decoding": BASELINE}
    assert {"verified", "streaming"} < {arguments["decoding"] for arguments in tried.values()}
    assert len({json.dumps(arguments) for arguments in tried.values()}) == len(tried) > 15


# --- The command ---

TRIED = combinations([BASELINE, "verified", "streaming"], [8], [0.1, 2.0], [0.0])


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A checkpoint of one's own, two questions, and few settings to try."""
    shutil.copytree(DEMO_FOLDER, tmp_path / "mine")
    examples = held_out_examples("equations", 2)
    lines = [json.dumps({"prompt": example.prompt, "answer": example.answer}) for example in examples]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    (tmp_path / "plain.jsonl").write_text("\n".join(json.dumps({"prompt": example.prompt}) for example in examples))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "settings_to_try", lambda: TRIED)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli.app, ["tune", *map(str, arguments)])


def answers(monkeypatch, seconds: dict[str, float], wrong: tuple[str, ...] = (), times: int = 1):
    """As if so many questions had been answered."""

    def fake(model, tokenizer, questions, decodings, max_new_tokens, work):
        made = {label: Answer("x", float(label not in wrong), 10, 5, 20, seconds[label]) for label in decodings}
        return {label: [answer] * len(questions) * times for label, answer in made.items()}

    monkeypatch.setattr(tune, "sweep", fake)


SECONDS = dict(zip(TRIED, [4.0, 2.0, 1.0, 0.5], strict=True))


def test_it_writes_what_it_takes_and_leaves_the_rest(place):
    before = json.loads((place / "mine" / "generation_config.json").read_text())
    result = run("mine", "--data", "data.jsonl", "--max-new-tokens", 160)
    assert result.exit_code == 0, result.output
    report = json.loads((place / "tune.json").read_text())
    assert report["results"].keys() == TRIED.keys() and report["measure"] == "exact"
    assert report["chosen"] in (BASELINE, "verified, window 8"), "two examples show nothing of streaming"
    assert (
        "2 examples cannot show that streaming loses so little; at least 381 of them would be needed." in result.stderr
    )
    after = json.loads((place / "mine" / "generation_config.json").read_text())
    assert after == before | report["results"][report["chosen"]]["arguments"]
    assert sorted(path.name for path in place.iterdir()) == ["data.jsonl", "mine", "plain.jsonl", "tune.json"]
    shown = " ".join(result.stdout.split())
    assert "The front" in shown and report["chosen"] in shown and BASELINE in shown


def test_the_fastest_is_taken_where_enough_examples_show_it(place, monkeypatch):
    fast, careless = list(TRIED)[2:]
    answers(monkeypatch, SECONDS, wrong=(careless,), times=300)  # 600 of them
    assert run("mine", "--data", "data.jsonl").exit_code == 0
    report = json.loads((place / "tune.json").read_text())
    assert (report["chosen"], report["front"]) == (fast, [fast, careless])
    config = json.loads((place / "mine" / "generation_config.json").read_text())
    assert {name: config[name] for name in TRIED[fast]} == TRIED[fast]


def test_a_dry_run_writes_no_setting(place, monkeypatch):
    answers(monkeypatch, SECONDS)
    before = (place / "mine" / "generation_config.json").read_bytes()
    result = run("mine", "--data", "data.jsonl", "--dry-run")
    assert result.exit_code == 0 and "--dry-run" in result.stderr and (place / "tune.json").exists()
    assert (place / "mine" / "generation_config.json").read_bytes() == before


def test_without_answers_agreement_is_measured(place):
    result = run("mine", "--data", "plain.jsonl", "--max-new-tokens", 160)
    assert result.exit_code == 0, result.output
    report = json.loads((place / "tune.json").read_text())
    assert report["measure"] == "agreement"
    for measured in report["results"].values():
        assert measured["quality"] == measured["same_text_as_autoregressive"]
    assert report["results"][BASELINE]["quality"] == report["results"]["verified, window 8"]["quality"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine", "--data", "nowhere.jsonl"], "--data nowhere.jsonl cannot be read"),
        (["mine", "--data", "mine/model.safetensors"], "--data mine/model.safetensors cannot be read"),
        (["mine", "--data", "empty.jsonl"], "--data empty.jsonl holds no examples"),
        (["mine", "--data", "data.jsonl", "--max-quality-loss", "lots"], "--max-quality-loss lots is no share"),
        (["mine", "--data", "data.jsonl", "--max-quality-loss", "100%"], "is no share of the examples"),
        (["mine", "--data", "data.jsonl", "--measure", "taste"], "--measure taste is unknown; choose one of exact"),
        (["mine", "--data", "plain.jsonl", "--measure", "exact"], "--measure exact needs answers"),
        (["mine", "--data", "words.jsonl", "--measure", "last-number"], "the answer in line 1 holds no number"),
        (["mine", "--data", "data.jsonl", "--max-new-tokens", 5000], "--max-new-tokens 5000 is not from 1 to"),
        (["mine", "--data", "data.jsonl", "--out", "data.jsonl"], "--out data.jsonl exists"),
        (["mine", "--data", "data.jsonl", "--out", "mine/../data.jsonl", "--overwrite"], "is the file of --data"),
        (["mine", "--data", "masked.jsonl"], "masked.jsonl, line 2: The prompt holds <|mask|>"),
        (["somebody/model", "--data", "data.jsonl"], "somebody/model is no folder, and generation_config.json is"),
        (["broken", "--data", "data.jsonl"], "cannot be read (Expecting"),
    ],
)
def test_bad_input_is_one_sentence(place, arguments, words):
    (place / "empty.jsonl").write_text("\n")
    (place / "words.jsonl").write_text('{"prompt": "a", "answer": "b"}')
    (place / "masked.jsonl").write_text('\n{"prompt": "a <|mask|>"}')
    Path("broken").mkdir()
    Path("broken/generation_config.json").write_text("x")
    result = run(*arguments)
    assert result.exit_code == 2 and words in result.stderr and result.stderr.count("\n") == 1, result.output
    assert not (place / "tune.json").exists() and not (place / "tune.json.work").exists()
