"""The evidence on a real model, made here on the demo, its plain copy, a random adapter and a vLLM of a few lines."""

import hashlib
import json
import stat
import sys
from argparse import Namespace

import pytest
from draft_models import save_adapter
from helpers import REPOSITORY
from human_eval_problems import ADD

from wedlm.checkpoints.convert import convert_to_autoregressive
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.drafts.prompts import KINDS, Prompt
from wedlm.fused.model import product_of

VLLM = f"""#!{sys.executable}
import json, sys
if sys.argv[1] == "-c":
    print("0.0.7")
    sys.exit()
with open(int(sys.argv[2]), "w") as answers:
    print("noise")
    arguments = json.loads(sys.argv[3])
    assert arguments["max_num_seqs"] == 4 and not arguments["enable_prefix_caching"]
    with open(sys.argv[0] + ".dtypes", "a") as dtypes:
        print(arguments["dtype"], file=dtypes)
    number = 9 if "speculative_config" in arguments else 8
    print("{{}}", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["new_tokens"] == 0:
            sys.exit("no tokens")
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


def test_one_command_measures_texts_scores_and_speed(
    run, evidence_real, vllm, packages, tmp_path, monkeypatch, capsys
):
    convert_to_autoregressive(DEMO_FOLDER, tmp_path / "stock")
    save_adapter(tmp_path / "adapter", base=DEMO_FOLDER)
    for group in ("data", "numbers", "prose"):
        monkeypatch.delitem(evidence_real.GROUPS, group)
    few = ("--prompts-per-kind", 1, "--new-tokens", 5, "--bfloat16-prompts", 2, "--problem-tokens", 4, "--limit", 1)
    few += ("--speed-prompts", 2, "--speed-tokens", 3, "--batch-size", 4, "--threads", 1, "--rounds", 1)
    where = ("--stock", tmp_path / "stock", "--model", DEMO_FOLDER, "--adapter", tmp_path / "adapter")
    where += ("--human-eval", packages, "--vllm", vllm, "--plots", tmp_path / "plots", "--work", tmp_path / "work")
    report = run("evidence_real", *where, *few)
    results = report["results"]

    exact = [cell for cell in results["texts"] if cell["dtype"] == "float32"]
    assert [(cell["kind"], cell["prompts"]) for cell in exact] == [*((kind, 1) for kind in KINDS), ("HumanEval", 3)]
    assert sum(cell["prompts"] for cell in results["texts"] if cell["dtype"] == "bfloat16") == 2
    for cell in exact:
        for way in cell["ways"].values():
            assert way["same_texts"] == cell["prompts"]
            assert 0 < way["forwards"] <= way["tokens"] <= 5 * cell["prompts"]

    assert {each["task"] for each in results["scores"]} == {"HumanEval", "real_json", "real_copying"}
    assert (
        all(one == other for _, one, other in evidence_real.pairs(results["scores"])) and len(results["scores"]) == 6
    )

    assert [(cell["batch_size"], cell["group"]) for cell in results["speed"]] == [
        (size, group) for size in (1, 4) for group in ("code", "HumanEval", "all")
    ]
    for cell in results["speed"]:
        assert cell["prompts"] == (4 if cell["group"] == "all" else 2)
        assert list(cell["ways"])[-2:] == [evidence_real.VLLM, evidence_real.VLLM_DRAFTING]
        for name in (evidence_real.LOOK_UP, evidence_real.LOOK_UP_PACKED):
            assert (name in cell["ways"]) == (cell["batch_size"] == 1)
        assert cell["ways"][evidence_real.PLAIN]["times_generate"] == {"median": 1, "quartiles": [1, 1]}
        for name, numbers in cell["ways"].items():
            assert numbers["same_texts"] == (0 if "vLLM" in name else cell["prompts"])
            assert 0 < numbers["tokens_per_second"]["median"]
            counts_forwards = name.startswith("WeDLM")
            assert (numbers["tokens_per_forward"] is not None) == counts_forwards
        assert cell["ways"][evidence_real.TOKEN_BY_TOKEN]["tokens_per_forward"] == 1
        assert 1 <= cell["ways"][evidence_real.UNPACKED]["tokens_per_forward"] <= 3

    assert report["vllm_version"] == "0.0.7" and report["threads"] == 1 and len(report["adapter_sha256"]) == 64
    printed = capsys.readouterr().out
    assert all(each in printed for each in evidence_real.sentences_and_tables(results, "float32").values())
    assert (tmp_path / "plots" / "real_speed.png").read_bytes().startswith(b"\x89PNG")

    with monkeypatch.context() as patched:
        patched.setattr(evidence_real, "way_of", lambda *_, **__: None)  # nobody is asked again
        assert run("evidence_real", *where, *few)["results"] == results

    report = run("evidence_real", *where, *few, "--only-speed", "--dtype", "bfloat16")
    assert (vllm / "bin" / "python.dtypes").read_text().split() == 2 * ["float32"] + 2 * ["bfloat16"]
    assert report["dtype"] == "bfloat16" and list(report["results"]) == ["speed"]
    assert evidence_real.speed_tables(report["results"]) in capsys.readouterr().out
    assert (tmp_path / "plots" / "real_speed_bfloat16.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def models(evidence_real, tmp_path):
    convert_to_autoregressive(DEMO_FOLDER, tmp_path / "stock")
    save_adapter(tmp_path / "adapter", base=DEMO_FOLDER)
    given = Namespace(stock=tmp_path / "stock", model=DEMO_FOLDER, adapter=tmp_path / "adapter")
    return evidence_real.load_models(given, "float32")


def test_each_way_has_its_model(evidence_real, models, monkeypatch):
    ways = evidence_real
    monkeypatch.setattr(evidence_real, "way_of", lambda model, **arguments: (model, arguments))
    asked, look_up = models.ways(), {"prompt_lookup_num_tokens": 10}
    assert asked[ways.LOOK_UP] == (models.stock, look_up)
    assert asked[ways.LOOK_UP_PACKED] == (models.packed_stock, look_up)
    assert asked[ways.TOKEN_BY_TOKEN] == (models.base, {"decoding": "autoregressive"})
    assert asked[ways.VERIFIED] == (models.base, {"decoding": "verified"})
    assert asked[ways.ADAPTED] == (models.adapted, {"decoding": "verified"})
    assert asked[ways.UNPACKED] == (models.unpacked, {"decoding": "verified"})
    assert (asked[ways.PLAIN], asked[ways.PLAIN_PACKED]) == ((models.stock, {}), (models.packed_stock, {}))
    unpacked = {name for name, (model, _) in asked.items() if product_of(model) is None}
    assert unpacked == {ways.PLAIN, ways.LOOK_UP, ways.UNPACKED}
    adapted = {name for name, (model, _) in asked.items() if "DraftProduct" in str(model)}
    assert adapted == {ways.ADAPTED, ways.UNPACKED}


def test_every_kind_is_in_one_group(evidence_real):
    assert sorted(kind for kinds in evidence_real.GROUPS.values() for kind in kinds) == sorted(KINDS)


def test_groups_have_prompts_of_all_their_kinds_in_turns(evidence_real):
    problems = [Prompt("HumanEval", str(number)) for number in range(164)]
    groups = evidence_real.prompts_by_group(problems, 8)
    assert [prompt.kind for prompt in groups["numbers"]] == 4 * ["maths", "counting"]
    assert {prompt.kind for prompt in groups["prose"]} == set(evidence_real.GROUPS["prose"])
    assert [prompt.text for prompt in groups["HumanEval"]] == [str(20 * place) for place in range(8)]
    assert all(len(set(prompts)) == 8 for prompts in groups.values())


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Here it is:\n```python\ndef add(numbers: List[int]) -> int:\n    return sum(numbers)\n```\nIt adds.", 1.0),
        ("def add(numbers):\n    return sum(numbers)", 1.0),
        ("    return sum(numbers)", 1.0),
        ("```python\ndef add(numbers):\n    return sum(numbers", 0.0),
        ("```python\ndef add(numbers):\n    return 0\n```", 0.0),
        ("It returns the sum.", 0.0),
    ],
)
def test_the_code_of_an_answer_is_run(evidence_real, answer, score):
    assert evidence_real.human_eval_score([ADD], [answer])["value"] == score


def test_scores_of_the_tasks(load_benchmark):
    questions = load_benchmark("evidence_real_tasks.questions")
    assert questions.score_json("", '```json\n{"a": 1}\n```\nThat is it.') == questions.score_json("", "[1]") == 1
    assert questions.score_json("", '```json\n{"a": 1') == 0
    key = "The cat sat. The dog ran. All was well."
    assert questions.score_copying(key, key) == 1
    assert questions.score_copying(key, "The cat sat. The hog ran. All was well.") == 2 / 3
    for kind in questions.SCORES:
        records = questions.dataset(kind)["test"]
        assert len(records) == 200 and len(set(records["prompt"])) > 190 and set(records["kind"]) == {kind}


def test_speeds_are_those_of_the_median_round(evidence_real):
    speed, plain = evidence_real, evidence_real.PLAIN
    batches = speed.batches_of({"code": [[1], [2], [3]]}, [2])
    assert batches == {speed.Batch(2, "code", 0): [[1], [2]], speed.Batch(2, "code", 1): [[3]]}
    work = {}
    for batch, seconds in zip(batches, ([4, 9, 5], [2, 2, 2]), strict=True):
        for number, each in enumerate(seconds):
            tokens = [[7, 7]] * len(batches[batch])
            work["speed", *batch, number] = {
                plain: {"seconds": 10, "tokens": tokens, "forwards": None},
                "other": {
                    "seconds": each,
                    "tokens": [tokens[0][:-1] + [8], *tokens[1:]],
                    "forwards": [1 + number, *(2 for _ in tokens[1:])],
                },
            }
    assert speed.missing(batches, 3, work) == []
    del work["speed", *speed.Batch(2, "code", 1), 1]
    assert speed.missing(batches, 3, work) == [(1, speed.Batch(2, "code", 1))]
    work["speed", *speed.Batch(2, "code", 1), 1] = work["speed", *speed.Batch(2, "code", 1), 0]
    cell, _ = speed.speeds(batches, 3, work)
    other = cell["ways"]["other"]
    assert (cell["prompts"], other["same_texts"], cell["ways"][plain]["same_texts"]) == (3, 1, 3)
    assert other["tokens_per_second"]["median"] == pytest.approx((4 / 5 + 2 / 2) / 2)
    assert other["times_generate"]["quartiles"] == pytest.approx([2.75, 4.25])  # between 10 / 5 and 10 / 2
    assert other["tokens_per_forward"] == 6 / 4, "of the first round"
    assert cell["ways"][plain]["tokens_per_forward"] is None


def test_a_vllm_that_ends_is_an_error_with_its_last_words(load_benchmark, vllm, tmp_path):
    common = load_benchmark("common")
    arguments = {"dtype": "float32", "max_num_seqs": 4, "enable_prefix_caching": False}
    with common.VLLMProcess(vllm, arguments, 1, tmp_path / "log") as process:
        assert process.write([[1], [2, 3]], 2).tokens == [[8, 8], [8, 8]]
        with pytest.raises(RuntimeError, match=r"vLLM has ended \(1\); repair .*:\n(.|\n)*no tokens"):
            process.write([[1]], 0)
    assert process.process.poll() is not None
    assert common.vllm_version(tmp_path / "nowhere") is None


def test_the_recorded_evidence_is_of_a_commit_and_of_the_published_adapter(evidence_real):
    report, rounded = (json.loads(file.read_text(encoding="utf-8")) for file in evidence_real.FILES.values())
    adapter = REPOSITORY / "hub_card" / "smollm2-135m-adapter" / "adapter_model.safetensors"
    for each in (report, rounded):
        assert each["adapter_sha256"] == hashlib.sha256(adapter.read_bytes()).hexdigest()
        assert len(each["commit"]) == 40, "a commit, without changes"
        assert each["command"].startswith("python benchmarks/evidence_real.py") and each["vllm_version"]
        assert {cell["batch_size"] for cell in each["results"]["speed"]} == {1, 8}
    assert rounded["dtype"] == "bfloat16"
    cells = {(cell["dtype"], cell["kind"]): cell["prompts"] for cell in report["results"]["texts"]}
    assert cells["float32", "HumanEval"] == 164
    assert all(cells["float32", kind] >= 4 for kind in KINDS)
    assert sum(number for (dtype, _), number in cells.items() if dtype == "bfloat16") >= 8
