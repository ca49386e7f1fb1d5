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

from batch_layer.index.state_columns import blobs_of, bytes_of, gather, places_of
from views.aggregates.algebra import Algebra
from views.aggregates.counting import AverageAlgebra, CountAlgebra, ExactVariance, RoundedVariance, SumAlgebra
from views.aggregates.distinct import SketchedDistinct
from views.aggregates.extremes import EarliestAlgebra, ExtremeAlgebra
from views.aggregates.histogram import HistogramAlgebra
from views.aggregates.items import FAMILY, HEAD, INTEGER, LOAD, NUMBERS, SMALLEST_LG, VERSION, Room
from views.aggregates.quantiles import QuantilesAlgebra
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
    values = _whole(column)
    if values is None:
        return None
    longest = int(np.diff(starts, append=len(values)).max())
    if max(abs(int(values.min())), abs(int(values.max()))) * longest >= TOO_LARGE:
        return None
    return pa.array(np.add.reduceat(values, starts)).cast(pa.string())


def _whole(column: pa.Array) -> NDArray[np.int64] | None:
    """Texts as whole numbers, null as 0; None where one is beyond 64 bits."""
    try:
        found: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    return found


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
    whole = _whole(counts.flatten())
    if whole is None or whole.max() * len(whole) >= TOO_LARGE or whole.min() < 0:
        return None
    texts = [pa.array(each).cast(pa.string()) for each in np.add.reduceat(whole.reshape(-1, width), starts).T]
    return [pc.binary_join_element_wise(*texts, ",")]


def _spreads(_: Algebra, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    """Count, mean and the sum of squared distances from it: those from the mean of all are added."""
    counts, means, spreads = _whole(columns[0]), _doubles(columns[1]), _doubles(columns[2])
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
    read = _doubles if algebra.type == DOUBLE else _whole
    values = read(columns[0].take(pa.array(there)))
    return None if values is None else _chosen(algebra.function, columns, starts, there, [values])


def _placed(algebra: Any, columns: Columns, starts: NDArray[np.int64]) -> list[pa.Array] | None:
    """The value with the lowest or the highest position."""
    there = np.flatnonzero(columns[0].is_valid().to_numpy(zero_copy_only=False))
    positions = [_whole(column.take(pa.array(there))) for column in columns[:3]]
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
    """Tables of numbers: those of each segment are sorted by number, and the counts of each number added up."""
    images = columns[0]
    sizes = np.diff(starts, append=len(images))
    segments = np.repeat(np.arange(len(starts)), sizes)
    if images.null_count:
        is_there = images.is_valid().to_numpy(zero_copy_only=False)
        segments, images = segments[is_there], images.filter(pa.array(is_there))
    heads = _heads(images)
    if heads is None:
        return None
    data, places = bytes_of(images)
    counts = heads["count"].astype(np.int64)
    begin = places[:-1] + HEAD.size
    added = gather(data, begin, 8 * counts).view("<i8")
    items = gather(data, begin + 8 * counts, 5 * counts).view(NUMBERS)["item"].astype(np.int64)
    # One number for segment and item: sorted by it, equal items of a segment are neighbours.
    both = (np.repeat(segments, counts) << 32) + (items + 2**31)
    order = np.argsort(both, kind="stable")
    both, added = both[order], added[order]
    firsts = np.flatnonzero(np.concatenate(([True], both[1:] != both[:-1]))) if len(both) else np.zeros(0, np.int64)
    totals = np.add.reduceat(added, firsts) if len(firsts) else added
    return _tables(algebra.room, both[firsts], totals, len(starts))


_HEAD = np.dtype(
    [
        ("ints", "u1"), ("version", "u1"), ("family", "u1"), ("lg_size", "u1"), ("lg_now", "u1"), ("flags", "u1"),
        ("unused", "<u2"), ("count", "<i4"), ("unused_too", "<i4"), ("counted", "<i8"), ("offset", "<i8"),
    ]
)  # fmt: skip
"""`items.HEAD`, many at a time."""


def _heads(images: pa.Array) -> NDArray[Any] | None:
    """The heads of tables; None where one is no whole table of numbers, or holds more than mere counts."""
    data, places = bytes_of(images)
    sizes = np.diff(places)
    if not len(sizes) or sizes.min() < HEAD.size:
        return None
    heads = gather(data, places[:-1], np.full(len(sizes), HEAD.size)).view(_HEAD)
    is_plain = (heads["version"] == VERSION) & (heads["family"] == FAMILY) & (heads["offset"] == 0)
    # What Spark writes has some unused bytes at its end.
    is_whole = (heads["count"] > 0) & (sizes >= HEAD.size + 13 * heads["count"].astype(np.int64))
    return heads if (is_plain & is_whole).all() else None


def _tables(room: Room, both: NDArray[np.int64], totals: NDArray[np.int64], segments: int) -> list[pa.Array] | None:
    """The tables of segments, as `items.merge_numbers` writes them; None where one has more items than room."""
    counts = np.bincount(both >> 32, minlength=segments)
    if counts.max() > room.capacity:
        return None
    there = np.flatnonzero(counts)
    own = counts[there]
    begins = np.cumsum(own) - own
    heads = np.zeros(len(there), _HEAD)
    heads["ints"], heads["version"], heads["family"], heads["lg_size"] = 4, VERSION, FAMILY, room.lg_size
    # The bits of a whole number are the exponent of it as a double.
    bits = np.frexp(np.maximum((own / LOAD).astype(np.int64), 1))[1]
    heads["lg_now"] = np.maximum(bits, SMALLEST_LG)
    heads["count"], heads["counted"] = own, np.add.reduceat(totals, begins)
    items = np.empty(len(both), NUMBERS)
    items["type"], items["item"] = INTEGER, (both & (2**32 - 1)) - 2**31
    sizes = HEAD.size + 13 * own
    ends = np.cumsum(sizes)
    made = np.empty(int(ends[-1]), np.uint8)
    at = ends - sizes
    _put(made, heads.view(np.uint8), at, np.full(len(there), HEAD.size))
    _put(made, totals.astype("<i8").view(np.uint8), at + HEAD.size, 8 * own)
    _put(made, items.view(np.uint8), at + HEAD.size + 8 * own, 5 * own)
    of_all = np.zeros(segments, np.int64)
    of_all[there] = sizes
    return [blobs_of(made, of_all, counts == 0)]


def _put(into: NDArray[np.uint8], data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    """The inverse of `gather`."""
    into[places_of(starts, sizes)] = data


Way = Callable[[Any, Columns, "NDArray[np.int64]"], "list[pa.Array] | None"]
_WAYS: dict[type[Algebra], Way] = {
    CountAlgebra: _counts,
    SumAlgebra: _sums,
    AverageAlgebra: _averages,
    ExactVariance: _counts,
    RoundedVariance: _spreads,
    HistogramAlgebra: _histograms,
    ExtremeAlgebra: _extremes,
    EarliestAlgebra: _placed,
    SketchedDistinct: _sketches,
    QuantilesAlgebra: _quantiles,
}
"""None from one of them: these states are not for it."""
