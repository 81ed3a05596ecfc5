"""The snippet runs in a clean process, and a failure is one sentence."""

import re
from pathlib import Path

import pytest
from exports import TOKEN

from wedlm.checkpoints.errors import CheckpointError
from wedlm.hub_card.export import run_snippet


def card_with(folder, code):
    folder.mkdir()
    (folder / "README.md").write_text(f"```bash\nfalse\n```\n\n```python\n{code}\n```\n\n```python\nraise 1\n```\n")
    return folder


def test_the_process_of_the_snippet_is_clean(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("SOMEBODYS_API_KEY", "0123456789abc")
    code = f"""
import os
from importlib.util import find_spec
from pathlib import Path
assert find_spec("wedlm") is None and find_spec("transformers") is not None
assert "HF_TOKEN" not in os.environ and "SOMEBODYS_API_KEY" not in os.environ
assert Path("me/my-wedlm/README.md").exists()
from huggingface_hub import constants, get_token
assert constants.HF_HUB_OFFLINE and get_token() is None
for place in (Path.home(), Path(constants.HF_HOME), Path(os.environ["HF_MODULES_CACHE"])):
    assert {str(Path.home())!r} not in str(place) and {str(tmp_path)!r} not in str(place)
"""
    run_snippet(card_with(tmp_path / "new", code), "me/my-wedlm")


def test_a_snippet_that_loads_another_checkpoint_has_wedlm(tmp_path):
    (tmp_path / "base").mkdir()
    code = """
from pathlib import Path
import wedlm
assert Path("me/adapter/README.md").exists() and Path("me/base").is_dir()
"""
    card = card_with(tmp_path / "new", code)
    run_snippet(card, "me/adapter", {"me/base": tmp_path / "base"})
    with pytest.raises(CheckpointError, match=r"The snippet of the card does not run \(AssertionError\); correct"):
        run_snippet(card, "me/adapter", {"base": tmp_path / "base"})


@pytest.mark.parametrize(
    "code, reason",
    [
        ("raise ValueError('one\\n\\n  and two')", "and two"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9, as if memory ran out"),
    ],
)
def test_a_snippet_that_fails(tmp_path, code, reason):
    with pytest.raises(
        CheckpointError, match=re.escape(f"does not run without wedlm ({reason}); correct the checkpoint")
    ):
        run_snippet(card_with(tmp_path / "new", code), "new")
