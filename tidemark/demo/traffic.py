"""Made-up visits to a web site: by day and night, late, sent twice. The same seed gives the same events."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

PAGES = ("/", "/pricing", "/docs", "/docs/views", "/blog/one-number", "/sign-up", "/about", "/status")
SITES = (None, None, "https://search.example/q", "https://news.example/item", "https://chat.example/t/9")
USERS = 2_000
DUPLICATES, LATE = 0.02, 0.05
DAY_S = 86_400
LATEST_S = 3_600

Event = dict[str, Any]


def a_day(count: int, end: datetime, seed: int) -> Iterator[Event]:
    """So many events of the 24 hours before `end`, about in the order of their times, plus duplicates."""
    chance = random.Random(seed)  # noqa: S311  made-up events
    start = end - timedelta(days=1)
    for number in range(count):
        at = start + timedelta(seconds=DAY_S * _by_day_and_night(number / count))
        yield from _sent(chance, f"{seed}-day-{number}", at)


def live(seed: int) -> Iterator[Event]:
    """An endless stream of current events; some are late."""
    chance = random.Random(seed)  # noqa: S311  as above
    number = 0
    while True:
        yield from _sent(chance, f"{seed}-live-{number}", datetime.now(UTC))
        number += 1


def card_attempts(count: int, at: datetime, seed: int) -> Iterator[Event]:
    """Repeated attempts on one card within a second."""
    for number in range(count):
        yield {
            "event_id": f"{seed}-card-{int(at.timestamp())}-{number}",
            "event_time": (at + timedelta(milliseconds=number)).isoformat(timespec="milliseconds"),
            "card": "card-4711",
            "merchant": f"shop-{number % 3}",
            "outcome": "declined",
            "amount": 1.0 + number,
        }


def slow_visits(count: int, at: datetime, seed: int) -> Iterator[Event]:
    """A page that became slow."""
    chance = random.Random(seed)  # noqa: S311  as above
    for number in range(count):
        event = _event(chance, f"{seed}-slow-{int(at.timestamp())}-{number}", at)
        yield {**event, "properties": {**event["properties"], "url": "/checkout", "ms": 900 + 1000 * chance.random()}}


def _sent(chance: random.Random, event_id: str, at: datetime) -> Iterator[Event]:
    """The event, and now and then the same once more, as a client sends it that got no answer."""
    if chance.random() < LATE:
        at -= timedelta(seconds=chance.random() * LATEST_S)
    event = _event(chance, event_id, at)
    yield event
    if chance.random() < DUPLICATES:
        yield event


def _event(chance: random.Random, event_id: str, at: datetime) -> Event:
    page = PAGES[int(chance.random() ** 2 * len(PAGES))]
    name = "signup" if page == "/sign-up" and chance.random() < 0.3 else "page_view"
    return {
        "event_id": event_id,
        "event_time": at.isoformat(timespec="milliseconds"),
        "user_id": f"user-{int(chance.random() ** 1.5 * USERS)}",
        "name": name,
        "properties": {
            "url": page,
            "status": 500 if chance.random() < 0.01 else 200,
            "ms": round(chance.lognormvariate(4, 0.9), 1),
            "referrer": chance.choice(SITES),
        },
    }


def _by_day_and_night(share: float) -> float:
    """Which part of the day has passed when this share of its visits has: fewer come at night."""
    return share + 0.08 * math.sin(2 * math.pi * share)
