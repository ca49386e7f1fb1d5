"""Dead letters whose records count by a later version of their source."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from infra.settings import load_settings
from master_dataset.dead_letters import later_readings
from master_dataset.dead_letters.later_readings import AlreadyCounts, LaterReadings
from master_dataset.dead_letters.letters import NOT_OURS, DeadLetter
from master_dataset.table.coverage import Coverage, Removed
from master_dataset.table.paths import own_folder, table_path
from views.formats.framing import frame_of_id
from views.source import Source

ROLES = "event_id string, event_time timestamp"
FIRST = Source("shop", fields=f"{ROLES}, n int not null")
SECOND = Source("shop", fields=f"{ROLES}, n bigint not null", version=2)
THIRD = Source("shop", fields=f"{ROLES}, n bigint default 0", version=3)
AT_MS = int(datetime(2026, 5, 1, tzinfo=UTC).timestamp() * 1000)


def letter(value: bytes | None, offset: int = 7) -> DeadLetter:
    return DeadLetter(offset, 0, offset, 3, "n is not int", AT_MS, None, value, (), id="x")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = table_path(load_settings(home=tmp_path), "shop")
    path.mkdir(parents=True)
    return path


def adopted(table: Path, *readings: Source) -> LaterReadings:
    """As they are recorded beside the table, one after the other."""
    folder = own_folder(table) / "readings"
    folder.mkdir(parents=True, exist_ok=True)
    for each in readings:
        (folder / f"{each.version:08}").write_text(json.dumps(each.reading))
    return LaterReadings(table, readings[-1] if readings else FIRST)


@pytest.mark.parametrize(
    ("value", "since"),
    [
        (b'{"event_id":"a","n":3000000000}', 2),
        (b'{"event_id":"a"}', 3),
        (b'{"event_id":"a","n":null}', 3),
        (b'{"event_id":"a","n":"x"}', None),
        (b'{"event_id":"a","n":3000000000', None),
        (b"[]", None),
        (b"null", None),
        (b"", None),
        (None, None),
    ],
)
def test_letter_says_since_which_version_its_record_counts(table: Path, value: bytes | None, since: int | None) -> None:
    readings = adopted(table, FIRST, SECOND, THIRD)
    assert readings.counts_since(letter(value)) == since
    assert readings.described(letter(value)).get("counts_since_version") == since


def test_record_counts_since_the_last_version_from_which_on_all_find_it_valid(table: Path) -> None:
    stricter = replace(FIRST, version=3)
    assert adopted(table, FIRST, SECOND, stricter).counts_since(letter(b'{"n":3000000000}')) is None
    wide = replace(SECOND, version=4)
    assert adopted(table, wide).counts_since(letter(b'{"n":3000000000}')) == 4


@pytest.mark.parametrize("readings", [(), (FIRST,)])
def test_source_with_one_reading_says_nothing(table: Path, readings: tuple[Source, ...]) -> None:
    assert adopted(table, *readings).counts_since(letter(b'{"event_id":"a","n":1}')) is None


def test_nothing_is_said_of_letters_of_others_without_value_or_of_other_times(table: Path) -> None:
    readings, found = adopted(table, FIRST, SECOND), letter(b'{"n":3000000000}')
    assert readings.counts_since(found) == 2
    assert readings.counts_since(replace(found, version=NOT_OURS)) is None
    assert readings.counts_since(replace(found, left_out_bytes=5)) is None
    assert readings.counts_since(replace(found, timestamp_ms=-1)) is None, "its time would be Kafka's"
    timed = letter(b'{"n":3000000000,"event_time":"2026-01-01T00:00:00Z"}')
    assert readings.counts_since(replace(timed, timestamp_ms=-1)) == 2


def test_removed_record_does_not_count(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Coverage(removed=Removed(cut={0: 8}))
    monkeypatch.setattr(later_readings, "coverage_of", lambda _table: held)
    readings = adopted(table, FIRST, SECOND)
    assert readings.counts_since(letter(b'{"n":3000000000}', offset=7)) is None
    assert readings.counts_since(letter(b'{"n":3000000000}', offset=8)) == 2


def test_replay_is_refused_only_where_it_would_count_twice(table: Path) -> None:
    readings = adopted(table, FIRST, SECOND)
    known, invalid = letter(b'{"event_id":"a","n":3000000000}'), letter(b'{"n":"x"}')
    readings.check_replay([known, invalid])
    with pytest.raises(AlreadyCounts, match=r"Dead letter 9 counts since version 2 .* count twice. Nothing was sent"):
        readings.check_replay([known, invalid, letter(b'{"n":3000000000}', offset=9)])


def test_letters_of_other_formats_are_read_with_the_schemas_that_are_noted(table: Path) -> None:
    first, second = (avro_source(number, ["WEB"] if number == 1 else ["WEB", "PHONE"]) for number in (1, 2))
    notes = own_folder(table) / "schemas"
    notes.mkdir(parents=True)
    (notes / "7").write_text(json.dumps({"schemaType": "AVRO", "schema": second.reader_schema, "references": []}))
    readings = adopted(table, first, second)
    phone, web, neither = (b"\x02\x02a\x00" + bytes([2 * place]) for place in (1, 0, 2))
    assert readings.counts_since(letter(frame_of_id(7) + phone)) == 2
    assert readings.counts_since(letter(frame_of_id(7) + web)) == 2
    assert readings.counts_since(letter(frame_of_id(7) + neither)) is None
    assert readings.counts_since(letter(frame_of_id(8) + phone)) is None, "nobody knows the schema"
    assert readings.counts_since(letter(phone)) is None, "it has no frame"
    readings.check_replay([letter(frame_of_id(7) + phone)])
    with pytest.raises(AlreadyCounts, match="counts since version 2 of its source, and its event has no id"):
        readings.check_replay([letter(frame_of_id(7) + b"\x00\x00\x02")])


def avro_source(version: int, symbols: list[str]) -> Source:
    time = {"type": "long", "logicalType": "timestamp-micros"}
    fields = [
        {"name": "event_id", "type": ["null", "string"], "default": None},
        {"name": "event_time", "type": ["null", time], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": symbols}},
    ]
    schema = {"type": "record", "name": "Order", "fields": fields}
    return Source("shop", format="avro", reader_schema=json.dumps(schema), version=version)
