"""The records of `_schemas`: their bytes are Confluent's, and reading them gives back what was written."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from infra.clients.kafka_admin import KafkaAdmin
from master_dataset.registry import topic
from master_dataset.registry.records import (
    Config,
    ConfigKey,
    DeleteSubject,
    DeleteSubjectKey,
    Mode,
    ModeKey,
    OtherKey,
    Record,
    SchemaKey,
    SchemaVersion,
    UnreadableRecord,
    decode,
    encode,
    version_record,
)
from master_dataset.registry.schemas import JSON, Reference, Schema, guid

INT = Schema('"int"')
INT_MD5 = hashlib.md5(b'"int"', usedforsecurity=False).digest()
WITH_REFERENCE = Schema("{}", JSON, (Reference("a.json", "a", 2),))

BYTES = [
    (
        version_record(SchemaVersion("web-value", 1, 7, INT)),
        b'{"keytype":"SCHEMA","subject":"web-value","version":1,"magic":1}',
        b'{"subject":"web-value","version":1,"id":7,"md5":"71JOobkecxc9k4reNsHbMg==","schema":"\\"int\\"","deleted":false}',
    ),
    (
        version_record(SchemaVersion("s", 2, 8, WITH_REFERENCE, deleted=True)),
        b'{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}',
        b'{"subject":"s","version":2,"id":8,"md5":"fTRlMuUje/MSHTzAOVjQIA==","schemaType":"JSON",'
        b'"references":[{"name":"a.json","subject":"a","version":2}],"schema":"{}","deleted":true}',
    ),
    (Record(SchemaKey("s", 2), None), b'{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}', None),
    (
        Record(ConfigKey(), Config("FULL")),
        b'{"keytype":"CONFIG","magic":0}',
        b'{"compatibilityLevel":"FULL"}',
    ),
    (
        Record(ConfigKey("s"), Config("NONE")),
        b'{"keytype":"CONFIG","subject":"s","magic":0}',
        b'{"subject":"s","compatibilityLevel":"NONE"}',
    ),
    (Record(ConfigKey("s"), None), b'{"keytype":"CONFIG","subject":"s","magic":0}', None),
    (Record(ModeKey(), Mode("READONLY")), b'{"keytype":"MODE","magic":0}', b'{"mode":"READONLY"}'),
    (
        Record(ModeKey("é"), Mode("IMPORT")),
        '{"keytype":"MODE","subject":"é","magic":0}'.encode(),
        '{"subject":"é","mode":"IMPORT"}'.encode(),
    ),
    (
        Record(DeleteSubjectKey("s"), DeleteSubject(3)),
        b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
        b'{"subject":"s","version":3}',
    ),
    (Record(OtherKey("NOOP"), None), b'{"keytype":"NOOP","magic":0}', None),
]


@pytest.mark.parametrize(("record", "key", "value"), BYTES)
def test_record_has_the_bytes_of_confluents_registry(record: Record, key: bytes, value: bytes | None) -> None:
    assert encode(record) == (key, value)


@pytest.mark.parametrize(
    ("value", "deleted", "md5"),
    [
        (b'{"subject":"s","version":1,"id":7,"schema":"\\"int\\"","deleted":false}', False, INT_MD5),
        (b'{"subject":"s","version":1,"id":7,"schema":"\\"int\\"","deleted":true}', True, INT_MD5),
        (b'{"subject":"s","version":1,"id":7,"schema":"\\"int\\"","references":[],"new":{"a":1}}', False, INT_MD5),
        (b'{"id":7,"md5":"AAAAAAAAAAAAAAAAAAAAAA==","schema":"\\"int\\""}', False, bytes(16)),
        ('{"id":7,"md5":"\u00fc","schema":"\\"int\\""}'.encode(), False, INT_MD5),
        (b'{"id":7,"md5":"no digest","schema":"\\"int\\"","schemaType":"AVRO"}', False, INT_MD5),
    ],
)
def test_older_and_newer_values_are_read(value: bytes, deleted: bool, md5: bytes) -> None:
    record = decode(b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', value)
    assert record == version_record(SchemaVersion("s", 1, 7, INT, deleted, md5))


def test_metadata_and_rules_survive_being_written_again() -> None:
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    value = (
        b'{"subject":"s","version":1,"id":7,"md5":"AAAAAAAAAAAAAAAAAAAAAA==","metadata":{"owner":"a"},'
        b'"ruleSet":{"domainRules":[]},"schema":"\\"int\\"","deleted":false}'
    )
    assert encode(decode(key, value)) == (key, value)


@pytest.mark.parametrize("keytype", ["NOOP", "CONTEXT", "ASSOC", "CLEAR_SUBJECT"])
def test_keys_of_other_features_are_read_as_such(keytype: str) -> None:
    key = f'{{"keytype":"{keytype}","tenant":"default","magic":0}}'.encode()
    assert decode(key, b"not even JSON") == Record(OtherKey(keytype), None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"", None),
        (b"[1]", None),
        (b"{}", None),
        (b'{"keytype":"SCHEMA","subject":"s"}', None),
        (b'{"keytype":"SCHEMA","subject":"s","version":4294967296}', None),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":true,"schema":"1"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":1,"schema":"1","references":[1]}'),
        (b'{"keytype":"CONFIG","subject":1}', b'{"compatibilityLevel":"NONE"}'),
        (b'{"keytype":"MODE"}', b'{"mode":null}'),
        (b'{"keytype":"DELETE_SUBJECT","subject":"s"}', b"\xff"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":1,"schema":"\\ud800"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":1,"schema":"1","metadata":{"\\ud800":1}}'),
        (b'{"keytype":"SCHEMA","subject":"\\udfff","version":1}', b'{"id":1,"schema":"1"}'),
        (b'{"keytype":"MODE","subject":"\\udfff"}', b'{"mode":"IMPORT"}'),
    ],
)
def test_unreadable_record_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(UnreadableRecord, match=r"record of _schemas|references"):
        decode(key, value)


def test_reading_goes_on_after_an_error_that_nobody_thought_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic, "RETRY_S", 0)
    errors: list[Exception] = [RuntimeError("odd"), ValueError("odder"), KafkaException(KafkaError(KafkaError._FAIL))]
    schemas = topic.SchemasTopic({}, cast(KafkaAdmin, None))
    reported: list[str | None] = []

    class Loop:
        """Calls at once what an event loop would call later."""

        def call_soon_threadsafe(self, call: Callable[[str], None], text: str) -> None:
            call(text)
            reported.append(schemas.problem)

    def read(_: object) -> None:
        if not errors:
            schemas._is_closing.set()
            return
        raise errors.pop(0)

    monkeypatch.setattr(schemas, "_read_from_beginning", read)
    schemas._read(cast(asyncio.AbstractEventLoop, Loop()))
    assert [text and text[:25] for text in reported] == ["_schemas cannot be read: "] * 3
    assert "odd" in str(reported[0])


def test_guid_is_the_digest_of_text_and_references() -> None:
    assert guid(INT_MD5) == str(uuid.UUID(bytes=INT_MD5))
    expected = hashlib.md5(b"{}a.jsona\x00\x00\x00\x02", usedforsecurity=False).digest()
    assert WITH_REFERENCE.md5 == expected


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
NUMBERS = st.integers(-1, 2**31 - 1)
SCHEMAS = st.builds(
    Schema,
    TEXTS,
    st.sampled_from(["AVRO", "JSON", "PROTOBUF"]),
    st.lists(st.builds(Reference, TEXTS, TEXTS, NUMBERS)).map(tuple),
)
VERSIONS = st.builds(SchemaVersion, TEXTS, NUMBERS, NUMBERS, SCHEMAS, st.booleans())
RECORDS = st.one_of(
    VERSIONS.map(version_record),
    st.builds(Record, st.builds(SchemaKey, TEXTS, NUMBERS), st.none()),
    st.builds(Record, st.builds(ConfigKey, st.none() | TEXTS), st.none() | st.builds(Config, TEXTS)),
    st.builds(Record, st.builds(ModeKey, st.none() | TEXTS), st.none() | st.builds(Mode, TEXTS)),
    st.builds(Record, st.builds(DeleteSubjectKey, TEXTS), st.builds(DeleteSubject, NUMBERS)),
)


@given(RECORDS)
def test_what_is_written_is_read_back(record: Record) -> None:
    assert encode(decode(*encode(record))) == encode(record)
    assert decode(*encode(record)).key == record.key
