"""Tell systemd how the stack is: ready, what it does, stopping, and that the supervisor itself does not hang.

The protocol is a datagram of `NAME=value` lines to the socket that `NOTIFY_SOCKET` names. Without one nothing is sent.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import Any

EVERY_S = 2.0
EXTENSION_S = 120
"""While everything starts, each sign of life lets systemd wait this much longer: a recovery may take long."""


class ServiceManager:
    """The service manager that started this process, if one did."""

    def __init__(self) -> None:
        # Taken out of the environment: what our children would send is not about us.
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
            os.environ.pop(name, None)
        self._is_settled = False
        self._next_at = 0.0

    def tell(self, status: dict[str, Any]) -> None:
        """Pass on a status of the stack that has changed."""
        lines = [f"STATUS={_in_words(status)}"]
        if status["stopping"]:
            lines.append("STOPPING=1")
        elif status["settled"] and not self._is_settled:
            self._is_settled = True
            lines.append("READY=1")
        self._send(lines)

    def tick(self) -> None:
        """Show, every few seconds, that the supervisor does not hang. Called at each turn of its loop."""
        if self._address and time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + EVERY_S
            starting = [] if self._is_settled else [f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}"]
            self._send(["WATCHDOG=1", *starting])

    def _send(self, lines: list[str]) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.setblocking(False)  # a service manager that is busy must not stop us
            connection.sendto("\n".join(lines).encode(), address)


def _in_words(status: dict[str, Any]) -> str:
    """Like `7 of 8 services are ready; kafka is pausing`."""
    services = status["services"]
    others = [f"{each['name']} is {each['state']}" for each in services if each["state"] != "ready"]
    return "; ".join([f"{len(services) - len(others)} of {len(services)} services are ready", *others])
