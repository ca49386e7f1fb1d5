"""An import says how many events are to come, now and then, and no longer than it works."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisDown

from master_dataset.importer.tally import Tally
from tidemark.commands.import_load import RENEW_S, Load, events_to_come, total_bytes


@pytest.mark.parametrize(
    ("done", "total", "sent", "to_come"),
    [
        (0, 1_000, 0, None),
        (100, 0, 5, None),
        (100, 1_000, 0, None),
        (100, 1_000, 5, 45),
        (1_000, 1_000, 50, 0),
        (1_100, 1_000, 55, 0),
    ],
)
def test_what_is_to_come_follows_the_bytes_that_are_left(done: int, total: int, sent: int, to_come: int | None) -> None:
    assert events_to_come(done, total, sent) == to_come


@pytest.mark.parametrize(("sizes", "total"), [([], 0), ([5, 7], 12), ([5, None], 0), ([0], 0)])
def test_the_size_is_known_where_that_of_every_file_is(sizes: list[int | None], total: int) -> None:
    assert total_bytes(sizes) == total


class Announced:
    """Stands for Redis, and remembers."""

    def __init__(self, *, is_down: bool = False) -> None:
        self.said: list[int | str] = []
        self.attempts = 0
        self._is_down = is_down

    def announce_load(self, _name: str, to_come: int, _seconds: float) -> None:
        self.attempts += 1
        if self._is_down:
            raise RedisDown
        self.said.append(to_come)

    def withdraw_load(self, _name: str) -> None:
        if self._is_down:
            raise RedisDown
        self.said.append("end")


def load(announced: Any, now: list[float]) -> Load:
    return Load(announced, 1_000, clock=lambda: now[0])


def test_it_is_announced_now_and_then_over_all_files() -> None:
    announced, now, shown = Announced(), [0.0], []
    ours = load(announced, now)
    show = ours.shown_by(lambda done, _tally: shown.append(done))
    for at, done, sent in ((0.0, 100, 10), (RENEW_S / 2, 200, 20), (RENEW_S, 300, 30)):
        now[0] = at
        show(done, Tally(sent=sent))
    ours.finish_file(500, 50)
    now[0] = 3 * RENEW_S
    show(100, Tally(sent=10))
    ours.end()
    assert shown == [100, 200, 300, 100], "every call is shown"
    assert announced.said == [90, 70, 40, "end"]


def test_an_import_goes_on_without_redis_and_tries_it_once() -> None:
    announced, now = Announced(is_down=True), [0.0]
    ours = load(announced, now)
    for at in range(5):
        now[0] = at * RENEW_S
        ours.update(100, 10)
    ours.end()
    assert announced.attempts == 1, "an attempt takes seconds"
    nothing = Load(None, 0)
    nothing.update(100, 10)
    nothing.end()
