"""Failpoints: the next process that reaches one is killed there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from torture.errors import NotInTime, TortureError
from torture.fault import RUN_S, Fault, Kind, Strike
from torture.installation import Installation
from torture.wait import wait_for

KIND: Kind = "failpoint"
IN_SERVICES = (
    "archiver.opened", "archiver.before_commit", "archiver.files_written", "archiver.before_ledger",
    "archiver.after_commit", "letters.before_send", "letters.after_send", "letters.after_note",
    "letters.before_catching_up", "letters.after_search", "speed.before_start", "speed.after_start",
    "speed.after_init", "speed.before_load",
    "speed.after_load", "speed.before_read", "speed.before_apply", "speed.after_apply", "clean_up.before_publish",
    "clean_up.before_retire", "clean_up.before_sweep", "clean_up.after_sweep", "collector.before_produce",
    "collector.before_answer", "serving.before_switch", "serving.after_switch", "alerts.before_commit",
    "alerts.after_commit",
)  # fmt: skip
IN_RUNS = (
    "run.after_open", "run.after_number", "run.after_duplicates", "run.after_data", "run.after_index",
    "run.after_views", "run.after_comparison", "run.before_publish", "publish_log.before_line",
    "publish_log.after_line", "run.after_publish", "run.after_hand_off", "expose.between", "run.after_expose",
    "prune.after_manifests", "run.after_prune", "store.before_link", "store.after_link", "lease.after_number",
)  # fmt: skip
IN_COMMANDS = (
    "repair.taken_out", "repair.after_void", "repair.after_take_back", "repair.between", "compact.before_commit",
    "compact.before_ledger", "seal.before_segment", "seal.after_segment",
    "seal.after_summary", "seal.before_removal", "prune.between", "rollback.before_pin", "rollback.after_unpin",
)  # fmt: skip
"""Failpoints of commands: the faults of upkeep.py run the command and kill it there."""
IN_STORES = (
    "store.before_write", "store.before_sync", "store.after_unlink", "store.before_replace", "store.after_replace",
    "store.before_delete", "store.after_delete", "publish_log.between_entries",
)  # fmt: skip
"""Failpoints within single steps of the store and of a migration: unit tests of these kill a process at each."""
IN_OVERTAKES = ("clean_up.before_overtake",)
"""Failpoints on the way back after a run that overtakes was killed: the faults of imports.py kill there, and
tests/system/test_backlog_watch.py."""
IN_EVOLUTIONS = ("readings.before_adopt", "readings.after_adopt", "run.after_prepare")
"""Failpoints of a run that switches to the next version of a source: the faults of versions.py kill there, and
tests/system/test_evolution_under_load.py."""
AT_START = {
    "archiver.opened": "archiver",
    "speed.before_start": "speed",
    "speed.after_start": "speed",
    "speed.after_init": "speed",
    "speed.before_load": "speed",
    "speed.after_load": "speed",
    "serving.before_switch": "serving",
    "serving.after_switch": "serving",
}
"""Failpoints that a process reaches when it starts: it is killed, and again on its way back."""
AFTER = {
    "letters.before_catching_up": ("letters.after_send",),
    "letters.after_search": ("letters.after_send",),
}
"""Failpoints that are reached only after a crash at others."""
AFTER_RUNS = ("clean_up.before_retire", "clean_up.before_sweep", "clean_up.after_sweep")
COMES_S = 25.0
WITHOUT_REDIS = ("speed.after_init", "speed.before_load", "speed.after_load")
"""Failpoints that are reached only when Redis has lost everything."""


@contextmanager
def strike_at(name: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Arm the failpoint and do what leads to it. A failpoint that nobody reached is disarmed at the end."""
    del chance
    armed = [installation.failpoints_dir / each for each in (name, *AFTER.get(name, ()))]
    for each in armed:
        each.touch()
    try:
        _lead_to(name, installation)
        with suppress(NotInTime):
            wait_for(f"a process to reach {name}", lambda: not armed[0].exists(), COMES_S * len(armed))
        if armed[0].exists():
            raise TortureError("no process reached it")
        yield
    finally:
        for each in armed:
            each.unlink(missing_ok=True)


def _lead_to(name: str, installation: Installation) -> None:
    if name in WITHOUT_REDIS:
        with installation.redis() as client:
            client.flushall()
    if name in AT_START:
        installation.processes.kill(AT_START[name])
    if name in IN_RUNS or name in AFTER_RUNS:
        with installation.run_turn:
            if name in AFTER_RUNS or (installation.failpoints_dir / name).exists():  # else a run just reached it
                installation.commands.batch_run()


def _strike(name: str) -> Strike:
    return partial(strike_at, name)


def _cost_s(name: str) -> float:
    if name in IN_RUNS or name in AFTER_RUNS:
        return RUN_S
    return 6 if name.startswith(("collector.", "serving.", "alerts.")) else 24


FAULTS = [
    Fault(
        f"killed at {name}",
        KIND,
        _strike(name),
        cost_s=_cost_s(name),
        of=("alerts",) if name.startswith("alerts.") else (),
    )
    for name in (*IN_SERVICES, *IN_RUNS)
]
