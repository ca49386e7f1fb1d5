"""Processes that are killed alone, in pairs or again while they restart, and processes that are stopped."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import combinations

from infra.errors import InfraError
from infra.settings import Settings
from infra.stack.child import Cause
from torture.errors import BrokenPromise, NotInTime, TortureError
from torture.fault import Fault
from torture.installation import Installation
from torture.processes import SERVICES
from torture.wait import wait_for

ON_SPARK = ("archiver", "speed")
CORE = (*ON_SPARK, "alerts")
COST_S = {"redis": 5, "kafka": 14, "collector": 5, "archiver": 18, "speed": 22, "serving": 5, "alerts": 5}
"""About how long each takes to restart and catch up."""
COMES_BACK_S = 60
STARTS_S = 180
HANG_TIMEOUT_S = 10.0
"""The setting, while a hang is to be noticed. The programme itself turns it off, because other faults stop services."""
ENDED_S = 90.0
"""Within so long a service that hangs is started again. One that may be working gets five times the setting."""


@contextmanager
def kill(services: tuple[str, ...], installation: Installation, chance: random.Random) -> Iterator[None]:
    """Kill these services at once."""
    del chance
    struck = [installation.processes.kill(service) for service in services]
    if not all(struck):
        alive = [service for service, is_struck in zip(services, struck, strict=True) if not is_struck]
        raise TortureError(f"{' and '.join(alive)} did not run")
    yield


@contextmanager
def kill_all(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Kill every service at once."""
    with kill(installation.processes.services, installation, chance):
        yield


@contextmanager
def kill_below(service: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Kill the children of a service (Spark's JVM), not the process that is supervised."""
    del chance
    below = installation.processes.pids(service)[1:]
    if not below:
        raise TortureError(f"nothing ran below {service}")
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    yield


@contextmanager
def kill_again(service: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Kill a service, and its successors at a random moment of their start."""
    before = installation.processes.pid(service)
    for _ in range(3):
        installation.processes.kill(service)
        with suppress(NotInTime):
            wait_for(f"{service} to be started", partial(_is_another, installation, service, before), COMES_BACK_S)
        before = installation.processes.pid(service)
        time.sleep(chance.uniform(0, 4 if service in ON_SPARK else 0.6))
    installation.processes.kill(service)
    yield


def _is_another(installation: Installation, service: str, before: int | None) -> bool:
    return installation.processes.pid(service) not in (None, before)


@contextmanager
def stand_still(service: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Stop a service with SIGSTOP until healed: connections stay open, nothing is answered."""
    del chance
    if not installation.processes.signal(service, signal.SIGSTOP):
        raise TortureError(f"{service} did not run")
    try:
        yield
    finally:
        installation.processes.signal(service, signal.SIGCONT)


@contextmanager
def hang(service: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Stop a service with SIGSTOP for good, under a supervisor that kills what hangs, and has to start it again."""
    usual = installation.settings
    _start_again(installation, usual.model_copy(update={"hang_timeout_s": HANG_TIMEOUT_S}))
    try:
        before = installation.processes.pid(service)
        with stand_still(service, installation, chance):
            try:
                wait_for(f"{service} to be started again", partial(_has_hung, installation, service, before), ENDED_S)
            except NotInTime as error:
                raise BrokenPromise(
                    f"{service} was stopped; hang_timeout_s is {HANG_TIMEOUT_S:g} s, and it was not killed: {error}"
                ) from None
        installation.processes.wait_ready((service,), STARTS_S)
        yield
    finally:
        _start_again(installation, usual)


def _has_hung(installation: Installation, service: str, before: int | None) -> bool:
    line = next(each for each in installation.processes.status()["services"] if each["name"] == service)
    return line["pid"] not in (None, before) and (line["last_restart"] or {}).get("cause") == Cause.HANG


def _start_again(installation: Installation, settings: Settings) -> None:
    installation.stop()
    installation.settings = settings
    wait_for("everything to start again", partial(_is_started, installation), STARTS_S, every_s=1)


@contextmanager
def kill_supervisor(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Kill the supervisor, and all services with it; healing starts it again."""
    del chance
    os.kill(int(installation.processes.status()["pid"]), signal.SIGKILL)
    try:
        yield
    finally:
        wait_for("everything to start again", partial(_is_started, installation), STARTS_S, every_s=1)


def _is_started(installation: Installation) -> bool:
    try:
        installation.start()
    except InfraError:  # processes of the one before still end, and hold ports
        return False
    return True


FAULTS = [
    *(Fault(f"kill {each}", "kill", partial(kill, (each,)), cost_s=COST_S[each], is_core=each in CORE, of=(each,))
      for each in SERVICES),
    *(Fault(f"kill the JVM of {each}", "kill", partial(kill_below, each), cost_s=COST_S[each]) for each in ON_SPARK),
    *(Fault(f"kill {each}, again and again", "kill", partial(kill_again, each), cost_s=2 * COST_S[each] + 8, of=(each,))
      for each in SERVICES),
    *(Fault(f"{each} hangs and is killed by the supervisor", "pause", partial(hang, each), cost_s=180, weight=0.5,
            of=(each,))
      for each in ("collector", "archiver", "speed", "serving", "alerts")),
    Fault("kill the supervisor", "kill", kill_supervisor, cost_s=60, weight=0.5),
    *(Fault(f"kill {one} and {other}", "pair", partial(kill, (one, other)), cost_s=max(COST_S[one], COST_S[other]) + 3,
            of=(one, other))
      for one, other in combinations(SERVICES, 2)),
    Fault("kill everything at once", "pair", kill_all, cost_s=40),
    *(Fault(f"{each} stands still for {seconds} s", "pause", partial(stand_still, each), lasting_s=seconds,
            cost_s=seconds + 5, of=(each,))
      for each in SERVICES for seconds in (2, 8)),
]  # fmt: skip
