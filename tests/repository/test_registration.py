import json
import shutil

import pytest
from helpers import CHECKPOINTS, run_python
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, pipeline

import wedlm
from wedlm import WeDLMConfig, WeDLMForCausalLM, WeDLMModel
from wedlm.checkpoints.demo_folder import DEMO_FOLDER

BROKEN_CODE = "raise RuntimeError('the broken remote code ran')\n"


@pytest.fixture
def official(checkpoint, tmp_path):
    """A released checkpoint, with remote code that must not run."""
    folder = tmp_path / "official"
    shutil.copytree(checkpoint, folder)
    for name in ("configuration_wedlm.py", "modeling_wedlm.py"):
        (folder / name).write_text(BROKEN_CODE)
    return folder


@pytest.mark.parametrize("trust_remote_code", [None, False, True])
def test_auto_classes_load_official_checkpoints(official, trust_remote_code):
    config = AutoConfig.from_pretrained(official, trust_remote_code=trust_remote_code)
    assert type(config) is WeDLMConfig
    model = AutoModelForCausalLM.from_pretrained(official, trust_remote_code=trust_remote_code)
    assert type(model) is WeDLMForCausalLM
    assert type(AutoModel.from_pretrained(official, trust_remote_code=trust_remote_code)) is WeDLMModel
    assert type(AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)) is WeDLMForCausalLM


ORDERS = [
    "import wedlm; from transformers import AutoModelForCausalLM",
    "from transformers import AutoModelForCausalLM; import wedlm",
    pytest.param("import wedlm; from transformers import GenerationMixin", marks=pytest.mark.slow),
    pytest.param("import wedlm; import peft", marks=pytest.mark.slow),
]


@pytest.mark.full
@pytest.mark.parametrize("order", ORDERS)
def test_registration_in_any_order_of_imports_and_in_silence(order, tmp_path):
    checkpoint = str(CHECKPOINTS / "q3")
    out = run_python(
        "import logging\n"
        "logging.getLogger('bitsandbytes').setLevel('ERROR')\n"  # It warns on some CPUs, when PEFT imports it.
        f"{order}\n"
        "from transformers import AutoConfig\n"
        f"config = AutoConfig.from_pretrained({checkpoint!r})\n"
        "assert type(config).__module__ == 'wedlm.modeling_wedlm.configuration_wedlm'\n"
        "from transformers import AutoModelForCausalLM, logging\n"
        "logging.disable_progress_bar()\n"
        f"model = AutoModelForCausalLM.from_pretrained({checkpoint!r})\n"
        "assert type(model).__module__ == 'wedlm.modeling_wedlm.modeling_wedlm'\n",
        tmp_path,
    )
    assert out == ""


def test_import_alone_loads_neither_torch_nor_transformers(tmp_path):
    out = run_python("import wedlm, sys; print({'torch', 'transformers'} & sys.modules.keys())", tmp_path)
    assert out.strip() == "set()"


def test_public_names():
    for name in wedlm.__all__:
        value = getattr(wedlm, name)
        assert getattr(value, "__name__", name) == name and value is not None
        assert name in dir(wedlm)
    with pytest.raises(AttributeError, match="'wedlm' has no attribute 'WeDLM'; its public names are WeDLMConfig"):
        wedlm.WeDLM  # noqa: B018


def test_other_models_load_as_before(tmp_path):
    fields = json.loads((CHECKPOINTS / "q3" / "config.json").read_text())
    del fields["auto_map"]
    (tmp_path / "config.json").write_text(json.dumps({**fields, "model_type": "qwen3"}))
    assert AutoConfig.from_pretrained(tmp_path).model_type == "qwen3"
    assert type(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))).__name__ == "Qwen3ForCausalLM"


@pytest.mark.full
def test_registration_does_not_wait_for_other_threads(tmp_path):
    """The Auto classes know WeDLM while another thread is in the middle of a long import of transformers."""
    code = """
import sys, threading, time
import wedlm
def import_much():
    import transformers.trainer
thread = threading.Thread(target=import_much)
thread.start()
while "transformers.models.auto.configuration_auto" not in sys.modules:
    time.sleep(0.001)
from transformers import AutoConfig
print(type(AutoConfig.from_pretrained(CHECKPOINT)).__module__)
thread.join()
from transformers import AutoModelForCausalLM
print(type(AutoModelForCausalLM.from_pretrained(CHECKPOINT)).__module__)
"""
    out = run_python(code.replace("CHECKPOINT", repr(str(CHECKPOINTS / "q3"))), tmp_path)
    modules = [f"wedlm.modeling_wedlm.{name}_wedlm" for name in ("configuration", "modeling")]
    assert [line for line in out.splitlines() if line in modules] == modules


def test_pipelines_know_the_model(capfd):
    generator = pipeline("text-generation", model=str(DEMO_FOLDER))
    assert type(generator.model) is WeDLMForCausalLM
    assert generator("one two", max_new_tokens=4)[0]["generated_text"].startswith("one two")
    assert "is not supported for" not in capfd.readouterr().err
