"""The functions and operators of expressions: for each its types, its Spark SQL and the same in Python.

The Spark SQL never fails on an event: where Spark would stop with an error (overflow, division by zero) it gives null.
"""

from __future__ import annotations

from views.functions import collections, numbers, strings  # noqa: F401  # each registers its functions
from views.functions.conditions import case
from views.functions.registry import BUILDERS, build, cast_to, coerce, field_at, finite, member
from views.functions.times import truncated

NAMES = frozenset(BUILDERS) | {"cast", "case", "date_trunc"}
"""What a person may use, for error texts and the documentation."""

__all__ = ["NAMES", "build", "case", "cast_to", "coerce", "field_at", "finite", "member", "truncated"]
