"""The pages show the numbers that were recorded, and the records are of a commit and of what is published."""

import hashlib
import json
import re
from collections import defaultdict

import pytest
from helpers import REPOSITORY

RESULTS = REPOSITORY / "benchmarks" / "results"
DOCS = REPOSITORY / "docs"
ADAPTER = REPOSITORY / "hub_card" / "smollm2-135m-adapter" / "adapter_model.safetensors"


def recorded(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "benchmark", "page"),
    [
        ("serving", "serving", "reference/serve"),
        ("vllm_speed", "vllm_speed", "reference/vllm"),
        ("shifted_masks", "shifted_masks", "reference/adapt"),
    ],
)
def test_a_page_shows_the_recorded_numbers(load_benchmark, name, benchmark, page):
    report, text = recorded(name), (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert load_benchmark(benchmark).table(report["results"]) in text
    assert f"python {report['command'].removeprefix('python ')}" in " ".join(text.split())


@pytest.mark.parametrize("name", ["fused", "fused_beside"])
def test_the_page_of_fused_models_shows_the_recorded_numbers(load_benchmark, name):
    report, text = recorded(name), (DOCS / "reference" / "generate.md").read_text(encoding="utf-8")
    tables = load_benchmark("fused").tables(report["results"])
    assert tables and all(table in text for table in tables.values())
    assert f"python {report['command'].removeprefix('python ')}" in text


def test_the_guide_shows_what_was_recorded_of_blocks(load_benchmark):
    report, text = recorded("blocks"), (DOCS / "faster.md").read_text(encoding="utf-8")
    tables = load_benchmark("blocks").tables(report["results"])
    assert tables.keys() == {"rounding", "start"} and all(table in text for table in tables.values())
    assert f"python {report['command'].removeprefix('python ')}" in text


def test_other_tables_show_the_recorded_numbers(load_benchmark):
    page = (DOCS / "reference" / "vllm.md").read_text(encoding="utf-8")
    assert load_benchmark("vllm_speed").accepted_table(recorded("vllm_speed")["results"]) in page
    page = (DOCS / "reference" / "train.md").read_text(encoding="utf-8")
    report = recorded("training")
    assert load_benchmark("training").real_table(report["results"]["real"]["rows"]) in page
    assert f"python {report['command'].removeprefix('python ')}" in page
    cells = {(cell["length"], cell["side"]): cell for cell in report["results"]["rows"]}
    for length in (512, 1024, 2048, 4096):
        plain, dual, dense = (cells[length, side] for side in ("plain", "dual_stream", "sdpa"))
        seconds = [f"{cell['seconds_per_step']['median']:.2f}" for cell in (plain, dual)]
        times = [f"{cell['times_plain']:.2f}" for cell in (dual, dense)]
        megabytes = [f"{cell['bytes'] / 1e6:.0f}" for cell in (plain, dual, dense)]
        assert "| " + " | ".join([str(length), *seconds, *times, *megabytes]) + " |" in page


def test_the_guide_to_a_faster_model_shows_the_recorded_numbers(load_benchmark):
    page, evidence = (DOCS / "faster.md").read_text(encoding="utf-8"), load_benchmark("evidence_real")
    records = evidence.by_gain(evidence.read_records())
    shown = re.findall(r"^\| (.+?)((?: \| [\d.]+×)+) \|(?: .+ \|)?$", page, re.MULTILINE)
    assert len(shown) == 4 + 3
    for way, numbers in shown:
        measured = [evidence.times(record.cell(size), way) for record in records for size in (1, 8)]
        assert re.findall(r"[\d.]+", numbers) == [f"{number:.2f}" for number in measured], way
    text = " ".join(page.split())
    columns = " | ".join(f"{evidence.name_of(record)}, one at a time | 8 at once" for record in records)
    assert text.count(f"| method | {columns} |") == 2

    def cpus_where(size, faster, slower):
        cells = [record.cell(size) for record in records]
        return f"{sum(evidence.times(each, faster) > evidence.times(each, slower) for each in cells)} of these 3 CPUs"

    look_up, verified, fused = evidence.FUSED_LOOK_UP, evidence.FUSED_VERIFIED, evidence.FUSED
    assert f"faster than verified decoding on {cpus_where(1, look_up, verified)}" in text
    assert f"makes the fused model slower on {cpus_where(8, fused, verified)}" in text
    assert (
        f"it brings {adapter_gains(evidence, records)} for one prompt at a time, and with 8 at once it makes" in text
    )
    assert cpus_where(8, verified, evidence.ADAPTED) == "3 of these 3 CPUs" and len(records) == 3
    pays = cpus_where(1, evidence.BLOCKS_VERIFIED, evidence.BLOCKS)
    assert pays == "1 of these 3 CPUs" and "they pay on one of these 3 CPUs" in text
    beside = " ".join((DOCS / "alternatives.md").read_text(encoding="utf-8").split())
    assert cpus_where(1, look_up, verified).startswith("2 ") and "it was faster on two of the three CPUs" in beside
    in_batches = [record.cell(8) for record in evidence.read_records()]
    pays = [cell for cell in in_batches if evidence.times(cell, verified) > evidence.times(cell, fused)]
    assert len(pays) <= len(in_batches) / 6 and "In batches on a CPU drafts hardly ever pay" in beside
    same = {evidence.same_texts(each, way) for each in records for way in (evidence.BLOCKS, evidence.BLOCKS_VERIFIED)}
    assert same == {"36 of 36"} and "All 36 outputs of this package" in text


def adapter_gains(evidence, records):
    """From the least to the most that the adapter adds to verified decoding, one prompt at a time."""
    gains = [
        100 * evidence.times(each.cell(1), evidence.ADAPTED) / evidence.times(each.cell(1), evidence.FUSED_VERIFIED)
        for each in records
    ]
    return f"from {min(gains) - 100:+.0f} % to {max(gains) - 100:+.0f} %"


def test_the_guide_to_vllm_shows_what_the_drafter_gains(load_benchmark):
    page, evidence = (DOCS / "vllm.md").read_text(encoding="utf-8"), load_benchmark("evidence_real")
    records = evidence.read_records()
    columns = [f"{evidence.name_of(record)}, {record.dtype}" for record in records]
    assert f"| requests | {' | '.join(columns)} |" in page
    for size in (1, 8):
        cells = [record.cell(size) for record in records]
        gains = [evidence.times(cell, evidence.VLLM_DRAFTING) / evidence.times(cell, evidence.VLLM) for cell in cells]
        assert f"| {evidence.asked_in(size)} | {' | '.join(f'{gain:.2f}' for gain in gains)} |" in page
    table = load_benchmark("vllm_speed").table(recorded("vllm_speed")["results"])
    earlier = dict(re.findall(r"^\| adapter \| (\d+) \| .+? \| .+? \| ([\d.]+) \|", table, re.MULTILINE))
    assert f" agrees ({earlier['1']} and {earlier['8']})." in page


def test_the_pages_show_what_was_measured_on_a_gpu(load_benchmark):
    steps, evidence = recorded("gpu/steps"), load_benchmark("evidence_real")
    results, queries = steps["results"], load_benchmark("gpu_kit").CAPTURED

    def of(way):
        return f"{results[f'qwen3-8b, batch 1, {way}']['milliseconds']['median']:.1f}"

    verified = queries.replace("captured", "verified")
    floor = f"{results[f'qwen3-8b, batch 1, {queries}']['floor']:.1f}"
    guide = (DOCS / "faster.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| .+ \| ([\d.]+) \|$", guide.partition("## On a GPU")[2], re.MULTILINE)
    assert shown == [of("stock"), of(verified), of(queries), of(f"fused, {queries}"), floor]
    record = evidence.read_record(RESULTS / "gpu" / "evidence.json")
    ways = (evidence.FUSED, evidence.VERIFIED, evidence.CAPTURED, evidence.FUSED_VERIFIED)
    table = guide.partition("| method | without CUDA graphs |")[2].partition("\n\n")[0]
    assert re.findall(r"\d\.\d\d", table) == [f"{evidence.times(record.cell(1), way):.2f}" for way in ways]


def test_the_guide_to_training_shows_what_the_trained_model_gains(load_benchmark):
    page, training = (DOCS / "train.md").read_text(encoding="utf-8"), load_benchmark("real_training")
    record = recorded("real_training")
    results, steps, tokens = record["results"], record["steps"], record["row_tokens"]
    streamed = training.tokens_per_forward(results["moments"][-1]["ways"][training.STREAMING])
    page = " ".join(page.split())
    assert f"after {steps:,} steps of {tokens} tokens](" in page
    assert f" streams {streamed:.2f} tokens per forward pass." in page
    tasks = recorded("gpu/tasks")["results"]
    streamed, plain = tasks["later, streaming 0.4"], tasks["later, autoregressive"]
    told = f"after [{tasks['training']['seconds']:.0f} seconds on a GPU](EVIDENCE.md#on-a-gpu), SmolLM2 streams "
    told += f"{streamed['tokens_per_forward']:.2f} tokens per forward pass at the paper's threshold of 0.4, but gets "
    shares = [100 * each["right"] / each["questions"] for each in (streamed, plain)]
    assert f"{told}only {shares[0]:.0f} % of the answers right. Token by token it gets {shares[1]:.0f} %." in page
    adapter = results["adapter"]
    assert f" {training.tokens_per_forward(adapter):.2f} tokens per forward pass, and its output is the" in page
    assert adapter["same_as_base"] == results["prompts"]


@pytest.mark.parametrize("name", ["task_comparison", "task_comparison_whole"])
def test_the_guide_to_training_shows_what_a_task_gains(name, load_benchmark):
    page, report = (DOCS / "train.md").read_text(encoding="utf-8"), recorded(name)
    assert load_benchmark("task_comparison").table(report["results"]["answers"]) in page
    assert f"python {report['command'].removeprefix('python ')}" in " ".join(page.split())
    given = re.findall(r"--(\w+) (\S+)", report["command"])
    settings = dict(line.split(": ") for line in report["config"] if ": " in line and not line.startswith("#")) | dict(
        given
    )
    told = f"{settings['max_steps']} steps of {settings['per_device_train_batch_size']} rows"
    text = " ".join(page.split())
    assert told in text and f"{report['questions']} held-out questions" in text
    answers = report["results"]["answers"]
    if "plain, autoregressive" in answers:
        plain, whole = answers["plain, autoregressive"], answers["whole, autoregressive"]
        low, high = (100 * bound for bound in whole["quality_over_plain_interval"])
        shares = f"{100 * whole['quality']:.1f} % with them, {100 * plain['quality']:.1f} % without"
        assert f"{shares} (a difference of {low:+.1f} to {high:+.1f} points)" in text and low < 0 < high
        times = {name: numbers["times_autoregressive"]["median"] for name, numbers in answers.items()}
        assert f"verified decoding is {times['whole, verified, window 8']:.2f} times as fast" in text
        streamed = {name: times[f"whole, streaming, window 8, threshold {name}"] for name in (0.05, 0.1, 0.2, 0.4)}
        assert max(streamed[0.05], streamed[0.1], streamed[0.2]) < 1 < streamed[0.4]


def test_the_guide_to_training_shows_other_questions():
    report, text = recorded("task_seed"), " ".join((DOCS / "train.md").read_text(encoding="utf-8").split())
    assert f"(`--questions {report['questions']} --seed {report['seed']}`)" in text
    answers, first = report["results"]["answers"], recorded("task_comparison_whole")["results"]["answers"]
    shares = [100 * answers[f"{training}, autoregressive"]["quality"] for training in ("whole", "plain")]
    streamed = "whole, streaming, window 8, threshold 0.1"
    assert f"{shares[0]:.1f} % right token by token with MASKs and {shares[1]:.1f} % without." in text
    told = f"at a threshold of 0.1 generates {answers[streamed]['tokens_per_forward']:.2f} tokens per forward pass"
    assert (
        f"{told} there, with {shares[0] - 100 * answers[streamed]['quality']:.1f} points fewer right answers" in text
    )
    assert all(abs(numbers["quality"] - first[name]["quality"]) < 0.03 for name, numbers in answers.items())


def test_the_guide_to_training_shows_the_curve_of_harder_questions(load_benchmark):
    text, report = (DOCS / "train.md").read_text(encoding="utf-8"), recorded("task_curve")
    assert load_benchmark("task_comparison").curve(report["results"]["answers"]) in text
    text = " ".join(text.split())
    assert f"`PYTHONHASHSEED=0 {report['command']}`" in text
    assert f"answered {report['questions']} held-out questions" in text
    last = report["results"]["trainings"]["whole"][-1]
    assert f"{last['step']} steps of 2 rows ({last['train_runtime'] / 60:.0f} minutes" in text
    of_kind = defaultdict(list)
    for name, numbers in report["results"]["answers"].items():
        of_kind[name.split(", ")[1]].append(numbers)
    assert all(each["tokens_per_forward"] < 1 for each in of_kind["streaming"]), "gains no tokens"
    shares = [of_kind[name][-1]["quality"] for name in ("streaming", "autoregressive")]
    right = [round(report["questions"] * share) for share in shares]
    assert f"({right[1]} of {report['questions']} become {right[0]})" in text
    verified = [each["tokens_per_forward"] for each in of_kind["verified"]]
    assert all(1.8 < each < 2.5 for each in verified), "about two"
    assert all(0.95 < each["times_autoregressive"]["median"] < 1.1 for each in of_kind["verified"]), "as fast"


def test_the_guide_to_adapters_shows_the_recorded_numbers(load_benchmark):
    page, evidence = (DOCS / "adapt.md").read_text(encoding="utf-8"), load_benchmark("evidence_real")
    card = json.loads((ADAPTER.parent / "report.json").read_text(encoding="utf-8"))["results"]["held_out"]
    records = evidence.by_gain(evidence.read_records())
    cells = {(record.cpu.partition(",")[0], record.dtype): record.cell(1) for record in evidence.read_records()}
    gpu = evidence.read_record(RESULTS / "gpu" / "evidence.json").cell(1)
    cells = (cells["Intel Xeon", "float32"], cells["Intel Xeon", "bfloat16"], gpu)
    drafted = [cell["ways"][evidence.ADAPTED]["tokens_per_forward"] for cell in cells]
    same = {f"{each.cell(1)['ways'][evidence.ADAPTED]['tokens_per_forward']:.2f}" for each in records}
    trained = load_benchmark("real_training").tokens_per_forward(recorded("real_training")["results"]["adapter"])
    vllm = {(row["model"], row["clients"]): row["tokens_per_step"] for row in recorded("vllm_speed")["results"]}
    numbers = [card["all"]["tokens_per_forward"], *drafted, trained, vllm["adapter", 32]]
    shown = re.findall(r"^\| \[.+ \| ([\d.]+) \|$", page, re.MULTILINE)
    assert shown == [f"{number:.2f}" for number in numbers] and same == {shown[1]}

    with_adapter, without = evidence.BLOCKS_ADAPTED, evidence.BLOCKS_VERIFIED  # "slower on all of them"
    assert all(evidence.times(each.cell(1), with_adapter) < evidence.times(each.cell(1), without) for each in records)
    before, after = (evidence.times(gpu, way) for way in (evidence.FUSED_VERIFIED, evidence.ADAPTED))
    kinds = {kind: f"{one['times_autoregressive']['median']:.2f}" for kind, one in card.items()}
    for told in (
        f"the adapter brings {adapter_gains(evidence, records)} on three CPUs.",
        f" {before:.2f} times as fast as `generate()`, and with the adapter only {after:.2f} times",
        f" {kinds['copying']} to {kinds['writing']} times as fast as token by token at writing, extraction and "
        f"copying, {kinds['explanation']} times at explanations, and slower ({kinds['words']}) at tasks about "
        "single words",
    ):
        assert told in " ".join(page.split())


def test_a_page_says_which_record_is_of_a_tree_with_changes():
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("reference/train.md", "faster.md")]
    told = "".join(each for page in pages for each in page.split("\n\n") if "+changes" in each)
    changed = {path.name for path in RESULTS.glob("*.json") if recorded(path.stem)["commit"].endswith("+changes")}
    assert set(re.findall(r"(\w+\.json)", told)) == changed


def test_the_evidence_is_written_from_the_records(load_benchmark):
    plots = []
    for page, text in load_benchmark("evidence").pages().items():
        assert page.read_text(encoding="utf-8") == text
        plots += re.findall(r"!\[.*\]\((.*)\)", text)
    assert sorted(plots) == sorted(f"evidence/{path.name}" for path in (DOCS / "evidence").iterdir())


def test_the_records_are_of_commits_and_of_what_is_published(load_benchmark):
    evidence, training = load_benchmark("evidence"), load_benchmark("real_training")
    weights = json.loads((REPOSITORY / "hub_card" / "wedlm-demo" / "report.json").read_text())["weights_sha256"]
    commits = []
    for name in evidence.ablations.FIGURES:
        report = evidence.recorded(evidence.RESULTS / evidence.ablations.file_of(name))
        assert report["weights_sha256"] == weights
        commits.append(report["commit"])
    for file in load_benchmark("evidence_real").RECORDS.glob("*.json"):
        report = json.loads(file.read_text(encoding="utf-8"))
        assert report["adapter_sha256"] == hashlib.sha256(ADAPTER.read_bytes()).hexdigest()
        commits.append(report["commit"])
    trained, checked = evidence.recorded(training.FILE), recorded("gpu/checks")
    is_of_an_earlier_adapter = trained["adapter_sha256"] != hashlib.sha256(ADAPTER.read_bytes()).hexdigest()
    page = (DOCS / "study.md").read_text(encoding="utf-8")
    assert ("The draft adapter of the last line is one before the present." in page) == is_of_an_earlier_adapter
    commits += [trained["commit"], checked["commit"]]
    commits += [origin["commit"] for origin in trained["results"]["training"]["origins"]]
    assert all(len(commit) == 40 for commit in commits), "without changes"
