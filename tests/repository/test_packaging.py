import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from helpers import CHECKPOINTS, REPOSITORY

FOLDERS = ["wedlm", "modeling_wedlm", "generation", "training", "hub_card"]


@pytest.mark.slow
def test_a_wheel_in_a_fresh_environment_works(tmp_path):
    source = tmp_path / "source"
    for folder in FOLDERS:
        shutil.copytree(REPOSITORY / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source / name)
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, *pip, "wheel", "--no-deps", "-w", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("wedlm-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packaged = {name for name in names if name.endswith(".py")}
    written = {
        ("" if folder == "wedlm" else "wedlm/") + path.relative_to(REPOSITORY).as_posix()
        for folder in FOLDERS
        for path in (REPOSITORY / folder).rglob("*.py")
    }
    assert packaged == written
    assert "wedlm/drafts/prompts.jsonl.xz" in names

    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([python, *pip, "install", "--no-deps", wheel], check=True)
    # It sees the installed dependencies, and not the editable install: path files are read in its own folder only.
    site_packages = next((environment / "lib").glob("python*")) / "site-packages"
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    code = (
        "import wedlm, sys\n"
        "from transformers import AutoModelForCausalLM\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(CHECKPOINTS / 'q25')!r})\n"
        "model.save_pretrained('saved')\n"
        "assert sys.modules[type(model).__module__].__file__.startswith(sys.prefix), 'not the installed wheel'\n"
    )
    result = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "saved" / "window.py").exists()
    commands = [["generate", "Count by 1 from 1 to 9."], ["trace", "Count by 1 from 1 to 9.", "--html", "trace.html"]]
    for command in commands:  # the demo checkpoint, and the page, are in the wheel
        result = subprocess.run(
            [environment / "bin" / "wedlm", *command], cwd=tmp_path, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        assert "tokens per forward" in result.stderr
    assert (tmp_path / "trace.html").exists()
