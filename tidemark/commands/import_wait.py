"""After an import: wait until the answers hold what was sent, and show how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from infra.process_status import MAX_AGE_S, read_status, status_path
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.cut import Cut, count_between, is_below

LOOK_S = 0.3
PATIENCE_S = 20.0
"""For a speed layer that starts again, or a Redis that does not reply."""
STALLED_S = 900.0
"""Without any progress."""

Show = Callable[[int, int, str], None]
"""Called with how many events of how many are in the answers, and what is done about the rest."""


class Progress(NamedTuple):
    """How far answers are; `cut` is None while nobody knows. `stage` is what is done about the rest."""

    cut: Cut | None
    is_written: bool
    """Whether a speed layer is at work."""
    stage: str = ""


@dataclass(frozen=True)
class Awaited:
    """Whether answers hold everything that was sent, after how many seconds, and why not."""

    is_complete: bool
    seconds: float
    note: str = ""


def wait_for_answers(
    look: Callable[[], Progress],
    target: Cut,
    show: Show,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Awaited:
    """Wait until answers are at `target`, or until nobody works on that any more."""
    began = moved = written = clock()
    first: int | None = None
    least: int | None = None
    while True:
        found, now = look(), clock()
        if found.cut is not None and is_below(target, found.cut):
            return Awaited(True, now - began)
        if found.cut is not None:
            behind = count_between(found.cut, target)
            first = behind if first is None else max(first, behind)
            if least is None or behind < least:
                least, moved = behind, now
            show(first - behind, first, found.stage)
        written = now if found.is_written else written
        if now - written > PATIENCE_S:
            return Awaited(False, now - began, "the speed layer does not run; the next batch run adds them")
        if now - moved > STALLED_S:
            return Awaited(False, now - began, "answers make no progress; `tidemark status` shows why")
        sleep(LOOK_S)


def is_awaited(settings: Settings, has_views: bool) -> bool:
    """Whether there is anything to wait for: the source has views, and a speed layer runs, here or elsewhere."""
    if not has_views or not settings.speed_enabled or not addresses(settings).has_redis:
        return False
    status = read_status(status_path(settings, "speed"))
    return bool(settings.redis_url) or (status is not None and time.time() - status.at < MAX_AGE_S)


def progress_of(settings: Settings, source: str, client: Any) -> Progress:
    """How far the answers of a source are now, by Redis and the scheduler's status."""
    from redis.exceptions import RedisError

    from hand_off.speed_views import SpeedViews

    try:
        reader = SpeedViews(client, source).reader
        meta, writer = reader.snapshot().meta, reader.living_writer()
    except (RedisError, OSError):
        return Progress(None, is_written=False)
    return Progress(meta.applied if meta is not None else None, writer is not None, _stage(settings, source))


def _stage(settings: Settings, source: str) -> str:
    status = read_status(status_path(settings, "scheduler"))
    if status is None or time.time() - status.at > MAX_AGE_S:
        return "speed layer"
    running = status.details.get("running") or {}
    if running.get("source") == source:
        return f"batch run, {time.time() - running['since']:.0f} s"
    backlog = status.sources.get(source, {}).get("backlog", {})
    return "a batch run follows" if backlog.get("action") in ("wait", "overtake") else "speed layer"
