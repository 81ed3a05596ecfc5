"""The plugin of vLLM is declared, names the drafters' classes, and imports vLLM only when vLLM calls it.

A drafter warns of a vLLM that was not tried.
"""

import ast
from importlib.metadata import entry_points

from helpers import REPOSITORY, run_python

from wedlm.checkpoints.resolve import STOCK_FAMILIES
from wedlm.for_vllm.plugin import DRAFTERS, register


def test_the_entry_point_is_the_plugin():
    (plugin,) = (each for each in entry_points(group="vllm.general_plugins") if each.name == "wedlm")
    assert plugin.load() is register


def test_there_is_a_class_for_each_architecture():
    assert DRAFTERS.keys() == STOCK_FAMILIES.keys()
    tree = ast.parse((REPOSITORY / "wedlm" / "for_vllm" / "drafters.py").read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for model_type, name in DRAFTERS.items():
        bases = [base.id for base in classes[name].bases]
        assert bases == ["Drafter", f"{STOCK_FAMILIES[model_type]}ForCausalLM"]


STUB = """
import sys
from types import SimpleNamespace

import wedlm
from wedlm.for_vllm.plugin import register

assert not sys.modules.keys() & {"vllm", "torch", "transformers"}
registered = {}
registry = SimpleNamespace(register_model=lambda name, place: registered.update({name: place}))
sys.modules["vllm"] = SimpleNamespace(ModelRegistry=registry)
register()
register()  # vLLM may call it again
assert not sys.modules.keys() & {"torch", "transformers", "wedlm.for_vllm.drafters"}
for name, place in registered.items():
    print(name, place)
"""


def test_registration_imports_nothing_more(tmp_path):
    lines = run_python(STUB, tmp_path).splitlines()
    assert lines == [f"{name} wedlm.for_vllm.drafters:{name}" for name in DRAFTERS.values()]


# A vLLM of stubs: each name in it is an empty class, and its logger can only warn once.
WARNINGS = r"""
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import wedlm.for_vllm


class Stub(ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


source = Path(wedlm.for_vllm.__path__[0], "drafters.py").read_text()
modules = {name: Stub(name) for name in ("vllm", *re.findall(r"^from (vllm[.\w]*) import", source, re.MULTILINE))}
logger = SimpleNamespace(warning_once=lambda text, *values, scope: print(text % values))
modules["vllm.logger"].init_logger = lambda name: logger
sys.modules |= modules
from wedlm.for_vllm import drafters

for version in ("0.32.0", "9.0"):
    for is_cpu in (False, True):
        modules["vllm"].__version__ = version
        drafters.current_platform = SimpleNamespace(is_cpu=lambda: is_cpu)
        print(f"{version} {is_cpu}")
        drafters.warn()
"""


def test_a_version_that_was_not_tried_and_a_cpu_are_warned_of(tmp_path):
    other = "vLLM 9.0 was not tried with WeDLM's drafters (0.32.0 was); compare some texts and the accepted drafts."
    cpu = (
        "vLLM 0.32.0 on a CPU loses the temperature and top_p of requests with drafts, whoever drafts; use "
        "temperature 0, or leave the drafter out."
    )
    lines = run_python(WARNINGS, tmp_path).splitlines()
    assert lines == ["0.32.0 False", "0.32.0 True", cpu, "9.0 False", other, "9.0 True", other]
