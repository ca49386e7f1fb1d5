"""Run the serving layer: `python -m serving_layer`. One process, or with `serving_workers` several on one port."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI

from infra.errors import InfraError
from infra.logs import configure_logging
from infra.settings import Settings, load_settings
from infra.stack.addresses import addresses
from views.declarations import declared_by
from views.errors import DeclarationError

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The folder of the metrics of several processes; prometheus-client reads it when it is imported."""
GC_THRESHOLD = 50_000
PARENT_CHECK_S = 0.5
PARENT_VARIABLE = "SERVING_PARENT"
"""The process that workers end with."""
MAX_MESSAGE_BYTES = 64 * 1024
"""Of a WebSocket message from a client: nothing is expected from it."""

log = structlog.get_logger()


def application() -> FastAPI:
    """The application of each process. uvicorn calls this inside its event loop."""
    from serving_layer.app import create_app

    settings = load_settings()
    configure_logging(settings.log_level, form=settings.log_format)
    app = create_app(settings, declared_by(settings))
    # What is loaded now stays: the cycle collector need not scan it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 50)
    _end_streams_first(app)
    if settings.serving_workers > 1:
        threading.Thread(target=_end_with, args=(int(os.environ[PARENT_VARIABLE]),), daemon=True).start()
    return app


def _end_streams_first(app: FastAPI) -> None:
    """After a signal uvicorn waits for open connections, and live ones never end by themselves."""
    loop = asyncio.get_running_loop()

    def closing(then: Any) -> Callable[[int, FrameType | None], None]:
        def handle(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(app.state.live.close)
            then(number, frame)

        return handle

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, closing(signal.getsignal(number)))


def _end_with(parent: int) -> None:
    """End with the parent: an orphaned worker would hold the port."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Serve until a signal. Requests in progress are finished first."""
    try:
        settings = load_settings()
        configure_logging(settings.log_level, form=settings.log_format)
        views = declared_by(settings).views  # report what is wrong with them here, once
    except (InfraError, DeclarationError) as error:
        sys.stderr.write(f"tidemark serving: {error}\n")
        return error.exit_code
    log.info("started", address=addresses(settings).serving, views=sorted(views), processes=settings.serving_workers)
    with ExitStack() as stack:
        if settings.serving_workers > 1:
            os.environ[PARENT_VARIABLE] = str(
                os.getpid()
            )  # a worker that asks may be too late: it was killed meanwhile
            os.environ[FOLDER_VARIABLE] = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-metrics-"))
        _serve(settings)
    return 0


def _serve(settings: Settings) -> None:
    uvicorn.run(
        "serving_layer.__main__:application",
        factory=True,
        workers=settings.serving_workers,
        host=settings.serving_host,
        port=settings.serving_port,
        loop="uvloop",
        http="httptools",
        ws="serving_layer.push.handshakes:Handshakes",
        ws_max_size=MAX_MESSAGE_BYTES,
        proxy_headers=False,
        access_log=False,
        log_level="warning",
        server_header=False,
        # Less than the supervisor waits.
        timeout_graceful_shutdown=max(1, int(min(settings.serving_timeout_s, settings.stop_timeout_s - 2))),
    )


if __name__ == "__main__":
    sys.exit(main())
