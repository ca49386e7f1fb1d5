"""CSV files: the header names fields of the source, dotted names go into structs, cells become the declared types."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterator
from datetime import tzinfo
from typing import Any

from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import PreparedEvent
from master_dataset.importer.csv_encoder import Column, CsvEncoder, encoder_of
from master_dataset.importer.errors import UnusableInput
from master_dataset.importer.formats import ImportFormat, decoded
from master_dataset.importer.lines import MAX_LINE_BYTES
from master_dataset.importer.values import converter
from views.field_types import Field, FieldType
from views.source import Source

DELIMITERS = (",", ";", "\t", "|")


class CsvReader:
    """Reads the records after `event_time,name,properties.url`."""

    format = ImportFormat.CSV

    def __init__(self, source: Source, zone: tzinfo, delimiter: str = "", *, ignore_unknown: bool = False) -> None:
        csv.field_size_limit(MAX_LINE_BYTES)
        self._source = source
        self._types = dict(_paths(source.schema))
        self._zone = zone
        self._delimiter = delimiter
        self._ignore_unknown = ignore_unknown
        self._columns: list[Column | None] | None = None
        self._encoder: CsvEncoder | None = None
        self.context = b""

    def is_event(self, raw: bytes) -> bool:
        """The first record that is not blank is the header."""
        if not raw or raw.isspace():
            return False
        if self._columns is None:
            self._columns = self._read_header(raw)
            self._encoder = encoder_of(self._source, self._columns)
            self.context = raw
            return False
        return True

    def read(self, raw: bytes) -> dict[str, Any]:
        """The event in a record. An empty cell is an absent field."""
        cells, columns = self._cells(raw), self._columns or []
        if len(cells) != len(columns):
            raise InvalidEvent("", f"a record should have {len(columns)} cells, as the header has; it is {len(cells)}")
        event: dict[str, Any] = {}
        for column, cell in zip(columns, cells, strict=True):
            if column is not None and cell:
                try:
                    _put(event, column.path, column.convert(cell))
                except InvalidEvent as error:
                    raise InvalidEvent(column.name, error.reason) from None
        return event

    def encode(self, raw: bytes, event_id: str) -> PreparedEvent | None:
        """The event in a record as Kafka gets it, quicker than by `read`; None where only `read` can decide."""
        return None if self._encoder is None else self._encoder.encode(self._cells(raw), event_id)

    def _cells(self, raw: bytes) -> list[str]:
        text = decoded(raw)
        if '"' not in text and "\r" not in text:
            return text.split(self._delimiter)
        try:
            rows = list(csv.reader([text], delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            raise InvalidEvent("", f"this is not CSV: {_explained(str(error))}") from None
        return rows[0]

    def _read_header(self, raw: bytes) -> list[Column | None]:
        try:
            text = decoded(raw)
            self._delimiter = self._delimiter or guess_delimiter(text)
            names = [cell.strip() for cell in self._cells(raw)]
        except InvalidEvent as error:
            raise UnusableInput(f"The header cannot be read: {error}") from None
        if twice := sorted({name for name in names if name and names.count(name) > 1}):
            raise UnusableInput(f"The header names {', '.join(map(repr, twice))} more than once. Rename one of them.")
        unknown = [name for name in names if name not in self._types]
        if unknown and not self._ignore_unknown:
            raise UnusableInput("\n".join(self._unknown(name) for name in unknown))
        if len(unknown) == len(names):
            raise UnusableInput(
                f"None of the columns {', '.join(map(repr, names))[:200]} is a field of source {self._source.name!r}. "
                f"It has: {', '.join(self._types)}."
            )
        return [
            Column(name, tuple(name.split(".")), self._types[name], converter(self._types[name], self._zone))
            if name in self._types
            else None
            for name in names
        ]

    def _unknown(self, name: str) -> str:
        known = list(self._types)
        by_last = {path.rpartition(".")[2].lower(): path for path in reversed(known)}
        close = by_last.get(name.lower()) or next(iter(difflib.get_close_matches(name, known, n=1)), None)
        hint = f"Did you mean {close!r}?" if close else f"There are: {', '.join(known)}."
        return (
            f"The column {name[:80]!r} is no field of source {self._source.name!r}. {hint} "
            "Rename it, or leave such columns out with --ignore-unknown."
        )


def _explained(said: str) -> str:
    """What Python's reader says speaks of how a file was opened."""
    if said.startswith("new-line"):
        return "a quote inside a cell that is not quoted"
    return "a quote is not closed" if said.startswith("unexpected end") else said


def guess_delimiter(header: str) -> str:
    """What the header uses most, a comma if nothing."""
    return max(DELIMITERS, key=header.count)


def field_paths(source: Source) -> list[str]:
    """Every name that a column may have, like `event_time` and `properties.url`."""
    return [path for path, _type in _paths(source.schema)]


def _paths(fields: tuple[Field, ...], above: str = "") -> Iterator[tuple[str, FieldType]]:
    for field in fields:
        for name in field.names:
            yield f"{above}{name}", field.type
            if field.type.kind == "struct":
                yield from _paths(field.type.fields, f"{above}{name}.")


def _put(event: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        event = event.setdefault(name, {})
        if not isinstance(event, dict):
            raise InvalidEvent("", f"the struct {name!r} is given both whole and in parts")
    if path[-1] in event:
        raise InvalidEvent("", "the struct is given both whole and in parts")
    event[path[-1]] = value
