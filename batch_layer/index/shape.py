"""What the index of a view depends on, and how its states are split, merged and read as numbers, many at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_layer.index.layout import Level, daily_level
from batch_layer.index.segments import merge_segments
from batch_layer.index.state_columns import join_states, split_states
from views.aggregates.algebra import Algebra, Part
from views.aggregates.counting import adds_up
from views.states import kinds_of, merge_parts
from views.types import fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from views.view import View

Parts = list[Part]
Columns = list[pa.Array]
"""States of many groups: for each part a column."""


@dataclass(frozen=True)
class Shape:
    """What the index of a view depends on. States stay in parts, which are merged without unpacking most of them."""

    keys: tuple[str, ...]
    grain_s: int
    algebras: dict[str, Algebra]
    kinds: str
    answers: dict[str, int]
    """Those that add up as whole numbers, each with its place among the parts."""

    @classmethod
    def of(cls, view: View) -> Shape:
        """That of a view."""
        answers, place = {}, 0
        for name, algebra in sorted(view.algebras.items()):
            if adds_up(algebra):
                answers[name] = place
            place += len(algebra.kinds)
        return cls(tuple(view.keys), view.bucket.seconds, view.algebras, kinds_of(view.algebras), answers)

    @property
    def daily(self) -> Level:
        """The level whose tiles are days."""
        return daily_level(self.grain_s)

    def split(self, states: pa.Array) -> Columns:
        """States in their parts."""
        return split_states(self.kinds, states)

    def merged(self, states: pa.Array, columns: Columns, starts: NDArray[np.int64]) -> tuple[pa.Array, Columns]:
        """The states of segments, each from its start to the next, and their parts. Of one state it is that state."""
        sizes = np.diff(starts, append=len(states))
        is_many = sizes > 1
        if not is_many.any():
            return states, columns
        rows = pa.array(np.flatnonzero(np.repeat(is_many, sizes)))
        many = sizes[is_many]
        merged = merge_segments(self.algebras, [column.take(rows) for column in columns], np.cumsum(many) - many)
        alone, place = pa.array(starts[~is_many]), np.empty(len(starts), np.int64)
        place[~is_many] = np.arange(len(alone))
        place[is_many] = len(alone) + np.arange(len(many))
        joined = join_states(self.kinds, merged)
        together = [
            pa.concat_arrays([column.take(alone), of_many]).take(pa.array(place))
            for column, of_many in zip([states, *columns], [joined, *merged], strict=True)
        ]
        return together[0], together[1:]

    def merged_parts(self, states: list[Parts]) -> Parts:
        """The state of all events of a few states."""
        return merge_parts(self.algebras, states) if len(states) > 1 else states[0]

    def numbers(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Of the answers that add up; null is a number beyond 64 bits."""
        return [_numbers(columns[place]) for place in self.answers.values()]

    def schema(self, columns: Mapping[str, pa.DataType]) -> pa.Schema:
        """Rows of a scratch file: these columns, then the numbers."""
        return pa.schema({**columns, **{f"n{place}": pa.int64() for place in range(len(self.answers))}})


def _numbers(column: pa.Array) -> pa.Array:
    try:
        return pc.fill_null(column.cast(pa.int64()), 0)
    except pa.ArrowInvalid:
        return pa.array([fit(int(part or 0)) for part in column.to_pylist()], pa.int64())
