"""The evidence on a real model, made here on the demo, its plain copy, a random adapter and peers of a few lines."""

import json
import shutil
import stat
import sys

import pytest
from draft_models import save_adapter
from transformers import AutoModelForCausalLM

import wedlm
from wedlm.checkpoints.convert import convert_to_autoregressive
from wedlm.checkpoints.demo_folder import DEMO_FOLDER

PEER = f"""#!{sys.executable}
import json, sys
if sys.argv[1] == "-c":
    print("0.0.7")
    sys.exit()
library, arguments = sys.argv[2], json.loads(sys.argv[4])
with open(int(sys.argv[3]), "w") as answers:
    print("noise")
    number = 9 if "speculative_config" in arguments else 8
    print("{{}}", file=answers, flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        if call["new_tokens"] == 0:
            sys.exit("no tokens")
        rows = [call["new_tokens"] * [number] for _ in call["prompts"]]
        print(json.dumps({{"tokens": rows}}), file=answers, flush=True)
"""


@pytest.fixture
def evidence_real(load_benchmark):
    return load_benchmark("evidence_real")


@pytest.fixture
def peer(tmp_path):
    """An environment whose Python is a library that writes the number 8, and as vLLM with a drafter 9."""
    python = tmp_path / "peer" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PEER)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "peer"


@pytest.mark.full
def test_one_command_measures_every_way(run, evidence_real, peer, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence_real, "GROUPS", {"numbers": ("maths", "counting"), "prose": ("summary",)})
    convert_to_autoregressive(DEMO_FOLDER, tmp_path / "stock")
    save_adapter(tmp_path / "adapter", base=DEMO_FOLDER)
    where = [f"--{name}={peer}" for name in ("vllm", "peers", "openvino", "openvino-model", "gguf")]
    where += [f"--stock={tmp_path / 'stock'}", f"--adapter={tmp_path / 'adapter'}", f"--work={tmp_path / 'work'}"]
    few = ["--new-tokens=5", "--batch-size=4", "--threads=1", "--rounds=1"]
    add = evidence_real.WorkFile.add

    def load_gguf(path, dtype):
        return wedlm.fuse(AutoModelForCausalLM.from_pretrained(tmp_path / "stock", dtype=dtype)), None

    monkeypatch.setattr(wedlm, "load_gguf", load_gguf, raising=False)

    def stopping(work, key, result):
        if key == ("speed", 1, 2, 0):
            raise KeyboardInterrupt
        add(work, key, result)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(evidence_real.WorkFile, "add", stopping)
        run("evidence_real", *where, *few)
    partial = json.loads((tmp_path / "evidence_real.json").read_text())["results"]
    assert partial["batches"] == {"measured": 2, "planned": 5}
    assert [(cell["group"], cell["prompts"]) for cell in partial["cells"]] == [("numbers", 2), ("all", 2)]

    results = run("evidence_real", *where, *few)["results"]
    assert results["batches"] == {"measured": 5, "planned": 5}
    assert [(cell["batch_size"], cell["group"], cell["prompts"]) for cell in results["cells"]] == [
        (1, "numbers", 2),
        (1, "prose", 1),
        (1, "all", 3),
        (4, "all", 6),
    ]
    ways = dict.fromkeys(way for cell in results["cells"] for way in cell["ways"])
    assert results["bytes"].keys() == set(ways) and len(ways) == 16
    for cell in results["cells"]:
        assert (evidence_real.LOOK_UP in cell["ways"]) == (cell["batch_size"] == 1)
        assert cell["ways"][evidence_real.PLAIN]["times_generate"] == {"median": 1, "quartiles": [1, 1]}
        for name, numbers in cell["ways"].items():
            if name in evidence_real.ROUNDS_ACTIVATIONS:
                assert numbers["same_texts"] is None
            else:
                peers = (evidence_real.ECONOMIZE, evidence_real.OPENVINO)
                assert numbers["same_texts"] == (0 if "vLLM" in name or name in peers else cell["prompts"])
    with monkeypatch.context() as patched:
        patched.setattr(evidence_real, "ways_of_transformers", None)  # nothing is measured again
        assert run("evidence_real", *where, *few)["results"] == results


def test_a_peer_that_ends_is_an_error_with_its_last_words(load_benchmark, peer, tmp_path):
    common = load_benchmark("common")
    with common.PeerProcess(peer, "vllm", {"dtype": "float32"}, 1, tmp_path / "log") as process:
        assert process.write([[1], [2, 3]], 2).tokens == [[8, 8], [8, 8]]
        with pytest.raises(RuntimeError, match=r"vllm has ended \(1\); repair .*:\n(.|\n)*no tokens"):
            process.write([[1]], 0)
    assert process.process.poll() is not None


def test_a_record_of_another_machine_becomes_columns(evidence_real, load_benchmark, tmp_path, monkeypatch):
    """It has no other library, as `make evidence-here` writes it, and is the headline only if it gains least."""
    ours = evidence_real.lowest(evidence_real.read_records())
    peers = {evidence_real.ECONOMIZE, evidence_real.OPENVINO, evidence_real.LLAMA, evidence_real.LLAMA_DRAFTING}
    peers |= {evidence_real.VLLM, evidence_real.VLLM_DRAFTING}
    other = json.loads(ours.file.read_text(encoding="utf-8"))
    other |= {"cpu": "AMD EPYC, AVX2", "peers_versions": dict.fromkeys(other["peers_versions"])}
    for cell in other["results"]["cells"]:
        cell["ways"] = {name: numbers for name, numbers in cell["ways"].items() if name not in peers}
        cell["ways"][evidence_real.FUSED_VERIFIED]["times_generate"]["median"] = 9.87
    monkeypatch.setattr(evidence_real, "RECORDS", tmp_path)
    shutil.copy(ours.file, tmp_path)
    evidence_real.file_of(other["cpu"], "float32").write_text(json.dumps(other), encoding="utf-8")

    records = evidence_real.read_records()
    assert [record.cpu for record in records] == [other["cpu"], ours.cpu]
    header, _, *lines = evidence_real.speed_table(records, "float32").splitlines()
    assert header.count(", one at a time |") == header.count(", 8 at once |") == 2
    cells = {
        line.split(" | ")[0].removeprefix("| "): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines
    }
    assert cells[evidence_real.OPENVINO][2:] == ["", ""] and all(cells[evidence_real.OPENVINO][:2])
    assert cells[evidence_real.FUSED_VERIFIED][2].startswith("9.87 (")
    assert evidence_real.lowest(records).cpu == ours.cpu
    assert " to 9.87 times with verified decoding" in evidence_real.headline(records)
    assert "9.87×" in evidence_real.overview(records)
    evidence_real.draw_overview(records, tmp_path)
    assert (tmp_path / evidence_real.CHART).read_bytes().startswith(b"\x89PNG")
    (page, *_) = load_benchmark("evidence").pages().values()
    assert "no other library" in page and "**AMD EPYC (AVX2) in float32, one at a time,**" in page

    for cell in other["results"]["cells"]:
        cell["ways"][evidence_real.FUSED_VERIFIED]["times_generate"]["median"] = 0.12
    evidence_real.file_of(other["cpu"], "float32").write_text(json.dumps(other), encoding="utf-8")
    records = evidence_real.read_records()
    assert ", and 0.12 to " in evidence_real.headline(records)
    assert "0.12×" in evidence_real.overview(records)
    for cell in other["results"]["cells"]:
        cell["ways"][evidence_real.VLLM] = cell["ways"][evidence_real.PLAIN] | {
            "times_generate": {"median": 99, "quartiles": [99, 99]}
        }
    evidence_real.file_of(other["cpu"], "float32").write_text(json.dumps(other), encoding="utf-8")
    told = evidence_real.compared(evidence_real.read_records())
    slower = "slower on AMD EPYC (AVX2) in float32, one at a time and 8 at once"
    assert f"than vLLM in 2 of 4 setups ({slower}), and" in told
    assert "than OpenVINO GenAI in 2 of 2 measured setups. " in told


@pytest.mark.parametrize(
    ("family", "model", "generation"),
    [(25, 1, "Zen 3"), (25, 17, "Zen 4"), (25, 160, "Zen 4"), (26, 2, "Zen 5"), (6, 143, "family 6 model 143")],
)
def test_the_generation_of_a_cpu_is_part_of_its_name(evidence_real, family, model, generation):
    info = f"vendor_id\t: some\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: EPYC\n"
    assert evidence_real.generation_of(info) == generation
    assert evidence_real.generation_of("") == ""


def test_every_round_counts_beside_generate_in_the_same_round(evidence_real):
    """The second round of a machine that is half as fast changes no ratio."""
    taken = [
        [
            {way: {"tokens": [[1] * 6], "seconds": slow * s, "forwards": [3]} for way, s in ways.items()}
            for slow in (1, 2)
        ]
        for ways in ({evidence_real.PLAIN: 2.0, "other": 1.0}, {evidence_real.PLAIN: 3.0, "other": 1.0})
    ]
    numbers = evidence_real.numbers("other", taken)
    assert numbers["times_generate"] == {"median": 2.5, "quartiles": [2, 3]}
    assert numbers["tokens_per_second"]["median"] == 4.5 and numbers["tokens_per_forward"] == 2
