"""`tidemark keys`: add, list, rotate and remove."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.rest.access_keys import AccessKeyError, AccessKeys, read_keys
from infra.rest.key_limits import KeyLimits
from tidemark.commands.keys import app

LIMITED = ["add", "web", "--scope", "produce", "--source", "web", "--source", "shop_*", "--topic", "a.*"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments, catch_exceptions=False).stdout


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "-o", "json"))


def test_a_key_is_added_with_its_limits_and_its_end(home: Path) -> None:
    made = run_json(*LIMITED, "--view", "page_*", "--expires", "90d")
    key = AccessKeys(home).find(f"Bearer {made['secret']}")
    assert key is not None
    assert key.limits == KeyLimits(("web", "shop_*"), ("a.*",), ("page_*",))
    assert key.expires == key.created + 90 * 86_400
    assert (made["sources"], made["topics"], made["views"]) == (["web", "shop_*"], ["a.*"], ["page_*"])


def test_the_list_says_what_a_key_may_use_and_until_when(home: Path) -> None:
    run(*LIMITED, "--expires", "12h")
    run("add", "reports", "--scope", "query")
    run("rotate", "web", "--grace", "30m")
    web, reports = run_json("list")
    assert (web["sources"], web["topics"], web["views"]) == (["web", "shop_*"], ["a.*"], None)
    assert web["created"] <= web["rotated"] < web["old_secret_until"] < web["expires"]
    assert [reports[name] for name in ("sources", "expires", "rotated", "old_secret_until")] == [None] * 4
    assert all(secret.hash not in run("list") for key in read_keys(home).values() for secret in key.secrets)


def test_a_rotation_shows_the_new_secret_and_how_long_the_old_one_works(home: Path) -> None:
    old = run_json(*LIMITED)["secret"]
    shown = run("rotate", "web")
    new = next(line.split()[-1] for line in shown.splitlines() if line.startswith("secret"))
    assert "old secret until" in shown
    keys = AccessKeys(home)
    assert keys.find(f"Bearer {old}") == keys.find(f"Bearer {new}") is not None
    newest = run_json("rotate", "web", "--grace", "0s", "--expires", "1h")
    assert newest["old_secret_until"] is None
    assert newest["expires"] is not None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["add", "x", "--scope", "query", "--expires", "soon"], "--expires is 'soon'; write a duration such as 90d"),
        (["add", "x", "--scope", "query", "--expires", "0s"], "valid for longer"),
        (["add", "x", "--scope", "query", "--expires", "999999999d"], "at most 100 years"),
        (["add", "x", "--scope", "query", "--source", "a b"], "'a b' is no pattern for a source"),
        (["add", "x", "--scope", "query", "--view", ""], "'' is no pattern for a view"),
        (["rotate", "x", "--grace", "-1d"], "--grace is '-1d'"),
        (["rotate", "none"], "There is no key 'none'"),
    ],
)
@pytest.mark.usefixtures("home")
def test_mistakes_are_named(arguments: list[str], text: str) -> None:
    with pytest.raises(AccessKeyError, match=text):
        run(*arguments)


@pytest.mark.usefixtures("home")
def test_the_table_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(*LIMITED, "--expires", "90d")
    run("rotate", "web")
    run("add", "a-name-of-a-key-that-is-long", "--scope", "query", "--scope", "consume", "--view", "page_*")
    shown = run("list")
    assert max(map(len, shown.splitlines())) <= 80
    assert "page_*" in shown
