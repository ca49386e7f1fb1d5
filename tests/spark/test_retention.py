"""Retention on real Spark: old records go, answers stay, and nothing that was removed counts again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from batch_layer import duplicates, duplicates_in_memory
from batch_layer.lease import lease
from batch_layer.retention import Retained, Retention
from hand_off.foundations import FoundationDamaged, foundation_of, list_foundations
from master_dataset.table import coverage
from master_dataset.table.checks.fsck import deep_check, quick_check
from master_dataset.table.compaction import compact, remove_replaced
from serving_layer.engine import QueryEngine
from serving_layer.verification import verify
from tests.spark.test_batch_runs import SMALL, Shop, assert_same, interpreted, later, made
from views.declarations import load_declarations

DAY = timedelta(days=1)
FIRST = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW = (FIRST + 10 * DAY).timestamp()


class Stopped(Exception):
    """A failpoint was reached."""


class AgeingShop(Shop):
    """A shop whose records come on several days."""

    arrives = FIRST

    def _row(self, *record: Any) -> tuple[Any, ...]:  # type: ignore[override]  # with the time of its day
        row = list(super()._row(*record))
        row[3] = self.arrives
        return tuple(row)

    def retain(self, days: float, at: str = "", views: Collection[str] = (), **options: Any) -> Retained:
        """Remove what is older than so many days at NOW; stop at a failpoint."""
        self.source, self.views = self.declared()
        found = Retention(
            self.spark,
            self.settings,
            self.folder,
            self.table,
            [view for view in self.views.values() if not views or view.name in views],
            failpoint=lambda name: _stop(name, at),
        )
        with lease(self.folder, "test"):
            return found.apply(days, now=NOW, **options)

    def verify(self) -> None:
        """Answers are what the reference interpreter makes of the foundation and of the records that are left."""
        engine = self.engine()
        for found in verify.from_scratch(self.settings, engine, self.source, [*self.views.values()]):
            assert (found.mismatched, found.why_not) == (0, ""), found.examples
            assert found.compared > 0
        engine.close()

    def engine(self) -> QueryEngine:
        return QueryEngine(self.settings, load_declarations(self.settings.views_dir, with_catalog=False))

    def fsck(self) -> list[str]:
        return [str(finding.text) for finding in quick_check(self.table)]


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    with interpreted(spark) as session:
        yield session


def test_answers_stay_when_old_records_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    """Two removals, then duplicates of removed events, late events, a continued and a full run."""
    shop = AgeingShop(spark, tmp_path)
    first = made(shop, 300, 2)
    shop.archive(first, poison=5)
    shop.arrives = FIRST + DAY
    shop.archive(later(first[:100], 1) + first[:20], poison=2)
    compact(spark, shop.table)  # records of both days are in one file now
    shop.arrives = FIRST + 2 * DAY
    shop.archive(later(first[100:200], 2))
    shop.run()
    shop.check()
    archived = coverage.of(shop.table)
    assert shop.retain(20).rows == 0, "nothing is so old"
    planned = shop.retain(9, dry_run=True)
    assert (planned.rows, planned.foundation, planned.day) == (305, "", "2026-03-02")
    assert coverage.of(shop.table) == archived
    away, *others = sorted(shop.views)
    assert f"{away} would lose totals" in shop.retain(9, views=others or ["none"]).reason
    assert coverage.of(shop.table) == archived
    done = shop.retain(9)
    assert done.rows == 305
    assert done.foundation
    held = coverage.of(shop.table)
    assert (held.rows, held.removed.rows, held.cut) == (archived.rows - 305, 305, archived.cut)
    assert shop.fsck() == []
    assert shop.retain(9).rows == 0, "once is enough"
    # More events: duplicates of removed ones, late ones for removed days, new ones.
    shop.arrives = FIRST + 3 * DAY
    shop.archive(first[30:60] + later(first[200:230], -1) + later(first[230:260], 3), poison=1)
    continued = shop.run()
    assert continued.kind == "continued"
    shop.check()
    full = shop.run(full=True)
    assert (full.kind, full.base_run) == ("full", None)
    shop.check()
    assert (full.events, full.invalid, full.duplicates) == (continued.events, continued.invalid, continued.duplicates)
    shop.verify()
    # A second removal builds on the first.
    assert shop.retain(8).rows == 122
    assert len(list_foundations(shop.folder)) == 1
    shop.archive(first[60:70] + later(first[:10], 1))
    shop.run()
    shop.check()
    shop.run(full=True)
    shop.check()
    assert remove_replaced(shop.table, keep_s=-1) > 0
    assert [str(finding.text) for finding in deep_check(spark, shop.table) if finding.is_damage] == []


STEPS = (
    "retain.after_foundation",
    "retain.after_split",
    "retain.before_commit",
    "retain.before_ledger",
    "retain.after_commit",
)


def test_removals_that_are_killed_are_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One day after the other is removed, and each removal is killed at another step first."""
    shop = AgeingShop(spark, tmp_path)
    days = [later(made(shop, 20, 2), day) for day in range(len(STEPS) + 1)]
    for day, records in enumerate(days):
        shop.arrives = FIRST + day * DAY
        shop.archive(records)
    compact(spark, shop.table)  # all days are in one file, which each removal splits
    shop.run()
    for number, step in enumerate(STEPS):
        with monkeypatch.context() as patch:
            for module in ("master_dataset.table.retention", "master_dataset.table.append"):
                patch.setattr(f"{module}.reach", lambda name, step=step: _stop(name, step))
            with pytest.raises(Stopped):
                shop.retain(9 - number, at=step)
        assert [text for text in shop.fsck() if "named by no commit" not in text] == [], step
        shop.retain(9 - number)
        held = coverage.of(shop.table)
        assert held.removed.rows == sum(map(len, days[: number + 1])), step
        assert list_foundations(shop.folder)[-1:] == [held.removed.foundation], step
    shop.arrives = FIRST + 9 * DAY
    shop.archive([records[number] for number, records in enumerate(days)])
    shop.run(full=True)
    shop.check()


def _stop(name: str, at: str) -> None:
    if name == at:
        raise Stopped(name)


def test_spark_finds_duplicates_of_removed_events_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates_in_memory, "MAX_EVENTS", 0)
    monkeypatch.setattr(duplicates, "MAX_FOLDERS", 1)
    shop = AgeingShop(spark, tmp_path)
    first = made(shop, 60, 2)
    shop.archive(first[:40])
    shop.arrives = FIRST + DAY
    shop.archive(first[40:])
    shop.run()
    assert shop.retain(9).rows == 40
    shop.arrives = FIRST + 2 * DAY
    shop.archive(first[30:50])
    shop.run()
    shop.check()
    assert shop.retain(8).rows == 20, "its ids are merged with those before"
    shop.archive(first[20:45])
    shop.run(full=True)
    shop.check()


def test_a_view_that_is_declared_after_a_removal_counts_since_then(spark: SparkSession, tmp_path: Path) -> None:
    shop = AgeingShop(spark, tmp_path)
    first = made(shop, 60, 2)
    shop.archive(first)
    removed = list(shop.events)
    shop.arrives = FIRST + DAY
    shop.archive(later(first[:30], 1))
    shop.run()
    shop.retain(9)
    path = shop.settings.views_dir / "shop.py"
    path.write_text(SMALL + "\nmore = View('more', shop, {'n': Count('item')})\n")
    shop.source, shop.views = shop.declared()
    shop.archive(first[:10] + later(first[30:40], 2))
    since = {"cut": {str(p): offset for p, offset in coverage.of(shop.table).removed.cut.items()}, "day": "2026-03-02"}
    for full in (False, True, False):
        found = shop.run(full=full)
        assert [found.view(name).since for name in ("sales", "more")] == [None, since]
        assert_same(shop.answers("sales"), shop.expected("sales"))
        all_events, ids = shop.events, {event.event_id for event in removed}
        shop.events = [event for event in all_events if event.event_id not in ids]
        assert_same(shop.answers("more"), shop.expected("more"))
        shop.events = all_events
    assert shop.retain(8).rows > 0
    found = shop.run(full=True)
    assert [found.view(name).since for name in ("sales", "more")] == [None, since]
    shop.verify()
    engine = shop.engine()
    assert [engine.since(name) for name in ("sales", "more")] == [None, since]
    engine.close()
    # A damaged foundation is not believed, and answers stay.
    foundation = foundation_of(shop.folder, coverage.of(shop.table).removed)
    assert foundation is not None
    path = shop.folder.root / next(iter(foundation.checksums))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(FoundationDamaged, match="backup"):
        shop.run(full=True)
    assert_same(shop.answers("sales"), shop.expected("sales"))
