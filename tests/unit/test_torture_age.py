"""The verdict over ageing curves: what is declared flat, bounded or linear, and what is not."""

from __future__ import annotations

import pytest

from torture.age.verdict import Declared, Growth, judge

FLAT = Declared(Growth.FLAT, "", factor=2, slack=1)
BOUNDED = Declared(Growth.BOUNDED, "", slack=2)
LINEAR = Declared(Growth.LINEAR, "", slope=1)


def is_right(curve: list[float], declared: Declared) -> bool:
    (judged,) = judge({"files": curve}, {"files": declared})
    return judged.is_right


def test_single_slow_night_is_no_growth() -> None:
    assert is_right([1.0] * 29 + [90.0], FLAT)


def test_duration_that_grows_with_the_nights_is_found() -> None:
    assert not is_right([1 + night / 4 for night in range(60)], FLAT)


def test_saw_teeth_are_bounded() -> None:
    assert is_right([float(night % 10) for night in range(60)], BOUNDED)


def test_single_file_a_week_is_found() -> None:
    assert not is_right([night % 10 + float(night // 7) for night in range(60)], BOUNDED)


def test_linear_growth_has_its_declared_slope() -> None:
    assert is_right([float(night) for night in range(60)], LINEAR)
    assert not is_right([1.1 * night for night in range(60)], LINEAR)


def test_quadratic_growth_is_found_though_it_begins_slowly() -> None:
    assert not is_right([night * night / 60 for night in range(60)], LINEAR)


def test_uneven_number_of_nights_has_thirds_too() -> None:
    assert judge({"files": [1, 2, 3, 4]}, {"files": LINEAR})[0].slope == pytest.approx(1.0)


def test_curve_of_which_nothing_is_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="redis"):
        judge({"redis": [1, 2, 3]}, {"files": LINEAR})


def test_too_few_nights_are_refused() -> None:
    with pytest.raises(ValueError, match="thirds"):
        judge({"files": [1, 2]}, {"files": LINEAR})
