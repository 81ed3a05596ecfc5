"""What must not be published: paths of this machine, and secrets."""

import os
import re
import tempfile
from pathlib import Path

from huggingface_hub import get_token

SECRETS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{20,}"  # of the Hub
    r"|sk-[A-Za-z0-9_-]{20,}"  # of OpenAI and others
    r"|AKIA[A-Z0-9]{16}"  # of Amazon
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"  # of GitHub
    r")|-----BEGIN [A-Z ]*PRIVATE KEY"
)
SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|_KEY")  # of an environment variable
MIN_SECRET_LETTERS = 12  # of its value; shorter ones are switches
# By the name in front of it: of an option, in JSON, in an address.
NAMED_SECRET = re.compile(
    r"""(--[\w-]*(?:token|secret|password|key)[ =])(?:'[^']*'|"[^"]*"|\S+)"""
    r"""|("[\w-]*(?:token|secret|password|key)"\s*:\s*)(?:"[^"]*"|[^\s,}]+)"""
    r"""|([?&][\w-]*(?:token|secret|password|key)=)[^\s&'"]+""",
    flags=re.IGNORECASE,
)

# A tokenizer has tokens such as /home, so there must be something behind it.
COMMON_PLACES = re.compile(
    r"(?<![\w.-])(?:/(?:home|Users|root|tmp|var|mnt|media|opt|private|scratch|workspace|data)/"
    r"|[A-Za-z]:\\+Users\\+)[\w.-]+[\w./\\-]*"
)
# As a word, or a part of one behind = or in a list.
SHOWN_PATH = re.compile(r"""(?<![^\s"'=,\[(])(?:~|\.\.|[A-Za-z]:|file:)?(?:[/\\]+[^\s"'=,/\\\])]+)+[/\\]?""")


def without_leaks(text: str) -> str:
    """A command as it may be shown: absolute paths reduced to their last part, secrets to `...`.

    without_leaks("wedlm train /home/me/full.yaml --hub_token hf_...") == "wedlm train full.yaml --hub_token ..."
    """
    named = NAMED_SECRET.sub(lambda found: f"{found[1] or found[2] or found[3]}...", text)
    text = SECRETS.sub("...", named)
    return SHOWN_PATH.sub(lambda path: re.split(r"[/\\]+", path[0].rstrip("/\\"))[-1], text)


def find_leak(text: str, places: list[Path], secrets: set[str]) -> str | None:
    """What `text` holds that must not be published, in words that do not repeat a secret."""
    if SECRETS.search(text) or any(secret in text for secret in secrets):
        return "a token, a key or another secret"
    found = COMMON_PLACES.search(text)
    for place in {*places, Path.home(), Path.cwd(), Path(tempfile.gettempdir())}:
        behind = r"[\w./-]*" if len(place.parts) > 2 else r"/[\w.-]+[\w./-]*"  # /root is also a token
        if len(place.parts) > 1:
            found = found or re.search(rf"(?<![\w.-]){re.escape(str(place))}(?![\w-]){behind}", text)
    return f"the local path {found[0]}" if found else None


def secrets_here() -> set[str]:
    """Of this process's environment, and the token that `hf auth login` stored."""
    values = {value for name, value in os.environ.items() if SECRET_NAME.search(name)}
    return {value for value in {*values, get_token() or ""} if len(value) >= MIN_SECRET_LETTERS}


def environment_without_secrets() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not SECRET_NAME.search(name)}
