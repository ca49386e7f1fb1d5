"""Access keys: shown once, kept hashed, found by header."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.rest.access_keys import (
    SCOPES,
    AccessKeyError,
    AccessKeys,
    add_key,
    keys_file,
    make_first_key,
    read_keys,
    remove_key,
)


def basic(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


def test_the_first_key_may_do_everything_and_is_made_once(tmp_path: Path) -> None:
    secret = make_first_key(tmp_path)
    assert secret
    assert read_keys(tmp_path)["admin"].scopes == set(SCOPES)
    assert make_first_key(tmp_path) is None
    remove_key(tmp_path, "admin")
    assert make_first_key(tmp_path) is None  # whoever removed the last key wants none


def test_the_file_is_for_its_user_alone_and_holds_no_secret(tmp_path: Path) -> None:
    secret = add_key(tmp_path, "site", ["produce"])
    assert stat.S_IMODE(keys_file(tmp_path).stat().st_mode) == 0o600
    assert secret not in keys_file(tmp_path).read_text()
    assert len(secret) >= 43


def test_making_a_key_changes_nothing_for_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The umask is the whole process's: narrowed for one file, another thread would make folders that nobody enters."""
    seen: list[str] = []
    fsync = os.fsync

    def look(file: int) -> None:
        seen.append(_umask())
        fsync(file)

    before = _umask()
    monkeypatch.setattr(os, "fsync", look)
    add_key(tmp_path, "site", ["produce"])
    assert seen == [before]


def _umask() -> str:
    status = Path("/proc/self/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("Umask:"))


def test_a_key_is_found_by_basic_and_by_bearer(tmp_path: Path) -> None:
    secret, other = add_key(tmp_path, "site", ["produce"]), add_key(tmp_path, "shop", ["query"], ["page_hits"])
    keys = AccessKeys(tmp_path)
    for header in (basic("site", secret), f"Bearer {secret}", f"bearer  {secret} "):
        found = keys.find(header)
        assert found is not None
        assert found.name == "site"
    found = keys.find(basic("shop", other))
    assert found is not None
    assert found.views == ("page_hits",)


def test_what_proves_no_key_finds_none(tmp_path: Path) -> None:
    secret = add_key(tmp_path, "site", ["produce"])
    add_key(tmp_path, "shop", ["query"])
    keys = AccessKeys(tmp_path)
    for header in (
        "",
        secret,
        "Basic",
        "Basic !!!",
        "Basic é",
        "Bearer ",
        f"Digest {secret}",
        basic("shop", secret),
        basic("", secret),
        basic("site", secret[:-1]),
        basic("site", ""),
        f"Bearer {secret}x",
        "Basic " + base64.b64encode(b"\xff\xfe:x").decode(),
    ):
        assert keys.find(header) is None, header


@given(st.text())
def test_no_header_breaks_the_search(header: str) -> None:
    assert AccessKeys(Path("nowhere")).find(header) is None


def test_a_server_sees_new_and_removed_keys_at_once(tmp_path: Path) -> None:
    keys = AccessKeys(tmp_path)
    secret = add_key(tmp_path, "site", ["produce"])
    assert keys.find(f"Bearer {secret}")
    remove_key(tmp_path, "site")
    assert keys.find(f"Bearer {secret}") is None
    keys_file(tmp_path).unlink()
    assert keys.find(f"Bearer {secret}") is None


def test_a_damaged_file_is_an_error_and_not_an_open_door(tmp_path: Path) -> None:
    keys_file(tmp_path).write_text("{}")
    with pytest.raises(AccessKeyError, match="damaged"):
        AccessKeys(tmp_path).find("Bearer x")
    with pytest.raises(AccessKeyError, match="damaged"):
        add_key(tmp_path, "site", ["produce"])


@pytest.mark.parametrize(
    ("name", "scopes", "text"),
    [
        ("a:b", ["produce"], "no name"),
        ("", ["produce"], "no name"),
        ("x" * 65, ["produce"], "no name"),
        ("site", ["write"], "no scope 'write'"),
        ("site", [], "at least one scope"),
        ("taken", ["produce"], "already"),
    ],
)
def test_impossible_keys_are_refused(tmp_path: Path, name: str, scopes: list[str], text: str) -> None:
    add_key(tmp_path, "taken", ["query"])
    with pytest.raises(AccessKeyError, match=text):
        add_key(tmp_path, name, scopes)
    assert set(read_keys(tmp_path)) == {"taken"}


def test_removing_what_is_not_there_names_what_is(tmp_path: Path) -> None:
    add_key(tmp_path, "site", ["produce"])
    with pytest.raises(AccessKeyError, match="There are: site"):
        remove_key(tmp_path, "shop")


def test_a_home_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessKeyError, match="tidemark up"):
        add_key(tmp_path / "none", "site", ["produce"])
