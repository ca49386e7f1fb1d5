"""Access keys: shown once, kept hashed, found by header; limited, expiring and rotated."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection

from infra.rest.access_keys import (
    SCOPES,
    AccessKeyError,
    AccessKeys,
    KeyExpired,
    add_key,
    keys_file,
    make_first_key,
    read_keys,
    remove_key,
    rotate_key,
)
from infra.rest.key_clock import KeyClock, clock_file
from infra.rest.key_limits import KeyLimits
from infra.rest.sessions import Sessions


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


# ---- limits ------------------------------------------------------------------


def test_a_key_keeps_its_limits(tmp_path: Path) -> None:
    secret = add_key(tmp_path, "web", ["produce"], ["page_*"], sources=["web", "web"], topics=["a.*"])
    found = AccessKeys(tmp_path).find(f"Bearer {secret}")
    assert found is not None
    assert found.limits == KeyLimits(sources=("web",), topics=("a.*",), views=("page_*",))


@pytest.mark.parametrize("kind", ["sources", "topics", "views"])
@pytest.mark.parametrize("pattern", ["", "a b", "[ab]", "x" * 250])
def test_what_is_no_pattern_makes_no_key(tmp_path: Path, kind: str, pattern: str) -> None:
    wrong: Any = {kind: [pattern]}
    with pytest.raises(AccessKeyError, match="is no pattern for a"):
        add_key(tmp_path, "web", ["produce"], **wrong)
    with pytest.raises(AccessKeyError, match="at most 100"):
        add_key(tmp_path, "web", ["produce"], sources=[f"s{n}" for n in range(101)])
    assert read_keys(tmp_path) == {}


# ---- the file of 0.1.0 -------------------------------------------------------

SECRET_OF_0_1_0 = "Zm9yIGEgdGVzdCBvbmx5LCBub3QgYSBzZWNyZXQgYXQ"


def write_keys_of_0_1_0(home: Path, views: list[str] | None) -> None:
    salt = "00112233445566778899aabbccddeeff"
    entry = {
        "name": "reports",
        "scopes": ["produce", "query"],
        "salt": salt,
        "hash": hashlib.sha256(salt.encode() + SECRET_OF_0_1_0.encode()).hexdigest(),
        "created": "2026-11-18T04:00:00+00:00",
        "views": views,
    }
    keys_file(home).write_text(json.dumps({"keys": [entry]}))


def test_the_keys_of_0_1_0_work_as_they_did(tmp_path: Path) -> None:
    for views in (None, ["page_hits", "signups"]):
        write_keys_of_0_1_0(tmp_path, views)
        found = AccessKeys(tmp_path).find(basic("reports", SECRET_OF_0_1_0))
        assert found is not None
        assert found.limits == KeyLimits(views=None if views is None else tuple(views))
        assert (found.expires, found.rotated, found.old_secret) == (None, None, None)
    add_key(tmp_path, "another", ["query"])
    assert AccessKeys(tmp_path).find(basic("reports", SECRET_OF_0_1_0)) == found, "it is written back as it was"


def test_a_star_in_a_file_of_0_1_0_stays_a_name_that_no_view_has(tmp_path: Path) -> None:
    write_keys_of_0_1_0(tmp_path, ["*", "page_hits"])
    assert read_keys(tmp_path)["reports"].limits == KeyLimits(views=("page_hits",))
    add_key(tmp_path, "another", ["query"])
    assert read_keys(tmp_path)["reports"].limits == KeyLimits(views=("page_hits",))


# ---- expiry and rotation -----------------------------------------------------


class Clocks:
    """A clock that is set by hand, beside one that only goes forward."""

    def __init__(self, wall_s: float) -> None:
        self.wall_s, self.monotonic_s = wall_s, 1000.0

    def pass_(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds

    def of(self, home: Path) -> KeyClock:
        return KeyClock(home, lambda: self.wall_s, lambda: self.monotonic_s)


def is_let_in(keys: AccessKeys, secret: str) -> bool:
    try:
        return keys.find(f"Bearer {secret}") is not None
    except KeyExpired:
        return False


def test_a_key_is_valid_until_it_expires(tmp_path: Path) -> None:
    secret, lasting = add_key(tmp_path, "web", ["produce"], expires_s=90), add_key(tmp_path, "shop", ["produce"])
    clocks = Clocks(time.time())
    keys = AccessKeys(tmp_path, clocks.of(tmp_path))
    assert is_let_in(keys, secret)
    clocks.pass_(91)
    with pytest.raises(KeyExpired, match=r"'web' expired at 20.*tidemark keys rotate web"):
        keys.find(f"Bearer {secret}")
    assert keys.find("Bearer wrong") is None, "who has no secret is not told when a key expired"
    assert is_let_in(keys, lasting)


def test_a_clock_that_is_set_back_makes_no_key_valid_again(tmp_path: Path) -> None:
    secret = add_key(tmp_path, "web", ["produce"], expires_s=3600)
    clocks = Clocks(time.time())
    keys = AccessKeys(tmp_path, clocks.of(tmp_path))
    assert is_let_in(keys, secret)
    clocks.pass_(4000)
    assert not is_let_in(keys, secret)
    clocks.wall_s -= 1_000_000
    assert not is_let_in(keys, secret), "in the same process"
    assert not is_let_in(AccessKeys(tmp_path, clocks.of(tmp_path)), secret), "nor after a restart"
    clock_file(tmp_path).write_text("damaged")
    assert not is_let_in(keys, secret)


def test_time_goes_on_while_the_clock_stands_still_or_runs_backwards(tmp_path: Path) -> None:
    secret = add_key(tmp_path, "web", ["produce"], expires_s=3600)
    clocks = Clocks(time.time())
    keys = AccessKeys(tmp_path, clocks.of(tmp_path))
    assert is_let_in(keys, secret)
    for _ in range(40):
        clocks.pass_(100)
        clocks.wall_s -= 150
        is_let_in(keys, secret)
    assert not is_let_in(keys, secret)


def test_a_home_without_expiring_keys_notes_no_time(tmp_path: Path) -> None:
    secret = add_key(tmp_path, "web", ["produce"])
    assert is_let_in(AccessKeys(tmp_path), secret)
    assert not clock_file(tmp_path).exists()


def test_no_expiry_is_computed_from_a_clock_that_is_behind(tmp_path: Path) -> None:
    clock_file(tmp_path).write_text(json.dumps({"latest": time.time() + 86_400}))
    with pytest.raises(AccessKeyError, match="Set the clock right"):
        add_key(tmp_path, "web", ["produce"], expires_s=3600)
    add_key(tmp_path, "web", ["produce"])
    with pytest.raises(AccessKeyError, match="Set the clock right"):
        rotate_key(tmp_path, "web", 3600)
    rotate_key(tmp_path, "web", 0)


def test_a_clock_in_a_read_only_home_still_goes_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("infra.rest.key_clock.write_json", refuse)
    clocks = Clocks(5_000.0)
    clock = clocks.of(tmp_path)
    assert clock.now() == 5_000
    clocks.wall_s = 10.0
    assert clock.now() == 5_000


def test_both_secrets_are_valid_until_the_grace_ends(tmp_path: Path) -> None:
    clocks = Clocks(time.time())
    old = add_key(tmp_path, "web", ["produce"])
    keys = AccessKeys(tmp_path, clocks.of(tmp_path))
    new = rotate_key(tmp_path, "web", 3600)
    assert [is_let_in(keys, each) for each in (old, new)] == [True, True]
    assert keys.find(basic("web", old)) == keys.find(basic("web", new))
    clocks.pass_(3601)
    with pytest.raises(KeyExpired, match="'web' was rotated, and this old secret was valid until"):
        keys.find(f"Bearer {old}")
    assert is_let_in(keys, new)
    assert read_keys(tmp_path)["web"].rotated is not None


def test_a_key_has_at_most_two_secrets(tmp_path: Path) -> None:
    secrets = [add_key(tmp_path, "web", ["produce"])]
    secrets += [rotate_key(tmp_path, "web", 3600) for _ in range(3)]
    keys = AccessKeys(tmp_path)
    assert [is_let_in(keys, each) for each in secrets] == [False, False, True, True]
    last = rotate_key(tmp_path, "web", 0)
    assert [is_let_in(keys, each) for each in (*secrets, last)] == [False, False, False, False, True]


def test_a_rotation_makes_no_secret_valid_for_longer_than_it_was(tmp_path: Path) -> None:
    clocks = Clocks(time.time())
    old = add_key(tmp_path, "web", ["produce"], expires_s=100)
    new = rotate_key(tmp_path, "web", 3600, expires_s=7200)
    unchanged = rotate_key(tmp_path, "web", 3600)
    keys = AccessKeys(tmp_path, clocks.of(tmp_path))
    assert [is_let_in(keys, each) for each in (old, new, unchanged)] == [False, True, True]
    clocks.pass_(7300)
    assert [is_let_in(keys, each) for each in (old, new, unchanged)] == [False, False, False]


def test_an_expired_key_is_renewed_only_with_a_new_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, later = add_key(tmp_path, "web", ["produce"], expires_s=10), time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(AccessKeyError, match="--expires 90d"):
        rotate_key(tmp_path, "web", 3600)
    new = rotate_key(tmp_path, "web", 3600, expires_s=3600)
    keys = AccessKeys(tmp_path)
    assert [is_let_in(keys, each) for each in (secret, new)] == [False, True]
    with pytest.raises(AccessKeyError, match="There is no key 'shop'"):
        rotate_key(tmp_path, "shop", 0)


@pytest.mark.parametrize(
    "damage",
    [
        {"expires": "soon"},
        {"expires": 7},
        {"old_secret": {"salt": "a", "hash": "b"}},
        {"old_secret": "x"},
        {"sources": "web"},
        {"topics": [1]},
    ],
)
def test_limits_and_times_that_cannot_be_read_open_no_door(tmp_path: Path, damage: dict[str, Any]) -> None:
    secret = add_key(tmp_path, "web", ["produce"], sources=["web"], expires_s=3600)
    stored = json.loads(keys_file(tmp_path).read_text())
    stored["keys"][0] |= damage
    keys_file(tmp_path).write_text(json.dumps(stored))
    with pytest.raises(AccessKeyError, match="damaged"):
        AccessKeys(tmp_path).find(f"Bearer {secret}")


def test_an_old_secret_without_an_end_is_not_valid(tmp_path: Path) -> None:
    old = add_key(tmp_path, "web", ["produce"])
    rotate_key(tmp_path, "web", 3600)
    stored = json.loads(keys_file(tmp_path).read_text())
    stored["keys"][0]["old_secret"]["ends"] = None
    keys_file(tmp_path).write_text(json.dumps(stored))
    assert not is_let_in(AccessKeys(tmp_path), old)


# ---- sessions ----------------------------------------------------------------


def test_a_session_ends_with_the_secret_that_it_began_with(tmp_path: Path) -> None:
    clocks = Clocks(time.time())
    old = add_key(tmp_path, "ann", ["query"])
    keys, sessions = AccessKeys(tmp_path, clocks.of(tmp_path)), Sessions(tmp_path, 10 * 86_400)
    begun = {"before": sign_in(keys, sessions, old)}
    new = rotate_key(tmp_path, "ann", 3600)
    begun |= {"by the old": sign_in(keys, sessions, old), "by the new": sign_in(keys, sessions, new)}
    assert {name for name, token in begun.items() if is_signed_in(keys, sessions, token)} == set(begun)
    clocks.pass_(3601)
    assert [name for name, token in begun.items() if is_signed_in(keys, sessions, token)] == ["by the new"]


def sign_in(keys: AccessKeys, sessions: Sessions, secret: str) -> str:
    key = keys.find(f"Bearer {secret}")
    assert key is not None
    return sessions.begin(key)[0]


def is_signed_in(keys: AccessKeys, sessions: Sessions, token: str) -> bool:
    cookie = (b"cookie", f"{sessions.cookie}={token}".encode())
    return sessions.find(HTTPConnection({"type": "http", "method": "GET", "headers": [cookie]}), keys) is not None


def test_a_key_that_was_proved_is_refused_as_soon_as_it_is_removed_or_has_expired(tmp_path: Path) -> None:
    """What a header proved is remembered only until the file of keys changes."""
    clock = [time.time()]
    secret = add_key(tmp_path, "one", ["query"])
    keys = AccessKeys(tmp_path, KeyClock(tmp_path, wall_s=lambda: clock[0], monotonic_s=lambda: 0.0))
    header = f"Bearer {secret}"
    for _ in range(2):
        found = keys.find(header)
        assert found is not None
        assert found.name == "one"
    assert keys.find(f"{header}x") is None
    remove_key(tmp_path, "one")
    assert keys.find(header) is None
    again = add_key(tmp_path, "two", ["query"], expires_s=60)
    assert keys.find(f"Bearer {again}") is not None
    clock[0] += 120
    with pytest.raises(KeyExpired):
        keys.find(f"Bearer {again}")
    third = f"Bearer {add_key(tmp_path, 'three', ['query'])}"
    assert keys.find(third) is not None
    keys_file(tmp_path).unlink()
    assert keys.find(third) is None
