"""The search for known hashes: in slices, it finds what a search in one go finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_layer import duplicates_in_memory

HASHES = st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1), max_size=30)


@pytest.mark.parametrize("size", [1, 3, 1_000])
@given(values=HASHES, wanted=HASHES.filter(bool))
def test_hashes_are_found_in_slices_of_any_size(size: int, values: list[int], wanted: list[int]) -> None:
    old, new = np.array(values, np.int64), np.array(wanted, np.int64)
    patch = pytest.MonkeyPatch()
    patch.setattr(duplicates_in_memory, "SLICE", size)
    found = duplicates_in_memory._places(old, np.sort(new))
    patch.undo()
    assert found.tolist() == np.flatnonzero(np.isin(old, new)).tolist()
