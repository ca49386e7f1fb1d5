"""The speed layer's process: a keeper for each source, on one Spark session."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from hand_off.errors import Fenced, SparkEnded, SpeedError
from infra.home import Home, write_json
from infra.metrics import new_registry, serve_metrics
from infra.processes import run_process
from infra.settings import Settings
from infra.spark.session import as_submitted, spark_session
from infra.stack.ports import LOOPBACK
from speed_layer.metrics import speed_metrics
from speed_layer.stream import session_conf
from speed_layer.writer import Keeper
from views.declarations import declared_by

HEARTBEAT_S = 0.5


def run_speed_layer(settings: Settings) -> None:
    """Keep up with every source until told to stop. A source that cannot go on is tried again; the others go on."""
    settings = as_submitted(settings)
    stopping = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    Home(settings.home).prepare()
    write_status(settings, [])
    declarations = declared_by(settings)
    spark = spark_session(settings, "tidemark-speed", session_conf(settings))
    sources = [source for source in declarations.sources.values() if list(declarations.views_of(source.name))]
    keepers = [Keeper(settings, spark, declarations, source, stopping) for source in sources]
    ended: list[SpeedError] = []

    def keep(keeper: Keeper) -> None:
        try:
            keeper.run()
        except (Fenced, SparkEnded) as error:
            ended.append(error)
            stopping.set()

    threads = [threading.Thread(target=keep, args=(keeper,), name=keeper.source.name) for keeper in keepers]
    for thread in threads:
        thread.start()
    registry = new_registry("speed")
    registry.register(speed_metrics(lambda: {keeper.source.name: keeper.measure() for keeper in keepers}))
    try:
        with serve_metrics(registry, LOOPBACK, settings.speed_metrics_port):
            while not stopping.wait(HEARTBEAT_S):
                write_status(settings, keepers)
    finally:  # a full disk, say: threads that go on would keep a process alive that tells nothing
        stopping.set()
        for thread in threads:
            thread.join()
        with suppress(Exception):  # whatever state Spark is in now, Redis knows where to go on
            spark.stop()
    if ended:
        raise ended[0]


def status_file(settings: Settings) -> Path:
    """Where the speed layer says how it is."""
    return Home(settings.home).run / "speed.json"


def write_status(settings: Settings, keepers: list[Keeper], error: str = "") -> None:
    """Tell the others."""
    sources = {keeper.source.name: keeper.status() for keeper in keepers}
    write_json(status_file(settings), {"at": time.time(), "error": error, "sources": sources})


def main() -> int:
    """The program."""
    return run_process(run_speed_layer, lambda settings, error: write_status(settings, [], error=error))
