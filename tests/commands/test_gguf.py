"""Commands take a GGUF file wherever they take a model."""

import json
from pathlib import Path

import pytest
import torch
from command_line import run
from evaluations import DEMO_TASKS
from gguf_files import write_gguf
from peft import get_peft_model
from serving_client import client_of, started_server

from wedlm import DraftLoraConfig, load_gguf
from wedlm.fused.gguf_file import GgufFile

PROMPT = "the and in an"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama", "Q8_0", {"ffn_down": "Q6_K"})


@pytest.fixture(scope="module")
def answer(file):
    """The text token by token, as the command's tokens are chosen."""
    model, tokenizer = load_gguf(file)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(ids, skip_special_tokens=True)


def test_generate_trace_and_compare_write_the_texts_of_the_file(file, answer):
    for decoding in ((), ("--decoding", "autoregressive"), ("--dtype", "float32")):
        result = run("generate", file, PROMPT, "--raw", "--max-new-tokens", 12, *decoding)
        assert (result.exit_code, result.stdout.strip()) == (0, answer.strip())
    compared = run("compare", file, PROMPT, "--raw", "--max-new-tokens", 12)
    assert compared.exit_code == 0 and "autoregressive, verified:" in compared.stdout and "same" in compared.stdout
    traced = run("trace", file, PROMPT, "--raw", "--max-new-tokens", 12)
    assert traced.exit_code == 0 and "12 tokens" in traced.stdout + traced.stderr


def test_chat_holds_a_conversation(file):
    result = run("chat", file, "--max-new-tokens", 4, input="hello\n/quit\n")
    assert result.exit_code == 0 and "4 tokens" in result.output


def test_a_draft_adapter_stands_for_its_file(file, answer, tmp_path):
    torch.manual_seed(0)
    adapted = get_peft_model(load_gguf(file)[0], DraftLoraConfig(r=2, init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    result = run("generate", tmp_path / "adapter", PROMPT, "--raw", "--max-new-tokens", 12)
    assert (result.exit_code, result.stdout.strip()) == (0, answer.strip()), result.output


def test_damaged_files_are_a_sentence_in_every_command(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cut.gguf").write_bytes(file.read_bytes()[:5000])
    Path("data.jsonl").write_text('{"prompt": "the"}\n')
    for command in (["generate", "cut.gguf", "Hi"], ["info", "cut.gguf"], ["serve", "cut.gguf"],
                    ["tune", "cut.gguf", "--data", "data.jsonl"]):  # fmt: skip
        result = run(*command)
        assert result.exit_code == 2 and "cut.gguf is not a complete GGUF file (it" in result.stderr, result.output


@pytest.mark.full
def test_serve_answers(file, answer):
    with started_server(file) as (_, port):
        asked = {"model": "tiny.gguf", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        assert client_of(port).completions.create(**asked).choices[0].text.strip() == answer.strip()


@pytest.mark.full
def test_tune_says_what_to_pass_and_writes_nothing_beside_the_file(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"prompt": "the"}\n{"prompt": "and"}\n')
    before = sorted(file.parent.iterdir())
    result = run("tune", file, "--data", "data.jsonl", "--max-new-tokens", 4, "--max-quality-loss", "90%")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "tune.json").read_text())
    assert report["query_cost"] >= 0 and {label.split(",")[0] for label in report["results"]} >= {"verified"}
    if report["chosen"] is not None:
        assert "A GGUF file has no generation_config.json; pass --decoding" in result.stderr
    assert sorted(file.parent.iterdir()) == before


@pytest.mark.full
def test_eval_scores_a_file(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tasks = ["--tasks", "demo_counting", "--include-path", DEMO_TASKS, "--limit", 2, "--apply-chat-template"]
    result = run("eval", file, *tasks, "--decoding", "verified", "--decoding", "autoregressive")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "eval.json").read_text())
    assert report["model"] == str(file) and {each["decoding"] for each in report["results"]} >= {"verified"}


def test_info_names_blocks_and_their_share(file):
    result = run("info", file)
    assert result.exit_code == 0, result.output
    sizes = {name: info.num_bytes for name, info in GgufFile(file).tensors.items()}
    down = sum(size for name, size in sizes.items() if "ffn_down" in name)
    assert f"Q6_K {100 * down / sum(sizes.values()):.0f} %" in result.stdout and "Q8_0" in result.stdout
    assert "2 layers, 256 wide, 4 heads and 2 key-value heads of 64" in result.stdout


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("generate", "no.gguf", "Hi"), "no.gguf is not a file; give the path of a GGUF file"),
        (("convert", "FILE", "out"), "is a GGUF file, which `wedlm generate`"),
        (("generate", "FILE", "Hi", "--device", "cuda"), "A GGUF file is for a CPU"),
        (("generate", "FILE", "Hi", "--dtype", "float16"), "is not one of float32 and bfloat16"),
        (("generate", "FILE", "Hi", "--decoding", "streaming"), "streaming"),
    ],
    ids=["missing", "convert", "device", "dtype", "streaming"],
)
def test_what_a_file_cannot_do_is_a_sentence(file, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    result = run(*(str(file) if each == "FILE" else each for each in arguments))
    assert result.exit_code == 2 and sentence in result.stderr and "Traceback" not in result.output
