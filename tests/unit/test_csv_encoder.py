"""The quick way of a CSV record into Kafka gives the bytes of the slow one, and leaves all doubts to it."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import UTC

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import PreparedEvent, compile_validator, prepare_event
from master_dataset.importer import csv_encoder
from master_dataset.importer.csv_file import CsvReader
from views.source import Source

trips = Source(
    "trips",
    "event_id string, event_time timestamp, day date, seats int, tiny tinyint, distance double, weight float, "
    "fare decimal(8,2), is_late boolean, carrier string, plane struct<tail: string, engines: int, built: date>, "
    "legs array<string>, crew struct<pilot: struct<name: string>>",
)
LINE_ID = "5f0c0000000000000000000000000000-1"
TYPICAL = {
    "event_id": "a1",
    "event_time": "2013-01-01 05:00:00",
    "day": "2013-01-01",
    "seats": "149",
    "tiny": "-128",
    "distance": "1400.0",
    "weight": "0.1",
    "fare": "123.45",
    "is_late": "yes",
    "carrier": "UA",
    "plane.tail": "N14228",
    "plane.engines": "2",
    "plane.built": "1999-12-31",
}


KEYED = {name: replace(trips, key_field=name) for name in ("", "event_id", "carrier", "seats")}
KEYED["alias"] = replace(KEYED["carrier"], aliases={"carrier": ("airline", "line")})


def reader_of(header: list[str], delimiter: str = ",", source: Source = trips) -> CsvReader:
    reader = CsvReader(source, UTC, delimiter, ignore_unknown=True)
    assert not reader.is_event(delimiter.join(header).encode())
    return reader


def slowly(reader: CsvReader, raw: bytes, source: Source = trips) -> PreparedEvent | InvalidEvent:
    try:
        event = reader.read(raw)
        compile_validator(source)(event)
        if event.get("event_id") is None:
            event["event_id"] = LINE_ID
        return prepare_event(source, event)
    except InvalidEvent as error:
        return error


def quickly(reader: CsvReader, raw: bytes) -> PreparedEvent | InvalidEvent | None:
    try:
        return reader.encode(raw, LINE_ID)
    except InvalidEvent as error:
        return error


def check_same(reader: CsvReader, raw: bytes, source: Source = trips) -> None:
    expected, found = slowly(reader, raw, source), quickly(reader, raw)
    if isinstance(found, InvalidEvent):
        assert str(found) == str(expected)
    elif found is not None:
        assert found == expected


NUMBERS = ("0", "-0", "007", "1e5", "1e999", "9999999999", "1.5", ".5", "5.", "+3", "-129", "0.30000000000000004")
WORDS = ("", " ", "true", "n", "2013-02-30", "2013-01-01T05:00:00+18:00", "1357016400000", "0001-01-01", "2300-01-01")
TEXTS = ('a "quoted" word', "back\\slash", "ü\u2028\x85", "x" * 513, "tab\there", "a;b", "a,b")
cells = st.one_of(
    st.sampled_from((*NUMBERS, *WORDS, *TEXTS, *TYPICAL.values())),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r\n"), max_size=8),
)
columns = st.lists(
    st.sampled_from([*TYPICAL, "airline", "line", "plane", "legs", "crew.pilot.name", "unknown"]),
    min_size=1,
    max_size=14,
    unique=True,
)


@given(
    columns.filter(lambda names: names != ["unknown"]),
    st.data(),
    st.sampled_from([",", ";"]),
    st.sampled_from([*KEYED.values()]),
)
def test_quick_record_is_the_slow_one_or_left_to_it(
    names: list[str], data: st.DataObject, delimiter: str, source: Source
) -> None:
    reader = reader_of(names, delimiter, source)
    for _ in range(3):
        row = data.draw(st.lists(cells, min_size=max(1, len(names) - 1), max_size=len(names) + 1))
        written = io.StringIO()
        csv.writer(written, delimiter=delimiter).writerow(row)
        check_same(reader, written.getvalue().removesuffix("\r\n").encode(), source)


@given(st.text(st.sampled_from('ab,"\r ;\\\x85ü')))
@example("a\rb,c")
@example('a"b,c')
def test_unquoted_record_is_split_as_the_csv_reader_does(line: str) -> None:
    reader = reader_of(["carrier", "event_id"])
    if not line or line.isspace():
        return
    try:
        expected: object = next(csv.reader([line], strict=True))
    except csv.Error:
        expected = None
    try:
        found: object = reader._cells(line.encode())
    except InvalidEvent:
        found = None
    assert found == expected


def test_typical_record_takes_the_quick_way() -> None:
    reader = reader_of([*TYPICAL])
    raw = ",".join(TYPICAL.values()).encode()
    expected = slowly(reader, raw)
    assert isinstance(expected, PreparedEvent)
    assert b'"plane":{"tail":"N14228","engines":2,"built":"1999-12-31"}' in expected.value
    assert quickly(reader, raw) == quickly(reader, raw) == expected


@pytest.mark.parametrize(
    ("key_field", "key"), [("", b"a1"), ("event_id", b"a1"), ("carrier", b"UA"), ("seats", b"149")]
)
def test_quick_record_has_the_key_that_the_source_names(key_field: str, key: bytes) -> None:
    source = KEYED[key_field]
    reader = reader_of([*TYPICAL], source=source)
    raw = ",".join(TYPICAL.values()).encode()
    found = quickly(reader, raw)
    assert isinstance(found, PreparedEvent)
    assert (found, found.key) == (slowly(reader, raw, source), key)


@pytest.mark.parametrize(("row", "key"), [("a1,UA,AA", b"AA"), ("a1,UA,", b"UA"), ("a1,,AA", b"AA"), ("a1,,", b"a1")])
def test_quick_record_has_its_key_under_whatever_name_it_comes(row: str, key: bytes) -> None:
    """The airline comes before the line, in whatever order the columns are."""
    source = KEYED["alias"]
    reader = reader_of(["event_id", "line", "airline"], source=source)
    found = quickly(reader, row.encode())
    assert isinstance(found, PreparedEvent)
    assert (found, found.key) == (slowly(reader, row.encode(), source), key)


@pytest.mark.parametrize(
    "header", [["plane.tail", "carrier", "plane.engines"], ["plane"], ["legs"], ["crew.pilot.name", "carrier"]]
)
def test_header_whose_members_have_no_fixed_order_is_left_to_the_reader(header: list[str]) -> None:
    assert reader_of(header).encode(b",".join(b"" for _ in header), LINE_ID) is None


def test_wrong_cell_is_left_to_the_reader_each_time() -> None:
    reader = reader_of(["seats", "carrier"])
    assert [quickly(reader, b"many,UA") for _ in range(2)] == [None, None]
    assert quickly(reader, b"2,UA") == slowly(reader, b"2,UA")


def test_remembered_cells_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_encoder, "MAX_CELLS", 4)
    reader = reader_of(["seats", "carrier"])
    for number in range(20):
        check_same(reader, f"{number},{'long' * number}".encode())
        check_same(reader, b",")
    assert reader._encoder is not None
    assert all(len(column) <= 4 for column in reader._encoder._columns)
