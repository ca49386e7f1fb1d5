"""TopK: the most frequent values, with how often, exact while there are no more values than there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from views.aggregates import items
from views.aggregates.algebra import Aggregate, Algebra, Part, Position, check_kind
from views.aggregates.distinct import accumulated, blob
from views.aggregates.items import Items, Room
from views.errors import ExpressionError
from views.short_texts import shortened
from views.typed_expression import TypedExpression

SPARE = 3
"""Spark takes the median from all when its table is full, and is off by up to 3.5 n / (4/3 of its items)."""


@dataclass(frozen=True)
class TopK(Aggregate):
    """The `k` most frequent values: [{"value": "/", "count": 12}, …], equal counts in the order of their values.

    Exact up to `room` different values in a group; beyond that a count is too low or too high by at most
    n / `room` of the n values, and an entry says so in `off_by_at_most`.
    """

    k: int = 10
    room: int = 1_000

    def algebra(self, measure: TypedExpression | None) -> Algebra:
        check_kind("TopK", measure, "string")
        if type(self.k) is not int or type(self.room) is not int or not 1 <= self.k <= self.room <= 100_000:
            raise ExpressionError(
                f"k is {self.k!r} and room {self.room!r}; they should satisfy 1 <= k <= room <= 100000."
            )
        return TopKAlgebra(self.k, self.room)

    def meaning(self) -> dict[str, Any]:
        return {"k": self.k, "room": self.room}


class TopKAlgebra(Algebra):
    """The state: how many values there were, and the table of those that are kept."""

    kinds = "tb"

    def __init__(self, k: int, room: int) -> None:
        self.k, self.room, self.table = k, Room(room), Room(SPARE * room)
        self.error = f"exact up to {self.table.capacity} values a group"

    def stored(self, measure: TypedExpression) -> TypedExpression:
        return shortened(measure)

    def zero(self) -> tuple[int, Items]:
        return 0, Items({})

    def add(self, state: tuple[int, Items], value: str, at: Position) -> tuple[int, Items]:
        count, table = state
        table.counts[value] = table.counts.get(value, 0) + 1
        return count + 1, items.shrink(table, self.table)

    def merge(self, left: tuple[int, Items], right: tuple[int, Items]) -> tuple[int, Items]:
        return left[0] + right[0], items.merge(left[1], right[1], self.table)

    def merge_all(self, states: Sequence[tuple[int, Items]]) -> tuple[int, Items]:
        return sum(count for count, _ in states), items.merge_all([table for _, table in states], self.table)

    def present(self, state: tuple[int, Items]) -> list[dict[str, Any]]:
        table = state[1]
        first = sorted(table.counts.items(), key=lambda each: (-each[1], each[0]))[: self.k]
        off = {"off_by_at_most": table.offset} if table.offset else {}
        return [{"value": value, "count": count + table.offset, **off} for value, count in first]

    def to_parts(self, state: tuple[int, Items]) -> tuple[Part, ...]:
        return str(state[0]), items.to_bytes(state[1], self.table) if state[0] else None

    def from_parts(self, parts: Sequence[Part]) -> tuple[int, Items]:
        count, table = int(parts[0] or 0), items.from_bytes(blob(parts[1]), is_text=True)
        if count and table == Items({}):  # all were equally rare and gave way; Spark's image does not say at what cost
            table = Items({}, -(-count // self.room.items))
        return count, table

    def aggregate(self, measure: str, only: str) -> list[str]:
        return [f"count({measure}){only}", accumulated(measure, only, self.table)]

    def parts(self, columns: Sequence[str]) -> list[str]:
        return [f"cast({columns[0]} AS string)", f"{columns[1]}.sketch"]
