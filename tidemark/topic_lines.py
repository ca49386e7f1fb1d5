"""Lines of text as records for a topic: plain values, keys before a separator, or messages as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from infra.rest.problems import Problem
from master_dataset.collector.kafka_rest.messages import read_messages
from master_dataset.errors import MasterDatasetError
from master_dataset.events.envelope import InvalidEvent
from master_dataset.kafka.record import ANY_PARTITION, Headers, KafkaRecord
from views.strict_json import parse_json

MAX_LINE_BYTES = 32 * 1024 * 1024


class LineFormat(NamedTuple):
    """How lines become records. `is_message`: each line is an object like those of `/produce`."""

    topic: str
    key: bytes | None = None
    key_separator: bytes = b""
    headers: Headers = ()
    partition: int = ANY_PARTITION
    is_message: bool = False


class InvalidLine(MasterDatasetError):
    """A line that is no record."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"Line {number}: {reason.rstrip('.')}.")


def records_of_lines(file: BinaryIO, form: LineFormat) -> Iterator[KafkaRecord]:
    """One record a line, as they are read; empty lines are empty values, except where lines are messages."""
    read = _message if form.is_message else _plain
    for number, line in enumerate(_lines(file), 1):
        if line or not form.is_message:
            yield read(line, number, form)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise InvalidLine(number, f"it has more than {MAX_LINE_BYTES:,} bytes")
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _plain(line: bytes, number: int, form: LineFormat) -> KafkaRecord:
    key, value = form.key, line
    if form.key_separator:
        before, separator, value = line.partition(form.key_separator)
        if not separator:
            text = form.key_separator.decode(errors="replace")
            raise InvalidLine(number, f"it lacks the separator {text!r} between key and value")
        key = before
    return KafkaRecord(form.topic, value, key, form.headers, partition=form.partition)


def _message(line: bytes, number: int, form: LineFormat) -> KafkaRecord:
    try:
        record = read_messages(_object(line), form.topic, form.key)[0]
    except InvalidEvent as error:
        raise InvalidLine(number, str(error)) from None
    except Problem as problem:
        where = problem.more.get("where")
        reason = str(problem.more.get("reason") or problem.detail)
        raise InvalidLine(number, f"{where}: {reason}" if where else reason) from None
    partition = form.partition if record.partition == ANY_PARTITION else record.partition
    return record._replace(headers=(*form.headers, *record.headers), partition=partition)


def _object(line: bytes) -> object:
    parsed = parse_json(line)
    if isinstance(parsed, list):
        raise InvalidEvent("", "a message is an object, and this is an array; write each on a line of its own")
    return parsed
