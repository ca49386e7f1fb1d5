"""Backups in a folder: the chunks of files by their hash, and a manifest for each backup, written last.

tidemark-backup.json      says that the folder holds backups
chunks/ab/<sha256>        up to 16 MB of a file; what several backups or files share is stored once
backups/00000007.json     the manifest of backup 7: each file with its chunks
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infra.errors import InfraError
from infra.home import LAYOUT
from infra.store import ObjectMissing, PosixStore
from infra.version import VERSION

FORMAT = 1
MARKER = "tidemark-backup.json"
CHUNK_BYTES = 16 * 2**20
PRIVATE = 0o600


class BackupError(InfraError):
    """A backup could not be made or read."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a backup. `name` is like `master/web/part-0.parquet`; its time says whether it must be read again."""

    name: str
    size: int
    modified_ns: int
    chunks: tuple[str, ...]


@dataclass(frozen=True)
class BackupManifest:
    """One backup. `sources` says what it holds of each source: run, cut, and how far the master dataset goes."""

    number: int
    id: str
    at: float
    sources: dict[str, dict[str, Any]]
    files: tuple[StoredFile, ...]
    version: str = VERSION
    layout: int = LAYOUT

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(file.size for file in self.files)


class BackupFolder:
    """The folder with backups. Making the object touches nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._store = PosixStore(root, mode=PRIVATE)

    def prepare(self) -> None:
        """Make the folder one for backups. BackupError where it holds other things."""
        if self.root.is_dir() and any(self.root.iterdir()) and not self._store.exists(MARKER):
            raise BackupError(
                f"{str(self.root)!r} is a folder with other things in it. Name an empty folder, one that does not "
                "exist yet, or one with backups."
            )
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store.put_if_absent(MARKER, json.dumps({"format": FORMAT}).encode())
        self.check()
        self._store.sweep()

    def check(self) -> None:
        """Raise BackupError unless this is a folder with backups that this version can read."""
        try:
            found = json.loads(self._store.get(MARKER))
        except (ObjectMissing, ValueError):
            raise BackupError(f"{str(self.root)!r} holds no backups of Tidemark.") from None
        if found.get("format") != FORMAT:
            raise BackupError(
                f"The backups in {str(self.root)!r} have format {found.get('format')}; this is Tidemark {VERSION}, "
                f"which knows {FORMAT}. Use the version that wrote them."
            )

    # ---- manifests ----

    def numbers(self) -> list[int]:
        """The backups there are."""
        names = (Path(name).stem for name in self._store.list("backups/"))
        return sorted(int(name) for name in names if name.isdecimal())

    def read(self, number: int) -> BackupManifest:
        """The manifest of a backup, or a BackupError that says what is wrong."""
        known = ", ".join(map(str, self.numbers()[-10:])) or "none"
        try:
            text, _, digest = self._store.get(_name(number)).rpartition(b"\n")
        except ObjectMissing:
            raise BackupError(f"There is no backup {number} in {str(self.root)!r}. There are: {known}.") from None
        if hashlib.sha256(text).hexdigest().encode() != digest:
            raise BackupError(
                f"The manifest of backup {number} in {str(self.root)!r} is damaged: its checksum is wrong. "
                f"Name another with --backup. There are: {known}."
            )
        value = json.loads(text)
        files = tuple(StoredFile(each[0], each[1], each[2], tuple(each[3])) for each in value.pop("files"))
        return BackupManifest(**value, files=files)

    def write(self, sources: dict[str, dict[str, Any]], files: tuple[StoredFile, ...]) -> BackupManifest:
        """Write the manifest of a new backup: from now on there is that backup. All its chunks are stored before."""
        number = max(self.numbers(), default=0) + 1
        made = BackupManifest(number, secrets.token_hex(16), time.time(), sources, files)
        listed = [[file.name, file.size, file.modified_ns, file.chunks] for file in files]
        text = json.dumps({**asdict(made), "files": listed}).encode()
        if not self._store.put_if_absent(_name(number), text + b"\n" + hashlib.sha256(text).hexdigest().encode()):
            raise BackupError(f"Backup {number} in {str(self.root)!r} was made by another process. Try again.")
        return made

    # ---- chunks ----

    def put_chunk(self, data: bytes) -> tuple[str, bool]:
        """Store a chunk. Its hash, and whether it is new."""
        digest = hashlib.sha256(data).hexdigest()
        return digest, self._store.put_if_absent(_chunk(digest), data)

    def has_chunk(self, digest: str) -> bool:
        """Whether a chunk is there."""
        return self._store.exists(_chunk(digest))

    def read_chunk(self, digest: str) -> bytes:
        """The content of a chunk, or a BackupError where it is gone or not what was stored."""
        try:
            data = self._store.get(_chunk(digest))
        except ObjectMissing:
            raise BackupError(f"{str(self.root / _chunk(digest))!r} is gone, so the backup is not whole.") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise BackupError(f"{str(self.root / _chunk(digest))!r} is damaged: its checksum is wrong.")
        return data

    # ---- old backups ----

    def prune(self, keep: int) -> list[int]:
        """Remove all but the newest backups, and the chunks that no other needs. The caller holds the lease."""
        numbers = self.numbers()
        old, kept = numbers[:-keep], numbers[-keep:]
        if not old:
            return []
        # Read first: where one that stays is damaged, it is not known which chunks it needs, so nothing goes.
        needed = {chunk for number in kept for file in self.read(number).files for chunk in file.chunks}
        for number in old:
            self._store.delete(_name(number))
        for name in [*self._store.list("chunks/")]:
            if name.rpartition("/")[2] not in needed:
                self._store.delete(name)
        return old


@dataclass
class BackupWriter:
    """Collects the files of one backup. A file that did not change since the backup before is not read again."""

    folder: BackupFolder
    before: BackupManifest | None
    files: dict[str, StoredFile] = field(default_factory=dict)
    new_bytes: int = 0

    def __post_init__(self) -> None:
        self._known = {} if self.before is None else {file.name: file for file in self.before.files}

    def add(self, name: str, path: Path, *, never_changes: bool = False) -> None:
        """Store a file. FileNotFoundError where it is gone."""
        status = path.stat()
        known = self._known.get(name) if never_changes else None
        is_same = known is not None and (known.size, known.modified_ns) == (status.st_size, status.st_mtime_ns)
        if known is not None and is_same and all(map(self.folder.has_chunk, known.chunks)):
            self.files[name] = known
            return
        chunks, size = [], 0
        for data in _read_chunks(path):
            digest, is_new = self.folder.put_chunk(data)
            chunks.append(digest)
            size += len(data)
            self.new_bytes += len(data) * is_new
        self.files[name] = self._known[name] = StoredFile(name, size, status.st_mtime_ns, tuple(chunks))

    def take_over(self, name: str) -> bool:
        """Keep a file as the backup before has it; False where that has none."""
        known = self._known.get(name)
        if known is None or not all(map(self.folder.has_chunk, known.chunks)):
            return False
        self.files[name] = known
        return True

    def forget(self, prefix: str) -> None:
        """Leave out what was collected below a folder: it changed meanwhile and is collected again."""
        self.files = {name: file for name, file in self.files.items() if not name.startswith(prefix)}


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield data


def _name(number: int) -> str:
    return f"backups/{number:08}.json"


def _chunk(digest: str) -> str:
    return f"chunks/{digest[:2]}/{digest}"
