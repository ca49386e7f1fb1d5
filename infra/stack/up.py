"""Bring a home up and down: in this process, or detached in a supervisor process of its own.

`python -m infra.stack.up` is that process. It writes each status as one JSON line to its standard output until
everything is ready, so that the command that started it can show them; if that reader goes away before, it stops again.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

from infra.errors import InfraError, NotRunning, ServiceFailed
from infra.home import Home, read_json
from infra.java.find import find_java
from infra.java.jars import Progress, fetch_jars
from infra.logs import LogStream, configure_logging
from infra.rest.access_keys import make_first_key
from infra.settings import Settings, child_environment, load_settings
from infra.stack.addresses import wanted_ports
from infra.stack.leftovers import end_leftovers
from infra.stack.ports import check_free
from infra.stack.service import Service
from infra.stack.service_manager import ServiceManager
from infra.stack.services import build_services
from infra.stack.supervisor import OWN_LOG, Limits, Supervisor, stop_on_signals
from infra.store_probe import probe_folder, shared_folders

log = structlog.get_logger()

OnStatus = Callable[[dict[str, Any]], None]
Build = Callable[[Settings], list[Service]]
PROGRAM = ("-m", "infra.stack.up")
"""The supervisor's process; a test programme with other services calls `main` with them."""


def check_and_fetch(settings: Settings, progress: Progress | None = None) -> None:
    """What `up` needs before it may touch the home: a home that is ours, free ports, Java, the jars."""
    home = Home(settings.home)
    home.check()
    home.check_disk(settings.min_free_disk_mb)
    if not home.is_locked():  # otherwise the ports are its own, and `up` names the holder
        check_free({name: port for name, port in wanted_ports(settings).items() if port})
    with_spark = settings.archiver_enabled or settings.speed_enabled or settings.scheduler_enabled
    if with_spark or not settings.kafka_bootstrap:
        fetch_jars(find_java(settings.java_home), settings.jars_dir, settings.ivy_settings, progress)


def first_access_key(settings: Settings) -> str | None:
    """The secret of the first access key, made now; None where the home has keys already or needs none."""
    if not settings.access_required:
        return None
    home = Home(settings.home)
    home.prepare()
    return make_first_key(home.root)


def supervise(settings: Settings, on_status: OnStatus, build: Build = build_services) -> None:
    """Run the stack in this process until a signal stops it. `build` gives the services."""
    home = Home(settings.home)
    home.prepare()
    from infra.stack.metrics import served_metrics

    limits = Limits.of(settings)
    service_manager = ServiceManager()
    with home.locked():
        own_log = cast(TextIO, LogStream(limits.log_file(home, OWN_LOG)))
        configure_logging(settings.log_level, own_log, settings.log_format)
        end_leftovers(home)  # before the ports are looked at: leftovers may hold them
        for folder in shared_folders(settings):
            with suppress(OSError):  # a folder that cannot be written: whoever needs it says so
                probe_folder(folder)

        def on_change(status: dict[str, Any]) -> None:
            service_manager.tell(status)
            on_status(status)

        supervisor = Supervisor(home, build(settings), limits, on_change, service_manager.tick)
        stop_on_signals(supervisor)
        with served_metrics(settings, supervisor.children):
            supervisor.run()


def start_detached(settings: Settings, on_status: OnStatus, program: tuple[str, ...] = PROGRAM) -> dict[str, Any]:
    """Start a supervisor process of its own and return its status once everything is ready, or will not be."""
    process = subprocess.Popen(
        [sys.executable, "-P", *program],  # -P: a folder `infra` where the user stands is not ours
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment(settings),
        start_new_session=True,
    )
    output = []
    try:
        for line in process.stdout or ():
            message = _parse(line)
            if message is None:
                output.append(line.rstrip())
            elif "failed" in message:
                process.wait()
                error = InfraError(message["failed"])
                error.exit_code = message["exit_code"]
                raise error
            else:
                on_status(message)
                if message["settled"]:
                    # It keeps running without us; while we live, we must reap it.
                    threading.Thread(target=process.wait, daemon=True).start()
                    return message
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    finally:
        if process.stdout:
            process.stdout.close()
    process.wait()
    raise ServiceFailed("The supervisor ended before everything was ready:\n" + "\n".join(output[-20:]))


def stop(settings: Settings, on_status: OnStatus) -> None:
    """Stop the supervisor of this home and wait until its children are gone."""
    home = Home(settings.home)
    status = read_status(settings)
    if status is None:
        raise NotRunning(f"Nothing runs on {str(home.root)!r}.")
    with suppress(ProcessLookupError):
        os.kill(status["pid"], signal.SIGTERM)
    deadline = time.monotonic() + settings.stop_timeout_s * len(status["services"]) + 5
    while home.is_locked():
        on_status(read_json(home.status_file) or status)
        if time.monotonic() > deadline:
            raise ServiceFailed(
                f"The supervisor (process {status['pid']}) did not stop in time. Its log: {home.log_file('supervisor')}"
            )
        time.sleep(0.05)


def read_status(settings: Settings) -> dict[str, Any] | None:
    """The status of what runs on this home now, or None where nothing runs."""
    home = Home(settings.home)
    status = read_json(home.status_file)
    # The lock shows who runs. Start times are no help here: they shift when the system's clock is set.
    if not status or status["pid"] != home.holder():
        return None
    return dict(status)


def _parse(line: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        message = json.loads(line)
        if isinstance(message, dict):
            return message
    return None


def main(build: Build = build_services) -> int:
    """The detached supervisor."""
    is_reported = False

    def report(status: dict[str, Any]) -> None:
        nonlocal is_reported
        if is_reported:
            return
        is_reported = status["settled"]  # set first: once it is reported, the reader may go away
        try:
            sys.stdout.write(json.dumps(status) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            is_reported = False
            os.kill(os.getpid(), signal.SIGTERM)
        if is_reported:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)

    def watch_reader() -> None:
        """Stop when the command that started us goes away before everything is ready, however it ends."""
        pipe = select.poll()
        pipe.register(1, 0)  # no data is waited for, only the closing of the other end
        pipe.poll()
        if not is_reported:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch_reader, daemon=True).start()
    try:
        supervise(load_settings(), report, build)
    except InfraError as error:
        if not is_reported:
            sys.stdout.write(json.dumps({"failed": str(error), "exit_code": error.exit_code}) + "\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
