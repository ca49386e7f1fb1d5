"""What the fault programme decides without an installation: plans, comparisons, results, growth."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from master_dataset.cut import Cut
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query, parse_query_json
from serving_layer.verification.from_scratch import recompute
from tidemark.commands.torture import _own_folder
from torture.commands import output_of
from torture.comparison import RowPosition, ServedAnswer, compare, last_position
from torture.errors import BrokenPromise, TortureError
from torture.fault import KINDS, Fault
from torture.faults import all_faults
from torture.installation import Installation
from torture.plan import PlannedShot, plan, usable
from torture.programme import Programme
from torture.questions import as_json, question, whole
from torture.result import ProgrammeResult, Sample, Shot, Violation, read_result
from torture.sampler import growth
from torture.shop import minutes, sales, totals
from torture.supervised import _appended
from torture.table import findings, remarks, summary
from views.in_memory import Event
from views.view import View

HOUR = int(datetime(2026, 3, 1, 22, tzinfo=UTC).timestamp()) // 3600
EVENTS = [
    Event(
        n % 3, n // 3, f"e{n}", datetime(2026, 3, 1, 22 + n % 2, n, tzinfo=UTC),
        {"user_id": f"u{n % 2}", "item": "a", "paid": True, "cents": n, "ms": n / 7},
    )
    for n in range(12)
]  # fmt: skip


class Known:
    """Stands for the truth: what the topic holds is given."""

    def events(self, cut: Cut, start_s: float, end_s: float) -> list[Event]:
        return [
            event
            for event in EVENTS
            if event.offset < cut.get(event.partition, 0) and start_s <= event.event_time.timestamp() < end_s
        ]


def answered(view: View, query: dict[str, str], cut: Cut) -> ServedAnswer:
    """The right answer, as the platform gives it."""
    made = parse_query(view, list(query.items()), now=0.0, limits=QueryLimits())
    rows = [
        {
            "bucket": datetime.fromtimestamp(period.start, UTC).isoformat(),
            **dict(zip(made.by, key, strict=True)),
            **found,
        }
        for (period, key), found in recompute(made, Known().events(cut, made.range.start, made.range.end)).items()
    ]
    plain = [{name: list(v) if isinstance(v, tuple) else v for name, v in row.items()} for row in rows]
    meta = {"cut": {str(p): o for p, o in cut.items()}, "degraded": False}
    return ServedAnswer(view, query, {"rows": plain, "next": None, "meta": meta}, 0.0)


@pytest.mark.parametrize("view", [sales, totals, minutes], ids=lambda view: view.name)
def test_a_right_answer_is_right_and_any_other_number_is_not(view: View) -> None:
    cut = {0: 4, 1: 3, 2: 2}
    query = whole(view, [HOUR, HOUR + 1]) | ({"by": ",".join(view.keys)} if view.keys else {})
    right = answered(view, query, cut)
    compared = compare(right, Known())  # type: ignore[arg-type]
    assert compared.differences == ()
    assert compared.values >= len(view.answers)
    row = right.body["rows"][0]
    for name, value in row.items():
        if name in view.answers and value is not None:
            other = (
                [*value, 1] if isinstance(value, list) else f"{value}x" if isinstance(value, str) else value_plus(value)
            )
            body = {**right.body, "rows": [{**row, name: other}, *right.body["rows"][1:]]}
            assert compare(replace(right, body=body), Known()).differences, name  # type: ignore[arg-type]


def value_plus(value: Any) -> Any:
    return {**value, "more": 1} if isinstance(value, dict) else value + 1


@pytest.mark.parametrize("more", [{}, {"user": "u1"}])
def test_rows_that_come_twice_are_wrong(more: dict[str, str]) -> None:
    right = answered(minutes, {**whole(minutes, [HOUR, HOUR + 1]), "by": "user", **more}, {0: 4, 1: 4, 2: 4})
    assert compare(right, Known()).differences == ()  # type: ignore[arg-type]
    body = {**right.body, "rows": [*right.body["rows"], right.body["rows"][0]]}
    assert compare(replace(right, body=body), Known()).differences  # type: ignore[arg-type]


def test_first_rows_by_a_count_are_the_highest_and_equal_ones_any_of_them() -> None:
    whole_day = {**whole(sales, [HOUR, HOUR + 1]), "grain": "hour", "by": "item"}
    all_rows = answered(sales, whole_day, {0: 4, 1: 4, 2: 2}).body["rows"]  # 5 orders in each hour
    few = answered(sales, {**whole_day, "order": "-orders", "limit": "1"}, {0: 4, 1: 4, 2: 2})

    def judged(rows: list[dict[str, Any]], more: str | None = "page 2") -> tuple[str, ...]:
        return compare(replace(few, body={**few.body, "rows": rows, "next": more}), Known()).differences  # type: ignore[arg-type]

    assert [row["orders"] for row in all_rows] == [5, 5]
    assert judged(all_rows[:1]) == judged(all_rows[1:]) == ()
    assert judged(all_rows)
    assert judged([])
    assert judged(all_rows[:1], None)
    assert judged([{**all_rows[0], "orders": 4}])
    few = answered(sales, {**whole_day, "order": "-orders", "limit": "1"}, {0: 4, 1: 3, 2: 2})
    assert [bool(judged([row])) for row in sorted(few.body["rows"], key=lambda row: row["orders"])] == [True, False]


def test_a_page_has_the_next_places_in_their_order_and_the_numbers_of_its_own_cut() -> None:
    query = {**whole(minutes, [HOUR, HOUR + 1]), "grain": "hour", "by": "user", "limit": "1"}
    early, late = (answered(minutes, query, dict.fromkeys(range(3), end)) for end in (3, 4))

    def page(of: ServedAnswer, *places: int, after: RowPosition | None = None, more: str | None = None) -> ServedAnswer:
        rows = [of.body["rows"][place] for place in places]
        return replace(of, body={**of.body, "rows": rows, "next": more}, after=after)

    def judged(of: ServedAnswer) -> tuple[str, ...]:
        return compare(of, Known()).differences  # type: ignore[arg-type]

    first = page(early, 0, more="a cursor")
    assert len(early.body["rows"]) == len(late.body["rows"]) == 2
    assert judged(first) == judged(page(early, 1, after=last_position(first))) == ()
    assert judged(page(late, 1, after=last_position(first))) == (), "at a later cut than the first page"
    assert judged(page(early, 0)), "no cursor, and there is more"
    assert judged(page(early, 1, more="a cursor")), "the first place is left out"
    assert judged(page(early, 0, 1)), "more rows than were asked for"
    assert judged(page(early, 0, after=last_position(first))), "a place on two pages"
    assert judged(page(early, after=last_position(first))), "a place on no page"
    mixed = replace(page(late, 1, after=last_position(first)), body={**late.body, "rows": early.body["rows"][1:]})
    assert judged(mixed), "numbers of another cut than the page's"
    both = {**query, "limit": "2"}
    assert judged(replace(page(early, 0, 1), query=both)) == ()
    assert judged(replace(page(early, 1, 0), query=both)), "not in order"


def test_a_bucket_is_named_by_the_time_zone_of_the_query() -> None:
    query = {**whole(sales, [HOUR, HOUR + 1]), "grain": "hour", "tz": "Asia/Tokyo"}
    utc = answered(sales, query, dict.fromkeys(range(3), 4))
    zone = ZoneInfo("Asia/Tokyo")
    rows = [
        {**row, "bucket": datetime.fromisoformat(row["bucket"]).astimezone(zone).isoformat()}
        for row in utc.body["rows"]
    ]
    right = replace(utc, body={**utc.body, "rows": rows})
    assert compare(right, Known()).differences == ()  # type: ignore[arg-type]
    assert compare(utc, Known()).differences  # type: ignore[arg-type]


def test_a_window_is_taken_over_what_came_before_the_range() -> None:
    hours = {"from": "2026-03-01T23:00:00Z", "to": "2026-03-02T00:00:00Z", "limit": "10000", "grain": "hour"}
    cut = dict.fromkeys(range(3), 4)
    rolling = {**hours, "window": "2h"}
    both = answered(sales, {**rolling, "from": "2026-03-01T22:00:00Z"}, cut).body["rows"][-1]
    right = answered(sales, rolling, cut)
    alone = right.body["rows"][0]
    for row, is_right in ((both, True), (alone, False)):
        judged = compare(replace(right, body={**right.body, "rows": [row]}), Known())  # type: ignore[arg-type]
        assert (judged.differences == ()) == is_right


def test_an_answer_of_another_cut_than_it_says_is_wrong() -> None:
    query = whole(totals, [HOUR, HOUR + 1])
    said = answered(totals, query, {0: 4, 1: 4, 2: 4})
    for cut in ({"0": 3, "1": 4, "2": 4}, {"0": 4, "1": 4}):
        body = {**said.body, "meta": {**said.meta, "cut": cut}}
        assert compare(replace(said, body=body), Known()).differences  # type: ignore[arg-type]
    missing, more = {**said.body, "rows": []}, {**said.body, "next": "page 2"}
    assert compare(replace(said, body=missing), Known()).differences  # type: ignore[arg-type]
    assert compare(replace(said, body=more), Known()).differences  # type: ignore[arg-type]


@pytest.mark.parametrize("view", [sales, totals, minutes], ids=lambda view: view.name)
def test_every_question_can_be_asked(view: View) -> None:
    chance = random.Random(3)  # noqa: S311  # which questions
    grains, ways = set[str](), set[str]()
    known = {key: "true" if key == "paid" else "u1" for key in view.keys}
    for _ in range(300):
        query = question(view, [HOUR - 40, HOUR, HOUR + 3], chance, known)
        made = parse_query(view, list(query.items()), now=0.0, limits=QueryLimits())
        assert made.range.start % view.bucket.seconds == made.range.end % view.bucket.seconds == 0
        grains.add(made.grain)
        ways |= {name.partition(".")[2] or name for name in query} | {made.tz, f"{made.grain} {made.tz}"}
        body = {name: value for name, value in as_json(view, query).items() if name != "view"}
        assert parse_query_json(view, body, now=0.0, limits=QueryLimits()) == made, "the same question by POST"
    if view is minutes:
        assert ways >= {"tz", "window", "not", "prefix", "grain", "by", "Asia/Kolkata"}
    if view is not totals:
        assert {"day Asia/Tokyo", "week Asia/Tokyo", "6h Asia/Tokyo"} <= ways
    assert view.grain in grains or view.bucket.seconds >= 3600, "a state in the wrong minute of its hour is found"


def test_the_same_seed_is_the_same_plan_and_a_short_one_has_every_kind() -> None:
    faults = all_faults()
    assert plan(faults, 90, 5) == plan(faults, 90, 5) != plan(faults, 90, 6)
    kinds = {fault.kind for fault in faults}
    assert {each.fault.kind for each in plan(faults, 90, 5)} == kinds <= {*KINDS}
    assert len(plan(faults, 90, 5)) == min(90, len(faults)) or len(faults) < 90
    long = plan(faults, 3 * len(faults), 5)
    assert all(sum(each.fault == fault for each in long) == 3 for fault in faults)
    for shots in (90, 3 * len(faults)):
        assert {each.fault.kind for each in plan(faults, shots, 5)[: len(kinds)]} == kinds, "one of each comes first"
    assert long[-1].waits
    assert not all(each.waits for each in long)


def test_a_plan_in_the_given_order_has_the_faults_as_they_are_given() -> None:
    faults = all_faults()[::-7]
    assert [shot.fault for shot in plan(faults, 5, 1, in_given_order=True)] == faults[:5]
    assert len(plan(faults, len(faults) + 5, 1, in_given_order=True)) == len(faults)


def test_faults_whose_turn_never_came_and_defects_of_faults_are_reported() -> None:
    made = programme()
    made._recover = lambda _since, _within: True  # type: ignore[method-assign]
    made._shoot(1, PlannedShot(failing(AttributeError("no 'bend'")), "1", waits=True))
    assert [wrong.what for wrong in made.result.wrong] == ["a defect of the fault itself"]
    late = ProgrammeResult(7, not_tried=["power lost"])
    assert remarks(late) == ["not tried, for lack of time: power lost"]
    assert not late.has_broken_promise


def test_names_of_faults_tell_them_apart() -> None:
    names = [fault.name for fault in all_faults()]
    assert len(names) == len(set(names)) > 70


def test_what_a_machine_lacks_is_left_out_and_named() -> None:
    here = Fault("here", "kill", lambda _installation, _chance: nullcontext())
    absent = replace(here, name="absent", missing=lambda: "needs a moon")
    other = replace(here, name="other", kind="clock")
    assert usable([here, absent, other], ["kill"]) == ([here], {"absent": "needs a moon"})


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    shot = Shot("kill redis", "kill", 1.0, 1.0, 3.5, 2.5, comparisons=10)
    made = ProgrammeResult(7, shots=[shot], samples=[Sample(1.0, 3, {0: 5}, False, {"redis": 1}, {"redis": 9})])
    made.write(tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == made
    assert made.is_right
    for name, bad in (
        ("wrong", Violation(0, "a", "b")),
        ("lost", "e1"),
        ("unrecovered", "x"),
        ("cut_regressions", "y"),
    ):
        assert not replace(made, **{name: [bad]}).is_right
    assert dict(summary(made))["faults"] == "1"


@pytest.mark.parametrize(
    ("name", "last", "is_found"),
    [
        ("serving", 100, False),
        ("serving", 150, False),
        ("serving", 900, True),
        ("speed", 900, False),
        ("speed", 1200, True),
    ],
)
def test_what_only_grows_is_found_and_a_heap_that_fills_is_not(name: str, last: int, is_found: bool) -> None:
    mb = 2**20
    samples = [Sample(float(n), 0, {}, False, {name: (100 if n < 20 else last) * mb}, {name: 50}) for n in range(30)]
    assert bool(growth(samples)) == is_found


@pytest.mark.parametrize(
    ("name", "last", "is_found"),
    [("spark", 30, False), ("spark", 90, True), ("master", 90, False), ("kafka", 900, True)],
)
def test_a_disk_that_only_fills_is_found_and_what_is_kept_may_grow(name: str, last: int, is_found: bool) -> None:
    mb = 2**20
    samples = [Sample(float(n), 0, {}, False, disk={name: (10 if n < 20 else last) * mb}) for n in range(30)]
    assert bool(growth(samples)) == is_found


def test_a_listener_is_put_into_a_broker_s_properties() -> None:
    text = "listeners=A://x:1\nadvertised.listeners=A://x:1\n"
    assert _appended(text, "listeners", "B://x:2") == "listeners=A://x:1,B://x:2\nadvertised.listeners=A://x:1\n"


def test_a_folder_with_something_in_it_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """All of the folder is removed in the end."""
    (tmp_path / "mine").write_text("precious")
    for given in (tmp_path, tmp_path / "mine"):
        with pytest.raises(TortureError, match="not empty"):
            _own_folder(given)
    assert (tmp_path / "mine").read_text() == "precious"
    assert _own_folder(tmp_path / "new").is_dir()
    assert _own_folder(tmp_path / "new") == tmp_path / "new", "an empty one is as good as a new one"


def programme() -> Programme:
    """One that has no installation: for single shots."""
    made = Programme.__new__(Programme)
    made.installation = SimpleNamespace(notes=[])  # type: ignore[assignment]
    made.checker = SimpleNamespace(comparisons=0, refusals={})  # type: ignore[assignment]
    made.result, made.began, made._open = ProgrammeResult(1), time.monotonic(), []
    made.on_shot = lambda _number, _shot: None
    return made


def failing(error: Exception) -> Fault:
    @contextmanager
    def strike(_installation: Any, _chance: random.Random) -> Iterator[None]:
        yield
        raise error

    return Fault("it", "kill", strike)


@pytest.mark.parametrize(
    ("error", "is_wrong"),
    [(BrokenPromise("500"), True), (AssertionError("2 rows"), True), (TortureError("no link"), False)],
    ids=lambda each: type(each).__name__,
)
def test_what_a_fault_finds_broken_is_wrong_and_one_that_cannot_be_had_is_counted_apart(
    error: Exception, is_wrong: bool
) -> None:
    made = programme()
    made._recover = lambda _since, _within: True  # type: ignore[method-assign]
    made._shoot(1, PlannedShot(failing(error), "1", waits=True))
    assert [wrong.what for wrong in made.result.wrong] == (["a broken promise"] if is_wrong else [])
    assert len(made.result.not_injected) == (not is_wrong)
    assert [shot.is_injected for shot in made.result.shots] == [is_wrong]
    assert not made.result.is_right, "of one shot, none was injected"
    assert findings(made.result)


@pytest.mark.parametrize("is_well", [True, False])
def test_what_did_not_recover_has_no_time_of_recovery(is_well: bool) -> None:
    made = programme()
    made._recover = lambda _since, _within: is_well  # type: ignore[method-assign]
    made._shoot(1, PlannedShot(Fault("it", "kill", lambda _i, _c: nullcontext()), "1", waits=True))
    (shot,) = made.result.shots
    assert (shot.recovered_at is not None) == (shot.recovery_s is not None) == is_well


def test_a_third_of_the_shots_may_fail_themselves_and_no_more() -> None:
    shot = Shot("kill redis", "kill", 1.0, 1.0, 3.5, 2.5)
    assert ProgrammeResult(7, shots=[shot] * 3, not_injected=["a"]).is_right
    assert not ProgrammeResult(7, shots=[shot] * 3, not_injected=["a", "b"]).is_right


def test_what_stands_around_an_installation_goes_though_it_does_not_stop(tmp_path: Path) -> None:
    """What is on its disks goes too, but for the logs and what the processes said of themselves."""
    gone: list[str] = []
    made = Installation.__new__(Installation)
    made.folder, made.settings = tmp_path, SimpleNamespace(home=tmp_path / "home")  # type: ignore[assignment]
    for place, name in (("logs", "speed.log"), ("run", "status.json"), ("run", "supervisor.lock")):
        (tmp_path / "home" / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / place / name).write_text(name)
    made.stop = lambda: (_ for _ in ()).throw(TortureError("it does not end"))  # type: ignore[method-assign]
    made._carrier = SimpleNamespace(close=lambda: gone.append("proxies"))  # type: ignore[assignment]
    made.disks = SimpleNamespace(throw_away=lambda: gone.append("disks"))  # type: ignore[assignment]
    with pytest.raises(TortureError, match="does not end"):
        made.throw_away()
    assert gone == ["proxies", "disks"]
    kept = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert kept == {"speed.log": "speed.log", "status.json": "status.json"}


def test_evidence_is_kept_before_the_disks_go_and_a_disk_without_it_is_no_matter(tmp_path: Path) -> None:
    made = Installation.__new__(Installation)
    made.folder, made.settings = tmp_path, SimpleNamespace(home=tmp_path / "home")  # type: ignore[assignment]
    made.stop = lambda: (tmp_path / "home" / "logs" / "speed.log").write_text("its last words")  # type: ignore[method-assign, assignment]
    made._carrier = None
    made.disks = SimpleNamespace(throw_away=lambda: shutil.rmtree(tmp_path / "home"))  # type: ignore[assignment]
    (tmp_path / "home" / "logs").mkdir(parents=True)  # there is no folder `run`
    made.throw_away()
    assert (tmp_path / "logs" / "speed.log").read_text() == "its last words"


@pytest.mark.process
def test_a_batch_run_that_does_not_end_is_killed_and_says_so() -> None:
    process = subprocess.Popen(
        ["sleep", "600"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert "killed after 0.1 s" in output_of(process, 0.1)
    assert process.returncode == -9
