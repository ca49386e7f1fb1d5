"""Packed states of many groups as columns of their parts, and back: numpy does what `views.states` does one by one.

[01 "3 12.5 2" 0a ..]      3      12.5     ..
[01 "1 - 2" 0a ..]    <->  1      null     ..
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from views.states import NOTHING, VERSION, split

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPACE, LINE_END = ord(" "), ord("\n")
WORTH_COLUMNS = 32
"""Fewer states than this are split sooner one by one."""


def split_states(kinds: str, states: pa.Array) -> list[pa.Array]:
    """The parts of packed states: for each of the kinds a column, of texts or of blobs; null is nothing.

    StateError where one of them is no state with such parts.
    """
    if not len(states):
        return [pa.array([], _type_of(kind)) for kind in kinds]
    columns = _split(kinds, states) if len(states) >= WORTH_COLUMNS else None
    return columns if columns is not None else _split_one_by_one(kinds, states)


def join_states(kinds: str, columns: Sequence[pa.Array]) -> pa.Array:
    """The inverse of `split_states`."""
    words, blobs = [], []
    for kind, column in zip(kinds, columns, strict=True):
        if kind == "t":
            words.append(column)
        else:
            words.append(pc.binary_length(column).cast(pa.string()))
            blobs.append(pc.fill_null(column, b""))
    filled = [pc.fill_null(word, NOTHING) for word in words]
    header = pc.binary_join_element_wise(*filled, " ").cast(pa.binary())
    return pc.binary_join_element_wise(pa.scalar(VERSION), header, pa.scalar(b"\n"), *blobs, b"")


def bytes_of(column: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of all texts or blobs one after the other, and where each begins, with the end of the last."""
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    if data is None or places[0] == places[-1]:
        return np.zeros(0, np.uint8), places - places[0]
    return np.frombuffer(data, np.uint8)[places[0] : places[-1]], places - places[0]


def gather(data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Pieces of `data`, one after the other."""
    return data[places_of(starts, sizes)]


def places_of(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Where the bytes of pieces are: each from its start on."""
    ends = np.cumsum(sizes)
    places = np.repeat((starts - ends + sizes).astype(np.int32), sizes)  # Arrow's own columns end at 2 GiB too
    places += np.arange(len(places), dtype=np.int32)
    return places


def blobs_of(data: NDArray[np.uint8], sizes: NDArray[np.int64], mask: NDArray[np.bool_] | None = None) -> pa.Array:
    """Bytes that stand one after the other as a column of blobs; null where `mask` says so."""
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    is_there = None if mask is None or not mask.any() else pa.array(~mask).buffers()[1]
    return pa.Array.from_buffers(
        pa.binary(), len(sizes), [is_there, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _type_of(kind: str) -> pa.DataType:
    return pa.string() if kind == "t" else pa.binary()


def _split(kinds: str, states: pa.Array) -> list[pa.Array] | None:
    """None where a state is not as expected; then one looks at each by itself."""
    if states.null_count:
        return None
    data, places = bytes_of(states)
    starts, ends = places[:-1], places[1:]
    if (starts >= ends).any() or (data[starts] != VERSION[0]).any():
        return None
    line_ends = _first_at(np.flatnonzero(data == LINE_END), starts)
    if line_ends is None or (line_ends >= ends).any():
        return None
    words = _words(data, starts + 1, line_ends, len(kinds))
    if words is None:
        return None
    columns: list[pa.Array] = []
    at = line_ends + 1
    for kind, (word, is_nothing) in zip(kinds, words, strict=True):
        if kind == "t":
            columns.append(word)
            continue
        sizes = whole_numbers(word)
        if sizes is None or (sizes < 0).any() or (at + sizes > ends).any():
            return None
        columns.append(blobs_of(gather(data, at, sizes), sizes, is_nothing))
        at = at + sizes
    return columns if (at == ends).all() else None


def _first_at(found: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The first of some places at or after each start; None where there is none."""
    which = np.searchsorted(found, starts)
    return found[which] if not len(which) or which[-1] < len(found) else None


def _words(
    data: NDArray[np.uint8], starts: NDArray[np.int64], line_ends: NDArray[np.int64], count: int
) -> list[tuple[pa.Array, NDArray[np.bool_]]] | None:
    """The words of the headers, and which of them say that there is nothing."""
    sizes = line_ends - starts
    heads = gather(data, starts, sizes)
    if len(heads) and heads.max() > 127:
        return None
    last = np.cumsum(sizes)
    first = last - sizes
    spaces = np.flatnonzero(heads == SPACE)
    if len(spaces) != len(starts) * (count - 1):
        return None
    # Each header has as many spaces as the others, or one of them would have to stand in another header.
    ends = np.column_stack((spaces.reshape(len(starts), count - 1), last))
    begins = np.column_stack((first, ends[:, :-1] + 1))
    if (begins[:, 0] > ends[:, 0]).any() or (ends[:, :-1] >= last[:, None]).any() or (ends < first[:, None]).any():
        return None
    found = []
    for place in range(count):
        begin, size = begins[:, place], ends[:, place] - begins[:, place]
        is_nothing = (size == 1) & (heads[np.minimum(begin, len(heads) - 1)] == ord(NOTHING))
        if (size < 1).any():
            return None
        size = np.where(is_nothing, 0, size)
        found.append((blobs_of(gather(heads, begin, size), size, is_nothing).cast(pa.string()), is_nothing))
    return found


def whole_numbers(column: pa.Array) -> NDArray[np.int64] | None:
    """Texts as whole numbers, null as 0; None where one is no whole number of 64 bits."""
    try:
        found: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    return found


def _split_one_by_one(kinds: str, states: pa.Array) -> list[pa.Array]:
    rows: list[list[Any]] = [split(kinds, state) for state in states.to_pylist()]
    return [pa.array(column, _type_of(kind)) for kind, column in zip(kinds, zip(*rows, strict=True), strict=True)]
