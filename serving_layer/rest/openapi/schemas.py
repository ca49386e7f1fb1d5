"""Schemas and examples of the OpenAPI document: of every response, and of the rows of each view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from serving_layer import errors
from serving_layer.query.parse import PARAMETERS
from serving_layer.query.provenance import exactness
from serving_layer.rest.views import SHOWN_HASH
from views.aggregates import Histogram, Quantiles, TopK
from views.aggregates.first_k import BoundedList
from views.aggregates.value_counts import BoundedCounts
from views.short_texts import MAX_BYTES
from views.view import View

Json = dict[str, Any]

SCALARS: dict[str, Json] = {
    "string": {"type": "string"},
    "bigint": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "double": {"type": "number"},
    "decimal": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
}
"""The JSON schema of each type."""
EXAMPLES: dict[str, Any] = {
    "string": "/docs", "bigint": 42, "double": 12.5, "decimal": "12.50", "boolean": True, "date": "2026-03-01",
    "timestamp": "2026-03-01T12:00:00Z",
}  # fmt: skip
CUT: Json = {
    "type": "object",
    "description": "The next offset of each Kafka partition: all events below it are included.",
    "additionalProperties": {"type": "integer", "minimum": 0},
    "examples": [{"0": 17, "1": 20}],
}
SINCE: Json = {
    "type": ["object", "null"],
    "description": "The cut and the day from which on it counts: older events were removed before it was declared. "
    "Null: it counts all events.",
    "properties": {"cut": CUT, "day": {"type": "string", "format": "date"}},
}
TIME: Json = {"type": "string", "format": "date-time"}


def shared_schemas(views: Sequence[str]) -> Json:
    """The schemas of every document. `views` are those that its reader may see; examples use them."""
    question = {
        "view": {"type": "string"},
        "filters": {
            "type": ["object", "null"],
            "description": 'Like {"url": ["/a", "/b"]} or {"url": {"prefix": "/d"}}.',
        },
        **{name: {} for name in PARAMETERS},
    }
    kinds = sorted({each.kind for each in _subclasses(errors.ServingError)})
    exactness = {
        "type": "object",
        "properties": {
            "kind": {"type": "string"}, "exact": {"type": "boolean"}, "error": {"type": "string"},
        },
    }  # fmt: skip
    freshness = {
        "type": "object",
        "description": "How fresh the source is.",
        "properties": {
            "run": {"type": ["integer", "null"]}, "cut": {"anyOf": [CUT, {"type": "null"}]},
            "published": {**TIME, "type": ["string", "null"]}, "batch_age_s": {"type": ["number", "null"]},
            "applied": {"anyOf": [CUT, {"type": "null"}]}, "lag_s": {"type": ["number", "null"]},
            "lag_events": {"type": ["integer", "null"]}, "degraded": {"type": "boolean"},
            "frozen": {"type": "boolean", "description": "Whether a rollback makes answers stand still."},
            "why": {"type": ["string", "null"]},
        },
    }  # fmt: skip
    view = {
        "name": {"type": "string"}, "doc": {"type": "string"}, "source": {"type": "string"},
        "version": {"type": ["string", "null"], "description": "Version that is served; null: none yet."},
        "keys": {"type": "array", "items": {"type": "string"}}, "grain": {"type": "string"},
        "answers": {"type": "object", "additionalProperties": exactness}, "freshness": freshness, "since": SINCE,
        "data": {
            "type": ["object", "null"],
            "description": "When its events happened: a range that holds all of them. Null: it has none.",
            "properties": {"from": TIME, "to": TIME},
        },
    }  # fmt: skip
    details = {
        **view,
        "keys": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Key -> its type."},
        "where": {"type": ["string", "null"]},
        "declared": {
            "type": "string",
            "description": "Version that is declared. If it differs from the served one, it joins at the next run.",
        },
        "definition": {"type": "object"},
        "groups": {"type": ["integer", "null"], "description": "Groups (buckets and keys) in the batch view."},
        "consistency": {
            "type": ["object", "null"],
            "description": "The last comparison of the speed view with the batch view; null: there was none.",
            "properties": {
                "run": {"type": "integer"},
                "since_run": {"type": "integer"},
                "groups": {"type": "integer"},
                "compared": {"type": "integer"},
                "mismatched": {"type": "integer"},
                "excused": {"type": "integer"},
                "examples": {"type": "array", "items": {"type": "string"}},
                "why_not": {"type": "string"},
                "not_explained": {"type": "string"},
                "wrong": {"type": "integer"},
                "seconds": {"type": "number"},
                "at": {"type": "number"},
                "in_words": {"type": "string"},
                "set_aside": {
                    "type": ["string", "null"],
                    "description": "Why the speed view is quarantined: answers are from the batch view alone.",
                },
            },
        },
    }
    return {
        "Problem": {
            "type": "object",
            "description": "RFC 9457. Some kinds have further members, such as `parameter` and `allowed`.",
            "required": ["type", "title", "status", "detail"],
            "properties": {
                "type": {"type": "string", "examples": [f"urn:tidemark:problem:{kind}" for kind in kinds]},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "detail": {"type": "string", "description": "What was asked, what was found, what to do."},
                "parameter": {"type": "string"},
            },
        },
        "View": {"type": "object", "required": list(view), "properties": view},
        "ViewDetails": {"type": "object", "required": list(details), "properties": details},
        **_watched(freshness),
        "Meta": _meta(exactness),
        "Answer": _answer_schema({"type": "object"}),
        "Question": {
            "type": "object",
            "required": ["view"],
            "properties": question,
            "additionalProperties": False,
            "examples": [{"view": name, "from": "-7d", "grain": "day"} for name in views[:1]],
        },
        "Questions": {
            "type": "object",
            "required": ["questions"],
            "properties": {
                "questions": {"type": "array", "items": ref("Question"), "minItems": 1},
                "partial": {
                    "type": "boolean",
                    "description": "A question that is refused has its problem in its place, and fails no other.",
                },
            },
            "additionalProperties": False,
        },
    }


def _watched(freshness: Json) -> Json:
    """The schemas of sources and sessions."""
    thing: Json = {"type": ["object", "null"]}
    number: Json = {"type": ["number", "null"]}
    counted = dict.fromkeys(("seconds", "events", "duplicates", "invalid", "rows", "bytes"), number)
    phase = {"name": {"type": "string"}, "seconds": {"type": "number"}, "jobs": {"type": "integer"}}
    run = {
        "run": {"type": "integer"}, "cut": CUT, "published": TIME, "kind": {"type": ["string", "null"]}, **counted,
        "views": {"type": ["array", "null"], "items": {"type": "object"}},
        "timeline": {
            "type": ["array", "null"], "items": {"type": "object", "properties": phase},
            "description": "What of the run took how long, in its order, up to the manifest; empty for a run of an "
            "older Tidemark.",
        },
    }  # fmt: skip
    generation = {
        "id": {"type": "string"}, "run": {"type": "integer"}, "from": CUT, "views": {"type": "integer"},
    }  # fmt: skip
    summary = {
        "name": {"type": "string"}, "freshness": freshness,
        "working": {**thing, "description": "The batch run in progress."},
        "archiver": {**thing, "description": "Records in the master dataset, and dead letters."},
    }  # fmt: skip
    details = {
        **summary,
        "views": {"type": "array", "items": {"type": "string"}},
        "schema": _source_schema(),
        "pinned": {"type": ["integer", "null"], "description": "The run that readers are pinned to by a rollback."},
        "failures": {**thing, "description": "How many batch runs failed in a row, and since when; null: none did."},
        "speed": {**thing, "description": "The speed views in Redis: how far they are, and whether a writer is alive."},
        "generations": {"type": "array", "items": {"type": "object", "properties": generation}},
        "runs": {"type": "array", "items": {"type": "object", "properties": run}},
    }
    session = {
        "key": {"type": ["string", "null"]}, "views": {"type": ["array", "null"], "items": {"type": "string"}},
        "reads_schemas": {"type": "boolean"}, "ends": {**TIME, "type": ["string", "null"]},
    }  # fmt: skip
    return {
        "SourceSummary": {"type": "object", "required": list(summary), "properties": summary},
        "SourceDetails": {"type": "object", "required": list(details), "properties": details},
        **registry_schemas(),
        "Session": {"type": "object", "required": list(session), "properties": session},
    }


def registry_schemas() -> Json:
    """The schemas of what the schema registry has."""
    text, number = {"type": "string"}, {"type": "integer"}
    texts = {"type": "array", "items": text}
    version = {"version": number, "id": number, "guid": {"type": ["string", "null"]}, "type": text}
    summary = {"subject": text, **version, "versions": number, "level": text, "sources": texts}
    written = {"type": ["boolean", "null"], "description": "Whether the version has it; null: its text does not say."}
    field = {"path": text, "type": text, "views": texts, "written": written}
    source = {
        "name": text, "version": number, "fields": {"type": "array", "items": _all_of(field)},
    }  # fmt: skip
    lines = {**texts, "type": ["array", "null"], "description": "Each after ` `, `-` or `+`; null: too many."}
    details = {
        "subject": text, "level": text, "versions": {"type": "array", "items": _all_of(version)}, **version,
        "text": text, "references": {"type": "array", "items": {"type": "object"}},
        "compared": {**_all_of({"version": number, "lines": lines}), "type": ["object", "null"]},
        "sources": {"type": "array", "items": _all_of(source)},
    }  # fmt: skip
    return {"Subject": _all_of(summary), "SubjectDetails": _all_of(details)}


def _all_of(properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


def _source_schema() -> Json:
    text, nullable = {"type": "string"}, {"type": ["string", "null"]}
    texts = {"type": "array", "items": text}
    field = {
        "path": text, "type": text, "required": {"type": "boolean"}, "default": nullable, "aliases": texts,
        "views": {**texts, "description": "Those of these views that use the field, or one inside it."},
    }  # fmt: skip
    pending = {
        "version": {"type": "integer"}, "changes": texts,
        "adopted": {"type": "boolean", "description": "Whether the batch run that switches has begun."},
        "refused": {**nullable, "description": "Why the declaration may not follow; null: it may."},
    }  # fmt: skip
    written = {
        "schema": {**text, "description": "The id or the GUID by which records name it."}, "type": nullable,
        "known": {"type": "boolean", "description": "Whether the registry knew it when it was asked."},
        "since": {"anyOf": [CUT, {"type": "null"}], "description": "The cut from which on it is known; null: always."},
    }  # fmt: skip
    schema = {
        "version": {"type": "integer", "description": "The version of the source that is served."},
        "topic": text, "format": text, "framing": nullable, "envelope": nullable,
        "subjects": {
            "type": "array", "items": text,
            "description": "Where serializers register what they write, by the strategies TopicName, RecordName and "
            "TopicRecordName; empty: its records name no schema.",
        },
        "reader_schema": nullable, "id_field": text, "time_field": text, "key_field": text,
        "fields": {"type": "array", "items": {"type": "object", "required": list(field), "properties": field}},
        "pending": {
            "type": ["object", "null"], "required": list(pending), "properties": pending,
            "description": "The version that is to follow, by the next batch run; null: none is declared.",
        },
        "writer_schemas": {
            "type": "array", "items": {"type": "object", "required": list(written), "properties": written},
            "description": "The schemas that records were written with, the newest 200.",
        },
    }  # fmt: skip
    return {
        "type": "object", "description": "The format and the fields of its records, by the version that is served.",
        "required": list(schema), "properties": schema,
    }  # fmt: skip


def _meta(exactness: Json) -> Json:
    batch = {"run": {"type": "integer"}, "cut": CUT, "published": TIME, "read": {"type": "boolean"}}
    speed = {
        "applied": CUT, "published_run": {"type": "integer"}, "lag_s": {"type": ["number", "null"]},
        "lag_events": {"type": ["integer", "null"]}, "read": {"type": "boolean"},
    }  # fmt: skip
    return {
        "type": "object",
        "description": "What the answer is made of: exactly the events below `cut`.",
        "required": ["view", "version", "source", "range", "batch", "speed", "cut", "complete", "degraded", "answers"],
        "properties": {
            "view": {"type": "string"},
            "version": {"type": "string"},
            "source": {"type": "string"},
            "range": {
                "type": "object",
                "properties": {"from": TIME, "to": TIME, "grain": {"type": "string"}, "tz": {"type": "string"}},
            },
            "batch": {"type": "object", "properties": batch},
            "speed": {"anyOf": [{"type": "object", "properties": speed}, {"type": "null"}]},
            "cut": CUT,
            "complete": {"type": "boolean"},
            "degraded": {"type": "boolean"},
            "why": {"type": ["string", "null"]},
            "answers": {"type": "object", "additionalProperties": exactness},
            "since": SINCE,
            "shortened_keys": {
                "type": "boolean",
                "description": "Whether a key is the short form of a text of more than `max_key_bytes`.",
            },
            "max_key_bytes": {"type": "integer"},
        },
    }


def schemas_of(view: View) -> Json:
    """The schemas of a view: `<view>_row`, `<view>_values` (the answers of a row) and `<view>_answer`."""
    keys = {key: _nullable(SCALARS[typed.type.kind]) for key, typed in view.key_expressions.items()}
    answers = {name: _of_answer(view, name) for name in view.answers}
    row = {
        "bucket": {**TIME, "description": "Start of the period."},
        **keys,
        **answers,
    }
    added: Json = {} if "previous" in row else {"previous": ref(f"{view.name}_values")}
    if "explain" not in row:
        parts = {part: _nullable_ref(f"{view.name}_values") for part in ("batch", "speed", "merged")}
        added["explain"] = {"type": "object", "properties": parts}
    return {
        f"{view.name}_values": {"type": "object", "properties": answers},
        f"{view.name}_row": {"type": "object", "required": ["bucket"], "properties": {**row, **added}},
        f"{view.name}_answer": _answer_schema(ref(f"{view.name}_row")),
    }


def _answer_schema(row: Json) -> Json:
    return {
        "type": "object",
        "required": ["rows", "next", "meta"],
        "properties": {
            "rows": {"type": "array", "items": row},
            "next": {"type": ["string", "null"], "description": "The cursor of the next page."},
            "meta": ref("Meta"),
        },
    }


def _of_answer(view: View, name: str) -> Json:
    kind, declared = view.answer_types[name], view.answers[name]
    said = exactness(view, name)
    description = {"description": f"{said['kind']}; {said.get('error', 'exact')}."}
    number = {"type": ["number", "null"]}
    count = {"type": "integer", "minimum": 0}
    if isinstance(declared, Quantiles):
        # One number where one quantile is declared; an object where several are, or where `quantiles` asks for others.
        shares = {"type": "object", "additionalProperties": number}
        return {**description, "anyOf": [number, shares] if kind is not None else [shares]}
    if isinstance(declared, TopK):
        item = {"value": {"type": "string"}, "count": count, "off_by_at_most": count}
        return {**description, "type": "array", "items": {"type": "object", "properties": item}}
    if isinstance(declared, Histogram):
        item = {"from": {"type": "number"}, "below": {"type": "number"}, "count": count}
        return {**description, "type": "array", "items": {"type": "object", "properties": item}}
    algebra = view.algebras.get(name)
    if isinstance(algebra, BoundedList):
        return {**description, "type": "array", "maxItems": algebra.k, "items": SCALARS[algebra.element.kind]}
    if isinstance(algebra, BoundedCounts):
        value = SCALARS[algebra.element.kind]
        entry = {"type": "object", "properties": {"value": value, "count": count}}
        items = entry if algebra.is_counted else value
        null = f"{description['description']} Null: more than {algebra.at_most} values."
        return {"description": null, "type": ["array", "null"], "maxItems": algebra.at_most, "items": items}
    return {**description, **(_nullable(SCALARS[kind.kind]) if kind is not None else {})}


def _nullable(schema: Json) -> Json:
    return {**schema, "type": [schema["type"], "null"]}


def _nullable_ref(name: str) -> Json:
    return {"anyOf": [ref(name), {"type": "null"}]}


def ref(name: str) -> Json:
    """A reference to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def _subclasses(of: type[errors.ServingError]) -> list[type[errors.ServingError]]:
    return [found for each in of.__subclasses__() for found in (each, *_subclasses(each))]


# ---- examples ------------------------------------------------------------------


def example(view: View) -> Json:
    """A response with one row of sample values, each of its type."""
    keys = {key: EXAMPLES[typed.type.kind] for key, typed in view.key_expressions.items()}
    cut = {"0": 17, "1": 20}
    return {
        "rows": [
            {"bucket": "2026-03-01T00:00:00Z", **keys, **{name: _example_of(view, name) for name in view.answers}}
        ],
        "next": None,
        "meta": {
            "view": view.name,
            "version": view.hash[:SHOWN_HASH],
            "source": view.source.name,
            "range": {"from": "2026-03-01T00:00:00Z", "to": "2026-03-02T00:00:00Z", "grain": "day", "tz": "UTC"},
            "batch": {"run": 3, "cut": {"0": 12, "1": 15}, "published": "2026-03-01T03:15:42Z", "read": True},
            "speed": {"applied": cut, "published_run": 3, "lag_s": 0.2, "lag_events": 0, "read": True},
            "cut": cut,
            "complete": True,
            "degraded": False,
            "why": None,
            "answers": {name: exactness(view, name) for name in view.answers},
            "since": None,
            "shortened_keys": False,
            "max_key_bytes": MAX_BYTES,
        },
    }


def _example_of(view: View, name: str) -> Any:
    declared, kind = view.answers[name], view.answer_types[name]
    if isinstance(declared, Quantiles) and kind is None:
        return {"p50": 12.1, "p99": 804.0}
    if isinstance(declared, TopK):
        return [{"value": "/docs", "count": 42}]
    if isinstance(declared, Histogram):
        return [{"below": declared.bounds[0], "count": 3}, {"from": declared.bounds[0], "count": 1}]
    algebra = view.algebras.get(name)
    if isinstance(algebra, BoundedList):
        return [EXAMPLES[algebra.element.kind]]
    if isinstance(algebra, BoundedCounts):
        value = EXAMPLES[algebra.element.kind]
        return [{"value": value, "count": 42} if algebra.is_counted else value]
    return EXAMPLES[kind.kind] if kind is not None else None
