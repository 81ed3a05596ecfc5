"""Tasks of lm-eval for tests, and short ways to evaluate them."""

import json

import lm_eval
from helpers import REPOSITORY
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation import harness
from wedlm.evaluation.recipe import EvalSettings
from wedlm.evaluation.tasks import Tasks, load_tasks

DEMO_RECIPE = REPOSITORY / "examples" / "demo" / "eval.yaml"
DEMO_TASKS = DEMO_RECIPE.parent / "lm_eval_tasks"
DEFAULT = {"decoding": "verified"}  # of the demo checkpoint
STREAMING = {"decoding": "streaming", "window_size": 16, "entropy_threshold": 0.4, "distance_penalty": 0.02}
CHAT = EvalSettings(limit=6, batch_size=4, apply_chat_template=True)
TIMES = ("tokens_per_second",)


def write_tasks(folder):
    """Tasks as a user would write them: one chooses, one generates up to a text, and two cannot be run."""
    documents = [
        {"question": f"Count by {step} from 2 to {2 + 3 * step}.", "right": f"2, {2 + step}", "wrong": f"9, {step}"}
        for step in (2, 3, 4, 5, 6)
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    data = f"{{data_files: {{test: {folder / 'questions.jsonl'}}}}}"
    common = f"dataset_path: json\ndataset_kwargs: {data}\ntest_split: test\n"
    (folder / "choose.yaml").write_text(
        f"task: choose\n{common}output_type: multiple_choice\ndoc_to_text: '{{{{question}}}}'\n"
        "doc_to_choice: '{{[right, wrong]}}'\ndoc_to_target: 0\n"
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )
    (folder / "first.yaml").write_text(
        f"task: first\n{common}output_type: generate_until\ndoc_to_text: '{{{{question}}}}'\n"
        "doc_to_target: '{{right}}'\ngeneration_kwargs: {until: [', ', \"\\n\"], max_gen_toks: 24, do_sample: false}\n"
        "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n"
    )
    (folder / "far.yaml").write_text("task: far\ndataset_path: somebody/data-that-is-not-here\ntest_split: test\n")
    (folder / "taste.yaml").write_text(
        f"task: taste\n{common}output_type: generate_until\ndoc_to_text: a\ndoc_to_target: b\n"
        "metric_list: [{metric: taste, aggregation: mean, higher_is_better: true}]\n"
    )
    (folder / "broken.yaml").write_text(f"task: broken\n{common}output_type: nonsense\n")


def named(*names: str, folder=DEMO_TASKS, **metadata) -> Tasks:
    return load_tasks(dict.fromkeys(names), [folder], metadata, run_code=True)


def evaluate(*arguments) -> list[dict]:
    results, warnings = harness.evaluate(*arguments)
    assert not warnings
    return results


def without_times(results: list[dict]) -> list[dict]:
    return [{name: value for name, value in result.items() if name not in TIMES} for result in results]


def scores(results: list[dict]) -> dict:
    return {(result["task"], metric["name"]): metric["value"] for result in results for metric in result["metrics"]}


def stock_scores(names: list[str], include_path, choices: EvalSettings) -> tuple[dict, list]:
    """Scores and texts of lm-eval as it is, with the checkpoint's own code."""
    manager = TaskManager(include_path=str(include_path), include_defaults=False)
    lm = HFLM(
        pretrained=str(DEMO_FOLDER), trust_remote_code=True, batch_size=choices.batch_size, device="cpu",
        dtype="float32",
    )  # fmt: skip
    loaded = manager.load(names)
    for task in loaded["tasks"].values():
        task.set_config("num_fewshot", 0)
    results = lm_eval.evaluate(
        lm, loaded, limit=choices.limit, apply_chat_template=choices.apply_chat_template, log_samples=True
    )
    texts = [sample["resps"] for samples in results["samples"].values() for sample in samples]
    return {
        (task, key.partition(",")[0]): value
        for task, measured in results["results"].items()
        for key, value in measured.items()
        if key.endswith(",none") and "stderr" not in key
    }, texts
