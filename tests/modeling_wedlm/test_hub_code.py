"""The code that travels with a checkpoint, in every way of saving and loading."""

import ast
import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import CHECKPOINTS, REPOSITORY, copy_with_code, load, put_into_hub_cache, random_tokens, run_python
from transformers import Trainer, TrainingArguments
from transformers.utils import hub

from wedlm import DualStreamCollator, WeDLMConfig
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.modeling_wedlm.hub_code import AUTO_MAP, PACKAGE_IMPORT, flat_files

FOLDERS = ("modeling_wedlm", "generation")
CODE = {path.name for name in FOLDERS for path in (REPOSITORY / name).glob("*.py")}
CODE -= {"__init__.py", "custom_generate.py", "model_check.py"}  # the last two are for models that are no WeDLM

LINES = re.findall(
    r'(Auto\w+\.from_pretrained\("my-wedlm".*?\))',
    (REPOSITORY / "docs" / "checkpoints.md").read_text(encoding="utf-8"),
)
LOAD_AND_SAVE_AGAIN = """
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({name!r}, trust_remote_code=True).eval()
assert type(model).__module__.startswith("transformers_modules."), type(model)
inputs = torch.load("inputs.pt")
torch.testing.assert_close(model(**inputs["forward"]).logits, inputs["logits"])
assert torch.equal(model.generate(inputs["forward"]["input_ids"], max_new_tokens=4), inputs["generated"])
base = AutoModel.from_pretrained({name!r}, trust_remote_code=True).eval()
torch.testing.assert_close(model.lm_head(base(**inputs["forward"]).last_hidden_state), inputs["logits"])
model.save_pretrained("again")
AutoConfig.from_pretrained({name!r}, trust_remote_code=True).save_pretrained("config_again")
assert AutoConfig.from_pretrained("config_again", trust_remote_code=True).mask_token_id == 159
"""

REFUSED = """
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
model = AutoModelForCausalLM.from_pretrained("saved", trust_remote_code=True)
batch = torch.load("inputs.pt")["batch"]
loss = {name: batch[name] for name in ("input_ids", "targets", "target_weights")}
for needs_the_package in (
    lambda: model.generate_batch([[3, 4, 5]], max_new_tokens=4),
    lambda: model.init_continuous_batching(GenerationConfig(decoding="autoregressive")),
    lambda: model(**batch),
    lambda: model(**loss),
    lambda: model(teachers=loss.pop("targets"), **loss),
):
    try:
        needs_the_package()
    except ImportError as error:
        print(error)
"""

BATCH_AND_TRAIN = """
import torch
from transformers import AutoModelForCausalLM
inputs = torch.load("inputs.pt")
models = [
    AutoModelForCausalLM.from_pretrained("saved", trust_remote_code=True, attn_implementation=attention)
    for attention in ("sdpa", "dual_stream")
]
for model in models:
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    loss = model(**inputs["batch"]).loss
    loss.backward()
    torch.testing.assert_close(loss.detach(), inputs["loss"], atol=1e-3, rtol=1e-5)
    prompts = [inputs["forward"]["input_ids"][0].tolist(), [3, 4, 5]]
    for prompt, output in zip(prompts, model.generate_batch(prompts, max_new_tokens=9).values()):
        assert output.error is None, output.error
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=9)[0, len(prompt) :]
        assert output.generated_tokens == expected.tolist()
    print("batched and trained with", model.config._attn_implementation)
assert "transformers_modules" not in type(model.init_continuous_batching()).__module__
"""


@pytest.fixture
def checkpoint():
    return CHECKPOINTS / "q3"


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def save_with_inputs(checkpoint, folder):
    """Saves a checkpoint into folder/saved, and beside it inputs with the outputs of the model in this process."""
    model = load(checkpoint)
    model.save_pretrained(folder / "saved")
    input_ids, text = random_tokens(1, 8), random_tokens(1, 20)[0].tolist()
    position_ids = torch.tensor([[0, 1, 2, 3, 6, 4, 5, 7]])
    sequence = {"input_ids": text, "labels": text, "sample_lengths": [13, 7], "sample_indices": [0, 1]}
    batch = DualStreamCollator(mask_token_id=159, block_size=4)([sequence])
    inputs = {
        "forward": {"input_ids": input_ids, "position_ids": position_ids},
        "logits": model(input_ids=input_ids, position_ids=position_ids).logits.detach(),
        "generated": model.generate(input_ids, max_new_tokens=4),
        "batch": batch,
        "loss": model(**batch).loss.detach(),
    }
    torch.save(inputs, folder / "inputs.pt")


@pytest.fixture(scope="module")
def process_without_the_package(tmp_path_factory):
    """A folder with a checkpoint, and the output of a process that loads and saves it."""
    place = tmp_path_factory.mktemp("elsewhere")
    save_with_inputs(CHECKPOINTS / "q3", place)
    copy_with_code(DEMO_FOLDER, place / "my-wedlm")
    names = ", ".join(line.partition(".")[0] for line in LINES)
    page = (
        f"from transformers import {names}\nprint('page:', [type(each).__name__ for each in ({', '.join(LINES)})])\n"
    )
    return place, run_python(LOAD_AND_SAVE_AGAIN.format(name="saved") + REFUSED + page, place, wedlm=False)


# --- The files that travel ---


def test_the_files_that_travel_are_this_packages_own():
    originals = [path for folder in FOLDERS for path in (REPOSITORY / folder).glob("*.py")]
    for name, source in flat_files().items():
        (original,) = (path for path in originals if path.name == name)  # two of one name would overwrite each other
        assert PACKAGE_IMPORT.sub("", original.read_text()).splitlines()[-1] == source.splitlines()[-1]
    assert flat_files().keys() == CODE


def test_flat_files_import_nothing_but_each_other_transformers_and_torch():
    allowed = {"torch", "transformers", "safetensors", "huggingface_hub", *sys.stdlib_module_names}
    for name, source in flat_files().items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level <= 1, f"{name} imports across folders"
                assert node.level == 0 or f"{node.module}.py" in CODE
                modules = [node.module] if node.level == 0 else []
            else:
                continue
            assert {module.partition(".")[0] for module in modules} <= allowed, f"{name} imports {modules}"


def test_what_the_code_takes_from_the_package():
    taken = {name for source in flat_files().values() for name in re.findall(r'from_package\(\s*"([\w.]+)"', source)}
    losses = {f"wedlm.training.{name}" for name in ("draft_loss", "dual_stream", "target_loss")}
    assert taken == {"wedlm.batching.manager", *losses}
    for name in taken:
        importlib.import_module(name)


def test_the_lines_of_the_page_ask_nothing_where_the_package_is_not(process_without_the_package):
    """transformers reads the config for a tokenizer too, and asks whether its code may run."""
    _, printed = process_without_the_package
    (line,) = re.findall("^page: .*$", printed, re.MULTILINE)
    assert len(LINES) == 2 and "WeDLMForCausalLM" in line and "custom code" not in printed


def test_nothing_else_travels(tmp_path, monkeypatch):
    """No file of the working directory, of the checkpoint's folder or beside the package's files travels."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINTS / "q3", folder)
    for place in (tmp_path, folder):
        (place / "secret.py").write_text("password = 1\n")
    monkeypatch.chdir(tmp_path)
    load(folder).save_pretrained(tmp_path / "saved")
    weights = {"config.json", "generation_config.json", "model.safetensors"}
    assert {path.name for path in (tmp_path / "saved").iterdir()} == CODE | weights


# --- Every way of saving ---


def assert_complete(folder):
    files = contents(folder)
    assert CODE <= files.keys()
    assert {name: files[name].decode() for name in CODE} == flat_files()
    assert json.loads(files["config.json"])["auto_map"] == AUTO_MAP


def test_save_pretrained_is_complete(model, tmp_path):
    model.save_pretrained(tmp_path / "saved")
    assert_complete(tmp_path / "saved")
    model.config.save_pretrained(tmp_path / "config")
    assert_complete(tmp_path / "config")


def test_the_auto_map_of_another_repository_does_not_survive_and_uploads_carry_the_code(model, monkeypatch):
    """A checkpoint loaded from the Hub names the repository of its broken code; ours must not."""
    uploaded = {}

    class Hub:
        def create_repo(self, repo_id, **kwargs):
            return SimpleNamespace(repo_id=repo_id)

        def create_commit(self, repo_id, operations, **kwargs):
            uploaded.update({op.path_in_repo: Path(op.path_or_fileobj).read_bytes() for op in operations})

    official = {"AutoConfig": "tencent/WeDLM--configuration_wedlm.WeDLMConfig", "AutoModel": "a/b--c.D"}
    monkeypatch.setattr(model.config, "auto_map", official, raising=False)
    monkeypatch.setattr(hub, "create_and_tag_model_card", lambda *args, **kwargs: SimpleNamespace(save=lambda path: 0))
    stubs = {"hf_api": Hub, "create_repo": Hub().create_repo, "create_commit": Hub().create_commit}
    for name, stub in stubs.items():  # by version
        monkeypatch.setattr(hub, name, stub, raising=False)
    model.push_to_hub("someone/model")
    assert "model.safetensors" in uploaded and {name: uploaded[name].decode() for name in CODE} == flat_files()
    assert json.loads(uploaded["config.json"])["auto_map"] == AUTO_MAP


def test_a_users_subclass_is_saved_beside_the_package(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from wedlm import WeDLMForCausalLM\n\n\nclass Mine(WeDLMForCausalLM):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from mine import Mine

    config = WeDLMConfig.from_pretrained(CHECKPOINTS / "q3")
    Mine(config).save_pretrained(tmp_path / "unregistered")
    assert_complete(tmp_path / "unregistered")
    monkeypatch.setattr(Mine, "_auto_class", None)
    Mine.register_for_auto_class("AutoModelForCausalLM")
    Mine(config).save_pretrained(tmp_path / "registered")
    saved = contents(tmp_path / "registered")
    assert saved.keys() >= CODE | {"mine.py"}
    names = ("AutoModelForCausalLM", "AutoModelForDecision")
    assert json.loads(saved["config.json"])["auto_map"] == {**AUTO_MAP, **dict.fromkeys(names, "mine.Mine")}


def test_a_trainers_checkpoints_carry_the_code(model, tmp_path):
    samples = [{"input_ids": ids, "labels": ids} for ids in random_tokens(4, 8)]
    arguments = TrainingArguments(tmp_path, max_steps=2, save_steps=1, report_to=[], use_cpu=True)
    Trainer(model, arguments, train_dataset=samples).train()
    for number in (1, 2):
        assert_complete(tmp_path / f"checkpoint-{number}")


# --- Loading without the package ---


def assert_saved_again(folder, checkpoint):
    assert contents(folder / "again") == contents(folder / "saved")
    configs = [json.loads((folder / name / "config.json").read_text()) for name in ("saved", "config_again")]
    assert configs[1].pop("auto_map") == {"AutoConfig": AUTO_MAP["AutoConfig"]}
    assert {**configs[1], "auto_map": AUTO_MAP} == configs[0]
    code_of_config = {"configuration_wedlm.py", "hub_code.py", "model_type.py"}
    assert contents(folder / "config_again").keys() == {"config.json"} | code_of_config
    # This package loads the folder that the checkpoint's own code has saved.
    reloaded, model = load(folder / "again"), load(checkpoint)
    assert all(torch.equal(a, b) for a, b in zip(reloaded.parameters(), model.parameters(), strict=True))


def test_loads_without_the_package_and_saves_the_same_folder_again(process_without_the_package):
    place, _ = process_without_the_package
    assert_saved_again(place, CHECKPOINTS / "q3")


@pytest.mark.slow
def test_loads_from_the_hub_without_the_package(checkpoint, tmp_path):
    name = "someone/wedlm-tiny"
    save_with_inputs(checkpoint, tmp_path)
    put_into_hub_cache(tmp_path / "saved", tmp_path / "hub", name)
    environment = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    run_python(LOAD_AND_SAVE_AGAIN.format(name=name), tmp_path, wedlm=False, **environment)
    assert_saved_again(tmp_path, checkpoint)


def test_without_the_package_batches_and_losses_say_what_to_install(process_without_the_package):
    _, printed = process_without_the_package
    needs = "needs the package wedlm, which is not installed; run pip install wedlm"
    assert printed.count(f"Continuous batching {needs}.") == 2
    for user in ("A forward with stream_ids", "The loss of targets", "The loss of teachers"):
        assert printed.count(f"{user} {needs}.") == 1


@pytest.mark.full
def test_with_the_package_the_code_beside_the_weights_batches_and_trains(tmp_path):
    save_with_inputs(CHECKPOINTS / "q3", tmp_path)
    printed = run_python(BATCH_AND_TRAIN, tmp_path)
    assert "trained with sdpa" in printed and "trained with dual_stream" in printed
