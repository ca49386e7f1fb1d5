"""The start of one service on an aged home, in an interpreter of its own: `python -m torture.age.start_up archiver 0`.

The second argument says by how many seconds the clock is ahead. The serving layer runs as it is. The archiver and the
speed layer do what they do when they start, except for Spark and Kafka: those cost the same on every home. They end
when they are ready, and print the megabytes of memory at their peak and the processor seconds until then.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from torture.age.clock import SimulatedClock

TOPIC_ID = "u6Lh3yKzRWyAgeing0000A"
SOURCE = "shop"


def start_archiver() -> None:
    """What `open_archive` reads and writes."""
    import master_dataset.archiver.__main__  # noqa: F401  the service imports all of it
    from infra.settings import load_settings
    from master_dataset.table import coverage
    from master_dataset.table.append import archiver_lock, commit_lock
    from master_dataset.table.checks.fsck import refuse_damage
    from master_dataset.table.delta_log import remember
    from master_dataset.table.history import read_history
    from master_dataset.table.ledger import complete_ledger
    from master_dataset.table.paths import table_path

    table = table_path(load_settings(), SOURCE)
    with archiver_lock(table):
        refuse_damage(SOURCE, table)
        with commit_lock(table):
            newest = read_history(table).in_log
            complete_ledger(table, newest)
            remember(table, newest)
            coverage.of_history(read_history(table))


def start_speed_layer() -> None:
    """What `SourceWriter` reads before it becomes the writer, and its seen ids."""
    import threading

    import speed_layer.process  # noqa: F401  the service imports all of it
    from infra.settings import load_settings
    from master_dataset.kafka.positions import Positions
    from speed_layer.seen_ids import from_bytes
    from speed_layer.writer import SourceWriter
    from views.declarations import declared_by

    settings = load_settings()
    declarations = declared_by(settings)
    no_spark = None
    writer = SourceWriter(settings, no_spark, declarations, declarations.source(SOURCE), threading.Event())  # type: ignore[arg-type]  # Spark is needed later
    snapshot = writer.speed_views.reader.snapshot()
    applied = snapshot.meta.applied if snapshot.meta is not None else {0: 0, 1: 0}
    writer._check_start(Positions(TOPIC_ID, dict.fromkeys(applied, 0), dict(applied)), writer._held())
    from_bytes(writer.speed_views.reader.seen_ids(), writer.horizon_ms)


def start_serving() -> None:
    """The service itself, until a signal."""
    from serving_layer.__main__ import main

    sys.exit(main())


STARTS = {"archiver": start_archiver, "speed": start_speed_layer, "serving": start_serving}


def main() -> int:
    """The program."""
    part, ahead_s = sys.argv[1], float(sys.argv[2])
    with SimulatedClock(ahead_s).installed():
        STARTS[part]()
    sys.stdout.write(f"{_peak_mb()} {time.process_time()}\n")
    return 0


def _peak_mb() -> float:
    """The most memory that this program had; `getrusage` would count what its parent had when it forked."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    sys.exit(main())
