"""The batch side: the run of a source that readers are to see, opened; switched to a new one without a pause.

The publish log says which run that is. A query holds a run while it reads it. When another one is published, it is
opened beside, one assignment switches to it, and the files of the old one are closed when its last query has ended.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import lmdb
import structlog

from batch_layer.consistency import quarantine
from batch_layer.consistency.quarantine import Consistency
from batch_layer.index import Index, Tile, open_index
from batch_layer.index.layout import DAY_S, Stretch
from batch_layer.index.sums import Sums
from hand_off import definitions, publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from hand_off.manifests import Manifest, read_manifest
from hand_off.publish_log import Entry
from infra.disk import file_stamp
from infra.failpoints import reach
from infra.settings import Settings
from master_dataset.cut import cut_to_json
from serving_layer.errors import NoBatchView, NotComputedYet, UnknownView
from serving_layer.query.key_selection import KeySelection
from serving_layer.query.model import Period
from views.errors import StateError
from views.source import Source
from views.view import View

TRIES = 3
KEPT_SUMS, KEPT_NUMBERS = 16, 100_000
"""Rankings of so many periods are kept, of up to so many keys: 16 bytes for each key."""
log = structlog.get_logger()


@dataclass(frozen=True)
class _Opened:
    """The index of a view, and its days."""

    index: Index
    days: list[int]


class OpenRun:
    """A published run, opened to be read: `with batch_side.current() as run`. Views are opened when they are asked for.

    Threads share it. Everything that goes wrong is a NoBatchView, or says that there is no such view.
    """

    def __init__(self, folder: BatchFolder, source: Source, entry: Entry, declared: Mapping[str, View]) -> None:
        self.entry = entry
        self.run, self.cut, self.catalog, self.published = entry.run, entry.cut, entry.catalog, entry.at
        self._folder, self.source, self._declared = folder, source, declared
        self._manifest: Manifest | None = read_manifest(folder, entry.run) if entry.run else None
        self._views: dict[str, View] = {}
        self._opened: dict[str, _Opened] = {}
        self._sums: dict[tuple[str, str, Period], Sums] = {}
        self._lock = threading.Lock()
        self._users, self._is_retired = 0, False

    # ---- held and let go ----

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
        """One more query reads it; it ends with the block. Only of a run that is not retired."""
        with self._lock:
            self._users += 1
        return self

    def retire(self) -> None:
        """Nobody begins to read it any more: its files are closed as soon as nobody does."""
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
        """The view as this run computed it: an older version of it, where it was changed since."""
        found = self._views.get(name)
        if found is None:
            found = self._views[name] = self._find(name)
        return found

    def _find(self, name: str) -> View:
        declared, kept = self._declared.get(name), self.catalog.get(name)
        if kept is None and declared is None:
            raise UnknownView(f"There is no view {name!r}.")
        if kept is None:
            raise NotComputedYet(
                f"View {name!r} is declared, and no published run of source {self.source.name!r} has it yet: it joins "
                f"at the next batch run. `tidemark batch run --source {self.source.name}` makes one now."
            )
        if declared is not None and declared.hash == kept:
            return declared
        try:
            return definitions.restore(self._folder, kept, self.source)
        except BatchError as error:
            raise NoBatchView(f"View {name!r} of run {self.run}: {error}") from None

    def index(self, name: str) -> Index:
        """The states of a view; those of the run that everything begins with are none."""
        return self._open(name).index

    def has_days(self, name: str, ranges: Iterable[Period]) -> bool:
        """Whether it has any day of a view in these ranges."""
        days = self._open(name).days
        return any(
            (place := bisect_left(days, start - start % DAY_S)) < len(days) and days[place] < end
            for start, end in ranges
        )

    def open_like(self, other: OpenRun) -> None:
        """Open the views that another run has open, before anybody waits for them: each new file is read whole once."""
        for name in list(other._opened):
            with suppress(NoBatchView, NotComputedYet, UnknownView):
                self._open(name)

    def sums(self, name: str, answer: str, of: Period) -> Sums | None:
        """The numbers of all keys in a period, for a ranking; None where they are no whole numbers, or too large.

        Those that were asked for lately are kept, for a run never changes.
        """
        asked = (name, answer, of)
        found = self._sums.get(asked)
        if found is None:
            found = self._open(name).index.sums(answer, *of)
            if found is not None and len(found.values) <= KEPT_NUMBERS:
                if len(self._sums) >= KEPT_SUMS:
                    self._sums.clear()
                self._sums[asked] = found
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
    index: Index, stretches: Iterable[Stretch], wanted: KeySelection, check: Callable[[], None], *, is_total: bool
) -> Iterator[Tile]:
    """The tiles of an index that a question asks for. `is_total`: all keys together are enough."""
    for level, start, end in stretches:
        if wanted.keys is not None:
            for key in wanted.keys:
                yield from index.of_key(level, key, start, end)
        elif is_total:
            yield from index.totals(level, start, end)
        else:
            yield from index.of_prefix(level, wanted.prefix, start, end, check)


class BatchViewReader:
    """The runs of one source. Threads share it."""

    def __init__(self, settings: Settings, source: Source, declared: Mapping[str, View]) -> None:
        self.folder, self._source, self._declared = BatchFolder.of(settings, source.name), source, declared
        self._current: OpenRun | None = None
        self._other: OpenRun | None = None
        """One that is not served, for those that Redis sent to it."""
        self._stamp: tuple[object, ...] = ()
        self._following = threading.Lock()
        self._lock = threading.Lock()
        self.is_pinned = False
        """Whether somebody rolled readers back to an older run."""
        self._known: tuple[tuple[int, ...] | None, Consistency | BatchError] = (None, quarantine.NOTHING)
        """What comparisons found, and how the file looked when that was read: one assignment, for threads share it."""

    def current(self) -> OpenRun:
        """The run that is served now, held; let it go by `with`. NoBatchView where there is none that can be read."""
        self._follow()
        with self._lock:
            if self._current is None:
                raise NoBatchView(f"Source {self._source.name!r} is being closed.")
            return self._current.hold()

    @property
    def served(self) -> int | None:
        """The number of the run that was served last; whether there is a newer one is not looked at."""
        current = self._current
        return None if current is None else current.run

    def load(self, run: int) -> OpenRun:
        """A certain published run, held. NoBatchView where it cannot be read."""
        with self._lock:
            for known in (self._current, self._other):
                if known is not None and known.run == run:
                    return known.hold()
        try:
            made = self._made(publish_log.find(self.folder, run))
        except BatchError as error:
            raise NoBatchView(f"Run {run} of source {self._source.name!r} cannot be read: {error}") from None
        with self._lock:
            before, self._other = self._other, made
            held = made.hold()
        if before is not None:
            before.retire()
        return held

    def goes_with(self, run: OpenRun) -> None:
        """The speed side goes with this run: if it is the one that is served, the other one is not wanted any more."""
        if self._other is None or run is not self._current:
            return
        with self._lock:
            other, self._other = self._other, None
        if other is not None:
            other.retire()

    # ---- what comparisons with the speed side found ----

    @property
    def consistency(self) -> Consistency:
        """What is known; nothing where the file cannot be read."""
        known = self._compared()
        return quarantine.NOTHING if isinstance(known, BatchError) else known

    def why_aside(self, view: View, run: int, made: str) -> str | None:
        """Why readers of a run are not to use what the speed side has of a view; None: they may.

        `made`: by what these speed views were made.
        """
        known = self._compared()
        if isinstance(known, BatchError):
            return str(known).removesuffix(".")
        mark = known.mark_of(view.hash, run, made)
        if mark is None:
            return None
        return (
            f"The speed side of view {view.name!r} is set aside, because it differed from the batch side when run "
            f"{mark.run} was compared ({mark.why}). It comes back when a comparison finds it right, at the next batch "
            "run or by `tidemark verify`, or after `tidemark speed rebuild`"
        )

    def _compared(self) -> Consistency | BatchError:
        """The file is looked at, and read only when it changed."""
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
        """Let go of everything that no query reads."""
        with self._lock:
            runs, self._current, self._other, self._stamp = (self._current, self._other), None, None, ()
        for run in runs:
            if run is not None:
                run.retire()

    # ---- following the publish log ----

    def _follow(self) -> None:
        """Go to the run that the publish log says, if it changed: the file is looked at, and read only then."""
        stamp = (file_stamp(self.folder.publish_log), file_stamp(self.folder.serving))
        if stamp == self._stamp:
            return
        # Whoever comes while another opens the new run goes on with the old one, if there is one.
        if not self._following.acquire(blocking=self._current is None):
            return
        try:
            if stamp != self._stamp:
                self._switch()
                self._stamp = stamp  # as it was before the log was read: what came since is seen next time
        finally:
            self._following.release()

    def _switch(self) -> None:
        for _ in range(TRIES):
            try:
                pinned = publish_log.pinned(self.folder)
                entry = pinned or publish_log.last(self.folder)
                self.is_pinned = pinned is not None
                if self._current is not None and self._current.entry == entry:
                    return
                made = self._made(entry)
                break
            except BatchError as error:  # perhaps it was pruned after we read the log: then the log goes on by now
                failure = str(error)
        else:
            raise NoBatchView(
                f"The batch side of source {self._source.name!r} cannot be read: {failure} "
                "No half of an answer is given meanwhile."
            ) from None
        if self._current is not None:
            made.open_like(self._current)
        reach("serving.before_switch")
        with self._lock:
            before, self._current = self._current, made
        if before is not None:
            before.retire()
        reach("serving.after_switch")
        log.info("serves", source=self._source.name, run=made.run, cut=cut_to_json(made.cut), pinned=self.is_pinned)

    def _made(self, entry: Entry) -> OpenRun:
        return OpenRun(self.folder, self._source, entry, self._declared)


@contextmanager
def read_errors(run: OpenRun) -> Iterator[None]:
    """What is damaged inside an index, as NoBatchView."""
    try:
        yield
    except (BatchError, StateError, lmdb.Error) as error:
        raise NoBatchView(
            f"Run {run.run} of source {run.source.name!r} cannot be read: {error} "
            f"`tidemark batch run --full --source {run.source.name}` makes it anew."
        ) from None
