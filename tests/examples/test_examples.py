"""The scripts of examples/ run, on the demo checkpoint."""

import json
import os
import runpy
import sys
from types import SimpleNamespace

import pytest
from helpers import CHECKPOINTS, REPOSITORY, run_python
from serving_client import started_server
from stock_tokenizers import save_smollm
from tokenizers import decoders, normalizers
from transformers import AutoTokenizer, LlamaConfig

from examples import task_data
from examples.real_model import tokenizer_like
from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation.tuning import read_examples
from wedlm.training.train import train


@pytest.fixture
def run(monkeypatch, capsys):
    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(REPOSITORY / "examples" / f"{name}.py"))
        return capsys.readouterr().out

    return run


def test_generate(run):
    answers = [line.partition(": ")[2] for line in run("generate", DEMO_FOLDER).splitlines()]
    assert answers[:2] == answers[2:] and answers[0] == "10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60."


@pytest.mark.full
def test_adapt(run, tmp_path):
    assert "The text is the same." in run("adapt", DEMO_FOLDER, tmp_path / "out", 1)
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["adapt", CHECKPOINTS / "gone", "out", 1], "golden/checkpoints/gone"),
        (["adapt", DEMO_FOLDER], r"python examples/adapt.py \[MODEL OUT STEPS\]"),
        (["trl_sft"], r"A package is missing .*; run: pip install trl"),
    ],
)
def test_a_script_refuses_in_a_sentence(run, monkeypatch, words, sentence):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(SystemExit, match=sentence):
        run(*words)


@pytest.mark.full
def test_lora_trainer(run, tmp_path):
    run("lora_trainer", DEMO_FOLDER, tmp_path / "out", 1)
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()


def test_the_questions_of_a_task_are_trained_on_and_asked(monkeypatch, tmp_path):
    """As docs/train.md begins, on the demo checkpoint."""
    for seed in ("0", "1"):
        words = ["task_data", str(tmp_path / seed), "--train", "60", "--test", "10", "--seed", seed]
        monkeypatch.setattr(sys, "argv", words)
        task_data.main()
    asked, other = (read_examples(tmp_path / seed / "test.jsonl") for seed in ("0", "1"))
    assert len(asked) == 10 and {each.prompt for each in asked} != {each.prompt for each in other}
    taught = (tmp_path / "0" / "train.jsonl").read_text(encoding="utf-8")
    assert taught == (tmp_path / "1" / "train.jsonl").read_text(encoding="utf-8") and taught.count("\n") == 60
    assert not any(json.dumps(each.prompt) in taught for each in asked)
    given = {"model": DEMO_FOLDER, "train_data": tmp_path / "0" / "train.jsonl", "output_dir": tmp_path / "model"}
    given |= {"bf16": False, "max_steps": 1, "warmup_steps": 0}
    train([str(REPOSITORY / "examples" / "task.yaml"), *(f"--{name}={value}" for name, value in given.items())])
    assert WeDLMForCausalLM.from_pretrained(tmp_path / "model").config.mask_trained


class OfAGym(list):
    """Questions as reasoning-gym makes them, each by its number and the dataset's seed."""

    def __init__(self, kind, seed, size, **sizes):
        self.kind, self.seed, self.size = kind, seed, size

    def __getitem__(self, index):
        assert 0 <= index < self.size
        return {"question": f"What is {self.seed + index}?\n", "answer": str(self.seed + index)}

    def score_answer(self, answer, entry):
        return 1.0 if answer == entry["answer"] else 0.5


def test_questions_of_reasoning_gym_are_apart_by_seed_and_right_in_full_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", SimpleNamespace(create_dataset=OfAGym))
    task_data.gym.cache_clear()
    kinds = ["word_sorting", "counting", "rotate_matrix"]
    taught = task_data.train_examples(kinds, 9)
    assert [each.kind for each in taught] == 3 * kinds
    tests = [task_data.test_examples(kinds, 9, seed) for seed in (0, 1)]
    asked = [each.prompt for examples in (taught, *tests) for each in examples if each.kind == "word_sorting"]
    assert len(set(asked)) == len(asked) == 9
    for each in tests[1]:
        assert task_data.check(each, each.answer) and not task_data.check(each, "")
    monkeypatch.setattr(task_data, "sys", SimpleNamespace(flags=SimpleNamespace(hash_randomization=1)))
    with pytest.raises(SystemExit, match="depend on Python's hash seed; start with PYTHONHASHSEED=0"):
        task_data.train_examples(["polynomial_multiplication"], 1)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    task_data.gym.cache_clear()
    with pytest.raises(SystemExit, match="word_sorting come from reasoning-gym: pip install reasoning-gym"):
        task_data.train_examples(kinds, 1)


GYM = """
from examples import task_data as data
for kind in data.GYM_TASKS:
    taught = data.train_examples([kind], 30)
    first, second = (data.test_examples([kind], 30, seed) for seed in (0, 1))
    assert all(data.check(each, each.answer) and not data.check(each, "") for each in [*taught, *first, *second])
    print(kind, len({each.prompt for each in [*taught, *first]} & {each.prompt for each in second}), [*second])
"""


@pytest.mark.real
def test_reasoning_gym_itself_gives_questions_with_answers_that_are_right(tmp_path):
    place = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'build' / 'real-packages'}"
    printed = [run_python(GYM, tmp_path, PYTHONPATH=place, PYTHONHASHSEED="0") for _ in range(2)]
    assert printed[0] == printed[1]
    assert [line.split()[:2] for line in printed[0].splitlines()] == [[kind, "0"] for kind in task_data.GYM_TASKS]


def test_the_real_models_tokenizer_is_the_same_on_every_version(tmp_path):
    """transformers 5.17 reads the first token of a GGUF file as the last one too, and a decoder of SentencePiece's."""
    save_smollm(tmp_path)
    config = LlamaConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    files = []
    for version in ("5.24", "5.17"):
        read = AutoTokenizer.from_pretrained(tmp_path)
        if version == "5.17":
            read.eos_token = read.bos_token
            read.backend_tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteLevel()])
            read.backend_tokenizer.normalizer = normalizers.Sequence([])
        tokenizer = tokenizer_like(read, config)
        assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token_id) == ("<|im_start|>", "<|im_end|>", 2)
        assert tokenizer.decode(tokenizer("▁the cat 42\n")["input_ids"]) == "▁the cat 42\n"
        tokenizer.save_pretrained(tmp_path / version)
        files.append(
            [(tmp_path / version / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")]
        )
    assert files[0] == files[1]


@pytest.mark.ecosystem
def test_trl_sft(run, tmp_path):
    run("trl_sft", DEMO_FOLDER, tmp_path / "out", 1)
    assert (tmp_path / "out" / "modeling_wedlm.py").exists(), "the code goes with the weights"


@pytest.mark.full
def test_server_client(run):
    with started_server(DEMO_FOLDER) as (_, port):
        whole, streamed = run("server_client", f"http://127.0.0.1:{port}/v1").splitlines()
    assert whole == streamed.replace("|", "") == "10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60."
