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

    password = settings.redis_password.get_secret_value() if settings.redis_password else None
    return Redis.from_url(url, password=password, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)


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
