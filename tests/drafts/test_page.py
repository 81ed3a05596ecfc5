"""docs/reference/adapt.md: its code runs, and it lists every option with its default."""

import re
from dataclasses import fields
from inspect import signature

from helpers import REPOSITORY

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands.cli import adapt
from wedlm.drafts.settings import AdaptSettings, option

PAGE = (REPOSITORY / "docs" / "reference" / "adapt.md").read_text(encoding="utf-8")


def test_the_command_has_the_defaults_of_the_settings():
    settings = {field.name: field.default for field in fields(AdaptSettings) if field.name != "model"}
    options = {name: parameter.default for name, parameter in signature(adapt).parameters.items() if name != "model"}
    assert settings == {name: default for name, default in options.items() if name in settings}
    assert options.keys() - settings.keys() == {"out", "overwrite", "debug"}


def test_the_code_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    variables = {}
    quick = {
        '"hub_card/wedlm-demo"': repr(str(DEMO_FOLDER)),
        "max_steps=8": "max_steps=1",
        "range(1, 9)": "range(1, 3)",
    }
    for before, after in quick.items():
        assert before in code
        code = code.replace(before, after)
    exec(code, variables)
    assert (tmp_path / "drafts" / "adapter_model.safetensors").exists()
    assert (variables["verified"].forwards < variables["ids"].shape[1]).all()


def test_every_option_is_listed_with_its_default():
    table = {}
    for names, default in re.findall(r"^\| (`--.+?`) \| (\S*) ?\|", PAGE, re.MULTILINE):
        table |= dict.fromkeys(re.findall(r"`--([\w-]+)", names), default)
    settings = {field.name: field.default for field in fields(AdaptSettings) if field.name != "model"}
    assert set(table) == {option(name)[2:] for name in settings} | {"overwrite"}
    for name, default in settings.items():
        shown = table[option(name)[2:]]
        if shown and shown not in ("none", "auto"):
            assert float(shown) == default, name
        elif shown == "none":
            assert default is None, name
