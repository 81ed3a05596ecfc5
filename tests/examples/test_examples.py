"""The scripts of examples/ run, on the demo checkpoint."""

import runpy
import sys

import pytest
from helpers import CHECKPOINTS, REPOSITORY
from serving_client import started_server
from stock_tokenizers import save_smollm
from tokenizers import decoders, normalizers
from transformers import AutoTokenizer, LlamaConfig

from examples.real_model import tokenizer_like
from wedlm.checkpoints.demo_folder import DEMO_FOLDER


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
