"""The archiver's process: `python -m master_dataset.archiving`, run by the supervisor."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack, suppress
from types import FrameType

from confluent_kafka.admin import AdminClient

from infra.local_stack import addresses
from infra.process import run_process
from infra.settings import Settings
from infra.spark import spark_session
from master_dataset.archiver import open_archive, write_status
from master_dataset.topics import apply_topics, librdkafka_config, plan_topics
from views.declarations import declared_by

HEARTBEAT_S = 1.0


def run_archiver(settings: Settings) -> None:
    """Follow every source until told to stop. An error of one source ends the process; the supervisor restarts it."""
    stopping: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        stopping.append(number)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    sources = list(declared_by(settings).sources.values())
    bootstrap = addresses(settings).kafka
    apply_topics(AdminClient(librdkafka_config(settings, bootstrap)), plan_topics(sources))
    write_status(settings, [], [])
    spark = spark_session(settings, "tidemark-archiver")
    with ExitStack() as locks:
        archives = [open_archive(settings, bootstrap, source, spark, locks) for source in sources]
        queries = [archive.start(spark) for archive in archives]
        try:
            while not stopping:
                for query in queries:
                    if not query.isActive:
                        raise query.exception() or RuntimeError(f"Query {query.name} ended by itself.")
                write_status(settings, archives, queries)
                time.sleep(HEARTBEAT_S)
        finally:
            with suppress(Exception):  # whatever state Spark is in now, the table has its own position
                for query in queries:
                    query.stop()
                spark.stop()


def main() -> int:
    """The program."""
    return run_process(run_archiver, lambda settings, error: write_status(settings, [], [], error=error))


if __name__ == "__main__":
    sys.exit(main())
