"""A service: one child process of the supervisor, and how to know that it works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class State(StrEnum):
    """What a service is doing, in the words of `tidemark status`."""

    WAITING = "waiting"  # for the services it stands on
    STARTING = "starting"  # the process runs, its check does not pass yet
    READY = "ready"
    UNRESPONSIVE = "unresponsive"  # the process runs, but its check stopped passing
    PAUSING = "pausing"  # it died; it is started again after the pause
    STOPPING = "stopping"
    STOPPED = "stopped"


def nothing_to_prepare() -> None:
    """For services that need no preparation."""


UTF8 = {"LC_ALL": "C.UTF-8"}
"""Under another locale Java cannot open a path like `/home/jürgen`."""


@dataclass(frozen=True)
class Service:
    """How to run one child process.

    `check` returns None when the service works, else what is missing; it must return within a few seconds.
    `prepare` runs before each start, in the supervisor, and must be harmless to repeat.
    """

    name: str
    command: tuple[str, ...]
    address: str
    check: Callable[[], str | None]
    prepare: Callable[[], None] = nothing_to_prepare
    after: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    is_needed: bool = True
    """Whether `up` fails when it never becomes ready. Otherwise the others keep running, and it is retried."""
    last_error: Callable[[], str] = lambda: ""
    """The error that it recorded when it ended; empty if there is none."""
    problems: Callable[[], str] = lambda: ""
    """Which of its parts do not work although it is ready. It keeps running, and the status is not ready."""
    folder: Path | None = None
    pulse: Callable[[], Any] | None = None
    """A sign of life: a value that is another each time, None where there is none. Without one, a check that passes is
    the sign. A service that waits for another one fails its check and still has a pulse: killing it would not help.
    """
    works_silently: bool = False
    """Whether hard work may keep it from giving a sign of life. As long as it works, a hang is assumed later."""
    recovers_silently: bool = False
    """Whether its start may take any time as long as it works: a broker reads its logs after a crash."""
