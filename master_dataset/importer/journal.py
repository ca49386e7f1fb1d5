"""Remember how far each file was imported, so that an interrupted import continues where it stopped.

The journal is written only after the broker acknowledged everything before the position. So it may be behind what is
in Kafka, and lines after it are then sent again, with the same ids; it is never ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from infra.home import read_json, write_json
from infra.lease import LeaseHeld, PosixLeases
from master_dataset.importer.errors import ImportRunning
from master_dataset.importer.formats import ImportFormat, Options
from master_dataset.importer.inputs import Input, begins_with
from master_dataset.importer.tally import Tally

VERSION = 1
LEASE_TTL_S = 60.0


@dataclass(frozen=True)
class ImportProgress:
    """How far one import is. Offsets are in the uncompressed bytes.

    Everything before `position` is acknowledged. `digest` is the hash of the first `hashed_bytes`, at least as many:
    it tells whether the file is still the one that was read.
    """

    file: str
    source: str
    size: int
    mtime_ns: int
    position: int
    line: int
    hashed_bytes: int
    digest: str
    is_finished: bool
    tally: Tally


class ImportJournal:
    """The entry of one file, under one set of options, into one source."""

    def __init__(self, folder: Path, found: Input, source: str, format_: ImportFormat, options: Options) -> None:
        identity = (str(found.path), source, format_, options.timezone, options.delimiter, options.origin)
        self._path = folder / f"{blake2b(repr(identity).encode(), digest_size=12).hexdigest()}.json"

    def read(self) -> ImportProgress | None:
        """The entry, or None where there is none that this version can read."""
        values = read_json(self._path)
        if not isinstance(values, dict) or values.pop("version", None) != VERSION:
            return None
        try:
            return ImportProgress(**{**values, "tally": Tally.from_json(values["tally"])})
        except (KeyError, TypeError):
            return None

    def write(self, entry: ImportProgress) -> None:
        """Replace the entry, whole, also if the machine stops meanwhile."""
        write_json(self._path, {"version": VERSION, **asdict(entry)})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody else import this file meanwhile. The lock ends with the process, however that ends."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        leases = PosixLeases(self._path.parent)
        try:
            lease = leases.acquire(self._path.stem, LEASE_TTL_S, doing="import")
        except LeaseHeld as held:
            raise ImportRunning(
                f"Another process is importing this file into this source: {held.holder or 'it is just starting'}. "
                "Wait for it; importing again is harmless."
            ) from None
        try:
            yield
        finally:
            leases.release(lease)


@dataclass(frozen=True)
class Start:
    """Where to begin: at the beginning, after `entry`, or not at all because everything is done."""

    entry: ImportProgress | None = None
    is_done: bool = False
    note: str = ""


def find_start(entry: ImportProgress | None, found: Input, *, again: bool) -> Start:
    """Compare the journal with the file as it is now. Reads it, unless size and time are those of a finished one."""
    if entry is None:
        return Start()
    if again:
        return Start(note="imported again from the beginning, as asked")
    if entry.is_finished and (entry.size, entry.mtime_ns) == (found.size, found.mtime_ns):
        return Start(entry, is_done=True, note="already imported; --again sends it once more")
    is_same, has_more = begins_with(found, entry.hashed_bytes, entry.digest)
    if not is_same:
        return Start(note="changed since it was last imported: from the beginning")
    if entry.is_finished and not has_more:
        return Start(entry, is_done=True, note="already imported; --again sends it once more")
    what = "grew since it was imported" if entry.is_finished else "was interrupted"
    return Start(entry, note=f"{what}: continues after line {entry.line}")
