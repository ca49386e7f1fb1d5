"""The records of `_schemas` as a file: a backup takes them, and a restored home puts them into a new topic.

    {"key":"eyJrZXl0eXBlIjoiU0NIRU1BIi...","value":"eyJzdWJqZWN0IjoiLi4u..."}
    {"key":"eyJrZXl0eXBlIjoiTk9PUCIs...","value":null}

One record a line, in the order of the offsets, as base64. What compaction would remove is left out.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import structlog
from confluent_kafka import KafkaException, Producer

from infra.disk import sync_folder
from infra.settings import Settings
from master_dataset.errors import MasterDatasetError
from master_dataset.registry.records import Record, UnreadableRecord, decode
from master_dataset.registry.snapshot import read_records
from master_dataset.registry.state import State, fold
from master_dataset.registry.topic import MAX_RECORD_BYTES, SCHEMAS_TOPIC, TIMEOUT_S, WRITER_ID

RawRecord = tuple[bytes, bytes | None]
"""Key and value, as they are in the topic."""
TRANSACTION_S = 60.0

log = structlog.get_logger()


def restored_file(settings: Settings) -> Path:
    """The records of a restored backup that are to be put into the topic. It is removed once they are there."""
    return settings.home / "registry" / "schemas.ndjson"


def compacted(records: Iterable[RawRecord]) -> list[RawRecord]:
    """The last record of each key, in the order of the offsets."""
    last: dict[bytes, bytes | None] = {}
    for key, value in records:
        last.pop(key, None)
        last[key] = value
    return list(last.items())


def to_lines(records: Iterable[RawRecord]) -> bytes:
    """The content of the file."""
    return b"".join(
        json.dumps({"key": _text(key), "value": None if value is None else _text(value)}).encode() + b"\n"
        for key, value in records
    )


def read_file(path: Path) -> list[RawRecord]:
    """The records of a file. MasterDatasetError where it is damaged."""
    try:
        members = [json.loads(line) for line in path.read_bytes().splitlines()]
        return [(_bytes(each["key"]), None if each["value"] is None else _bytes(each["value"])) for each in members]
    except (ValueError, TypeError, KeyError) as error:
        raise MasterDatasetError(
            f"{str(path)!r} has the records of the schema registry that a backup held, and cannot be read ({error}). "
            "Restore it from a backup, or remove it: the registry then begins empty, and its ids go on above those "
            "that records name."
        ) from None


def put_back(config: dict[str, Any], path: Path) -> None:
    """Put the records of a restored backup into the topic, if that has none yet. Called before the registry reads it.

    All records are one transaction: a crash leaves the topic empty, or with all of them and the file, which the next
    start removes.
    """
    if not path.is_file():
        return
    records = read_file(path)
    expected = state_of(records)
    there = _state(config)
    if is_empty(there):
        producer = _open_writer(config)  # nobody else writes from here on; what others committed can be read
        there = _state(config)
        if is_empty(there) and not is_empty(expected):
            _write(producer, records)
            there = _wait_for_records(config)
            log.info("restored_schemas", records=len(records), highest_id=expected.highest_id)
    if missing := missing_from(there, expected):
        log.warning(
            "schemas_not_restored",
            file=str(path),
            missing=missing[:20],
            reason="the topic _schemas had schemas of its own, so those of the backup were not put into it; remove the "
            "file if you do not need them",
        )
        return
    path.unlink()
    sync_folder(path.parent)


def _open_writer(config: dict[str, Any]) -> Producer:
    """A producer that fences the writer before, whose transactions have ended when this returns."""
    producer = Producer(
        {
            **config,
            "transactional.id": WRITER_ID,
            "transaction.timeout.ms": int(TRANSACTION_S * 1000),
            "message.max.bytes": 2 * MAX_RECORD_BYTES,
        }
    )
    try:
        producer.init_transactions(TRANSACTION_S)
    except KafkaException as error:
        raise _not_taken(error) from None
    return producer


def _write(producer: Producer, records: Iterable[RawRecord]) -> None:
    try:
        producer.begin_transaction()
        for key, value in records:
            while True:
                try:
                    producer.produce(SCHEMAS_TOPIC, value, key, 0)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.commit_transaction(TRANSACTION_S)  # fails if a record was not taken
    except KafkaException as error:
        raise _not_taken(error) from None


def _not_taken(error: KafkaException) -> MasterDatasetError:
    return MasterDatasetError(f"The schemas of the backup are not in {SCHEMAS_TOPIC} yet: {error.args[0].str()}.")


def _wait_for_records(config: dict[str, Any]) -> State:
    """The state once it can be read: a commit is acknowledged a moment before."""
    deadline = time.monotonic() + TIMEOUT_S
    while is_empty(state := _state(config)):
        if time.monotonic() > deadline:
            raise MasterDatasetError(
                f"The schemas of the backup were written to {SCHEMAS_TOPIC}, but not read back in {TIMEOUT_S:g} s."
            )
        time.sleep(0.05)
    return state


def state_of(records: Iterable[RawRecord]) -> State:
    """What the records come to. Those that cannot be read change nothing."""

    def readable() -> Iterator[Record]:
        for record in records:
            try:
                yield decode(*record)
            except UnreadableRecord as error:
                log.warning("skipped_record", reason=str(error))

    return fold(readable())


def is_empty(state: State) -> bool:
    """Whether nothing was ever registered or set."""
    return not (state.highest_id or state.levels or state.modes)


def missing_from(there: State, expected: State) -> list[str]:
    """The subjects of which a version is not there under its id."""
    return [
        subject
        for subject in expected.subjects(deleted=True)
        if any(there.schema(each.id) != each.schema for each in expected.versions_of(subject, deleted=True))
    ]


def read_topic(config: dict[str, Any]) -> list[RawRecord]:
    """All records that are committed now; none where nothing was ever registered or set."""
    records = compacted(read_records(config))
    return [] if is_empty(state_of(records)) else records


def _state(config: dict[str, Any]) -> State:
    return state_of(read_records(config))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
