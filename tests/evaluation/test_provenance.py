"""The command, commit and versions behind measured numbers, and what identifies a checkpoint."""

import json
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint
from wedlm.evaluation import provenance
from wedlm.evaluation.provenance import checkpoint_identity, command, record_text, weights_digest, write_report
from wedlm.fused.native import SET


def test_the_digest_of_weights_in_several_files(tmp_path):
    index = {"weight_map": {"b": "2.safetensors", "a": "1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("1", "2", "adapter"):  # the last one is not loaded
        (tmp_path / f"{name}.safetensors").write_text(name)
    assert weights_digest(tmp_path) == sha256(b"12").hexdigest()


def test_a_checkpoint_is_its_weights_its_files_and_how_it_generates(demo, tmp_path, monkeypatch):
    model, _ = demo
    for path in DEMO_FOLDER.iterdir():
        (tmp_path / path.name).symlink_to(path)
    identity = checkpoint_identity(model, tmp_path)
    assert identity["weights_sha256"] == weights_digest(DEMO_FOLDER) and identity["dtype"] == "float32"
    own = json.loads((DEMO_FOLDER / "generation_config.json").read_text(encoding="utf-8"))["entropy_threshold"]
    assert identity["generation_config"]["entropy_threshold"] == own != 0.3
    (tmp_path / "README.md").unlink()
    assert checkpoint_identity(model, tmp_path) == identity, "texts about it do not change its answers"
    (tmp_path / "chat_template.jinja").unlink()
    assert checkpoint_identity(model, tmp_path)["files_sha256"] != identity["files_sha256"]
    monkeypatch.setattr(model.generation_config, "entropy_threshold", 0.3)
    assert checkpoint_identity(model, tmp_path)["generation_config"]["entropy_threshold"] == 0.3


def test_a_fused_checkpoint_is_another_one(demo):
    fused, _ = load_checkpoint(DEMO_FOLDER, "float32", "cpu", only_decodes=True)
    identity = checkpoint_identity(demo[0], DEMO_FOLDER)
    assert identity["product"] is None
    assert checkpoint_identity(fused, DEMO_FOLDER) == identity | {"product": SET or "torch"}


@pytest.mark.parametrize(
    ("script", "module", "shown"),
    [
        ("/somewhere/bin/wedlm", None, "wedlm 'a b' --limit 3"),
        ("/somewhere/report.py", "examples.demo.report", "python -m examples.demo.report 'a b' --limit 3"),
        (str(provenance.REPOSITORY / "benchmarks" / "fused.py"), None, "python benchmarks/fused.py 'a b' --limit 3"),
        ("/somewhere/else.py", None, "python else.py 'a b' --limit 3"),
    ],
)
def test_the_command_as_it_is_typed_in_the_repository(monkeypatch, script, module, shown):
    monkeypatch.setattr(sys, "argv", [script, "a b", "--limit", "3"])
    spec = None if module is None else type("Spec", (), {"name": module})
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    assert command() == shown


def test_a_report_holds_its_conditions_and_replaces_the_old_one_at_once(tmp_path, monkeypatch):
    path = tmp_path / "new" / "report.json"
    write_report(path, {"a": 1}, "cpu", packages=["numpy"], model="m")
    written = json.loads(path.read_text(encoding="utf-8"))
    assert list(written) == ["command", "commit", "versions", "device", "threads", "model", "results"]
    assert (written["model"], written["results"]) == ("m", {"a": 1}) and "numpy" in written["versions"]
    monkeypatch.setattr(Path, "replace", lambda *paths: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError):
        write_report(path, {"a": 2}, "cpu")
    assert json.loads(path.read_text(encoding="utf-8"))["results"] == {"a": 1}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@property_settings(30)
@given(JSON, st.integers(3, 40))
def test_a_record_is_json_in_few_lines(value, times):
    several = {"one": value, "many": [value] * times, "numbers": list(range(times * 20))}
    text = record_text(several)
    assert json.loads(text) == several and len(text.splitlines()) <= len(json.dumps(several, indent=2).splitlines())
    assert record_text({"median": 1.5, "quartiles": [1, 2]}) == '{"median": 1.5, "quartiles": [1, 2]}'
