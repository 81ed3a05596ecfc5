"""`wedlm export --strategy`: a repository with verified decoding alone, for `custom_generate=` of any causal model."""

import os
import shutil
from pathlib import Path

from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.new_folder import check_apart, check_links, check_out, complete_or_absent
from wedlm.checkpoints.plan import copy_files
from wedlm.checkpoints.resolve import COMPANIONS, CONFIG_FILE, checkpoint_folder, read_config
from wedlm.checkpoints.shards import INDEX_FILE
from wedlm.hub_card.leaks import check_leaks
from wedlm.modeling_wedlm.hub_code import flat_files

CARD = Path(__file__).parent / "verified-decoding" / "README.md"
ROOT = "wedlm.generation.custom_generate"
ENTRY = '"""The function that transformers calls."""\n\nfrom .custom_generate import generate  # noqa: F401\n'
FOLDER = "custom_generate"  # the name that transformers looks for


def export_strategy(out: str | os.PathLike, base: str | None = None, overwrite: bool = False) -> Path:
    """Writes the card and the code; with `base` also the files of that checkpoint, which then decodes verified."""
    out = check_out(out, overwrite)
    if base is not None:
        source = checkpoint_folder(base, with_weights=True)
        check_links(source)
        check_apart(out, source)
        if read_config(base, source).get("auto_map"):
            raise CheckpointError(
                f"{base} names code of its own (auto_map in config.json), which an export does not copy; leave MODEL "
                "out, and pass custom_generate= to its generate()."
            )
    with complete_or_absent(out, overwrite) as new:
        (new / FOLDER).mkdir()
        if base is not None:
            copy_files(source, new, (CONFIG_FILE, "*.safetensors", INDEX_FILE, "README.md", *COMPANIONS))
        for name, code in {**flat_files(ROOT), "generate.py": ENTRY}.items():
            (new / FOLDER / name).write_text(code, encoding="utf-8")
        shutil.copyfile(CARD, (new if base is None else new / FOLDER) / "README.md")
        if base is not None:
            check_leaks(base, new, [source, out], has_new_card=False)
    return out
