"""Pushing to the Hub, and what a failed push leaves."""

from types import SimpleNamespace

import pytest
from exports import TOKENIZER, WHOLE, names, refused, run
from huggingface_hub import ModelCard

from wedlm.hub_card import push


class Hub:
    """Stands in for HfApi: lists what it was asked, and gives the answers it was made with."""

    def __init__(self, **answers):
        self.asked, self.answers = [], {"create_repo": "https://hub/me/model", **answers}

    def __call__(self):
        return self

    def __getattr__(self, name):
        def ask(*arguments, **options):
            self.asked.append((name, *arguments, options))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask


@pytest.fixture
def pushing(monkeypatch, unchecked):
    def put(validates=None, **answers):
        hub = Hub(validate=validates, **answers)
        monkeypatch.setattr(push, "HfApi", hub)
        monkeypatch.setattr(ModelCard, "validate", lambda card: hub.validate())
        return hub

    return put


def test_a_push(tmp_path, model, pushing, unchecked):
    hub = pushing()
    result = run(model, tmp_path / "out", "--license", "mit", "--push", "me/model")
    assert (result.exit_code, result.stdout.split("\n")[-2]) == (0, "Pushed to https://hub/me/model.")
    assert hub.asked == [
        ("whoami", {}),
        ("validate", {}),
        ("create_repo", "me/model", {"private": None, "exist_ok": True}),
        ("upload_folder", {"repo_id": "me/model", "folder_path": tmp_path / "out"}),
    ]
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert 'name = "me/model"  #' in readme and "\n# model\n" in readme
    assert [arguments[1] for arguments in unchecked] == ["me/model"]


def test_what_is_private_stays_so(tmp_path, model, pushing):
    """A repository that was there before keeps its visibility, whatever create_repo is told."""
    arguments = (model, tmp_path / "out", "--license", "mit", "--push", "me/model", "--private", "--overwrite")
    hub = pushing(model_info=SimpleNamespace(private=True))
    assert run(*arguments).exit_code == 0
    assert ("create_repo", "me/model", {"private": True, "exist_ok": True}) in hub.asked
    hub = pushing(model_info=SimpleNamespace(private=False))
    result = run(*arguments)
    assert result.exit_code == 2 and "(it was there before, and is public)" in result.stderr
    assert "upload_folder" not in [name for name, *_ in hub.asked]
    assert "--private is about the repository of --push; pass --push REPO" in refused(
        model, tmp_path / "new", "--private"
    )


@pytest.mark.parametrize("step", ["validates", "upload_folder"])
def test_a_push_that_fails_leaves_the_folder(tmp_path, model, pushing, step):
    pushing(**{step: RuntimeError("no\nroom")})
    result = run(model, tmp_path / "my out", "--license", "mit", "--push", "me/model")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"{tmp_path / 'my out'} is complete, and was not pushed to me/model (no room); once the reason is gone, "
        f"run `hf upload me/model '{tmp_path / 'my out'}'`.\n"
    )
    assert names(tmp_path / "my out") == WHOLE | TOKENIZER


@pytest.mark.parametrize("repository", ["model", "me/a b"])
def test_a_push_to_what_is_no_repository(tmp_path, model, pushing, repository):
    hub = pushing()
    sentence = refused(model, tmp_path / "out", "--license", "mit", "--push", repository)
    assert f"{repository} names no repository (" in sentence and "give OWNER/NAME" in sentence
    assert hub.asked == []


def test_a_push_without_a_token_is_refused_before_all_work(tmp_path, model, pushing):
    hub = pushing(whoami=OSError("no token"))
    sentence = refused("nothing", tmp_path / "out", "--push", "me/model")
    assert "--push me/model needs the Hub, which refuses (no token); log in with `hf auth login`" in sentence
    assert len(hub.asked) == 1
