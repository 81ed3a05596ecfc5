"""The draft adapter of the real model, as it is published in the repository."""

import gzip
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import REPOSITORY
from transformers import AutoTokenizer

from examples import real_adapter
from examples.real_adapter import write_prompts
from wedlm.checkpoints.demo_folder import REAL_MODEL
from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.resolve import ADAPTER_FILE, ADAPTER_WEIGHTS, GENERATION_FILE, base_of
from wedlm.drafts.measure import adapter_card
from wedlm.drafts.prompts import read_prompts
from wedlm.hub_card.leaks import find_leak
from wedlm.hub_card.reports import PLOT_FILE, REPORT_FILE, labelled

PUBLISHED = REPOSITORY / "hub_card" / "smollm2-135m-adapter"


def test_the_files_are_small_and_name_the_base_in_any_clone():
    files = {path.name: path for path in PUBLISHED.iterdir()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    own = {ADAPTER_FILE, ADAPTER_WEIGHTS, GENERATION_FILE, REPORT_FILE, PLOT_FILE, "README.md"}
    assert set(files) == own | tokenizer
    assert "`import wedlm` comes first" in files["README.md"].read_text(encoding="utf-8")
    assert json.loads(files[ADAPTER_FILE].read_text(encoding="utf-8"))["import_first"] == "wedlm"
    assert AutoTokenizer.from_pretrained(PUBLISHED).mask_token == "<|mask|>"
    generation = json.loads(files[GENERATION_FILE].read_text(encoding="utf-8"))
    report = json.loads(files[REPORT_FILE].read_text(encoding="utf-8"))
    assert generation["decoding"] == report["results"]["arguments"]["decoding"] == "verified"
    assert "window_size" not in generation  # so that the device decides
    assert sum(path.stat().st_size for path in files.values()) < 16e6
    fields = json.loads(files[ADAPTER_FILE].read_text(encoding="utf-8"))
    assert fields["base_model_name_or_path"] == REAL_MODEL and fields["base_fingerprint"] and fields["base_weights"]
    assert REAL_MODEL.removeprefix("./") in (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for name in (ADAPTER_FILE, REPORT_FILE, "README.md"):
        assert find_leak(files[name].read_text(encoding="utf-8"), [REPOSITORY], []) is None
        assert re.findall(r"/(?:tmp|work|root|home)/\S*", files[name].read_text(encoding="utf-8")) == []


def test_the_base_is_found_from_any_folder_and_never_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    adapter = tmp_path / "clone" / "hub_card" / "adapter"
    adapter.mkdir(parents=True)
    (adapter / ADAPTER_FILE).write_bytes((PUBLISHED / ADAPTER_FILE).read_bytes())
    with pytest.raises(CheckpointError, match=r"put it, which `make real-model` makes in a clone of .*, there, or"):
        base_of(adapter)
    base = tmp_path / "clone" / "build" / "smollm2-135m-wedlm"
    base.mkdir(parents=True)
    assert Path(base_of("clone/hub_card/adapter")).samefile(base)


def test_the_card_is_written_from_the_report(tmp_path, monkeypatch):
    report = json.loads((PUBLISHED / REPORT_FILE).read_text(encoding="utf-8"))
    adapter, out = Path(shutil.copytree(PUBLISHED, tmp_path / PUBLISHED.name)), PUBLISHED.relative_to(REPOSITORY)
    card = adapter_card(report, adapter.name, Path(REAL_MODEL).name)
    (adapter / "README.md").write_text(card, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    real_adapter.publish(adapter, out)
    assert (out / "README.md").read_text(encoding="utf-8") == (PUBLISHED / "README.md").read_text(encoding="utf-8")
    assert all(one["same_text_as_autoregressive"] == 1 for one in labelled(report["results"]).values())
    assert report["results"]["also"]["all"]["num_questions"] >= 20 and len(report["results"]["held_out"]) == 16
    assert not report["commit"].endswith("+changes")


def test_prompts_come_from_the_known_file_only(tmp_path, monkeypatch):
    problems = [{"prompt": f"def function_{number}():\n"} for number in range(164)]
    file = tmp_path / real_adapter.HUMAN_EVAL
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress("".join(json.dumps(problem) + "\n" for problem in problems).encode()))
    with pytest.raises(SystemExit, match="has the SHA-256"):
        write_prompts(tmp_path, tmp_path / "out.jsonl")
    monkeypatch.setattr(real_adapter, "HUMAN_EVAL_SHA256", real_adapter.sha256(file.read_bytes()).hexdigest())
    write_prompts(tmp_path, tmp_path / "out.jsonl")
    prompts = [json.loads(line)["prompt"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(prompts) == 20 and "def function_8():" in prompts[1]


class LLM:
    """vLLM, which repeats what it is asked, and stops in the second part where `is_stopped`."""

    is_stopped, parts = False, 0

    def __init__(self, *arguments, **options):
        pass

    def chat(self, chats, parameters):
        LLM.parts += 1
        if self.is_stopped and LLM.parts == 2:
            raise KeyboardInterrupt
        return [SimpleNamespace(outputs=[SimpleNamespace(text=f"Again: {chat[0]['content']}")]) for chat in chats]


def test_vllm_answers_every_prompt_once_and_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=LLM, SamplingParams=lambda **_: None))
    monkeypatch.setattr(real_adapter, "NUM_PROMPTS", 10)
    monkeypatch.setattr(real_adapter, "PER_PART", 4)
    monkeypatch.setattr(real_adapter.os, "environ", dict(real_adapter.os.environ))
    file = tmp_path / "work" / "train.jsonl"
    monkeypatch.setattr(LLM, "is_stopped", True)
    with pytest.raises(KeyboardInterrupt):
        real_adapter.write_answers(tmp_path, file)
    part = file.with_suffix(".part")
    part.write_text(part.read_text(encoding="utf-8") + '{"kind": "cut', encoding="utf-8")  # as a kill may leave it
    monkeypatch.setattr(LLM, "is_stopped", False)
    monkeypatch.setattr(LLM, "parts", 0)
    real_adapter.write_answers(tmp_path, file)
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [record["messages"][0]["content"] for record in records] == [prompt.text for prompt in read_prompts(10)]
    for record in records:
        assert record["messages"][1]["content"] == f"Again: {record['messages'][0]['content']}"
    assert LLM.parts == 2 and not part.exists()
