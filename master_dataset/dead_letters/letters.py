"""Dead letters: invalid records in the source's dead-letter topic, with their location and the reason in headers.

They are read, listed and sent again here; `outbox` sends those of the archiver's commits. A crash may leave a letter in
the topic twice. The id of a letter is a digest of the whole message, so that two letters with one id are the same
letter: whoever reads them here gets it once, and nothing that others write can stand for a letter of ours.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import closing
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
NOT_OURS = -1
READ_TIMEOUT_S = 10.0
MAX_SEARCHED, SEARCH_TIMEOUT_S = 500_000, 60.0
"""How far the archiver searches the topic for letters that it may have sent: others may have filled it."""
FIRST_CHUNK, MAX_CHUNK, CHUNK_BYTES = 20, 500, 8 * 1024 * 1024
"""How many dead letters are read at once: at first, at most, and of about how many bytes."""

log = structlog.get_logger()


class ValueLeftOut(MasterDatasetError):
    """A dead letter whose value is only in the master dataset cannot be sent again from here."""


@dataclass(frozen=True)
class DeadLetter:
    """An invalid record in the dead-letter topic. `number` is its offset there, `id` the same in every duplicate of it.

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
    id: str = ""

    @property
    def size(self) -> int:
        """The bytes of its key, value and headers."""
        return sum(
            len(part or b"") for part in (self.key, self.value, *(part for pair in self.headers for part in pair))
        )


def newest_first(config: dict[str, Any], source: Source) -> Iterator[DeadLetter]:
    """The dead letters from the last to the first, read in chunks of some MB, judged by the chunk before.

    Of a letter that is there twice, the last one.
    """
    first, end = watermarks(config, source)
    chunk, known = FIRST_CHUNK, set[str]()
    while end > first:
        start = max(first, end - chunk)
        letters = list(_read(config, source, start, end))
        yield from _without_duplicates(reversed(letters), known)
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
    """The dead letters with numbers from `start` up to `end_exclusive`. The end of a transaction is none.

    Of a letter that is there twice, the first one.
    """
    yield from _without_duplicates(_read(config, source, start, end_exclusive), set())


def _without_duplicates(letters: Iterable[DeadLetter], known: set[str]) -> Iterator[DeadLetter]:
    """Letters whose ids are not known yet. What others sent is as it is: nobody gave it an id."""
    for letter in letters:
        if letter.version == NOT_OURS or letter.id not in known:
            known.add(letter.id)
            yield letter


def _read(config: dict[str, Any], source: Source, start: int, end_exclusive: int) -> Iterator[DeadLetter]:
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


def ids_since(config: dict[str, Any], source: Source, start: int) -> set[str]:
    """The ids of everything in the topic from an offset on; from its beginning if it is shorter than that.

    Whatever has the id of a letter is that letter, whoever sent it. This search ends also where others fill the topic
    or keep a transaction open: then a letter may be missing here that is there, and sending it again is harmless.
    """
    first, end = watermarks(config, source)
    at = start if first <= start <= end else first
    found: set[str] = set()
    consumer, deadline = _consumer(config), time.monotonic() + SEARCH_TIMEOUT_S
    with closing(consumer):
        consumer.assign([TopicPartition(source.dead_topic, 0, at)])
        while at < end and len(found) < MAX_SEARCHED and time.monotonic() < deadline:
            message = consumer.poll(READ_TIMEOUT_S)
            if message is None:
                log.warning("letters_unreadable", source=source.name, at=at, end=end, remedy="they may be sent twice")
                break
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise MasterDatasetError(f"Topic {source.dead_topic!r} could not be read: {error}.")
            at = int(message.offset() or 0) + (error is None)
            if error is None:
                found.add(_message_id(message))
    return found


def letter_id(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> str:
    """A digest of all that a letter says. None and empty differ, and no byte can move from one part to another."""
    digest = hashlib.blake2b(digest_size=16)
    parts = [key, value, *(part for name, of in headers for part in (name.encode("utf-8", "surrogatepass"), of))]
    for part in parts:
        digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    return digest.hexdigest()


def _message_id(message: Message) -> str:
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return letter_id(message.key(), message.value(), headers)


def whole(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON; bytes that are not UTF-8 in base64."""
    return {
        "number": letter.number,
        "id": letter.id,
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


def send_letters(
    config: dict[str, Any],
    source: Source,
    version: int,
    rows: Iterable[dict[str, Any]],
    present: Container[str] = frozenset(),
) -> int:
    """Send invalid rows of a commit as dead letters, but none with an id that is `present`. Returns how many.

    A record that is too large for the topic is sent without its value, at worst also without key and headers. The same
    row and version always make the same letter: sent again, it has the same id.
    """
    records = (_dead_record(source, version, row) for row in rows)
    unsent = (record for record in records if not any(_record_id(each) in present for each in _shapes(record)))
    count, too_large = send_fitting(config, unsent)
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


def _shapes(record: KafkaRecord) -> Iterator[KafkaRecord]:
    """A letter as it may have been sent: whole, without its value, without everything."""
    yield record
    short = _without_value(record)
    yield short
    yield _without_all(short)


def _record_id(record: KafkaRecord) -> str:
    return letter_id(record.key, record.value, record.headers)


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
            id=_message_id(message),
        )
    except ValueError:
        return _foreign_letter(message, tuple(headers))


def _foreign_letter(message: Message, headers: tuple[tuple[str, bytes | None], ...]) -> DeadLetter:
    return DeadLetter(
        number=message.offset() or 0,
        partition=-1,
        offset=-1,
        version=NOT_OURS,
        reason=FOREIGN,
        timestamp_ms=max(NOW, message.timestamp()[1]),
        key=message.key(),
        value=message.value(),
        headers=headers,
        id=_message_id(message),
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
