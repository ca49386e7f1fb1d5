"""Leases: one process at a time does a piece of work, and others can see who, where and since when.

A lease only saves work. Where two processes hold one at once, because a machine slept for example, the commit point of
their work decides (`Store.put_if_absent`): answers never depend on a lease. The fencing number grows with every holder;
it is for people, logs, and receivers that can compare it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from infra.disk import make_folder, replace_file
from infra.errors import InfraError
from infra.failpoints import reach
from infra.locks import POLL_S, try_lock
from infra.store import check_name
from infra.times import readable_utc


@dataclass(frozen=True)
class Holder:
    """Who holds a lease."""

    holder: str
    """The process, like `process 4711`."""
    host: str
    number: int
    """The fencing number: greater than that of every holder before."""
    since: float
    """Seconds since 1970, by the holder's clock."""
    doing: str = ""
    processes: str = ""
    """Names the process ids that the holder's is one of: those of this start of this machine, or of a container."""

    def __str__(self) -> str:
        doing = f" ({self.doing})" if self.doing else ""
        return f"{self.holder} on {self.host}{doing} since {readable_utc(self.since)}"

    @property
    def pid_here(self) -> int | None:
        """The holder's process id, where it runs on this host."""
        word, _, number = self.holder.partition(" ")
        # A machine may get another name while it runs.
        is_here = self.processes == own_processes() if self.processes else self.host == socket.gethostname()
        return int(number) if is_here and word == "process" and number.isdecimal() else None


@cache
def own_processes() -> str:
    """The name of the process ids that this process sees; empty where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


@dataclass(frozen=True)
class Lease(Holder):
    """A lease that this process holds."""

    name: str = ""
    ttl_s: float = 0.0


class LeaseHeld(InfraError):
    """Another process holds the lease; `holder` is None where it has not said yet who it is."""

    exit_code = 75

    def __init__(self, name: str, holder: Holder | None) -> None:
        super().__init__(f"The lease {name!r} is held by {holder or 'another process'}. Try again when that has ended.")
        self.name = name
        self.holder = holder


class LeaseLost(InfraError):
    """This process does not hold the lease any more: whoever works under it must stop."""

    exit_code = 75

    def __init__(self, lease: Lease) -> None:
        super().__init__(
            f"The lease {lease.name!r} with number {lease.number} is lost. Another process may hold it now."
        )
        self.lease = lease


class Leases(Protocol):
    """Where leases are taken."""

    def acquire(self, name: str, ttl_s: float, *, doing: str = "", wait_s: float = 0.0) -> Lease:
        """Take a lease, or raise LeaseHeld when it is not free within `wait_s`.

        Unless it is renewed within `ttl_s`, others may take it; a holder on this machine that has ended frees it at
        once.
        """

    def renew(self, lease: Lease) -> None:
        """Keep a lease for another `ttl_s`, or raise LeaseLost."""

    def release(self, lease: Lease) -> None:
        """Give a lease back. One that is lost, or released already, is no error."""

    def holder(self, name: str) -> Holder | None:
        """Who holds a lease now, for people who look on. It never takes the lease, not even for a moment."""


@contextmanager
def held(leases: Leases, name: str, ttl_s: float, *, doing: str = "", wait_s: float = 0.0) -> Iterator[Lease]:
    """Hold a lease while the context lasts, or raise LeaseHeld."""
    lease = leases.acquire(name, ttl_s, doing=doing, wait_s=wait_s)
    try:
        yield lease
    finally:
        leases.release(lease)


class PosixLeases:
    """Leases as locked files in a folder: the system frees a lease when its process ends, however that ends.

    They need no renewal, so `ttl_s` has no effect. `<name>.lock` is locked, and says who holds it; `<name>.number` has
    the last fencing number.
    """

    def __init__(self, folder: Path) -> None:
        """Making it touches nothing; the folder is made by the first lease."""
        self.folder = folder
        self._descriptors: dict[Lease, int] = {}
        """Not as file objects: those are closed, and their locks with them, when nobody refers to them any more."""

    def acquire(self, name: str, ttl_s: float, *, doing: str = "", wait_s: float = 0.0) -> Lease:
        """Take a lease, or raise LeaseHeld."""
        if ttl_s <= 0:
            raise ValueError(f"A lease of {ttl_s} seconds is none: use a number above 0.")
        path = self._lock_file(name)
        if not path.parent.is_dir():
            make_folder(path.parent)
        descriptor = self._lock(path, wait_s)
        if descriptor is None:
            raise LeaseHeld(name, _read_holder(path))
        try:
            # Step 1. The number, on the disk before anybody sees it. A crash leaves a number that nobody had.
            number = max(_read_number(path.with_suffix(".number")), _number_in(path)) + 1
            replace_file(path.with_suffix(".number"), f"{number}\n")
            reach("lease.after_number")
            # Step 2. Who holds it, for people. A crash within leaves a free lease whose file says nothing.
            holder = f"process {os.getpid()}"
            lease = Lease(
                holder, socket.gethostname(), number, time.time(), doing, own_processes(), name=name, ttl_s=ttl_s
            )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _to_json(lease).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptors[lease] = descriptor
        return lease

    def renew(self, lease: Lease) -> None:
        """Raise LeaseLost where the lease was released, or somebody removed or replaced its file."""
        descriptor = self._descriptors.get(lease)
        if descriptor is None or not _is_at(descriptor, self._lock_file(lease.name)):
            raise LeaseLost(lease)

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        descriptor = self._descriptors.pop(lease, None)
        if descriptor is not None:
            os.close(descriptor)

    def holder(self, name: str) -> Holder | None:
        """Who holds a lease now. None also where the system does not tell who holds a file."""
        path = self._lock_file(name)
        try:
            status = path.stat()
            held_files = Path("/proc/locks").read_text(encoding="ascii")
        except OSError:
            return None
        return _read_holder(path) if f":{status.st_ino} " in held_files else None

    def _lock_file(self, name: str) -> Path:
        return self.folder / f"{check_name(name)}.lock"

    @staticmethod
    def _lock(path: Path, wait_s: float) -> int | None:
        """The open file, locked; None where it was not free in time."""
        deadline = time.monotonic() + wait_s
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            is_ours = try_lock(descriptor)
            if is_ours and _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)
            if is_ours:  # the file was removed between open and lock: it would exclude nobody
                continue
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_S)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _to_json(lease: Lease) -> str:
    value = asdict(lease)
    return json.dumps({"pid": os.getpid(), **{key: value[key] for key in value if key not in ("name", "ttl_s")}})


def _read_holder(path: Path) -> Holder | None:
    try:
        return parse_holder(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def parse_holder(text: str) -> Holder | None:
    """What a lock file says; None where it says nothing that can be read. Files of Tidemark 0.1 have no host."""
    try:
        value = json.loads(text)
        holder = value.get("holder") or f"process {value['pid']}"
        host, number = value.get("host", "this host"), int(value.get("number", 0))
        doing, processes = str(value.get("doing", "")), str(value.get("processes", ""))
        found = Holder(str(holder), str(host), number, float(value["since"]), doing, processes)
        readable_utc(found.since)  # raises where it is no time
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return found


def _number_in(path: Path) -> int:
    holder = _read_holder(path)
    return 0 if holder is None else holder.number


def _read_number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
