"""The archiver's process: `python -m master_dataset.archiver`, run by the supervisor."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from infra.clients.kafka_admin import KafkaAdmin
from infra.process_status import ProcessStatus
from infra.processes import Worker, run_worker
from infra.spark.session import spark_session
from infra.stack.addresses import addresses
from master_dataset.archiver.metrics import archiver_metrics
from master_dataset.archiver.source_archiver import SourceArchiver, check_any_is_archived
from master_dataset.archiver.upkeep import Upkeep
from master_dataset.kafka.topics import existing_topics
from views.declarations import declared_by

HEARTBEAT_S = 1.0


def run_archiver(worker: Worker) -> None:
    """Archive every source until a signal stops it. A refused source stops no other; if all are refused, it fails."""
    settings = worker.settings
    sources = declared_by(settings).sources.values()
    bootstrap = addresses(settings).kafka
    admin = KafkaAdmin(settings, bootstrap)
    existing_topics(admin)  # without Kafka there is no point in opening a source
    worker.write_status(ProcessStatus(time.time()))
    spark = spark_session(settings, "tidemark-archiver")
    archivers = [SourceArchiver(settings, bootstrap, spark, source) for source in sources]
    upkeep = Upkeep(settings, spark, lambda: [each.archive.path for each in archivers if each.query and each.archive])
    upkeep.start()
    try:
        with worker.metrics(settings.archiver_metrics_port, archiver_metrics(archivers, admin)):
            while not worker.is_stopping:
                for archiver in archivers:
                    if not worker.is_stopping:
                        archiver.attend()
                        worker.show_life()  # without Kafka, each source may wait for it in turn
                check_any_is_archived(archivers)
                described = {archiver.source.name: archiver.describe() for archiver in archivers}
                worker.write_status(ProcessStatus(time.time(), sources=described))
                worker.wait(HEARTBEAT_S)
    finally:
        with suppress(Exception):  # whatever state Spark is in now, the table has its own position
            upkeep.stopping.set()
            for archiver in archivers:
                archiver.stop()
            upkeep.stop()
            spark.stop()


def main() -> int:
    """The program."""
    return run_worker("archiver", run_archiver)


if __name__ == "__main__":
    sys.exit(main())
