"""Copies the code of the model into every saved checkpoint, which then loads with transformers and torch alone."""

import importlib.util
import os
import re
from pathlib import Path

# transformers copies the file of a model's class and the files of its folder that it imports relatively, but the files
# of this package lie in two folders. They therefore import each other as `from wedlm.<folder>.<file> import Name`, on
# one line; saving follows these imports, copies the files into one folder and makes the imports relative.
PACKAGE_IMPORT = re.compile(r"^from (wedlm\.\w+\.(\w+)) import ", flags=re.MULTILINE)
ROOT_MODULE = "wedlm.modeling_wedlm.modeling_wedlm"
AUTO_MAP = {
    "AutoConfig": "configuration_wedlm.WeDLMConfig",
    "AutoModel": "modeling_wedlm.WeDLMModel",
    "AutoModelForCausalLM": "modeling_wedlm.WeDLMForCausalLM",
    # The class with which `transformers serve` and the decision pipeline first try to load a model.
    "AutoModelForDecision": "modeling_wedlm.WeDLMForCausalLM",
}


def flat_files(root: str = ROOT_MODULE) -> dict[str, str]:
    """Returns the files that a module needs by name, itself included, with the imports of each other made relative."""
    sources, pending = {}, [root]
    while pending:
        module = pending.pop()
        if module not in sources:
            sources[module] = Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")
            pending += [imported for imported, _ in PACKAGE_IMPORT.findall(sources[module])]
    return {
        module.rpartition(".")[2] + ".py": PACKAGE_IMPORT.sub(r"from .\2 import ", source)
        for module, source in sources.items()
    }


def copy_code(save_directory: str | os.PathLike, auto_map: dict[str, str]) -> dict[str, str]:
    """Writes the code of a checkpoint into a folder.

    Args:
        save_directory (`str` or `os.PathLike`): The folder of the checkpoint.
        auto_map (`dict[str, str]`): The `auto_map` of the config so far. Entries that name a file of the folder, such
            as a user's own subclass, stay; entries that name another repository go.

    Returns:
        `dict[str, str]`: The `auto_map` of the code that now lies in the folder.
    """
    # In a checkpoint's own code this package is not named wedlm; there transformers copies the files itself.
    if __package__.partition(".")[0] == "wedlm":
        for name, source in flat_files().items():
            Path(save_directory, name).write_text(source, encoding="utf-8")

    def names_a_file_here(reference) -> bool:  # "file.Class"; a file elsewhere is "repository--file.Class"
        return isinstance(reference, str) and Path(save_directory, reference.partition(".")[0] + ".py").exists()

    own = {name: reference for name, reference in auto_map.items() if names_a_file_here(reference)}
    named = {**AUTO_MAP, **own}
    named["AutoModelForDecision"] = named["AutoModelForCausalLM"]
    return {name: reference for name, reference in named.items() if names_a_file_here(reference)}
