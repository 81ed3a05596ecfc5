"""`wedlm tune`: the file it writes, the setting it takes, and what it refuses."""

import json
import shutil
from pathlib import Path

import pytest
from draft_models import save_adapter
from transformers import GenerationConfig
from typer.testing import CliRunner

from examples.demo.tasks import held_out_examples
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint
from wedlm.commands import cli
from wedlm.evaluation import sweep as sweeping
from wedlm.evaluation import tuning
from wedlm.evaluation.decodings import BASELINE, combinations
from wedlm.evaluation.provenance import weights_digest
from wedlm.evaluation.sweep import Answer

TRIED = combinations(
    [BASELINE, "verified", "streaming"], window_size=[8], entropy_threshold=[0.1, 2.0], distance_penalty=[0.0]
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a checkpoint, two questions, and few settings to try."""
    shutil.copytree(DEMO_FOLDER, tmp_path / "mine")
    examples = held_out_examples("equations", 2)
    lines = [json.dumps({"prompt": example.prompt, "answer": example.answer}) for example in examples]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    (tmp_path / "plain.jsonl").write_text("\n".join(json.dumps({"prompt": example.prompt}) for example in examples))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning, "settings_to_try", lambda decodings: TRIED)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli.app, ["tune", *map(str, arguments)])


def answers(monkeypatch, seconds: dict[str, float], wrong: tuple[str, ...] = (), times: int = 1):
    """Pretends that the questions have been answered, `times` times each."""

    def fake(model, tokenizer, questions, decodings, max_new_tokens, work):
        made = {label: Answer("x", float(label not in wrong), 10, 5, 20, seconds[label]) for label in decodings}
        return {label: [answer] * len(questions) * times for label, answer in made.items()}

    monkeypatch.setattr(sweeping, "sweep", fake)


SECONDS = dict(zip(TRIED, [4.0, 2.0, 1.0, 0.5], strict=True))
SLOWER = dict.fromkeys(TRIED, 1.0) | {BASELINE: 0.5}


def test_it_writes_what_it_takes_and_leaves_the_rest(place, monkeypatch):
    measured = sweeping.sweep

    def with_given_times(model, tokenizer, questions, decodings, max_new_tokens, work):
        answers = measured(model, tokenizer, questions, decodings, max_new_tokens, work)
        return {label: [answer._replace(seconds=SECONDS[label]) for answer in made] for label, made in answers.items()}

    monkeypatch.setattr(sweeping, "sweep", with_given_times)
    before = json.loads((place / "mine" / "generation_config.json").read_text())
    dry = run("mine", "--data", "data.jsonl", "--max-new-tokens", 2, "--dry-run")
    assert dry.exit_code == 0 and (place / "tune.json").exists()
    assert json.loads((place / "mine" / "generation_config.json").read_text()) == before
    result = run("mine", "--data", "data.jsonl", "--max-new-tokens", 160, "--overwrite")
    assert result.exit_code == 0, result.output
    report = json.loads((place / "tune.json").read_text())
    assert report["results"].keys() == TRIED.keys() and report["measure"] == "exact"
    assert report["chosen"] == "verified, window 8", "two examples show nothing of streaming"
    assert (
        "2 examples cannot show that streaming loses so little; at least 381 of them would be needed." in result.stderr
    )
    after = json.loads((place / "mine" / "generation_config.json").read_text())
    assert after == before | report["results"][report["chosen"]]["arguments"]
    assert 0 <= after["query_cost"] == report["query_cost"] < 1
    assert f"One more query costs {100 * after['query_cost']:.1f} % of a forward with one." in result.stderr
    assert sorted(path.name for path in place.iterdir()) == ["data.jsonl", "mine", "plain.jsonl", "tune.json"]
    assert "Every number is in tune-2.json." in run("mine", "--data", "data.jsonl", "--max-new-tokens", 2).stderr
    shown = " ".join(result.stdout.split())
    assert "The front" in shown and report["chosen"] in shown and BASELINE in shown


def test_the_fastest_is_taken_where_enough_examples_show_it(place, monkeypatch):
    fast, careless = list(TRIED)[2:]
    file = place / "mine" / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"_from_model_config": True}))
    answers(monkeypatch, SECONDS, wrong=(careless,), times=300)  # 600 of them
    assert run("mine", "--data", "data.jsonl").exit_code == 0
    report = json.loads((place / "tune.json").read_text())
    assert (report["chosen"], report["front"]) == (fast, [fast, careless])
    assert TRIED[fast].items() <= json.loads(file.read_text()).items()
    assert TRIED[fast].items() <= GenerationConfig.from_pretrained(place / "mine").to_dict().items()


@pytest.mark.parametrize(
    ("seconds", "wrong", "times", "options", "why"),
    [
        (SECONDS, tuple(TRIED), 500, [], "autoregressive decoding answers 0 of 1000 examples rightly, too few"),
        (SLOWER, (), 4, [], "verified decoding is no faster, and 8 examples cannot"),
        (SLOWER, (), 4, ["--max-quality-loss", "0"], None),
        (SECONDS, (), 4, [], None),
    ],
    ids=["many wrong", "few examples", "no loss", "verified"],
)  # fmt: skip
def test_nothing_is_written_where_the_examples_show_nothing(place, monkeypatch, seconds, wrong, times, options, why):
    answers(monkeypatch, seconds, wrong, times)
    before = (place / "mine" / "generation_config.json").read_bytes()
    result = run("mine", "--data", "data.jsonl", *options)
    assert result.exit_code == 0, result.output
    report = json.loads((place / "tune.json").read_text())
    is_as_before = (place / "mine" / "generation_config.json").read_bytes() == before
    assert (report["chosen"] is None, is_as_before) == (why is not None, why is not None)
    last = result.stderr.splitlines()[-1]
    assert why is None or last.startswith(f"Nothing is written into mine/generation_config.json: {why}"), last
    assert ("Taken: " in result.stderr) == (why is None)


def test_without_answers_agreement_is_measured(place):
    result = run("mine", "--data", "plain.jsonl", "--max-new-tokens", 8)
    assert result.exit_code == 0, result.output
    report = json.loads((place / "tune.json").read_text())
    assert report["measure"] == "agreement"
    for measured in report["results"].values():
        assert measured["quality"] == measured["same_text_as_autoregressive"]
    assert report["results"][BASELINE]["quality"] == report["results"]["verified, window 8"]["quality"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine", "--data", "mine/model.safetensors"], "--data mine/model.safetensors cannot be read"),
        (["mine", "--data", "data.jsonl", "--measure", "taste"], "--measure taste is unknown; choose one of exact"),
        (
            ["mine", "--data", "words.jsonl", "--measure", "last-number"],
            "the answer in words.jsonl, line 1 holds no number",
        ),
        (["mine", "--data", "data.jsonl", "--out", "mine/../data.jsonl", "--overwrite"], "is the file of --data"),
        (["mine", "--data", "masked.jsonl"], "masked.jsonl, line 2: The prompt holds <|mask|>"),
        (["broken", "--data", "data.jsonl"], "generation_config.json cannot be read as JSON (Expecting"),
    ],
)
def test_bad_input_is_one_sentence(place, arguments, words):
    (place / "words.jsonl").write_text('{"prompt": "a", "answer": "b"}')
    (place / "masked.jsonl").write_text('\n{"prompt": "a <|mask|>"}')
    Path("broken").mkdir()
    Path("broken/generation_config.json").write_text("x")
    result = run(*arguments)
    assert result.exit_code == 2 and words in result.stderr and result.stderr.count("\n") == 1, result.output
    assert not (place / "tune.json").exists() and not (place / "tune.json.work").exists()


def test_a_draft_adapter_is_tuned_in_its_own_folder(place, monkeypatch):
    answers(monkeypatch, SECONDS, times=1000)
    save_adapter(place / "adapter", base=place / "mine")
    before = (place / "mine" / "generation_config.json").read_text()
    result = run("adapter", "--data", "data.jsonl")
    assert result.exit_code == 0, result.output
    report = json.loads((place / "tune.json").read_text())
    assert len(report["adapter_sha256"]) == 64
    assert report["weights_sha256"] == weights_digest(place / "mine")
    written = json.loads((place / "adapter" / "generation_config.json").read_text())
    assert written.items() >= (json.loads(before) | TRIED[report["chosen"]]).items()
    assert load_checkpoint(place / "adapter")[0].generation_config.decoding == written["decoding"]
    assert (place / "mine" / "generation_config.json").read_text() == before
