"""Dead letters: invalid records in the source's dead-letter topic, with their location and the reason in headers.

They are read, listed and sent again here; `outbox` sends those of the archiver's commits, each once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from master_dataset.errors import MasterDatasetError
from master_dataset.events.json_bytes import text_or_base64
from master_dataset.kafka.errors import translated
from master_dataset.kafka.record import NOW, KafkaRecord, record_of, timestamp_ms
from master_dataset.kafka.send import send_fitting, send_records
from views.source import Source

ORIGIN = ("source", "topic", "partition", "offset", "timestamp", "version", "reason")
PREFIX = "tidemark-"
TOO_LARGE = f"{PREFIX}too-large"
"""The last header of a dead letter whose value the topic does not take: how many bytes it has."""
FOREIGN = "not sent by Tidemark"
READ_TIMEOUT_S = 10.0
FIRST_CHUNK, MAX_CHUNK, CHUNK_BYTES = 20, 500, 8 * 1024 * 1024
"""How many dead letters are read at once: at first, at most, and of about how many bytes."""

log = structlog.get_logger()


class ValueLeftOut(MasterDatasetError):
    """A dead letter whose value is only in the master dataset cannot be sent again from here."""


@dataclass(frozen=True)
class DeadLetter:
    """An invalid record in the dead-letter topic. `number` is its offset there.

    A message that others sent there has no origin: its partition, offset and version are -1. `left_out_bytes` is the
    size of a value that was too large for the topic.
    """

    number: int
    partition: int
    offset: int
    version: int
    reason: str
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    left_out_bytes: int | None = None

    @property
    def size(self) -> int:
        """The bytes of its key, value and headers."""
        return sum(
            len(part or b"") for part in (self.key, self.value, *(part for pair in self.headers for part in pair))
        )


def newest_first(config: dict[str, Any], source: Source) -> Iterator[DeadLetter]:
    """The dead letters from the last to the first, read in chunks of some MB, judged by the chunk before."""
    first, end = watermarks(config, source)
    chunk = FIRST_CHUNK
    while end > first:
        start = max(first, end - chunk)
        letters = list(read_letters(config, source, start, end))
        yield from reversed(letters)
        mean = sum(letter.size for letter in letters) / max(1, len(letters))
        chunk, end = max(1, min(MAX_CHUNK, int(CHUNK_BYTES / max(1.0, mean)))), start


def watermarks(config: dict[str, Any], source: Source) -> tuple[int, int]:
    """The first offset of the dead-letter topic and the one after its last."""
    consumer = _consumer(config)
    try:
        first, end = consumer.get_watermark_offsets(TopicPartition(source.dead_topic, 0), timeout=READ_TIMEOUT_S)
    except KafkaException as error:
        raise translated(error, f"Topic {source.dead_topic!r} could not be read") from None
    else:
        return int(first), int(end)
    finally:
        consumer.close()


def read_letters(config: dict[str, Any], source: Source, start: int, end_exclusive: int) -> Iterator[DeadLetter]:
    """The dead letters with numbers from `start` up to `end_exclusive`. The end of a transaction is none."""
    if start >= end_exclusive:
        return
    consumer = _consumer(config)
    try:
        consumer.assign([TopicPartition(source.dead_topic, 0, start)])
        while True:
            message = consumer.poll(READ_TIMEOUT_S)
            if message is None:
                raise MasterDatasetError(f"Topic {source.dead_topic!r} sent nothing for {READ_TIMEOUT_S:g} s.")
            number, error = message.offset(), message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                if number is not None and number >= end_exclusive:
                    return
                continue  # before an open transaction; what comes behind it may be ours
            if error is not None:
                raise MasterDatasetError(f"Topic {source.dead_topic!r} could not be read: {error}.")
            if number is None or number >= end_exclusive:
                return
            yield _letter(message)
            if number == end_exclusive - 1:
                return
    finally:
        consumer.close()


def whole(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON; bytes that are not UTF-8 in base64."""
    return {
        "number": letter.number,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp_ms,
        "reason": letter.reason,
        **text_or_base64("key", letter.key),
        "headers": [{"key": name, **text_or_base64("value", value)} for name, value in letter.headers],
        **text_or_base64("value", letter.value),
        **({} if letter.left_out_bytes is None else {"left_out_bytes": letter.left_out_bytes}),
    }


def replay(config: dict[str, Any], source: Source, letters: Iterable[DeadLetter]) -> int:
    """Send dead letters to their source's topic again, as they were, for instance after its declaration was fixed."""
    chosen = list(letters)
    for letter in chosen:
        if letter.left_out_bytes is not None:
            first, end = (f"{letter.partition}:{offset}" for offset in (letter.offset, letter.offset + 1))
            raise ValueLeftOut(
                f"Dead letter {letter.number} of {source.name!r} has no value: its {letter.left_out_bytes:,} bytes are "
                f"too many for the topic {source.dead_topic!r}. Nothing was sent. The master dataset holds it: "
                f"`tidemark master read {source.name} --with-invalid --from {first} --to {end}`."
            )
    return send_records(
        config,
        (KafkaRecord(source.topic, letter.value, letter.key, letter.headers, letter.timestamp_ms) for letter in chosen),
    )


def send_letters(config: dict[str, Any], source: Source, version: int, rows: Iterable[dict[str, Any]]) -> int:
    """Send invalid rows of a commit as dead letters. Returns how many.

    A record that is too large for the topic is sent without its value, at worst also without key and headers.
    """
    count, too_large = send_fitting(config, (_dead_record(source, version, row) for row in rows))
    for shorten in (_without_value, _without_all):
        if too_large:
            more, too_large = send_fitting(config, [shorten(record) for record in too_large])
            count += more
    if too_large:
        raise MasterDatasetError(
            f"Topic {source.dead_topic!r} is too small even for headers. Raise its max.message.bytes."
        )
    return count


def _dead_record(source: Source, version: int, row: dict[str, Any]) -> KafkaRecord:
    values = (
        source.name,
        source.topic,
        row["partition"],
        row["offset"],
        timestamp_ms(row["timestamp"]),
        version,
        row["invalid"],
    )
    origin = tuple((f"{PREFIX}{name}", str(value).encode()) for name, value in zip(ORIGIN, values, strict=True))
    record = record_of(row, source.dead_topic)
    return record._replace(headers=record.headers + origin, timestamp_ms=NOW)


def _without_value(record: KafkaRecord) -> KafkaRecord:
    note = (TOO_LARGE, str(len(record.value or b"")).encode())
    return record._replace(value=None, headers=(*record.headers, note))


def _without_all(record: KafkaRecord) -> KafkaRecord:
    return record._replace(key=None, headers=record.headers[-len(ORIGIN) - 1 :])


def _letter(message: Message) -> DeadLetter:
    """Our headers are the last ones; those before them are the record's own."""
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    is_short = bool(headers) and headers[-1][0] == TOO_LARGE
    before = headers[:-1] if is_short else headers
    ours, kept = before[-len(ORIGIN) :], before[: -len(ORIGIN)]
    if tuple(name for name, _ in ours) != tuple(f"{PREFIX}{name}" for name in ORIGIN):
        return _foreign_letter(message, tuple(headers))
    try:
        values = {name.removeprefix(PREFIX): (value or b"").decode() for name, value in ours}
        return DeadLetter(
            number=message.offset() or 0,
            partition=int(values["partition"]),
            offset=int(values["offset"]),
            version=int(values["version"]),
            reason=values["reason"],
            timestamp_ms=int(values["timestamp"]),
            key=message.key(),
            value=message.value(),
            headers=tuple(kept),
            left_out_bytes=int(headers[-1][1] or b"0") if is_short else None,
        )
    except ValueError:
        return _foreign_letter(message, tuple(headers))


def _foreign_letter(message: Message, headers: tuple[tuple[str, bytes | None], ...]) -> DeadLetter:
    return DeadLetter(
        number=message.offset() or 0,
        partition=-1,
        offset=-1,
        version=-1,
        reason=FOREIGN,
        timestamp_ms=max(NOW, message.timestamp()[1]),
        key=message.key(),
        value=message.value(),
        headers=headers,
    )


def _consumer(config: dict[str, Any]) -> Consumer:
    return Consumer(
        {
            **config,
            "group.id": "tidemark-dead-letters",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
