"""Each named place in our code: the process that comes there next is killed there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torture.fault import Fault, Kind, Strike
from torture.installation import Installation

KIND: Kind = "failpoint"
IN_SERVICES = (
    "archiver.opened", "archiver.before_commit", "archiver.files_written", "archiver.before_ledger",
    "archiver.after_commit", "letters.before_send", "letters.after_send", "letters.after_note",
    "letters.before_catching_up", "speed.before_start", "speed.after_start", "speed.after_init", "speed.before_load",
    "speed.after_load", "speed.before_read", "speed.before_apply", "speed.after_apply", "tend.before_publish",
    "tend.before_retire", "tend.before_sweep", "tend.after_sweep", "collector.before_produce",
    "collector.before_answer", "serving.before_switch", "serving.after_switch",
)  # fmt: skip
IN_RUNS = (
    "run.after_open", "run.after_number", "run.after_copies", "run.after_data", "run.after_index", "run.after_views",
    "run.before_publish", "publish_log.before_line", "publish_log.before_sync", "run.after_publish",
    "run.after_hand_off", "run.after_expose", "run.after_prune",
)  # fmt: skip
AT_START = {
    "archiver.opened": "archiver",
    "letters.before_catching_up": "archiver",
    "speed.before_start": "speed",
    "speed.after_start": "speed",
    "speed.after_init": "speed",
    "speed.before_load": "speed",
    "speed.after_load": "speed",
    "serving.before_switch": "serving",
    "serving.after_switch": "serving",
}
"""Places that a process comes to when it begins: it is killed, and again on its way back."""
WITHOUT_REDIS = ("speed.after_init", "speed.before_load", "speed.after_load")
"""Places that are come to only where Redis has lost everything."""


@contextmanager
def strike_at(name: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Arm it, and do what leads there. What nobody came to by the end is disarmed."""
    del chance
    armed = installation.failpoints_dir / name
    armed.touch()
    if name in WITHOUT_REDIS:
        installation.redis().flushall()
    if name in AT_START:
        installation.kill(AT_START[name])
    if name in IN_RUNS:
        with installation.run_turn:
            installation.batch_run()
    try:
        yield
    finally:
        armed.unlink(missing_ok=True)


def _strike(name: str) -> Strike:
    return partial(strike_at, name)


def _cost_s(name: str) -> float:
    if name in IN_RUNS:
        return 18
    return 6 if name.startswith(("collector.", "serving.")) else 24


FAULTS = [
    Fault(f"killed at {name}", KIND, _strike(name), lasting_s=0 if name in IN_RUNS else 4, cost_s=_cost_s(name))
    for name in (*IN_SERVICES, *IN_RUNS)
]
