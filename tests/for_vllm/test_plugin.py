"""The plugin of vLLM is declared, names the drafters' classes, and imports vLLM only when vLLM calls it."""

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
