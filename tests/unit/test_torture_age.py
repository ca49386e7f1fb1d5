"""Ageing: the verdict over curves, the truth that answers are compared with, and the report."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from master_dataset.archiver import upkeep
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query
from serving_layer.verification.from_scratch import recompute
from torture.age.measures import DECLARED
from torture.age.nights import FAILED_RUN, LOST_REDIS, WARM_UP, Nights
from torture.age.report import draw, thin, write_report
from torture.age.sabotages import NAMES, OLD_VERSION, patched, settings_of
from torture.age.truth import Truth
from torture.age.verdict import Curve, Declared, Growth, Point, judge
from views.aggregates import Count, Distinct, Sum
from views.in_memory import Event
from views.source import Source
from views.view import View

FLAT = Declared(Growth.FLAT, "", factor=2, slack=1)
BOUNDED = Declared(Growth.BOUNDED, "", slack=2)
LINEAR = Declared(Growth.LINEAR, "", slope=1)
NIGHTS = 60
SHOP = Source("shop", fields="event_id string, event_time timestamp, user_id string, item string, cents int")
SALES = View(
    "sales", source=SHOP, grain="1h", keys={"item": "item"}, where="cents >= 100",
    answers={"orders": Count(), "cents": Sum("cents"), "users": Distinct("user_id")},
)  # fmt: skip


def points(values: list[float], every: int = 1) -> Curve:
    return [Point(number * every, value) for number, value in enumerate(values)]


def is_right(curve: list[float], declared: Declared) -> bool:
    (judged,) = judge({"files": points(curve)}, {"files": declared})
    return judged.is_right


# ---- the verdict ---------------------------------------------------------------


def test_single_slow_night_is_no_growth() -> None:
    assert is_right([1.0] * 29 + [90.0], FLAT)


def test_duration_that_grows_with_the_nights_is_found() -> None:
    assert not is_right([1 + night / 4 for night in range(NIGHTS)], FLAT)


def test_saw_teeth_are_bounded() -> None:
    assert is_right([float(night % 10) for night in range(NIGHTS)], BOUNDED)


def test_single_file_a_week_is_found() -> None:
    assert not is_right([night % 10 + float(night // 7) for night in range(NIGHTS)], BOUNDED)


def test_linear_growth_has_its_declared_slope() -> None:
    assert is_right([float(night) for night in range(NIGHTS)], LINEAR)
    assert not is_right([1.1 * night for night in range(NIGHTS)], LINEAR)


def test_quadratic_growth_is_found_though_it_begins_slowly() -> None:
    assert not is_right([night * night / NIGHTS for night in range(NIGHTS)], LINEAR)


def test_slope_is_a_night_also_where_few_nights_are_measured() -> None:
    (judged,) = judge({"files": points([0, 6, 12, 18, 24, 30], every=6)}, {"files": LINEAR})
    assert judged.slope == pytest.approx(1.0)
    assert judged.is_right


def test_curve_of_which_nothing_is_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="redis"):
        judge({"redis": points([1, 2, 3])}, {"files": LINEAR})


def test_too_few_nights_are_refused() -> None:
    with pytest.raises(ValueError, match="third"):
        judge({"files": points([1, 2])}, {"files": LINEAR})


SLOPES = {
    # What each sabotage adds a night, by arithmetic: the curve that it must turn red, and by how much that grows.
    "no-sealing": ("master_log_files", 138.0),
    "no-trimming": ("master_log_files", 138.0),
    "no-compaction": ("master_data_files", 2.0),
    "no-retiring": ("redis_keys", 3 * 12.0),
    "no-pruning": ("manifests_files", 1.0),
    "commit-often": ("master_proofs_kb", 12 * 138 * 0.15),
}


@pytest.mark.parametrize("name", NAMES)
def test_each_sabotage_would_turn_its_curve_red_in_60_nights(name: str) -> None:
    curve, slope = SLOPES[name]
    declared = {curve: DECLARED[curve]}
    assert judge({curve: points([100.0 + night % 4 for night in range(NIGHTS)])}, declared)[0].is_right
    assert not judge({curve: points([100 + night * slope for night in range(NIGHTS)])}, declared)[0].is_right


def test_sabotages_are_settings_or_patches_that_end_with_the_block() -> None:
    assert settings_of(NAMES).keys() == {"master_compact_files", "speed_grace_s", "batch_keep_runs"}
    before = vars(upkeep)["tidy"]
    with patched(OLD_VERSION):
        assert vars(upkeep)["tidy"] is not before
    assert vars(upkeep)["tidy"] is before


def test_every_declared_figure_has_a_reason() -> None:
    assert [name for name, declared in DECLARED.items() if not declared.why] == []


# ---- the nights ----------------------------------------------------------------


@pytest.mark.parametrize("count", [15, 60, 730])
def test_upgrade_is_in_the_middle_in_a_quiet_night_and_processes_start_often_enough(count: int) -> None:
    installation: Any = None
    nights = Nights(installation, count)
    assert 0 <= nights.upgrade - WARM_UP - count // 2 <= 3
    assert all(nights.upgrade % every != every - 1 for every in (FAILED_RUN, LOST_REDIS))
    assert count // nights.starts >= 3
    assert count // nights.restart >= 3
    assert Nights(installation, count, has_upgrade=False).upgrade == -1


# ---- the truth -----------------------------------------------------------------


def made_up(count: int) -> list[Event]:
    chance = Random(4)  # noqa: S311  made-up events
    events: list[Event] = []
    offsets = [0, 0]
    for number in range(count):
        partition = chance.randrange(2)
        event_id, at = f"e{number}", datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=2 * number)
        fields = {
            "event_id": event_id, "event_time": at, "user_id": f"u{chance.randrange(5)}",
            "item": chance.choice("abc"), "cents": chance.randrange(300),
        }  # fmt: skip
        if events and chance.random() < 0.2:
            known = chance.choice(events[-5:])
            partition, event_id, at, fields = known.partition, known.event_id, known.event_time, known.fields
        events.append(Event(partition, offsets[partition], event_id, at, fields))
        offsets[partition] += 1
    return events


def test_truth_that_is_kept_up_to_date_is_what_the_reference_interpreter_recomputes() -> None:
    truth, cut = Truth(), {0: 0, 1: 0}
    whole = [("from", "2025-12-30"), ("to", "2026-03-01"), ("grain", "1d"), ("by", "item")]
    recent = [("from", "2026-01-04T05:00:00Z"), ("to", "2026-01-09T03:00:00Z"), ("by", "item")]
    events = made_up(200)
    for number, event in enumerate(events):
        truth.add(event)
        cut[event.partition] = event.offset + 1
        if number % 20 == 7:
            for asked, is_whole in ((whole, True), (recent, False)):
                query = parse_query(SALES, asked, now=2e9, limits=QueryLimits())
                expected = recompute(query, events[: number + 1])
                assert truth.expected(query, cut, whole=is_whole) == expected
                assert expected or not is_whole


def test_truth_at_an_older_cut_leaves_out_what_came_later() -> None:
    truth, events = Truth(), made_up(60)
    for event in events:
        truth.add(event)
    query = parse_query(SALES, [("from", "2025-12-30"), ("to", "2026-03-01")], now=2e9, limits=QueryLimits())
    cut = {0: 10, 1: 10}
    assert truth.expected(query, cut, whole=True) == recompute(query, [e for e in events if e.offset < 10])


def test_duplicate_in_another_partition_is_refused() -> None:
    truth, event = Truth(), made_up(1)[0]
    truth.add(event)
    with pytest.raises(ValueError, match="e0"):
        truth.add(Event(1 - event.partition, 0, "e0", event.event_time, event.fields))


# ---- the report ----------------------------------------------------------------


def test_thinned_curve_keeps_its_ends() -> None:
    curve = points([float(night) for night in range(730)])
    thinned = thin(curve, 60)
    assert len(thinned) == 60
    assert (thinned[0], thinned[-1]) == (curve[0], curve[-1])
    assert thin(curve[:10], 60) == curve[:10]


@pytest.mark.parametrize(
    ("values", "drawn"), [([], ""), ([0.0, 0.0], "▁▁"), ([1.0, 2.0, 4.0], "▂▄█"), ([5.0] * 3, "███")]
)
def test_chart_of_one_line(values: list[float], drawn: str) -> None:
    assert draw(values) == drawn


def test_report_names_what_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves = {"files": points([float(night) for night in range(NIGHTS)])}
    done = {
        "nights": 60, "wanted": 60, "warm_up": 0, "seconds": 1, "commits": 1, "events": 1, "view_changes": 0,
        "compared": 1, "sabotages": ["no-sealing"], "upgraded": {"night": 0}, "failure": "", "phases": {"run": 30.0},
    }  # fmt: skip
    write_report(tmp_path / "age.md", done, judge(curves, {"files": BOUNDED}), curves, is_right=False)
    page = (tmp_path / "age.md").read_text(encoding="utf-8")
    assert "**grows**" in page
    assert "NOT as declared" in page
    assert "no-sealing" in page
    assert "| run | 30 | 0.50 |" in page
    assert json.loads((tmp_path / "age.json").read_text())["curves"]["files"][:2] == [[0, 0.0], [1, 1.0]]
    assert capsys.readouterr().out == page


def test_report_says_that_the_time_was_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves = {"files": points([1.0] * 20)}
    done = {
        "nights": 20, "wanted": 60, "warm_up": 5, "seconds": 1, "commits": 1, "events": 1, "view_changes": 0,
        "compared": 1, "sabotages": [], "upgraded": {"night": 0}, "failure": "", "phases": {},
    }  # fmt: skip
    write_report(tmp_path / "age.md", done, judge(curves, {"files": BOUNDED}), curves, is_right=False)
    assert "did not reach the last night" in capsys.readouterr().out
