"""Our own Redis: who does not know the home's password can do nothing, and who does can touch no file or server."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from redis import AuthenticationError, Redis, ResponseError
from redis.backoff import NoBackoff
from redis.retry import Retry

from infra.clients.redis import check_redis, redis_client
from infra.home import Home
from infra.settings import Settings, load_settings
from infra.stack.addresses import addresses
from infra.stack.ports import LOOPBACK
from infra.stack.redis_server import find_redis_server, redis_service
from infra.stack.service import Service
from tests.conftest import wait_until
from torture.installation_settings import free_port

KEY = "ssh-ed25519 AAAA of-somebody-else"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home", redis_port=free_port())


@contextmanager
def running(settings: Settings) -> Iterator[Service]:
    """Our own Redis as the supervisor runs it."""
    home = Home(settings.home)
    home.prepare()
    service = redis_service(home, settings.redis_port, 100)
    service.prepare()
    with home.log_file("redis").open("ab") as log:
        process = subprocess.Popen(service.command, stdout=log, stderr=log)
    try:
        wait_until("Redis to be ready", lambda: service.check() is None, deadline_s=20)
        yield service
    finally:
        process.terminate()
        process.wait(timeout=20)


def stranger(settings: Settings) -> Redis:
    """Any user of this machine: connects, and has no password."""
    return Redis(host=LOOPBACK, port=settings.redis_port, socket_timeout=10, retry=Retry(NoBackoff(), 0))


def test_a_stranger_writes_no_file_through_redis(settings: Settings, tmp_path: Path) -> None:
    """The attack that was shown: an authorized_keys file, written by our server."""
    victim = tmp_path / ".ssh"
    victim.mkdir()
    refusals = []
    with running(settings), stranger(settings) as client:
        for command in (
            ("CONFIG", "SET", "dir", str(victim)),
            ("CONFIG", "SET", "dbfilename", "authorized_keys"),
            ("SET", "key", f"\n\n{KEY}\n\n"),
            ("SAVE",),
        ):
            try:
                client.execute_command(*command)
            except (AuthenticationError, ResponseError) as error:
                refusals.append(str(error))
    assert list(victim.iterdir()) == []
    assert len(refusals) == 4, refusals


def test_a_stranger_learns_nothing(settings: Settings) -> None:
    with running(settings), redis_client(settings, addresses(settings).redis) as ours, stranger(settings) as client:
        ours.set("page", "secret visits")
        for command in (("GET", "page"), ("KEYS", "*"), ("INFO",), ("EVAL", "return 1", "0"), ("PING",)):
            with pytest.raises(AuthenticationError):
                client.execute_command(*command)
        for name, password in (("default", ""), ("default", "guess"), ("tidemark", ""), ("tidemark", "guess")):
            with pytest.raises(AuthenticationError):
                client.execute_command("AUTH", name, password)


WITHHELD = [
    ("CONFIG", "SET", "dir", "/tmp"),  # noqa: S108  never written
    ("CONFIG", "GET", "dir"),
    ("CONFIG", "REWRITE"),
    ("MODULE", "LIST"),
    ("DEBUG", "SLEEP", "0"),
    ("SAVE",),
    ("BGSAVE",),
    ("REPLICAOF", "NO", "ONE"),
    ("SLAVEOF", "NO", "ONE"),
    ("MIGRATE", LOOPBACK, "1", "key", "0", "10"),
    ("SHUTDOWN", "NOSAVE"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "default", "on", "nopass", "+@all"),
    ("PSYNC", "?", "-1"),
    ("EVAL", "return redis.call('CONFIG', 'GET', 'dir')", "0"),
    ("EVAL", "return redis.call('REPLICAOF', 'NO', 'ONE')", "0"),
]


def test_even_who_knows_the_password_touches_no_file_and_no_other_server(settings: Settings) -> None:
    with running(settings), redis_client(settings, addresses(settings).redis) as client:
        for command in WITHHELD:
            with pytest.raises(ResponseError, match=r"(?i)permission|permissions|noperm|not allowed"):
                client.execute_command(*command)
        assert client.ping()


def test_what_we_and_a_person_with_redis_cli_need_is_allowed(settings: Settings) -> None:
    with running(settings), redis_client(settings, addresses(settings).redis) as client:
        assert client.eval("return redis.call('INCR', KEYS[1])", 1, "n") == 1
        assert client.evalsha(client.script_load("return 2"), 0) == 2
        assert client.keys("*") == [b"n"]
        for command in (("SLOWLOG", "GET"), ("CLIENT", "LIST"), ("MEMORY", "USAGE", "n"), ("ROLE",), ("SCAN", "0")):
            client.execute_command(*command)
        assert "redis_version" in client.info()  # type: ignore[operator]
        assert client.flushall()


def test_the_password_is_in_one_private_file_and_nowhere_else(settings: Settings) -> None:
    home = Home(settings.home)
    with running(settings) as service:
        secret = home.redis_secret.read_text().strip()
        assert len(secret) >= 43, "256 bits"
        assert stat.S_IMODE(home.redis_secret.stat().st_mode) == 0o600
        assert stat.S_IMODE((home.redis / "redis.conf").stat().st_mode) == 0o600
        commands = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
        assert not [command for command in commands if secret in command]
        assert secret not in f"{service.command} {service.address} {dict(service.environment)}"
        assert secret not in str(addresses(settings))
        with stranger(settings) as client, pytest.raises(AuthenticationError) as refused:
            client.execute_command("AUTH", "tidemark", secret[:-1])
        assert secret[:-1] not in str(refused.value)
    files = [path for path in home.root.rglob("*") if path.is_file() and path != home.redis_secret]
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_a_home_of_0_1_0_gets_a_password_at_its_next_start_and_keeps_its_data(settings: Settings) -> None:
    home = Home(settings.home)
    home.prepare()
    home.secrets.rmdir()  # as 0.1.0 made it
    config = home.redis / "redis.conf"
    config.write_text(f'bind {LOOPBACK}\nport {settings.redis_port}\ndir "{home.redis}"\nappendonly yes\nsave ""\n')
    old = subprocess.Popen([str(find_redis_server()), str(config)], stdout=subprocess.DEVNULL)
    try:
        url = addresses(settings).redis
        wait_until("the old server to answer", lambda: check_redis(settings, url) is None, deadline_s=20)
        with redis_client(settings, url) as client:  # a command of this version, while the old stack still runs
            client.set("view", "41")
    finally:
        old.terminate()
        old.wait(timeout=20)
    with running(settings), stranger(settings) as client:
        with pytest.raises(AuthenticationError):
            client.get("view")
        with redis_client(settings, addresses(settings).redis) as ours:
            assert ours.get("view") == b"41"
    with running(settings), redis_client(settings, addresses(settings).redis) as ours:
        assert ours.get("view") == b"41", "the password stays when it is started again"


def test_a_new_password_takes_the_place_of_one_that_was_removed(settings: Settings) -> None:
    home = Home(settings.home)
    with running(settings):
        first = home.redis_secret.read_text()
    home.redis_secret.unlink()
    with running(settings), redis_client(settings, addresses(settings).redis) as client:
        assert client.ping()
        assert home.redis_secret.read_text() != first
        with pytest.raises(AuthenticationError):
            client.execute_command("AUTH", "tidemark", first.strip())
