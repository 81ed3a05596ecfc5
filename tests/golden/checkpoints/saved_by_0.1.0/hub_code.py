"""Code that travels: every checkpoint carries the files it needs to load with transformers and torch alone.

transformers copies the class's own file and what it imports relatively from the same folder; the files of this package
lie in several. So they import each other only as `from wedlm.<folder>.<file> import Name`, and saving follows those
imports, copies the files flat and rewrites the imports to `from .<file> import Name`.
"""

import importlib.util
import os
import re
from pathlib import Path

PACKAGE_IMPORT = re.compile(r"^from (wedlm\.\w+\.(\w+)) import ", flags=re.MULTILINE)
ROOT_MODULE = "wedlm.modeling_wedlm.modeling_wedlm"
AUTO_MAP = {
    "AutoConfig": "configuration_wedlm.WeDLMConfig",
    "AutoModel": "modeling_wedlm.WeDLMModel",
    "AutoModelForCausalLM": "modeling_wedlm.WeDLMForCausalLM",
}


def flat_files() -> dict[str, str]:
    """The files that travel, `{"modeling_wedlm.py": its source with flat imports, ...}`."""
    sources, pending = {}, [ROOT_MODULE]
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
    """Writes the files that travel into `save_directory` and returns the auto_map for what lies there.

    Of the old `auto_map` it keeps what names a file in the folder, a subclass of the caller's own, say.
    """
    # Loaded from a checkpoint these files are flat already, and transformers copies them along itself.
    if __package__.partition(".")[0] == "wedlm":
        for name, source in flat_files().items():
            Path(save_directory, name).write_text(source, encoding="utf-8")

    def names_a_file_here(reference) -> bool:  # "file.Class", where "repository--file.Class" names one elsewhere
        return isinstance(reference, str) and Path(save_directory, reference.partition(".")[0] + ".py").exists()

    own = {name: reference for name, reference in auto_map.items() if names_a_file_here(reference)}
    return {name: reference for name, reference in {**AUTO_MAP, **own}.items() if names_a_file_here(reference)}
