"""Requests as clients of Kafka by REST send them: REST Proxy v2 and v3, transactions, the registry, rewinding a group.

Each has the right shape and names what is there; now and then one part of it is another.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from tests.conftest import Stack, wait_until
from tests.system.fuzzed_parts import Request

Maker = Callable[[random.Random], Request]
OddValue = Callable[[random.Random], Any]

TOPIC, PARTITIONS = "any.fuzzed", 2
SPOILED = 0.4
V2 = "application/vnd.kafka.v2+json"
REGISTRY = "application/vnd.schemaregistry.v1+json"

# ---- schemas, and data that fit them -----------------------------------------------

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0},
    ],
}
SCHEMAS: dict[str, list[str]] = {
    "AVRO": [json.dumps(ORDER), '"string"', json.dumps({**ORDER, "fields": ORDER["fields"][:1]})],
    "JSON": [
        json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}),
        '{"$schema": "http://json-schema.org/draft-07/schema#", "type": ["string", "null"]}',
        "true",
    ],
    "PROTOBUF": [
        'syntax = "proto3"; package shop; message Order { int32 id = 1; string note = 2; }',
        'syntax = "proto3"; message A { map<string, double> m = 1; oneof o { bytes b = 2; A a = 3; } }',
    ],
}
DATA: list[Any] = [
    {"id": 7, "note": {"string": "x"}, "day": 1}, {"id": 7}, {"id": 7, "note": "x"}, {"m": {"a": 1.5}}, "text", None,
    {"id": 2**31}, {"id": "7"}, {"a": {"b": "AAEC"}}, 1, [], {},
]  # fmt: skip
TYPE_OF = {"avro": "AVRO", "jsonschema": "JSON", "protobuf": "PROTOBUF"}


def spoiled(chance: random.Random, odd: OddValue, given: Any) -> Any:
    """The same, mostly; else with one part of it, however deep, left out, doubled, renamed or odd."""
    if chance.random() > SPOILED:
        return given
    return _changed(chance, odd, json.loads(json.dumps(given)))


def _changed(chance: random.Random, odd: OddValue, given: Any) -> Any:
    inner = [*(given if isinstance(given, dict) else range(len(given)))] if isinstance(given, dict | list) else []
    if not inner or chance.random() < 0.15:
        return odd(chance)
    name = chance.choice(inner)
    match chance.randrange(6):
        case 0:
            given.pop(name)
        case 1 if isinstance(given, list):
            given.append(given[name])
        case 1:
            given[str(odd(chance))[:50]] = given[name]
        case _:
            given[name] = _changed(chance, odd, given[name])
    return given


def _dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


def _encoded(chance: random.Random) -> str:
    return base64.b64encode(chance.randbytes(chance.randrange(12))).decode()


def _often(chance: random.Random, usual: Any, odd: OddValue) -> str:
    """A part of a path: mostly the usual one."""
    text = str(usual if chance.random() > SPOILED / 4 else odd(chance))[:200] or "x"
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def _sometimes(chance: random.Random, given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if chance.random() < 0.5}


SUBJECTS = ("any-value", "any-key", "shop.Order")


def prepare(stack: Stack) -> None:
    """The topic, and two versions of each subject: what requests of the right shape name."""
    subjects = "/schema-registry/subjects"
    with stack.client() as client:
        client.post("/admin/topics", json={"name": TOPIC, "partitions": PARTITIONS}).raise_for_status()
        wait_until("the registry", lambda: client.get(subjects).is_success)
        for subject in SUBJECTS:
            for text in reversed(SCHEMAS["AVRO"][::2]):
                client.post(f"{subjects}/{subject}/versions", json={"schema": text}).raise_for_status()


# ---- REST Proxy v2 ------------------------------------------------------------------

FORMATS = ("binary", "json", "avro", "jsonschema", "protobuf")
GROUPS_OF_V2, INSTANCES = ("any-a", "any-b"), ("a", "b", "c")


def _media(chance: random.Random, odd: OddValue, right: str) -> str:
    wrong = [V2, "application/json", "", "*/*", f"{right}; charset=utf-8", right.upper(), str(odd(chance))[:200]]
    usable = [each for each in wrong if each.isascii() and each.isprintable()]
    return right if chance.random() > SPOILED / 4 else chance.choice(usable)


def v2_produce(odd: OddValue) -> Maker:
    """Records in all five formats, into a topic or a partition."""

    def make(chance: random.Random) -> Request:
        format = chance.choice(FORMATS)
        body: dict[str, Any] = {"records": [_v2_record(chance, format) for _ in range(chance.randrange(1, 4))]}
        if format in TYPE_OF:
            texts = [{"value_schema": text} for text in SCHEMAS[TYPE_OF[format]]]
            body |= chance.choice([*texts, {"value_schema_id": chance.randrange(1, 12)}])
            body |= _sometimes(chance, {"key_schema": chance.choice(SCHEMAS[TYPE_OF[format]])})
        path = f"/rest-proxy/topics/{_often(chance, TOPIC, odd)}"
        if chance.random() < 0.3:
            path += f"/partitions/{_often(chance, chance.randrange(PARTITIONS), odd)}"
            for record in body["records"]:
                record.pop("partition", None)
        headers = {"Content-Type": _media(chance, odd, f"application/vnd.kafka.{format}.v2+json"), "Accept": V2}
        return "POST", path, _dumps(spoiled(chance, odd, body)), headers

    return make


def _v2_record(chance: random.Random, format: str) -> dict[str, Any]:
    parts = {
        part: _encoded(chance) if format == "binary" else chance.choice(DATA)
        for part in ("key", "value")
        if part == "value" or chance.random() < 0.5
    }
    return {**parts, **_sometimes(chance, {"partition": chance.randrange(PARTITIONS)})}


def v2_consume(odd: OddValue) -> Maker:
    """All that an instance is asked for, from its creation to its end, by groups and instances of few names."""

    def make(chance: random.Random) -> Request:
        group, name = chance.choice(GROUPS_OF_V2), chance.choice(INSTANCES)
        format = chance.choice(FORMATS)
        if chance.random() < 0.2:
            given = {
                "name": name, "format": format, "auto.offset.reset": chance.choice(["earliest", "latest", "none"]),
                "auto.commit.enable": chance.choice(["true", "false"]), "fetch.min.bytes": "1",
                "consumer.request.timeout.ms": chance.choice(["-1", "0", "100"]),
            }  # fmt: skip
            body = {"name": name, **_sometimes(chance, given)}
            return _v2(chance, odd, "POST", f"/consumers/{_often(chance, group, odd)}", body)
        locations = [
            {"topic": TOPIC, "partition": chance.randrange(PARTITIONS), "offset": chance.randrange(9)}
            for _ in range(chance.randrange(1, 3))
        ]
        method, ending, body = chance.choice(_V2_CALLS)
        if body == "locations":
            body = {chance.choice(["partitions", "partitions", "offsets"]): locations}
        path = f"/consumers/{_often(chance, group, odd)}/instances/{_often(chance, name, odd)}{ending}"
        made = _v2(chance, odd, method, path, body)
        return (*made[:3], {**made[3], "Accept": _media(chance, odd, V2)}) if ending.startswith("/records") else made

    return make


_V2_CALLS: list[tuple[str, str, Any]] = [
    ("DELETE", "", None),
    ("POST", "/subscription", {"topics": [TOPIC]}), ("POST", "/subscription", {"topic_pattern": "any[.].*"}),
    ("GET", "/subscription", None), ("DELETE", "/subscription", None),
    ("POST", "/assignments", "locations"), ("GET", "/assignments", None),
    ("POST", "/positions", "locations"), ("POST", "/positions/beginning", "locations"),
    ("POST", "/positions/end", "locations"),
    *[("GET", "/records?timeout=0", None), ("GET", "/records?timeout=100&max_bytes=1000", None)] * 2,
    ("GET", "/offsets", "locations"), ("POST", "/offsets", "locations"), ("POST", "/offsets", None),
]  # fmt: skip


def v2_metadata(odd: OddValue) -> Maker:
    """Topics, partitions, offsets, brokers."""

    def make(chance: random.Random) -> Request:
        topic, partition = _often(chance, TOPIC, odd), _often(chance, chance.randrange(PARTITIONS), odd)
        path = chance.choice(
            ["/topics", "/brokers", *(f"/topics/{topic}{end}" for end in
             ("", "/partitions", f"/partitions/{partition}", f"/partitions/{partition}/offsets"))]
        )  # fmt: skip
        return _v2(chance, odd, "GET", path, None)

    return make


def _v2(chance: random.Random, odd: OddValue, method: str, path: str, body: Any) -> Request:
    headers = {"Accept": _media(chance, odd, V2)}
    if body is None:
        return method, f"/rest-proxy{path}", None, headers
    return (
        method,
        f"/rest-proxy{path}",
        _dumps(spoiled(chance, odd, body)),
        {**headers, "Content-Type": _media(chance, odd, V2)},
    )


# ---- REST Proxy v3 ------------------------------------------------------------------


def v3_produce(stack: Stack, odd: OddValue) -> Maker:
    """One record or several, of all types, to the cluster that is there."""
    with stack.client() as client:
        (cluster,) = client.get("/v3/clusters").raise_for_status().json()["data"]

    def make(chance: random.Random) -> Request:
        records = (_dumps(spoiled(chance, odd, _v3_record(chance))) for _ in range(chance.randrange(1, 4)))
        body = chance.choice([b"", b"\n", b" ", b"\r\n", b","]).join(records)
        topic, id = _often(chance, TOPIC, odd), _often(chance, cluster["cluster_id"], odd)
        return "POST", f"/v3/clusters/{id}/topics/{topic}/records", body, {"Content-Type": "application/json"}

    return make


def _v3_record(chance: random.Random) -> dict[str, Any]:
    others = {
        "partition_id": chance.randrange(PARTITIONS),
        "timestamp": chance.choice(["2026-01-31T12:00:00.250Z", "2026-01-31T12:00:00+01:00", 1_769_860_800_250]),
        "headers": [{"name": "trace", "value": _encoded(chance)}],
        "key": _v3_data(chance),
    }
    return {"value": _v3_data(chance), **_sometimes(chance, others)}


def _v3_data(chance: random.Random) -> dict[str, Any]:
    type = chance.choice(["BINARY", "STRING", "JSON", "AVRO", "JSONSCHEMA", "PROTOBUF"])
    if type == "JSON":
        return {"type": type, "data": chance.choice(DATA)}
    if type in ("BINARY", "STRING"):
        return {"type": type, "data": _encoded(chance)}
    texts = SCHEMAS["JSON" if type == "JSONSCHEMA" else type]
    chosen: list[dict[str, Any]] = [
        {"type": type, "schema": chance.choice(texts)},
        {"schema_id": chance.randrange(1, 12)},
        {"schema_version": chance.choice([1, 2, "latest"])},
        {},
        {"type": type, "schema": chance.choice(texts), "subject": "any-value"},
    ]
    strategy = {"subject_name_strategy": chance.choice(["TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME"])}
    return {**chance.choice(chosen), **_sometimes(chance, strategy), "data": chance.choice(DATA)}


# ---- transactions -------------------------------------------------------------------

MAX_TRANSACTION_MS = 2_000
"""So short that few of them keep others from being begun."""


class OpenTransactions:
    """Makes requests about transactions that are open, or were a moment ago; it begins them itself."""

    def __init__(self, stack: Stack, odd: OddValue) -> None:
        self._stack, self._odd = stack, odd
        self._ids = ["none"]

    def __call__(self, chance: random.Random) -> Request:
        if chance.random() < 0.1:
            body = {"timeout": MAX_TRANSACTION_MS, **_sometimes(chance, {"name": chance.choice(["a", "b"])})}
            with self._stack.client() as client:
                begun = client.post("/transactions", json=body)
            if begun.status_code != 429:
                self._ids = [*self._ids[-3:], str(begun.raise_for_status().json()["transaction"])]
        path = f"/transactions/{_often(chance, chance.choice(self._ids), self._odd)}"
        message = {"value": chance.choice(DATA), "key": "k", "partition": 0}
        offsets = [{"topic": TOPIC, "partition": 0, "offset": chance.randrange(9)}]
        calls: list[tuple[str, str, Any]] = [
            ("GET", "", None), ("POST", "/commit", None), ("POST", "/abort", None),
            *[("POST", "/produce", {**message, "topic": TOPIC}), ("POST", f"/produce/{TOPIC}", [message, message])] * 3,
            *[("POST", "/offsets", {"group": "any-t", "offsets": offsets})] * 2,
            ("POST", "/offsets", {"group": "any-t", "instance": "a"}),
        ]  # fmt: skip
        method, ending, body = chance.choice(calls)
        return method, path + ending, None if body is None else _dumps(spoiled(chance, self._odd, body)), {}


# ---- groups that are rewound ---------------------------------------------------------


def rewinding(odd: OddValue) -> Maker:
    """To a place, a time or offsets, of groups that are there and groups that are not."""

    def make(chance: random.Random) -> Request:
        offsets = [{"topic": TOPIC, "partition": chance.randrange(PARTITIONS), "offset": chance.randrange(9)}]
        body = chance.choice(
            [
                *({"to": each, "topics": [TOPIC]} for each in ("beginning", "end", "2026-01-31T12:00:00Z", 1)),
                {"to": "end"}, {"offsets": offsets},
            ]
        ) | _sometimes(chance, {"execute": True})  # fmt: skip
        path = f"/admin/groups/{_often(chance, chance.choice(['any-rewound', *GROUPS_OF_V2]), odd)}/rewind"
        return "POST", path, _dumps(spoiled(chance, odd, body)), {"Content-Type": "application/json"}

    return make


# ---- the registry --------------------------------------------------------------------


def registering(odd: OddValue) -> Maker:
    """Schemas that are registered, looked up, checked and deleted; levels and modes that change."""

    def make(chance: random.Random) -> Request:
        subject, version = _often(chance, chance.choice(SUBJECTS), odd), chance.choice(["1", "2", "latest", "-1"])
        method, path, body = chance.choice([*_registry_calls(chance, subject, _often(chance, version, odd))])
        headers = {"Accept": REGISTRY} if body is None else {"Content-Type": REGISTRY, "Accept": REGISTRY}
        return method, f"/schema-registry{path}", None if body is None else _dumps(spoiled(chance, odd, body)), headers

    return make


def _registry_calls(chance: random.Random, subject: str, version: str) -> Iterator[tuple[str, str, Any]]:
    type = chance.choice([*SCHEMAS])
    reference = {"name": "shop.Order", "subject": chance.choice(SUBJECTS), "version": chance.choice([1, 2, -1])}
    others = {"references": [reference], "metadata": {"properties": {"owner": "x"}}, "ruleSet": {"domainRules": []}}
    schema = {"schema": chance.choice(SCHEMAS[type]), "schemaType": type}
    schema |= _sometimes(chance, others) if chance.random() < 0.3 else {}
    flags = chance.choice(["", "?normalize=true", "?deleted=true", "?verbose=true", "?permanent=true", "?force=true"])
    for path in (f"/subjects/{subject}", f"/compatibility/subjects/{subject}/versions"):
        yield "POST", f"{path}{flags}", schema
    for _ in range(3):
        yield "POST", f"/subjects/{subject}/versions{flags}", schema
    yield "POST", f"/compatibility/subjects/{subject}/versions/{version}{flags}", schema
    level = chance.choice(["BACKWARD", "FORWARD", "FULL", "NONE", "BACKWARD_TRANSITIVE", "full_transitive"])
    yield "PUT", f"/config/{subject}", {"compatibility": level}
    yield "PUT", f"/mode/{subject}{flags}", {"mode": chance.choice(["READWRITE", "READONLY", "IMPORT"])}
    for method in ("GET", "DELETE"):
        for path in (f"/subjects/{subject}/versions/{version}", f"/config/{subject}", f"/mode/{subject}"):
            yield method, f"{path}{flags}", None
    yield "DELETE", f"/subjects/{subject}{flags}", None
    for path in ("", "/schema", "/referencedby"):
        yield "GET", f"/subjects/{subject}/versions/{version}{path}{flags}", None
    for path in ("", "/schema", "/subjects", "/versions"):
        yield "GET", f"/schemas/ids/{chance.randrange(1, 12)}{path}{flags}", None
    for path in ("/subjects", f"/subjects/{subject}/versions", "/schemas", "/schemas?latestOnly=true&limit=2"):
        yield "GET", path, None


def schema_pages(odd: OddValue) -> Maker:
    """What the serving layer tells of subjects."""

    def make(chance: random.Random) -> Request:
        versions = [chance.choice(["1", "2", str(odd(chance))]) for _ in range(2)]
        asked = "&".join(
            f"{name}={quote(value.encode('utf-8', 'surrogatepass'), safe='')[:300]}"
            for name, value in zip(("version", "compared"), versions, strict=True)
            if chance.random() < 0.5
        )
        path = chance.choice(["/schemas", f"/schemas/{_often(chance, chance.choice(SUBJECTS), odd)}"])
        return "GET", f"{path}?{asked}", None, {}

    return make
