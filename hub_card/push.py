"""Uploads an exported folder to the Hub."""

import shlex
from pathlib import Path

from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import validate_repo_id

from wedlm.checkpoints.errors import one_line
from wedlm.hub_card.options import ExportError


def check_push(repository: str | None, private: bool) -> None:
    """Refuses a name that is none of a repository, and a user who is not logged in; None is no push."""
    if repository is None:
        if private:
            raise ExportError(
                "--private is about the repository of --push; pass --push REPO with it, or leave it out."
            )
        return
    try:
        validate_repo_id(repository)
        if repository.count("/") != 1:
            raise ValueError("there is no owner before it")
    except ValueError as error:
        raise ExportError(
            f"--push {repository} names no repository ({one_line(error)}); give OWNER/NAME, such as me/my-wedlm."
        ) from error
    try:
        HfApi().whoami()
    except Exception as error:  # of any kind: no token, a wrong one, no network
        raise ExportError(
            f"--push {repository} needs the Hub, which refuses ({one_line(error)}); log in with `hf auth login`, or "
            "leave --push out."
        ) from error


def push_folder(out: Path, repository: str, private: bool, card: ModelCard) -> str:
    """Uploads a folder, which stays as it is if that fails, and returns its address on the Hub.

    The Hub validates the card first. With `private`, a public repository that exists is refused.
    """
    api = HfApi()
    try:
        card.validate()
        url = api.create_repo(repository, private=private or None, exist_ok=True)
        if private and not api.model_info(repository).private:
            raise ValueError("it was there before, and is public")
        api.upload_folder(repo_id=repository, folder_path=out)
    except Exception as error:  # of any kind: the Hub's, the network's
        raise ExportError(
            f"{out} is complete, and was not pushed to {repository} ({one_line(error)}); once the reason is gone, "
            f"run `hf upload {repository} {shlex.quote(str(out))}`."
        ) from error
    return str(url)
