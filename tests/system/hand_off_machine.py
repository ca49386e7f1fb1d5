"""The hand-off on a real Redis and a real publish log, in any order: what hypothesis drives in test_speed_views.py.

Two writers (each may be the other's zombie), batch runs, takeovers, overtakes, retiring, sweeping, a Redis that is lost
or falls back to an older moment. Between two steps everybody may pause for ever, which is what a crash looks like from
outside. The Kafka log is fixed: that an event arrives is the free choice of where a micro-batch ends. A state is the
multiset of what was counted, written as its sorted letters, so that no two ways to be wrong can cancel out.

After every step a reader that holds any run of the publish log is answered rightly or not at all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from redis import Redis

from hand_off import generations, publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import RunRefused
from hand_off.generations import Opening
from hand_off.publish_log import Entry
from hand_off.speed_views import Group, Meta, MicroBatch, Outcome, RedisSnapshot, SpeedViews, StateRange, new_id
from master_dataset.cut import Cut, is_below, ranges
from speed_layer.seen_id_loader import is_lacking
from speed_layer.seen_ids import SeenBatch, SeenIds, from_bytes, to_bytes

ENDLESS_MS = 2**60
LOG = {0: "adbaDfcgibhk", 1: "cabehajC"}
"""Two partitions of events, one letter each. The same letter is the same id: `a`, `b`, `c` and `h` have equal copies in
both. A capital is a copy with another payload, in a partition where an equal one came before it."""
END = {partition: len(letters) for partition, letters in LOG.items()}

OLD, NEW, OTHER = "1" * 64, "2" * 64, "3" * 64
CATALOGS = ({"v": OLD}, {"v": NEW, "w": OTHER}, {"v": OLD, "w": OTHER}, {"w": OTHER})
GENESIS = CATALOGS[0]

More = tuple[int, int]
"""By how many offsets of each partition something goes on."""
Groups = dict[tuple[int, bytes], str]
"""(bucket, key) -> the letters that were counted, sorted."""


# ---- the oracle --------------------------------------------------------------


def first_copies(start: Cut, end: Cut) -> dict[str, str]:
    """Of each id between two cuts, the payload with the lowest partition and offset."""
    found: dict[str, str] = {}
    for each in ranges(start, end):
        for payload in LOG[each.partition][each.start : each.end_exclusive]:
            found.setdefault(payload.lower(), payload)
    return found


def fold(view: str, payloads: Iterable[str]) -> Groups:
    """What a view makes of events: one has a single group, one a group for each letter, one a few of both."""
    groups: Groups = {}
    for payload in payloads:
        number = ord(payload)
        group = {
            OLD: (0, b"all"),
            NEW: (60 * number, payload.encode()),
            OTHER: (3600 * (number % 2), b"odd" if number % 3 else b""),
        }[view]
        groups[group] = added(groups.get(group, ""), payload)
    return groups


def added(left: str, right: str) -> str:
    return "".join(sorted(left + right))


def oracle(view: str, cut: Cut) -> Groups:
    return fold(view, first_copies({}, cut).values())


def mark(event_id: str) -> int:
    return ord(event_id) * 2**40 - 100 * 2**40


def marks_of(ids: Iterable[str]) -> bytes:
    return to_bytes(1, np.array(sorted(map(mark, ids)), dtype=np.int64))


# ---- who takes part --------------------------------------------------------------


@dataclass
class Writer:
    """A speed writer. `step` is the next thing it does; one that never does it has crashed."""

    speed_views: SpeedViews
    folder: BatchFolder
    token: str = ""
    step: Callable[[More], None] = field(init=False)
    horizon_ms: int = ENDLESS_MS
    is_up: bool = False
    has_read: bool = False

    def __post_init__(self) -> None:
        self.step = self.start

    def start(self, _more: More) -> None:
        """Our token first, the publish log after it."""
        writer, self.kept = self.speed_views.start_writer()
        self.token = writer.token
        self.newest = publish_log.last(self.folder)
        self.step = self.enter

    def enter(self, _more: More) -> None:
        """Meta, made anew where Redis was lost; a run that was appended and not published is published."""
        if self.kept.meta is None:
            self.speed_views.writer(self.token).init(self.newest.run, self.newest.cut, self.newest.catalog.values())
        elif self.newest.run > self.kept.meta.published:
            generations.complete(self.speed_views, self.folder, self.newest)
        kept = self.speed_views.reader.snapshot()
        if kept.epoch != self.token or kept.meta is None:
            self.crash()
            return
        self.applied, self.gid = kept.meta.applied, kept.generations[-1].gid
        self.views = kept.generations[-1].views
        self.chunks = list(_chunks(kept.meta, self.horizon_ms))
        self.chunk = 1
        self.step = self.load if self.chunks else self.read_marks

    def load(self, _more: More) -> None:
        """One chunk of the marks that only the master dataset has. What Redis says to it shows at the next apply."""
        said = self.speed_views.writer(self.token).load(
            self.chunk, is_last=self.chunk == len(self.chunks), name=new_id(),
            seen_ids=self.chunks[self.chunk - 1], horizon_ms=self.horizon_ms,
        )  # fmt: skip
        self.chunk += 1
        if said != Outcome.OK or self.chunk > len(self.chunks):
            self.step = self.read_marks

    def read_marks(self, _more: More) -> None:
        self.marks: SeenIds = from_bytes(self.speed_views.reader.seen_ids(), ENDLESS_MS)
        self.is_up = True
        self.step = self.read

    def read(self, more: More) -> None:
        """A micro-batch from where we are, by `more` offsets: which events count, and the states before it."""
        self.end = {p: min(self.applied.get(p, 0) + more[p], END[p]) for p in END}
        if is_below(self.end, self.applied):
            return
        copies = first_copies(self.applied, self.end)
        known = self.marks.known(np.array([mark(each) for each in copies], dtype=np.int64)) & bool(self.horizon_ms)
        self.counted = {each: copies[each] for each, is_known in zip(copies, known, strict=True) if not is_known}
        self.deltas = {view: fold(view, self.counted.values()) for view in self.views}
        self.marks_name = new_id()
        self._read_states()
        self.has_read = True
        self.step = self.apply

    def _read_states(self) -> None:
        groups = [Group(view, bucket, key) for view, delta in self.deltas.items() for bucket, key in delta]
        known = self.speed_views.reader.read_states(self.gid, groups)
        states = {
            group: added((before or b"").decode(), self.deltas[group.view][group.bucket, group.key]).encode()
            for group, before in zip(groups, known, strict=True)
        }
        marks = marks_of(self.counted) if self.counted and self.horizon_ms else b""
        self.batch = MicroBatch(self.applied, self.end, self.gid, states, self.marks_name, marks, self.horizon_ms)

    def apply(self, _more: More) -> None:
        said = self.speed_views.writer(self.token).apply(self.batch)
        if said in (Outcome.OK, Outcome.ALREADY):
            if self.counted:
                self.marks.add(SeenBatch(self.marks_name, 1, np.array([*map(mark, self.counted)], dtype=np.int64)))
            self.applied = self.end
            self.has_read = False
            self.step = self.read
        elif said == Outcome.RETRY and self._next_generation():
            self._read_states()
        else:
            self.crash()

    def lose_reply(self) -> None:
        """Redis takes the micro-batch, and we do not hear of it."""
        self.speed_views.writer(self.token).apply(self.batch)

    def _next_generation(self) -> bool:
        found = self.speed_views.reader.snapshot().generations
        if not found or found[-1].views != self.views:
            return False
        self.gid = found[-1].gid
        return True

    def crash(self) -> None:
        self.step, self.is_up, self.has_read = self.start, False, False


def _chunks(meta: Meta, horizon_ms: int) -> Iterator[bytes]:
    """The ids below applied that lack marks, in two parts where there are two."""
    if is_lacking(meta, horizon_ms):
        ids = sorted(first_copies(meta.marked if meta.horizon_ms else {}, meta.applied))
        for part in (ids[::2], ids[1::2]) if len(ids) > 1 else (ids,):
            yield marks_of(part) if part else b""


@dataclass
class Run:
    """A batch run: opened or fenced, then durable, then told to Redis."""

    number: int
    opening: Opening
    catalog: Mapping[str, str]
    entry: Entry | None = None


class Snapshot(NamedTuple):
    """All keys of Redis at one moment."""

    keys: dict[bytes, bytes]

    @classmethod
    def of(cls, client: Redis) -> Snapshot:
        return cls({key: client.dump(key) for key in client.scan_iter()})

    def restore(self, client: Redis) -> None:
        client.flushdb()
        for key, value in self.keys.items():
            client.restore(key, 0, value)


# ---- what may happen -------------------------------------------------------------

Happening = tuple[Any, ...]
"""The name of a method of HandOff, and what it is called with: a failure reads as data, to be kept as an example."""


def _happenings() -> st.SearchStrategy[Happening]:
    """Each as often as it helps: what destroys much is rare, else nothing is ever there to be destroyed."""
    who, which = st.sampled_from([0, 0, 0, 1]), st.sampled_from([0, 0, 0, 1, 2])
    more = st.sampled_from([(1, 0), (0, 1), (1, 1), (2, 0), (2, 1), (1, 0), (3, 2)])
    catalog = st.sampled_from(range(len(CATALOGS)))
    weighted: list[tuple[int, str, Sequence[st.SearchStrategy[Any]]]] = [
        (16, "writer_steps", (who, more)),
        (12, "writer_counts", (who, more)),
        (2, "reply_is_lost", (who,)),
        (1, "writer_crashes", (who,)),
        (7, "run_opens", (catalog,)),
        (2, "run_adopts", (catalog,)),
        (1, "run_fences", (catalog,)),
        (2, "run_takes_over", (catalog, more)),
        (2, "run_begins_to_overtake", (catalog, more)),
        (2, "run_overtakes", (catalog, more)),
        (8, "run_goes_on", (which, more)),
        (3, "run_ends", (which, more)),
        (1, "run_crashes", (which,)),
        (1, "retire", (st.integers(1, 3),)),
        (2, "sweep", (st.integers(0, 9),)),
        (1, "clean_up", ()),
        (3, "redis_is_saved", ()),
        (2, "redis_falls_back", ()),
        (1, "redis_is_flushed", ()),
    ]
    return st.one_of([st.tuples(st.just(name), *drawn) for weight, name, drawn in weighted for _ in range(weight)])


class HandOff(RuleBasedStateMachine):
    """Anything at any time."""

    def __init__(self, client: Redis, place: Path) -> None:
        super().__init__()
        self.client = client
        client.flushdb()
        self.folder = BatchFolder(Path(tempfile.mkdtemp(dir=place)) / "web")
        self.speed_views = SpeedViews(client, "web")
        self.writers = [Writer(self.speed_views, self.folder) for _ in range(2)]
        self.runs: list[Run] = []
        self.log = [publish_log.begin(self.folder, dict(GENESIS), 0.0)]
        self.content: dict[int, dict[str, Groups]] = {0: {view: {} for view in GENESIS.values()}}
        self.saved = Snapshot({})
        self.before: Meta | None = None
        self.shown: Cut = {}
        self.was_lost = False
        self.gids: list[str] = []
        self.is_right = True

    @rule(happening=_happenings())
    def happens(self, happening: Happening) -> None:
        """One thing."""
        name, *given = happening
        getattr(self, name)(*given)

    # ---- writers ----

    def writer_steps(self, who: int, more: More = (0, 0)) -> None:
        """The next step of a writer, whatever that is."""
        self.writers[who].step(more)

    def writer_counts(self, who: int, more: More) -> None:
        """As many steps as it takes, undisturbed."""
        writer = self.writers[who]
        self.begin_writing(writer)
        if writer.is_up:
            writer.step(more)
        if writer.has_read:
            writer.step(more)

    def reply_is_lost(self, who: int) -> None:
        if self.writers[who].has_read:
            self.writers[who].lose_reply()

    def writer_crashes(self, who: int) -> None:
        self.writers[who].crash()

    def copies_count(self, who: int) -> None:
        """From its next start on a writer drops no copies. For stories that have none then."""
        self.writers[who].horizon_ms = 0

    def begin_writing(self, writer: Writer) -> None:
        for _ in range(8):
            if writer.is_up:
                return
            writer.step((0, 0))

    # ---- runs ----

    def run_opens(self, catalog: int) -> None:
        """A run that goes on at what the speed layer has applied."""
        number = publish_log.next_run(self.folder)
        cut = self.speed_views.runs.open(number, CATALOGS[catalog].values())
        self.runs.append(Run(number, Opening("alone", {}) if cut is None else Opening("open", cut), CATALOGS[catalog]))

    def run_adopts(self, catalog: int) -> None:
        """A run that goes on with the generation of one that failed, if there is any."""
        number = publish_log.next_run(self.folder)
        cut = self.speed_views.runs.adopt(number, CATALOGS[catalog].values(), 0)
        if cut is not None:
            self.runs.append(Run(number, Opening("open", cut, is_adopted=True), CATALOGS[catalog]))

    def run_fences(self, catalog: int) -> None:
        """A run that takes over."""
        number = publish_log.next_run(self.folder)
        fenced = self.speed_views.runs.fence()
        opening = Opening("takeover", fenced[1], fenced[0]) if fenced else Opening("alone", {})
        self.runs.append(Run(number, opening, CATALOGS[catalog]))

    def run_takes_over(self, catalog: int, more: More) -> None:
        """The whole of a takeover, undisturbed."""
        self.run_fences(catalog)
        self.run_ends(0, more)

    def run_begins_to_overtake(self, catalog: int, more: More) -> None:
        """A run at the master's end, which is `more` offsets past what is applied. The writer goes on meanwhile."""
        meta = self.speed_views.reader.snapshot().meta
        number = publish_log.next_run(self.folder)
        if meta is None:
            self.runs.append(Run(number, Opening("alone", {}), CATALOGS[catalog]))
            return
        cut = {p: min(meta.applied.get(p, 0) + more[p], END[p]) for p in END}
        self.runs.append(Run(number, Opening("overtake", cut), CATALOGS[catalog]))

    def run_overtakes(self, catalog: int, more: More) -> None:
        """The whole of an overtake, undisturbed."""
        self.run_begins_to_overtake(catalog, more)
        self.run_ends(0)

    def run_goes_on(self, which: int, more: More = (0, 0)) -> None:
        """The durable append of a run, or what comes after it. Of several runs the newest is number 0."""
        if not self.runs:
            return
        run = self.runs[-1 - which % len(self.runs)]
        if run.entry is None:
            self.append(run, more)
        else:
            generations.publish(self.speed_views, self.folder, run.opening, run.entry)
            self.runs.remove(run)

    def run_ends(self, which: int, more: More = (0, 0)) -> None:
        """All that is left of a run, undisturbed."""
        run = self.runs[-1 - which % len(self.runs)] if self.runs else None
        while run in self.runs:
            self.run_goes_on(self.runs[::-1].index(run), more)

    def run_crashes(self, which: int) -> None:
        if self.runs:
            del self.runs[-1 - which % len(self.runs)]

    def append(self, run: Run, more: More) -> None:
        """Compute what is below the cut, then the durable append. An opened cut is fixed, others are the master's."""
        cut = run.opening.cut
        if run.opening.mode not in ("open", "overtake"):
            begin = cut if run.opening.mode == "takeover" else self.log[-1].cut
            cut = {p: min(begin.get(p, 0) + more[p], END[p]) for p in END}
        try:
            run.entry = publish_log.append(self.folder, Entry(run.number, cut, dict(run.catalog)))
        except RunRefused:
            self.runs.remove(run)
            return
        self.log.append(run.entry)
        self.content[run.number] = {view: oracle(view, cut) for view in run.catalog.values()}

    # ---- tidying ----

    def retire(self, count: int) -> None:
        """So many generations, some of which may be needed."""
        if kept := self.speed_views.reader.snapshot().generations:
            self.speed_views.runs.retire(kept[min(count, len(kept) - 1)].gid)

    def sweep(self, which: int) -> None:
        """Any generation that there ever was: it must refuse those in use."""
        if self.gids:
            self.speed_views.runs.sweep(self.gids[-1 - which % len(self.gids)])

    def clean_up(self) -> None:
        generations.clean_up(self.speed_views, self.folder, grace_s=0)

    # ---- Redis ----

    def redis_is_flushed(self) -> None:
        self.client.flushdb()
        self.was_lost = True

    def redis_is_saved(self) -> None:
        self.saved = Snapshot.of(self.client)

    def redis_falls_back(self) -> None:
        self.saved.restore(self.client)
        self.was_lost = True

    # ---- what holds after every step ----

    @invariant()
    def everything_holds(self) -> None:
        self.is_right = False
        kept = self.speed_views.reader.snapshot()
        # In the order they came, not sorted: they are random, and a failure must be found again.
        self.gids += [each.gid for each in kept.generations if each.gid not in self.gids]
        self.check_cuts(kept)
        self.check_marks(kept)
        self.check_readers(kept)
        self.is_right = True

    def check_cuts(self, kept: RedisSnapshot) -> None:
        """I2, I3: neither what is applied nor the run that is shown goes back, unless Redis was lost."""
        meta = kept.meta
        if meta is not None:
            if self.before is not None and not self.was_lost:
                assert meta.published >= self.before.published
                assert is_below(self.before.applied, meta.applied), f"applied: {self.before.applied} -> {meta.applied}"
            shown = [entry.cut for entry in self.log if entry.run == meta.published]
            assert shown, f"I6: run {meta.published} is published and not durable"
            assert self.was_lost or is_below(self.shown, shown[0]), f"shown: {self.shown} -> {shown[0]}"
            self.shown = shown[0]
        self.before, self.was_lost = meta, False
        assert all(is_below(left.cut, right.cut) for left, right in pairwise(self.log))

    def check_marks(self, kept: RedisSnapshot) -> None:
        """I7: the marks are the ids below `marked`; while they are loaded, some of those up to `applied` too."""
        if kept.meta is None:
            return
        found = from_bytes(self.speed_views.reader.seen_ids(), ENDLESS_MS)
        ids = sorted({letter.lower() for letters in LOG.values() for letter in letters})
        marked = {each for each in ids if found.known(np.array([mark(each)], dtype=np.int64))[0]}
        assert not kept.meta.horizon_ms or marked >= first_copies({}, kept.meta.marked).keys()
        assert marked <= first_copies({}, kept.meta.applied).keys()

    def check_readers(self, kept: RedisSnapshot) -> None:
        """I1, I5, I6: of any run, the answer is right or there is none; of the published run there is one."""
        for entry in self.log:
            for view in entry.catalog.values():
                self.check_reader(kept, entry, view)

    def check_reader(self, kept: RedisSnapshot, entry: Entry, view: str) -> None:
        found = self.speed_views.reader.answer(entry.run, entry.cut, [StateRange(view)])
        if found.outcome != Outcome.OK:
            assert found.outcome == (Outcome.REFUSED if kept.meta else Outcome.LOST)
            assert kept.meta is None or kept.meta.published != entry.run, f"I6: run {entry.run} has no generation"
            return
        assert entry.run in [each.run for each in kept.generations], f"I5: run {entry.run} has no generation"
        merged = dict(self.content[entry.run][view])
        for bucket, key, state in found.states:
            merged[bucket, key] = added(merged.get((bucket, key), ""), state.decode())
        assert merged == oracle(view, found.applied), f"I1: run {entry.run}, view {view[:4]} at {found.applied}"

    # ---- what holds at the end ----

    def teardown(self) -> None:
        """I4: everybody crashes, then one writer and one run count everything, and nothing is left behind."""
        if not self.is_right:
            return  # it failed already, and that is what should be told
        self.writers, self.runs = [Writer(self.speed_views, self.folder)], []
        for _ in range(4):
            self.writer_counts(0, (99, 99))
        kept = self.speed_views.reader.snapshot()
        assert kept.meta is not None
        assert kept.meta.applied == END, "the writer does not catch up"
        self.everything_holds()
        self.run_opens(1)
        self.run_ends(0)
        assert self.log == publish_log.read(self.folder)
        generations.clean_up(self.speed_views, self.folder, grace_s=0)
        self.everything_holds()
        kept = self.speed_views.reader.snapshot()
        assert kept.meta is not None
        assert kept.meta.published == self.log[-1].run == kept.generations[0].run, "the next run is not published"
        self.check_swept(kept)

    def check_swept(self, kept: RedisSnapshot) -> None:
        assert self.speed_views.runs.unswept() == []
        used = {each.gid for each in kept.generations}
        left: Sequence[bytes] = self.client.keys(f"{self.speed_views.layout.prefix}v:*")
        assert {key.decode().split(":")[3] for key in left} <= used, "states of no generation are left"
