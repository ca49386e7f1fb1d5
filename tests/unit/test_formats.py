"""Answers on the wire: JSON, NDJSON and CSV say the same, to the last digit; and which of them is asked for."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from datetime import date
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_layer.errors import BadParameter, NotAcceptable, TooLarge
from serving_layer.query.model import Period
from serving_layer.query.result import BatchPart, Provenance, Result, ResultRow, SpeedPart
from serving_layer.rest import formats
from serving_layer.rest.formats import MEDIA_TYPES, choose_format, meta_headers, to_csv, to_json, to_ndjson

START = 1_772_323_200  # 2026-03-01T00:00:00Z
DAY = 86400
META = Provenance(
    view="page_hits",
    version="0123456789abcdef",
    source="web",
    range=Period(START, START + 2 * DAY),
    grain="day",
    tz="UTC",
    batch=BatchPart(3, {0: 17, 10: 5}, START + 0.25, True),
    speed=SpeedPart({0: 20, 10: 5}, 3, 4, 0.2, True),
    cut={10: 5, 0: 20},
    complete=True,
    degraded=False,
    why=None,
    answers={"hits": {"kind": "count", "exact": True}, "visitors": {"exact": False, "error": "usually within 1.6%"}},
    etag='"e"',
)
ROWS = [
    ResultRow(Period(START, START + DAY), ("/docs", 200), {"hits": 3, "visitors": 2}),
    ResultRow(Period(START + DAY, START + 2 * DAY), (None, None), {"hits": 0, "visitors": None}),
]
ANSWER = Result(("url", "status"), ROWS, META, "abc")
META_JSON = {
    "view": "page_hits",
    "version": "0123456789abcdef",
    "source": "web",
    "range": {"from": "2026-03-01T00:00:00Z", "to": "2026-03-03T00:00:00Z", "grain": "day", "tz": "UTC"},
    "batch": {"run": 3, "cut": {"0": 17, "10": 5}, "published": "2026-03-01T00:00:00.250000Z", "read": True},
    "speed": {"applied": {"0": 20, "10": 5}, "published_run": 3, "lag_s": 0.2, "lag_events": 4, "read": True},
    "cut": {"0": 20, "10": 5},
    "complete": True,
    "degraded": False,
    "why": None,
    "answers": {"hits": {"kind": "count", "exact": True}, "visitors": {"exact": False, "error": "usually within 1.6%"}},
    "since": None,
    "shortened_keys": False,
    "max_key_bytes": 1024,
}
ROWS_JSON = [
    {"bucket": "2026-03-01T00:00:00Z", "url": "/docs", "status": 200, "hits": 3, "visitors": 2},
    {"bucket": "2026-03-02T00:00:00Z", "url": None, "status": None, "hits": 0, "visitors": None},
]


def one(value: Any, key: Any = "x", **more: Any) -> Result:
    """An answer of one row with one answer."""
    row = ResultRow(Period(START, START + DAY), (key,), {"hits": value}, **more)
    return Result(("url",), [row], replace(META, answers={"hits": {}}))


def lines(answer: Result) -> list[str]:
    return to_csv(answer).decode().split("\r\n")


# ---- JSON --------------------------------------------------------------------


def test_json_is_rows_next_and_meta() -> None:
    found = to_json(ANSWER)
    assert json.loads(found) == {"rows": ROWS_JSON, "next": "abc", "meta": META_JSON}
    assert [*json.loads(found)] == ["rows", "next", "meta"]
    assert [*json.loads(found)["rows"][0]] == ["bucket", "url", "status", "hits", "visitors"]
    assert formats.body(ANSWER, "json") == found


def test_an_answer_of_nothing_has_its_meta() -> None:
    empty = Result((), [], META)
    assert json.loads(to_json(empty)) == {"rows": [], "next": None, "meta": META_JSON}
    assert to_ndjson(empty).count(b"\n") == 1
    assert to_csv(empty) == b"bucket,hits,visitors\r\n"


def test_ndjson_is_a_line_for_each_row_and_then_the_meta() -> None:
    found = to_ndjson(ANSWER)
    assert found.endswith(b"\n")
    assert [json.loads(line) for line in found.splitlines()] == [*ROWS_JSON, {"meta": META_JSON, "next": "abc"}]


def test_a_degraded_answer_has_no_speed_view_and_says_why() -> None:
    found = formats.meta(replace(META, speed=None, degraded=True, complete=False, why="Redis cannot be reached."))
    assert (found["speed"], found["degraded"], found["complete"]) == (None, True, False)
    assert found["why"] == "Redis cannot be reached."


@pytest.mark.parametrize(
    ("tz", "bucket", "end"),
    [("UTC", "2026-03-01T00:00:00Z", "2026-03-03T00:00:00Z"),
     ("Asia/Kolkata", "2026-03-01T05:30:00+05:30", "2026-03-03T05:30:00+05:30"),
     ("Asia/Kathmandu", "2026-03-01T05:45:00+05:45", "2026-03-03T05:45:00+05:45"),
     ("America/New_York", "2026-02-28T19:00:00-05:00", "2026-03-02T19:00:00-05:00"),
     ("Europe/London", "2026-03-01T00:00:00+00:00", "2026-03-03T00:00:00+00:00")],
)  # fmt: skip
def test_times_are_in_the_zone_of_the_question(tz: str, bucket: str, end: str) -> None:
    answer = replace(ANSWER, meta=replace(META, tz=tz))
    found = json.loads(to_json(answer))
    assert found["rows"][0]["bucket"] == found["meta"]["range"]["from"] == bucket
    assert found["meta"]["range"]["to"] == end
    assert found["meta"]["batch"]["published"].endswith("Z")
    assert lines(answer)[1].startswith(f"{bucket},")


def test_compared_and_explained_rows_say_so() -> None:
    answer = one(3, previous={"hits": 2}, explain={"batch": {"hits": 1}, "speed": {"hits": 2}, "merged": {"hits": 3}})
    (row,) = json.loads(to_json(answer))["rows"]
    assert row["previous"] == {"hits": 2}
    assert row["explain"]["speed"] == {"hits": 2}
    assert lines(answer)[0] == "bucket,url,hits,previous,explain"
    assert lines(answer)[1].startswith('2026-03-01T00:00:00Z,x,3,"{""hits"":2}","{""batch""')


NUMBERS = [0, -1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, 0.1, 1e300, 5e-324, -0.0, 3.0]


@pytest.mark.parametrize("number", NUMBERS)
def test_every_digit_of_a_number_is_written(number: float) -> None:
    nested = [{"value": "x", "count": number}, [number]]
    for value, expected in ((number, number), (nested, nested)):
        answer = one(value)
        (from_json,) = json.loads(to_json(answer))["rows"]
        from_lines = json.loads(to_ndjson(answer).splitlines()[0])
        assert from_json["hits"] == from_lines["hits"] == expected
    assert type(from_json["hits"][1][0]) is type(number)
    assert lines(one(number))[1].split(",")[2] == json.dumps(number)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (True, True), ("12.50", "12.50"), ({"p50": 1.5, "p99": None}, {"p50": 1.5, "p99": None}),
     ([{"below": 10, "count": 3}], [{"below": 10, "count": 3}]), ("", ""), ("ä\u2028\x00", "ä\u2028\x00"), ([], [])],
)  # fmt: skip
def test_every_kind_of_answer_is_written(value: Any, expected: Any) -> None:
    assert json.loads(to_json(one(value)))["rows"][0]["hits"] == expected


@pytest.mark.parametrize(("key", "expected"), [(date(2026, 2, 28), "2026-02-28"), (True, True), (None, None), (-5, -5)])
def test_every_kind_of_key_is_written(key: Any, expected: Any) -> None:
    assert json.loads(to_json(one(2**70, key)))["rows"][0]["url"] == expected
    assert lines(one(1, key))[1].split(",")[1] == {None: "", True: "true"}.get(expected, str(expected))


# ---- CSV ---------------------------------------------------------------------


def test_csv_is_a_header_and_a_line_for_each_row() -> None:
    assert lines(ANSWER) == [
        "bucket,url,status,hits,visitors", "2026-03-01T00:00:00Z,/docs,200,3,2", "2026-03-02T00:00:00Z,,,0,", "",
    ]  # fmt: skip
    assert formats.body(ANSWER, "csv") == to_csv(ANSWER)


CELLS = [
    (None, ""), ("", '""'), ("a", "a"), ("a,b", '"a,b"'), ('a"b', '"a""b"'), ("a\nb", '"a\nb"'), ("a\rb", '"a\rb"'),
    (" a ", " a "), (True, "true"), (False, "false"), (2**70, str(2**70)), (0.5, "0.5"), (-1, "-1"),
    ({"p50": 1.5}, '"{""p50"":1.5}"'), ([2**70], f'"[{2**70}]"'), ([], '"[]"'),
    # What a spreadsheet would run.
    ("=1+1", "'=1+1"), ("+1-2", "'+1-2"), ("-x", "'-x"), ("@SUM(A1)", "'@SUM(A1)"), ("\t=1", "'\t=1"),
    ("\r=1", '"\'\r=1"'),
    ('=HYPERLINK("x","y")', '"\'=HYPERLINK(""x"",""y"")"'), ("'quoted'", "''quoted'"),
    # Decimals are texts, and numbers are harmless.
    ("-12.50", "-12.50"), ("12.50", "12.50"), ("-", "'-"), ("+491234", "+491234"), ("-1e5", "'-1e5"), ("a=1", "a=1"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "cell"), CELLS, ids=[repr(value) for value, _ in CELLS])
def test_a_cell_is_quoted_where_needed_and_never_a_formula(value: Any, cell: str) -> None:
    assert to_csv(one(value)).decode() == f"bucket,url,hits\r\n2026-03-01T00:00:00Z,x,{cell}\r\n"


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
RISKY = st.builds(str.__add__, st.sampled_from([*"=+-@'\t\r\n\","]), TEXTS)


@given(st.lists(st.tuples(TEXTS | RISKY, TEXTS | RISKY | st.integers()), max_size=5))
def test_csv_is_read_again_by_any_reader(cells: list[tuple[str, Any]]) -> None:
    rows = [ResultRow(Period(START, START + DAY), (key,), {"hits": value}) for key, value in cells]
    found = to_csv(Result(("url",), rows, replace(META, answers={"hits": {}}))).decode()
    read = [*csv.reader(io.StringIO(found, newline=""), strict=True)]
    assert [(key.removeprefix("'"), value.removeprefix("'")) for _, key, value in read[1:]] == [
        (key, str(value)) for key, value in cells
    ]
    for _, *texts in read[1:]:
        for text in texts:
            assert not re.match(r"[=+\-@\t\r\n]", text) or re.fullmatch(r"[+-][0-9.]+", text)


def test_columns_that_only_some_rows_have_are_columns_of_all() -> None:
    rows = [replace(ROWS[0], answers={"hits": 1}), replace(ROWS[1], answers={"hits": 2, "hits_extra": 3})]
    assert lines(Result(("url", "status"), rows, replace(META, answers={"hits": {}}))) == [
        "bucket,url,status,hits,hits_extra", "2026-03-01T00:00:00Z,/docs,200,1,", "2026-03-02T00:00:00Z,,,2,3", "",
    ]  # fmt: skip


def test_the_headers_of_a_csv_answer_say_what_json_says_beside_the_rows() -> None:
    odd = replace(META, why="Redis\nis gone – really", degraded=True)
    headers = meta_headers(odd, "abc")
    assert json.loads(headers["Tidemark-Meta"]) == {**META_JSON, "why": "Redis\nis gone – really", "degraded": True}
    assert headers["Tidemark-Cut"] == '{"0":20,"10":5}'
    assert (headers["Tidemark-Complete"], headers["Tidemark-Degraded"]) == ("true", "true")
    assert headers["Tidemark-Next"] == "abc"
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    assert "Tidemark-Next" not in meta_headers(META, None)


# ---- which -------------------------------------------------------------------

CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("asked", "accept", "expected"),
    [
        (None, None, "json"), (None, "", "json"), (None, " ", "json"), (None, "*/*", "json"), (None, CHROME, "json"),
        (None, "application/json", "json"), (None, "application/x-ndjson", "ndjson"),
        (None, "application/ndjson", "ndjson"),
        (None, "text/csv", "csv"), (None, "TEXT/CSV; charset=utf-8", "csv"), (None, "text/*", "csv"),
        (None, "application/*", "json"), (None, "application/json;q=0.5, text/csv", "csv"),
        (None, "application/json;q=0, */*", "ndjson"), (None, "text/csv;q=0.1, */*;q=0.2", "json"),
        (None, "text/csv ; q=0.9 , application/json ; q=0.8", "csv"),
        (None, "image/png, application/json;q=0.001", "json"),
        ("csv", None, "csv"), ("json", "text/csv", "json"), ("ndjson", "image/png", "ndjson"),
    ],
)  # fmt: skip
def test_the_format_is_what_was_asked_for(asked: str | None, accept: str | None, expected: str) -> None:
    assert choose_format(asked, accept) == expected


@pytest.mark.parametrize("accept", ["image/png", "text/html", "*/*;q=0", "application/json;q=0", "json", "text/csv;q=2",
                                    "application/json;q=x", ";", ","])  # fmt: skip
def test_what_cannot_be_given_is_refused_with_what_can(accept: str) -> None:
    with pytest.raises(
        NotAcceptable, match="available as application/json or application/x-ndjson or text/csv"
    ) as caught:
        choose_format(None, accept)
    assert caught.value.status == 406
    assert caught.value.more["allowed"] == ["application/json", "application/x-ndjson", "text/csv"]


@pytest.mark.parametrize("asked", ["", "JSON", "xml", "application/json"])
def test_another_format_is_refused(asked: str) -> None:
    with pytest.raises(BadParameter, match="it should be json or ndjson or csv") as caught:
        choose_format(asked, None)
    assert caught.value.more["parameter"] == "format"


def test_every_format_has_its_media_type_and_is_accepted_by_it() -> None:
    for each, media in formats.MEDIA_TYPES.items():
        assert choose_format(None, media) == each


# ---- size ----------------------------------------------------------------------


def many(count: int, size: int) -> Result:
    """An answer of so many rows with keys of so many bytes."""
    found = [ResultRow(Period(START, START + DAY), ("x" * size, number), {"hits": number}) for number in range(count)]
    return Result(("url", "status"), found, META, "abc")


@pytest.mark.parametrize("as_format", MEDIA_TYPES)
def test_an_answer_that_is_too_large_is_refused_with_the_limit_that_would_do(as_format: formats.Format) -> None:
    answer = many(3_000, 1_000)
    assert len(formats.body(answer, as_format)) > 3_000_000
    with pytest.raises(TooLarge) as error:
        formats.body(answer, as_format, 2)
    found = error.value
    assert (found.status, found.more["parameter"], found.more["limit"]) == (422, "limit", "serving_max_answer_mb")
    assert f"limit={found.more['allowed']}, and go on with `next`" in found.detail
    assert len(formats.body(many(found.more["allowed"], 1_000), as_format, 2)) < 2_100_000


@pytest.mark.parametrize("as_format", MEDIA_TYPES)
@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1_700])
def test_rows_are_the_same_however_many_are_written_at_once(as_format: formats.Format, count: int) -> None:
    answer = many(count, 3)
    written = formats.body(answer, as_format, 1)
    if as_format == "json":
        assert json.loads(written) == json.loads(orjson.dumps(formats.document(answer)))
    else:
        assert len(written.splitlines()) == count + 1


def test_one_row_that_is_too_large_is_refused_too() -> None:
    with pytest.raises(TooLarge, match="Ask for fewer answers"):
        formats.to_json(many(1, 2_000_000), 1)
