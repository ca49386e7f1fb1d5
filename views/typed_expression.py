"""A checked expression: its type, how Spark computes it and how Python does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from views.field_types import FieldType
from views.like import without_backtracking

Row = Mapping[str, Any]
"""What Python computes on: the fields of an event by name."""


@dataclass(frozen=True)
class TypedExpression:
    """One expression. Two that mean the same have the same `sql`, however they were typed in."""

    type: FieldType
    sql: str
    evaluate: Callable[[Row], Any] = field(compare=False)
    constant: bool = False
    value: Any = None  # of a constant
    is_small: bool = False  # a whole number of at most 32 bits: its sums cannot overflow
    is_finite: bool = True  # never NaN or infinite: fields are checked when they come in

    @property
    def spark_sql(self) -> str:
        """What Spark is asked to compute: the same as `sql`, in work that grows with the event and no faster."""
        return without_backtracking(self.sql)
