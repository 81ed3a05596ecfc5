"""Finds what must not be published, paths of this machine and secrets, and removes it from commands."""

import json
import os
import re
import tempfile
from pathlib import Path

from huggingface_hub import get_token

from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.shards import read_shard

SECRETS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{20,}"  # of the Hub
    r"|sk-[A-Za-z0-9_-]{20,}"  # of OpenAI and others
    r"|AKIA[A-Z0-9]{16}"  # of Amazon
    r"|AIza[A-Za-z0-9_-]{35}"  # of Google
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"  # of GitHub
    r"|xox[a-z]-[A-Za-z0-9-]{10,}"  # of Slack
    r"|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"  # a JSON Web Token
    r"|[a-z][a-z0-9+.-]{1,30}://[^\s/:@'\"]+:[^\s/@'\"<{$][^\s/@'\"]*(?=@[\w.-])"  # the password in an address
    r")|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|PASSW(?:OR)?D=['\"]?[^\s'\"<>{}$]{6,}"  # a variable of the shell
)
SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|_KEY")  # in names of environment variables
MIN_SECRET_LETTERS = 12  # shorter values of such variables are switches
# A secret by the name in front of it: an option, a key of JSON, a parameter of an address.
NAMED_SECRET = re.compile(
    r"""(--[\w-]*(?:token|secret|password|passwd|key)[ =])(?:'[^']*'|"[^"]*"|\S+)"""
    r"""|("[\w-]*(?:token|secret|password|passwd|key)"\s*:\s*)(?:"[^"]*"|[^\s,}]+)"""
    r"""|([?&][\w-]*(?:token|secret|password|passwd|key)=)[^\s&'"]+""",
    flags=re.IGNORECASE,
)

# Tokenizers have tokens such as /home, so a path needs something behind it.
COMMON_PLACES = re.compile(
    r"(?<![\w.-])(?:/(?:home|Users|root|tmp|var|mnt|media|opt|private|scratch|workspace|data|srv|net|nfs|Volumes)/"
    r"|[A-Za-z]:\\+Users\\+)[\w.-]+[\w./\\-]*"
)
# A path as a word, behind an equals sign, or in a list.
SHOWN_PATH = re.compile(r"""(?<![^\s"'=,\[(])(?:~|\.\.|[A-Za-z]:|file:)?(?:[/\\]+[^\s"'=,/\\\])]+)+[/\\]?""")


def without_leaks(text: str) -> str:
    """Returns a command with absolute paths reduced to their last part, and secrets to `...`.

    without_leaks("wedlm train /home/me/full.yaml --hub_token hf_...") == "wedlm train full.yaml --hub_token ..."
    """
    named = NAMED_SECRET.sub(lambda found: f"{found[1] or found[2] or found[3]}...", text)
    text = SECRETS.sub("...", named)
    return SHOWN_PATH.sub(lambda path: re.split(r"[/\\]+", path[0].rstrip("/\\"))[-1], text)


def check_leaks(model: object, new: Path, places: list[Path], has_new_card: bool = True) -> None:
    """Refuses files with secrets or local paths; of files of weights it only reads the metadata in the header.

    The files in `new` were made from those of `model`, but for the card if it is a new one. `places` are found as they
    are written, and as what they resolve to.
    """
    texts = {path: json.dumps(read_shard(path).metadata) for path in new.glob("*.safetensors")}
    files = (path for path in new.rglob("*") if path.is_file() and path not in texts)
    texts |= {path: path.read_bytes().decode("utf-8", errors="replace") for path in files}
    places = [place for folder in places for place in (folder.absolute(), folder.resolve())]
    secrets = secrets_here()
    for path, text in texts.items():
        if leak := find_leak(text, places, secrets):
            name = path.relative_to(new).as_posix()
            source = "the texts of the card" if name == "README.md" and has_new_card else f"that file of {model}"
            raise CheckpointError(f"{name} would contain {leak}; remove it from {source}, and export again.")


def find_leak(text: str, places: list[Path], secrets: set[str]) -> str | None:
    """Names what must not be published in a text, without repeating a secret; None if there is nothing.

    It searches for `places`, `secrets`, secrets of known forms, and the home, the current and the temporary folder.
    """
    if SECRETS.search(text) or any(secret in text for secret in secrets):
        return "a token, a key or another secret"
    found = COMMON_PLACES.search(text)
    for place in {*places, Path.home(), Path.cwd(), Path(tempfile.gettempdir())}:
        behind = r"[\w./-]*" if len(place.parts) > 2 else r"/[\w.-]+[\w./-]*"  # /root may be a token
        if len(place.parts) > 1:
            found = found or re.search(rf"(?<![\w.-]){re.escape(str(place))}(?![\w-]){behind}", text)
    return f"the local path {found[0]}" if found else None


def secrets_here() -> set[str]:
    """Returns the secrets in this process's environment, and the token that `hf auth login` stored."""
    values = {value for name, value in os.environ.items() if SECRET_NAME.search(name)}
    return {value for value in {*values, get_token() or ""} if len(value) >= MIN_SECRET_LETTERS}


def environment_without_secrets() -> dict[str, str]:
    """Returns this process's environment without the variables whose names say that they are secret."""
    return {name: value for name, value in os.environ.items() if not SECRET_NAME.search(name)}
