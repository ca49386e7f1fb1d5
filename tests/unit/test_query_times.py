"""Times, durations and zones of questions: every form, clocks that are set forward and back, and what is refused."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving_layer.errors import BadParameter
from serving_layer.query import times
from serving_layer.query.times import (
    Duration,
    earlier,
    first_moment,
    iso,
    moments,
    parse_duration,
    parse_time,
    parse_zone,
)

NOW = 1_794_830_400.25  # 2026-11-16T12:00:00.25Z
BERLIN, KOLKATA, LORD_HOWE = "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe"
ZONES = ["UTC", BERLIN, KOLKATA, "Asia/Kathmandu", LORD_HOWE, "America/Havana", "America/Santiago", "Pacific/Apia"]

READ: list[tuple[Any, str, str]] = [
    ("2026-03-01T00:00:00Z", "UTC", "2026-03-01T00:00:00"),
    ("2026-03-01T00:00:00.000001Z", "UTC", "2026-03-01T00:00:00.000001"),
    ("2026-03-01T00:00Z", BERLIN, "2026-03-01T00:00:00"),
    ("2026-03-01T05:30:00+05:30", BERLIN, "2026-03-01T00:00:00"),
    ("2026-02-28T19:00:00-05:00", BERLIN, "2026-03-01T00:00:00"),
    ("2026-03-01T01:00:00", BERLIN, "2026-03-01T00:00:00"),
    ("2026-03-01 01:00", BERLIN, "2026-03-01T00:00:00"),
    ("2026-07-01T02:00:00.5", BERLIN, "2026-07-01T00:00:00.500000"),
    ("2026-03-01", BERLIN, "2026-02-28T23:00:00"),
    ("2026-03-01", KOLKATA, "2026-02-28T18:30:00"),
    ("2026-03-01", "Asia/Kathmandu", "2026-02-28T18:15:00"),
    ("2026-01-01", LORD_HOWE, "2025-12-31T13:00:00"),
    ("2026-07-01", LORD_HOWE, "2026-06-30T13:30:00"),
    ("2026-09-06", "America/Santiago", "2026-09-06T04:00:00"),  # midnight is left out: the day begins at 01:00
    ("2026-11-01", "America/Havana", "2026-11-01T04:00:00"),  # midnight comes twice: it begins at the first
    ("1772323200000", "UTC", "2026-03-01T00:00:00"),
    (1_772_323_200_001, BERLIN, "2026-03-01T00:00:00.001000"),
    ("0", BERLIN, "1970-01-01T00:00:00"),
    (0, "UTC", "1970-01-01T00:00:00"),
    ("2199-12-31T23:59:59Z", "UTC", "2199-12-31T23:59:59"),
    ("now", "UTC", "2026-11-16T12:00:00.250000"),
    ("-24h", BERLIN, "2026-11-15T12:00:00.250000"),
    ("-15m", "UTC", "2026-11-16T11:45:00.250000"),
    ("-0s", "UTC", "2026-11-16T12:00:00.250000"),
    ("-250ms", "UTC", "2026-11-16T12:00:00"),
    ("-7d", "UTC", "2026-11-09T12:00:00.250000"),
    ("-30d", BERLIN, "2026-10-17T11:00:00.250000"),  # clocks were set back on 25 October: 13:00 there, too
    ("-720h", BERLIN, "2026-10-17T12:00:00.250000"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "zone", "expected"), READ, ids=[f"{given} {zone}" for given, zone, _ in READ])
def test_a_time_is_read(given: Any, zone: str, expected: str) -> None:
    found = parse_time("from", given, parse_zone("tz", zone), NOW)
    assert datetime(1970, 1, 1) + timedelta(microseconds=found) == datetime.fromisoformat(expected)


REFUSED: list[tuple[Any, str, str]] = [
    ("", "UTC", "it should be a time like"),
    ("yesterday", "UTC", "it should be a time like"),
    ("now-1h", "UTC", "or -24h"),
    ("+1h", "UTC", "it should be a time like"),
    ("-1w", "UTC", "it should be a time like"),
    ("-", "UTC", "it should be a time like"),
    ("2026-02-30", "UTC", "it should be a time like"),
    ("2026-03-01T24:00", "UTC", "it should be a time like"),
    ("2026-03-01T12:00:60Z", "UTC", "it should be a time like"),
    ("2026-03-01T12:00:00.1234567Z", "UTC", "it should be a time like"),
    ("2026-03-01T12:00:00+99:00", "UTC", "it should be a time like"),
    ("2026-W09-7", "UTC", "it should be a time like"),
    ("2026-03-01T05:30:00 05:30", "UTC", "%2B"),
    ("２０２６-03-01", "UTC", "it should be a time like"),
    (None, "UTC", "it should be a time like"),
    (True, "UTC", "it should be a time like"),
    (1.5, "UTC", "it should be a time like"),
    ([], "UTC", "it should be a time like"),
    ("1772323200", "UTC", "would be 1970-01-21T12:18:43Z. If you mean seconds, write 1772323200000"),
    (20260301, "UTC", "as milliseconds"),
    (-5, "UTC", "in 1970 to 2199"),
    ("-100000000000", "UTC", "in 1970 to 2199"),
    ("1969-12-31", "UTC", "in 1970 to 2199"),
    ("2200-01-02", "UTC", "in 1970 to 2199"),
    (10**40, "UTC", "in 1970 to 2199"),
    ("-999999999d", "UTC", "in 1970 to 2199"),
    ("-999999999d", BERLIN, "it should be a time"),
    ("0001-01-01", "Asia/Tokyo", "it should be a time"),
    ("2026-10-25T02:30", BERLIN,
     "occurs twice in Europe/Berlin. Write 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00"),
    ("2026-04-05T01:45", LORD_HOWE, "2026-04-05T01:45:00+11:00 or 2026-04-05T01:45:00+10:30"),
    ("2026-03-29T02:30", BERLIN,
     "does not occur in Europe/Berlin: clocks were set forward to 2026-03-29T03:00:00+02:00"),
    ("2026-10-04T02:15", LORD_HOWE, "set forward to 2026-10-04T02:30:00+11:00"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "zone", "words"), REFUSED, ids=[f"{given} {zone}" for given, zone, _ in REFUSED])
def test_what_is_no_time_is_refused_with_what_would_be(given: Any, zone: str, words: str) -> None:
    with pytest.raises(BadParameter) as caught:
        parse_time("from", given, parse_zone("tz", zone), NOW)
    assert words in caught.value.detail
    assert caught.value.more["parameter"] == "from"
    assert caught.value.more["given"] == given
    assert caught.value.more["allowed"] == times.TIMES


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5s", Duration(0, 5_000_000)), ("15m", Duration(0, 900_000_000)), ("24h", Duration(0, 86_400_000_000)),
     ("7d", Duration(7, 0)), ("250ms", Duration(0, 250_000)), ("0s", Duration(0, 0))],
)  # fmt: skip
def test_a_duration_is_read(text: str, expected: Duration) -> None:
    assert parse_duration("window", text) == expected


@pytest.mark.parametrize(
    "given", ["", "5", "s", "-5s", "1.5h", "1h30m", "1w", "5 s", "5S", "1234567890s", "٥s", 5, None]
)
def test_what_is_no_duration_is_refused(given: Any) -> None:
    with pytest.raises(BadParameter, match="it should be a duration like 5s") as caught:
        parse_duration("window", given)
    assert caught.value.more == {"parameter": "window", "given": given, "allowed": times.DURATIONS}


def test_every_iana_zone_can_be_asked_for() -> None:
    assert len(times.zone_names()) > 400
    assert all(str(parse_zone("tz", name)) == name for name in times.zone_names())


@pytest.mark.parametrize(
    ("given", "words"),
    [("europe/berlin", "Did you mean 'Europe/Berlin'?"), ("Europe/Berln", "Did you mean 'Europe/Berlin'?"),
     ("+05:30", "an IANA name"), ("", "an IANA name"), ("../UTC", "an IANA name"), ("Europe", "an IANA name"),
     ("right/UTC", "an IANA name"), ("localtime", "an IANA name"), ("Factory", "an IANA name"),
     ("x" * 5000, "an IANA name"), ("\0", "an IANA name"), (5, "a string"), (None, "a string")],
)  # fmt: skip
def test_what_is_no_zone_is_refused(given: Any, words: str) -> None:
    with pytest.raises(BadParameter) as caught:
        parse_zone("tz", given)
    assert words in caught.value.detail
    assert len(caught.value.detail) < 500


@pytest.mark.parametrize(
    ("seconds", "zone", "expected"),
    [(1772323200, "UTC", "2026-03-01T00:00:00Z"), (1772303400, KOLKATA, "2026-03-01T00:00:00+05:30"),
     (1772323200, "Asia/Kathmandu", "2026-03-01T05:45:00+05:45"),
     (1772323200, "Europe/London", "2026-03-01T00:00:00+00:00"),
     (1792890000, BERLIN, "2026-10-25T02:00:00+01:00")],
)  # fmt: skip
def test_a_time_is_written_in_the_zone_of_the_question(seconds: int, zone: str, expected: str) -> None:
    assert iso(seconds, parse_zone("tz", zone)) == expected


# ---- laws --------------------------------------------------------------------

WALLS = st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1)).map(lambda wall: wall.replace(microsecond=0, fold=0))
INTERESTING = [
    datetime(2026, 3, 29, 2, 30),
    datetime(2026, 10, 25, 2),
    datetime(2011, 12, 30, 7),
    datetime(2026, 4, 5, 1, 30),
]


@given(WALLS | st.sampled_from(INTERESTING), st.sampled_from(ZONES))
@example(datetime(2011, 12, 30), "Pacific/Apia")  # a day that the calendar left out
@example(datetime(2026, 9, 6), "America/Santiago")
def test_moments_are_exactly_when_clocks_show_a_time(wall: datetime, name: str) -> None:
    zone = parse_zone("tz", name)
    found = moments(wall, zone)
    around = int((wall.replace(tzinfo=UTC) - times.EPOCH).total_seconds())
    seen = [at for at in range(around - 15 * 3600, around + 15 * 3600, 60)
            if datetime.fromtimestamp(at, zone).replace(tzinfo=None, fold=0) == wall]  # fmt: skip
    assert found == seen
    first = first_moment(wall, zone)
    assert datetime.fromtimestamp(first, zone).replace(tzinfo=None) >= wall
    assert datetime.fromtimestamp(first - 1, zone).replace(tzinfo=None) < wall


@given(st.integers(0, times.LATEST * times.SECOND), st.sampled_from(ZONES))
def test_what_is_written_is_read_again(micros: int, name: str) -> None:
    zone = parse_zone("tz", name)
    assert parse_time("to", iso(micros // times.SECOND, zone), zone, NOW) == micros // times.SECOND * times.SECOND


@given(st.integers(10**15, 2 * 10**15), st.integers(0, 400), st.integers(0, 10**12), st.sampled_from(ZONES))
def test_days_go_back_by_the_calendar_and_hours_by_the_clock(micros: int, days: int, rest: int, name: str) -> None:
    zone = parse_zone("tz", name)
    assert earlier(micros, Duration(0, rest), zone) == micros - rest
    back = earlier(micros, Duration(days, 0), zone)
    wall = times.wall_clock(micros // times.SECOND, zone) - timedelta(days=days)
    assert back == first_moment(wall, zone) * times.SECOND + micros % times.SECOND
    assert earlier(micros, Duration(days, rest), zone) == back - rest


@given(st.text(max_size=40) | st.integers() | st.floats() | st.none(), st.sampled_from(ZONES))
def test_anything_is_read_or_refused(given: Any, name: str) -> None:
    with suppress(BadParameter):
        assert 0 <= parse_time("from", given, ZoneInfo(name), NOW) <= times.LATEST * times.SECOND
    with suppress(BadParameter):
        assert parse_duration("wait", given).seconds >= 0
