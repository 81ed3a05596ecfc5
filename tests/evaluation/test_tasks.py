"""Loading tasks by name: what is found, what is refused, and which documents they ask about."""

import logging

import pytest
from datasets.utils.logging import is_progress_bar_enabled
from evaluations import DEMO_TASKS, named

from wedlm.evaluation import tasks
from wedlm.evaluation.tasks import load_tasks, quiet_lm_eval


def test_held_out_data_follow_the_seed():
    loaded = [named("demo_counting", seed=seed).all["demo_counting"] for seed in (0, 0, 1)]
    prompts = [[document["prompt"] for document in task.eval_docs] for task in loaded]
    assert prompts[0] == prompts[1] != prompts[2]
    assert len(prompts[0]) == 200


@pytest.fixture
def without_lm_evals_own(monkeypatch):
    """lm-eval's own tasks take ten seconds to read."""
    real = tasks.TaskManager
    monkeypatch.setattr(tasks, "TaskManager", lambda **kwargs: real(**{**kwargs, "include_defaults": False}))


def test_what_cannot_be_loaded(task_folder, without_lm_evals_own):
    for names, words in (
        (["fist"], "There is no task 'fist'; did you mean first?"),
        (["xyzzyxyzzy"], "There is no task 'xyzzyxyzzy'; `lm_eval ls tasks` lists"),
        (["far"], "The task far cannot be built (ConnectionError: "),
        (["broken"], "The task broken cannot be built (ValueError: Got invalid output_type 'nonsense'"),
        (["taste"], "The task taste has a metric 'taste' that lm-eval does not know; correct its YAML file."),
    ):
        with pytest.raises(ValueError) as refused:
            named(*names, folder=task_folder)
        assert str(refused.value).startswith(words) and "\n" not in str(refused.value)
    for name in ("demo_functions", "demo"):
        with pytest.raises(ValueError, match="demo_functions runs code that the model writes; pass") as refused:
            load_tasks({name: None}, [DEMO_TASKS])
        assert "--run-code to allow it, in a sandbox against accidents, not attackers" in str(refused.value)


def test_a_file_of_the_folder_that_is_no_yaml_is_named(without_lm_evals_own, tmp_path):
    (tmp_path / "mine.yaml").write_text("task: mine\n  oops: [")
    with pytest.raises(ValueError, match="mine.yaml cannot be read as YAML"):
        named("mine", folder=tmp_path)


def test_code_is_run_in_the_sandbox_or_not_at_all(task_folder):
    text = (task_folder / "first.yaml").read_text().replace("task: first", "task: {name}") + "unsafe_code: true\n"
    (task_folder / "unsafe.yaml").write_text(text.replace("{name}", "unsafe"))
    with pytest.raises(ValueError, match="The task unsafe runs code outside of the sandbox"):
        named("unsafe", folder=task_folder)
    (task_folder / "judge.py").write_text(
        "import evaluate\n\nmetric = evaluate.load('code_eval')\n\n\n"
        "def passes(references, predictions):\n    return metric.compute(references=references, "
        "predictions=[predictions])[0]['pass@1']\n"
    )
    judged = text.replace("metric: exact_match", "metric: !function judge.passes")
    (task_folder / "safe.yaml").write_text(judged.replace("{name}", "safe"))
    assert named("safe", folder=task_folder).all
    second = '\'{{ "import numpy" if "by 3" in question else right }}\''  # in the second document
    importing = judged.replace("{name}", "numeric").replace("'{{right}}'", second)
    (task_folder / "numeric.yaml").write_text(importing)
    with pytest.raises(ValueError, match="The tests of the task numeric import numpy, which the sandbox does not"):
        named("numeric", folder=task_folder)


def test_documents_are_processed_once(task_folder):
    """GPQA shuffles its answers whenever it is asked for its documents: for the questions, and for the scores."""
    (task_folder / "shuffled.py").write_text(
        "import random\n\ndraws = random.Random(1)\n\n\n"
        "def mixed(documents):\n    return documents.map(lambda document: {'first': draws.random()})\n"
    )
    text = (task_folder / "first.yaml").read_text().replace("task: first", "task: shuffled")
    (task_folder / "shuffled.yaml").write_text(text + "process_docs: !function shuffled.mixed\n")
    task = named("shuffled", folder=task_folder).all["shuffled"]
    first, second = ([document["first"] for document in task.eval_docs] for _ in range(2))
    assert first == second


def test_questions_that_are_drawn_are_drawn_by_the_seed(task_folder):
    (task_folder / "drawn.py").write_text(
        "import random\n\nfrom datasets import Dataset\n\n\ndef documents(**kwargs):\n"
        "    return {'test': Dataset.from_list([{'question': str(random.random())} for _ in range(3)])}\n"
    )
    (task_folder / "drawn.yaml").write_text(
        "task: drawn\ncustom_dataset: !function drawn.documents\ntest_split: test\noutput_type: generate_until\n"
        "doc_to_text: '{{question}}'\ndoc_to_target: a\n"
    )

    def questions(seed):
        task = load_tasks({"drawn": None}, [task_folder], seed=seed).all["drawn"]
        return [document["question"] for document in task.eval_docs]

    assert questions(1) == questions(1) != questions(2)


def test_lm_eval_is_quiet_and_its_warnings_are_collected_once(caplog):
    logger = logging.getLogger("lm_eval")
    before = logger.level, logger.propagate, list(logger.handlers), is_progress_bar_enabled()
    with quiet_lm_eval() as warnings:
        logger.info("told")
        logger.warning("first\n  line")
        logging.getLogger("lm_eval.tasks").warning("second")
        logger.warning("first line")
        assert not is_progress_bar_enabled()
    assert list(warnings) == ["first line", "second"] and not caplog.records
    assert (logger.level, logger.propagate, logger.handlers, is_progress_bar_enabled()) == before
