"""`wedlm export --strategy`: the decoding alone, in a process that has transformers and torch only."""

import shutil

import pytest
from command_line import run
from exports import TOKEN
from helpers import run_python
from safetensors.torch import load_file, save_file
from stock_families import stock

from wedlm.checkpoints.demo_folder import DEMO_FOLDER

CODE = """
import torch
from transformers import AutoModelForCausalLM
from transformers.generation import BaseStreamer

class Recorder(BaseStreamer):
    tokens = []
    def put(self, value): self.tokens += value.flatten().tolist()
    def end(self): self.tokens.append("end")

stock, whole = (AutoModelForCausalLM.from_pretrained(n, trust_remote_code=n == "whole") for n in ("stock", "whole"))
ids = torch.tensor([[5, 6, 7] * 5])
call = dict(inputs=ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=0)
expected = stock.generate(**call).tolist()
way = dict(custom_generate="out", trust_remote_code=True, query_cost=0, return_dict_in_generate=True)
output = stock.generate(**call, **way, streamer=Recorder())
print(output.sequences.tolist() == expected, output.forwards.item() < 24, Recorder.tokens == [*expected[0], "end"])
print(whole.generate(**call, query_cost=0).tolist() == expected)
try:
    stock.generate(**call, **way, num_beams=2)
except ValueError as error:
    print(error)
"""


def test_it_decodes_without_the_package(tmp_path):
    stock("Llama").save_pretrained(tmp_path / "stock")
    for words in (["--strategy", tmp_path / "out"], [tmp_path / "stock", "--strategy", tmp_path / "whole"]):
        result = run("export", *words)
        assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", "custom_generate"}
    printed = run_python(CODE, tmp_path, wedlm=False)
    assert "True True True\nTrue\n" in printed
    assert "generation mode='beam_search' is not offered by decoding='verified'" in printed


def test_it_overwrites_an_export_alone(tmp_path):
    assert run("export", "--strategy", tmp_path / "out").exit_code == 0
    assert run("export", "--strategy", tmp_path / "out").exit_code == 2
    assert run("export", "--strategy", tmp_path / "out", "--overwrite").exit_code == 0
    shutil.rmtree(tmp_path / "out" / "custom_generate")
    assert "is not a checkpoint" in run("export", "--strategy", tmp_path / "out", "--overwrite").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([DEMO_FOLDER], "MODEL or OUT is missing; give both"),
        ([DEMO_FOLDER, "other", "--strategy", "out"], "--strategy OUT names the folder itself"),
        (["gone", "--strategy", "out"], "gone is not a folder here"),
    ],
)
def test_refusals(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("export", *words)
    assert result.exit_code == 2 and message in result.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors"])
def test_a_leak_in_a_file_of_the_base_is_refused(name, tmp_path):
    base, out = tmp_path / "base", tmp_path / "out"
    stock("Llama").save_pretrained(base)
    (base / "README.md").write_text("A model.")
    if name == "model.safetensors":
        save_file(load_file(base / name), base / name, {"format": "pt", "from": TOKEN})
    else:
        text = (base / name).read_text()
        (base / name).write_text(text.replace('"llama"', f'"llama", "from": "{TOKEN}"').replace("A model.", TOKEN))
    result = run("export", base, "--strategy", out)
    secret = "a token, a key or another secret"
    assert result.stderr == f"{name} would contain {secret}; remove it from that file of {base}, and export again.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_base_with_code_of_its_own_is_refused(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text('{"auto_map": {"AutoConfig": "code.Config"}}')
    result = run("export", tmp_path / "base", "--strategy", tmp_path / "out")
    assert result.exit_code == 2 and "names code of its own (auto_map in config.json)" in result.stderr
    assert not (tmp_path / "out").exists()
