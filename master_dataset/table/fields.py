"""The fields of a source as its master table has them, compared with those that are declared. No Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from master_dataset.errors import MasterDatasetError
from views.field_types import Field
from views.reading import rules_of
from views.source import Source

SQL_NAMES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
"""Types that Delta's schemas and DDL name differently."""
MAX_NAMED = 5
RULES = "tidemark.fields"
"""The property of a table that has what its source's fields say beyond names and types, if that is anything."""
RULE_NAMES = {"required": "NOT NULL", "default": "DEFAULT", "aliases": "aliases"}


OTHERWISE = "Undo the change, or declare a source with another name and topic that has the new fields."


class SourceChanged(MasterDatasetError):
    """The declared fields of a source are not those of its master table."""

    def __init__(self, source: str, changes: list[str], next_version: int | None = None) -> None:
        more = [f"{len(changes) - MAX_NAMED} more"] if len(changes) > MAX_NAMED else []
        super().__init__(
            f"Source {source!r} was changed: its fields are not those of its master table. "
            f"{'; '.join([*changes[:MAX_NAMED], *more])}. "
            + (f"Declare it with version={next_version}, or undo the change." if next_version else OTHERWISE)
        )
        self.source, self.changes = source, changes


def check_fields(table: Path, source: Source) -> None:
    """Raise SourceChanged where a source declares other fields than its table has. A source without a table is new."""
    stored = stored_fields(table)
    if stored is None:
        return
    declared = dict(_declared(source.schema))
    if list(declared.items()) != list(stored.items()):
        raise SourceChanged(source.name, _changes(stored, declared), next_version=source.version + 1)
    if changes := list(_changed_rules(stored_rules(table), rules_of(source.schema))):
        raise SourceChanged(source.name, changes, next_version=source.version + 1)


def columns_of(table: Path) -> str | None:
    """The fields of a table's events as DDL; None where there is no table, or a log that cannot be read."""
    columns = _event_columns(table)
    return None if columns is None else ", ".join(f"`{each['name']}` {_ddl(each['type'])}" for each in columns)


def stored_fields(table: Path) -> dict[str, str] | None:
    """The fields of a table in their order, each with its type as DDL, those of structs as `a.b`.

    None where there is no table, or a log that cannot be read: the checks of the table say so.
    """
    columns = _event_columns(table)
    return None if columns is None else dict(_stored(columns))


def _event_columns(table: Path) -> list[dict[str, Any]] | None:
    metadata = _metadata(table / "_delta_log")
    if metadata is None:
        return None
    try:
        columns = {column["name"]: column["type"] for column in json.loads(metadata["schemaString"])["fields"]}
        return list(columns["event"]["fields"])
    except (ValueError, KeyError, TypeError):
        return None


def stored_rules(table: Path) -> dict[str, dict[str, Any]]:
    """By path: what the fields of a table say beyond names and types."""
    metadata = _metadata(table / "_delta_log") or {}
    text = dict(metadata.get("configuration") or {}).get(RULES)
    return dict(json.loads(text)) if text else {}


def _metadata(log: Path) -> dict[str, Any] | None:
    """Of the newest commit that has it. A checkpoint has what the commits before it said: those are not read."""
    begin, found = -1, None
    for checkpoint in sorted(log.glob("*.checkpoint*.parquet"), reverse=True):
        if (found := _in_checkpoint(checkpoint)) is not None:
            begin = int(checkpoint.name[:20])
            break
    commits = {int(path.stem): path for path in log.glob("*.json") if path.stem.isdecimal()}
    for version in sorted((version for version in commits if version > begin), reverse=True):
        if (newer := _in_commit(commits[version])) is not None:
            return newer
    return found


def _in_checkpoint(checkpoint: Path) -> dict[str, Any] | None:
    import pyarrow.parquet as pq

    try:
        found = pq.ParquetFile(checkpoint).read(columns=["metaData"]).column("metaData").to_pylist()
    except (OSError, ValueError, KeyError):  # a torn one
        return None
    return next((dict(action) for action in found if action and action["schemaString"]), None)


def _in_commit(commit: Path) -> dict[str, Any] | None:
    try:
        text = commit.read_bytes()
        if b'"metaData"' not in text:  # most have rows only
            return None
        actions = map(json.loads, text.splitlines())
        return next((dict(action["metaData"]) for action in actions if "metaData" in action), None)
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


def _changed_rules(stored: Mapping[str, Any], declared: Mapping[str, Any]) -> Iterable[str]:
    for path in sorted(stored.keys() | declared.keys()):
        before, now = stored.get(path, {}), declared.get(path, {})
        for rule in sorted(before.keys() | now.keys()):
            if before.get(rule) != now.get(rule):
                yield f"{path!r} has {_rule(rule, before)} in the table and {_rule(rule, now)} in the declaration"


def _rule(name: str, rules: Mapping[str, Any]) -> str:
    match name, rules.get(name):
        case _, None:
            return f"no {RULE_NAMES.get(name, name)}"
        case "required", _:
            return "NOT NULL"
        case _, value:
            return f"the {RULE_NAMES.get(name, name)} {value!r}"
