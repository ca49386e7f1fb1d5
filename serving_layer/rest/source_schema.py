"""What the records of a source look like: its format, its fields, and which views use each field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from views.field_types import with_names
from views.formats.subject_names import subjects_of
from views.source import Source
from views.view import View


def schema_of(source: Source, views: Sequence[View]) -> dict[str, Any]:
    """The schema of a source by its version, as JSON has it. `views` are those that the asker may see, as it is."""
    used = {view.name: set(view.used_fields) for view in views}
    return {
        "version": source.version,
        "topic": source.topic,
        "format": source.format,
        "framing": source.framing or None,
        "envelope": source.envelope or None,
        "subjects": subjects_of(source),
        "reader_schema": str(source.reader_schema) or None,
        "id_field": source.id_field,
        "time_field": source.time_field,
        "key_field": source.key_field or source.id_field,
        "fields": [
            {
                "path": path,
                "type": field.type.ddl().replace("`", ""),
                "required": field.is_required,
                "default": None if field.default is None else str(field.default),
                "aliases": list(field.aliases),
                "views": [name for name, fields in used.items() if _is_used(path, fields)],
            }
            for path, field in with_names(source.schema)
        ],
    }


def _is_used(path: str, used: set[str]) -> bool:
    """Whether a field, or one inside it, is among those that a view looks at."""
    return any(each == path or each.startswith(f"{path}.") for each in used)
