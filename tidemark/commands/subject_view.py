"""A first view of the records of a subject: `tidemark views new NAME --from-subject SUBJECT`."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from string import Template
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from views.source import Source

FORMATS = {"AVRO": ("avro", ".avsc"), "PROTOBUF": ("protobuf", ".proto"), "JSON": ("json_schema", ".json")}
"""Of the types that registries know: the format of a source, and the ending of a file."""

STARTER = '''\
"""$name: describe here in one sentence what it answers."""

from pathlib import Path

from tidemark import Count, Source, View

# The records of the topic $topic, read by the schema of $subject, version $version. Records that other versions
# wrote are read by it, too. Another file in this folder can import the source: `from .$name import source`.
source = Source(
    "$source",
    topic="$topic",
    format="$format",
    reader_schema=Path(__file__).with_name("$file"),
    id_field=$id_field,
    time_field=$time_field,
)
$fields

$name = View(
    "$name",
    source=source,
    grain="1h",  # how long a bucket is, from 5s to 1d; queries may ask for longer times
    keys={},  # one group of all; {"item": "item"} for one group for each value of the field
    answers={
        "events": Count(),
        # More: Distinct, Quantiles, Sum, Min, Max, Average, Variance, StdDev, First, Last, TopK, Histogram, Ratio.
    },
    doc="Describe here what it answers: this text is shown beside the view.",
)
'''


class Roles(NamedTuple):
    """Which fields are the id and the time of an event."""

    id_field: str
    time_field: str


def first_view(
    name: str,
    subject: str,
    found: dict[str, Any],
    roles: Roles,
    sources: Collection[Source],
    topic: str | None = None,
) -> dict[str, str]:
    """The files that declare a view of a subject's records, by name: the schema, then the view.

    `found` is the version as the registry answers it, `sources` are those that are declared already. `topic` has the
    records where the subject does not name it. Raises BadParameter where no source can read by the schema, before
    anything is written.
    """
    type, text, version = found.get("schemaType", "AVRO"), found.get("schema"), found.get("version")
    if type not in FORMATS or not isinstance(text, str) or not isinstance(version, int) or not _is_writable(text):
        raise typer.BadParameter(f"what the registry has for {subject!r} is no Avro, Protobuf or JSON schema.")
    format, ending = FORMATS[type]
    source = _source(subject, format, text, roles, topic)
    _check_is_new(source, sources)
    file = f"{name}{ending}"
    view = Template(STARTER).substitute(
        name=name,
        subject=subject,
        version=version,
        source=source.name,
        topic=source.topic,
        format=format,
        file=file,
        id_field=_literal(roles.id_field),
        time_field=_literal(roles.time_field),
        fields=_comment(f"Its fields: {', '.join(_literal(each.name) for each in source.schema)}"),
    )
    return {file: text.rstrip() + "\n", f"{name}.py": view}


def check_names_a_topic(subject: str, topic: str | None) -> None:
    """Refuse a subject that names no topic by any strategy, before the registry is asked."""
    if topic is None and "-" not in subject.strip("-"):
        raise _names_no_topic(subject)


def _source(subject: str, format: str, text: str, roles: Roles, topic: str | None) -> Source:
    from views.errors import DeclarationError
    from views.formats.subject_names import record_name, topic_in
    from views.source import Source

    try:
        found = Source("any", format=format, reader_schema=text, **roles._asdict())
        topic = topic or topic_in(subject, record_name(found))
        if topic is None:
            raise _names_no_topic(subject)
        return replace(found, name=_source_name(topic), topic=topic)
    except DeclarationError as error:
        raise typer.BadParameter(
            f"no source can read by the schema of {subject!r}. {error} Fields with other names: --id-field and "
            "--time-field."
        ) from None


def _names_no_topic(subject: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"{subject!r} does not say whose records it describes: it is neither TOPIC-value nor TOPIC-RECORD, with the "
        "full name of the record in its schema. Name the topic with --topic."
    )


def _source_name(topic: str) -> str:
    """`Web.clicks-2` -> `web_clicks_2`"""
    name = re.sub(r"[^a-z0-9_]", "_", topic.lower())[:60]
    return name if name[0].isalpha() else f"of_{name}"


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _literal(text: str) -> str:
    """Text as Python has it. A name in a schema may hold anything, line ends and quotes among it."""
    return f'"{text}"' if text.isidentifier() else repr(text)


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in wrap(text, 110, break_long_words=False, break_on_hyphens=False))


def _check_is_new(source: Source, sources: Collection[Source]) -> None:
    from views.source import kafka_name

    for other in sources:
        if other.name == source.name or kafka_name(other.topic) == kafka_name(source.topic):
            raise typer.BadParameter(
                f"there is a source {other.name!r} of the topic {other.topic!r} already, and a view of it needs no "
                "schema. If it is an example that you do not need, leave it out of the setting examples."
            )
