"""Compare the speed view with the run over the same offsets, before the run is published.

    batch view of the run before, at its cut C + generations that cover [C, C')  ==  batch view of the run, at C'

The generations before the one that the run opened are closed: nobody writes them any more, and none of them is retired
before the run is published. So they can be read bucket by bucket. The states of the run before, merged with theirs,
must be the run's states. Groups of the same buckets that they do not hold must not have changed, and neither must the
totals of all other buckets of the days that the run rewrote: a speed view that lost everything has nothing to compare.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from batch_layer.consistency import quarantine
from batch_layer.consistency.late_duplicates import LateDuplicates, Off, apart
from batch_layer.consistency.quarantine import MAX_EXAMPLES, Compared, Quarantine
from batch_layer.index import Index, Level, open_index
from batch_layer.index.layout import DAY_S
from batch_layer.parquet_files import rows_of_folders
from hand_off import publish_log
from hand_off.batch_folder import DUPLICATES, HASHES, BatchFolder
from hand_off.errors import BatchError
from hand_off.manifests import read_manifest
from hand_off.publish_log import Entry
from hand_off.speed_views import ALL_KEYS, Generation, RedisSnapshot, SpeedViews, cut_text, totals_of
from infra.settings import Settings
from master_dataset.cut import Cut
from master_dataset.table.paths import table_path
from views.equality import differing
from views.errors import StateError
from views.keys import unpack_key
from views.states import Reader
from views.view import View

log = structlog.get_logger()
NO_SPEED_VIEWS = "there are no speed views"
MAX_GROUPS_PER_DUPLICATE = 4
"""That one duplicate can make differ: its group, that of the event which counts instead, and the total of each."""


class ClosedRange(NamedTuple):
    """Closed generations, and the run at whose cut the first of them begins."""

    before: Entry
    generations: tuple[Generation, ...]
    made: str


class GroupLocation(NamedTuple):
    """A group of a view; `is_total`: that of all keys together."""

    bucket: int
    key: bytes
    is_total: bool = False


class Difference(NamedTuple):
    """How a group differs, in words, and which answers by how much; None: the speed view's state cannot be read."""

    how: str
    off: Mapping[str, tuple[Off, ...]] | None = None


class Judged(NamedTuple):
    """How many differences are legal, and how many are wrong for certain; of the others it is not known."""

    excused: int = 0
    wrong: int = 0
    why_not_all: str = ""


@dataclass
class Differences:
    """What is counted while the groups of one view are compared."""

    view: View
    groups: int = 0
    compared: int = 0
    places: dict[GroupLocation, Difference] = field(default_factory=dict)
    """The groups that differ."""

    def check(self, place: GroupLocation, said: Sequence[bytes], true: Sequence[bytes]) -> None:
        """Both are packed states, to be merged; no state is that of no events."""
        self.compared += 1
        found = _difference(self.view, said, true)
        if found is not None:
            self.places[place] = found

    def examples(self) -> tuple[str, ...]:
        """Some of them, in words."""
        return tuple(
            f"{_in_words(self.view, place)}: {found.how}" for place, found in list(self.places.items())[:MAX_EXAMPLES]
        )


@dataclass(frozen=True)
class Comparison:
    """Compares the views of a source at the end of a run."""

    settings: Settings
    folder: BatchFolder
    speed_views: SpeedViews | None

    def of_run(self, run: int, cut: Cut, views: Sequence[tuple[View, tuple[str, ...]]]) -> list[Compared]:
        """Compare, remember, and quarantined what is wrong. `views` are those of the run, each with its index.

        Nothing that goes wrong here keeps a run from being published: it is said instead that nothing was compared.
        """
        began, made = time.monotonic(), ""
        try:
            closed = self._closed_range(run, cut)
            if isinstance(closed, str) or self.speed_views is None:
                found = [
                    Compared(view.name, view.hash, 0, run, why_not=str(closed), at=time.time()) for view, _ in views
                ]
            else:
                made = closed.made
                found = [self._view(self.speed_views, view, names, run, cut, closed) for view, names in views]
                if self._closed_range(run, cut) != closed:
                    raise BatchError("the speed views changed while they were read")  # noqa: TRY301  # as any other
        except Exception as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            log.warning("comparison_failed", source=self.folder.source, run=run, reason=why)
            found = [Compared(view.name, view.hash, 0, run, why_not=why, at=time.time()) for view, _ in views]
        log_results(
            self.folder, found, quarantine.record(self.folder, made, found, self.settings.consistency_threshold)
        )
        log.info("compared", source=self.folder.source, run=run, seconds=round(time.monotonic() - began, 2))
        return found

    def _closed_range(self, run: int, cut: Cut) -> ClosedRange | str:
        """The generations between the newest run that the speed views still go with and this one; or why not."""
        if self.speed_views is None:
            return NO_SPEED_VIEWS
        return closed_range(self.speed_views.reader.snapshot(), publish_log.read(self.folder), run, cut)

    def _view(
        self, speed_views: SpeedViews, view: View, names: tuple[str, ...], run: int, cut: Cut, closed: ClosedRange
    ) -> Compared:
        began = time.monotonic()
        about = Compared(view.name, view.hash, closed.before.run, run, at=time.time())
        if any(view.hash not in generation.views for generation in closed.generations):
            return _not(about, "it is new: the speed view has not had it for all of the time")
        if closed.before.run and closed.before.catalog.get(view.name) != view.hash:
            return _not(about, f"run {closed.before.run} does not have it in this version")
        with closing(self._index_of(closed.before, view)) as before, closing(self._open(names)) as after:
            if self._has_long_keys(closed.before, view, before):
                return _not(about, f"run {closed.before.run} has keys that are stored in short form now")
            found = differences(
                view, speed_views, closed.generations, before, after, self.settings.consistency_groups, run
            )
        judged = judge(self.settings, found, closed.before.cut, cut, self._duplicates(run, closed))
        return Compared(
            view.name, view.hash, closed.before.run, run, found.groups, found.compared, len(found.places),
            judged.excused, found.examples(), not_explained=judged.why_not_all, wrong=judged.wrong,
            seconds=round(time.monotonic() - began, 3), at=time.time(),
        )  # fmt: skip

    def _duplicates(self, run: int, closed: ClosedRange) -> int | None:
        """How many duplicates the run found since the cut of the run before, or more; None: that is not known."""
        folder = self.folder.ids / f"{run:08}"
        if not (folder / HASHES).is_dir() or closed.before.run != publish_log.last(self.folder).run:
            return None
        return rows_of_folders([folder / DUPLICATES])

    def _index_of(self, entry: Entry, view: View) -> Index:
        return self._open(read_manifest(self.folder, entry.run).view(view.name).index if entry.run else ())

    def _has_long_keys(self, entry: Entry, view: View, index: Index) -> bool:
        """Whether an older Tidemark computed the run, with keys that are too long now."""
        is_limited = not entry.run or read_manifest(self.folder, entry.run).view(view.name).max_key_bytes > 0
        return not is_limited and index.has_long_keys()

    def _open(self, names: Iterable[str]) -> Index:
        return open_index(self.folder.indexes / name for name in names)


def log_results(folder: BatchFolder, found: Sequence[Compared], quarantines: Sequence[Quarantine]) -> None:
    """Log the differences and the new quarantines."""
    for each in found:
        if each.mismatched:
            log.warning(
                "speed_view_differs", source=folder.source, view=each.view, run=each.run, compared=each.compared,
                mismatched=each.mismatched, excused=each.excused, examples=list(each.examples),
            )  # fmt: skip
    for new in quarantines:
        log.error("quarantined", source=folder.source, view=new.view, reason=new.why)


def explained(settings: Settings, found: Differences, start: Cut, end: Cut) -> tuple[int, str]:
    """How many of the differences over the events in [start, end) are legal; and why not all could be looked at."""
    judged = judge(settings, found, start, end)
    return judged.excused, judged.why_not_all


def judge(settings: Settings, found: Differences, start: Cut, end: Cut, duplicates: int | None = None) -> Judged:
    """Which of the differences over the events in [start, end) are legal; `duplicates`: how many there are, if known.

    Groups in buckets with too many events are not checked one by one. Each duplicate explains a few of them at most, so
    what is left over is wrong in any case.
    """
    if not found.places:
        return Judged()
    table, buckets = table_path(settings, found.view.source.name), {place.bucket for place in found.places}
    late = LateDuplicates.read(settings, found.view, table, start, end, buckets)
    unread = sum(place.bucket in late.unread for place in found.places)
    excused = sum(
        difference.off is not None and late.excuses(place.bucket, None if place.is_total else place.key, difference.off)
        for place, difference in found.places.items()
        if place.bucket not in late.unread
    )
    wrong = len(found.places) - unread - excused
    if not unread:
        return Judged(excused, wrong)
    more = max(unread - MAX_GROUPS_PER_DUPLICATE * duplicates, 0) if duplicates is not None else 0
    why = (
        f"{unread:,} are in buckets with more than consistency_events, of which some may be "
        "duplicates after the horizon"
    )
    return Judged(excused, wrong + more, why)


def closed_range(kept: RedisSnapshot, entries: Sequence[Entry], run: int, cut: Cut) -> ClosedRange | str:
    """The generations from the newest published run that has one on, up to that of `run` at `cut`; or why not."""
    if kept.meta is None:
        return "Redis holds no speed views"
    place = next((n for n, each in enumerate(kept.generations) if each.run == run), None)
    if place is None and cut_text(kept.meta.applied) != cut_text(cut):  # nobody writes: a takeover, or a run alone
        return "the speed view is not at the cut of the run"
    if place is not None and cut_text(kept.generations[place].start) != cut_text(cut):
        return "the generation of the run begins elsewhere"
    before = kept.generations[:place]
    for entry in sorted((entry for entry in entries if entry.run < run), key=lambda entry: -entry.run):
        for number, generation in enumerate(before):
            if generation.run == entry.run and cut_text(generation.start) == cut_text(entry.cut):
                return ClosedRange(entry, before[number:], kept.meta.made)
    return "the speed views do not begin at the cut of a published run"


def differences(
    view: View,
    speed_views: SpeedViews,
    generations: Sequence[Generation],
    before: Index,
    after: Index,
    most: int,
    seed: int,
) -> Differences:
    """Compare the groups that generations hold, their totals, and those of the days that changed; at most `most` each.

    Which part depends on `seed` alone, so that the same run compares the same groups again, and the next one others.
    """
    found = Differences(view)
    names = [(view.hash, False), *([(totals_of(view.hash), True)] if view.keys else [])]
    for name, is_total in names:
        held = [speed_views.reader.bucket_sizes(generation.gid, name) for generation in generations]
        groups = sum(sum(each.values()) for each in held)
        found.groups += groups if groups > most else 0  # a group may be in several generations: counted exactly below
        is_chosen = _chooser(most, groups, seed)
        left = most
        for bucket in sorted({bucket for each in held for bucket in each}):
            states = _states(speed_views, generations, name, bucket, is_chosen)
            for key, packed in states.items():
                place = GroupLocation(bucket, key, is_total)
                found.check(place, [*_state(before, place), *packed], _state(after, place))
            left -= len(states)
            found.groups += len(states) if groups <= most else 0
            if groups <= most and not is_total and view.keys:
                for tile in _others(after, bucket, states, left):
                    left -= 1
                    found.groups += 1
                    place = GroupLocation(bucket, tile)
                    found.check(place, _state(before, place), _state(after, place))
    _check_other_days(found, before, after, {place for each in held for place in each}, most)
    return found


def _check_other_days(found: Differences, before: Index, after: Index, held: Collection[int], most: int) -> None:
    """The totals of buckets that generations do not hold, of the days that the run rewrote: the newest first."""
    changed = [day for day, file in after.days.items() if before.days.get(day) is not file]
    for day in sorted(changed, reverse=True):
        old, new = (
            {tile.bucket: tile.state for tile in index.totals(Level.GRAIN, day, day + DAY_S)}
            for index in (before, after)
        )
        for bucket in sorted((old.keys() | new.keys()) - set(held)):
            if most <= 0:
                return
            most -= 1
            found.groups += 1
            said, true = ([states[bucket]] if bucket in states else [] for states in (old, new))
            found.check(GroupLocation(bucket, ALL_KEYS, bool(found.view.keys)), said, true)


def _states(
    speed_views: SpeedViews,
    generations: Sequence[Generation],
    name: str,
    bucket: int,
    is_chosen: Callable[[int, bytes], bool],
) -> dict[bytes, list[bytes]]:
    found: dict[bytes, dict[str, bytes]] = {}
    for generation in generations:
        for key, state in speed_views.reader.states_of(generation.gid, name, bucket):
            if is_chosen(bucket, key):
                found.setdefault(key, {})[generation.gid] = state  # a scan may give one twice
    return {key: list(by_generation.values()) for key, by_generation in found.items()}


def _others(after: Index, bucket: int, held: dict[bytes, list[bytes]], most: int) -> Iterator[bytes]:
    """Keys of the bucket that the generations do not hold."""
    for tile in after.of_prefix(Level.GRAIN, b"", bucket, bucket + 1):
        if tile.key not in held:
            if most <= 0:
                return
            most -= 1
            yield tile.key


def _chooser(most: int, groups: int, seed: int) -> Callable[[int, bytes], bool]:
    if groups <= most:
        return lambda _bucket, _key: True
    limit = int(most / groups * 2**64)

    def is_chosen(bucket: int, key: bytes) -> bool:
        digest = hashlib.blake2b(b"%d %d " % (seed, bucket) + key, digest_size=8).digest()
        return int.from_bytes(digest, "big") < limit

    return is_chosen


def _state(index: Index, place: GroupLocation) -> list[bytes]:
    tiles = (
        index.totals(Level.GRAIN, place.bucket, place.bucket + 1)
        if place.is_total or place.key == ALL_KEYS
        else index.of_key(Level.GRAIN, place.key, place.bucket, place.bucket + 1)
    )
    return [tile.state for tile in tiles]


def _difference(view: View, said: Sequence[bytes], true: Sequence[bytes]) -> Difference | None:
    """None: they are the same."""
    if list(said) == list(true):
        return None
    reader = Reader(view.algebras)
    nothing = {name: algebra.zero() for name, algebra in view.algebras.items()}
    right = reader.merged(true) if true else nothing
    try:
        left = reader.merged(said) if said else nothing
        pieces = [reader.merged([each]) for each in (*said, *true)]
    except StateError as error:
        return Difference(str(error))
    names = differing(view.algebras, left, right, pieces)
    off = {name: apart(view.algebras[name], left[name], right[name], [each[name] for each in pieces]) for name in names}
    if not said or not true:
        return Difference(f"the {'batch' if said else 'speed'} view has nothing of it", off)
    if not names:
        return None
    ours, theirs = (view.present(state, names[:1])[names[0]] for state in (left, right))
    how = f"{names[0]} is {str(ours)[:60]} by the speed view and {str(theirs)[:60]} in the batch view"
    return Difference(how, off)


def _in_words(view: View, place: GroupLocation) -> str:
    when = f"{datetime.fromtimestamp(place.bucket, UTC):%Y-%m-%dT%H:%M:%S}Z"
    if place.is_total or not view.keys:
        return f"the total of {when}"
    try:
        values = unpack_key(place.key)
    except StateError:
        return f"a key of {when} that cannot be read"
    return f"{', '.join(f'{name} {value!r}'[:60] for name, value in zip(view.keys, values, strict=False))} of {when}"


def _not(about: Compared, why: str) -> Compared:
    return Compared(about.view, about.hash, about.since_run, about.run, why_not=why, at=about.at)
