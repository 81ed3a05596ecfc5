"""Paths of this machine and secrets are found, and removed from commands."""

from pathlib import Path

import pytest
from exports import TOKEN

from wedlm.hub_card.leaks import find_leak, secrets_here, without_leaks


@pytest.mark.parametrize(
    "text, shown",
    [
        ("wedlm eval /home/me/model --out=/tmp/x/eval.json", "wedlm eval model --out=eval.json"),
        ("--tasks a,/data/b.yaml ~/model ../../up/model/", "--tasks a,b.yaml model model"),
        ("Qwen/Qwen3-8B configs/full.yaml https://host/a/b --x 1/2 /", ...),
        (f"--key {TOKEN} --hub_token=abc --hub-token abc", "--key ... --hub_token=... --hub-token ..."),
        ("""'{"api_key": "a b", "max_new_tokens": 4, "secret":5}'""",
         """'{"api_key": ..., "max_new_tokens": 4, "secret":...}'"""),
        ("s3://bucket/key?token=abc&x=1 file:///home/me/x", "s3://bucket/key?token=...&x=1 x"),
        ("--from https://me:pw@host/a --db_passwd abc", "--from ...@host/a --db_passwd ..."),
        (f"--max_new_tokens 40 --say {TOKEN}, sk-{'a1' * 20}", "--max_new_tokens 40 --say ..., ..."),
    ],
)  # fmt: skip
def test_commands_are_shown_without_paths_and_secrets(text, shown):
    shown = text if shown is ... else shown
    assert without_leaks(text) == shown
    assert find_leak(shown, [], set()) is None


LEAKS = {
    "path": ("/home/me", '"/tmp/x"', "file:///home/me/x", "a:/scratch/b", r"C:\Users\Me", r"C:\\Users\\Me",
             "/srv/models/x", "/net/host/x", "file:///nfs/x", "/Volumes/Disk/x"),
    "secret": (TOKEN, f"a{TOKEN[3:]} {TOKEN}", f"sk-{'a1' * 20}", "AKIA" + "A1" * 8, "ghp_" + "a1" * 18,
               "-----BEGIN RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----", "xoxb" + "-1234567890-abc",
               "AIza" + "a1B-_" * 7, "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "https://user:password@host/a",
               "postgresql+psycopg://me:p-w@db:5432/x", "DB_PASSWD=hunter22", "export PGPASSWORD='hunter22'"),
    None: ("", "/", "/home", "Ġ/home", "x/home/me", "https://host.org/home/me", "and/or", "</think>", "/no_think",
           "task-" + "a" * 30, "hf_config", "hf_attention_implementation_of_it", "1/root/2", "-----BEGIN",
           "https://host:8000/a@b", "git@host.org:a/b", "https://user:$TOKEN@host", "https://user:<password>@host",
           "PASSWD", "DB_PASSWD=$SECRET", "password: string", "eyJhbGciOiJIUzI1NiJ9", "/net", "https://host.org/srv/a"),
}  # fmt: skip


@pytest.mark.parametrize("kind, text", [(kind, text) for kind, texts in LEAKS.items() for text in texts])
def test_what_is_found(kind, text):
    found = find_leak(f"before {text} behind", [], set())
    if kind is None:
        assert found is None
    elif kind == "path":
        assert found.startswith("the local path ")
    else:
        assert found == "a token, a key or another secret"


def test_what_is_found_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/unusual")
    monkeypatch.setenv("SOMEBODYS_API_KEY", "not-like-a-key-at-all")
    monkeypatch.setenv("MYSQL_ROOT_PASSWD", "not-like-a-password")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/elsewhere/tmp")
    monkeypatch.chdir(tmp_path)

    def found(text):
        return find_leak(f"see {text}", [Path("/unheard/of")], secrets_here())

    assert found("/unheard/of/model") == "the local path /unheard/of/model"
    assert found("/unheard/office, x/unheard/of") is None
    assert found("/unusual") is None and found("/unusual/x") == "the local path /unusual/x"
    assert found(tmp_path) is not None and found("/elsewhere/tmp") is not None
    assert found("not-like-a-key-at-all") == "a token, a key or another secret"
    assert found("not-like-a-password") == "a token, a key or another secret"
    assert found("a-stored-token") is None
    monkeypatch.setattr("wedlm.hub_card.leaks.get_token", lambda: "a-stored-token")
    assert found("a-stored-token") == "a token, a key or another secret"
