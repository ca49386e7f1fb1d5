"""The fields of a source as its master table has them, compared with those that are declared. No Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infra.settings import Settings
from master_dataset.errors import MasterDatasetError
from master_dataset.table.paths import table_path
from views.field_types import Field
from views.source import Source

SQL_NAMES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
"""Types that Delta's schemas and DDL name differently."""
MAX_NAMED = 5


class SourceChanged(MasterDatasetError):
    """The declared fields of a source are not those of its master table."""

    def __init__(self, source: str, changes: list[str]) -> None:
        more = [f"{len(changes) - MAX_NAMED} more"] if len(changes) > MAX_NAMED else []
        super().__init__(
            f"Source {source!r} was changed: its fields are not those of its master table. "
            f"{'; '.join([*changes[:MAX_NAMED], *more])}. Fields of a source cannot change yet. Undo the change, or "
            "declare a source with another name and topic that has the new fields."
        )
        self.source, self.changes = source, changes


def check_fields(table: Path, source: Source) -> None:
    """Raise SourceChanged where a source declares other fields than its table has. A source without a table is new."""
    stored = stored_fields(table)
    if stored is None:
        return
    declared = dict(_declared(source.schema))
    if list(declared.items()) != list(stored.items()):
        raise SourceChanged(source.name, _changes(stored, declared))


def changed_sources(settings: Settings, sources: Iterable[Source]) -> dict[str, str]:
    """The sources that declare other fields than their tables have, each with what differs and what to do."""
    found = {}
    for source in sources:
        try:
            check_fields(table_path(settings, source.name), source)
        except SourceChanged as error:
            found[source.name] = str(error)
    return found


def stored_fields(table: Path) -> dict[str, str] | None:
    """The fields of a table in their order, each with its type as DDL, those of structs as `a.b`.

    None where there is no table, or a log that cannot be read: the checks of the table say so.
    """
    text = _schema_text(table / "_delta_log")
    if text is None:
        return None
    try:
        columns = {column["name"]: column["type"] for column in json.loads(text)["fields"]}
        return dict(_stored(columns["event"]["fields"]))
    except (ValueError, KeyError, TypeError):
        return None


def _schema_text(log: Path) -> str | None:
    """Of the newest commit that has one. A checkpoint has what the commits before it said: those are not read."""
    begin, schema = -1, None
    for checkpoint in sorted(log.glob("*.checkpoint*.parquet"), reverse=True):
        if (schema := _in_checkpoint(checkpoint)) is not None:
            begin = int(checkpoint.name[:20])
            break
    commits = {int(path.stem): path for path in log.glob("*.json") if path.stem.isdecimal()}
    for version in sorted((version for version in commits if version > begin), reverse=True):
        if (text := _in_commit(commits[version])) is not None:
            return text
    return schema


def _in_checkpoint(checkpoint: Path) -> str | None:
    import pyarrow.parquet as pq

    try:
        found = pq.ParquetFile(checkpoint).read(columns=["metaData.schemaString"]).column("metaData").to_pylist()
    except (OSError, ValueError, KeyError):  # a torn one
        return None
    return next((str(action["schemaString"]) for action in found if action and action["schemaString"]), None)


def _in_commit(commit: Path) -> str | None:
    try:
        text = commit.read_bytes()
        if b'"metaData"' not in text:  # most have rows only
            return None
        actions = map(json.loads, text.splitlines())
        return next((str(action["metaData"]["schemaString"]) for action in actions if "metaData" in action), None)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stored(fields: Iterable[Mapping[str, Any]], above: str = "") -> Iterable[tuple[str, str]]:
    for field in fields:
        kind = field["type"]
        if isinstance(kind, dict) and kind["type"] == "struct":
            yield from _stored(kind["fields"], f"{above}{field['name']}.")
        else:
            yield f"{above}{field['name']}", _ddl(kind)


def _ddl(kind: Any) -> str:
    if isinstance(kind, str):
        return SQL_NAMES.get(kind, kind)
    match kind["type"]:
        case "array":
            return f"array<{_ddl(kind['elementType'])}>"
        case "map":
            return f"map<{_ddl(kind['keyType'])},{_ddl(kind['valueType'])}>"
    fields = [f"`{field['name']}`:{_ddl(field['type'])}" for field in kind["fields"]]
    return f"struct<{','.join(fields)}>"


def _declared(fields: Iterable[Field], above: str = "") -> Iterable[tuple[str, str]]:
    for field in fields:
        if field.type.kind == "struct":
            yield from _declared(field.type.fields, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}", field.type.ddl()


def _changes(stored: Mapping[str, str], declared: Mapping[str, str]) -> list[str]:
    retyped = [
        f"{name!r} is {kind} in the table and {declared[name]} in the declaration"
        for name, kind in stored.items()
        if name in declared and declared[name] != kind
    ]
    gone = [f"{name!r} ({kind}) is no longer declared" for name, kind in stored.items() if name not in declared]
    new = [f"{name!r} ({kind}) is not in the table" for name, kind in declared.items() if name not in stored]
    return [*retyped, *gone, *new] or ["they stand in another order"]
