"""Merge the states of neighbouring groups, segment by segment, many segments at once.

    states  a b c d e,  a segment from each of 0, 2, 3  ->  a+b, c, d+e

Most states are numbers that numpy adds up, or tables of numbers that it sorts and adds up. What it cannot do is merged
as everywhere else, by the `merge_parts` of the algebra: one that is not named here loses speed and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasketches import hll_sketch, hll_union, tgt_hll_type

from batch_layer.index.item_tables import merge_number_tables, merge_text_tables
from batch_layer.index.state_columns import whole_numbers
from views.aggregates.algebra import Algebra
from views.aggregates.counting import AverageAlgebra, CountAlgebra, ExactVariance, RoundedVariance, SumAlgebra
from views.aggregates.distinct import SketchedDistinct
from views.aggregates.extremes import EarliestAlgebra, ExtremeAlgebra
from views.aggregates.histogram import HistogramAlgebra
from views.aggregates.moments import ExactMoments
from views.aggregates.quantiles import QuantilesAlgebra
from views.aggregates.top_k import TopKAlgebra
from views.types import BIGINT, DOUBLE

if TYPE_CHECKING:
    from numpy.typing import NDArray

Columns = Sequence[pa.Array]
TOO_LARGE = 2**63


def merge_segments(algebras: Mapping[str, Algebra], columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array]:
    """The parts of the states of each segment, merged. A segment goes from its start to the next."""
    found: list[pa.Array] = []
    for name in sorted(algebras):
        algebra = algebras[name]
        own = columns[len(found) : len(found) + len(algebra.kinds)]
        way = _WAYS.get(type(algebra))
        merged = way(algebra, own, starts) if way is not None else None
        found += merged if merged is not None else one_by_one(algebra, own, starts)
    return found


def one_by_one(algebra: Algebra, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array]:
    """By the algebra itself, for any of them."""
    values = [column.to_pylist() for column in columns]
    rows = [algebra.merge_parts([each[start:end] for each in values]) for start, end in _bounds(columns[0], starts)]
    return [
        pa.array(column, pa.string() if kind == "t" else pa.binary())
        for kind, column in zip(algebra.kinds, zip(*rows, strict=True), strict=True)
    ]


def _bounds(column: pa.Array, starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    return pairwise([*starts.tolist(), len(column)])


# ---- numbers -----------------------------------------------------------------------


def add_whole(column: pa.Array, starts: NDArray[np.int64]) -> pa.Array | None:
    """The sums of whole numbers, as texts; None where one may be beyond 64 bits."""
    values = whole_numbers(column)
    if values is None:
        return None
    longest = int(np.diff(starts, append=len(values)).max())
    if max(abs(int(values.min())), abs(int(values.max()))) * longest >= TOO_LARGE:
        return None
    return pa.array(np.add.reduceat(values, starts)).cast(pa.string())


def _doubles(column: pa.Array) -> NDArray[np.float64] | None:
    """Texts as doubles; None where one is missing."""
    try:
        found: NDArray[np.float64] = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    return None if column.null_count else found


def _texts(values: NDArray[np.float64]) -> pa.Array:
    """Doubles as Python writes them, with one zero."""
    return pa.array(map(repr, (values + 0.0).tolist()), pa.string())


def add_doubles(column: pa.Array, starts: NDArray[np.int64]) -> pa.Array | None:
    """The sums of doubles, as texts; None where a number is missing."""
    values = _doubles(column)
    return None if values is None else _texts(np.add.reduceat(values, starts))


def _counts(_: Algebra, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    return _each_added(columns, starts)


def _sums(algebra: Any, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    if columns[-1].null_count:  # a sum is never missing: the algebra refuses it
        return None
    *before, last = columns
    if algebra.type == DOUBLE:
        total = add_doubles(last, starts)
    elif algebra.type == BIGINT:
        total = add_whole(last, starts)
    else:
        return None
    counted = _each_added(before, starts)
    return None if total is None or counted is None else [*counted, total]


def _averages(algebra: Any, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    return _sums(algebra.sum, columns, starts)


def _each_added(columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    found = [add_whole(column, starts) for column in columns]
    return None if any(column is None for column in found) else found


def _histograms(algebra: Any, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    """Counts with commas between them."""
    width = len(algebra.bounds) + 1
    counts = pc.split_pattern(columns[0], ",")
    if counts.null_count or (pc.list_value_length(counts).to_numpy() != width).any():
        return None
    whole = whole_numbers(counts.flatten())
    if whole is None or int(whole.max()) * len(whole) >= TOO_LARGE or whole.min() < 0:
        return None
    texts = [pa.array(each).cast(pa.string()) for each in np.add.reduceat(whole.reshape(-1, width), starts).T]
    return [pc.binary_join_element_wise(*texts, ",")]


def _spreads(_: Algebra, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    """Count, mean and the sum of squared distances from it: those from the mean of all are added."""
    counts, means, spreads = whole_numbers(columns[0]), _doubles(columns[1]), _doubles(columns[2])
    if counts is None or means is None or spreads is None:
        return None
    sizes = np.diff(starts, append=len(counts))
    count = np.add.reduceat(counts, starts)
    mean = np.add.reduceat(means * counts, starts) / np.maximum(count, 1)
    apart = means - np.repeat(mean, sizes)
    spread = np.add.reduceat(spreads + apart * apart * counts, starts)
    return [pa.array(count).cast(pa.string()), _texts(mean), _texts(spread)]


def _extremes(algebra: Any, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    """The least or the greatest number; a text or a decimal is not one."""
    if algebra.type.kind not in ("bigint", "double", "timestamp", "date", "boolean"):
        return None
    there = np.flatnonzero(columns[0].is_valid().to_numpy(zero_copy_only=False))
    read = _doubles if algebra.type == DOUBLE else whole_numbers
    values = read(columns[0].take(pa.array(there)))
    return None if values is None else _chosen(algebra.function, columns, starts, there, [values])


def _placed(algebra: Any, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    """The value with the lowest or the highest position."""
    there = np.flatnonzero(columns[0].is_valid().to_numpy(zero_copy_only=False))
    positions = [whole_numbers(column.take(pa.array(there))) for column in columns[:3]]
    if any(each is None for each in positions):
        return None
    return _chosen(algebra.function, columns, starts, there, positions)


def _chosen(
    function: str, columns: Columns, starts: NDArray[np.int64], there: NDArray[np.int64], keys: Sequence[Any]
) -> list[pa.Array]:
    """The rows with the least (`min`) or greatest keys of each segment, of those `there`; null where it has none."""
    segments = np.searchsorted(starts, there, side="right") - 1
    order = np.lexsort((*reversed(keys), segments))
    ordered = segments[order]
    is_other = ordered[1:] != ordered[:-1]
    edge = np.concatenate(([True], is_other)) if function == "min" else np.concatenate((is_other, [True]))
    rows = np.zeros(len(starts), np.int64)
    is_empty = np.ones(len(starts), np.bool_)
    if len(order):
        rows[ordered[edge]] = there[order[edge]]
        is_empty[ordered] = False
    return [column.take(pa.array(rows, mask=is_empty)) for column in columns]


# ---- sketches ----------------------------------------------------------------------


def _sketches(algebra: Any, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    """As `SketchedDistinct` merges them, without a Python object for each state."""
    images, merged = columns[0].to_pylist(), list[bytes | None]()
    read, precision, kind = hll_sketch.deserialize, algebra.precision, tgt_hll_type.HLL_8
    for start, end in _bounds(columns[0], starts):
        found = [image for image in images[start:end] if image is not None]
        if len(found) < 2:
            merged.append(found[0] if found else None)
            continue
        union = hll_union(precision)
        for image in found:
            union.update(read(image))
        merged.append(union.get_result(kind).serialize_compact())
    return [pa.array(merged, pa.binary())]


def _quantiles(algebra: Any, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    merged = merge_number_tables(algebra.room, columns[0], starts)
    return None if merged is None else [merged]


def _tops(algebra: Any, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    counts = whole_numbers(columns[0])
    if counts is None or (counts[columns[1].is_null().to_numpy(zero_copy_only=False)] > 0).any():
        return None  # where nothing is left of values, the algebra knows what they cost
    counted, merged = add_whole(columns[0], starts), merge_text_tables(algebra.table, columns[1], starts)
    return None if counted is None or merged is None else [counted, merged]


Way = Callable[[Any, Columns, "NDArray[np.int64]"], "list[pa.Array] | None"]
_WAYS: dict[type[Algebra], Way] = {
    CountAlgebra: _counts,
    SumAlgebra: _sums,
    AverageAlgebra: _averages,
    ExactVariance: _counts,
    ExactMoments: _counts,
    RoundedVariance: _spreads,
    HistogramAlgebra: _histograms,
    ExtremeAlgebra: _extremes,
    EarliestAlgebra: _placed,
    SketchedDistinct: _sketches,
    QuantilesAlgebra: _quantiles,
    TopKAlgebra: _tops,
}
"""None from one of them: these states are not for it."""
