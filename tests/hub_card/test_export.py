import ast
import json
import re
import shutil
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers
from command_line import save_checkpoint
from helpers import CHECKPOINTS, put_into_hub_cache, run_python
from huggingface_hub import ModelCard, snapshot_download
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import wedlm
from wedlm.checkpoints import new_folder
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands import cli
from wedlm.evaluation.provenance import weights_digest
from wedlm.hub_card import export as module
from wedlm.hub_card.export import CardOptions, check_card, make_card, read_checkpoint, run_snippet
from wedlm.hub_card.leaks import find_leak, secrets_here, without_leaks
from wedlm.hub_card.model_card import ExportError, card_data, read_evaluation, read_metadata
from wedlm.modeling_wedlm.hub_code import flat_files
from wedlm.training.data import DataSummary
from wedlm.training.train import write_report

TOKEN = "hf_" + "abcdefghij" * 3 + "ABCD"
TOKENIZER = {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"}
WHOLE = {"README.md", "config.json", "generation_config.json", "model.safetensors", *flat_files()}


@pytest.fixture(autouse=True)
def quiet():
    disable_progress_bars()
    yield
    enable_progress_bars()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture(scope="module")
def read(saved):
    return read_checkpoint("model", saved)


@pytest.fixture
def model(tmp_path, saved):
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def unchecked(monkeypatch):
    """The snippet is not run; what it would have been run on."""
    ran = []
    monkeypatch.setattr(module, "run_snippet", lambda *arguments: ran.append(arguments))
    return ran


def run(*arguments):
    return CliRunner().invoke(cli.app, ["export", *map(str, arguments)])


def refused(*arguments):
    """The sentence, after which there is nothing at OUT or beside it."""
    before = sorted(Path(arguments[1]).parent.iterdir())
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1 and result.stderr.endswith(".\n"), result.stderr
    assert sorted(Path(arguments[1]).parent.iterdir()) == before
    return result.stderr


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def snippet_of(readme):
    return re.search(r"```python\n(.*?)```", readme, flags=re.DOTALL)[1]


def result_of(**fields):
    """A row of an evaluation file."""
    metric = {"name": "exact_match", "filter": "none", "value": 0.93, "stderr": 0.01, "higher_is_better": True}
    return {
        "task": "demo_counting", "title": "Counting", "dataset": "wedlm-demo/counting", "dataset_config": None,
        "split": "test", "num_fewshot": 0, "num_examples": 1000, "decoding": "streaming, threshold 0.1",
        "arguments": {"decoding": "streaming", "entropy_threshold": 0.1}, "metrics": [metric],
        "tokens_per_forward": 2.345, "prefix_cacheability": 0.5, "tokens_per_second": 1234.5, "num_tokens": 42,
        **fields,
    }  # fmt: skip


def write_evaluation(path, folder, results=None, **fields):
    content = {
        "command": "wedlm eval /home/me/model --out /home/me/eval.json", "commit": "0123456789abcdef+changes",
        "versions": {"torch": "2.13.0", "lm_eval": "0.4.13"}, "device": "A <device>", "threads": 2, "model": "model",
        "weights_sha256": weights_digest(folder),
        "settings": {"apply_chat_template": True, "limit": None, "metadata": {}, "batch_size": 1},
        "results": [result_of()] if results is None else results, **fields,
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path


# --- The demo, from end to end ---


def test_the_demo_becomes_a_repository_that_loads_elsewhere(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(DEMO_FOLDER, source)
    for name in ("optimizer.pt", "trainer_state.json", "training_args.bin", ".env", "notes.txt", "other.safetensors"):
        (source / name).write_text(f"token = {TOKEN}")
    (source / "checkpoint-5").mkdir()
    shutil.copy(source / "model.safetensors", source / "checkpoint-5")
    (source / "modeling_wedlm.py").write_text("raise SystemExit('the code of the checkpoint runs')")
    result = run(source, tmp_path / "demo", "--dataset", "me/sums", "--base-model", "me/a", "--base-model", "me/b")
    assert (result.exit_code, result.stdout) == (0, f"Written to {tmp_path / 'demo'}.\n"), result.stderr

    out = tmp_path / "demo"
    assert names(out) == WHOLE | TOKENIZER | {"loss.png"}
    for name in names(out) - {"README.md", "config.json"}:
        assert (out / name).read_bytes() == (DEMO_FOLDER / name).read_bytes(), name
    made, given = (json.loads((folder / "config.json").read_text()) for folder in (out, DEMO_FOLDER))
    assert made == given | {"transformers_version": transformers.__version__}
    card = ModelCard.load(out / "README.md")
    assert card.data.to_dict() == {
        "license": "apache-2.0", "language": "en", "library_name": "transformers", "pipeline_tag": "text-generation",
        "base_model": ["me/a", "me/b"], "datasets": ["me/sums"], "tags": ["wedlm", "diffusion", "parallel-decoding"],
    }  # fmt: skip
    for shown in (
        "of 3.2 million parameters",
        "| optimizer steps | 7,000 |",
        "](loss.png)",
        "2,048 tokens",
        "| time | 77",
    ):
        assert shown in card.text
    assert "made from [me/a](https://huggingface.co/me/a) and [me/b](https" in " ".join(card.text.split())
    assert card.text.startswith("# demo\n") and card.text.endswith("```\n") and "\n\n\n" not in card.text

    (tmp_path / "elsewhere").mkdir()
    shutil.move(out, tmp_path / "elsewhere" / "demo")
    printed = run_python(snippet_of(card.text), tmp_path / "elsewhere", wedlm=False)
    assert "Answer: x = 5\n" in printed and re.search(r"^\d+ forwards$", printed, flags=re.MULTILINE)


def test_a_checkpoint_without_a_template_and_with_little_else(tmp_path):
    """Its snippet continues a text; and what is missing is made."""
    model = save_checkpoint(tmp_path / "base", chat_template=None)
    (model / "generation_config.json").unlink()
    result = run(model, tmp_path / "out", "--license", "mit", "--prompt", 'say "the cat"\nsat')
    assert result.exit_code == 0, result.stderr
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert r'tokenizer("say \"the cat\"\nsat", return_tensors="pt")' in snippet_of(readme)
    assert "apply_chat_template" not in readme
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (generation["decoding"], generation["eos_token_id"]) == ("streaming", 0)
    assert "of 39,200 parameters, with the layers of Qwen3. It fills" in " ".join(readme.split())
    assert "No report of a training" in readme and "No evaluation of these weights" in readme
    assert names(tmp_path / "out") == (WHOLE | TOKENIZER) - {"chat_template.jinja"}


# --- The snippet ---


def card_with(folder, code):
    folder.mkdir()
    (folder / "README.md").write_text(f"```bash\nfalse\n```\n\n```python\n{code}\n```\n\n```python\nraise 1\n```\n")
    return folder


def test_the_process_of_the_snippet_is_clean(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("SOMEBODYS_API_KEY", "0123456789abc")
    code = f"""
import os, site, sys
from importlib.util import find_spec
from pathlib import Path
assert find_spec("wedlm") is None and find_spec("transformers") is not None
try:
    import wedlm.commands.cli
except ImportError:
    pass
else:
    raise AssertionError("wedlm can be imported")
assert "HF_TOKEN" not in os.environ and "SOMEBODYS_API_KEY" not in os.environ
assert Path("me/my-wedlm/README.md").exists()
from huggingface_hub import constants, get_token
assert constants.HF_HUB_OFFLINE and get_token() is None
for place in (Path.home(), Path(constants.HF_HOME), Path(os.environ["HF_MODULES_CACHE"])):
    assert {str(Path.home())!r} not in str(place) and {str(tmp_path)!r} not in str(place)
assert site.getuserbase() == {__import__("site").getuserbase()!r}
"""
    run_snippet(card_with(tmp_path / "new", code), "me/my-wedlm")


@pytest.mark.parametrize(
    "code, reason",
    [
        ("import wedlm", "ModuleNotFoundError: import of wedlm halted; None in sys.modules"),
        ("raise ValueError('one\\n\\n  and two')", "and two"),
        ("raise SystemExit(3)", ""),
        ("import os; os.kill(os.getpid(), 9)", "signal 9, as when memory is short"),
    ],
)
def test_a_snippet_that_fails(tmp_path, code, reason):
    with pytest.raises(ExportError, match=re.escape(f"does not run without wedlm ({reason}); correct the checkpoint")):
        run_snippet(card_with(tmp_path / "new", code), "new")


def test_without_its_snippet_nothing_appears(tmp_path, model, monkeypatch):
    template = module.TEMPLATE.read_text(encoding="utf-8").replace("name = ", "raise ValueError('broken'); name = ")
    (tmp_path / "template.md").write_text(template)
    monkeypatch.setattr(module, "TEMPLATE", tmp_path / "template.md")
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    assert run(model, tmp_path / "first", "--license", "mit").exit_code == 0
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert "The snippet of the card does not run" in refused(model, tmp_path / "out", "--license", "mit")
    before = (tmp_path / "first" / "README.md").stat()
    refused(model, tmp_path / "first", "--license", "mit", "--overwrite")
    assert (tmp_path / "first" / "README.md").stat() == before


@settings(max_examples=30, deadline=None)
@given(title=st.text(), prompt=st.text(min_size=1), repository=st.text(min_size=1), label=st.text())
def test_whatever_is_said_the_card_says_it(read, title, prompt, repository, label):
    """The snippet has the same strings, the metadata is the same when it is read again, and the title is one line."""
    folder = read.folder.parent
    evaluation = write_evaluation(folder / "eval.json", read.folder, [result_of(title=title, decoding=label)])
    options = CardOptions("mit", title=title, prompt=prompt, evaluation_files=[evaluation])
    card, data, _ = make_card(read, options, repository)
    card.save(folder / "README.md")
    check_card(folder / "README.md", data)
    strings = [node.value for node in ast.walk(ast.parse(snippet_of(card.text))) if isinstance(node, ast.Constant)]
    assert repository in strings and prompt in strings
    heading = card.text.split("\n")[0]
    assert heading.startswith("# ") and "|" not in heading.replace("\\|", "")


def test_metadata_that_changes_when_it_is_read_is_refused(tmp_path):
    data = card_data({"license": "mit"}, "title", [])
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    with pytest.raises(ExportError, match="is another when it is read again"):
        check_card(tmp_path / "README.md", data)


# --- Metadata ---


def readme_with(folder, yaml):
    (folder / "README.md").write_text(f"---\n{yaml}\n---\n# Card\n")
    return folder


def test_the_command_line_wins_over_the_readme(tmp_path):
    assert read_metadata(tmp_path, CardOptions("mit")) == {"license": "mit"}
    readme_with(
        tmp_path,
        "license: other\nlicense_name: own\nlicense_link: LICENSE\nbase_model: [me/a]\ndatasets: me/d\n"
        "language: [en, de]\ntags: one\nlibrary_name: peft\nwidget: []\nmodel-index: []",
    )
    kept = {
        "license": "other", "license_name": "own", "license_link": "LICENSE", "base_model": "me/a",
        "datasets": ["me/d"], "language": ["en", "de"], "tags": "one",
    }  # fmt: skip
    assert read_metadata(tmp_path, CardOptions()) == kept
    assert card_data(kept, "title", []).to_dict() == {
        **kept, "tags": ["wedlm", "one"], "library_name": "transformers", "pipeline_tag": "text-generation",
    }  # fmt: skip
    given = CardOptions("mit", ["me/b"], ["me/e", "me/f"], ["fr"])
    assert read_metadata(tmp_path, given) == {
        "license": "mit", "base_model": "me/b", "datasets": ["me/e", "me/f"], "language": "fr", "tags": "one",
    }  # fmt: skip


@pytest.mark.parametrize(
    "yaml, options, sentence",
    [
        ("", {}, "No licence is given, neither in "),
        ("license: Apache-2.0", {}, "license='Apache-2.0' is not written as on the Hub; give one identifier in small"),
        ("license: [mit]", {}, "license=['mit'] is not written as on the Hub"),
        ("license: mit", {"license": "other"}, "The licence 'other' needs a license_name and a license_link; "),
        ("license: mit", {"license": ""}, "license='' is not written as on the Hub"),
        ("license: mit", {"base_models": ["../out/full"]}, "base_model='../out/full' is no name on the Hub ("),
        ("license: mit\nbase_model: /home/me/model", {}, "give one such as Qwen/Qwen3-8B by --base-model."),
        ("license: mit\ndatasets: [3]", {}, "datasets=3 is no name on the Hub (it is no text); "),
        ("license: mit", {"datasets": ["a b"]}, "by --dataset."),
        ("license: mit\nlanguage: no", {}, "language=False is no code of a language; give one such as en"),
        ("license: mit", {"languages": ["English"]}, "language='English' is no code of a language"),
        ("license: [mit", {}, "README.md cannot be read (while parsing"),
        ("- license", {}, "cannot be read (repo card metadata block should be a dict); correct or remove it."),
    ],
)
def test_metadata_that_the_hub_would_not_take(tmp_path, yaml, options, sentence):
    with pytest.raises(ExportError, match=re.escape(sentence)):
        read_metadata(readme_with(tmp_path, yaml), CardOptions(**options))


# --- What was measured ---


def test_the_tables_and_the_metadata_of_an_evaluation(tmp_path, model, unchecked):
    strict = {"name": "exact_match", "filter": "strict|match", "value": 0.5, "stderr": None, "higher_is_better": True}
    nll = {"name": "nll", "filter": "none", "value": 1, "stderr": None, "higher_is_better": False}
    one_each = {"decoding": "streaming, threshold none", "arguments": {"entropy_threshold": None}}
    likelihood = {"decoding": "likelihood", "arguments": {}}
    unmeasured = dict.fromkeys(("tokens_per_forward", "prefix_cacheability", "tokens_per_second"))
    results = [
        result_of(metrics=[*result_of()["metrics"], strict]),
        result_of(task="again", title="Again"),  # on the same data
        result_of(**one_each),
        result_of(task="nll", title="Nll", dataset_config="main", metrics=[nll], **likelihood, **unmeasured),
    ]
    first = write_evaluation(tmp_path / "eval.json", model, results)
    second = write_evaluation(tmp_path / "second.json", model, device="Another", commit=None)
    arguments = ("--license", "mit", "--eval", first, "--eval", second, "--name", "My | model")
    result = run(model, tmp_path / "out", *arguments)
    assert result.exit_code == 0, result.stderr
    card = ModelCard.load(tmp_path / "out" / "README.md")
    text = card.text[card.text.index("## Evaluation") : card.text.index("## Training")]
    assert (
        """
On A \\<device\\>, 2 threads, torch 2.13.0, lm_eval 0.4.13, apply chat template yes, batch size 1, \
commit 0123456789ab with changes:

```bash
wedlm eval model --out eval.json
```

### Counting

wedlm-demo/counting, split test: 1,000 examples, 0 shots.

| decoding | exact_match ↑ | exact_match, strict\\|match ↑ | tokens per forward | cacheable | tokens/s |
| --- | ---: | ---: | ---: | ---: | ---: |
| streaming, threshold 0.1 | 0.930 ± 0.010 | 0.500 | 2.35 | 0.50 | 1,234 |
| streaming, threshold none | 0.930 ± 0.010 |  | 2.35 | 0.50 | 1,234 |

### Again
"""
        in text
    )
    assert "\n| decoding | nll ↓ |\n| --- | ---: |\n| likelihood | 1.000 |\n\nOn Another, 2" in text
    assert "wedlm-demo/counting, main, split test" in text and "Nothing is said here" not in card.text
    assert text.endswith("through the model behind the prompt.\n\n") and "\n\n\n" not in text

    assert card.data.model_name == "My | model"
    told = {
        (r.dataset_config, r.metric_type, r.metric_name, r.metric_value, json.dumps(r.metric_args, sort_keys=True))
        for r in card.data.eval_results
    }
    counts = {"task": "demo_counting", "num_fewshot": 0, "num_examples": 1000}
    streaming = {"decoding": "streaming", "entropy_threshold": 0.1}
    assert told == {
        (config, metric, name, value, json.dumps(arguments, sort_keys=True))
        for config, metric, name, value, arguments in (
            (None, "exact_match", "Counting: exact_match (streaming, threshold 0.1)", 0.93,
             {**counts, **streaming, "stderr": 0.01}),
            (None, "exact_match", "Counting: exact_match, strict|match (streaming, threshold 0.1)", 0.5,
             {**counts, **streaming}),
            (None, "exact_match", "Again: exact_match (streaming, threshold 0.1)", 0.93,
             {**counts, **streaming, "task": "again", "stderr": 0.01}),
            (None, "exact_match", "Counting: exact_match (streaming, threshold none)", 0.93,
             {**counts, "entropy_threshold": "none", "stderr": 0.01}),
            ("main", "nll", "Nll: nll (likelihood)", 1, {**counts, "task": "nll"}),
        )
    }  # fmt: skip
    assert {(r.task_type, r.dataset_type, r.dataset_name, r.dataset_split) for r in card.data.eval_results} == {
        ("text-generation", "wedlm-demo/counting", "wedlm-demo/counting", "test")
    }


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"weights_sha256": "0" * 64}, "is about other weights than those of MODEL; run `wedlm eval MODEL` again."),
        ({"results": []}, "is no file that `wedlm eval` wrote (ValueError: it has no results); pass one that is."),
        ({"results": [result_of(num_fewshot="5")]}, "(TypeError: num_fewshot is '5')"),
        ({"results": [result_of(metrics=["exact_match"])]}, "(TypeError: Metric is 'exact_match')"),
        ({"results": [result_of(metrics=[{"name": "x"}])]}, "(TypeError: filter is None)"),
        ({"results": {}}, "(TypeError: results is {})"),
        ({"command": None}, "(TypeError: command is None)"),
    ],
)
def test_evaluation_files_that_are_refused(tmp_path, model, fields, sentence):
    path = write_evaluation(tmp_path / "eval.json", model, **fields)
    with pytest.raises(ExportError, match=re.escape(f"{path} {sentence}" if sentence.startswith("is") else sentence)):
        read_evaluation(path, weights_digest(model), "MODEL")


def test_an_evaluation_file_that_cannot_be_read(tmp_path, model, unchecked):
    arguments = (model, tmp_path / "out", "--license", "mit", "--eval", tmp_path / "eval.json")
    assert "eval.json cannot be read as JSON ([Errno 2] No such file" in refused(*arguments)
    (tmp_path / "eval.json").write_text("[1]")
    assert "(TypeError: Evaluation is [1])" in refused(*arguments)
    metric = result_of()["metrics"][0] | {"value": float("nan")}
    write_evaluation(tmp_path / "eval.json", model, [result_of(metrics=[metric])])
    assert "(ValueError: exact_match of demo_counting is nan)" in refused(*arguments)


def test_the_digest_of_weights_in_several_files(tmp_path):
    content = [b"first", b"second"]
    index = {"weight_map": {"b": "model-2.safetensors", "a": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for i, part in enumerate(content, start=1):
        (tmp_path / f"model-{i}.safetensors").write_bytes(part)
    (tmp_path / "adapter.safetensors").write_bytes(b"third")  # which is not loaded
    assert weights_digest(tmp_path) == sha256(b"firstsecond").hexdigest()


# --- How it was trained ---


def test_the_summary_of_a_training(tmp_path, model, unchecked):
    log = [
        {"loss": 3.0, "mlm_loss": 3.1, "ar_loss": 2.9, "epoch": 0.5, "step": 1000},
        {"loss": 1.5, "mlm_loss": 2.0, "ar_loss": 1.0, "epoch": 1.25, "step": 2000},
        {"eval_loss": 1.75, "epoch": 1.25, "step": 2000},
        {"train_runtime": 600.0, "train_loss": 2.25, "epoch": 1.25, "step": 2000},
    ]
    data = {"train": DataSummary(64, num_read=1200, num_samples=1100, num_tokens=5000, num_loss_tokens=3000)}
    write_report(model, ["/home/me/full.yaml", "--hub_token", "secret", "--output_dir=/data/me/out"], log, data)
    assert run(model, tmp_path / "out", "--license", "mit").exit_code == 0
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    text = text[text.index("## Training") : text.index("## Limits")]
    rows = dict(re.findall(r"^\| (\w[\w, ()-]*?) \| (.*) \|$", text, flags=re.MULTILINE))
    assert rows.pop("versions").startswith(f"wedlm {wedlm.__version__}, torch ")
    assert rows == {
        "optimizer steps": "2,000",
        "epochs": "1.25",
        "data (train)": "1,100 samples of 1,200 rows: 5,000 tokens, 3,000 of them with loss",
        "loss, nats per token": "1.500, of masked tokens 2.000, of next tokens 1.000",
        "loss on held-out data": "1.750",
        "time": "10 minutes",
    }
    assert "```bash\nwedlm train full.yaml --hub_token=... ... --output_dir=out\n```\n\n![" in text
    assert (tmp_path / "out" / "loss.png").read_bytes() == (model / "loss.png").read_bytes()


def test_a_training_too_short_to_be_logged(tmp_path, model, unchecked):
    write_report(model, ["full.yaml"], [{"train_runtime": 6.0, "train_loss": 2.25, "epoch": 1.0, "step": 2}], {})
    assert run(model, tmp_path / "out", "--license", "mit").exit_code == 0
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| optimizer steps | 2 |\n| epochs | 1.00 |\n| time | 6 seconds |\n| versions |" in text


def test_a_training_file_that_is_none(tmp_path, model, unchecked):
    shutil.copy(DEMO_FOLDER / "training.json", tmp_path / "other.json")
    (tmp_path / "loss.png").write_text("no picture")
    arguments = (model, tmp_path / "out", "--license", "mit", "--training", tmp_path / "other.json")
    assert run(*arguments).exit_code == 0
    assert "loss.png" not in names(tmp_path / "out") and "loss.png" not in (tmp_path / "out/README.md").read_text()
    shutil.rmtree(tmp_path / "out")
    for content, sentence in (("{}", "KeyError: 'results'"), ('{"log": []}', "IndexError: "), ("[]", "TypeError: ")):
        (tmp_path / "other.json").write_text(content)
        assert f"other.json is no file that `wedlm train` wrote ({sentence}" in refused(*arguments)


# --- What must not go in ---


@pytest.mark.parametrize(
    "text, shown",
    [
        ("wedlm eval /home/me/model --out=/tmp/x/eval.json", "wedlm eval model --out=eval.json"),
        ("--tasks a,/data/b.yaml ~/model ../../up/model/", "--tasks a,b.yaml model model"),
        ("'C:\\Users\\Me\\model'", "'model'"),
        ("Qwen/Qwen3-8B configs/full.yaml https://host/a/b --x 1/2 /", ...),
        (f"--key {TOKEN} --hub_token=abc --hub-token abc", "--key ... --hub_token=... --hub-token ..."),
        ("--hub-token 'a b' --password \"c d\" e", "--hub-token ... --password ... e"),
        ("""'{"api_key": "a b", "max_new_tokens": 4, "secret":5}'""",
         """'{"api_key": ..., "max_new_tokens": 4, "secret":...}'"""),
        ("s3://bucket/key?token=abc&x=1 file:///home/me/x", "s3://bucket/key?token=...&x=1 x"),
        (f"--max_new_tokens 40 --say {TOKEN}, sk-{'a1' * 20}", "--max_new_tokens 40 --say ..., ..."),
    ],
)  # fmt: skip
def test_commands_are_shown_without_paths_and_secrets(text, shown):
    shown = text if shown is ... else shown
    assert without_leaks(text) == shown
    assert find_leak(shown, [], set()) is None


LEAKS = {
    "path": ("/home/me", "/Users/Me", "/root/x", '"/tmp/x"', "file:///home/me/x", "a:/scratch/b", r"C:\Users\Me",
             r"C:\\Users\\Me"),
    "secret": (TOKEN, f"a{TOKEN[3:]} {TOKEN}", f"sk-{'a1' * 20}", "AKIA" + "A1" * 8, "ghp_" + "a1" * 18,
               "-----BEGIN RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----"),
    None: ("", "/", "/home", "Ġ/home", "x/home/me", "https://host.org/home/me", "and/or", "</think>", "/no_think",
           "task-" + "a" * 30, "hf_config", "hf_attention_implementation_of_it", "1/root/2", "-----BEGIN"),
}  # fmt: skip


@pytest.mark.parametrize("kind, text", [(kind, text) for kind, texts in LEAKS.items() for text in texts])
def test_what_is_found(kind, text):
    found = find_leak(f"before {text} behind", [], set())
    if kind is None:
        assert found is None
    elif kind == "path":
        assert found.startswith("the local path ")
    else:
        assert found == "a token, a key or another secret"


def test_what_is_found_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/unusual")
    monkeypatch.setenv("SOMEBODYS_API_KEY", "not-like-a-key-at-all")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/elsewhere/tmp")
    monkeypatch.chdir(tmp_path)

    def found(text):
        return find_leak(f"see {text}", [Path("/unheard/of")], secrets_here())

    assert found("/unheard/of/model") == "the local path /unheard/of/model"
    assert found("/unheard/office, x/unheard/of") is None
    assert found("/unusual") is None and found("/unusual/x") == "the local path /unusual/x"
    assert found(tmp_path) is not None and found("/elsewhere/tmp") is not None
    assert found("not-like-a-key-at-all") == "a token, a key or another secret"
    assert found("a-stored-token") is None
    monkeypatch.setattr("wedlm.hub_card.leaks.get_token", lambda: "a-stored-token")
    assert found("a-stored-token") == "a token, a key or another secret"


@pytest.mark.parametrize("leak", [TOKEN, "/home/me/model"], ids=["secret", "path"])
@pytest.mark.parametrize(
    "name",
    ["README.md", "config.json", "chat_template.jinja", "tokenizer_config.json", "LICENSE", "model.safetensors"],
)
def test_a_leak_in_any_file_is_refused(tmp_path, model, unchecked, name, leak):
    title = "title"
    if name == "README.md":
        title = f"of {leak}"
    elif name == "model.safetensors":
        save_file(load_file(model / name), model / name, {"format": "pt", "from": leak})
    elif name.endswith(".json"):
        edit(model / name, unheard_of=[leak])
    else:
        with open(model / name, "a") as file:
            file.write(f"\n{leak}\n")
    sentence = refused(model, tmp_path / "out", "--license", "mit", "--name", title)
    what = "a token, a key or another secret" if leak == TOKEN else f"the local path {leak}"
    source = "what the card is made of" if name == "README.md" else f"that file of {model}"
    assert sentence == f"{name} would hold {what}; take it out of {source}, and export again.\n"
    assert unchecked == []


def test_a_leak_in_the_index_of_the_weights(tmp_path, model, unchecked):
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    save_file(weights, model / "model-00001-of-00001.safetensors", {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}
    path = model / "model.safetensors.index.json"
    path.write_text(json.dumps(index | {"metadata": {"from": "/home/me/model"}}))
    assert refused(model, tmp_path / "out", "--license", "mit").startswith("model.safetensors.index.json would hold")
    path.write_text(json.dumps(index))
    assert run(model, tmp_path / "out", "--license", "mit").exit_code == 0
    assert {path.name, "model-00001-of-00001.safetensors"} < names(tmp_path / "out")


def test_what_a_checkpoint_says_of_itself(tmp_path, model, unchecked):
    """Places it was loaded from go; so does max_new_tokens, which would win over what callers ask for."""
    edit(model / "config.json", _name_or_path="/home/me/model")
    places = {"name_or_path": "/home/me/model", "special_tokens_map_file": "/root/.cache/map.json"}
    edit(model / "tokenizer_config.json", **places)
    edit(model / "generation_config.json", max_new_tokens=2048, repetition_penalty=1.1, decoding="verified")
    (model / "LICENSE").write_text("Do what you want.")
    result = run(model, tmp_path / "out", "--license", "mit")
    assert result.exit_code == 0, result.stderr
    assert "Note: max_new_tokens=2048 of generation_config.json is left out" in result.stdout
    assert "Note: generation_config.json has repetition_penalty=1.1: it reads the text" in result.stdout
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "- generation_config.json has repetition_penalty=1.1: it reads" in readme
    assert "`decoding='verified'`, `window_size=None`, `entropy_threshold=0.4`, `distance_penalty=0.02`.\n" in readme
    for name, gone in (("tokenizer_config.json", places), ("generation_config.json", ["max_new_tokens"])):
        before = json.loads((model / name).read_text())
        expected = {field: value for field, value in before.items() if field not in gone}
        assert json.loads((tmp_path / "out" / name).read_text()) == expected
    assert "LICENSE" in names(tmp_path / "out")
    assert [arguments[1] for arguments in unchecked] == ["out"]


# --- Places and checkpoints that are refused ---


def test_places_that_are_refused(tmp_path, model, unchecked):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    assert "exists and is not empty; choose another folder" in refused(model, tmp_path / "there", "--license", "mit")
    arguments = ("--license", "mit", "--overwrite")
    assert "is no checkpoint, and only a checkpoint is" in refused(model, tmp_path / "there", *arguments)
    assert "one lies in the other" in refused(model, model / "out", *arguments)
    assert "are the same folder" in refused(model, model, *arguments)
    assert run(model, tmp_path / "out", "--license", "mit").exit_code == 0
    assert run(model, tmp_path / "out", "--license", "gpl-3.0", "--overwrite").exit_code == 0
    assert ModelCard.load(tmp_path / "out" / "README.md").data.license == "gpl-3.0"


def test_checkpoints_that_are_refused(tmp_path, model, unchecked, monkeypatch):
    def sentence(source=model):
        return refused(source, tmp_path / "out", "--license", "mit")

    assert "nothing does not exist" in sentence("nothing")
    assert "has no tokenizer" in sentence(CHECKPOINTS / "q3")
    with monkeypatch.context() as full:
        full.setattr(new_folder.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        assert "and its disk has 0.00 GB free" in sentence()
    edit(model / "config.json", hidden_size=30)
    assert "and by its config" in sentence()
    edit(model / "config.json", model_type="qwen3")
    assert "is of model_type 'qwen3'" in sentence()
    (model / "config.json").unlink()
    (model / "adapter_config.json").touch()
    assert "is an adapter; `wedlm merge" in sentence()


def test_a_checkpoint_on_the_hub(tmp_path, model, unchecked, monkeypatch):
    """Also its licence is taken over."""
    readme_with(model, "license: mit")
    put_into_hub_cache(model, tmp_path / "hub", "me/model")
    monkeypatch.setattr(
        "wedlm.checkpoints.load.snapshot_download", partial(snapshot_download, cache_dir=tmp_path / "hub")
    )
    assert run("me/model", tmp_path / "out").exit_code == 0
    assert ModelCard.load(tmp_path / "out" / "README.md").data.license == "mit"


# --- The Hub ---


class Hub:
    """In the place of HfApi: what it was asked, and what it answers."""

    def __init__(self, **answers):
        self.asked, self.answers = [], {"create_repo": "https://hub/me/model", **answers}

    def __call__(self):
        return self

    def __getattr__(self, name):
        def ask(*arguments, **options):
            self.asked.append((name, *arguments, options))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask


@pytest.fixture
def pushing(monkeypatch, unchecked):
    def put(validates=None, **answers):
        hub = Hub(validate=validates, **answers)
        monkeypatch.setattr(module, "HfApi", hub)
        monkeypatch.setattr(ModelCard, "validate", lambda card: hub.validate())
        return hub

    return put


def test_a_push(tmp_path, model, pushing, unchecked):
    hub = pushing()
    result = run(model, tmp_path / "out", "--license", "mit", "--push", "me/model")
    assert (result.exit_code, result.stdout.split("\n")[-2]) == (0, "Pushed to https://hub/me/model.")
    assert hub.asked == [
        ("whoami", {}),
        ("validate", {}),
        ("create_repo", "me/model", {"private": None, "exist_ok": True}),
        ("upload_folder", {"repo_id": "me/model", "folder_path": tmp_path / "out"}),
    ]
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert 'name = "me/model"  #' in readme and "\n# model\n" in readme
    assert [arguments[1] for arguments in unchecked] == ["me/model"]


def test_what_is_private_stays_so(tmp_path, model, pushing):
    """A repository that was there before keeps its visibility, whatever create_repo is told."""
    arguments = (model, tmp_path / "out", "--license", "mit", "--push", "me/model", "--private", "--overwrite")
    hub = pushing(model_info=SimpleNamespace(private=True))
    assert run(*arguments).exit_code == 0
    assert ("create_repo", "me/model", {"private": True, "exist_ok": True}) in hub.asked
    hub = pushing(model_info=SimpleNamespace(private=False))
    result = run(*arguments)
    assert result.exit_code == 2 and "(it was there before, and is public)" in result.stderr
    assert "upload_folder" not in [name for name, *_ in hub.asked]
    assert "--private is about what is pushed; pass --push" in refused(model, tmp_path / "new", "--private")


@pytest.mark.parametrize("step", ["validates", "create_repo", "upload_folder"])
def test_a_push_that_fails_leaves_the_folder(tmp_path, model, pushing, step):
    pushing(**{step: RuntimeError("no\nroom")})
    result = run(model, tmp_path / "my out", "--license", "mit", "--push", "me/model")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"{tmp_path / 'my out'} is complete, and was not pushed to me/model (no room); when that is put right, "
        f"`hf upload me/model '{tmp_path / 'my out'}'` does it.\n"
    )
    assert names(tmp_path / "my out") == WHOLE | TOKENIZER


@pytest.mark.parametrize("repository", ["model", "me/model/x", "me/", "", "me/a b", "../model"])
def test_a_push_to_what_is_no_repository(tmp_path, model, pushing, repository):
    hub = pushing()
    sentence = refused(model, tmp_path / "out", "--license", "mit", "--push", repository)
    assert f"{repository} names no repository (" in sentence and "give OWNER/NAME" in sentence
    assert hub.asked == []


def test_a_push_without_a_token_is_refused_before_all_work(tmp_path, model, pushing):
    hub = pushing(whoami=OSError("no token"))
    sentence = refused("nothing", tmp_path / "out", "--push", "me/model")
    assert "--push me/model needs the Hub, which says no (no token); log in with `hf auth login`" in sentence
    assert len(hub.asked) == 1
