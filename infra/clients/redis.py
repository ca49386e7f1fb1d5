"""How every Redis client of ours connects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.settings import Settings

if TYPE_CHECKING:
    from redis import Redis

OLDEST = (6, 2)


def redis_client(settings: Settings, url: str, timeout_s: float = 5.0) -> Redis:
    """A client with the settings' password; values come back as bytes."""
    from redis import Redis

    return Redis.from_url(url, password=_password(settings), socket_timeout=timeout_s, socket_connect_timeout=timeout_s)


def pooled_redis_client(settings: Settings, url: str, timeout_s: float, connections: int) -> Redis:
    """The same for many threads, which share so many connections. It gives up soon.

    A connection that broke is made again once, what timed out is not tried again: a read waits at most for a
    connection, and then as long again for its answer.
    """
    from redis import BlockingConnectionPool, ConnectionError, Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    pool = BlockingConnectionPool.from_url(
        url, max_connections=connections, timeout=timeout_s, password=_password(settings), socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
    )  # fmt: skip
    return Redis.from_pool(pool)


def _password(settings: Settings) -> str | None:
    return settings.redis_password.get_secret_value() if settings.redis_password else None


def check_redis(settings: Settings, url: str) -> str | None:
    """None when a Redis that is new enough answers; else what it did instead."""
    from redis import RedisError

    try:
        with redis_client(settings, url, timeout_s=2.0) as client:
            version = str(client.info("server")["redis_version"])
    except (RedisError, OSError) as error:
        return f"{url}: {error}"
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        return f"{url} is Redis {version}; 6.2 or newer is wanted"
    return None
