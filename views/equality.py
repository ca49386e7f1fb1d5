"""Whether two states of a group are equal: two ways of aggregating the same events must give equal states.

Nearly all must give the identical answer. Sums of doubles depend on their order, and a TopK with more values than it
has room for on what it met first: these may differ as far as they state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from views.aggregates import Algebra
from views.aggregates.counting import AverageAlgebra, RoundedVariance, SumAlgebra
from views.aggregates.decayed_rate import DecayedRateAlgebra
from views.aggregates.moments import RoundedMoments
from views.aggregates.top_k import TopKAlgebra
from views.aggregates.trend import DAY_MS, RoundedTrend
from views.laws import SHAPE_STEP, SPREAD_STEP, is_rounded

DOUBLES = 1e-9
"""Of sums of doubles: how far they may be apart, as a share of the largest known. How many were added is not known."""
FLOOR = 1e-6
"""And how far in any case: what cancels out near 0 leaves the rounding of what was added, of which nothing is known."""
State = Mapping[str, Any]


def differing(algebras: Mapping[str, Algebra], left: State, right: State, pieces: Sequence[State] = ()) -> list[str]:
    """The stored answers in which two states of a group differ by more than they may; `pieces`: parts of them."""
    return [
        name
        for name, algebra in algebras.items()
        if not _is_same(algebra, left[name], right[name], [piece[name] for piece in pieces])
    ]


def is_near(left: float, right: float, *pieces: float) -> bool:
    """Whether two sums of doubles are the same but for the order in which they were added; `pieces`: parts of them."""
    return abs(left - right) <= max(FLOOR, DOUBLES * max(map(abs, (left, right, *pieces))))


def _is_same(algebra: Algebra, left: Any, right: Any, pieces: Sequence[Any]) -> bool:
    if algebra.to_parts(left) == algebra.to_parts(right):
        return True
    match algebra:
        case SumAlgebra() if is_rounded(algebra):
            return is_near(left, right, *pieces)
        case AverageAlgebra() if is_rounded(algebra):
            return bool(left[0] == right[0]) and is_near(left[1], right[1], *(total for _, total in pieces))
        case RoundedVariance():
            return _is_variance(left, right)
        case RoundedMoments():
            return _is_shape(left, right)
        case RoundedTrend():
            return _is_trend(left, right, pieces)
        case DecayedRateAlgebra() if is_rounded(algebra):
            sums = [each for piece in pieces for each in piece[1:]]
            return bool(left[0] == right[0]) and all(
                is_near(a, b, *sums) for a, b in zip(left[1:], right[1:], strict=True)
            )
        case TopKAlgebra():
            return _is_ranking(algebra, left, right)
    return bool(algebra.present(left) == algebra.present(right))


def _is_variance(left: tuple[int, float, float], right: tuple[int, float, float]) -> bool:
    """By the bound that it states: a part of the sum of squares, of which each side may be off."""
    count, mean, spread = left
    squares = spread + count * mean * mean
    bound = 2 * (count + 2) * float(SPREAD_STEP) * squares
    is_mean_near = abs(mean - right[1]) <= DOUBLES * max(abs(mean), abs(right[1]), (squares / max(count, 1)) ** 0.5)
    return count == right[0] and is_mean_near and abs(spread - right[2]) <= bound


def _is_shape(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """The same for each moment: the powers of values are at most those of the mean and of the distances from it."""
    count, mean, spread = left[:3]
    for power, moment, other in zip((2, 3, 4), left[2:], right[2:], strict=False):
        powers = 2**power * (spread ** (power / 2) + count * abs(mean) ** power)
        if abs(moment - other) > 2 * (count + 2) * float(SHAPE_STEP) * powers:
            return False
    size = max(abs(mean), abs(right[1]), (spread / max(count, 1)) ** 0.5)
    return bool(count == right[0] and abs(mean - right[1]) <= DOUBLES * size)


def _is_trend(left: tuple[Any, ...], right: tuple[Any, ...], pieces: Sequence[Any]) -> bool:
    """The same events, and products that are near as sums of doubles are; a distance of times is about a day."""
    sizes = [DAY_MS * count * mean for count, *_, mean, _ in (left, right, *pieces)]
    is_mean_near = is_near(left[3], right[3], *(piece[3] for piece in pieces))
    return left[:3] == right[:3] and is_mean_near and is_near(left[4], right[4], *sizes)


def _is_ranking(algebra: TopKAlgebra, left: Any, right: Any) -> bool:
    """The same counts; where values had to give way, off by at most what both state together."""
    (count, table), (other_count, other) = left, right
    if count != other_count:
        return False
    if max(len(table.counts), len(other.counts)) < algebra.table.capacity and not table.offset and not other.offset:
        return bool(table.counts == other.counts)
    most = 2 * -(-count // algebra.room.items)
    values = table.counts.keys() | other.counts.keys()
    return all(
        abs(table.counts.get(value, 0) + table.offset - other.counts.get(value, 0) - other.offset) <= most
        for value in values
    )
