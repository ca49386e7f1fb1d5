"""How every Redis client of ours connects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from infra.home import Home
from infra.secret_files import read_secret
from infra.settings import Settings

if TYPE_CHECKING:
    from redis import Redis

OLDEST = (6, 2)
OWN_USER = "tidemark"
"""Of our own server. Its password is in the home (`Home.redis_secret`)."""
LOCAL = ("127.0.0.1", "::1", "localhost")


class RedisLogin(NamedTuple):
    """Where to connect, and what to sign in with: the user is in the address."""

    url: str
    password: str | None


def redis_login(settings: Settings, url: str) -> RedisLogin:
    """The login for an address: the settings' password, or the home's for the user of our own server.

    The home's password goes to no other machine. A server that an earlier version started has no password, and the
    home no file with one: then nobody signs in.
    """
    if settings.redis_password:
        return RedisLogin(url, settings.redis_password.get_secret_value())
    place = urlsplit(url)
    if place.username != OWN_USER or place.hostname not in LOCAL:
        return RedisLogin(url, None)
    if (password := read_secret(Home(settings.home).redis_secret)) is None:
        return RedisLogin(url.replace(f"{OWN_USER}@", "", 1), None)
    return RedisLogin(url, password)


def redis_client(settings: Settings, url: str, timeout_s: float = 5.0) -> Redis:
    """A client that is signed in; values come back as bytes."""
    from redis import Redis

    login = redis_login(settings, url)
    return Redis.from_url(
        login.url, password=login.password, socket_timeout=timeout_s, socket_connect_timeout=timeout_s
    )


def async_redis_client(settings: Settings, url: str) -> Any:
    """The same for an event loop."""
    from redis import asyncio as redis_asyncio

    login = redis_login(settings, url)
    return redis_asyncio.from_url(login.url, password=login.password)


def pooled_redis_client(settings: Settings, url: str, timeout_s: float, connections: int) -> Redis:
    """The same for many threads, which share so many connections. It gives up soon.

    A connection that broke is made again once, what timed out is not tried again: a read waits at most for a
    connection, and then as long again for its answer.
    """
    from redis import BlockingConnectionPool, ConnectionError, Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    login = redis_login(settings, url)
    pool = BlockingConnectionPool.from_url(
        login.url, max_connections=connections, timeout=timeout_s, password=login.password, socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
    )  # fmt: skip
    return Redis.from_pool(pool)


def check_redis(settings: Settings, url: str) -> str | None:
    """None when a Redis that is new enough answers; else what it did instead."""
    from redis import RedisError

    try:
        version = redis_server_version(settings, url)
    except (RedisError, OSError) as error:
        return f"{url}: {error}"
    if version < OLDEST:
        return f"{url} is Redis {'.'.join(map(str, version))}; 6.2 or newer is wanted"
    return None


def redis_server_version(settings: Settings, url: str) -> tuple[int, ...]:
    """The version of the server that answers there, like (7, 2, 11)."""
    with redis_client(settings, url, timeout_s=2.0) as client:
        return tuple(map(int, str(client.info("server")["redis_version"]).split(".")))
