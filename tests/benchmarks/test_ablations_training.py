"""The ablations of training: they decode as the package does, train as they say, and go on where they stopped."""

import importlib
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers import EOS, MASK, PROMPTS, REPOSITORY, left_padded, logits_of
from reference_decoder import decode as reference_decode
from transformers import AutoTokenizer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.demo.tasks import example, held_out_examples, split_of
from wedlm.evaluation import resampling
from wedlm.modeling_wedlm.dual_stream import dual_stream_mask
from wedlm.training.data import prepare_dataset
from wedlm.training.data_options import DataOptions

RESULTS = REPOSITORY / "benchmarks" / "results"
EVIDENCE = REPOSITORY / "docs" / "evidence"


@pytest.fixture(scope="module", autouse=True)
def modules():
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    names = ("bidirectional", "ablations_training")
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    sys.path.remove(str(REPOSITORY / "benchmarks"))
    for name in names:
        del sys.modules[name]


@pytest.fixture
def ablations(modules):
    return modules.ablations_training


# --- Attention inside a block ---

# Two samples and padding: memory of 3 tokens in blocks of 2, its prediction, memory of 1 token, its prediction.
SAMPLE = [0, 0, 0, 0, 0, 0, 1, 1, -1]
STREAM = [0, 0, 0, 1, 1, 1, 0, 1, 0]
BLOCK = [0, 0, 1, 0, 0, 1, 0, 0, 0]
SEES = """
    1 0 0 0 0 0 0 0 0
    1 1 0 0 0 0 0 0 0
    1 1 1 0 0 0 0 0 0
    0 0 0 1 * 0 0 0 0
    0 0 0 1 1 0 0 0 0
    1 1 0 0 0 1 0 0 0
    0 0 0 0 0 0 1 0 0
    0 0 0 0 0 0 0 1 0
    0 0 0 0 0 0 0 0 1
"""  # * is what bidirectional attention adds


def literal(star: int) -> torch.Tensor:
    rows = [line.replace("*", str(star)).split() for line in SEES.split("\n") if line.strip()]
    return torch.tensor([[int(entry) for entry in row] for row in rows]).bool()


def test_a_prediction_row_sees_its_whole_block_and_nobody_else_sees_more(modules):
    config = SimpleNamespace(layer_types=["full_attention"], _attn_implementation="sdpa")
    ids = [torch.tensor([ids]) for ids in (SAMPLE, STREAM, BLOCK)]
    causal, bidirectional = literal(0), literal(1)
    assert torch.equal(dual_stream_mask(config, *ids)[0, 0], causal)
    with modules.bidirectional.bidirectional_blocks():
        assert torch.equal(dual_stream_mask(config, *ids)[0, 0], bidirectional)
    assert torch.equal(dual_stream_mask(config, *ids)[0, 0], causal)


def test_a_prediction_of_training_is_a_forward_of_decoding(ablations, modules, model):
    """A block of a sample behind its clean text, under both kinds of attention."""
    tokens, masked = torch.arange(10, 19), [4, 5, 7]
    order = [3, 6, 4, 5, 7, 8]  # of a block of 3 to 8; one token is behind MASK rows, as under neither it stands
    positions = [*range(9), *order]
    input_ids = torch.cat([tokens, torch.tensor([MASK if i in masked else tokens[i] for i in order])])
    streams = {"sample_ids": [0] * 15, "stream_ids": [0] * 9 + [1] * 6, "block_ids": [0] * 3 + [1] * 6 + [1] * 6}
    batch = {name: torch.tensor([ids]) for name, ids in streams.items()}
    model.set_attn_implementation("sdpa")
    with torch.no_grad(), modules.bidirectional.bidirectional_blocks():
        trained = model(input_ids=input_ids[None], position_ids=torch.tensor([positions]), **batch).logits[0, 9:]
    sees = torch.ones(9, 9).tril().bool()
    sees[3:, 3:] = ablations.sees_inside(6, "bidirectional")
    rows = [*tokens[:3].tolist(), *input_ids[9:].tolist()]
    decoded = logits_of(model)(rows, [0, 1, 2, *order], sees.tolist())[3:]
    torch.testing.assert_close(trained, decoded, atol=1e-4, rtol=1e-4)


# --- Decoding ---


def cut(row: list[int], end: int = EOS) -> list[int]:
    return row[: row.index(end) + 1] if end in row else row


@pytest.mark.parametrize(("window_size", "max_new_tokens", "penalty"), [(1, 5, 0.0), (4, 12, 0.1), (6, 15, 0.02)])
def test_causal_decoding_is_blockwise_decoding_of_the_package(ablations, model, window_size, max_new_tokens, penalty):
    inputs = left_padded(PROMPTS[:4])
    how = {"window_size": window_size, "distance_penalty": penalty, "max_new_tokens": max_new_tokens}
    text = ablations.decode(model, inputs, "causal", **how).tolist()
    output = model.generate(**inputs, decoding="blockwise", entropy_threshold=None, do_sample=False, **how)
    expected = output[:, inputs["input_ids"].shape[1] :].tolist()
    assert [cut(row) for row in text] == [cut(row) for row in expected]


@pytest.mark.parametrize("inside", ["causal", "bidirectional"])
def test_decoding_is_what_plain_forwards_without_a_cache_give(ablations, model, inside):
    how = {"window_size": 4, "distance_penalty": 0.05, "max_new_tokens": 10}
    prompts = PROMPTS[:3]
    texts = ablations.decode(model, left_padded(prompts), inside, **how).tolist()
    for prompt, text in zip(prompts, texts, strict=True):

        def forward(tokens, positions, prompt=prompt):
            num_new = len(tokens) - len(prompt)
            start = len(prompt) + (num_new - 1) // 4 * 4  # of the last window; all before it is clean
            sees = torch.ones(len(tokens), len(tokens)).tril().bool()
            sees[start:, start:] |= inside == "bidirectional"
            return logits_of(model)(tokens, positions, sees.tolist())

        how |= {"entropy_threshold": None, "decoding": "blockwise"}
        expected = reference_decode(forward, prompt, mask_token_id=MASK, eos_token_ids=[EOS], **how)
        assert expected.margin > 1e-4 and cut(text) == expected.ids


def test_decoding_ends_when_every_text_has(ablations, model, monkeypatch):
    inputs = left_padded(PROMPTS[:2])
    how = {"window_size": 3, "distance_penalty": 0.0, "max_new_tokens": 12}
    text = ablations.decode(model, inputs, "causal", **how)
    assert text.shape == (2, 12)
    end = text[0, 4].item()
    monkeypatch.setattr(model.config, "eos_token_id", end)
    num_windows = text[0].tolist().index(end) // 3 + 1
    alone = ablations.decode(model, {name: rows[:1] for name, rows in inputs.items()}, "causal", **how)
    assert torch.equal(alone, text[:1, : 3 * num_windows])


# --- Training ---


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(DEMO_FOLDER)


def test_samples_are_those_of_training_filled_up_to_whole_blocks_with_end_tokens(ablations, tokenizer):
    questions = [example(ablations.KINDS[i % 2], "train", i) for i in range(12, 36)]
    assert all(split_of(one.kind, one.key) == "train" for one in questions)
    expected, _ = prepare_dataset(
        Dataset.from_list([{"messages": one.messages} for one in questions]), tokenizer, DataOptions()
    )
    end, found = tokenizer.eos_token_id, {}
    for row in ablations.training_rows(tokenizer, 5, 10):  # ten rows behind the first five, 2.4 questions each
        assert len(row["input_ids"]) == sum(row["sample_lengths"]) <= 192
        bounds = np.cumsum([0, *row["sample_lengths"]])
        for index, start, stop in zip(row["sample_indices"], bounds, bounds[1:], strict=False):
            found[index] = row["input_ids"][start:stop], row["labels"][start:stop]
    assert sorted(found) == list(range(12, 36))
    for index, plain in zip(sorted(found), expected, strict=True):
        tokens, labels = found[index]
        num_more = len(tokens) - len(plain["input_ids"])
        assert len(tokens) % 32 == 0 and 0 <= num_more < 32
        assert tokens == plain["input_ids"] + num_more * [end] and labels == plain["labels"] + num_more * [end]


def test_the_base_learns_from_the_clean_tokens_alone(ablations):
    row = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "sample_lengths": [3], "sample_indices": [0]}
    batch = ablations.MemoryCollator(mask_token_id=9)([row])
    assert {name: values.tolist() for name, values in batch.items()} == {
        "input_ids": [[5, 6, 7]],
        "position_ids": [[0, 1, 2]],
        "sample_ids": [[0, 0, 0]],
        "stream_ids": [[0, 0, 0]],
        "block_ids": [[0, 0, 0]],
        "targets": [[6, 7, -100]],
        "target_weights": [[1, 1, 0]],
        "gammas": [[0, 0, 0]],
    }


# --- The whole of it ---

TINY = {"base-steps": 3, "steps": 3, "rows-per-step": 2, "hidden-size": 96, "num-layers": 1, "num-questions": 2}


@pytest.fixture
def run(ablations, monkeypatch, tmp_path):
    monkeypatch.setattr(ablations, "MAX_NEW_TOKENS", 7)
    monkeypatch.setattr(resampling, "NUM_RESAMPLES", 100)

    def run(ablation, work="work"):
        out, picture = tmp_path / f"{ablation}.json", tmp_path / f"{ablation}.png"
        options = {**TINY, "save-steps": 1, "work": tmp_path / work, "out": out, "plot": picture}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        monkeypatch.setattr(sys, "argv", [f"{REPOSITORY}/benchmarks/ablations_training.py", ablation, *words])
        ablations.main()
        assert picture.read_bytes().startswith(b"\x89PNG")
        return json.loads(out.read_text())

    return run


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_results(ablations, run, monkeypatch, capsys):
    whole = run("inside-block")
    assert ablations.table(whole["results"]) in capsys.readouterr().out
    assert list(whole["results"]["models"]) == ["base", "causal blocks of 32", "bidirectional blocks of 32"]

    step, answers_of, num_steps, num_answered = ablations.MuonAndAdamW.step, ablations.answers_of, [], []

    def stopping_step(self, closure=None):
        num_steps.append(1)
        if len(num_steps) in (3, 6):  # of 9: in the base, and in the first variant
            raise KeyboardInterrupt
        step(self, closure)

    def stopping_answers(*arguments):
        num_answered.append(1)
        if len(num_answered) == 4:
            raise KeyboardInterrupt
        return answers_of(*arguments)

    monkeypatch.setattr(ablations.MuonAndAdamW, "step", stopping_step)
    monkeypatch.setattr(ablations, "answers_of", stopping_answers)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run("inside-block", "stopped")
    resumed = run("inside-block", "stopped")
    assert resumed["results"]["rows"] == whole["results"]["rows"]
    models = [report["results"]["models"] for report in (resumed, whole)]
    assert [[log["losses"] for log in logs.values()] for logs in models].count(
        [log["losses"] for log in models[0].values()]
    ) == 2
    assert models[0]["base"]["first_step"] == 2 and models[0]["causal blocks of 32"]["first_step"] == 1
    # What there is is kept, and the other ablation finds it.
    num_steps_before = len(num_steps)
    other = run("block-size", "stopped")
    assert len(num_steps) - num_steps_before == 2 * TINY["steps"]
    assert other["results"]["models"]["causal blocks of 32"] == models[0]["causal blocks of 32"]
    # Blocks and attention make a difference in training.
    losses = {
        name: [entry.get("mlm_loss") for entry in log["losses"]]
        for name, log in (models[0] | other["results"]["models"]).items()
    }
    assert losses.pop("base") == [None] * TINY["base-steps"]
    assert len(losses) == len({tuple(values) for values in losses.values()}) == 4


# --- The numbers ---


def test_differences_are_taken_question_by_question(ablations, monkeypatch):
    def answers(functions, equations):
        kinds = {"functions": functions, "equations": equations}
        return {kind: [ablations.Answer("", right) for right in rights] for kind, rights in kinds.items()}

    base, causal, bidirectional = "base", "causal blocks of 32", "bidirectional blocks of 32"
    way, paper = "window of its blocks", "window of 6"
    half = [True, False]
    rows = ablations.rows_of(
        {
            (base, "token by token"): answers(30 * half, 60 * [True]),
            (causal, way): answers(30 * half, 60 * [False]),
            (bidirectional, way): answers(30 * half[::-1], 60 * [False]),
            (causal, paper): answers(60 * [True], 60 * [True]),
            (bidirectional, paper): answers(15 * [True, True, True, False], 60 * [True]),
        }
    )
    of = {(row["model"], row["decoding"], row["kind"]): row for row in rows}
    assert len(of) == 15
    assert of[base, "token by token", "both"] == {
        "model": base,
        "decoding": "token by token",
        "kind": "both",
        "accuracy": 0.75,
    }

    def widths(row, over):
        low, high = row[f"over_{over}_interval"]
        assert low <= row[f"over_{over}"] <= high
        return high - low

    same, turned = of[causal, way, "functions"], of[bidirectional, way, "functions"]
    assert same["over_base"] == turned["over_base"] == turned["over_reference"] == 0
    assert widths(same, "base") < 0.2 < 0.4 < widths(turned, "base")  # question by question
    assert widths(turned, "reference") == widths(turned, "base")
    assert of[causal, way, "equations"]["over_base"] == -1
    assert of[causal, paper, "both"]["over_base"] == 0.25
    assert of[bidirectional, paper, "both"]["over_base"] == 0.125
    assert of[bidirectional, paper, "both"]["over_reference"] == -0.125
    assert of[bidirectional, paper, "both"]["over_reference_interval"][1] < 0
    table = ablations.table({"rows": rows})
    assert f"| {base} | token by token | 50.0% | 100.0% | 75.0% |  |  |" in table
    low, high = (100 * bound for bound in of[causal, paper, "both"]["over_base_interval"])
    assert f"| {causal} | {paper} | 100.0% | 100.0% | 100.0% | +25.0 ({low:+.1f} to {high:+.1f}) |  |" in table


def test_answers_are_judged_up_to_the_end_token(ablations, tokenizer):
    questions = held_out_examples("counting", 2)
    end = tokenizer.eos_token_id
    first = tokenizer(questions[0].answer)["input_ids"]
    written = torch.tensor([[*first, end, 7, 8], [7] * (len(first) + 3)])
    model = SimpleNamespace(device="cpu")
    right, wrong = ablations.answers_of(model, tokenizer, questions, lambda inputs: written)
    assert right == (questions[0].answer, True)
    assert not wrong.is_right


@pytest.mark.parametrize("ablation", ["block-size", "inside-block"])
def test_the_recorded_run_is_whole_and_its_plot_is_drawn_from_it(ablations, ablation, tmp_path):
    name = ablation.replace("-", "_")
    report = json.loads((RESULTS / f"ablation_{name}.json").read_text())
    assert not report["commit"].endswith("+changes")
    assert report["command"] == f"python benchmarks/ablations_training.py {ablation}"
    assert report["num_questions"] >= 200
    models = [variant.name for variant in ablations.VARIANTS[ablation]]
    assert list(report["results"]["models"]) == ["base", *models]
    assert len(report["results"]["rows"]) == 3 * (1 + 3 * len(models))
    ablations.plot(report, tmp_path / "plot.png")
    assert (EVIDENCE / f"{name}.png").exists()


def test_both_recorded_ablations_have_the_same_base_and_blocks_of_32():
    reports = [json.loads((RESULTS / f"ablation_{name}.json").read_text()) for name in ("block_size", "inside_block")]
    shared = [
        [row for row in report["results"]["rows"] if row["model"] in ("base", "causal blocks of 32")]
        for report in reports
    ]
    assert len(shared[0]) == 3 * 4
    assert shared[0] == shared[1]
