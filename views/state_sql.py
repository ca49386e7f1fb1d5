"""What Spark computes for a view: the plan that on_spark/states.py runs, and one SQL text to read and to try."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from views.states import pack_sql
from views.typed_expression import TypedExpression
from views.view import View


class StatePlan(NamedTuple):
    """The SQL of a view's stored answers: what is aggregated, under which names, and what is made of these columns."""

    aggregates: dict[str, str]
    state: str
    answers: dict[str, str]
    """Those that a plain column can hold."""


def _for_spark(expression: TypedExpression) -> str:
    return expression.spark_sql


def plan(view: View, text: Callable[[TypedExpression], str] = _for_spark) -> StatePlan:
    """In the order of the answers' names, which is that of a state's parts. `text` says what stands for a value."""
    aggregates: dict[str, str] = {}
    parts: list[tuple[str, str]] = []
    answers: dict[str, str] = {}
    for number, (answer, measure) in enumerate(view.measures.items()):
        only = f" FILTER (WHERE {text(measure.where)})" if measure.where else ""
        found = measure.algebra.aggregate(text(measure.of) if measure.of else "1", only)
        names = [f"_{number}_{place}" for place in range(len(found))]
        aggregates |= dict(zip(names, found, strict=True))
        parts += list(zip(measure.algebra.kinds, measure.algebra.parts(names), strict=True))
        if (column := measure.algebra.column(names)) is not None:
            answers[answer] = column
    return StatePlan(aggregates, pack_sql(parts), answers)


def state_sql(view: View) -> str:
    """A SELECT of `bucket`, the keys and `state` from `events`: valid events, each once.

    `events` has the columns event_id, event_time, partition, offset and event.
    """
    grouped = [f"{view.bucket.bucket_sql('event_time')} AS bucket"]
    grouped += [f"{key.spark_sql} AS `{name}`" for name, key in view.key_expressions.items()]
    by = ", ".join(str(place + 1) for place in range(len(grouped)))
    planned = plan(view)
    grouped += [f"{sql} AS {name}" for name, sql in planned.aggregates.items()]
    lines = ["WITH grouped AS (", *_listed("  SELECT", grouped, 4), "  FROM events"]
    if view.condition is not None:
        lines.append(f"  WHERE {view.condition.spark_sql}")
    lines += [f"  GROUP BY {by}", ")"]
    packed = f"{planned.state} AS state"
    return "\n".join(
        [*lines, *_listed("SELECT", ["bucket", *(f"`{name}`" for name in view.keys), packed], 2), "FROM grouped"]
    )


def _listed(head: str, columns: list[str], indent: int) -> list[str]:
    return [head, *(f"{' ' * indent}{column}," for column in columns[:-1]), f"{' ' * indent}{columns[-1]}"]
