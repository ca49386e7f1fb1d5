"""The home folder: everything of one installation, and the lock that lets one supervisor at a time use it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from infra.errors import HomeError, HomeInUse
from infra.lease import LeaseHeld, PosixLeases, parse_holder
from infra.locks import holder_of_lock
from infra.version import VERSION

LEASE_TTL_S = 60.0
LOCK_CHECK_S = 0.3
"""A check whether a home is locked holds the lock for a moment; a supervisor waits this long for that to pass."""
LAYOUT = 2
"""Number of the folder's layout; it grows when an older Tidemark could no longer read the folder.

1: Tidemark 0.1.0. 2: the publish log as objects, the ledger in segments.
"""


class Home:
    """Paths inside one home folder. Making the object touches nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        self.run = root / "run"
        self.kafka = root / "kafka"
        self.redis = root / "redis"
        self.spark = root / "spark"
        self.secrets = root / "secrets"
        self.status_file = root / "run" / "status.json"
        self.ports_file = root / "ports.json"
        self.redis_secret = root / "secrets" / "redis"
        self.kafka_secret = root / "secrets" / "kafka"
        self.restore_file = root / "restore.json"
        self._marker = root / "home.json"
        self._lock = root / "run" / "supervisor.lock"

    def log_file(self, service: str) -> Path:
        """Where a service's output goes."""
        return self.logs / f"{service}.log"

    @property
    def exists(self) -> bool:
        """Whether this folder was ever made a home."""
        return self._marker.is_file()

    def check(self) -> None:
        """Raise HomeError unless the folder is absent, empty, or a home that this version understands."""
        if "," in str(self.root):
            raise HomeError(f"TIDEMARK_HOME is {str(self.root)!r}; Kafka cannot use a folder with a comma in its name.")
        if self.root.exists() and not self.root.is_dir():
            raise HomeError(f"TIDEMARK_HOME is {str(self.root)!r}, which is a file. Name a folder.")
        if not self.exists:
            if self.root.is_dir() and any(not self._is_partial_marker(path) for path in self.root.iterdir()):
                raise HomeError(
                    f"TIDEMARK_HOME is {str(self.root)!r}, a folder with other things in it. "
                    "Name an empty folder or one that does not exist yet."
                )
            return
        marker = self._read_marker()
        if marker["layout"] > LAYOUT:
            raise HomeError(
                f"{str(self.root)!r} was last written by Tidemark {marker.get('version', '?')} with layout "
                f"{marker['layout']}; this is Tidemark {VERSION}, which knows layouts up to {LAYOUT} and would damage "
                "it. Run that version or a newer one, restore a backup from before the upgrade into another home, or "
                "name another folder with TIDEMARK_HOME."
            )

    def claim(self) -> None:
        """Record that this version writes here. Raises HomeError where it must not; a folder that is no home stays so.

        Whoever changes anything in a home calls this first, or `prepare`.
        """
        if not self.exists:
            return
        self.check()
        if self.restore_file.exists():
            restored = read_json(self.restore_file) or {}
            raise HomeError(
                f"A restore into {str(self.root)!r} was not completed. Complete it first: "
                f"`tidemark restore {restored.get('source', 'SRC')} --backup {restored.get('backup', 'N')}`."
            )
        self._record_version()

    def _read_marker(self) -> dict[str, Any]:
        marker = read_json(self._marker)
        layout = marker.get("layout") if isinstance(marker, dict) else None
        if not isinstance(layout, int) or isinstance(layout, bool) or layout < 1:
            raise HomeError(f'{str(self._marker)!r} is damaged: {marker!r}. Expected {{"layout": {LAYOUT}, ...}}.')
        return dict(marker)

    def _record_version(self) -> None:
        """Let `home.json` say that this version was the last that wrote."""
        marker = self._read_marker()
        if (marker["layout"], marker.get("version")) == (LAYOUT, VERSION):
            return
        try:
            write_json(self._marker, {**marker, "layout": LAYOUT, "version": VERSION})
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):  # else this process can write nothing here
                raise HomeError(
                    f"{str(self._marker)!r} cannot be written: {error.strerror}. It records which version of Tidemark "
                    "last wrote here, so nothing else was written."
                ) from None

    def prepare(self) -> None:
        """Make the folders, and record the version. Only this user may read them."""
        self.check()
        self.claim()
        self.make_folders()

    def make_folders(self) -> None:
        """Make the marker and the folders where they are missing."""
        try:
            # Step 1. The marker. A crash before it leaves an empty folder, or a partial marker: `check` accepts both.
            # Written last, a crash would leave folders that `check` refuses as foreign.
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.exists:
                write_json(self._marker, {"layout": LAYOUT, "version": VERSION})
            # Step 2. The folders. The next call completes what a crash left.
            for folder in (self.logs, self.run, self.kafka, self.redis, self.spark, self.secrets):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise HomeError(
                f"TIDEMARK_HOME is {str(self.root)!r}, which cannot be made or written: {error.strerror}. "
                "Name a folder where you may write."
            ) from None

    def check_disk(self, min_free_mb: int) -> None:
        """Raise HomeError where the disk is almost full: Kafka and Redis break badly without space."""
        free_mb = self.free_mb()
        if free_mb < min_free_mb:
            raise HomeError(
                f"The disk of {str(self.root)!r} has {free_mb} MB free; at least {min_free_mb} MB are required. "
                "Free some space, use a home on another disk (TIDEMARK_HOME), or lower TIDEMARK_MIN_FREE_DISK_MB."
            )

    def free_mb(self) -> int:
        """Free disk at the home, or at the nearest folder above it that exists."""
        folder = next(path for path in (self.root, *self.root.parents) if path.is_dir())
        return shutil.disk_usage(folder).free // 2**20

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold this home. The lock ends with the process, however that ends."""
        leases = PosixLeases(self.run)
        try:
            lease = leases.acquire("supervisor", LEASE_TTL_S, doing="tidemark up", wait_s=LOCK_CHECK_S)
        except LeaseHeld as held:
            raise HomeInUse(
                f"{str(self.root)!r} is in use by {held.holder or 'process unknown'}. "
                "`tidemark status` shows it, `tidemark down` stops it; TIDEMARK_HOME names another home."
            ) from None
        try:
            yield
        finally:
            leases.release(lease)

    def is_locked(self) -> bool:
        """Whether a supervisor holds this home now."""
        return holder_of_lock(self._lock) is not None

    def holder(self) -> int | None:
        """The process id of the supervisor that holds this home now."""
        text = holder_of_lock(self._lock) or ""
        if text.isdecimal():  # a supervisor of Tidemark 0.1
            return int(text)
        found = parse_holder(text)
        return None if found is None else found.pid_here

    def _is_partial_marker(self, path: Path) -> bool:
        return path.name.startswith(self._marker.name) and path.name.endswith(".partial")


def write_json(path: Path, value: Any, mode: int = 0o666) -> None:
    """Write so that a reader sees the old file or the new one, whole, also after a crash.

    A file for its user alone is made with `mode` 0o600 (narrowing the umask instead would narrow it for every thread).
    """
    with replacing(path, mode) as file:
        json.dump(value, file, indent=1)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[TextIO]:
    """A new file that takes the place of `path` when its `with` block ends, once it is on the disk."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_json(path: Path) -> Any:
    """The content, or None where there is no file or no JSON in it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
