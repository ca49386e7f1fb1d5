"""Which fields of a source a door fills.

A field has the name that the door documents, as its own or as an alias. Free values become what the source declares
(`views/formats/fit.py`). What the source does not declare is stored unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable

from infra.rest.problems import Problem
from master_dataset.collector.events import check_takes_json
from views.source import Source


def check_suitable(source: Source, protocol: str, fields: Iterable[str]) -> None:
    """Refuse a source that declares nothing of what a door sends, beside an id and a time: that is a wrong address.

    And one whose records are not JSON: nobody could read what a door stores there.
    """
    check_takes_json(source)
    fields = tuple(fields)
    roles = (source.id_field, source.time_field)
    filled = (field for field in source.schema if field.name not in roles)
    if not any(name in fields for field in filled for name in field.names):
        raise Problem(
            422,
            "unsuitable-source",
            f"Source {source.name!r} declares no field that {protocol} fills. Send to another source, or add some of "
            f"these to its fields: {', '.join(fields)}. Nothing was stored.",
            fields=list(fields),
        )
