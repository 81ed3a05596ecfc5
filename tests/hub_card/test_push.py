"""Pushing to the Hub, and what a failed push leaves."""

from unittest.mock import Mock, call

import pytest
from exports import TOKENIZER, WHOLE, names, refused, run
from huggingface_hub import ModelCard

from wedlm.hub_card import export


@pytest.fixture
def hub(monkeypatch, unchecked):
    """Stands in for HfApi."""
    hub = Mock()
    hub.create_repo.return_value = "https://hub/me/model"
    monkeypatch.setattr(export, "HfApi", lambda: hub)
    monkeypatch.setattr(ModelCard, "validate", lambda card: hub.validate())
    return hub


def test_a_push(tmp_path, model, hub, unchecked):
    result = run(model, tmp_path / "out", "--license", "mit", "--push", "me/model")
    assert (result.exit_code, result.stdout.split("\n")[-2]) == (0, "Pushed to https://hub/me/model.")
    assert hub.method_calls == [
        call.whoami(),
        call.validate(),
        call.create_repo("me/model", private=None, exist_ok=True),
        call.upload_folder(repo_id="me/model", folder_path=tmp_path / "out"),
    ]
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert 'name = "me/model"  #' in readme and "\n# model\n" in readme
    assert [arguments[1] for arguments in unchecked] == ["me/model"]


def test_what_is_private_stays_so(tmp_path, model, hub):
    """A repository that was there before keeps its visibility, whatever create_repo is told."""
    arguments = (model, tmp_path / "out", "--license", "mit", "--push", "me/model", "--private", "--overwrite")
    assert run(*arguments).exit_code == 0
    hub.create_repo.assert_called_with("me/model", private=True, exist_ok=True)
    hub.model_info.return_value.private = False
    result = run(*arguments)
    assert result.exit_code == 2 and "(it already exists and is public)" in result.stderr
    hub.upload_folder.assert_called_once()
    sentence = refused(model, tmp_path / "new", "--private")
    assert "--private applies to the repository of --push; pass --push OWNER/NAME" in sentence


@pytest.mark.parametrize("step", ["validate", "upload_folder"])
def test_a_push_that_fails_leaves_the_folder(tmp_path, model, hub, step):
    getattr(hub, step).side_effect = RuntimeError("no\nroom")
    result = run(model, tmp_path / "my out", "--license", "mit", "--push", "me/model")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"{tmp_path / 'my out'} is complete, but the push to me/model failed (no room); fix the cause, and "
        f"run `hf upload me/model '{tmp_path / 'my out'}'`.\n"
    )
    assert names(tmp_path / "my out") == WHOLE | TOKENIZER


@pytest.mark.parametrize("repository", ["model", "me/a b"])
def test_a_push_to_what_is_no_repository(tmp_path, model, hub, repository):
    sentence = refused(model, tmp_path / "out", "--license", "mit", "--push", repository)
    assert f"{repository} is not the name of a repository (" in sentence and "pass OWNER/NAME" in sentence
    assert hub.method_calls == []


def test_a_push_without_a_token_is_refused_before_all_work(tmp_path, hub):
    hub.whoami.side_effect = OSError("no token")
    sentence = refused("nothing", tmp_path / "out", "--push", "me/model")
    assert "--push me/model needs the Hub, where the login failed (no token); log in with `hf auth login`" in sentence
    assert hub.method_calls == [call.whoami()]
