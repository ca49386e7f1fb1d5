"""The speed layer's process: a writer for each source, on one Spark session."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from hand_off.errors import Fenced, SparkEnded, SpeedError
from infra.process_status import ProcessStatus
from infra.processes import Worker, run_worker
from infra.spark.session import as_submitted, spark_session
from speed_layer.metrics import speed_metrics
from speed_layer.stream import session_conf
from speed_layer.writer import SourceWriter
from views.declarations import declared_by

HEARTBEAT_S = 0.5


def run_speed_layer(worker: Worker) -> None:
    """Keep up with every source until told to stop. A source that cannot go on is tried again; the others go on."""
    settings = as_submitted(worker.settings)
    worker.write_status(status_of([]))
    declarations = declared_by(settings)
    spark = spark_session(settings, "tidemark-speed", session_conf(settings))
    sources = [source for source in declarations.sources.values() if list(declarations.views_of(source.name))]
    writers = [SourceWriter(settings, spark, declarations, source, worker.stopping) for source in sources]
    ended: list[SpeedError] = []

    def run(writer: SourceWriter) -> None:
        try:
            writer.run()
        except (Fenced, SparkEnded) as error:
            ended.append(error)
            worker.stop()

    threads = [threading.Thread(target=run, args=(writer,), name=writer.source.name) for writer in writers]
    for thread in threads:
        thread.start()
    metrics = speed_metrics(lambda: {writer.source.name: writer.measure() for writer in writers})
    try:
        with worker.metrics(settings.speed_metrics_port, metrics):
            while not worker.wait(HEARTBEAT_S):
                worker.write_status(status_of(writers))
    finally:  # a full disk, say: threads that go on would keep a process alive that tells nothing
        worker.stop()
        for thread in threads:
            thread.join()
        with suppress(Exception):  # whatever state Spark is in now, Redis knows where to go on
            spark.stop()
    if ended:
        raise ended[0]


def status_of(writers: list[SourceWriter]) -> ProcessStatus:
    """The status of the process, now."""
    return ProcessStatus(time.time(), sources={writer.source.name: writer.status() for writer in writers})


def main() -> int:
    """The program."""
    return run_worker("speed", run_speed_layer)
