"""Invalid records, sent to the source's dead-letter topic with where they came from and why, each once.

They are read from the master table, after their commit. The headers of the last dead letter say which commit it belongs
to, so a restart knows what was sent and sends just the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from confluent_kafka import Consumer, Message, TopicPartition

from infra.settings import Settings
from master_dataset.commits import Commit, Proof, read_commit
from master_dataset.errors import MasterDatasetError
from master_dataset.json_bytes import text_or_base64
from master_dataset.sending import Record, send_records
from master_dataset.topics import librdkafka_config
from views.source import Source

PREFIX = "tidemark-"
COLUMNS = ["partition", "offset", "timestamp", "key", "headers", "value", "invalid"]
READ_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class DeadLetter:
    """An invalid record as it waits in the dead-letter topic. `number` is its offset there."""

    number: int
    partition: int
    offset: int
    version: int
    reason: str
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class DeadLetters:
    """The dead letters of one source, in the hands of its archiver."""

    def __init__(self, settings: Settings, bootstrap: str, source: Source, table: Path) -> None:
        self.config = librdkafka_config(settings, bootstrap)
        self.source = source
        self.table = table

    def send(self, version: int, proof: Proof) -> int:
        """Send the invalid records of one commit. Returns how many there were."""
        if proof.invalid:
            _send_all(self.config, self.source, version, self._records(version))
        return proof.invalid

    def catch_up(self, commits: Iterable[Commit]) -> int:
        """After a crash: send what a commit has and the topic has not. Returns how many that were."""
        newest, sent = self._newest()
        missing = 0
        for commit in commits:
            if commit.proof is None or not commit.proof.invalid or commit.version < newest:
                continue
            records = [
                record
                for record in self._records(commit.version)
                if commit.version > newest or (record["partition"], record["offset"]) not in sent
            ]
            _send_all(self.config, self.source, commit.version, records)
            missing += len(records)
        return missing

    def _records(self, version: int) -> Iterator[dict[str, Any]]:
        """The invalid rows of a commit, in the order of their offsets, so that what was sent is always a beginning."""
        import pyarrow.compute as pc  # the collector reads dead letters too, and needs no Parquet for that
        import pyarrow.dataset as ds

        commit = read_commit(self.table / "_delta_log" / f"{version:020}.json")
        files = [str(self.table / file.path) for file in commit.added]
        found = ds.dataset(files, format="parquet").to_table(columns=COLUMNS, filter=pc.field("invalid").is_valid())
        yield from found.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()

    def _newest(self) -> tuple[int, set[tuple[int, int]]]:
        """The commit that the last dead letter belongs to, and which of its records were sent; (-1, {}) if none."""
        newest, sent = -1, set()
        for letter in newest_first(self.config, self.source):
            if newest == -1:
                newest = letter.version
            if letter.version != newest:
                break
            sent.add((letter.partition, letter.offset))
        return newest, sent


def newest_first(config: dict[str, Any], source: Source, chunk: int = 500) -> Iterator[DeadLetter]:
    """The dead letters from the last to the first."""
    first, end = watermarks(config, source)
    while end > first:
        start = max(first, end - chunk)
        yield from reversed(list(read_letters(config, source, start, end)))
        end = start


def watermarks(config: dict[str, Any], source: Source) -> tuple[int, int]:
    """The first offset of the dead-letter topic and the one after its last."""
    consumer = _consumer(config)
    try:
        first, end = consumer.get_watermark_offsets(TopicPartition(source.dead_topic, 0), timeout=READ_TIMEOUT_S)
        return int(first), int(end)
    finally:
        consumer.close()


def read_letters(config: dict[str, Any], source: Source, start: int, end_exclusive: int) -> Iterator[DeadLetter]:
    """The dead letters with numbers from `start` up to `end_exclusive`."""
    if start >= end_exclusive:
        return
    consumer = _consumer(config)
    try:
        consumer.assign([TopicPartition(source.dead_topic, 0, start)])
        while True:
            message = consumer.poll(READ_TIMEOUT_S)
            if message is None:
                raise MasterDatasetError(f"Topic {source.dead_topic!r} gave nothing for {READ_TIMEOUT_S:g} s.")
            if message.error():
                raise MasterDatasetError(f"Topic {source.dead_topic!r} could not be read: {message.error()}.")
            number = message.offset()
            if number is None or number >= end_exclusive:
                return
            yield _letter(message)
            if number == end_exclusive - 1:
                return
    finally:
        consumer.close()


def whole(letter: DeadLetter) -> dict[str, Any]:
    """Everything of a dead letter as JSON can say it; bytes that are not UTF-8 in base64."""
    return {
        "number": letter.number,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp_ms,
        "reason": letter.reason,
        **text_or_base64("key", letter.key),
        "headers": [{"key": name, **text_or_base64("value", value)} for name, value in letter.headers],
        **text_or_base64("value", letter.value),
    }


def replay(config: dict[str, Any], source: Source, letters: Iterable[DeadLetter]) -> int:
    """Send dead letters to their source's topic again, as they were, for instance after its declaration was mended."""
    return send_records(config, source.topic, (Record(each.key, each.value, each.headers) for each in letters))


def _send_all(config: dict[str, Any], source: Source, version: int, rows: Iterable[dict[str, Any]]) -> None:
    records = (
        Record(
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()) + _origin(source, version, row),
        )
        for row in rows
    )
    send_records(config, source.dead_topic, records)


def _origin(source: Source, version: int, row: dict[str, Any]) -> tuple[tuple[str, bytes], ...]:
    values = {
        "source": source.name,
        "topic": source.topic,
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": round(row["timestamp"].timestamp() * 1000),
        "version": version,
        "reason": row["invalid"],
    }
    return tuple((f"{PREFIX}{name}", str(value).encode()) for name, value in values.items())


def _letter(message: Message) -> DeadLetter:
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    ours = [(name, value) for name, value in headers if name.startswith(PREFIX)][-7:]
    origin = {name.removeprefix(PREFIX): (value or b"").decode() for name, value in ours}
    return DeadLetter(
        number=message.offset() or 0,
        partition=int(origin["partition"]),
        offset=int(origin["offset"]),
        version=int(origin["version"]),
        reason=origin["reason"],
        timestamp_ms=int(origin["timestamp"]),
        key=message.key(),
        value=message.value(),
        headers=tuple(header for header in headers if header not in ours),
    )


def _consumer(config: dict[str, Any]) -> Consumer:
    return Consumer(
        {
            **config,
            "group.id": "tidemark-dead-letters",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
    )
