"""Recipes are read, and broken ones are refused."""

import pytest
from evaluations import DEMO_RECIPE, DEMO_TASKS
from lm_eval.tasks import TaskManager

from wedlm.evaluation.decodings import with_defaults
from wedlm.evaluation.recipe import RECIPES, EvalSettings, read_recipe


def test_recipes_read(demo):
    model, _ = demo
    for name in [*(path.stem for path in RECIPES.glob("*.yaml")), str(DEMO_RECIPE)]:
        recipe = read_recipe(name)
        assert recipe.tasks and all(isinstance(shots, int) for shots in recipe.tasks.values())
        EvalSettings(**recipe.settings)
        for arguments in recipe.decodings.values():
            assert with_defaults(arguments, model)
    table = read_recipe("table1-base")
    assert (table.tasks["gsm8k"], table.tasks["hellaswag"], table.tasks["mmlu"]) == (3, 10, 5)
    assert table.decodings["one token per forward"]["entropy_threshold"] is None
    assert read_recipe(str(DEMO_RECIPE)).include_path == DEMO_TASKS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tasks: {a", "cannot be used"),
        ("decodings: {}", "cannot be used (KeyError"),
        ("tasks: {a: three}", "a has 'three' shots"),
        ("tasks: {a: 0}\nsettings: {shots: 3}", "there is no setting 'shots', but apply_chat_template"),
        ("tasks: {a: 0}\nsettings: {run_code: true}", "there is no setting 'run_code'"),
        ("tasks: {a: 0}\nsettings: {temperature: hot}", "temperature='hot' is not of the type"),
        ("tasks: {a: 0}\nsettings: {limit: true}", "limit=True is not of the type"),
        ("tasks: {a: 0}\nsettings: {temperature: .nan}", "temperature=nan is not a temperature"),
        ("tasks: {a: 0}\ndecodings: {x: {decoding: streaming, threshold: 0.1}}", "does not read 'threshold'"),
        ("tasks: {a: 0}\ndecodings: {x: {window_size: 4}}", "decoding=None"),
        ("tasks: {a: 0}\nmore: 1", "it has more"),
    ],
)
def test_a_broken_recipe_is_refused(tmp_path, text, words):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ValueError) as refused:
        read_recipe(str(tmp_path / "mine.yaml"))
    assert words in str(refused.value)


def test_settings_of_generation_have_lm_evals_names():
    assert EvalSettings().generation_arguments() == {}
    drawn = EvalSettings(max_new_tokens=5, temperature=0.8).generation_arguments()
    assert drawn == {"max_gen_toks": 5, "do_sample": True, "temperature": 0.8}
    assert EvalSettings(temperature=0).generation_arguments() == {"do_sample": False, "temperature": 0}


@pytest.mark.slow
def test_every_task_of_the_recipes_is_one_of_lm_evals():
    known = set(TaskManager().all_tasks)
    for path in RECIPES.glob("*.yaml"):
        assert read_recipe(path.stem).tasks.keys() <= known
