"""The store: named objects that several processes share, each written whole or not at all.

An object is created once (`put_if_absent`) or replaced by whoever read its newest version (`replace_if`). Of any number
of writers at the same moment one wins, and the others learn that they lost. Nothing here depends on a lease, a
clock or a process id, so what is built on it stays right where two processes wrongly believe that they lead.

Objects that are only created are files with exactly the bytes that were given. Objects that are replaced end with a
line of their own, like {"nonce":"9f86..."}, which readers do not see: with it the version of an object never comes
back, also where its content does.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NewType, Protocol

from infra.disk import make_folder, sync_folder
from infra.errors import InfraError
from infra.failpoints import reach
from infra.locks import hold, lock, try_lock

Version = NewType("Version", str)
"""What an object was when it was read. Opaque: compare it, and hand it to `replace_if`."""

PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+@-]*")
MAX_PART = 200
MAX_NAME = 900
"""Object stores allow 1,024 bytes, and a store may be a part of one."""
PARTIAL = ".partial"
PREFIX_OF_PARTIAL = ".~"
LOCK = ".store.lock"
NONCE = re.compile(rb'\n\{"nonce":"([0-9a-f]{32})"\}\n')
NONCE_BYTES = len(b'\n{"nonce":""}\n') + 32


class StoreError(InfraError):
    """Base of what a store raises."""


class BadName(StoreError, ValueError):
    """A name that no object may have."""


class ObjectMissing(StoreError):
    """There is no object of this name."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(f"There is no object {name!r} in {where}.")
        self.name = name


class StoreUnsafe(StoreError):
    """The store breaks a promise that answers depend on."""


class Stored(NamedTuple):
    """An object's content and its version."""

    data: bytes
    version: Version


class Store(Protocol):
    """What every store does. A name is like `publish/00000007.json`: letters, digits and `_.=+@-` between slashes."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create an object; False, and nothing is changed, where there is one of that name.

        Either way the object of that name survives a power cut when this returns.
        """

    def replace_if(self, name: str, version: Version | None, data: bytes) -> Version | None:
        """Replace an object if its version is still the one that was read; None where it is not, or it is gone.

        With `version` None the object is created if there is none. Returns the new version.
        """

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from `start` to before `end`, fewer where the object is shorter. ObjectMissing where it is gone."""

    def read(self, name: str) -> Stored:
        """The whole object with its version. ObjectMissing where there is none."""

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name."""

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[str]:
        """The names that begin with `prefix` and are greater than `after`, in the order of their characters."""

    def delete(self, name: str) -> None:
        """Remove an object; it may be gone already."""

    def settle(self, prefix: str = "") -> None:
        """Wait until every object below a folder that was seen so far survives a power cut.

        A reader that passes on what it read needs this: the writer may have been killed before it saw to it.
        """

    def sweep(self) -> int:
        """Remove what writers left that were killed. Returns how many files that were."""


def check_name(name: str) -> str:
    """The name, or BadName. A name can never lead out of the store."""
    parts = name.split("/")
    if len(name) > MAX_NAME or not all(_is_part(part) for part in parts):
        raise BadName(
            f"{name[:200]!r} cannot be the name of an object. Use letters, digits and _.=+@- between single slashes; "
            f"no part begins with a dot, ends with {PARTIAL!r} or has more than {MAX_PART} characters."
        )
    return name


def _is_part(part: str) -> bool:
    return len(part) <= MAX_PART and PART.fullmatch(part) is not None and not part.endswith(PARTIAL)


class PosixStore:
    """Objects as files below a folder. Making it touches nothing; the folder is made by the first write."""

    def __init__(self, root: Path, *, mode: int = 0o666) -> None:
        self.root, self._folder = root, str(root)
        self._mode = mode
        self._settled: set[Path] = set()
        """Folders that were there, on the disk with all above them, when this store last looked."""

    def __repr__(self) -> str:
        return f"PosixStore({str(self.root)!r})"

    # ---- writing ----

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create an object; False where there is one."""
        is_like_replaced = NONCE.fullmatch(data[-NONCE_BYTES:]) is not None
        return self._create(name, data + _nonce_line(secrets.token_hex(16)) if is_like_replaced else data)

    def replace_if(self, name: str, version: Version | None, data: bytes) -> Version | None:
        """Replace an object if its version is the one that was read; None where that was lost."""
        nonce = secrets.token_hex(16)
        content, made = data + _nonce_line(nonce), _version(data, nonce)
        if version is None:
            return made if self._create(name, content) else None
        path = self._path(name)
        # Step 1. The new content, on the disk under a name of its own. A crash leaves that file, which is swept.
        with self._partial(path.parent, content) as partial, self._locked():
            # Step 2. Compare while no other writer can replace or delete.
            if self._version_now(name) != version:
                return None
            reach("store.before_replace")
            # Step 3. A crash before leaves the old content, after it the new one; never a mixture.
            partial.replace(path)
            reach("store.after_replace")
            sync_folder(path.parent)
        return made

    def delete(self, name: str) -> None:
        """Remove an object; it may be gone already."""
        path = self._path(name)
        if not path.parent.is_dir():
            return
        with self._locked():
            reach("store.before_delete")
            path.unlink(missing_ok=True)
            reach("store.after_delete")
            sync_folder(path.parent)

    def sweep(self) -> int:
        """Remove what writers left that were killed. A writer holds the lock of its file for as long as it lives."""
        swept = 0
        for path in self.root.rglob(f"{PREFIX_OF_PARTIAL}*{PARTIAL}"):
            with suppress(FileNotFoundError), path.open("rb") as file:
                if try_lock(file):
                    path.unlink()
                    swept += 1
        return swept

    def _create(self, name: str, content: bytes) -> bool:
        path = self._path(name)
        if path.is_file():  # not needed, but it saves a loser the work
            self._settle(path.parent)
            sync_folder(path.parent)  # who made it may have been killed before this
            return False
        # Step 1. The content, on the disk under a name of its own. A crash leaves that file, which is swept.
        with self._partial(path.parent, content) as partial:
            reach("store.before_link")
            try:
                # Step 2. The name. Unlike a rename, a link refuses one that is taken: of many, one wins.
                os.link(partial, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise StoreUnsafe(
                        f"The file system of {str(self.root)!r} has no hard links ({error.strerror}), so two processes "
                        "could both create an object. Use a folder on a local disk, ext4 or XFS for example."
                    ) from None
                raise
            finally:
                # Step 3. The name, on the disk: also the one that another writer made, who may have been killed.
                reach("store.after_link")
                sync_folder(path.parent)
        return True

    @contextmanager
    def _partial(self, folder: Path, content: bytes) -> Iterator[Path]:
        """A file of this content, on the disk, locked against `sweep` and removed in the end."""
        while True:
            self._settle(folder)
            partial = folder / f"{PREFIX_OF_PARTIAL}{secrets.token_hex(16)}{PARTIAL}"
            try:
                descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
            except FileNotFoundError:  # somebody removed the folder since we looked
                self._settled.clear()
                continue
            with os.fdopen(descriptor, "wb") as file:
                lock(file)
                if not os.fstat(descriptor).st_nlink:  # it was swept before it was locked
                    continue
                try:
                    reach("store.before_write")
                    file.write(content)
                    file.flush()
                    reach("store.before_sync")
                    os.fsync(descriptor)
                    yield partial
                finally:
                    partial.unlink(missing_ok=True)  # a rename has taken it away
                    reach("store.after_unlink")
                return

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold what serializes those who replace and delete. It ends with the process."""
        with hold(self.root / LOCK, mode=self._mode):
            yield

    # ---- reading ----

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from `start` to before `end`."""
        if start < 0 or (end is not None and end < start):
            raise ValueError(
                f"The range {start} to {end} of {name!r} is none: it begins at 0 or later, and ends after."
            )
        with self._open(name) as descriptor:
            size, _nonce = _measure(descriptor)
            return _read_range(descriptor, min(start, size), size if end is None else min(end, size))

    def read(self, name: str) -> Stored:
        """The whole object with its version."""
        with self._open(name) as descriptor:
            size, nonce = _measure(descriptor)
            data = _read_range(descriptor, 0, size)
        return Stored(data, _version(data, nonce))

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name."""
        return os.path.isfile(f"{self._folder}/{check_name(name)}")  # noqa: PTH113  asked for by each query

    def _version_now(self, name: str) -> Version | None:
        try:
            return self.read(name).version
        except ObjectMissing:
            return None

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[str]:
        """The names that begin with `prefix` and are greater than `after`, sorted."""
        folder = prefix.rpartition("/")[0]
        if folder or prefix.startswith("/"):
            check_name(folder)
        yield from self._names(f"{folder}/" if folder else "", prefix, after or "")

    def settle(self, prefix: str = "") -> None:
        """Wait until the names below a folder are on the disk, and those of the folders above it."""
        folder = self.root / check_name(prefix.rstrip("/")) if prefix else self.root
        if not folder.is_dir():
            return
        for path, _folders, _files in os.walk(folder):
            sync_folder(Path(path))
        while folder != self.root:
            folder = folder.parent
            sync_folder(folder)

    def _names(self, folder: str, prefix: str, after: str) -> Iterator[str]:
        try:
            with os.scandir(self.root / folder) as entries:
                names = sorted(f"{each.name}/" if each.is_dir() else each.name for each in entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        for each in names:
            name = f"{folder}{each}"
            if not _is_part(each.rstrip("/")):
                continue
            if not name.endswith("/"):
                if name.startswith(prefix) and name > after:
                    yield name
            elif (name.startswith(prefix) or prefix.startswith(name)) and (name > after or after.startswith(name)):
                yield from self._names(name, prefix, after)

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        try:
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing(name, repr(str(self.root))) from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    # ---- places ----

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)

    def _settle(self, folder: Path) -> None:
        """Make a folder of the store, and see that its name is on the disk, with those above up to the root's."""
        if folder in self._settled:
            return
        if folder != self.root:
            self._settle(folder.parent)
        try:
            make_folder(folder)
        except (FileExistsError, NotADirectoryError):
            raise StoreError(
                f"{str(folder)!r} is an object of the store, so it cannot be a folder of others."
            ) from None
        self._settled.add(folder)


def _nonce_line(nonce: str) -> bytes:
    return b'\n{"nonce":"%s"}\n' % nonce.encode()


def _version(data: bytes, nonce: str) -> Version:
    return Version(f"{hashlib.sha256(data).hexdigest()}.{nonce}")


def _measure(descriptor: int) -> tuple[int, str]:
    """How many bytes of the file are the object's content, and its nonce where it has one."""
    size = os.fstat(descriptor).st_size
    found = NONCE.fullmatch(os.pread(descriptor, NONCE_BYTES, size - NONCE_BYTES)) if size >= NONCE_BYTES else None
    return (size - NONCE_BYTES, found[1].decode()) if found else (size, "")


def _read_range(descriptor: int, start: int, end: int) -> bytes:
    parts = []
    while start < end:
        part = os.pread(descriptor, end - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)
