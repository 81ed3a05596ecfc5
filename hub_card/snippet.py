"""Runs the snippet of a card in a process that has no network and no token, and no wedlm if it needs none."""

import re
import site
import subprocess
import sys
import tempfile
from pathlib import Path

from wedlm.checkpoints.errors import one_line
from wedlm.hub_card.leaks import environment_without_secrets
from wedlm.hub_card.options import ExportError

WITHOUT_WEDLM = "import sys\nsys.modules['wedlm'] = None  # import wedlm fails, as if it were not installed\n"


def run_snippet(folder: Path, repository: str, bases: dict[str, Path] | None = None) -> None:
    """Runs the first Python block of README.md as it stands, and refuses a card whose snippet fails.

    The snippet loads `folder`, the repository as it is published, by the name `repository`. `bases` are the folders,
    by name, of other checkpoints that it loads with wedlm; without any it runs without wedlm.
    """
    readme = (folder / "README.md").read_text(encoding="utf-8")
    snippet = re.search(r"^```python\n(.*?)^```$", readme, flags=re.MULTILINE | re.DOTALL)[1]
    with tempfile.TemporaryDirectory() as place:
        home = Path(place, "home")
        home.mkdir()
        for name, target in {repository: folder, **(bases or {})}.items():
            link = Path(place, "here", name)  # the snippet finds the folder under its name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target.absolute(), target_is_directory=True)
        environment = environment_without_secrets() | {
            "HOME": str(home),
            "PYTHONUSERBASE": site.getuserbase(),  # packages of the user are found although the home is another
            "HF_HOME": str(home / "huggingface"),
            "HF_MODULES_CACHE": str(home / "modules"),
            "HF_HUB_OFFLINE": "1",
        }
        ran = subprocess.run(
            [sys.executable, "-c", snippet if bases else WITHOUT_WEDLM + snippet],
            cwd=place + "/here",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    if ran.returncode:
        *_, last_line = ["", *filter(None, map(str.strip, ran.stderr.splitlines()))]
        reason = last_line if ran.returncode > 0 else f"signal {-ran.returncode}, as when memory is short"
        where = "" if bases else " without wedlm"
        raise ExportError(
            f"The snippet of the card does not run{where} ({one_line(reason)}); correct the checkpoint, or "
            "export on a machine with room for it."
        )
