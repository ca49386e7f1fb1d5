"""Invalid records, sent to the source's dead-letter topic with their location and the reason, each once.

They are read from the master table after their commit. A note beside the table says up to which commit they were sent,
and the headers of the newest dead letter reveal a crash before the note: a restart sends only the rest. The records are
safe in the table whatever happens here, so no failure here stops the archiver: it is logged, and the next commit or
start catches up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from infra.clients.kafka import librdkafka_config
from infra.failpoints import reach
from infra.settings import Settings
from master_dataset.dead_letters.sent import note_sent, read_sent
from master_dataset.errors import MasterDatasetError
from master_dataset.events.json_bytes import text_or_base64
from master_dataset.kafka.errors import translated
from master_dataset.kafka.record import NOW, KafkaRecord, record_of, timestamp_ms
from master_dataset.kafka.send import send_fitting, send_records
from master_dataset.table.coverage import effective_proofs
from master_dataset.table.delta_log import Commit, TableFile, commit_file, live_files, read_commit, read_commits
from master_dataset.table.ledger import read_ledger
from master_dataset.table.proofs import Kind, Proof
from views.source import Source

ORIGIN = ("source", "topic", "partition", "offset", "timestamp", "version", "reason")
PREFIX = "tidemark-"
TOO_LARGE = f"{PREFIX}too-large"
"""The last header of a dead letter whose value the topic does not take: how many bytes it has."""
FOREIGN = "not sent by Tidemark"
COLUMNS = ["partition", "offset", "timestamp", "key", "headers", "value", "invalid"]
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


class DeadLetters:
    """The dead letters of one source, as its archiver sends them."""

    def __init__(self, settings: Settings, bootstrap: str, source: Source, table: Path) -> None:
        self.config = librdkafka_config(settings, bootstrap)
        self.source = source
        self.table = table
        self.is_behind = False

    def send(self, version: int, proof: Proof) -> int:
        """Send the invalid records of one commit, and before them those that could not be sent. Returns its own."""
        if self.is_behind:
            self.catch_up(read_commits(self.table))
        elif proof.invalid:
            self._unless_it_fails(lambda: self._send_new(version, proof))
        return proof.invalid

    def catch_up(self, commits: Iterable[Commit]) -> int:
        """After a crash: send what a commit holds and the topic lacks. Returns how many were sent."""
        return self._unless_it_fails(lambda: self._send_missing(list(commits)))

    def _unless_it_fails(self, send: Callable[[], int]) -> int:
        try:
            sent = send()
        except Exception as error:  # whatever it is, the records are in the table, and archiving must go on
            # Later commits must not overtake these: the newest dead letter says up to where all were sent.
            self.is_behind = True
            log.warning("dead_letters_delayed", source=self.source.name, reason=str(error))
            return 0
        self.is_behind = False
        return sent

    def _send_new(self, version: int, proof: Proof) -> int:
        added = read_commit(commit_file(self.table, version)).added
        return self._send_and_note(version, self._invalid_rows(added, proof))

    def _send_missing(self, commits: list[Commit]) -> int:
        noted, proofs = read_sent(self.table), effective_proofs(commits, read_ledger(self.table))
        # A repair or a compaction writes rows again; their dead letters belong to the commit that was first.
        first = {version: proof for version, proof in proofs.items() if proof.kind == Kind.APPEND and proof.invalid}
        missing = sorted(version for version in first if version > noted)
        if not missing:
            return 0
        reach("letters.before_catching_up")
        # A crash came before the note, or a Tidemark without notes did: the topic may be further.
        newest, sent = self._newest()
        live, count = live_files(commits).values(), 0
        for version in missing:
            if version < newest:
                continue
            rows = self._invalid_rows([file for file in live if file.version >= version], first[version])
            skipped = sent if version == newest else ()
            unsent = (row for row in rows if (row["partition"], row["offset"]) not in skipped)
            count += self._send_and_note(version, unsent)
        note_sent(self.table, missing[-1])  # also if the topic had them all
        return count

    def _send_and_note(self, version: int, rows: Iterable[dict[str, Any]]) -> int:
        # Step 1. Send. A crash after it: the newest dead letter in the topic says what is not noted yet.
        reach("letters.before_send")
        count = send_letters(self.config, self.source, version, rows)
        # Step 2. Note it, so that a topic that is emptied later is not filled again with everything since the first.
        reach("letters.after_send")
        note_sent(self.table, version)
        reach("letters.after_note")
        return count

    def _invalid_rows(self, files: Iterable[TableFile], proof: Proof) -> Iterator[dict[str, Any]]:
        """The invalid rows of a commit's offsets, whichever files hold them by now, in the order of the files."""
        import pyarrow.compute as pc  # the collector reads dead letters too, and needs no Parquet for that

        from master_dataset.reading.read import RecordFilter, read_file

        offsets = RecordFilter(start=proof.start, end=proof.end, with_invalid=True)
        selected = offsets.filter() & pc.field("invalid").is_valid()
        for file in files:
            for batch in read_file(self.table / file.path, selected, COLUMNS):
                yield from batch.to_pylist()

    def _newest(self) -> tuple[int, set[tuple[int, int]]]:
        """The commit that the last dead letter belongs to, and which of its records were sent; (-1, {}) if none."""
        newest, sent = -1, set()
        for letter in newest_first(self.config, self.source):
            if letter.version == -1:
                continue  # sent by others
            if newest == -1:
                newest = letter.version
            if letter.version != newest:
                break
            sent.add((letter.partition, letter.offset))
        return newest, sent


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
