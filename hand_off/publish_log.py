"""The publish log: which runs readers may see, in order. Appending to it is the commit point of a run.

One line for each run, append only, never rewritten. Run numbers grow and cuts never go back, which `append` holds by
itself: no lease and no clock is needed for it. A rollback changes nothing here: it pins readers to an older run of the
log (`serve`), and later runs are published all the same. A run that is published with `unpin` frees the readers by
the same line that publishes it, so there is no moment between the two; `tidemark batch run` does so unless told not to.

Readers need no lock and no JVM.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Any

from hand_off.batch_folder import BatchFolder
from hand_off.checksums import seal, unseal
from hand_off.errors import BatchError, RunRefused
from infra.disk import make_folder, replace_file, sync_folder
from infra.failpoints import reach
from infra.locks import lock
from master_dataset.cut import Cut, cut_from_json, cut_to_json, is_below

FORMAT = 1
MANIFEST_FILE = re.compile(r"(\d{8,})\.json")


@dataclass(frozen=True)
class Entry:
    """One run of the log: it holds every event below `cut`, for each view of `catalog` (name -> definition hash)."""

    run: int
    cut: Cut
    catalog: dict[str, str]
    at: float = 0.0
    """When it was published, in seconds since 1970."""
    unpin: bool = field(default=False, kw_only=True)
    """Whether it ended a rollback that was in force."""


GENESIS = Entry(0, {}, {})
"""What a log begins with where nobody said otherwise: no events, no views."""


# ---- reading -----------------------------------------------------------------


def read(folder: BatchFolder) -> list[Entry]:
    """Every entry, in order, with at least genesis. A BatchError names a line that is damaged."""
    try:
        with folder.publish_log.open("rb") as file:
            entries, _end = _parse(file, folder)
            # A line is an entry only when it is on the disk. Its writer may have been killed before it saw to that,
            # and what we tell others of it (Redis, say) would outlive it.
            os.fsync(file.fileno())
    except FileNotFoundError:
        return [GENESIS]
    return entries


def last(folder: BatchFolder) -> Entry:
    """The newest entry."""
    return read(folder)[-1]


def find(folder: BatchFolder, run: int) -> Entry:
    """The entry of a run, or a BatchError that names the runs there are."""
    entries = read(folder)
    for entry in entries:
        if entry.run == run:
            return entry
    numbers = ", ".join(str(entry.run) for entry in entries[1:]) or "none yet"
    raise BatchError(f"Source {folder.source!r} has no run {run} in its publish log. There are: {numbers}.")


def pinned(folder: BatchFolder) -> Entry | None:
    """The older run that readers are to serve, if somebody rolled back to it and nothing ended that."""
    return _pinned(folder, read(folder))


def served(folder: BatchFolder) -> Entry:
    """The run that readers are to serve: the pinned one, else the newest."""
    entries = read(folder)
    return _pinned(folder, entries) or entries[-1]


def _pinned(folder: BatchFolder, entries: list[Entry]) -> Entry | None:
    try:
        text = folder.serving.read_bytes()
    except FileNotFoundError:
        return None
    value = unseal(text)
    if value is None or value.get("format") != FORMAT:
        # Not taken for "not pinned": that would serve the very run that somebody rolled back from.
        raise BatchError(
            f"{str(folder.serving)!r} is damaged, so it is not known which run to serve. "
            "Say so with `tidemark batch rollback RUN`, or `tidemark batch rollback --latest`."
        )
    if any(entry.unpin for entry in entries if entry.run > value["after"]):
        return None
    return next((entry for entry in entries if entry.run == value["run"]), None)


# ---- writing -----------------------------------------------------------------


def begin(folder: BatchFolder, catalog: dict[str, str], at: float) -> Entry:
    """Write genesis with the views that are kept from the beginning, unless the log has begun. Returns its genesis."""
    with log_lock(folder) as file:
        entries, end = _parse(file, folder)
        if end:
            return entries[0]
        genesis = Entry(0, {}, catalog, at)
        _write(file, 0, genesis)
        return genesis


def append(folder: BatchFolder, entry: Entry, *, unpin: bool = False) -> Entry:
    """Publish a run, durably, or raise RunRefused: only after every run of the log, at no smaller cut.

    With `unpin`, readers that were pinned to an older run are free from this very line on. Returns the entry.
    """
    entry = replace(entry, unpin=unpin)
    with log_lock(folder) as file:
        entries, end = _parse(file, folder)
        newest = entries[-1]
        if entry.run <= newest.run or not is_below(newest.cut, entry.cut):
            raise RunRefused(entry.run, entry.cut, newest.run, newest.cut)
        if not end:  # by a write of its own: a torn write may tear only the last line
            end = _write(file, 0, GENESIS)
        _write(file, end, entry)
    return entry


def serve(folder: BatchFolder, run: int | None) -> Entry:
    """Pin readers to a run of the log, or with None to whatever is the newest. Returns what is served now."""
    with log_lock(folder) as file:
        entries, _end = _parse(file, folder)
        if run is None:
            folder.serving.unlink(missing_ok=True)
            reach("rollback.after_unpin")
            sync_folder(folder.root)
            return entries[-1]
        entry = next((entry for entry in entries if entry.run == run), None)
        # Pruning removes manifests while it holds this lock: a manifest that is here now stays for as long as the pin.
        if entry is None or not folder.manifest(run).is_file():
            raise BatchError(
                f"Source {folder.source!r} cannot serve run {run}: "
                f"{'it was never published' if entry is None else 'its data was pruned'}. "
                f"`tidemark batch list --source {folder.source}` shows the runs there are."
            )
        value = {"format": FORMAT, "run": run, "after": entries[-1].run}
        reach("rollback.before_pin")
        replace_file(folder.serving, seal(value, indent=1))
        return entry


def next_run(folder: BatchFolder) -> int:
    """A run number that was never given out before; that is on the disk before it is returned.

    Where the counter was lost or damaged, it goes on after the newest run that the log or a manifest knows.
    """
    with log_lock(folder) as file:
        entries, _end = _parse(file, folder)
        number = max(_counted(folder), entries[-1].run, _newest_manifest(folder)) + 1
        replace_file(folder.counter, seal({"run": number}))
        return number


def _counted(folder: BatchFolder) -> int:
    try:
        value = unseal(folder.counter.read_bytes())
    except FileNotFoundError:
        return 0
    return int(value["run"]) if value else 0


def _newest_manifest(folder: BatchFolder) -> int:
    if not folder.runs.is_dir():
        return 0
    found = (MANIFEST_FILE.fullmatch(path.name) for path in folder.runs.iterdir())
    return max((int(name[1]) for name in found if name), default=0)


@contextmanager
def log_lock(folder: BatchFolder) -> Iterator[IO[bytes]]:
    """Hold the log, waiting for its turn, for the moment that a change to what readers see takes. Gives the file."""
    if not folder.publish_log.is_file():
        make_folder(folder.root)
        folder.publish_log.touch()
    with folder.publish_log.open("r+b", buffering=0) as file:
        lock(file)
        if os.fstat(file.fileno()).st_size == 0:
            sync_folder(folder.root)  # the name before the first line, else a crash could take both
        yield file


def _write(file: IO[bytes], end: int, entry: Entry) -> int:
    """Put a line at `end`, where the good lines end. Returns the new end."""
    # Step 1. Cut off what an earlier writer left of a line. A crash after it leaves a log of good lines.
    file.truncate(end)
    # Step 2. The line. A crash within leaves a torn line, which is no entry.
    line = f"{seal(_to_json(entry))}\n".encode()
    file.seek(end)
    try:
        reach("publish_log.before_line")
        written = 0
        while written < len(line):
            written += file.write(line[written:])
        # Step 3. On the disk: from here on the run is published.
        reach("publish_log.before_sync")
        os.fsync(file.fileno())
    except OSError:  # a full disk, say: what we report as failed must not be published after all
        file.truncate(end)
        raise
    return end + len(line)


def _parse(file: IO[bytes], folder: BatchFolder) -> tuple[list[Entry], int]:
    """The entries, and where the last good line ends. What a crash left of a last line is no entry."""
    file.seek(0)
    *lines, rest = file.read().split(b"\n")  # `rest` has no newline: it is torn, or nothing
    entries: list[Entry] = []
    end = 0
    for number, line in enumerate(lines, start=1):
        value = unseal(line)
        if value is None:
            if number == len(lines) and not rest:
                break
            raise BatchError(
                f"Line {number} of {str(folder.publish_log)!r} is damaged: its checksum is wrong. "
                "Restore the file from a copy; nothing is published until then."
            )
        if value.get("format") != FORMAT:
            raise BatchError(
                f"Line {number} of {str(folder.publish_log)!r} has format {value.get('format')}; this version of "
                f"Tidemark knows {FORMAT}. Use the version that wrote it."
            )
        entries.append(_from_json(value))
        end += len(line) + 1
    return entries or [GENESIS], end


def _to_json(entry: Entry) -> dict[str, Any]:
    value = {
        "format": FORMAT,
        "run": entry.run,
        "cut": cut_to_json(entry.cut),
        "catalog": entry.catalog,
        "at": entry.at,
    }
    return {**value, "unpin": True} if entry.unpin else value


def _from_json(value: dict[str, Any]) -> Entry:
    return Entry(
        run=value["run"],
        cut=cut_from_json(value["cut"]),
        catalog=dict(value["catalog"]),
        at=value["at"],
        unpin=value.get("unpin", False),
    )
