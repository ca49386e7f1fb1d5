"""Each step of the hand-off on a real Redis: one example for everything that a script may say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from hand_off.generations import MAX_UNPUBLISHED, open_cut
from hand_off.lag import KafkaEnd
from hand_off.speed_views import META, Group, MicroBatch, Outcome, Ranked, SpeedViews, StateRange, cut_of, cut_text
from master_dataset.cut import Cut
from tests.system.redis_server import redis_server

HORIZON_MS = 3_600_000
VIEW, OTHER = "a" * 64, "b" * 64
ZERO: Cut = {}
ONE: Cut = {0: 1}
TWO: Cut = {0: 2}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with redis_server(tmp_path_factory.mktemp("redis")) as client:
        yield client


@pytest.fixture
def empty(redis: Redis) -> SpeedViews:
    redis.flushdb()
    return SpeedViews(redis, "web")


class Owned:
    """Speed views with meta, whose writer we are: run 0 of `VIEW` at the zero cut, marks complete."""

    def __init__(self, speed_views: SpeedViews) -> None:
        self.speed_views = speed_views
        self.writer, _ = speed_views.start_writer()
        assert self.writer.init(0, ZERO, [VIEW]) == Outcome.OK
        assert load(self, 1, is_last=True, seen_ids=b"") == Outcome.OK

    @property
    def token(self) -> str:
        return self.writer.token

    @property
    def gid(self) -> str:
        return self.speed_views.reader.snapshot().generations[-1].gid

    def batch(self, start: Cut, end: Cut, *states: tuple[int, bytes, bytes], gid: str = "") -> MicroBatch:
        written = {Group(VIEW, bucket, key): state for bucket, key, state in states}
        return MicroBatch(start, end, gid or self.gid, written, f"m{cut_text(end)}", b"marks", HORIZON_MS)

    def apply(self, start: Cut, end: Cut, *states: tuple[int, bytes, bytes]) -> Outcome:
        return self.writer.apply(self.batch(start, end, *states))


@pytest.fixture
def owned(empty: SpeedViews) -> Owned:
    return Owned(empty)


def everything(redis: Redis) -> dict[bytes, bytes | None]:
    return {key: redis.dump(key) for key in redis.scan_iter()}


def published(speed_views: SpeedViews) -> int:
    meta = speed_views.reader.snapshot().meta
    assert meta is not None
    return meta.published


# ---- a cut as text -----------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "text"),
    [({}, "{}"), ({0: 0, 7: 0}, "{}"), ({10: 1, 2: 3}, '{"2":3,"10":1}'), ({2: 3, 10: 1, 0: 0}, '{"2":3,"10":1}')],
)
def test_the_same_cut_is_the_same_text(cut: Cut, text: str) -> None:
    assert cut_text(cut) == text
    assert cut_text(cut_of(text.encode())) == text


# ---- start and init ------------------------------------------------------------


def test_redis_that_was_lost_has_no_meta(empty: SpeedViews) -> None:
    writer, kept = empty.start_writer()
    assert kept.meta is None
    assert empty.reader.snapshot().epoch == writer.token
    assert empty.reader.answer(0, ZERO, [StateRange(VIEW)]).outcome == Outcome.LOST
    assert empty.runs.open(1, [VIEW]) is None
    assert empty.runs.adopt(1, [VIEW], 0) is None
    assert empty.runs.fence() is None
    assert empty.reader.snapshot().epoch == writer.token, "a fence without meta fences nobody"
    assert empty.runs.publish(1, ZERO) == Outcome.NO_META
    assert empty.runs.takeover(writer.token, 1, ZERO, [VIEW]) == Outcome.NO_META
    assert writer.load(1, is_last=True, name="m", seen_ids=b"marks", horizon_ms=1) == Outcome.FENCED
    assert writer.apply(MicroBatch(ZERO, ONE, "g", {})) == Outcome.FENCED
    assert empty.runs.retire("g") == 0


def test_init_is_what_the_log_says_with_marks_still_to_be_loaded(empty: SpeedViews) -> None:
    writer, _ = empty.start_writer()
    assert writer.init(3, {1: 5, 0: 2}, [OTHER, VIEW], "topic") == Outcome.OK
    kept = empty.reader.snapshot()
    assert kept.meta == ({0: 2, 1: 5}, {}, 3, 0, "topic", kept.generations[0].gid)
    (only,) = kept.generations
    assert (only.run, only.start, only.catalog, only.views) == (3, {0: 2, 1: 5}, (VIEW, OTHER), (VIEW, OTHER))


def test_init_is_refused_to_another_and_where_there_is_meta(owned: Owned) -> None:
    before = owned.speed_views.reader.snapshot()
    assert owned.writer.init(5, TWO, [VIEW]) == Outcome.FENCED
    assert owned.speed_views.writer("somebody").init(5, TWO, [VIEW]) == Outcome.FENCED
    assert owned.speed_views.reader.snapshot() == before


def test_init_leaves_nothing_of_a_meta_that_was_lost_alone(owned: Owned, redis: Redis) -> None:
    owned.apply(ZERO, ONE, (0, b"k", b"1"))
    redis.delete(f"{owned.speed_views.layout.prefix}{META}")
    old = owned.gid
    assert owned.writer.init(1, ONE, [VIEW]) == Outcome.OK
    assert list(owned.speed_views.reader.seen_ids()) == []
    assert [each.run for each in owned.speed_views.reader.snapshot().generations] == [1]
    assert owned.speed_views.runs.unswept() == [old]


def test_generations_that_were_lost_alone_are_redis_lost(owned: Owned, redis: Redis) -> None:
    assert owned.apply(ZERO, ONE, (0, b"k", b"s")) == Outcome.OK
    redis.delete(owned.speed_views.layout.prefix + "gens")
    assert owned.speed_views.reader.snapshot().meta is None
    assert owned.speed_views.reader.answer(0, ZERO, []).outcome == Outcome.LOST
    assert owned.speed_views.runs.open(1, [VIEW]) is None
    writer, kept = owned.speed_views.start_writer()
    assert kept.meta is None
    assert writer.init(0, ZERO, [VIEW]) == Outcome.OK
    assert owned.speed_views.reader.answer(0, ZERO, [StateRange(VIEW)]).states == []


def test_whoever_starts_fences_the_one_before(owned: Owned) -> None:
    batch = owned.batch(ZERO, ONE, (0, b"k", b"1"))
    writer, kept = owned.speed_views.start_writer()
    assert kept.meta is not None
    assert owned.writer.apply(batch) == Outcome.FENCED
    assert load(owned, 1, is_last=True) == Outcome.FENCED
    assert owned.writer.heartbeat(5) == Outcome.FENCED
    assert owned.speed_views.reader.living_writer() is None
    assert writer.apply(batch) == Outcome.OK


def test_a_writer_that_beats_lives_for_so_long(owned: Owned, redis: Redis) -> None:
    assert owned.writer.heartbeat(60) == Outcome.OK
    assert owned.speed_views.reader.living_writer() == owned.token
    assert 55_000 < redis.pttl(f"{owned.speed_views.layout.prefix}alive") <= 60_000


def test_a_writer_that_seems_to_live_for_longer_than_it_said_does_not(owned: Owned, redis: Redis) -> None:
    """The clock of Redis was two days ahead when it was said, and put right since: for two days nobody could begin."""
    assert owned.writer.heartbeat(60) == Outcome.OK
    redis.pexpire(f"{owned.speed_views.layout.prefix}alive", 2 * 86_400_000)
    assert owned.speed_views.reader.living_writer() is None
    assert owned.writer.heartbeat(60) == Outcome.OK
    assert owned.speed_views.reader.living_writer() == owned.token


# ---- load --------------------------------------------------------------------


def load(
    owned: Owned, chunk: int, *, is_last: bool = False, seen_ids: bytes = b"marks", horizon_ms: int = HORIZON_MS
) -> Outcome:
    return owned.writer.load(chunk, is_last=is_last, name=f"c{chunk}", seen_ids=seen_ids, horizon_ms=horizon_ms)


@pytest.fixture
def unmarked(empty: SpeedViews) -> Owned:
    """As `owned`, after a run counted two events that Redis has no marks of."""
    owned = Owned(empty)
    fenced = empty.runs.fence()
    assert fenced is not None
    assert empty.runs.takeover(fenced[0], 1, TWO, [VIEW]) == Outcome.OK
    owned.writer, _ = empty.start_writer()
    return owned


def test_marks_are_complete_with_the_last_chunk(unmarked: Owned) -> None:
    assert unmarked.apply(TWO, {0: 3}) == Outcome.LOAD
    assert load(unmarked, 1) == load(unmarked, 2) == Outcome.OK
    assert unmarked.apply(TWO, {0: 3}) == Outcome.LOAD, "not yet"
    assert load(unmarked, 3, is_last=True) == Outcome.OK
    assert dict(unmarked.speed_views.reader.seen_ids()) == {"c1": b"marks", "c2": b"marks", "c3": b"marks"}
    assert unmarked.apply(TWO, {0: 3}) == Outcome.OK


@pytest.mark.parametrize("forgotten", [0, 1, 3])
def test_a_chunk_that_does_not_follow_the_one_before_begins_all_anew(unmarked: Owned, forgotten: int) -> None:
    """Redis fell back to when it had none, one or three of the chunks; the next is the third."""
    for chunk in range(1, forgotten + 1):
        assert load(unmarked, chunk) == Outcome.OK
    assert load(unmarked, 3, is_last=True) == Outcome.RESTART
    assert unmarked.apply(TWO, {0: 3}) == Outcome.LOAD
    assert load(unmarked, 1) == load(unmarked, 2, is_last=True) == Outcome.OK
    assert unmarked.apply(TWO, {0: 3}) == Outcome.OK


def test_marks_that_reach_back_less_far_than_a_writer_means_are_loaded_first(owned: Owned) -> None:
    shorter = replace(owned.batch(ZERO, ONE), horizon_ms=HORIZON_MS // 2)
    assert owned.writer.apply(shorter) == Outcome.OK
    assert owned.apply(ONE, TWO) == Outcome.LOAD
    assert load(owned, 1, horizon_ms=HORIZON_MS) == Outcome.OK
    assert owned.apply(ONE, TWO) == Outcome.LOAD, "not yet"
    assert load(owned, 2, is_last=True, horizon_ms=HORIZON_MS) == Outcome.OK
    assert owned.apply(ONE, TWO) == Outcome.OK


def test_a_writer_that_drops_no_copies_needs_no_marks_and_leaves_none(unmarked: Owned) -> None:
    load(unmarked, 1)
    without = MicroBatch(TWO, {0: 3}, unmarked.gid, {})
    assert unmarked.writer.apply(without) == Outcome.OK
    assert list(unmarked.speed_views.reader.seen_ids()) == []
    assert unmarked.apply({0: 3}, {0: 4}) == Outcome.LOAD, "marks that were not written are not there"


def test_nothing_to_load_is_one_empty_chunk(unmarked: Owned) -> None:
    assert load(unmarked, 1, is_last=True, seen_ids=b"") == Outcome.OK
    assert list(unmarked.speed_views.reader.seen_ids()) == []
    assert unmarked.apply(TWO, {0: 3}) == Outcome.OK


# ---- apply and read ------------------------------------------------------------


def test_a_micro_batch_is_applied_once(owned: Owned) -> None:
    batch = owned.batch(ZERO, ONE, (60, b"k", b"1"), (60, b"l", b"2"), (120, b"k", b"3"))
    assert owned.writer.apply(batch) == Outcome.OK
    assert owned.writer.apply(batch) == Outcome.ALREADY
    groups = [Group(VIEW, 120, b"k"), Group(VIEW, 60, b"l"), Group(VIEW, 60, b"none"), Group(OTHER, 60, b"k")]
    assert owned.speed_views.reader.read_states(owned.gid, groups) == [b"3", b"2", None, None]
    assert owned.speed_views.reader.read_states(owned.gid, []) == []
    assert owned.speed_views.reader.snapshot().meta == (ONE, ONE, 0, HORIZON_MS, "", owned.gid)
    assert dict(owned.speed_views.reader.seen_ids()) == {'m{"0":1}': b"marks"}


@pytest.mark.parametrize(("start", "end"), [(ONE, TWO), ({1: 1}, {0: 1, 1: 1})])
def test_a_micro_batch_that_begins_elsewhere_is_not_applied(owned: Owned, redis: Redis, start: Cut, end: Cut) -> None:
    before = everything(redis)
    assert owned.apply(start, end, (0, b"k", b"1")) == Outcome.RESTART
    assert everything(redis) == before


def test_a_micro_batch_for_an_older_generation_is_tried_again(owned: Owned, redis: Redis) -> None:
    batch = owned.batch(ZERO, ONE, (0, b"k", b"1"))
    assert owned.speed_views.runs.open(1, [VIEW]) == ZERO
    before = everything(redis)
    assert owned.writer.apply(batch) == Outcome.RETRY
    assert everything(redis) == before
    assert owned.apply(ZERO, ONE, (0, b"k", b"1")) == Outcome.OK


def test_old_marks_are_forgotten_with_the_micro_batch_that_says_so(owned: Owned) -> None:
    owned.apply(ZERO, ONE)
    batch = MicroBatch(ONE, TWO, owned.gid, {}, "m2", b"more", HORIZON_MS, forget=('m{"0":1}', "unknown"))
    assert owned.writer.apply(batch) == Outcome.OK
    assert dict(owned.speed_views.reader.seen_ids()) == {"m2": b"more"}


def test_a_micro_batch_may_be_large(owned: Owned) -> None:
    """More states of a bucket, and more buckets, than Lua hands to one command."""
    wide = [(0, b"k%d" % number, b"%d" % number) for number in range(9_001)]
    long = [(60 * number, b"k", b"1") for number in range(1, 9_001)]
    assert owned.apply(ZERO, ONE, *wide, *long) == Outcome.OK
    found = owned.speed_views.reader.answer(0, ZERO, [StateRange(VIEW)])
    assert sorted(found.states) == sorted([*wide, *long])


@contextmanager
def full_memory(redis: Redis) -> Iterator[None]:
    redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        redis.config_set("maxmemory", 0)


def test_memory_that_is_full_takes_nothing_of_a_micro_batch(owned: Owned, redis: Redis) -> None:
    owned.apply(ZERO, ONE, (0, b"k", b"1"))
    batch = owned.batch(ONE, TWO, (0, b"k", b"2"), (60, b"k", b"1"))
    before = everything(redis)
    with full_memory(redis):
        with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
            owned.writer.apply(batch)
        assert everything(redis) == before
        assert owned.speed_views.reader.answer(0, ZERO, [StateRange(VIEW)]).states == [(0, b"k", b"1")], (
            "readers are answered"
        )
    assert owned.writer.apply(batch) == Outcome.OK
    assert owned.speed_views.reader.answer(0, ZERO, [StateRange(VIEW)]).states == [(0, b"k", b"2"), (60, b"k", b"1")]


def test_memory_that_is_full_takes_no_marks(unmarked: Owned, redis: Redis) -> None:
    before = everything(redis)
    with full_memory(redis), pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        load(unmarked, 1, is_last=True)
    assert everything(redis) == before
    assert load(unmarked, 1, is_last=True) == Outcome.OK


def test_a_problem_is_reported_while_memory_is_full_and_over_when_the_writer_says_so(
    owned: Owned, redis: Redis
) -> None:
    """Answers say why they are behind. The report does not make the writer look alive: a run may take over."""
    reader = owned.speed_views.reader
    assert owned.writer.heartbeat(60, KafkaEnd(ZERO, 0.0, ZERO, 0.0)) == Outcome.OK
    redis.delete(owned.speed_views.layout.alive)
    with full_memory(redis):
        assert owned.writer.report_problem("Redis is full.") == Outcome.OK
        assert reader.answer(0, ZERO, ()).problem == "Redis is full."
        assert reader.living_writer() is None
        # It starts again, and knows only where Kafka ends.
        assert owned.writer.heartbeat(60, KafkaEnd(TWO, 0.0, ZERO, None), "Redis is full.") == Outcome.OK
        found = reader.answer(0, ZERO, ())
    assert found.problem == "Redis is full."
    assert found.lag is not None
    assert found.lag.events == 2
    assert found.lag.seconds is not None, "what was reported of the same cut before is still true"
    assert owned.writer.heartbeat(60, KafkaEnd(TWO, 0.0, ZERO, None)) == Outcome.OK
    assert reader.answer(0, ZERO, ()).problem == ""
    assert owned.speed_views.writer("somebody").report_problem("No.") == Outcome.FENCED


def test_a_takeover_ends_the_problem_of_the_writer_before(owned: Owned) -> None:
    owned.writer.report_problem("Kafka no longer holds offsets 0 to 1.")
    fenced = owned.speed_views.runs.fence()
    assert fenced is not None
    assert owned.speed_views.runs.takeover(fenced[0], 1, TWO, [VIEW]) == Outcome.OK
    assert owned.speed_views.reader.answer(1, TWO, ()).problem == ""


def test_a_run_frees_memory_that_is_full(owned: Owned, redis: Redis) -> None:
    """Else nothing could ever be freed again: a hand-off is how states of the speed layer go."""
    old = owned.gid
    owned.apply(ZERO, ONE, (0, b"k", b"1"))
    speed_views = owned.speed_views
    with full_memory(redis):
        writer, _ = speed_views.start_writer()
        assert writer.heartbeat(60) == Outcome.OK
        assert speed_views.runs.open(1, [VIEW]) == ONE
        assert speed_views.runs.publish(1, ONE) == Outcome.OK
        assert speed_views.runs.retire(speed_views.reader.snapshot().generations[1].gid) == 1
        assert speed_views.runs.sweep(old) == 1
    assert redis.keys(f"*{old}*") == []
    assert speed_views.reader.answer(1, ONE, [StateRange(VIEW)]).outcome == Outcome.OK


def test_a_takeover_frees_memory_that_is_full(owned: Owned, redis: Redis) -> None:
    old = owned.gid
    owned.apply(ZERO, ONE, (0, b"k", b"1"))
    with full_memory(redis):
        fenced = owned.speed_views.runs.fence()
        assert fenced is not None
        assert owned.speed_views.runs.takeover(fenced[0], 1, TWO, [VIEW]) == Outcome.OK
        assert owned.speed_views.runs.sweep(old) == 1
    assert owned.speed_views.reader.answer(1, TWO, [StateRange(VIEW)]).outcome == Outcome.OK


# ---- open and publish ------------------------------------------------------------


def test_a_run_opens_at_what_is_applied_and_keeps_views_that_are_served(owned: Owned) -> None:
    owned.apply(ZERO, ONE)
    assert owned.speed_views.runs.open(1, [OTHER]) == ONE
    first, second = owned.speed_views.reader.snapshot().generations
    assert (second.run, second.start, second.catalog, second.views) == (1, ONE, (OTHER,), (VIEW, OTHER))
    assert first.gid != second.gid


def test_a_run_is_published_once(owned: Owned) -> None:
    owned.apply(ZERO, ONE)
    owned.speed_views.runs.open(2, [VIEW])
    assert owned.speed_views.runs.publish(2, ZERO) == Outcome.NO_GENERATION, "another cut"
    assert owned.speed_views.runs.publish(3, ONE) == Outcome.NO_GENERATION, "another run"
    assert published(owned.speed_views) == 0
    assert owned.speed_views.runs.publish(2, ONE) == Outcome.OK
    assert owned.speed_views.runs.publish(2, ONE) == Outcome.ALREADY
    assert owned.speed_views.runs.publish(1, ONE) == Outcome.OLD
    assert published(owned.speed_views) == 2


def test_a_run_adopts_the_newest_generation_once_there_are_many_of_failed_runs(owned: Owned, redis: Redis) -> None:
    """It keeps id, cut, views and states; the run that opened it can be published no more."""
    runs = owned.speed_views.runs
    assert runs.adopt(9, [VIEW], 0) is None, "that of the published run is never adopted"
    owned.apply(ZERO, ONE)
    runs.open(1, [VIEW])
    runs.open(2, [VIEW])
    assert runs.adopt(3, [VIEW], 3) is None, "there are only two"
    assert runs.adopt(3, [VIEW, OTHER], 2) is None, "the generation does not compute this view"
    first, second, third = owned.speed_views.reader.snapshot().generations
    assert runs.adopt(3, [VIEW], 2) == ONE
    assert owned.speed_views.reader.snapshot().generations == (first, second, third._replace(run=3))
    before = everything(redis)
    assert runs.adopt(3, [VIEW], 2) == ONE, "the same call again"
    assert everything(redis) == before
    assert runs.publish(2, ONE) == Outcome.NO_GENERATION
    assert runs.publish(3, ONE) == Outcome.OK


def test_runs_that_fail_again_and_again_leave_few_generations(owned: Owned) -> None:
    """Forty nights, each with new events, of which the reader of run 0 misses none; then views are changed."""
    owned.writer.heartbeat(60)
    for night in range(1, 41):
        opening = open_cut(owned.speed_views, night, [VIEW])
        assert (opening.mode, opening.is_adopted) == ("open", night > MAX_UNPUBLISHED)
        assert owned.apply({0: night - 1} if night > 1 else ZERO, {0: night}, (night, b"k", b"1")) == Outcome.OK
    assert len(owned.speed_views.reader.snapshot().generations) == 1 + MAX_UNPUBLISHED
    assert len(owned.speed_views.reader.answer(0, ZERO, [StateRange(VIEW)]).states) == 40
    for night in (41, 42):
        assert open_cut(owned.speed_views, night, [OTHER]).is_adopted == (night == 42), "no generation computes it yet"
    behind = open_cut(owned.speed_views, 43, [OTHER], least={0: 41})
    assert not behind.is_adopted, "a run at its cut would be refused by the publish log"
    assert open_cut(owned.speed_views, 44, [OTHER], least={0: 40}).is_adopted
    assert owned.speed_views.runs.publish(44, {0: 40}) == Outcome.OK
    assert not open_cut(owned.speed_views, 45, [OTHER]).is_adopted, "the count begins anew"


# ---- takeover ----------------------------------------------------------------


def test_a_takeover_begins_anew_at_its_cut(owned: Owned) -> None:
    owned.apply(ZERO, ONE, (0, b"k", b"1"))
    old = owned.gid
    fenced = owned.speed_views.runs.fence()
    assert fenced is not None
    token, applied = fenced
    assert applied == ONE
    assert owned.apply(ONE, TWO) == Outcome.FENCED
    assert owned.speed_views.runs.takeover(token, 1, {0: 5}, [OTHER]) == Outcome.OK
    kept = owned.speed_views.reader.snapshot()
    assert kept.meta == ({0: 5}, ONE, 1, HORIZON_MS, "", kept.generations[0].gid), (
        "the marks of what was skipped are still to be loaded"
    )
    assert [(each.run, each.start, each.views) for each in kept.generations] == [(1, {0: 5}, (OTHER,))]
    assert owned.speed_views.runs.unswept() == [old]
    assert owned.speed_views.reader.answer(0, ZERO, [StateRange(VIEW)]).outcome == Outcome.REFUSED


def test_a_takeover_is_refused_once_a_writer_started(owned: Owned, redis: Redis) -> None:
    fenced = owned.speed_views.runs.fence()
    assert fenced is not None
    owned.speed_views.start_writer()
    before = everything(redis)
    assert owned.speed_views.runs.takeover(fenced[0], 1, TWO, [VIEW]) == Outcome.FENCED
    assert everything(redis) == before


@pytest.mark.parametrize("cut", [{0: 1}, {1: 9}, {0: 1, 1: 1, 2: 7}, {}])
def test_a_takeover_never_goes_back(owned: Owned, redis: Redis, cut: Cut) -> None:
    owned.apply(ZERO, {0: 2, 1: 1})
    fenced = owned.speed_views.runs.fence()
    assert fenced is not None
    before = everything(redis)
    assert owned.speed_views.runs.takeover(fenced[0], 1, cut, [VIEW]) == Outcome.BEHIND
    assert everything(redis) == before


def test_a_takeover_does_not_undo_a_newer_run(owned: Owned) -> None:
    fenced = owned.speed_views.runs.fence()
    assert fenced is not None
    owned.speed_views.runs.open(5, [VIEW])
    owned.speed_views.runs.publish(5, ZERO)
    assert owned.speed_views.runs.takeover(fenced[0], 4, TWO, [VIEW]) == Outcome.OLD
    assert published(owned.speed_views) == 5


# ---- overtake ----------------------------------------------------------------


def test_an_overtake_moves_the_living_writer_to_its_cut(owned: Owned) -> None:
    owned.apply(ZERO, ONE, (0, b"k", b"1"))
    old, flying = owned.gid, owned.batch(ONE, TWO, (0, b"k", b"2"))
    assert owned.speed_views.runs.overtake(1, {0: 5}, [OTHER]) == Outcome.OK
    kept = owned.speed_views.reader.snapshot()
    assert kept.epoch == owned.token, "the writer is not fenced"
    assert kept.meta == ({0: 5}, ONE, 1, HORIZON_MS, "", kept.generations[0].gid), (
        "the seen ids of what was skipped are still to be loaded"
    )
    assert [(each.run, each.start, each.views) for each in kept.generations] == [(1, {0: 5}, (OTHER,))]
    assert owned.writer.apply(flying) == Outcome.RESTART, "what was in flight"
    assert owned.apply({0: 5}, {0: 6}) == Outcome.LOAD
    assert owned.speed_views.runs.unswept() == [old]
    assert owned.speed_views.reader.answer(0, ZERO, [StateRange(VIEW)]).outcome == Outcome.REFUSED


def test_an_overtake_to_where_the_writer_is_makes_it_try_again(owned: Owned) -> None:
    owned.apply(ZERO, ONE)
    flying = owned.batch(ONE, TWO)
    assert owned.speed_views.runs.overtake(1, ONE, [VIEW]) == Outcome.OK
    assert owned.writer.apply(flying) == Outcome.RETRY, "into the new generation"


@pytest.mark.parametrize("cut", [{0: 1}, {1: 9}, {0: 1, 1: 1, 2: 7}, {}])
def test_an_overtake_never_goes_back(owned: Owned, redis: Redis, cut: Cut) -> None:
    owned.apply(ZERO, {0: 2, 1: 1})
    before = everything(redis)
    assert owned.speed_views.runs.overtake(1, cut, [VIEW]) == Outcome.BEHIND
    assert everything(redis) == before


def test_an_overtake_is_repeated_without_effect_and_undoes_no_newer_run(owned: Owned, redis: Redis) -> None:
    assert owned.speed_views.runs.overtake(5, TWO, [VIEW]) == Outcome.OK
    before = everything(redis)
    assert owned.speed_views.runs.overtake(5, TWO, [VIEW]) == Outcome.ALREADY
    assert owned.speed_views.runs.overtake(4, {0: 3}, [VIEW]) == Outcome.OLD
    assert everything(redis) == before


def test_there_is_nothing_to_overtake_where_redis_was_lost(empty: SpeedViews, redis: Redis) -> None:
    assert empty.runs.overtake(1, TWO, [VIEW]) == Outcome.NO_META
    assert not everything(redis)


@pytest.mark.parametrize("by_takeover", [False, True])
@pytest.mark.parametrize("is_newest", [False, True])
def test_seen_ids_go_on_only_by_the_generation_that_was_judged(
    owned: Owned, redis: Redis, by_takeover: bool, is_newest: bool
) -> None:
    """Redis may have lost everything since, and another version of the source may have been counted."""
    owned.apply(ZERO, ONE, (0, b"k", b"1"))
    runs, layout = owned.speed_views.runs, owned.speed_views.layout
    seen_by = owned.gid if is_newest else "one that is no more"
    if by_takeover:
        fenced = runs.fence()
        assert fenced is not None
        assert runs.takeover(fenced[0], 1, TWO, [VIEW], seen_by=seen_by) == Outcome.OK
    else:
        assert runs.overtake(1, TWO, [VIEW], seen_by=seen_by) == Outcome.OK
    meta = owned.speed_views.reader.snapshot().meta
    assert meta is not None
    assert (meta.marked, meta.horizon_ms) == ((ONE, HORIZON_MS) if is_newest else ({}, 0))
    assert bool(redis.exists(layout.seen)) == is_newest


def test_an_overtake_frees_memory_that_is_full(owned: Owned, redis: Redis) -> None:
    owned.apply(ZERO, ONE, (0, b"k", b"1"))
    with full_memory(redis):
        assert owned.speed_views.runs.overtake(1, TWO, [VIEW]) == Outcome.OK
        (old,) = owned.speed_views.runs.unswept()
        assert owned.speed_views.runs.sweep(old) == 1


def test_an_announced_import_ends_by_itself_or_by_its_own_withdrawal(owned: Owned, redis: Redis) -> None:
    runs, reader = owned.speed_views.runs, owned.speed_views.reader
    assert reader.events_to_come() is None
    runs.announce_load("one:1", 300_000, 60)
    assert reader.events_to_come() == 300_000
    assert 0 < redis.pttl(owned.speed_views.layout.loading) <= 60_000
    runs.announce_load("other:2", 7, 60)
    runs.withdraw_load("one:1")
    assert reader.events_to_come() == 7, "the other one is still at work"
    runs.withdraw_load("other:2")
    assert reader.events_to_come() is None


def test_an_announced_overtake_ends_by_itself(owned: Owned, redis: Redis) -> None:
    assert not owned.speed_views.reader.is_overtaken()
    owned.speed_views.runs.announce(60)
    assert owned.speed_views.reader.is_overtaken()
    assert 0 < redis.pttl(owned.speed_views.layout.overtaking) <= 60_000
    owned.speed_views.runs.withdraw()
    assert not owned.speed_views.reader.is_overtaken()


# ---- retire and sweep ----------------------------------------------------------


def test_generations_before_that_of_the_published_run_are_retired(owned: Owned) -> None:
    for run in (1, 2, 3):
        owned.speed_views.runs.open(run, [VIEW])
    gids = [each.gid for each in owned.speed_views.reader.snapshot().generations]
    assert owned.speed_views.runs.retire(gids[3]) == 0, "run 0 is published"
    owned.speed_views.runs.publish(2, ZERO)
    assert owned.speed_views.runs.retire(gids[0]) == owned.speed_views.runs.retire("unknown") == 0
    assert owned.speed_views.runs.retire(gids[1]) == 1
    assert owned.speed_views.runs.retire(gids[1]) == 0, "the same call again"
    assert [each.run for each in owned.speed_views.reader.snapshot().generations] == [1, 2, 3]
    assert owned.speed_views.runs.retire(gids[3]) == 1
    assert [each.run for each in owned.speed_views.reader.snapshot().generations] == [2, 3]


def test_retired_views_are_computed_no_more_from_the_next_run_on(owned: Owned) -> None:
    owned.speed_views.runs.open(1, [OTHER])
    owned.speed_views.runs.publish(1, ZERO)
    owned.speed_views.runs.retire(owned.gid)
    assert owned.speed_views.reader.snapshot().generations[-1].views == (VIEW, OTHER)
    owned.speed_views.runs.open(2, [OTHER])
    assert owned.speed_views.reader.snapshot().generations[-1].views == (OTHER,)


def test_a_generation_in_use_is_not_swept(owned: Owned, redis: Redis) -> None:
    owned.apply(ZERO, ONE, (0, b"k", b"1"))
    before = everything(redis)
    assert owned.speed_views.runs.unswept() == []
    assert owned.speed_views.runs.sweep(owned.gid) == 0
    assert everything(redis) == before


@pytest.mark.parametrize("buckets", [0, 1, 199, 200, 201, 450])
def test_all_of_a_retired_generation_is_swept(owned: Owned, redis: Redis, buckets: int) -> None:
    old = owned.gid
    owned.apply(ZERO, ONE, *[(60 * number, b"k", b"1") for number in range(buckets)])
    owned.speed_views.runs.open(1, [VIEW])
    owned.apply(ONE, TWO, (0, b"k", b"2"))
    owned.speed_views.runs.publish(1, ONE)
    owned.speed_views.runs.retire(owned.gid)
    assert owned.speed_views.runs.unswept() == [old]
    assert owned.speed_views.reader.size()[0] == buckets + 1
    assert owned.speed_views.runs.sweep(old) == buckets
    assert owned.speed_views.runs.unswept() == []
    assert not redis.hexists(owned.speed_views.layout.meta, f"bytes:{old}")
    assert redis.keys(f"*{old}*") == []
    assert owned.speed_views.reader.answer(1, ONE, [StateRange(VIEW)]).states == [(0, b"k", b"2")]
    assert owned.speed_views.runs.sweep(old) == 0


# ---- answer ------------------------------------------------------------------


@pytest.fixture
def filled(owned: Owned) -> SpeedViews:
    """Two generations: run 0 from the zero cut, run 1 from one event on."""
    owned.apply(ZERO, ONE, (-60, b"a", b"1"), (0, b"a", b"2"), (0, b"b", b"3"), (60, b"b", b"4"))
    owned.speed_views.runs.open(1, [VIEW])
    owned.apply(ONE, TWO, (0, b"a", b"5"), (120, b"c", b"6"))
    return owned.speed_views


FIRST = [(-60, b"a", b"1"), (0, b"a", b"2"), (0, b"b", b"3"), (60, b"b", b"4")]
SECOND = [(0, b"a", b"5"), (120, b"c", b"6")]


def test_a_reader_gets_the_generations_from_that_of_its_run_on(filled: SpeedViews) -> None:
    found = filled.reader.answer(0, ZERO, [StateRange(VIEW)])
    assert (found.outcome, found.applied, found.published) == (Outcome.OK, TWO, 0)
    assert sorted(found.states) == sorted([*FIRST, *SECOND])
    assert sorted(filled.reader.answer(1, ONE, [StateRange(VIEW)]).states) == SECOND
    assert filled.reader.answer(1, ONE, [StateRange(OTHER)]).states == []


@pytest.mark.parametrize(("run", "cut"), [(0, ONE), (1, ZERO), (1, TWO), (2, TWO)])
def test_a_reader_without_the_generation_of_its_run_is_refused(filled: SpeedViews, run: int, cut: Cut) -> None:
    found = filled.reader.answer(run, cut, [StateRange(VIEW)])
    assert (found.outcome, found.applied, found.published, found.states) == (Outcome.REFUSED, TWO, 0, [])


@pytest.mark.parametrize(
    ("begin", "end", "buckets"),
    [(-60, 0, {-60}), (0, 61, {0, 60}), (-59, 60, {0}), (60, 60, set()), (121, 10**9, set()), (-60, 121, None)],
)
def test_a_reader_gets_the_buckets_it_asks_for(
    filled: SpeedViews, begin: int, end: int, buckets: set[int] | None
) -> None:
    expected = [each for each in (*FIRST, *SECOND) if buckets is None or each[0] in buckets]
    assert sorted(filled.reader.answer(0, ZERO, [StateRange(VIEW, begin, end)]).states) == sorted(expected)


@pytest.mark.parametrize("keys", [[b"a"], [b"b", b"c"], [b"none"], [b"c", b"none", b"a"]])
def test_a_reader_gets_the_keys_it_asks_for(filled: SpeedViews, keys: list[bytes]) -> None:
    expected = [each for each in (*FIRST, *SECOND) if each[1] in keys]
    assert sorted(filled.reader.answer(0, ZERO, [StateRange(VIEW, keys=keys)]).states) == sorted(expected)


def test_a_reader_may_ask_for_many_keys(filled: SpeedViews) -> None:
    """More than Lua hands to one command."""
    keys = [b"no%d" % number for number in range(20_000)]
    assert sorted(filled.reader.answer(0, ZERO, [StateRange(VIEW, keys=[*keys, b"c"])]).states) == [(120, b"c", b"6")]


def test_more_buckets_than_wanted_are_not_an_answer(filled: SpeedViews) -> None:
    """Those of each generation count."""
    everything = [StateRange(VIEW)]
    assert filled.reader.answer(0, ZERO, everything, max_buckets=5).outcome == Outcome.OK
    found = filled.reader.answer(0, ZERO, everything, max_buckets=4)
    assert (found.outcome, found.applied, found.states) == (Outcome.TOO_MANY, TWO, [])
    assert filled.reader.answer(0, ZERO, [StateRange(VIEW, begin=0)], max_buckets=4).outcome == Outcome.OK
    assert (
        filled.reader.answer(0, ZERO, [StateRange(VIEW, begin=0), *everything], max_buckets=8).outcome
        == Outcome.TOO_MANY
    )
    assert filled.reader.answer(0, ZERO, [StateRange(VIEW, begin=0), *everything], max_buckets=9).outcome == Outcome.OK


@pytest.mark.parametrize(
    ("stretch", "looked_at"),
    [
        (StateRange(VIEW), 6),
        (StateRange(VIEW, beginning=b"c"), 6),
        (StateRange(VIEW, begin=0, end=60), 3),
        (StateRange(VIEW, keys=[b"none"]), 5),
        (StateRange(VIEW, keys=[b"a", b"b"]), 6),
        (StateRange(VIEW, keys=[b"a", b"b", b"c", *(b"%d" % number for number in range(100))]), 6),
        (StateRange(VIEW, keys=[]), 0),
    ],
)
def test_more_states_than_wanted_are_not_an_answer(filled: SpeedViews, stretch: StateRange, looked_at: int) -> None:
    """What is looked at counts, found or not: it is what takes the time of Redis."""
    assert filled.reader.answer(0, ZERO, [stretch], max_states=looked_at).outcome == Outcome.OK
    assert filled.reader.answer(0, ZERO, [stretch] * 2, max_states=2 * looked_at).outcome == Outcome.OK
    for most in (looked_at - 1, 2 * looked_at - 1):
        found = filled.reader.answer(0, ZERO, [stretch] * 2, max_states=most)
        assert (found.outcome, found.ranges) == (Outcome.TOO_MANY, ()) or not looked_at


def test_a_reader_gets_the_keys_that_begin_so(owned: Owned) -> None:
    owned.apply(ZERO, ONE, *[(0, key, key) for key in (b"\x06a", b"\x06ab", b"\x06a\x00\x01", b"\x06b", b"\x06", b"")])
    for beginning, count in [(b"", 6), (b"\x06", 5), (b"\x06a", 3), (b"\x06a\x00", 1), (b"\x06abc", 0), (b"%s", 0)]:
        found = owned.speed_views.reader.answer(0, ZERO, [StateRange(VIEW, beginning=beginning)])
        assert len(found.states) == count
        assert all(key.startswith(beginning) for _, key, _ in found.states)


def test_more_bytes_than_wanted_are_not_an_answer(owned: Owned) -> None:
    owned.apply(ZERO, ONE, *[(0, b"%d" % number, bytes(1000)) for number in range(20)])
    answer = owned.speed_views.reader.answer
    for stretch, size in [
        (StateRange(VIEW), 20_000),
        (StateRange(VIEW, heads=True), 20_000),
        (StateRange(VIEW, keys=[b"3"]), 1000),
    ]:
        assert answer(0, ZERO, [stretch], max_bytes=size).outcome == Outcome.OK
        assert answer(0, ZERO, [stretch], max_bytes=size - 1).outcome == Outcome.TOO_MANY


# ---- ranks ---------------------------------------------------------------------------


def head(number: int) -> bytes:
    return b"\x01%d\n blob" % number


@pytest.fixture
def ranked(owned: Owned) -> Owned:
    """Two buckets with ten keys each, ranked by a number and by its negative."""
    numbers = {Group(VIEW, bucket, b"k%d" % n): n * (bucket + 1) for bucket in (0, 1) for n in range(10)}
    states = {group: head(number) for group, number in numbers.items()}
    ranks = {group: (number, -number) for group, number in numbers.items()}
    gid = owned.speed_views.reader.snapshot().generations[-1].gid
    assert owned.writer.apply(MicroBatch(ZERO, ONE, gid, states, ranks=ranks)) == Outcome.OK
    return owned


def test_the_first_keys_of_each_bucket_come_with_what_the_others_have_at_most(ranked: Owned) -> None:
    asked = StateRange(VIEW, keys=[b"k3", b"none"], ranked=Ranked(1, 2, 1))
    found = ranked.speed_views.reader.answer(0, ZERO, [asked, StateRange(VIEW, keys=[b"k1"])])
    assert found.rests == (8 + 16, -1)
    assert sorted(found.ranges[0]) == [
        (0, b"k3", head(3)), (0, b"k8", b"\x018"), (0, b"k9", b"\x019"),
        (1, b"k3", head(6)), (1, b"k8", b"\x0116"), (1, b"k9", b"\x0118"),
    ]  # fmt: skip
    by_other = ranked.speed_views.reader.answer(0, ZERO, [asked._replace(ranked=Ranked(2, 2, 0))])
    assert {key for _, key, _ in by_other.states} == {b"k0", b"k1", b"k3"}
    assert by_other.rests == (0,), "which is no less than any number below zero"
    all_of_them = ranked.speed_views.reader.answer(0, ZERO, [asked._replace(ranked=Ranked(1, 10, 0))])
    assert (len(all_of_them.states), all_of_them.rests) == (20, (0,))


def test_nobody_knows_the_first_keys_where_states_are_not_ranked(ranked: Owned) -> None:
    """Those of a writer that did not rank, perhaps before an update."""
    asked = StateRange(VIEW, keys=[], ranked=Ranked(1, 2, 0))
    gid = ranked.speed_views.reader.snapshot().generations[-1].gid
    batch = MicroBatch(ONE, TWO, gid, {Group(VIEW, 0, b"new"): head(10**6)})
    assert ranked.writer.apply(batch) == Outcome.OK
    found = ranked.speed_views.reader.answer(0, ZERO, [asked])
    assert (found.rests, found.states) == ((-1,), [])
    assert ranked.speed_views.reader.answer(0, ZERO, [asked._replace(begin=1)]).rests == (16,)


def test_ranks_are_swept_with_their_states(ranked: Owned, redis: Redis) -> None:
    gid = ranked.speed_views.reader.snapshot().generations[-1].gid
    assert list(redis.scan_iter(f"*{gid}*:0:1"))
    cut = ranked.speed_views.runs.open(1, [VIEW])
    assert cut is not None
    assert ranked.speed_views.runs.publish(1, cut) == Outcome.OK
    ranked.speed_views.runs.retire(ranked.speed_views.reader.snapshot().generations[-1].gid)
    ranked.speed_views.runs.sweep(gid)
    assert list(redis.scan_iter(f"*{gid}*")) == []


def test_several_stretches_are_answered_each_for_itself(filled: SpeedViews) -> None:
    asked = [
        StateRange(VIEW, keys=[b"b"]), StateRange(OTHER), StateRange(VIEW, 0, 60), StateRange(VIEW, keys=[]),
        StateRange(VIEW, keys=[b"c", b"a"], begin=1), StateRange(VIEW, beginning=b"b", end=60),
    ]  # fmt: skip
    found = filled.reader.answer(0, ZERO, asked)
    assert [sorted(states) for states in found.ranges] == [
        [(0, b"b", b"3"), (60, b"b", b"4")], [], [(0, b"a", b"2"), (0, b"a", b"5"), (0, b"b", b"3")], [],
        [(120, b"c", b"6")], [(0, b"b", b"3")],
    ]  # fmt: skip
    nothing = filled.reader.answer(0, ZERO, [])
    assert (nothing.outcome, nothing.applied, nothing.ranges) == (Outcome.OK, TWO, ())


# ---- how old the news are ----------------------------------------------------------


def test_a_reader_is_told_how_old_the_news_are(filled: SpeedViews, owned: Owned) -> None:
    """Of what the writer said last, by the clock of Redis."""
    assert filled.reader.answer(0, ZERO, []).lag is None, "nobody said"
    all_of_it = KafkaEnd({0: 2, 1: 0}, 3.0, ONE, 8.0)
    assert owned.writer.heartbeat(5, all_of_it) == Outcome.OK
    assert filled.reader.answer(0, ZERO, []).lag == (0, pytest.approx(3, abs=0.5))
    assert owned.writer.heartbeat(5, all_of_it._replace(end={0: 4, 1: 1})) == Outcome.OK
    assert filled.reader.answer(0, ZERO, []).lag == (3, pytest.approx(8, abs=0.5))
    assert filled.reader.answer(9, ZERO, []).lag == (3, pytest.approx(8, abs=0.5)), "a reader that is refused too"
    assert filled.writer("somebody").heartbeat(5, all_of_it) == Outcome.FENCED
    assert owned.writer.heartbeat(5) == Outcome.OK, "which says nothing of it"
    assert filled.reader.answer(0, ZERO, []).lag == (3, pytest.approx(8, abs=0.5))
    assert owned.writer.heartbeat(5, KafkaEnd({0: 4}, 0.5, {0: 3}, 1.0)) == Outcome.OK
    assert filled.reader.answer(0, ZERO, []).lag == (2, None), "Redis fell back since"
    assert owned.writer.heartbeat(5, KafkaEnd({0: 4}, 0.5, TWO, None)) == Outcome.OK
    assert filled.reader.answer(0, ZERO, []).lag == (2, None), "it never had all"
    for ahead_s in (2 * 86_400.0, 60.0):
        assert owned.writer.heartbeat(5, all_of_it._replace(age_s=-ahead_s, applied_age_s=-ahead_s)) == Outcome.OK
        assert filled.reader.answer(0, ZERO, []).lag == (0, None), "the clock of Redis was ahead then, and is no more"


def test_sources_do_not_meet(filled: SpeedViews, redis: Redis) -> None:
    other = SpeedViews(redis, "web2")
    assert other.reader.answer(0, ZERO, [StateRange(VIEW)]).outcome == Outcome.LOST
    writer, _ = other.start_writer()
    writer.init(0, ZERO, [VIEW])
    assert other.reader.answer(0, ZERO, [StateRange(VIEW)]).states == []
    assert filled.reader.answer(0, ZERO, [StateRange(VIEW)]).outcome == Outcome.OK


def test_an_open_that_is_sent_again_opens_nothing(owned: Owned, redis: Redis) -> None:
    script = owned.speed_views._scripts["open"]
    first = script(keys=owned.speed_views._scripts._all_keys, args=["g1", 1, VIEW])
    before = everything(redis)
    owned_again = script(keys=owned.speed_views._scripts._all_keys, args=["g1", 1, VIEW])
    assert owned_again == first
    assert everything(redis) == before
