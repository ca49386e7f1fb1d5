"""The busy speed view of bench_serving.py: micro-batches all the time, a few events for each of many groups.

Run by the benchmark, with its settings: python benchmarks/busy_speed.py GROUPS_OF_AN_HOUR
"""

from __future__ import annotations

import random
import sys
import time

from made_home import SpeedWriter
from redis import Redis

from hand_off.batch_folder import BatchFolder
from hand_off.speed_views import SpeedViews
from infra.settings import load_settings
from views.declarations import declared_by

EVERY_S = 0.1
GROUPS = 500
"""Of a micro-batch."""
LATE = (0.9, 0.09, 0.01)
"""How many micro-batches are of the last hour, the one before it, and the one before that."""


def main() -> None:
    """Apply until killed."""
    an_hour = int(sys.argv[1])
    settings = load_settings()
    view = declared_by(settings).view("reference")
    source = view.source.name
    assert settings.redis_url is not None
    with Redis.from_url(settings.redis_url) as client:
        writer = SpeedWriter(SpeedViews(client, source), view, BatchFolder.of(settings, source), an_hour)
        due = time.monotonic()
        while True:
            writer.add(*random.choices(range(len(LATE)), LATE), min(GROUPS, an_hour))  # noqa: S311  made-up
            due = max(due + EVERY_S, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))


if __name__ == "__main__":
    main()
