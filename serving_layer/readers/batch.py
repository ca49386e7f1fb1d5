"""Read batch views: the published run of a source, opened, and replaced by the next one without a pause.

The publish log names the run. A query holds the run while it reads it. When another run is published, it is opened
beside the old one, one assignment switches to it, and the old files are closed after their last query.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import lmdb
import structlog

from batch_layer.consistency import quarantine
from batch_layer.consistency.quarantine import Consistency
from batch_layer.index import Index, Tile, open_index
from batch_layer.index.layout import DAY_S, TileRange
from batch_layer.index.sums import Sums
from hand_off import definitions, publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from hand_off.manifests import Manifest, read_manifest
from hand_off.publish_log import Entry, LogStamp
from infra.disk import FileStamp, file_stamp
from infra.failpoints import reach
from infra.settings import Settings
from master_dataset.cut import cut_to_json
from master_dataset.table.paths import table_path
from serving_layer.errors import NoBatchView, NotComputedYet, UnknownView
from serving_layer.readers.selection import KeySelection, Period
from views.errors import StateError
from views.source import Source
from views.view import View

TRIES = 3
MAX_CACHED_SUMS, MAX_CACHED_KEYS = 16, 2_000_000
"""The numbers of so many periods are cached, of up to so many keys together: 16 bytes a key."""
MAX_CACHED_FIRST = 64
"""The first keys of so many questions are cached."""
log = structlog.get_logger()


class FirstKeys(NamedTuple):
    """The keys with the largest numbers of a period."""

    numbers: dict[bytes, int]
    """By key, the best first."""
    rest: int
    """The largest number of the others, at least 0."""
    last: bytes | None
    """A key that comes before any other key that has that number; None where that is unknown."""
    largest: int
    """The largest of all numbers without their signs."""


@dataclass(frozen=True)
class _Opened:
    index: Index
    days: list[int]


class OpenRun:
    """A published run, opened to be read: `with reader.current() as run`. Views are opened when they are first needed.

    Threads share it. Every failure is a NoBatchView, or says that there is no such view.
    """

    def __init__(
        self, folder: BatchFolder, source: Source, table: Path, entry: Entry, declared: Mapping[str, View]
    ) -> None:
        self.entry = entry
        self.run, self.cut, self.catalog, self.published = entry.run, entry.cut, entry.catalog, entry.at
        self._folder, self.source, self._table, self._declared = folder, source, table, declared
        self._manifest: Manifest | None = read_manifest(folder, entry.run) if entry.run else None
        self._views: dict[str, View] = {}
        self._opened: dict[str, _Opened] = {}
        self._sums: dict[tuple[str, str, Period], Sums] = {}
        self._first: dict[Hashable, FirstKeys] = {}
        self._long_keys: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._users, self._is_retired = 0, False

    # ---- held and released ----

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._users -= 1
            is_last = self._is_retired and not self._users
        if is_last:
            self._close()

    def hold(self) -> Self:
        """One more query reads it, until its `with` block ends. Only for a run that is not retired."""
        with self._lock:
            self._users += 1
        return self

    def retire(self) -> None:
        """No new query reads it: its files are closed after the last one."""
        with self._lock:
            self._is_retired = True
            is_last = not self._users
        if is_last:
            self._close()

    def _close(self) -> None:
        for opened in self._opened.values():
            opened.index.close()

    # ---- what it has ----

    def view(self, name: str) -> View:
        """The view as this run computed it, which is an older version where the view has changed since."""
        found = self._views.get(name)
        if found is None:
            found = self._views[name] = self._find(name)
        return found

    def _find(self, name: str) -> View:
        declared, version = self._declared.get(name), self.catalog.get(name)
        if version is None and declared is None:
            raise UnknownView(f"There is no view {name!r}.")
        if version is None:
            raise NotComputedYet(
                f"View {name!r} is declared, but no published run of source {self.source.name!r} has it yet. It joins "
                f"at the next batch run; `tidemark batch run --source {self.source.name}` starts one now."
            )
        if declared is not None and declared.hash == version:
            return declared
        try:
            return definitions.restore(self._folder, version, self.source, self._table)
        except BatchError as error:
            raise NoBatchView(f"View {name!r} of run {self.run}: {error}") from None

    def index(self, name: str) -> Index:
        """The states of a view; run 0 has none."""
        return self._open(name).index

    def since(self, name: str) -> dict[str, Any] | None:
        """From which cut and day on a view counts; None: everything."""
        return None if self._manifest is None else self._manifest.view(name).since

    def has_long_keys(self, name: str) -> bool:
        """Whether a view has keys that are stored in short form now: an older Tidemark computed it."""
        found = self._long_keys.get(name)
        if found is None:
            is_limited = self._manifest is None or self._manifest.view(name).max_key_bytes > 0
            found = self._long_keys[name] = not is_limited and self.index(name).has_long_keys()
        return found

    def has_days(self, name: str, ranges: Iterable[Period]) -> bool:
        """Whether it has a day of a view in these ranges."""
        days = self._open(name).days
        return any(
            (place := bisect_left(days, start - start % DAY_S)) < len(days) and days[place] < end
            for start, end in ranges
        )

    def data_range(self, name: str) -> tuple[int, int] | None:
        """From the first day of a view to the end of its last, in seconds since 1970; None where it has none."""
        days = self._open(name).days
        return (days[0], days[-1] + DAY_S) if days else None

    def open_like(self, other: OpenRun) -> None:
        """Open the views that another run has open, before a query waits for them: each new file is read whole once."""
        for name in list(other._opened):
            with suppress(NoBatchView, NotComputedYet, UnknownView):
                self._open(name)

    def sums(self, name: str, answer: str, of: Period) -> Sums | None:
        """The numbers of all keys in a period, for a ranking; None where they are not whole numbers, or too large.

        The latest are cached: a run never changes.
        """
        key = (name, answer, of)
        found = self._sums.get(key)
        if found is None:
            found = self._open(name).index.sums(answer, *of)
            if found is not None and len(found.values) <= MAX_CACHED_KEYS:
                self._cache_sums(key, found)
        return found

    def _cache_sums(self, key: tuple[str, str, Period], found: Sums) -> None:
        """Replaces the whole cache instead of changing it: other threads read it."""
        known = dict(self._sums)
        if (
            len(known) >= MAX_CACHED_SUMS
            or sum(len(s.values) for s in known.values()) + len(found.values) > MAX_CACHED_KEYS
        ):
            known = {}
        self._sums = {**known, key: found}

    def first_keys(self, question: Hashable, find: Callable[[], FirstKeys]) -> FirstKeys:
        """The first keys by a number, found once for each question: a run never changes."""
        found = self._first.get(question)
        if found is None:
            found = find()
            known = self._first if len(self._first) < MAX_CACHED_FIRST else {}
            self._first = {**known, question: found}
        return found

    def _open(self, name: str) -> _Opened:
        found = self._opened.get(name)
        if found is None:
            with self._lock:
                found = self._opened.get(name)
                if found is None:
                    index = self._open_index(name)
                    found = self._opened[name] = _Opened(index, sorted(index.days))
        return found

    def _open_index(self, name: str) -> Index:
        try:
            files = self._manifest.view(name).index if self._manifest else ()
            return open_index(self._folder.indexes / file for file in files)
        except BatchError as error:
            raise NoBatchView(f"Run {self.run} of source {self.source.name!r} cannot be read: {error}") from None


def tiles(
    index: Index,
    tile_ranges: Iterable[TileRange],
    selection: KeySelection,
    check: Callable[[], None],
    *,
    is_total: bool,
) -> Iterator[Tile]:
    """The tiles of an index in these ranges. `is_total`: the totals over all keys are enough."""
    for level, start, end in tile_ranges:
        if selection.keys is not None:
            for key in selection.keys:
                yield from index.of_key(level, key, start, end)
        elif is_total:
            yield from index.totals(level, start, end)
        else:
            yield from index.of_prefix(level, selection.prefix, start, end, check)


class BatchViewReader:
    """Reads the batch views of one source. Threads share it."""

    def __init__(self, settings: Settings, source: Source, declared: Mapping[str, View]) -> None:
        self.folder, self._source, self._declared = BatchFolder.of(settings, source.name), source, declared
        self._table = table_path(settings, source.name)
        self._current: OpenRun | None = None
        self._other: OpenRun | None = None
        """A run that is not served, for queries that Redis sent to it."""
        self._stamp: tuple[LogStamp | None, FileStamp | None] | None = None
        self._refreshing = threading.Lock()
        self._lock = threading.Lock()
        self.is_pinned = False
        """Whether a rollback pinned readers to an older run."""
        self._known: tuple[tuple[int, ...] | None, Consistency | BatchError] = (None, quarantine.NOTHING)
        """What comparisons found, and the stamp of the file that says so: one assignment, because threads share it."""

    def current(self) -> OpenRun:
        """The run that is served now, held until its `with` block ends. NoBatchView where none can be read."""
        self._refresh()
        with self._lock:
            if self._current is None:
                raise NoBatchView(f"Source {self._source.name!r} is being closed.")
            return self._current.hold()

    def is_served(self, entry: Entry) -> bool:
        """Whether the run of this entry is the one that was served last. The publish log is not read for this."""
        current = self._current
        return current is not None and current.entry is entry

    def hold_served(self, entry: Entry) -> OpenRun | None:
        """The run of this entry, held until its `with` block ends; None where the publish log may name another one.

        Unlike `current` it never opens a run, which takes long: an event loop may call it.
        """
        if self._stamp is None or self._stamp_now() != self._stamp:
            return None
        with self._lock:
            current = self._current
            return current.hold() if current is not None and current.entry is entry else None

    @property
    def served(self) -> int | None:
        """The number of the run that was served last. The publish log is not read for this."""
        current = self._current
        return None if current is None else current.run

    def load(self, run: int) -> OpenRun:
        """A published run by its number, held. NoBatchView where it cannot be read."""
        with self._lock:
            for known in (self._current, self._other):
                if known is not None and known.run == run:
                    return known.hold()
        try:
            opened = self._open_run(publish_log.find(self.folder, run))
        except BatchError as error:
            raise NoBatchView(f"Run {run} of source {self._source.name!r} cannot be read: {error}") from None
        with self._lock:
            before, self._other = self._other, opened
            held = opened.hold()
        if before is not None:
            before.retire()
        return held

    def release_other(self, run: OpenRun) -> None:
        """The speed view continues this run: if it is the one that is served, the other one is closed."""
        if self._other is None or run is not self._current:
            return
        with self._lock:
            other, self._other = self._other, None
        if other is not None:
            other.retire()

    # ---- what comparisons with the speed views found ----

    @property
    def consistency(self) -> Consistency:
        """What is known; nothing where the file cannot be read."""
        known = self._compared()
        return quarantine.NOTHING if isinstance(known, BatchError) else known

    def quarantine_reason(self, view: View, run: int, made: str) -> str | None:
        """Why readers of a run do not use the speed view of a view; None where they use it.

        `made`: by what these speed views were made.
        """
        known = self._compared()
        if isinstance(known, BatchError):
            return str(known).removesuffix(".")
        mark = known.quarantine_of(view.hash, run, made)
        if mark is None:
            return None
        return (
            f"The speed view of {view.name!r} is quarantined: it differed from the batch view when run {mark.run} was "
            f"compared ({mark.why}). It is used again when a comparison finds it right, at the next batch run or by "
            "`tidemark verify`, or after `tidemark speed rebuild`"
        )

    def _compared(self) -> Consistency | BatchError:
        """The file is read only when its stamp has changed."""
        stamp = file_stamp(self.folder.consistency)  # before it is read: what comes meanwhile is seen next time
        before, found = self._known
        if stamp != before:
            try:
                found = quarantine.read(self.folder)
            except BatchError as error:
                found = error
            self._known = stamp, found
        return found

    def close(self) -> None:
        """Close everything that no query reads."""
        with self._lock:
            runs, self._current, self._other, self._stamp = (self._current, self._other), None, None, None
        for run in runs:
            if run is not None:
                run.retire()

    # ---- following the publish log ----

    def _refresh(self) -> None:
        """Switch to the run that the publish log names. The log is read only when its stamp has changed."""
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        # While one thread opens the new run, the others go on with the old one, if there is one.
        if not self._refreshing.acquire(blocking=self._current is None):
            return
        try:
            if stamp != self._stamp:
                self._switch()
                self._stamp = stamp  # as it was before the log was read: what came since is seen next time
        finally:
            self._refreshing.release()

    def _stamp_now(self) -> tuple[LogStamp | None, FileStamp | None]:
        known = self._stamp
        return publish_log.stamp(self.folder, known[0] if known else None), file_stamp(self.folder.serving)

    def _switch(self) -> None:
        for _ in range(TRIES):
            try:
                pinned = publish_log.pinned(self.folder)
                entry = pinned or publish_log.last(self.folder)
                self.is_pinned = pinned is not None
                if self._current is not None and self._current.entry == entry:
                    return
                opened = self._open_run(entry)
                break
            except BatchError as error:  # it may have been pruned after the log was read: then the log has gone on
                failure = str(error)
        else:
            raise NoBatchView(
                f"The batch views of source {self._source.name!r} cannot be read: {failure} "
                "No partial answers are given meanwhile."
            ) from None
        if self._current is not None:
            opened.open_like(self._current)
        reach("serving.before_switch")
        with self._lock:
            before, self._current = self._current, opened
        if before is not None:
            before.retire()
        reach("serving.after_switch")
        log.info(
            "switched_run", source=self._source.name, run=opened.run, cut=cut_to_json(opened.cut), pinned=self.is_pinned
        )

    def _open_run(self, entry: Entry) -> OpenRun:
        return OpenRun(self.folder, self._source, self._table, entry, self._declared)


@contextmanager
def read_errors(run: OpenRun) -> Iterator[None]:
    """Turn damage inside an index into NoBatchView."""
    try:
        yield
    except (BatchError, StateError, lmdb.Error) as error:
        raise NoBatchView(
            f"Run {run.run} of source {run.source.name!r} cannot be read: {error} "
            f"`tidemark batch run --full --source {run.source.name}` rebuilds it."
        ) from None
