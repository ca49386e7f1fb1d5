"""The verdict over curves of simulated time: what may grow is declared, and everything else has to stay flat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import NamedTuple

MIN_POINTS = 3


class Point(NamedTuple):
    """A value at a night. Not everything is measured each night."""

    night: int
    value: float


Curve = Sequence[Point]


class Growth(StrEnum):
    """How a figure may depend on the number of nights."""

    FLAT = "flat"
    """The median of the last third is at most `factor` times that of the first, and `slack`."""
    BOUNDED = "bounded"
    """The highest value of the last third is at most the highest before it, and `slack`: for exact counts."""
    LINEAR = "linear"
    """At most `slope` a night, by the medians of the last two thirds, and `slack`: for what is kept by design."""


@dataclass(frozen=True)
class Declared:
    """What is declared of one curve, and the reason in one sentence."""

    growth: Growth
    why: str
    factor: float = 1.0
    slack: float = 0.0
    slope: float = 0.0

    @property
    def text(self) -> str:
        """For the report."""
        return {
            Growth.FLAT: f"flat: ×{self.factor:g} + {self.slack:g}",
            Growth.BOUNDED: f"bounded: + {self.slack:g}",
            Growth.LINEAR: f"linear: {self.slope:.3g} a night",
        }[self.growth]


class Judged(NamedTuple):
    """A curve, and whether it is as declared."""

    name: str
    declared: Declared
    first: float
    """Of the first third: its median, or the highest value of the first two where the growth is bounded."""
    last: float
    slope: float
    """A night, between the medians of the second and the last third."""
    is_right: bool


def judge(curves: Mapping[str, Curve], declared: Mapping[str, Declared]) -> list[Judged]:
    """Hold each curve against what is declared of it; one of which nothing is declared is wrong."""
    unknown = sorted(set(curves) ^ set(declared))
    if unknown:
        raise ValueError(f"These curves are measured but not declared, or declared but not measured: {unknown}.")
    return [_judged(name, curves[name], each) for name, each in declared.items()]


def _judged(name: str, curve: Curve, declared: Declared) -> Judged:
    if len(curve) < MIN_POINTS:
        raise ValueError(f"Curve {name!r} has {len(curve)} points; {MIN_POINTS} are needed, one for each third.")
    third = len(curve) // 3
    parts = curve[:third], curve[third : len(curve) - third], curve[len(curve) - third :]
    early, middle, late = ([point.value for point in part] for part in parts)
    nights = median(point.night for point in parts[2]) - median(point.night for point in parts[1])
    slope = (median(late) - median(middle)) / nights
    first, last = median(early), median(late)
    match declared.growth:
        case Growth.FLAT:
            is_right = last <= declared.factor * first + declared.slack
        case Growth.BOUNDED:
            first, last = max(*early, *middle), max(late)
            is_right = last <= first + declared.slack
        case Growth.LINEAR:
            is_right = (slope - declared.slope) * nights <= declared.slack
    return Judged(name, declared, first, last, slope, is_right)
