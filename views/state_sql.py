"""What Spark computes for a view, as one SQL text to read and to try; the layers themselves use on_spark/states.py."""

from __future__ import annotations

from views.states import pack_sql
from views.view import View


def state_sql(view: View) -> str:
    """A SELECT of `bucket`, the keys and `state` from `events`: valid events, each once.

    `events` has the columns event_id, event_time, partition, offset and event.
    """
    grouped = [f"{view.bucket.bucket_sql('event_time')} AS bucket"]
    grouped += [f"{key.sql} AS `{name}`" for name, key in view.key_expressions.items()]
    by = ", ".join(str(place + 1) for place in range(len(grouped)))
    parts = []
    for number, measure in enumerate(view.measures.values()):
        only = f" FILTER (WHERE {measure.where.sql})" if measure.where else ""
        found = measure.algebra.aggregate(measure.of.sql if measure.of else "1", only)
        names = [f"_{number}_{place}" for place in range(len(found))]
        grouped += [f"{sql} AS {name}" for sql, name in zip(found, names, strict=True)]
        parts += list(zip(measure.algebra.kinds, measure.algebra.parts(names), strict=True))
    lines = ["WITH grouped AS (", *_listed("  SELECT", grouped, 4), "  FROM events"]
    if view.condition is not None:
        lines.append(f"  WHERE {view.condition.sql}")
    lines += [f"  GROUP BY {by}", ")"]
    packed = f"{pack_sql(parts)} AS state"
    return "\n".join(
        [*lines, *_listed("SELECT", ["bucket", *(f"`{name}`" for name in view.keys), packed], 2), "FROM grouped"]
    )


def _listed(head: str, columns: list[str], indent: int) -> list[str]:
    return [head, *(f"{' ' * indent}{column}," for column in columns[:-1]), f"{' ' * indent}{columns[-1]}"]
