"""Each format as a table: a line, and the event it is or the reason why it is refused."""
# ruff: noqa: E501  a table's row stays on one line

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import compile_validator
from master_dataset.importer.csv_file import CsvReader
from master_dataset.importer.detect import detect_format, make_reader
from master_dataset.importer.errors import UnusableInput
from master_dataset.importer.formats import ImportFormat, Options
from master_dataset.importer.ndjson import NdjsonReader
from master_dataset.importer.w3c_log import W3cReader
from master_dataset.importer.web_log import WebLogReader
from master_dataset.importer.web_request import compile_web_event
from views.catalog.web import web
from views.source import Source

to_event = compile_web_event(web)
validate = compile_validator(web)

HEAD = "::1 - - [16/Nov/2026:03:40:11 +0100]"
TIME = "2026-11-16T02:40:11Z"


def read(reader: Any, line: str | bytes, validate: Callable[[object], None] = validate) -> dict[str, Any] | str:
    """The event, or the reason."""
    raw = line.encode() if isinstance(line, str) else line
    try:
        event = reader.read(raw)
        validate(event)
    except InvalidEvent as error:
        return str(error)
    return dict(event)


def request(user_id: str | None = None, **properties: Any) -> dict[str, Any]:
    event: dict[str, Any] = {"event_time": TIME, "name": "request", "properties": properties}
    return event | ({"user_id": user_id} if user_id else {})


COMMON = [
    (
        f'{HEAD} "GET /a?b=1 HTTP/1.1" 200 512',
        request(url="/a?b=1", method="GET", status=200, bytes=512, ip="::1"),
    ),
    (
        '2001:db8::7 - ann smith [16/Nov/2026:02:40:11 +0000] "POST /x HTTP/2.0" 201 0',
        request("ann smith", url="/x", method="POST", status=201, bytes=0, ip="2001:db8::7"),
    ),
    (f'{HEAD} "-" 408 -', request(status=408, bytes=0, ip="::1")),
    (f'{HEAD} "" 400 -', request(status=400, bytes=0, ip="::1")),
    (f'{HEAD} "GET /" 200 1', request(url="/", method="GET", status=200, bytes=1, ip="::1")),
    (
        f'{HEAD} "GET /a b c HTTP/1.1" 200 1',
        request(url="/a b c", method="GET", status=200, bytes=1, ip="::1"),
    ),
    (f'{HEAD} "\\x16\\x03\\x01\\x02" 400 226', request(status=400, bytes=226, ip="::1")),
    (f'{HEAD} "GET / HTTP/1.1" - -', request(url="/", method="GET", bytes=0, ip="::1")),
    (f'{HEAD} "GET / HTTP/1.1" 200 5 "-" "curl"', "this is a combined log line, with referrer and agent"),
    (f'{HEAD} "GET / HTTP/1.1" 20 5', "this is no common log line"),
    (f'{HEAD} "GET / HTTP', "this is no common log line"),
    ("nonsense", "this is no common log line"),
    (
        '::1 - - [31/Feb/2026:02:40:11 +0000] "GET / HTTP/1.1" 200 5',
        "time: this should be a time like 16/Nov/2026:02:40:11 +0000; it is '31/Feb/2026:02:40:11 +0000'",
    ),
    (
        '::1 - - [16/Foo/2026:02:40:11 +0000] "GET / HTTP/1.1" 200 5',
        "time: this should be a time like 16/Nov/2026:02:40:11 +0000; it is '16/Foo/2026:02:40:11 +0000'",
    ),
    (
        f'{HEAD} "GET / HTTP/1.1" 200 9223372036854775808',
        "properties.bytes: this should be a bigint, -9223372036854775808 to 9223372036854775807; "
        "it is 9223372036854775808",
    ),
    (f'{HEAD} "GET /caf'.encode() + b'\xe9 HTTP/1.1" 200 5', "byte 46: 0xe9 is not valid UTF-8 here"),
]


@pytest.mark.parametrize(("line", "expected"), COMMON)
def test_common_line_becomes_its_event_or_a_reason(line: str | bytes, expected: object) -> None:
    assert read(WebLogReader(ImportFormat.COMMON, to_event), line) == expected


BEGIN = f'{HEAD} "GET / HTTP/1.1" 200 5'
ROOT: dict[str, Any] = {"url": "/", "method": "GET", "status": 200, "bytes": 5, "ip": "::1"}

COMBINED = [
    (f'{BEGIN} "https://b.example/" "curl/8"', request(**ROOT, referrer="https://b.example/", agent="curl/8")),
    (f'{BEGIN} "-" "-"', request(**ROOT)),
    (f'{BEGIN} "" ""', request(**ROOT)),
    (f'{BEGIN} "-" "say \\"hi\\" \\\\ there"', request(**ROOT, agent='say "hi" \\ there')),
    (f'{BEGIN} "-" "caf\\xc3\\xa9\\t!"', request(**ROOT, agent="café\t!")),
    (f'{BEGIN} "-" "latin \\xe9"', request(**ROOT, agent="latin \\xe9")),
    (f'{BEGIN} "-" "nul \\x00"', request(**ROOT, agent="nul \\x00")),
    (f'{BEGIN} "-" "curl" "10.1.2.3" 0.004', request(**ROOT, agent="curl")),
    (f'{BEGIN} "-" "日本"', request(**ROOT, agent="日本")),
    (BEGIN, "this is a common log line, without referrer and agent; or it was cut"),
    (f'{BEGIN} "-" "curl', "this is no combined log line"),
    (f'{BEGIN} "-" "curl"x', "this is no combined log line"),
    (f'{BEGIN} "-" "ends in a backslash\\"', "this is no combined log line"),
]


@pytest.mark.parametrize(("line", "expected"), COMBINED)
def test_combined_line_becomes_its_event_or_a_reason(line: str, expected: object) -> None:
    assert read(WebLogReader(ImportFormat.COMBINED, to_event), line) == expected


@pytest.mark.parametrize("line", [" [" * 400_000, '"\\' * 400_000, HEAD + ' "' + "\\x" * 400_000, "a " * 400_000])
def test_hostile_line_is_refused_quickly(line: str) -> None:
    """Quadratic matching would take hours for these; pytest would be ended by its caller."""
    assert read(WebLogReader(ImportFormat.COMBINED, to_event), line) == "this is no combined log line"


printable = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=["Cs"]), max_size=40)


@given(referrer=printable, agent=printable, url=printable)
def test_what_a_server_escapes_comes_back(referrer: str, agent: str, url: str) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"')

    path = "/" + url.strip()
    line = f'{HEAD} "GET {escaped(path)} HTTP/1.1" 200 5 "{escaped(referrer)}" "{escaped(agent)}"'
    found = read(WebLogReader(ImportFormat.COMBINED, to_event), line)
    expected = {**ROOT, "url": path, "referrer": referrer, "agent": agent}
    assert found == request(**{name: value for name, value in expected.items() if value not in ("", "-")})


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_an_event_or_refused(raw: bytes) -> None:
    for reader in (
        WebLogReader(ImportFormat.COMBINED, to_event),
        W3cReader(to_event, UTC),
        NdjsonReader(),
        _csv("name"),
    ):
        if reader.is_event(raw):
            read(reader, raw)


# ---- W3C ---------------------------------------------------------------------

IIS = "#Fields: date time c-ip cs-username cs-method cs-uri-stem cs-uri-query sc-status sc-bytes time-taken cs(User-Agent) cs(Referer)"


@pytest.mark.parametrize(
    ("directives", "line", "expected"),
    [
        (
            [IIS],
            "2026-11-16 02:40:11 ::1 - GET /a b=1 200 512 15 Mozilla/5.0+(a;++http://b) https://c.example/",
            request(
                url="/a?b=1", method="GET", status=200, ms=15.0, bytes=512,
                referrer="https://c.example/", agent="Mozilla/5.0 (a; +http://b)", ip="::1",
            ),
        ),
        ([IIS], "2026-11-16 02:40:11 ::1 DOM\\ann GET /a - - - - - -", request("DOM\\ann", url="/a", method="GET", ip="::1")),
        (["#Date: 2026-11-16 00:00:00", "#Fields: time cs-uri time-taken"], "02:40:11 /x 0.004", request(url="/x", ms=4.0)),
        (["#Fields: date\ttime\tcs(User-Agent)\tx-edge"], "2026-11-16\t02:40:11\tA%20b\t-", request(agent="A b")),
        (["#Fields: date time cs(User-Agent)"], '2026-11-16 02:40:11 "say ""hi"" there"', request(agent='say "hi" there')),
        (["#Fields: date time cs-uri cs(User-Agent)"], '2026-11-16 02:40:11 /" a"b', request(url='/"', agent='a"b')),
        (["#Fields: time cs-uri", "#Fields: date time cs-method"], "2026-11-16 02:40:11 GET", request(method="GET")),
        ([], "2026-11-16 02:40:11 GET", "no #Fields directive comes before this line"),
        (["#Fields: time cs-uri"], "02:40:11 /", "time: the line has no date and time, and no #Date comes before it"),
        (["#Fields: date time"], "2026-11-16", "the line should have 2 fields, as #Fields says; it is 1"),
        (
            ["#Fields: date time"],
            "2026-13-16 02:40:11",
            "time: this should be a date and a time like 2026-11-16 02:40:11; it is '2026-13-16 02:40:11'",
        ),
        (["#Fields: date time sc-status"], "2026-11-16 02:40:11 2x0", "properties.status: this should be a whole number; it is '2x0'"),
        (["#Fields: date time time-taken"], "2026-11-16 02:40:11 1.2.3", "properties.ms: this should be a number; it is '1.2.3'"),
    ],
)  # fmt: skip
def test_w3c_line_becomes_its_event_or_a_reason(directives: list[str], line: str, expected: object) -> None:
    reader = W3cReader(to_event, UTC)
    assert not any(reader.is_event(directive.encode()) for directive in ["#Version: 1.0", *directives])
    assert read(reader, line) == expected


def test_w3c_times_are_of_the_zone_that_was_named() -> None:
    reader = W3cReader(to_event, ZoneInfo("Europe/Vienna"))
    reader.is_event(b"#Fields: date time")
    assert read(reader, "2026-11-16 03:40:11") == request()


def test_w3c_line_without_a_date_is_another_event_under_another_date() -> None:
    reader = W3cReader(to_event, UTC)
    contexts = set()
    for directive in (b"#Fields: time cs-uri", b"#Date: 2026-11-16", b"#Date: 2026-11-17"):
        reader.is_event(directive)
        contexts.add(reader.context)
    assert len(contexts) == 3


# ---- CSV ---------------------------------------------------------------------


def _csv(header: str, **options: Any) -> CsvReader:
    reader = CsvReader(web, UTC, **options)
    assert not reader.is_event(header.encode())
    return reader


@pytest.mark.parametrize(
    ("header", "line", "expected"),
    [
        ("event_id,name,properties.status", "7,click,200", {"event_id": "7", "name": "click", "properties": {"status": 200}}),
        ("name,user_id", "click,", {"name": "click"}),
        ("name;user_id", 'click;"a;b"', {"name": "click", "user_id": "a;b"}),
        ("name\tuser_id", "click\t7", {"name": "click", "user_id": "7"}),
        ("name,user_id", '"say ""hi""","two\nlines"', {"name": 'say "hi"', "user_id": "two\nlines"}),
        ("name,user_id", "line\u2028separator,\x85", {"name": "line\u2028separator", "user_id": "\x85"}),
        ("event_time", "2026-11-16 02:40:11", {"event_time": TIME}),
        ("event_time", "2026-11-16T03:40:11+01:00", {"event_time": TIME}),
        ("event_time", "1794796811", {"event_time": TIME}),
        ("event_time", "1794796811000", {"event_time": TIME}),
        ("properties", '"{""url"": ""/a""}"', {"properties": {"url": "/a"}}),
        ("name,user_id", "click", "a record should have 2 cells, as the header has; it is 1"),
        ("name", '"open', "this is not CSV: a quote is not closed"),
        ("name,user_id", 'a "quote\n" b,c', "this is not CSV: a quote inside a cell that is not quoted"),
        ("event_time", "yesterday", "event_time: this should be a time like 2026-01-31T12:00:00Z; it is 'yesterday'"),
        ("properties.status", "2e2", "properties.status: this should be a whole number; it is '2e2'"),
        ("properties.ms", "nan", "properties.ms: this should be a number; it is 'nan'"),
        ("properties.ms", "1e999", "properties.ms: this should be a number; it is '1e999'"),
        ("properties.status", "9" * 50, f"properties.status: this should be a whole number; it is '{'9' * 40}'"),
        ("properties,properties.url", "{},/a", {"properties": {"url": "/a"}}),
        ("properties.url,properties", "/a,{}", "properties: the struct is given both whole and in parts"),
    ],
)  # fmt: skip
def test_csv_record_becomes_its_event_or_a_reason(header: str, line: str, expected: object) -> None:
    assert read(_csv(header), line) == expected


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("name,url", "The column 'url' is no field of source 'web'. Did you mean 'properties.url'?"),
        ("nme", "Did you mean 'name'?"),
        ("name,name", "The header names 'name' more than once."),
        ("qqq", "There are: event_id, event_time, user_id, name, category, properties, properties.url"),
    ],
)
def test_csv_header_that_cannot_work_is_refused_with_a_suggestion(header: str, said: str) -> None:
    with pytest.raises(UnusableInput) as refused:
        _csv(header)
    assert said in str(refused.value)


def test_unknown_columns_are_left_out_when_asked() -> None:
    assert read(_csv("name,colour", ignore_unknown=True), "click,red") == {"name": "click"}


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("boolean", "Yes", True),
        ("boolean", "0", False),
        ("boolean", "maybe", "x: this should be true or false; it is 'maybe'"),
        ("decimal(6,2)", "12.50", Decimal("12.50")),
        ("array<int>", "[1,2]", [1, 2]),
        ("date", "2026-02-30", 'x: this should be a date like "2026-01-31"; it is "2026-02-30"'),
    ],
)
def test_cells_become_the_declared_type(kind: str, text: str, expected: object) -> None:
    source = Source("typed", fields=f"event_id string, event_time timestamp, x {kind}")
    reader = CsvReader(source, UTC, "|")
    reader.is_event(b"x")
    event = read(reader, text, compile_validator(source))
    assert (event if isinstance(event, str) else event["x"]) == expected


# ---- NDJSON and detection ----------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"name": "a", "extra": [1]}', {"name": "a", "extra": [1]}),
        ('{"name": 7}', "name: this should be a string; it is 7"),
        ("[]", "an event is a JSON object, not []"),
        ("null", "an event is a JSON object, not null"),
        ('{"a": 1, "a": 2}', "a: this key is given twice in one object"),
    ],
)
def test_ndjson_line_is_the_event_or_a_reason(line: str, expected: object) -> None:
    assert read(NdjsonReader(), line) == expected


@pytest.mark.parametrize(
    ("head", "name", "expected"),
    [
        (b"", "a", ImportFormat.NDJSON),
        (b"", "a.csv.gz", ImportFormat.CSV),
        (b'\n {"a": 1}\n', "a", ImportFormat.NDJSON),
        (b"\xef\xbb\xbfname,user_id\n", "a", ImportFormat.CSV),
        (b"colour;size\n", "a.csv", ImportFormat.CSV),
        (b"#Software: Microsoft\n", "a.log", ImportFormat.W3C),
        (BEGIN.encode(), "a", ImportFormat.COMMON),
        (b"broken line\n" + f'{BEGIN} "-" "x"'.encode(), "a", ImportFormat.COMBINED),
    ],
)
def test_format_is_detected_from_the_beginning(head: bytes, name: str, expected: ImportFormat) -> None:
    assert detect_format(web, head, name) is expected


def test_unknown_beginning_asks_for_the_format() -> None:
    with pytest.raises(UnusableInput, match="Name it with --format: ndjson, csv, w3c, common, combined"):
        detect_format(web, b"hello world\n", "a.txt")


@pytest.mark.parametrize("format_", [format_ for format_ in ImportFormat if format_ is not ImportFormat.AUTO])
def test_every_format_has_a_reader_of_its_own(format_: ImportFormat) -> None:
    assert make_reader(web, Options(format_), b"", "a").format is format_


def test_format_without_a_reader_is_refused() -> None:
    unknown: Any = "parquet"
    with pytest.raises(UnusableInput, match="'parquet', for which there is no reader"):
        make_reader(web, Options(unknown), b"PAR1", "a.parquet")


def test_source_without_a_place_for_requests_is_refused() -> None:
    with pytest.raises(UnusableInput, match="declares no field that a web-server log could fill"):
        compile_web_event(Source("bare", fields="event_id string, event_time timestamp"))


def test_renamed_fields_are_filled_by_their_aliases() -> None:
    renamed = Source(
        "renamed",
        fields="event_id string, event_time timestamp, page string, details struct<code: int, agent: string>",
        aliases={"page": ("url",), "details": ("properties",), "details.code": ("status",)},
    )
    event = WebLogReader(ImportFormat.COMMON, compile_web_event(renamed)).read(BEGIN.encode())
    assert event == {"event_time": TIME, "url": "/", "properties": {"status": 200}}


def test_flat_source_gets_the_same_values() -> None:
    flat = Source("flat", fields="event_id string, event_time timestamp, url string, status string, agent string")
    event = WebLogReader(ImportFormat.COMMON, compile_web_event(flat)).read(BEGIN.encode())
    assert event == {"event_time": TIME, "url": "/", "status": "200"}
