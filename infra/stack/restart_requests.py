"""Ask the supervisor of a home to restart a service: by a file in the home, which it takes at its next tick.

A file needs no port, no socket with a short path, and no right but the one to write in the home.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from infra.errors import InfraError, NotRunning, ServiceFailed
from infra.home import Home, read_json, write_json
from infra.settings import Settings

TAKEN_S = 15.0
"""How long a supervisor may take to notice a request. It looks many times a second."""
PAUSE_S = 0.05

ReadStatus = Callable[[], dict[str, Any] | None]


class Request(NamedTuple):
    """Which service is to be restarted; the status names the id when the request was taken."""

    service: str
    id: str


def restart(
    settings: Settings, service: str, read_status: ReadStatus, on_status: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Restart a service of the running stack, and wait until it is ready. Returns its line of the status."""
    home = Home(settings.home)
    home.claim()
    before = _line_of(service, _running(read_status(), home), home)
    request = Request(service, uuid.uuid4().hex)
    path = _file_of(home, request)
    write_json(path, {"service": service})
    deadline = time.monotonic() + TAKEN_S
    patience_s = settings.stop_timeout_s + 2 * settings.start_timeout_s
    is_taken = False
    while True:
        status = _running(read_status(), home)
        on_status(status)
        line = _line_of(service, status, home)
        if not is_taken and line.get("request") == request.id:
            is_taken, deadline = True, time.monotonic() + patience_s
        if is_taken and line["state"] == "ready":
            return line
        if time.monotonic() > deadline:
            path.unlink(missing_ok=True)
            raise ServiceFailed(_too_late(line if is_taken else before, status, home, is_taken=is_taken))
        time.sleep(PAUSE_S)


def take_requests(home: Home) -> Iterator[Request]:
    """The requests that are there; each is given once."""
    with suppress(OSError):  # no file at all: the usual case, and cheap
        for path in sorted(home.run.glob("restart-*.json")):
            found = read_json(path)
            path.unlink(missing_ok=True)
            if isinstance(found, dict) and isinstance(found.get("service"), str):
                yield Request(found["service"], path.stem.removeprefix("restart-"))


def forget_requests(home: Home) -> None:
    """Drop what nobody took."""
    for _ in take_requests(home):
        pass


def _file_of(home: Home, request: Request) -> Path:
    return home.run / f"restart-{request.id}.json"


def _running(status: dict[str, Any] | None, home: Home) -> dict[str, Any]:
    if status is None:
        raise NotRunning(
            f"Nothing runs on {str(home.root)!r}, so nothing can be restarted. Start everything with `tidemark up`."
        )
    if status["stopping"]:
        raise NotRunning(f"The stack of {str(home.root)!r} is being stopped. Start it again with `tidemark up`.")
    return status


def _line_of(service: str, status: dict[str, Any], home: Home) -> dict[str, Any]:
    lines: dict[str, dict[str, Any]] = {line["name"]: line for line in status["services"]}
    if service not in lines:
        raise InfraError(
            f"There is no service {service!r} in the stack of {str(home.root)!r}. There are: {', '.join(lines)}."
        )
    return lines[service]


def _too_late(line: dict[str, Any], status: dict[str, Any], home: Home, *, is_taken: bool) -> str:
    if not is_taken:
        return (
            f"The supervisor (process {status['pid']}) did not take the request to restart {line['name']!r}. Its log: "
            f"{home.log_file('supervisor')}. If it hangs, end it and run `tidemark up` again."
        )
    why = f": {line['message']}" if line["message"] else ""
    return (
        f"{line['name']} was restarted and is not ready yet; it is {line['state']}{why}. The supervisor keeps trying. "
        f"`tidemark logs {line['name']}` shows its log."
    )
