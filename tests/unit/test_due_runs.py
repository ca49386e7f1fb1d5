"""When batch runs are due: cron texts as crontab(5) has them, missed and overdue runs, all with fixed clocks."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_layer.schedule import Attempt, Progress, Schedule, overdue_since, progress_from_json
from infra.cron import next_due, parse_cron, parse_zone
from infra.errors import SettingsError
from infra.settings import load_settings

HOUR = 3600.0
DAY = 24 * HOUR
MONDAY = datetime(2026, 6, 1, tzinfo=UTC)
NIGHTLY = Schedule.of("15 3 * * *")


def at(text: str) -> float:
    """Seconds since 1970 of a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def due_days(cron: str, count: int) -> list[str]:
    """The first due days from Monday, 1 June 2026 on, like `Fri 5`."""
    trigger, moment, found = parse_cron(cron), MONDAY - timedelta(seconds=1), []
    for _ in range(count):
        due = next_due(trigger, moment)
        assert due is not None
        found.append(f"{due:%a} {due.day}")
        moment = due
    return found


# ---- cron texts ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("weekday", "days"),
    [
        ("0", ["Sun 7", "Sun 14"]),
        ("7", ["Sun 7", "Sun 14"]),
        ("1", ["Mon 1", "Mon 8"]),
        ("sun", ["Sun 7", "Sun 14"]),
        ("1-5", ["Mon 1", "Tue 2", "Wed 3", "Thu 4", "Fri 5", "Mon 8"]),
        ("0-2", ["Mon 1", "Tue 2", "Sun 7", "Mon 8"]),
        ("5-7", ["Fri 5", "Sat 6", "Sun 7", "Fri 12"]),
        ("Fri-Mon", ["Mon 1", "Fri 5", "Sat 6", "Sun 7", "Mon 8"]),
        ("*/2", ["Tue 2", "Thu 4", "Sat 6", "Sun 7", "Tue 9"]),
        ("1-5/2", ["Mon 1", "Wed 3", "Fri 5", "Mon 8"]),
        ("3,6", ["Wed 3", "Sat 6", "Wed 10"]),
        ("*", ["Mon 1", "Tue 2", "Wed 3"]),
    ],
)
def test_weekdays_are_those_of_crontab(weekday: str, days: list[str]) -> None:
    assert due_days(f"0 4 * * {weekday}", len(days)) == days


def test_restricted_day_and_weekday_are_due_on_either_as_in_crontab() -> None:
    assert due_days("0 4 2,10 * 5", 4) == ["Tue 2", "Fri 5", "Wed 10", "Fri 12"]
    assert due_days("0 4 */2 * 5", 2) == ["Fri 5", "Fri 19"], "a day that begins with a star restricts the weekday"


@pytest.mark.parametrize(
    ("cron", "after", "due"),
    [
        ("15 3 * * *", "2026-06-01 00:00", "2026-06-01 03:15"),
        ("15 3 * * *", "2026-06-01 03:14:59.999", "2026-06-01 03:15"),
        ("15 3 * * *", "2026-06-01 03:15", "2026-06-02 03:15"),
        ("*/20 * * * *", "2026-06-01 23:45", "2026-06-02 00:00"),
        ("0 0 29 2 *", "2026-06-01 00:00", "2028-02-29 00:00"),
        ("30 */6 * jan-mar *", "2026-03-31 18:30", "2027-01-01 00:30"),
    ],
)
def test_next_due_time(cron: str, after: str, due: str) -> None:
    assert Schedule.of(cron).next_after(at(after)) == at(due)


def test_zone_moves_the_due_time_with_the_clocks_of_that_place() -> None:
    berlin = Schedule.of("15 3 * * *", "Europe/Berlin")
    assert berlin.next_after(at("2026-01-10 12:00")) == at("2026-01-11 02:15")
    assert berlin.next_after(at("2026-07-10 12:00")) == at("2026-07-11 01:15")


@settings(deadline=None)
@given(
    start=st.integers(0, 2_000_000_000),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    cron=st.sampled_from(["15 3 * * *", "30 2 * * *", "*/7 * * * *", "0 1 * * 0", "0 4 1 * 5"]),
)
def test_due_times_grow_also_when_clocks_are_changed(start: int, zone: str, cron: str) -> None:
    schedule, moment = Schedule.of(cron, zone), float(start)
    for _ in range(5):
        due = schedule.next_after(moment)
        assert due is not None
        assert moment < due <= moment + 8 * DAY
        moment = due


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nightly", "it has 1 fields instead of 5 (minute hour day month weekday)"),
        ("15 3 * *", "it has 4 fields"),
        ("0 15 3 * * *", "it has 6 fields"),
        ("15 25 * * *", "25"),
        ("60 * * * *", "60"),
        ("x 3 * * *", "x"),
        ("0 0 * * 8", "'8' is no weekday"),
        ("0 0 * * mo", "'mo' is no weekday"),
        ("0 0 * * */0", "is no weekday"),
        ("0 0 31 2 *", "there is no such day"),
    ],
)
def test_wrong_cron_text_is_refused_when_settings_are_loaded(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(batch_schedule=text)
    said = str(error.value)
    for word in ("batch_schedule", repr(text), "a cron text (minute hour day month weekday) like '15 3 * * *'", words):
        assert word in said


def test_empty_schedule_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(batch_schedule="").batch_schedule == ""
    monkeypatch.setenv("TIDEMARK_BATCH_SCHEDULE", "")
    assert load_settings().batch_schedule == ""


def test_default_schedule_is_a_cron_text_in_utc() -> None:
    defaults = load_settings()
    schedule = Schedule.of(defaults.batch_schedule, defaults.batch_schedule_tz)
    assert schedule.next_after(at("2026-06-01 00:00")) == at("2026-06-01 03:15")


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../UTC", "/etc/passwd", "Europe"])
def test_unknown_zone_is_refused_when_settings_are_loaded(name: str) -> None:
    with pytest.raises(SettingsError, match="a time zone like UTC or Europe/Berlin"):
        load_settings(batch_schedule_tz=name)
    assert parse_zone("UTC") is UTC


# ---- missed runs ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("handled", "now", "is_due"),
    [
        ("2026-06-01 03:15:00.1", "2026-06-01 12:00", False),
        ("2026-06-01 03:15:00.1", "2026-06-02 03:14:59", False),
        ("2026-06-01 03:15:00.1", "2026-06-02 03:15", True),
        ("2026-06-01 03:15:00.1", "2026-06-09 10:00", True),
        ("2026-06-02 03:14:59", "2026-06-02 03:15:01", True),
    ],
)
def test_run_is_due_once_a_due_time_has_passed_since_the_last(handled: str, now: str, is_due: bool) -> None:
    assert NIGHTLY.is_due(at(handled), at(now)) is is_due


@settings(deadline=None)
@given(sleeps=st.lists(st.floats(60, 4 * DAY), min_size=1, max_size=20), took=st.floats(1, 2 * HOUR))
def test_however_it_sleeps_each_due_time_is_answered_by_the_first_run_after_it(
    sleeps: list[float], took: float
) -> None:
    """Whoever wakes now and then and runs what is due, makes one run for all due times that were missed."""
    now = handled = at("2026-06-01 00:00")
    began_at = now
    starts: list[float] = []
    wakes: list[float] = []
    for sleep in sleeps:
        now += sleep
        wakes.append(now)
        while NIGHTLY.is_due(handled, now):
            starts.append(now)
            handled, now = now, now + took
    due, answered = NIGHTLY.next_after(began_at), 0
    while due is not None and due <= wakes[-1]:
        first = min(start for start in starts if start >= due)
        assert first == min(moment for moment in [*wakes, *(start + took for start in starts)] if moment >= due)
        due, answered = NIGHTLY.next_after(due), answered + 1
    assert len(starts) <= answered + 1
    for one, two in itertools.pairwise(starts):
        assert NIGHTLY.next_after(one) <= two, "two runs for one due time"  # type: ignore[operator]


# ---- what is remembered ----------------------------------------------------------


def test_progress_comes_back_from_json() -> None:
    attempt = Attempt(5.0, 9.5, {"web": 0, "ads": 1}, "")
    progress = Progress(5.0, attempt, {"web": 1.0, "ads": 2.0})
    assert progress_from_json(json.loads(json.dumps(progress.to_json())), now=100.0) == progress
    bare = Progress(5.0)
    assert progress_from_json(json.loads(json.dumps(bare.to_json())), now=100.0) == bare


@pytest.mark.parametrize("value", [None, [], {}, {"handled": "x", "last": None, "seen": {}}, {"handled": 1, "last": 5}])
def test_without_memory_nothing_before_now_is_due(value: object) -> None:
    assert progress_from_json(value, now=100.0) == Progress(100.0)


def test_source_is_seen_once_and_forgotten_when_it_is_no_longer_declared() -> None:
    first = Progress(0.0).with_sources(["web"], 10.0)
    second = first.with_sources(["ads", "web"], 20.0)
    assert second.seen == {"ads": 20.0, "web": 10.0}
    assert second.with_sources(["ads"], 30.0).seen == {"ads": 20.0}


# ---- overdue -------------------------------------------------------------------

LAST_NIGHT, TONIGHT = "2026-06-01 03:15", "2026-06-02 03:15"
OK, FAILED, BUSY = ({"web": code} for code in (0, 1, 75))


@pytest.mark.parametrize(
    ("data_from", "began", "now", "codes", "overdue"),
    [
        # A run of tonight: nothing is amiss until tomorrow night, and an hour.
        ("2026-06-02 03:15:01", LAST_NIGHT, "2026-06-03 04:14:59", OK, None),
        ("2026-06-02 03:15:01", LAST_NIGHT, "2026-06-03 04:15", OK, "2026-06-03 03:15"),
        # The run of last night is the newest: overdue an hour after tonight's was due.
        ("2026-06-01 03:15:01", LAST_NIGHT, "2026-06-02 03:15:30", OK, None),
        ("2026-06-01 03:15:01", LAST_NIGHT, "2026-06-02 04:14:59", OK, None),
        ("2026-06-01 03:15:01", LAST_NIGHT, "2026-06-02 04:15", OK, TONIGHT),
        # A run that began before it was due is older than its due time, however late it was published.
        ("2026-06-02 03:14:59", LAST_NIGHT, "2026-06-02 04:15", OK, TONIGHT),
        # Tonight's failed: overdue at once. Somebody else's run at work is no failure.
        ("2026-06-01 03:15:01", LAST_NIGHT, "2026-06-02 03:16", FAILED, TONIGHT),
        ("2026-06-01 03:15:01", LAST_NIGHT, "2026-06-02 03:16", BUSY, None),
        # It failed, and a person made a run since.
        ("2026-06-02 09:00", LAST_NIGHT, "2026-06-02 10:00", FAILED, None),
        # Down for a week: an hour to catch up; a failure counts after half a minute, when the supervisor saw us ready.
        ("2026-05-26 03:15:01", "2026-06-02 08:00", "2026-06-02 08:59:59", OK, None),
        ("2026-05-26 03:15:01", "2026-06-02 08:00", "2026-06-02 09:00", OK, "2026-05-27 03:15"),
        ("2026-05-26 03:15:01", "2026-06-02 08:00", "2026-06-02 08:00:29", FAILED, None),
        ("2026-05-26 03:15:01", "2026-06-02 08:00", "2026-06-02 08:00:30", FAILED, "2026-05-27 03:15"),
    ],
)  # fmt: skip
def test_overdue(data_from: str, began: str, now: str, codes: dict[str, int], overdue: str | None) -> None:
    found = overdue_since(
        NIGHTLY,
        data_from=at(data_from),
        began=at(began),
        now=at(now),
        last=Attempt(at(TONIGHT) + 0.1, at(TONIGHT) + 20, codes),
        source="web",
    )
    assert found == (None if overdue is None else at(overdue))


def test_failure_of_an_earlier_due_time_says_nothing_about_this_one() -> None:
    last = Attempt(at(LAST_NIGHT), at(LAST_NIGHT) + 5, {"web": 1})
    found = overdue_since(
        NIGHTLY, data_from=at(LAST_NIGHT) + 100, began=0.0, now=at(TONIGHT) + 60, last=last, source="web"
    )
    assert found is None


def test_failure_of_another_source_says_nothing_about_this_one() -> None:
    assert Attempt(1.0, 2.0, {"web": 1, "ads": 0}).has_failed("web")
    assert not Attempt(1.0, 2.0, {"web": 1, "ads": 0}).has_failed("ads")
    assert Attempt(1.0, 2.0, {}, "declarations are broken").has_failed("ads")


@pytest.mark.parametrize(
    ("cron", "patience_s"), [("15 3 * * *", HOUR), ("0 * * * *", HOUR / 2), ("*/5 * * * *", 150), ("* * * * *", 30)]
)
def test_patience_is_an_hour_or_half_the_time_to_the_next_run(cron: str, patience_s: float) -> None:
    schedule = Schedule.of(cron)
    due = schedule.next_after(at("2026-06-01 00:00"))
    assert due is not None
    assert schedule.patience_s(due) == patience_s
