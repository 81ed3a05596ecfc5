"""lm-eval with our generate() underneath: what stock lm-eval scores, counted, and the same after an interruption."""

import json
from unittest.mock import Mock

import lm_eval
import pytest
import torch
from helpers import REPOSITORY, load, stock_model
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer, GenerationConfig, StoppingCriteriaList
from typer.testing import CliRunner

from wedlm import WeDLMConfig, WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands import cli
from wedlm.commands.eval import side_by_side
from wedlm.demo.checkers import check
from wedlm.demo.tasks import held_out_examples
from wedlm.evaluation import harness
from wedlm.evaluation.decodings import combinations, label_of, whole
from wedlm.evaluation.harness import (
    LIKELIHOOD,
    RECIPES,
    Choices,
    EvaluationError,
    Tasks,
    load_tasks,
    read_recipe,
)
from wedlm.evaluation.lm import DecodingLM, StopBehindPrompt
from wedlm.evaluation.provenance import conditions
from wedlm.evaluation.work_file import WorkFile

DEMO_TASKS = REPOSITORY / "wedlm" / "demo" / "lm_eval_tasks"
STREAMING = {"decoding": "streaming", "window_size": 16, "entropy_threshold": 0.4, "distance_penalty": 0.02}
CHAT = Choices(limit=6, batch_size=4, apply_chat_template=True)
TIMES = ("tokens_per_second",)


@pytest.fixture(scope="module")
def demo():
    return load(DEMO_FOLDER), AutoTokenizer.from_pretrained(DEMO_FOLDER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of tasks as a user would write it: one that chooses, one that generates up to a text."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [
        {"question": f"Count by {step} from 2 to {2 + 3 * step}.", "right": f"2, {2 + step}", "wrong": f"9, {step}"}
        for step in (2, 3, 4, 5, 6)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = (
        f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder / 'rows.jsonl'}}}}}\ntest_split: test\n"
    )
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
    return folder


def named(*names: str, folder=DEMO_TASKS, **metadata) -> Tasks:
    return load_tasks(dict.fromkeys(names), [folder], metadata, run_code=True)


def evaluate(*arguments) -> list[dict]:
    rows, warnings = harness.evaluate(*arguments)
    assert not warnings
    return rows


def without_times(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def scores(rows: list[dict]) -> dict:
    return {(row["task"], metric["name"]): metric["value"] for row in rows for metric in row["metrics"]}


def stock_scores(names: list[str], include_path, choices: Choices) -> dict:
    """Of lm-eval as it is, with the checkpoint's own code."""
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


def test_stock_lm_eval_gives_the_same_scores(demo, folder, tmp_path):
    for names, where, choices in (
        (["demo_counting", "demo_records"], DEMO_TASKS, CHAT),
        (["choose", "first"], folder, Choices(batch_size=4)),
    ):
        rows = evaluate(*demo, named(*names, folder=where), {"": STREAMING}, choices, WorkFile(tmp_path, {}))
        expected, _ = stock_scores(names, where, choices)
        assert scores(rows) == pytest.approx(expected)
    assert 0 < scores(rows)["choose", "acc"]


def test_what_comes_behind_a_stop_is_cut_and_ends_the_row(demo, folder, tmp_path):
    """The texts are those of lm-eval's own criterion, in fewer forwards."""
    work = WorkFile(tmp_path, {})
    choices = Choices(batch_size=4, apply_chat_template=True)
    (row,) = evaluate(*demo, named("first", folder=folder), {"": STREAMING}, choices, work)
    _, expected = stock_scores(["first"], folder, choices)
    texts = [text for result in work.results.values() for text in result["answers"]]
    assert sorted(texts) == sorted(text for ((text,),) in expected)
    assert row["num_tokens"] < 5 * 5, "of some ten"


@pytest.mark.parametrize("decoding", ["streaming", "verified", "autoregressive"])
def test_counts_are_those_of_generate(demo, tmp_path, decoding):
    model, tokenizer = demo
    arguments = {"decoding": decoding}
    (row,) = evaluate(model, tokenizer, named("demo_equations"), {decoding: arguments}, CHAT, WorkFile(tmp_path, {}))
    examples = held_out_examples("equations", CHAT.limit)
    tokens = forwards = rows = right = 0
    for example in examples:
        chat = tokenizer.apply_chat_template(
            example.messages[:1], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        output = model.generate(**chat, **arguments, max_new_tokens=160, return_dict_in_generate=True)
        new = output.sequences[0, chat["input_ids"].shape[1] :]
        tokens, forwards = tokens + len(new), forwards + int(output.forwards)
        rows += round(len(new) / float(output.prefix_cacheability))
        right += check("equations", example.prompt, tokenizer.decode(new, skip_special_tokens=True))
    assert (row["num_tokens"], row["tokens_per_forward"]) == (tokens, pytest.approx(tokens / forwards))
    assert row["prefix_cacheability"] == pytest.approx(tokens / rows)
    assert scores([row])["demo_equations", "right"] == right / len(examples)
    assert (row["num_examples"], row["num_fewshot"], row["arguments"]) == (6, 0, arguments)


def test_batch_sizes_give_the_same_scores(demo, folder, tmp_path):
    tasks = named("demo_counting", "demo_word_problems"), named("choose", folder=folder)
    made = []
    for batch_size in (1, 4):
        choices = Choices(limit=5, batch_size=batch_size, apply_chat_template=True)
        work = WorkFile(tmp_path / str(batch_size), {})
        made.append([row for task in tasks for row in evaluate(*demo, task, {"": STREAMING}, choices, work)])
    assert scores(made[0]) == pytest.approx(scores(made[1]))


@pytest.mark.parametrize("is_qwen3", [False, True])
def test_likelihoods_are_those_of_transformers_qwen(demo, is_qwen3, tmp_path):
    model, tokenizer = demo
    if not is_qwen3:
        torch.manual_seed(0)
        shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = WeDLMConfig(
            **shape, num_key_value_heads=2, head_dim=16, qk_norm=False, attention_bias=True, initializer_range=0.2,
            vocab_size=model.config.vocab_size, mask_token_id=model.config.mask_token_id,
        )  # fmt: skip
        model = WeDLMForCausalLM(config).eval()
    texts = [("the cat", " sat on a mat"), ("one two", " three"), ("a", " b c d e f"), ("the cat", " ran")]

    def requests():
        return [Instance("loglikelihood", {}, pair, i, ("t", i, 1)) for i, pair in enumerate(texts)]

    def rolling():
        return [
            Instance("loglikelihood_rolling", {}, ("".join(pair),), i, ("t", i, 1)) for i, pair in enumerate(texts)
        ]

    ours = DecodingLM(model, tokenizer, 2, {"decoding": "verified"}, WorkFile(tmp_path, {}), 0, "")
    stock = HFLM(pretrained=stock_model(model), tokenizer=tokenizer, batch_size=2)
    for (mine, is_greedy), (other, other_is_greedy) in zip(
        ours.loglikelihood(requests()), stock.loglikelihood(requests()), strict=True
    ):
        assert mine == pytest.approx(other, abs=1e-4) and is_greedy == other_is_greedy
    assert ours.loglikelihood_rolling(rolling()) == pytest.approx(stock.loglikelihood_rolling(rolling()), abs=1e-4)


class Stop(KeyboardInterrupt):
    pass


@pytest.mark.parametrize("temperature", [None, 0.8])
def test_an_interrupted_run_goes_on_and_gives_the_same_table(demo, folder, tmp_path, monkeypatch, temperature):
    decodings = {"streaming": STREAMING, "verified": {"decoding": "verified"}}
    choices = Choices(limit=3, batch_size=1, apply_chat_template=True, temperature=temperature)
    calls = []
    generate = DecodingLM._model_generate

    def run(work, stop_at=None):
        calls.clear()

        def counting(self, *args, **kwargs):
            calls.append(self.description)
            if len(calls) == stop_at:
                raise Stop
            return generate(self, *args, **kwargs)

        monkeypatch.setattr(DecodingLM, "_model_generate", counting)
        tasks = [named("demo_stories"), named("choose", folder=folder)]
        return [row for task in tasks for row in evaluate(*demo, task, decodings, choices, work)]

    whole = run(WorkFile(tmp_path / "whole", {}))
    assert calls == ["streaming"] * 3 + ["verified"] * 3
    with pytest.raises(Stop):
        run(WorkFile(tmp_path / "stopped", {}), stop_at=5)
    torch.manual_seed(99)
    again = run(WorkFile(tmp_path / "stopped", {}))
    assert calls == ["verified"] * 2, "what was answered is not asked again"
    assert without_times(again) == without_times(whole)
    assert [(row["task"], row["decoding"]) for row in whole] == [
        ("demo_stories", "streaming"), ("demo_stories", "verified"), ("choose", LIKELIHOOD),
    ]  # fmt: skip
    if temperature:
        other = Choices(limit=3, batch_size=1, apply_chat_template=True, temperature=temperature, seed=5)
        rows = evaluate(*demo, named("demo_stories"), {"s": STREAMING}, other, WorkFile(tmp_path / "seed", {}))
        assert rows[0]["num_tokens"] != whole[0]["num_tokens"], "another seed draws otherwise"


def test_a_group_adds_up_its_tasks(demo, tmp_path):
    choices = Choices(batch_size=4, apply_chat_template=True, run_code=True)
    rows = evaluate(
        *demo, named("demo", num_examples=2), {"": {"decoding": "verified"}}, choices, WorkFile(tmp_path, {})
    )
    *members, group = rows
    assert group["is_group"] and not any(row["is_group"] for row in members) and len(members) == 6
    assert group["num_tokens"] == sum(row["num_tokens"] for row in members)
    assert group["num_examples"] == 12
    assert scores([group])["demo", "right"] == pytest.approx(
        sum(scores(members)[row["task"], "right"] for row in members) / 6
    )


def test_held_out_data_follow_the_seed():
    prompts = [[row["prompt"] for row in named("demo_counting", seed=seed).all["demo_counting"].eval_docs]
               for seed in (0, 0, 1)]  # fmt: skip
    assert prompts[0] == prompts[1] != prompts[2]
    assert len(prompts[0]) == 200


# --- What is refused ---


def test_what_cannot_be_loaded(folder, monkeypatch, tmp_path):
    real = harness.TaskManager
    monkeypatch.setattr(harness, "TaskManager", lambda **kwargs: real(**{**kwargs, "include_defaults": False}))
    for names, words in (
        (["fist"], "There is no task 'fist'; did you mean first?"),
        (["xyzzyxyzzy"], "There is no task 'xyzzyxyzzy'; `lm_eval ls tasks` lists"),
        (["far"], "The task far needs its data from https://huggingface.co, which cannot be reached ("),
        (["broken"], "The task broken cannot be made (ValueError: Got invalid output_type 'nonsense'"),
        (["taste"], "The task taste has a metric 'taste' that lm-eval does not know."),
        ([], "No task is named; pass --tasks"),
    ):
        with pytest.raises(EvaluationError) as refused:
            named(*names, folder=folder)
        assert str(refused.value).startswith(words) and "\n" not in str(refused.value)
    with pytest.raises(EvaluationError, match="is no folder; give one with YAML files"):
        named("first", folder=tmp_path / "nowhere")
    for name in ("demo_functions", "demo"):
        with pytest.raises(EvaluationError, match="demo_functions runs code that the model writes; pass --run-code"):
            load_tasks({name: None}, [DEMO_TASKS])


def run(*arguments):
    return CliRunner().invoke(cli.app, ["eval", *map(str, arguments)])


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["--tasks", "demo_counting", "--include-path", DEMO_TASKS, "--apply-chat-template", "--limit", 3]
    several = ["--decoding", "streaming", "--decoding", "autoregressive", "--entropy-threshold", "0.1",
               "--entropy-threshold", "none", "--batch-size", 3]  # fmt: skip
    first = run(*asked, *several)
    assert first.exit_code == 0, first.output
    assert [path.name for path in tmp_path.iterdir()] == ["eval.json"], "the work folder is gone"
    report = json.loads((tmp_path / "eval.json").read_text())
    assert report["generation_config"]["entropy_threshold"] == 0.4 and len(report["files_sha256"]) == 64
    assert report["versions"]["lm_eval"] and report["model"] == "wedlm-demo" and report["device"]
    assert report["settings"]["limit"] == 3 and report["settings"]["apply_chat_template"] is True
    labels = ["streaming, threshold 0.1", "streaming, threshold none", "autoregressive"]
    assert [row["decoding"] for row in report["results"]] == labels
    assert report["results"][0]["arguments"] == {**STREAMING, "entropy_threshold": 0.1}
    assert all(label in first.stdout for label in labels) and "tokens per forward" in first.stdout
    assert all(label in first.stderr for label in labels), "a bar for each"
    again = run(*asked, *several)
    assert again.exit_code == 2 and "--out eval.json exists" in again.output
    assert run(*asked, *several, "--overwrite").exit_code == 0
    repeated = json.loads((tmp_path / "eval.json").read_text())
    assert without_times(repeated["results"]) == without_times(report["results"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tasks", "demo_counting", "--decoding", "fast"], "--decoding fast is unknown; choose of streaming"),
        (["--tasks", "demo_counting", "--window-size", 4], "need a --decoding that reads them"),
        (["--tasks", "demo_counting", "--decoding", "streaming", "--window-size", 0], "window_size=0 is not a number"),
        (["--tasks", "demo_counting", "--decoding", "streaming", "--entropy-threshold", "x"], "neither a number of"),
        (["--tasks", "demo_counting", "--limit", 0], "--limit 0 is too small or too large; give 1 or more."),
        (["--tasks", "demo_counting", "--temperature", "nan"], "--temperature nan is no temperature"),
        (["--tasks", "demo_counting", "--metadata", "[1]"], "--metadata [1] is no JSON object"),
        (["--tasks", "demo_counting", "--metadata", "{"], "--metadata { is no JSON ("),
        (["--recipe", "table3"], "--recipe table3 is none of demo, speed, table1-base, table2-instruct"),
        (["--tasks", "demo_counting", "--out", "/nowhere/eval.json"], "lies in one that is not there"),
        (["--tasks", "demo_counting,demo"], "name each task once"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = run("--include-path", DEMO_TASKS, "--run-code", *arguments)
    assert result.exit_code == 2 and words in result.stderr, result.output
    assert result.stderr.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_model_without_a_chat_template(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load(DEMO_FOLDER).save_pretrained("base")
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    tokenizer.chat_template = None
    tokenizer.save_pretrained("base")
    result = run("base", "--include-path", DEMO_TASKS, "--tasks", "demo_counting", "--apply-chat-template")
    assert result.exit_code == 2 and "base has no chat template; leave out --apply-chat-template." in result.stderr


# --- Recipes, labels, tables ---


def test_recipes_read(tmp_path):
    for path in RECIPES.glob("*.yaml"):
        recipe = read_recipe(path.stem)
        assert recipe.tasks and all(isinstance(shots, int) for shots in recipe.tasks.values())
        Choices(**recipe.choices)
        for arguments in recipe.decodings.values():
            assert whole(arguments, load(DEMO_FOLDER))
    table = read_recipe("table1-base")
    assert (table.tasks["gsm8k"], table.tasks["hellaswag"], table.tasks["mmlu"]) == (3, 10, 5)
    assert table.decodings["one token per forward"]["entropy_threshold"] is None
    assert read_recipe("demo").include_path == DEMO_TASKS.resolve()
    for text, words in (
        ("tasks: [a]", "cannot be used"),
        ("tasks: {a", "cannot be used"),
        ("decodings: {}", "cannot be used (KeyError"),
        ("tasks: {a: three}", "a has 'three' shots"),
        ("tasks: {a: true}", "a has True shots"),
        ("tasks: {a: 0}\ninclude_path: [b]", "cannot be used (TypeError"),
        ("tasks: {a: 0}\nsettings: {shots: 3}", "there is no setting 'shots', but apply_chat_template"),
        ("tasks: {a: 0}\nsettings: {run_code: true}", "there is no setting 'run_code'"),
        ("tasks: {a: 0}\nsettings: {temperature: hot}", "the setting temperature is 'hot'"),
        ("tasks: {a: 0}\nsettings: {limit: true}", "the setting limit is True"),
        ("tasks: {a: 0}\ndecodings: {x: {threshold: 0.1}}", "decoding None is unknown"),
        (
            "tasks: {a: 0}\ndecodings: {x: {decoding: streaming, threshold: 0.1}}",
            "streaming decoding reads no 'threshold'",
        ),
        ("tasks: {a: 0}\ndecodings: {x: streaming}", "cannot be used (AttributeError"),
        ("tasks: {a: 0}\nmore: 1", "it has more"),
    ):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(EvaluationError) as refused:
            read_recipe(str(tmp_path / "mine.yaml"))
        assert words in str(refused.value)


def test_a_recipes_shots_hold_where_a_task_says_otherwise(folder, tmp_path):
    tasks = load_tasks({"first": 2, "choose": None}, [folder])
    harness.configure(tasks, Choices(num_fewshot=1))
    shots = {name: task.get_config("num_fewshot") for name, task in tasks.all.items()}
    assert shots == {"first": 2, "choose": 1}


@pytest.mark.slow
def test_every_task_of_the_recipes_is_one_of_lm_evals():
    known = set(TaskManager(include_path=str(DEMO_TASKS)).all_tasks)
    for path in RECIPES.glob("*.yaml"):
        assert read_recipe(path.stem).tasks.keys() <= known


def test_what_is_not_given_is_the_checkpoints_or_the_devices():
    model = load(DEMO_FOLDER)
    said = model.generation_config
    assert whole({"decoding": "verified"}, model) == {"decoding": "verified", "window_size": said.window_size}
    said.window_size = None
    assert whole({"decoding": "verified"}, model)["window_size"] == 8
    given = {"decoding": "streaming", "window_size": 4, "entropy_threshold": None}
    assert whole(given, model) == {**given, "distance_penalty": said.distance_penalty}


def test_work_of_other_conditions_is_left_alone(demo, tmp_path, monkeypatch):
    """Their speeds would be told as those of this device, these threads and this code."""
    monkeypatch.chdir(tmp_path)
    command = ("--include-path", DEMO_TASKS, "--tasks", "demo_counting", "--limit", 1, "--out", "eval.json")
    monkeypatch.setattr("wedlm.commands.eval.write_report", Mock(side_effect=OSError("The disk is full.")))
    assert run(DEMO_FOLDER, *command).exit_code != 0
    real = conditions
    for changed, goes_on in (({}, True), ({"threads": 99}, False), ({"commit": "other"}, False)):
        monkeypatch.setattr("wedlm.commands.eval.conditions", lambda *args, now=changed: {**real(*args), **now})
        assert ("Going on from" in run(DEMO_FOLDER, *command).stderr) == goes_on, changed


def test_decodings_are_combined_with_what_they_read():
    made = combinations(["autoregressive", "verified", "streaming"], [4, 8], [0.1, None], None)
    assert list(made) == [
        "autoregressive", "verified, window 4", "verified, window 8",
        "streaming, window 4, threshold 0.1", "streaming, window 4, threshold none",
        "streaming, window 8, threshold 0.1", "streaming, window 8, threshold none",
    ]  # fmt: skip
    assert made["verified, window 4"] == {"decoding": "verified", "window_size": 4}
    assert all(label_of(arguments) == label for label, arguments in made.items())


def test_decodings_stand_side_by_side():
    def row(task, decoding, value, tokens_per_forward=None):
        metric = {"name": "right", "filter": "none", "value": value, "stderr": 0.01}
        return {"task": task, "decoding": decoding, "num_examples": 9, "num_fewshot": 2, "metrics": [metric]} | {
            "tokens_per_forward": tokens_per_forward, "prefix_cacheability": None, "tokens_per_second": None
        }  # fmt: skip

    lines = side_by_side([row("a", "x", 0.5, 2.0), row("a", "y", 0.25, 3.0), row("b", LIKELIHOOD, 1.0)])
    assert lines == [
        ["task", "", "x", "y", LIKELIHOOD],
        ["a (9, 2 shots)", "right", "0.5000 ±0.0100", "0.2500 ±0.0100", ""],
        ["", "tokens per forward", "2.00", "3.00", ""],
        ["b (9, 2 shots)", "right", "", "", "1.0000 ±0.0100"],
    ]


# --- What reviewers of real tasks would find ---


def test_a_stop_does_not_begin_in_the_prompt():
    """Qwen's prompts of a chat end with a line feed, and HumanEval stops at a line that begins with def."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    prompt = tokenizer("Write it.\n")["input_ids"]
    stops = StopBehindPrompt(tokenizer, ["\ndef", "return"], len(prompt))

    def said(text):
        return stops(torch.tensor([[*prompt, *tokenizer(text)["input_ids"]]]), None).tolist()

    assert said("def") == [False] and said("x\ndef") == [True] and said("def f(n):\n    return") == [True]
    assert said("x\nde f") == [False]


def test_rows_of_a_batch_stop_by_themselves(demo):
    """As alone, in as many forwards."""
    model, tokenizer = demo
    chats = [example.messages[:1] for example in held_out_examples("records", 3)]
    batch = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    )
    width = batch["input_ids"].shape[1]

    def run(rows):
        inputs = {name: value[rows] for name, value in batch.items()}
        criteria = StoppingCriteriaList([StopBehindPrompt(tokenizer, ["}, {", "\n"], width)])
        return model.generate(
            **inputs, max_new_tokens=160, stopping_criteria=criteria, return_dict_in_generate=True
        ).forwards.tolist()

    assert run([0, 1, 2]) == [run([row])[0] for row in range(3)]


def test_the_length_is_that_asked_for(demo, tmp_path):
    """And not a max_new_tokens that came with the checkpoint, over lm-eval's max_length."""
    model, tokenizer = demo
    before = model.generation_config
    model.generation_config = GenerationConfig(**{**before.to_dict(), "max_new_tokens": 64})
    try:
        choices = Choices(limit=2, batch_size=2, apply_chat_template=True, max_new_tokens=3)
        rows = evaluate(model, tokenizer, named("demo_equations"), {"": STREAMING}, choices, WorkFile(tmp_path, {}))
    finally:
        model.generation_config = before
    assert rows[0]["num_tokens"] == 6


def test_documents_are_processed_once(folder, tmp_path):
    """GPQA's answers are shuffled at each access, once for the questions and once for the scores."""
    (folder / "shuffled.py").write_text(
        "import random\n\ndraws = random.Random(1)\n\n\n"
        "def mixed(rows):\n    return rows.map(lambda row: {'first': draws.random()})\n"
    )
    text = (folder / "first.yaml").read_text().replace("task: first", "task: shuffled")
    (folder / "shuffled.yaml").write_text(text + "process_docs: !function shuffled.mixed\n")
    task = named("shuffled", folder=folder).all["shuffled"]
    assert [row["first"] for row in task.eval_docs] == [row["first"] for row in task.eval_docs]


def test_questions_that_are_drawn_are_drawn_by_the_seed(folder):
    (folder / "drawn.py").write_text(
        "import random\n\nfrom datasets import Dataset\n\n\ndef rows(**kwargs):\n"
        "    return {'test': Dataset.from_list([{'question': str(random.random())} for _ in range(3)])}\n"
    )
    (folder / "drawn.yaml").write_text(
        "task: drawn\ncustom_dataset: !function drawn.rows\ntest_split: test\noutput_type: generate_until\n"
        "doc_to_text: '{{question}}'\ndoc_to_target: a\n"
    )

    def questions(seed):
        task = load_tasks({"drawn": None}, [folder], seed=seed).all["drawn"]
        return [row["question"] for row in task.eval_docs]

    assert questions(1) == questions(1) != questions(2)


def test_the_tokenizers_end_token_ends_an_answer(demo, tmp_path):
    """Also where generation_config.json has another one, as of a base model whose chats were trained later."""
    model, tokenizer = demo
    before = model.generation_config
    choices = Choices(limit=3, batch_size=3, apply_chat_template=True)

    def run(end):
        model.generation_config = GenerationConfig(**{**before.to_dict(), "eos_token_id": end})
        work = WorkFile(tmp_path / str(end), {})
        return without_times(evaluate(*demo, named("demo_equations"), {"": STREAMING}, choices, work))

    try:
        expected = run(tokenizer.eos_token_id)
        assert expected == run(tokenizer.unk_token_id or 0) == run([0, 1]) == run(None)
    finally:
        model.generation_config = before
    assert expected[0]["num_tokens"] < 3 * 100


def test_code_is_run_in_the_sandbox_or_not_at_all(folder):
    text = (folder / "first.yaml").read_text().replace("task: first", "task: {name}") + "unsafe_code: true\n"
    (folder / "unsafe.yaml").write_text(text.replace("{name}", "unsafe"))
    with pytest.raises(EvaluationError, match="The task unsafe runs code outside of the sandbox"):
        named("unsafe", folder=folder)
    (folder / "judge.py").write_text(
        "import evaluate\n\nmetric = evaluate.load('code_eval')\n\n\n"
        "def passes(references, predictions):\n    return metric.compute(references=references, "
        "predictions=[predictions])[0]['pass@1']\n"
    )
    judged = text.replace("metric: exact_match", "metric: !function judge.passes")
    (folder / "safe.yaml").write_text(judged.replace("{name}", "safe"))
    assert named("safe", folder=folder).all
    second = '\'{{ "import numpy" if "by 3" in question else right }}\''  # of the documents, not the first one
    importing = judged.replace("{name}", "numeric").replace("'{{right}}'", second)
    (folder / "numeric.yaml").write_text(importing)
    with pytest.raises(
        EvaluationError, match="The tests of the task numeric import numpy, which the sandbox does not"
    ):
        named("numeric", folder=folder)
    (folder / "headless.yaml").write_text(judged.replace("{name}", "headless").replace("{{right}}", "{{ 1 / 0 }}"))
    with pytest.raises(EvaluationError, match="The task headless cannot be made .* correct it, or leave it out"):
        named("headless", folder=folder)


def test_a_file_of_the_folder_that_is_no_yaml_is_named(folder, tmp_path, monkeypatch):
    real = harness.TaskManager
    monkeypatch.setattr(harness, "TaskManager", lambda **kwargs: real(**{**kwargs, "include_defaults": False}))
    (tmp_path / "mine.yaml").write_text("task: mine\n  oops: [")
    with pytest.raises(EvaluationError, match="mine.yaml cannot be read as YAML"):
        named("mine", folder=tmp_path)


def test_what_a_task_raises_is_a_sentence(demo, folder, tmp_path):
    (folder / "fails.py").write_text("def judged(row, results):\n    return {'right': row['nothing']}\n")
    text = (folder / "first.yaml").read_text().replace("task: first", "task: fails")
    (folder / "fails.yaml").write_text(text + "process_results: !function fails.judged\n")
    tasks = named("fails", folder=folder)
    with pytest.raises(EvaluationError, match=r"The tasks fails cannot be evaluated \(KeyError: 'nothing'\)"):
        evaluate(*demo, tasks, {"": STREAMING}, Choices(limit=1), WorkFile(tmp_path, {}))


def test_a_group_says_only_what_its_tasks_share(demo, folder, tmp_path):
    (folder / "both.yaml").write_text("group: both\ntask: [choose, first]\n")
    work = WorkFile(tmp_path, {})
    rows = evaluate(*demo, named("both", folder=folder), {"": STREAMING}, Choices(limit=1), work)
    assert [row["dataset"] for row in rows] == ["json"] * len(rows)
    assert harness.shared(["a", "b"]) is None and harness.shared(["a", "a"]) == "a"
    (title, *_), *_ = side_by_side([{**rows[0], "metrics": [], "tokens_per_forward": 2.0}])[1:]
    assert title, "also where there is no score"


@pytest.mark.parametrize(
    "metadata", [{"num_examples": "5"}, {"num_examples": -1}, {"num_examples": 10**6}, {"seed": 0.5}]
)
def test_impossible_metadata(metadata):
    (name,) = metadata
    with pytest.raises(EvaluationError, match=f"{name}=.* of the metadata is no number from"):
        named("demo_counting", **metadata)


def test_other_runs_keep_their_work(tmp_path):
    stopped, finished = (WorkFile(tmp_path / "work", {"run": number}) for number in range(2))
    for work in (stopped, finished):
        work.add(("a", 1), "answer")
    finished.remove()
    assert list(WorkFile(tmp_path / "work", {"run": 0}).results.values()) == ["answer"]
    stopped.remove()
    assert not (tmp_path / "work").exists()
