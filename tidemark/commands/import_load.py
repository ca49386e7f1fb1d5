"""What an import says about itself while it sends: how many events are still to come.

The scheduler then knows at once that history arrives, and a batch run that overtakes the speed layer can start while
the import still sends. Nothing depends on it: without Redis an import goes on as usual.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from infra.clients.redis import redis_client
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.importer.import_loop import OnProgress
from master_dataset.importer.tally import Tally

if TYPE_CHECKING:
    from hand_off.speed_views import RunHandle

RENEW_S = 1.0
VALID_S = 6.0
"""After so long without news, the import counts as ended."""


@dataclass
class Load:
    """The announcement of one import: over all of its files, which are sent one after the other."""

    runs: RunHandle | None
    total_bytes: int
    """Of all files; 0: not known, and then nothing is announced."""
    clock: Callable[[], float] = time.monotonic
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    _before: tuple[int, int] = (0, 0)
    _next_s: float = 0.0

    def shown_by(self, show: OnProgress) -> OnProgress:
        """What shows the progress of a file, and announces it."""

        def show_and_announce(done_bytes: int, tally: Tally) -> None:
            show(done_bytes, tally)
            self.update(done_bytes, tally.sent)

        return show_and_announce

    def update(self, done_bytes: int, sent: int) -> None:
        """So many bytes of the current file were read, and so many events of it were sent."""
        if self.runs is None or self.clock() < self._next_s:
            return
        self._next_s = self.clock() + RENEW_S
        to_come = events_to_come(self._before[0] + done_bytes, self.total_bytes, self._before[1] + sent)
        if to_come is not None:
            from redis.exceptions import RedisError

            try:
                self.runs.announce_load(self.name, to_come, VALID_S)
            except (RedisError, OSError):  # each further attempt would hold up the import
                self.runs = None

    def finish_file(self, size: int, sent: int) -> None:
        """The current file is sent; the next one follows."""
        self._before = (self._before[0] + size, self._before[1] + sent)

    def end(self) -> None:
        """Withdraw the announcement."""
        if self.runs is not None:
            from redis.exceptions import RedisError

            with suppress(RedisError, OSError):
                self.runs.withdraw_load(self.name)


def total_bytes(sizes: Iterable[int | None]) -> int:
    """Of all files; 0 where the size of one is not known, as of standard input."""
    found = list(sizes)
    return sum(size for size in found if size) if None not in found else 0


def events_to_come(done_bytes: int, total_bytes: int, sent: int) -> int | None:
    """The rest of the bytes at the events a byte so far; None where that is not known."""
    if not total_bytes or not done_bytes or not sent:
        return None
    return round(max(total_bytes - done_bytes, 0) * sent / done_bytes)


@contextmanager
def announced_load(settings: Settings, source: str, total_bytes: int) -> Iterator[Load]:
    """Announce an import as long as the block runs; not where there is no speed layer, or the size is not known."""
    where = addresses(settings)
    if not total_bytes or not settings.speed_enabled or not where.has_redis:
        yield Load(None, 0)
        return
    from hand_off.speed_views import SpeedViews

    with redis_client(settings, where.redis, timeout_s=2) as client:
        load = Load(SpeedViews(client, source).runs, total_bytes)
        try:
            yield load
        finally:
            load.end()
