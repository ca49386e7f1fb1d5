"""What a writer knows of the states that it wrote, on a real Redis: they are those of Redis, whatever happened."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from hand_off.speed_views import Group, MicroBatch, Outcome, SpeedViews, SpeedWriter, StateRange
from infra.settings import load_settings
from speed_layer import stream
from speed_layer.micro_batch import Delta
from speed_layer.redis_share import OutOfShare, RedisShare
from speed_layer.seen_ids import SeenIds
from speed_layer.stream import Refused, Stream
from speed_layer.writer import SourceWriter
from tests.system.redis_server import redis_server
from tests.tiers import times
from views import states
from views.aggregates import Count, Distinct
from views.columns import Columns, zero
from views.declarations import Declarations
from views.keys import pack_key
from views.source import Source
from views.view import View

SOURCE = Source("web", fields="event_id string, event_time timestamp, url string")
VIEW = View("hits", source=SOURCE, keys={"url": "url"}, answers={"hits": Count(), "ids": Distinct("event_id")})
HORIZON_MS = 3_600_000


class DeafWriter(SpeedWriter):
    """Redis runs the script, its reply is lost, and the client sends it again, while `is_deaf`."""

    is_deaf = False

    def apply(self, batch: MicroBatch) -> Outcome:
        if self.is_deaf:
            super().apply(batch)
        return super().apply(batch)


class Writer:
    """A stream without a query: micro-batches are given to it as counted groups."""

    def __init__(self, client: Redis, folder: Path, source: str = "web", share: RedisShare | None = None) -> None:
        self.speed_views = SpeedViews(client, source)
        writer, _ = self.speed_views.start_writer()
        writer.init(0, {}, [VIEW.hash])
        writer.load(1, is_last=True, name="none", seen_ids=b"", horizon_ms=HORIZON_MS)
        self.writer = DeafWriter(self.speed_views._scripts, self.speed_views.reader, writer.token)
        gid = self.speed_views.reader.snapshot().generations[-1].gid
        self.stream = Stream(
            load_settings(),
            SOURCE,
            Columns((VIEW,)),
            self.writer,
            {},
            gid,
            SeenIds(HORIZON_MS),
            folder,
            1_000,
            share=share,
        )
        self.expected: Counter[bytes] = Counter()
        self.end = self.run = 0

    def write(self, urls: str) -> None:
        """One micro-batch: an event for each letter."""
        counts = Counter(url.encode() for url in urls)

        def add(group: Group, known: dict[str, object] | None) -> dict[str, object]:
            found = zero(VIEW) if known is None else known
            found["hits"] = VIEW.algebras["hits"].add_all(found["hits"], [1] * counts[group.key], ())
            return found

        self.end += len(urls) or 1
        hashes = np.arange(self.end, self.end + len(urls), dtype=np.int64)
        groups = [Group(VIEW.hash, 0, key) for key in counts]
        self.stream._apply(Delta(groups, add, hashes, 1, 1, len(urls), 0), {0: self.end})
        self.expected += counts

    def open(self, *catalog: str) -> None:
        """A run opens a generation."""
        self.run += 1
        self.speed_views.runs.open(self.run, catalog or [VIEW.hash])

    def check(self) -> None:
        """A reader gets what was written, and what the writer remembers is what Redis has."""
        found = self.speed_views.reader.answer(0, {}, [StateRange(VIEW.hash)])
        assert found.applied == ({0: self.end} if self.end else {})
        hits: Counter[bytes] = Counter()
        for _bucket, key, state in found.states:
            hits[key] += states.unpack(VIEW.algebras, state)["hits"]
        assert hits == self.expected
        known = self.stream.states
        packed = [states.pack(VIEW.algebras, state) for state, _ in known.values()]
        assert packed == self.speed_views.reader.read_states(self.stream.gid, list(known))
        assert self.stream.cached_bytes == sum(size for _, size in known.values()) == sum(map(len, packed))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with redis_server(tmp_path_factory.mktemp("redis")) as client:
        yield client


@pytest.fixture
def writer(redis: Redis, tmp_path: Path) -> Writer:
    redis.flushdb()
    return Writer(redis, tmp_path)


def test_states_are_read_once_and_then_known(writer: Writer, redis: Redis) -> None:
    writer.write("aab")
    asked = redis.info("commandstats").get("cmdstat_hmget", {}).get("calls", 0)
    writer.write("ab")
    # The script asks for meta itself, once; no state is asked for.
    assert redis.info("commandstats")["cmdstat_hmget"]["calls"] == asked + 1
    writer.check()


def test_a_micro_batch_for_a_generation_that_has_ended_goes_into_the_next(writer: Writer) -> None:
    writer.write("aab")
    first = writer.stream.gid
    writer.open()
    writer.write("ac")
    assert writer.stream.gid != first
    assert [group.key for group in writer.stream.states] == [b"a", b"c"], "not those of the generation before"
    writer.check()
    assert (
        states.unpack(
            VIEW.algebras, writer.speed_views.reader.read_states(writer.stream.gid, [*writer.stream.states])[0]
        )["hits"]
        == 1
    )


def test_a_generation_with_other_views_is_for_a_new_query(writer: Writer) -> None:
    writer.write("a")
    writer.open("f" * 64)
    with pytest.raises(Refused) as refused:
        writer.write("a")
    assert refused.value.outcome == Outcome.RETRY == writer.stream._refused


def test_states_of_which_no_reply_came_are_read_again(writer: Writer) -> None:
    writer.write("ab")
    writer.writer.is_deaf = True
    writer.write("ac")
    assert [group.key for group in writer.stream.states] == [b"b"], "those that are not known for sure are forgotten"
    writer.check()
    writer.writer.is_deaf = False
    writer.write("abc")
    writer.check()


def test_states_beyond_the_bound_are_forgotten_the_oldest_first(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write("a")
    monkeypatch.setattr(stream, "MAX_CACHED_BYTES", 3 * writer.stream.cached_bytes)
    writer.write("bcd")
    writer.write("b")
    writer.write("ae")
    assert [group.key for group in writer.stream.states] == [b"b", b"a", b"e"]
    writer.check()


STEPS = st.one_of(
    st.tuples(st.just("write"), st.text("abcdef", max_size=6)),
    st.tuples(st.just("open"), st.just(())),
    st.tuples(st.just("deaf"), st.booleans()),
)


@settings(
    max_examples=times(20, 600), deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(steps=st.lists(STEPS, max_size=25), max_bytes=st.sampled_from([0, 20, 60, 10**6]))
def test_whatever_happens_what_is_known_is_what_redis_has(
    redis: Redis, tmp_path: Path, steps: list[tuple[str, object]], max_bytes: int
) -> None:
    redis.flushdb()
    writer = Writer(redis, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "MAX_CACHED_BYTES", max_bytes)
        for name, given_ in steps:
            match name:
                case "write":
                    writer.write(str(given_))
                case "open":
                    writer.open()
                case "deaf":
                    writer.writer.is_deaf = bool(given_)
            writer.check()


@pytest.mark.parametrize("key_bytes", [10, 300, 1_000])
def test_the_size_of_states_is_about_what_redis_takes(writer: Writer, redis: Redis, key_bytes: int) -> None:
    """However different the buckets are: one group in most of them, thousands in one, and states that grow."""
    before = redis.info("memory")["used_memory"]
    groups = [
        *(Group(VIEW.hash, 0, pack_key(("x" * (key_bytes - 5) + str(number).zfill(5),))) for number in range(4_000)),
        *(Group(VIEW.hash, 3600 * number, b"k") for number in range(1, 300)),
    ]

    def add(group: Group, known: dict[str, object] | None) -> dict[str, object]:
        found = zero(VIEW) if known is None else known
        found["hits"] = VIEW.algebras["hits"].add_all(found["hits"], [1], ())
        return found

    for end in (1, 2, 3):
        hashes = np.arange(end, end + 1, dtype=np.int64)
        writer.stream._apply(Delta(groups, add, hashes, 1, 1, 1, 0), {0: end})
    taken = redis.info("memory")["used_memory"] - before
    states, size = writer.speed_views.reader.size()
    assert states == len(groups)
    counts = writer.speed_views.reader.counts()
    assert (sum(counts[VIEW.hash]), max(counts[VIEW.hash])) == (len(groups), 4_000), "what the metrics of views tell"
    assert 0.5 < size / taken < 2, (size, taken)
    writer.stream.states.clear()
    writer.stream.cached_bytes = 0
    writer.stream._apply(Delta(groups, add, np.empty(0, dtype=np.int64), 1, 1, 1, 0), {0: 4})
    assert writer.speed_views.reader.size() == (states, size), "states that are as long as before take no more"


def test_what_is_measured_says_how_many_groups_each_view_has(writer: Writer, redis: Redis, tmp_path: Path) -> None:
    """Over all buckets and in the largest one; a view without events has none."""
    other = View("users", source=SOURCE, answers={"ids": Distinct("event_id")})
    declarations = Declarations({"web": SOURCE}, {"hits": VIEW, "users": other})
    port = redis.connection_pool.connection_kwargs["port"]
    settings = load_settings(home=tmp_path, redis_url=f"redis://127.0.0.1:{port}/0", kafka_bootstrap="127.0.0.1:1")
    measured = SourceWriter(settings, None, declarations, SOURCE, threading.Event())  # type: ignore[arg-type]
    assert measured.measure()["groups"] == {"hits": 0, "users": 0}
    groups = [Group(VIEW.hash, 3600 * hour, b"key %d" % number) for hour in (1, 2) for number in range(3 * hour)]
    writer.stream._apply(
        Delta(groups, lambda _group, _known: zero(VIEW), np.empty(0, dtype=np.int64), 1, 1, 9, 0), {0: 1}
    )
    found = measured.measure()
    assert (found["groups"], found["largest_bucket_groups"]) == ({"hits": 9, "users": 0}, {"hits": 6, "users": 0})
    assert found["states"] == 9


def test_keys_of_an_older_version_are_found_until_a_new_writer_wrote(writer: Writer, redis: Redis) -> None:
    reader, layout = writer.speed_views.reader, writer.speed_views.layout
    assert not reader.has_long_keys()
    writer.write("aab")
    assert not reader.has_long_keys()
    redis.hdel(layout.meta, "short_keys")
    assert not reader.has_long_keys(), "it has none"
    redis.hset(layout.data(writer.stream.gid, VIEW.hash, 0), pack_key(("x" * 2_000,)), b"state")
    assert reader.has_long_keys()
    writer.write("ab")
    assert not reader.has_long_keys(), "whoever writes now has looked"


def fill(writer: Writer, rows: int, first: int = 0) -> None:
    """One micro-batch with so many new groups, of about 3 kB each."""
    groups = [Group(VIEW.hash, 0, pack_key((str(number).zfill(1_000),))) for number in range(first, first + rows)]
    writer.end += 1
    delta = Delta(groups, lambda _group, known: known or zero(VIEW), np.empty(0, dtype=np.int64), 1, 1, rows, 0)
    writer.stream._apply(delta, {0: writer.end})


def fill_up(writer: Writer, rows: int = 200) -> int:
    """Micro-batches until the source has taken its share. Returns how many it took."""
    for count in range(200):
        try:
            fill(writer, rows, first=count * rows)
        except OutOfShare:
            writer.end -= 1
            return count
    pytest.fail("it took all that there is")


def test_a_source_that_has_taken_its_share_stops_at_an_exact_cut_and_stops_no_other(
    redis: Redis, tmp_path: Path
) -> None:
    redis.flushdb()
    maximum = int(redis.info("memory")["used_memory"]) + 40_000_000
    redis.config_set("maxmemory", maximum)
    try:
        names = ["web", "shop", "cards"]
        web, shop, cards = (Writer(redis, tmp_path, name, RedisShare.of(redis, name, names)) for name in names)
        taken = fill_up(web)
        assert taken > 10, "more than its part, because nobody else needs it yet"
        applied = web.speed_views.reader.snapshot().meta
        assert applied is not None
        assert applied.applied == {0: web.end} == {0: taken}
        with pytest.raises(
            OutOfShare, match=r"Source 'web' has taken its share of Redis: the states of 'web' take [\d.]+ MB"
        ):
            fill(web, 200, first=1_000_000)
        web.end -= 1
        assert fill_up(shop) >= 5, "what was kept for it is there"
        assert fill_up(cards) >= 5
        assert redis.info("memory")["used_memory"] < maximum
        redis.config_set("maxmemory", maximum + 10_000_000)
        fill(web, 200, first=1_000_000)  # there is room again, and it goes on where it stopped
    finally:
        redis.config_set("maxmemory", 0)


def test_a_micro_batch_that_alone_is_too_large_is_refused_before_redis_is_over(redis: Redis, tmp_path: Path) -> None:
    redis.flushdb()
    maximum = int(redis.info("memory")["used_memory"]) + 5_000_000
    redis.config_set("maxmemory", maximum)
    try:
        alone = Writer(redis, tmp_path, "web", RedisShare.of(redis, "web", ["web"]))
        with pytest.raises(OutOfShare):
            fill(alone, 3_000)
        alone.end -= 1
        assert redis.info("memory")["used_memory"] < maximum
        fill(alone, 300)
    finally:
        redis.config_set("maxmemory", 0)
