"""How clients sign in to Redis: the settings' password, or the home's, and that to our own server only."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from infra.clients.redis import redis_login
from infra.errors import HomeError
from infra.home import Home
from infra.secret_files import ensure_secret, read_secret
from infra.settings import Settings, load_settings
from infra.stack.addresses import addresses
from infra.stack.redis_releases import known_holes


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    home = Home(tmp_path / "home")
    home.prepare()
    ensure_secret(home.redis_secret)
    return load_settings(home=home.root, redis_port=6379)


def test_our_own_server_gets_the_password_of_the_home(settings: Settings) -> None:
    login = redis_login(settings, addresses(settings).redis)
    assert login.url == "redis://tidemark@127.0.0.1:6379/0"
    assert login.password == read_secret(Home(settings.home).redis_secret)


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379/0",
        "redis://other@127.0.0.1:6379/0",
        "redis://tidemark@redis.example:6379/0",
        "rediss://tidemark@203.0.113.7:6379/0",
    ],
)
def test_another_server_never_gets_the_password_of_the_home(settings: Settings, url: str) -> None:
    login = redis_login(settings.model_copy(update={"redis_url": url}), url)
    assert login == (url, None)


def test_a_server_of_ones_own_gets_the_user_of_its_address_and_the_password_of_the_settings(tmp_path: Path) -> None:
    settings = load_settings(
        home=tmp_path, redis_url="redis://ada@redis.example:6379/0", redis_password=SecretStr("hunter2")
    )
    assert redis_login(settings, addresses(settings).redis) == ("redis://ada@redis.example:6379/0", "hunter2")


def test_a_home_without_a_password_has_a_server_without_one(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "home", redis_port=6379)
    assert redis_login(settings, addresses(settings).redis) == ("redis://127.0.0.1:6379/0", None)


def test_a_secret_is_made_once_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "redis"
    made = ensure_secret(path)
    assert ensure_secret(path) == read_secret(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)  # as from an archive
    assert read_secret(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["redis"]


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"\xff\xfe"])
def test_a_damaged_secret_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "redis").write_bytes(content)
    with pytest.raises(HomeError, match="Remove it while Tidemark is down"):
        ensure_secret(tmp_path / "redis")


@pytest.mark.parametrize(
    ("version", "has_holes"),
    [
        ((6, 2, 14), True), ((6, 2, 19), True), ((6, 2, 20), False), ((7, 0, 15), True), ((7, 2, 10), True),
        ((7, 2, 11), False), ((7, 4, 5), True), ((7, 4, 6), False), ((8, 0, 3), True), ((8, 0, 4), False),
        ((8, 2, 1), True), ((8, 2, 2), False), ((8, 4, 0), False), ((9, 0, 0), False),
    ],
)  # fmt: skip
def test_releases_with_holes_in_the_lua_sandbox_are_known(version: tuple[int, ...], has_holes: bool) -> None:
    assert (known_holes(version) is not None) is has_holes
