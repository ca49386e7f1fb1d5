"""What the comparison of both sides finds, and what readers make of it, on a real Redis and real read indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from batch_layer.consistency import quarantine
from batch_layer.consistency.comparison import Comparison, differences
from batch_layer.consistency.quarantine import Compared
from batch_layer.index import open_index
from hand_off import publish_log
from hand_off.manifests import read_manifest
from hand_off.speed_views import Group, totals_of
from serving_layer.errors import NotYet
from tests.serving_data import SALES, TOTALS
from tests.system.speed_source import RedisServer
from tests.system.test_query_engine import END, EVENTS, HALF, QUARTER, Shop, check
from views import states
from views.in_memory import Event
from views.keys import pack_key

SEVERAL = [("by", "item,size"), ("order", "-orders"), ("limit", "3")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    found.start()
    yield found
    found.kill()


class Compare(Shop):
    """A shop whose runs are compared with the speed views, as `run_batch` does it."""

    def compared_run(
        self, number: int, base: int | None = None, events: Sequence[Event] = EVENTS
    ) -> dict[str, Compared]:
        cut = self.writer.open(number)
        self.place.write(number, cut, events, base=base)
        manifest = read_manifest(self.place.folder, number)
        views = [(view, manifest.view(view.name).index) for view in self.place.views]
        found = Comparison(self.place.settings, self.place.folder, self.speed_views).of_run(number, cut, views)
        self.place.append(number, cut)
        self.speed_views.runs.publish(number, cut)
        return {each.view: each for each in found}

    def corrupt(self, name: str = SALES.hash, view: str = "sales") -> None:
        """The first state of the newest generation counts one order more."""
        declared = {"sales": SALES, "totals": TOTALS}[view]
        gid = self.speed_views.reader.snapshot().generations[-1].gid
        bucket = min(self.speed_views.reader.bucket_sizes(gid, name))
        key, packed = min(self.speed_views.reader.states_of(gid, name, bucket))
        state = states.unpack(declared.algebras, packed)
        wrong = states.pack(declared.algebras, {**state, "orders": state["orders"] + 1})
        assert self.speed_views.reader.read_states(gid, [Group(name, bucket, key)]) == [packed]
        self.server.client.hset(self.speed_views.layout.data(gid, name, bucket), key, wrong)


@pytest.fixture
def shop(tmp_path: Path, server: RedisServer) -> Iterator[Compare]:
    made = Compare(tmp_path / "home", server)
    yield made
    made.engine.close()


def test_equal_sides_are_found_equal_in_every_group(shop: Compare) -> None:
    shop.writer.apply(EVENTS, QUARTER)
    first = shop.compared_run(1)
    shop.writer.apply(EVENTS, HALF)
    shop.writer.open(2)  # a run that failed: its generation takes part
    shop.writer.apply(EVENTS, END)
    second = shop.compared_run(3, base=1)
    for found in (*first.values(), *second.values()):
        assert (found.mismatched, found.why_not) == (0, "")
        assert found.compared == found.groups > 0
    assert (second["sales"].since_run, second["sales"].run) == (1, 3)
    assert quarantine.read(shop.place.folder).quarantines == ()


@pytest.mark.parametrize("name", [SALES.hash, totals_of(SALES.hash)], ids=["group", "total"])
def test_reader_gets_the_run_alone_while_a_view_is_quarantined(shop: Compare, name: str) -> None:
    shop.writer.apply(EVENTS, QUARTER)
    shop.compared_run(1)
    shop.writer.apply(EVENTS, HALF)
    before = shop.engine.etag(shop.question())
    shop.corrupt(name)
    found = shop.compared_run(2)
    assert (found["sales"].mismatched, found["totals"].mismatched) == (1, 0)
    assert "orders is" in found["sales"].examples[0]
    shop.writer.apply(EVENTS, END)
    both = shop.engine.execute_all([shop.question(*SEVERAL), shop.question(view="totals")])
    assert [answer.meta.degraded for answer in both] == [True, False]
    assert [answer.meta.cut for answer in both] == [HALF, END]
    assert "quarantined" in (both[0].meta.why or "")
    for answer, question in zip(both, [shop.question(*SEVERAL), shop.question(view="totals")], strict=True):
        check(answer, question)
    assert shop.engine.etag(shop.question()) not in (None, before)
    with pytest.raises(NotYet):
        shop.query(("min_cut", ",".join(f"{partition}:{offset}" for partition, offset in END.items())))
    # The generation that was opened after it is right.
    assert shop.compared_run(3)["sales"].mismatched == 0
    answer = shop.query()
    assert not answer.meta.degraded
    check(answer, shop.question())


def test_first_keys_of_a_view_that_is_quarantined_are_those_of_the_run(shop: Compare) -> None:
    shop.writer.apply(EVENTS, HALF)
    shop.corrupt()
    shop.compared_run(1)
    shop.writer.apply(EVENTS, END)
    first = {pack_key(row.key) for row in shop.query(*SEVERAL).rows}
    gid = shop.speed_views.reader.snapshot().generations[-1].gid
    for bucket in shop.speed_views.reader.bucket_sizes(gid, SALES.hash):  # all others seem to have many more
        for key, packed in list(shop.speed_views.reader.states_of(gid, SALES.hash, bucket)):
            if key not in first:
                state = states.unpack(SALES.algebras, packed)
                wrong = states.pack(SALES.algebras, {**state, "orders": state["orders"] + 10_000})
                shop.server.client.hset(shop.speed_views.layout.data(gid, SALES.hash, bucket), key, wrong)
    answer = shop.query(*SEVERAL)
    assert {pack_key(row.key) for row in answer.rows} == first
    check(answer, shop.question(*SEVERAL))


def test_reader_of_an_older_run_does_not_get_the_wrong_states_back(shop: Compare) -> None:
    shop.writer.apply(EVENTS, QUARTER)
    shop.compared_run(1)
    shop.writer.apply(EVENTS, HALF)
    shop.corrupt()
    shop.compared_run(2)
    shop.writer.apply(EVENTS, END)
    shop.compared_run(3)
    publish_log.serve(shop.place.folder, 1)
    answer = shop.query()
    assert answer.meta.batch.run == 1
    assert answer.meta.degraded
    check(answer, shop.question())


def test_speed_views_that_were_rebuilt_are_not_quarantined(shop: Compare) -> None:
    shop.writer.apply(EVENTS, HALF)
    shop.corrupt()
    assert shop.compared_run(1)["sales"].mismatched == 1
    assert shop.query().meta.degraded
    assert shop.speed_views.runs.forget()
    assert shop.query().meta.degraded, "there are none now"
    shop.writer.start()
    shop.writer.apply(EVENTS, END)
    answer = shop.query()
    assert not answer.meta.degraded
    check(answer, shop.question())


def test_threshold_says_how_much_may_differ(shop: Compare) -> None:
    shop.place.settings = shop.place.settings.model_copy(update={"consistency_threshold": 0.5})
    shop.writer.apply(EVENTS, HALF)
    shop.corrupt()
    found = shop.compared_run(1)["sales"]
    assert found.mismatched == 1
    assert not shop.query().meta.degraded


def test_what_cannot_be_compared_says_why_and_changes_nothing(shop: Compare) -> None:
    shop.writer.apply(EVENTS, HALF)
    shop.corrupt()
    shop.compared_run(1)
    gone = Comparison(shop.place.settings, shop.place.folder, None)
    assert gone.of_run(2, HALF, [(SALES, ())])[0].why_not == "there are no speed views"
    elsewhere = Comparison(shop.place.settings, shop.place.folder, shop.speed_views)
    assert "not at the cut" in elsewhere.of_run(2, END, [(SALES, ())])[0].why_not
    assert shop.query().meta.degraded, "it is still quarantined"


def test_sample_is_bounded_repeatable_and_another_one_for_the_next_run(shop: Compare) -> None:
    shop.writer.apply(EVENTS, END)
    shop.place.write(1, END, EVENTS)
    kept = shop.speed_views.reader.snapshot()
    data = read_manifest(shop.place.folder, 1).view("sales")
    empty, after = open_index(()), open_index(shop.place.folder.indexes / name for name in data.index)

    def sampled(seed: int) -> tuple[int, Sequence[str]]:
        gid = kept.generations[0].gid
        wrong = states.pack(SALES.algebras, {name: each.zero() for name, each in SALES.algebras.items()})
        for bucket in shop.speed_views.reader.bucket_sizes(gid, SALES.hash):
            for key, _ in list(shop.speed_views.reader.states_of(gid, SALES.hash, bucket)):
                shop.server.client.hset(shop.speed_views.layout.data(gid, SALES.hash, bucket), key, wrong)
        found = differences(SALES, shop.speed_views, kept.generations, empty, after, 40, seed)
        return found.compared, [str(place) for place in found.places]

    assert sampled(1) == sampled(1)
    assert sampled(1)[1] != sampled(2)[1]
    groups = sum(shop.speed_views.reader.bucket_sizes(kept.generations[0].gid, SALES.hash).values())
    assert 10 <= sampled(1)[0] <= 160 < groups + 200
    empty.close()
    after.close()


def test_lost_and_unreadable_states_are_found_too(shop: Compare) -> None:
    shop.writer.apply(EVENTS, HALF)
    gid = shop.speed_views.reader.snapshot().generations[-1].gid
    lost, torn = sorted(shop.speed_views.reader.bucket_sizes(gid, SALES.hash))[:2]
    keys = {bucket: min(shop.speed_views.reader.states_of(gid, SALES.hash, bucket))[0] for bucket in (lost, torn)}
    shop.server.client.hdel(shop.speed_views.layout.data(gid, SALES.hash, lost), keys[lost])
    shop.server.client.hset(shop.speed_views.layout.data(gid, SALES.hash, torn), keys[torn], b"\x01torn")
    found = shop.compared_run(1)["sales"]
    assert found.mismatched == 2
    assert sorted("the speed view has nothing of it" in each for each in found.examples) == [False, True]
    assert shop.query().meta.degraded


def test_damaged_file_quarantines_all_until_a_later_run_found_all_right(shop: Compare) -> None:
    shop.writer.apply(EVENTS, QUARTER)
    shop.compared_run(1)
    shop.place.folder.consistency.write_text("{")
    shop.writer.apply(EVENTS, HALF)
    answer = shop.query()
    assert "damaged" in (answer.meta.why or "")
    check(answer, shop.question())
    shop.compared_run(2)
    assert shop.query().meta.degraded, "nobody knows what had been quarantined"
    shop.writer.apply(EVENTS, END)
    shop.compared_run(3)
    assert not shop.query().meta.degraded
    assert {one.lifted for one in quarantine.read(shop.place.folder).quarantines} == {3}


@pytest.mark.parametrize("base", [1, None], ids=["continued", "full"])
def test_speed_view_that_lost_every_event_is_quarantined(shop: Compare, base: int | None) -> None:
    shop.writer.apply(EVENTS, QUARTER)
    shop.compared_run(1)
    shop.writer.apply(EVENTS, HALF)
    gid = shop.speed_views.reader.snapshot().generations[-1].gid
    for name in (SALES.hash, totals_of(SALES.hash), TOTALS.hash):
        for bucket in shop.speed_views.reader.bucket_sizes(gid, name):
            shop.server.client.delete(shop.speed_views.layout.data(gid, name, bucket))
        shop.server.client.delete(shop.speed_views.layout.buckets(gid, name))
    found = shop.compared_run(2, base=base)
    assert found["sales"].mismatched > 0
    assert found["totals"].mismatched > 0
    assert shop.query().meta.degraded


def test_mark_is_not_lifted_where_nothing_was_compared(shop: Compare) -> None:
    shop.writer.apply(EVENTS, HALF)
    shop.corrupt()
    shop.compared_run(1)
    assert shop.compared_run(2, base=1)["sales"].compared == 0
    assert shop.query().meta.degraded
    shop.writer.apply(EVENTS, END)
    shop.compared_run(3, base=2)
    assert not shop.query().meta.degraded


def test_damaged_file_stays_as_it_is_where_the_speed_view_is_not_known(shop: Compare) -> None:
    """A mark names the speed views that it is of: one of unknown ones would keep nobody from any."""
    shop.writer.apply(EVENTS, HALF)
    shop.compared_run(1)
    shop.place.folder.consistency.write_text("{")
    gone = Comparison(shop.place.settings, shop.place.folder, None)
    assert gone.of_run(2, HALF, [(SALES, ())])[0].why_not == "there are no speed views"
    assert shop.place.folder.consistency.read_text() == "{"
    assert shop.query().meta.degraded
