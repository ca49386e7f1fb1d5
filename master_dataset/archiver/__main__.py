"""The archiver's process: `python -m master_dataset.archiver`, run by the supervisor."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from types import FrameType

from infra.clients.kafka_admin import KafkaAdmin
from infra.metrics import new_registry, serve_metrics
from infra.processes import run_process
from infra.settings import Settings
from infra.spark.session import spark_session
from infra.stack.ports import LOOPBACK
from infra.stack.services import addresses
from master_dataset.archiver.metrics import archiver_metrics
from master_dataset.archiver.source_archiver import Follower, check_any_is_followed
from master_dataset.archiver.status import write_status
from master_dataset.kafka.topics import existing_topics
from views.declarations import declared_by

HEARTBEAT_S = 1.0


def run_archiver(settings: Settings) -> None:
    """Follow every source until told to stop. One that is refused stops no other; if all are, that is an error."""
    stopping: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        stopping.append(number)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    sources = declared_by(settings).sources.values()
    bootstrap = addresses(settings).kafka
    admin = KafkaAdmin(settings, bootstrap)
    existing_topics(admin)  # without Kafka no source need be tried
    write_status(settings, {})
    spark = spark_session(settings, "tidemark-archiver")
    followers = [Follower(settings, bootstrap, spark, source) for source in sources]
    registry = new_registry("archiver")
    registry.register(archiver_metrics(followers, admin))
    try:
        with serve_metrics(registry, LOOPBACK, settings.archiver_metrics_port):
            while not stopping:
                for follower in followers:
                    if not stopping:
                        follower.attend()
                check_any_is_followed(followers)
                write_status(settings, {follower.source.name: follower.describe() for follower in followers})
                time.sleep(HEARTBEAT_S)
    finally:
        with suppress(Exception):  # whatever state Spark is in now, the table has its own position
            for follower in followers:
                follower.stop()
            spark.stop()


def main() -> int:
    """The program."""
    return run_process(run_archiver, lambda settings, error: write_status(settings, {}, error=error))


if __name__ == "__main__":
    sys.exit(main())
