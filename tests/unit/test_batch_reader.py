"""The reader of batch views: it follows the publish log, holds what is read, and closes what is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_layer.index import files
from hand_off import publish_log
from serving_layer.errors import NoBatchView, NotComputedYet, UnknownView
from serving_layer.readers.batch import BatchViewReader
from serving_layer.readers.selection import Period
from tests.serving_data import FIRST, SALES, SHOP, TOTALS, Place, events
from views.aggregates import Count
from views.view import View

EVENTS = events(60, 3, days=(0, 2, 40))
ONE, TWO, THREE = (dict.fromkeys(range(3), offset) for offset in (5, 10, 15))
DAY_S = 86400


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path, views=(SALES, TOTALS))
    made.begin()
    return made


@pytest.fixture
def side(place: Place) -> Iterator[BatchViewReader]:
    made = BatchViewReader(place.settings, SHOP, place.declarations.views)
    yield made
    made.close()
    assert files._opened == {}


def served(side: BatchViewReader) -> int:
    with side.current() as run:
        return run.run


def test_a_new_run_is_served_as_soon_as_it_is_published(place: Place, side: BatchViewReader) -> None:
    assert served(side) == 0
    place.write(1, ONE, EVENTS)
    assert served(side) == 0, "a run that is not in the log is none"
    place.append(1, ONE)
    with side.current() as run:
        assert (run.run, run.cut, run.published) == (1, ONE, 1_700_000_001.0)
        assert run.catalog == {"sales": SALES.hash, "totals": TOTALS.hash}


def test_a_log_that_did_not_change_is_not_read_again(
    place: Place, side: BatchViewReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.publish(1, ONE, EVENTS)
    assert served(side) == 1
    with monkeypatch.context() as patch:
        patch.setattr(publish_log, "read", lambda _folder: pytest.fail("the log was read"))
        assert [served(side) for _ in range(3)] == [1, 1, 1]
    place.publish(2, TWO, EVENTS)
    assert served(side) == 2


def test_a_run_is_held_without_opening_another(
    place: Place, side: BatchViewReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop asks for it, and a run takes long to open."""
    place.publish(1, ONE, EVENTS)
    with side.current() as run:
        entry = run.entry
    with monkeypatch.context() as patch:
        patch.setattr(side, "_switch", lambda: pytest.fail("a run was opened"))
        held = side.hold_served(entry)
        assert held is run
        with run:
            place.publish(2, TWO, EVENTS)
            assert side.hold_served(entry) is None, "the log names another run"
            assert side.is_served(entry), "which is not open yet"
    assert served(side) == 2
    assert not side.is_served(entry)
    assert side.hold_served(entry) is None


def test_a_run_is_closed_when_its_last_query_has_ended(place: Place, side: BatchViewReader) -> None:
    place.publish(1, ONE, EVENTS)
    first, second = side.current(), side.current()
    index = first.index("sales")
    place.publish(2, TWO, EVENTS)
    with side.current() as newer:
        assert (newer.run, first.run) == (2, 1)
        assert list(index.totals(index.levels[0], 0, 2**40)), "who holds the old run goes on reading it"
        first.__exit__(None, None, None)
        assert list(index.totals(index.levels[0], 0, 2**40))
        old = index.files[0].path
        assert old in files._opened
        second.__exit__(None, None, None)
        assert old not in files._opened


def test_runs_that_share_files_leave_them_open_to_each_other(place: Place, side: BatchViewReader) -> None:
    place.publish(1, ONE, EVENTS)
    with side.current() as old:
        old.index("sales")
        place.publish(2, TWO, EVENTS, base=1)
        with side.current() as run:
            shared = {file.path for file in run.index("sales").files} & {file.path for file in old.index("sales").files}
            assert shared
            before = run.index("sales").groups
    with side.current() as run:
        assert shared <= files._opened.keys()
        assert (run.run, run.index("sales").groups) == (2, before)
        assert len(list(run.index("sales").of_prefix(run.index("sales").levels[-1], b"", 0, 2**40))) == before


def test_readers_are_pinned_and_set_free(place: Place, side: BatchViewReader) -> None:
    place.publish(1, ONE, EVENTS)
    place.publish(2, TWO, EVENTS)
    assert (served(side), side.is_pinned) == (2, False)
    publish_log.serve(place.folder, 1)
    assert (served(side), side.is_pinned) == (1, True)
    place.publish(3, THREE, EVENTS)
    assert (served(side), side.is_pinned) == (1, True), "a run that does not set them free"
    publish_log.serve(place.folder, None)
    assert (served(side), side.is_pinned) == (3, False)


def test_a_certain_run_is_loaded_beside(place: Place, side: BatchViewReader) -> None:
    for run, cut in enumerate((ONE, TWO, THREE), start=1):
        place.publish(run, cut, EVENTS)
    with side.current() as current, side.load(1) as one, side.load(3) as three:
        assert (one.run, one.cut, three is current) == (1, ONE, True)
        one.index("sales")
        with side.load(1) as again:
            assert again is one
        with side.load(2) as two:
            assert two.run == 2
        assert one.index("sales").groups, "it is held, though another was loaded"
    with pytest.raises(NoBatchView, match=r"Run 9 .*There are: 1, 2, 3"):
        side.load(9)


def test_the_days_that_a_run_has_are_known(place: Place, side: BatchViewReader) -> None:
    start = int(FIRST.timestamp())
    with side.current() as genesis:
        assert not genesis.has_days("sales", [Period(0, 2**40)])
    place.publish(1, THREE, EVENTS)
    with side.current() as run:
        for day, is_there in [(0, True), (1, False), (2, True), (3, False), (39, False), (40, True), (41, False)]:
            noon = start + day * DAY_S + DAY_S // 2
            assert run.has_days("sales", [Period(noon, noon + 3600)]) == is_there
            assert run.has_days("sales", [Period(0, 3600), Period(noon - 3600, noon)]) == is_there
        assert not run.has_days("sales", [Period(start + DAY_S, start + 2 * DAY_S)])
        assert run.has_days("sales", [Period(start + DAY_S, start + 2 * DAY_S + 1)])
        assert not run.has_days("sales", [])


def test_a_view_is_what_the_run_computed(place: Place, tmp_path: Path) -> None:
    place.publish(1, ONE, EVENTS)
    changed = View("sales", SHOP, {"orders": Count()})
    new = View("fresh", SHOP, {"orders": Count()})
    side = BatchViewReader(place.settings, SHOP, {"sales": changed, "fresh": new})
    with side.current() as run:
        assert run.view("sales").hash == SALES.hash
        assert run.view("totals").hash == TOTALS.hash, "declared no more"
        with pytest.raises(NotComputedYet, match="joins at the next batch run"):
            run.view("fresh")
        with pytest.raises(UnknownView):
            run.view("nothing")
    (place.folder.definitions / f"{TOTALS.hash}.declared").unlink()
    again = BatchViewReader(place.settings, SHOP, {})
    with again.current() as run, pytest.raises(NoBatchView, match="tidemark batch run"):
        run.view("totals")
    side.close()
    again.close()


def test_what_cannot_be_read_says_so_until_there_is_a_run_that_can(place: Place, side: BatchViewReader) -> None:
    place.publish(1, ONE, EVENTS)
    place.folder.manifest(1).unlink()
    for _ in range(2):
        with pytest.raises(NoBatchView, match=r"Run 1 .* has no manifest"):
            side.current()
    place.publish(2, TWO, EVENTS)
    assert served(side) == 2
    place.folder.serving.write_text("damaged")
    with pytest.raises(NoBatchView, match="not known which run to serve"):
        side.current()
    place.folder.serving.unlink()
    assert served(side) == 2
