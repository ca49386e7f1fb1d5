"""Bulk imports: history comes in while the load runs, and a run that the scheduler starts overtakes the speed layer.

A part of the history is sent again after that: none of it may count twice, though the speed layer never saw the first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from batch_layer.scheduler import progress_file
from hand_off.speed_views import SpeedViews
from infra.home import write_json
from infra.process_status import read_status
from master_dataset.cut import count_between
from torture.errors import NotInTime, TortureError
from torture.fault import Fault
from torture.installation import Installation
from torture.load import PlannedRecord, history
from torture.runs import beside
from torture.wait import wait_for

MODULE = "batch_layer.scheduler"
EVENTS, AGAIN = 3_000, 400
"""So much history is imported, and so much of it is sent again after the overtake."""
AT_ONCE = {
    "TIDEMARK_BATCH_SCHEDULE": "0 0 1 1 *",
    "TIDEMARK_OVERTAKE_BEHIND_EVENTS": "500",
    "TIDEMARK_OVERTAKE_BEHIND_S": "0",
}
"""A scheduler with nothing to do, but for a speed layer that is behind."""
NAME = "torture"
HELD_S, VALID_S = 30.0, 6.0
BEGINS_S, SENT_S, OVERTAKES_S, ENDS_S = 60.0, 60.0, 150.0, 60.0
COST_S = 45.0
AFTER = {"clean_up.before_overtake": ("run.after_publish",)}
"""Failpoints that are reached only where a run was killed at others."""
BEFORE_APPEND = ("run.before_publish",)
"""Killed here, a run overtakes nobody: the speed layer must go on by itself."""
KILLED_AT = ("run.before_publish", "run.after_publish", "clean_up.before_overtake", "speed.before_load")


@contextmanager
def overtaken(installation: Installation, chance: random.Random, killed_at: str = "") -> Iterator[None]:
    """Import history, let a run overtake the speed layer, and send a part of the history again.

    `killed_at`: a failpoint around the overtake, where the run, or the speed layer, is killed.
    """
    views = list(installation.declared.views_of(installation.source_name))
    records = history(installation.source, views, chance, EVENTS)
    points = (killed_at, *AFTER.get(killed_at, ())) if killed_at else ()
    armed = [installation.failpoints_dir / each for each in points]
    with installation.run_turn, installation.redis() as client:
        speed_views = SpeedViews(client, installation.source_name)
        since = time.time()
        write_json(progress_file(installation.settings), {"handled": since, "last": None, "seen": {}})
        with beside(installation, MODULE, AT_ONCE):
            wait_for("the scheduler", lambda: _status(installation, since), BEGINS_S)
            for each in armed:
                each.touch()
            try:
                jump = _Jump(speed_views)
                _import(installation, speed_views, records)
                _wait_until_struck(installation, jump, points, since)
            finally:
                for each in armed:
                    each.unlink(missing_ok=True)
            installation.bulk.extend(replace(each, duplicate="publish") for each in chance.sample(records, AGAIN))
            with suppress(NotInTime):  # a run that was published has still to tidy up: that is its own affair
                wait_for("the run to end", lambda: not _status(installation, since).get("running"), ENDS_S)
            _wait_sent(installation)
    yield


def _import(installation: Installation, speed_views: SpeedViews, records: Sequence[PlannedRecord]) -> None:
    """Send records as an import does: it announces how many are to come.

    The speed layer is made to wait before the scheduler does so: else it may have counted them before that looks.
    """
    if not speed_views.runs.forecast(HELD_S):
        raise TortureError("a run is about to overtake the speed layer already, and nobody started one")
    speed_views.runs.announce_load(NAME, len(records), VALID_S)
    installation.bulk.extend(records)
    try:
        _wait_sent(installation)
    finally:
        speed_views.runs.withdraw_load(NAME)


def _wait_sent(installation: Installation) -> None:
    wait_for("all of the history to be sent", lambda: not installation.bulk, SENT_S)


class _Jump:
    """Whether the speed layer has jumped since this was made, and how far: an overtake replaces the speed views."""

    def __init__(self, speed_views: SpeedViews) -> None:
        self._speed_views = speed_views
        self._made, self._applied = "", dict[int, int]()
        self.skipped: int | None = None
        """Events that the speed layer never saw; None: it has not jumped."""
        self.has_happened()

    def has_happened(self) -> bool:
        """Look. What was applied when it was looked at last was counted one by one."""
        if self.skipped is not None:
            return True
        snapshot = self._speed_views.reader.snapshot()
        if (meta := snapshot.meta) is not None:
            if self._made not in ("", meta.made):
                start = next((each.start for each in snapshot.generations), {})
                self.skipped = count_between(self._applied, start)
            self._made, self._applied = meta.made, dict(meta.applied)
        return self.skipped is not None


def _wait_until_struck(installation: Installation, jump: _Jump, points: Sequence[str], since: float) -> None:
    """Until the speed layer has jumped, and whoever was to be killed was."""
    armed = [installation.failpoints_dir / each for each in points]
    must_jump = not any(each in BEFORE_APPEND for each in points)

    def is_over() -> bool:
        has_jumped = jump.has_happened()
        return (has_jumped or not must_jump) and not any(each.exists() for each in armed)

    try:
        wait_for("a run to overtake the speed layer", is_over, OVERTAKES_S)
    except NotInTime:
        left = [each.name for each in armed if each.exists()]
        raise TortureError(
            f"after {OVERTAKES_S:g} s "
            f"{'nobody came to ' + ', '.join(left) if left else 'no run had overtaken the speed layer'}; "
            f"the scheduler says {_status(installation, since).get('sources')}"
        ) from None
    if must_jump and not jump.skipped:
        raise TortureError("a run overtook the speed layer, which had counted everything before")
    installation.notes.append(f"the speed layer skipped {jump.skipped or 0} events")


def _status(installation: Installation, since: float) -> dict[str, Any]:
    """The scheduler's status; empty if it is older than `since`."""
    found = read_status(installation.home.run / "scheduler.json")
    return found.to_json() if found is not None and found.at >= since else {}


FAULTS = [
    Fault("history is imported, and a run overtakes", "concurrency", overtaken, 2, cost_s=COST_S, is_core=True),
    *(
        Fault(f"an overtake killed at {name}", "concurrency", partial(overtaken, killed_at=name), 2, cost_s=COST_S)
        for name in KILLED_AT
    ),
]
