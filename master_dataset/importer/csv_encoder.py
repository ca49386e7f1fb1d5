"""Turn the cells of a CSV record into the JSON of its event, converting each different cell of a column once.

The cells of a column repeat: days, codes, small numbers. Whether a cell is valid and what it is as JSON depends on the
column and its text alone, so both are remembered as a member of the event:

    dep_delay   "-4.0"  ->  '"dep_delay":-4.0'

An event is its members, joined. The reader that builds a whole event decides everything else: what is refused, with
which reason, and columns that have no such members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any, NamedTuple

import orjson

from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import MAX_NAME_CHARACTERS, PreparedEvent, compile_validator, event_key
from master_dataset.importer.values import Convert
from views.field_types import FieldType, with_names
from views.source import Source
from views.strict_json import dump_decimal

MAX_CELLS = 1 << 14
"""Cells of one column that are remembered; then it begins again."""
MAX_CELL_CHARACTERS = 64
"""Longer cells hardly repeat, and would fill the memory."""
WITH_PARTS = ("array", "map", "struct")


class Column(NamedTuple):
    """Where a cell goes: `properties.url` is the path ("properties", "url")."""

    name: str
    path: tuple[str, ...]
    type: FieldType
    convert: Convert


class _Uncertain(Exception):
    """This cell needs the reader."""


class _Group(NamedTuple):
    """The columns `start` to `end_exclusive` are the members of one struct; `head` begins it."""

    start: int
    end_exclusive: int
    head: str


class CsvEncoder:
    """Encodes the records of one header."""

    def __init__(self, source: Source, columns: Sequence[Column | None], groups: Sequence[_Group]) -> None:
        self._columns = [_Skipped() if each is None else _Members(_encoding(each, source)) for each in columns]
        self._groups = groups
        paths = [None if each is None else each.path for each in columns]
        self._id_column = paths.index((source.id_field,)) if (source.id_field,) in paths else -1
        found = [paths.index((name,)) for name in source.key_names if (name,) in paths]
        self._keys = [(index, _Members(_key_encoding(columns[index]))) for index in found]
        self._id_head = f"{orjson.dumps(source.id_field).decode()}:"

    def encode(self, cells: list[str], event_id: str) -> PreparedEvent | None:
        """The event of a record as Kafka gets it, or None where the reader has to decide.

        `event_id` is its id unless the record has one. It needs no escapes in JSON.
        """
        if len(cells) != len(self._columns):
            return None
        try:
            members = list(map(getitem, self._columns, cells))
        except _Uncertain:
            return None
        for start, end, head in reversed(self._groups):
            inner = ",".join(filter(None, members[start:end]))
            members[start:end] = [f"{head}{{{inner}}}" if inner else ""]
        if self._id_column >= 0 and cells[self._id_column]:
            event_id = cells[self._id_column]
        else:
            members.append(f'{self._id_head}"{event_id}"')
        value = f"{{{','.join(filter(None, members))}}}".encode()
        if len(value) > MAX_NAME_CHARACTERS:  # a name may be too long
            return None
        key = next((keys[cells[index]] for index, keys in self._keys if cells[index]), None)
        return PreparedEvent(event_key(key, event_id), value, event_id)


def encoder_of(source: Source, columns: Sequence[Column | None]) -> CsvEncoder | None:
    """The encoder of a header; None if the members of an event would come in another order than the reader's.

    It judges cells one by one. Whether a required field is there, only the reader's validator says.

    The reader puts a struct where the first of its cells is that is not empty. So its columns have to be neighbours.
    """
    if any(field.is_required for _, field in with_names(source.schema)):
        return None
    groups: list[_Group] = []
    for index, column in enumerate(columns):
        if column is None or len(column.path) == 1:
            if column is not None and column.type.kind in WITH_PARTS:
                return None
            continue
        head = f"{orjson.dumps(column.path[0]).decode()}:"
        if len(column.path) > 2 or column.type.kind in WITH_PARTS:
            return None
        if groups and groups[-1].head == head and groups[-1].end_exclusive == index:
            groups[-1] = groups[-1]._replace(end_exclusive=index + 1)
        elif any(group.head == head for group in groups):
            return None
        else:
            groups.append(_Group(index, index + 1, head))
    return CsvEncoder(source, columns, groups)


class _Members(dict[str, str]):
    """The members of one column by their cells; that of an empty cell is empty."""

    def __init__(self, encode: Callable[[str], str]) -> None:
        super().__init__({"": ""})
        self._encode = encode

    def __missing__(self, cell: str) -> str:
        member = self._encode(cell)
        if len(cell) <= MAX_CELL_CHARACTERS:
            if len(self) >= MAX_CELLS:
                self.clear()
                self[""] = ""
            self[cell] = member
        return member


class _Skipped(dict[str, str]):
    """A column that is left out."""

    def __missing__(self, _cell: str) -> str:
        return ""


def _encoding(column: Column, source: Source) -> Callable[[str], str]:
    name, validate = column.path[-1], compile_validator(source, only=column.path)

    def encode(cell: str) -> str:
        try:
            member = {name: column.convert(cell)}
            validate(_nested(column.path[:-1], member))
        except (InvalidEvent, ValueError):
            raise _Uncertain from None
        return orjson.dumps(member, dump_decimal)[1:-1].decode()

    return encode


def _key_encoding(column: Column | None) -> Callable[[str], str]:
    def encode(cell: str) -> str:
        return cell if column is None else str(column.convert(cell))

    return encode


def _nested(path: tuple[str, ...], member: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in reversed(path):
        member = {name: member}
    return member
