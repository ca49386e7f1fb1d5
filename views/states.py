"""The byte form of a state: what Spark writes, Delta and Redis keep, and the serving layer merges.

01  |  "3 12.5 40 - 53"  |  0a  |  blob  |  blob
version, a header with one word for each part of each answer (in the order of their names), a line end, the blobs.
The word of a text is the text, that of a blob its length; "-" is nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping, Sequence
from typing import Any

from views.aggregates.algebra import Algebra, Part
from views.errors import StateError

VERSION = b"\x01"
NOTHING = "-"
UNREADABLE = (ValueError, LookupError, ArithmeticError, RuntimeError, MemoryError, struct.error)
"""What reading damaged bytes may raise."""


def pack(algebras: Mapping[str, Algebra], states: Mapping[str, Any]) -> bytes:
    """The states of a group, by answer -> bytes."""
    return join([part for name in sorted(algebras) for part in algebras[name].to_parts(states[name])])


def pack_short(algebras: Mapping[str, Algebra], states: Mapping[str, Any]) -> bytes:
    """The same in fewer bytes, for Redis: whatever reads states in Python reads both."""
    return join([part for name in sorted(algebras) for part in algebras[name].to_short_parts(states[name])])


def join(parts: Sequence[Part]) -> bytes:
    """The parts of all answers of a group, in the order of their names -> bytes."""
    words: list[str] = []
    blobs: list[bytes] = []
    for part in parts:
        if part is None:
            words.append(NOTHING)
        elif isinstance(part, bytes):
            words.append(str(len(part)))
            blobs.append(part)
        else:
            words.append(part)
    return VERSION + " ".join(words).encode("ascii") + b"\n" + b"".join(blobs)


def unpack(algebras: Mapping[str, Algebra], packed: bytes) -> dict[str, Any]:
    """The inverse of `pack` and `pack_short`. StateError where the bytes are not such a state."""
    return Reader(algebras).unpack(packed)


class Reader:
    """Reads the states of a view again and again: those of all its answers, or of some."""

    def __init__(self, algebras: Mapping[str, Algebra], names: Container[str] | None = None) -> None:
        self.algebras = {name: algebras[name] for name in sorted(algebras) if names is None or name in names}
        self._kinds, self._steps, at = kinds_of(algebras), [], 0
        for name in sorted(algebras):
            end = at + len(algebras[name].kinds)
            if name in self.algebras:
                self._steps.append((name, slice(at, end), algebras[name].from_parts))
            at = end

    def unpack(self, packed: bytes) -> dict[str, Any]:
        """The states by answer. StateError where the bytes are no state of this view."""
        parts = split(self._kinds, packed)
        try:
            return {name: from_parts(parts[places]) for name, places, from_parts in self._steps}
        except UNREADABLE as error:
            raise _unreadable(packed, error) from error

    def merged(self, packed: Sequence[bytes]) -> dict[str, Any]:
        """The states of all their events, of one or more packed ones."""
        if len(packed) == 1:
            return self.unpack(packed[0])
        every = [self.unpack(each) for each in packed]
        return {name: algebra.merge_all([states[name] for states in every]) for name, algebra in self.algebras.items()}


class HeadReader:
    """Reads one answer from the headers of states alone: one whose state is texts, such as a count or a sum."""

    def __init__(self, algebras: Mapping[str, Algebra], name: str) -> None:
        before = [algebras[each].kinds for each in sorted(algebras) if each < name]
        start, algebra = len("".join(before)), algebras[name]
        if "b" in algebra.kinds:
            raise ValueError(f"The state of {name!r} is not in the header alone.")
        self._places, self._from_parts = slice(start, start + len(algebra.kinds)), algebra.from_parts
        self._count = len(kinds_of(algebras))

    def read(self, head: bytes) -> Any:
        """The state of the answer. StateError where it is no header of this view's."""
        words = head[1:].split(b" ")
        try:
            if head[:1] != VERSION or len(words) != self._count:
                raise ValueError("it is no header of this view")
            parts = [None if word == b"-" else word.decode("ascii") for word in words[self._places]]
            return self._from_parts(parts)
        except UNREADABLE as error:
            raise _unreadable(head, error) from error


def head_of(packed: bytes) -> bytes:
    """The header of a packed state, with its version."""
    return packed.partition(b"\n")[0]


def kinds_of(algebras: Mapping[str, Algebra]) -> str:
    """The kinds of the parts of all answers, in the order of their names: what `split` goes by."""
    return "".join([algebras[name].kinds for name in sorted(algebras)])


def split(kinds: str, packed: bytes) -> list[Part]:
    """The inverse of `join`. StateError where the bytes are no state with such parts."""
    if packed[:1] != VERSION:
        raise StateError(
            f"A state begins with version {packed[:1].hex() or 'nothing'}; this Tidemark knows {VERSION.hex()}. "
            "A newer one wrote it, or it is damaged."
        )
    try:
        end = packed.index(b"\n")
        words = packed[1:end].decode("ascii").split(" ")
        parts: list[Part] = []
        at = end + 1
        for word, kind in zip(words, kinds, strict=False):
            if word == NOTHING:
                parts.append(None)
            elif kind == "t":
                parts.append(word)
            else:
                size = int(word)
                parts.append(packed[at : at + size])
                at += size
    except UNREADABLE as error:
        raise _unreadable(packed, error) from error
    if len(words) != len(kinds) or at != len(packed):
        raise StateError(
            f"A state has {len(words)} words and {len(packed)} bytes, where {len(kinds)} and {at} were expected: "
            "it is damaged, or of another definition of the view."
        )
    return parts


def _unreadable(packed: bytes, error: Exception) -> StateError:
    return StateError(f"A state of {len(packed)} bytes cannot be read ({error}). Recompute the view.")


def merge(algebras: Mapping[str, Algebra], left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """The merged states, answer by answer."""
    return {name: algebra.merge(left[name], right[name]) for name, algebra in algebras.items()}


def merge_parts(algebras: Mapping[str, Algebra], many: Sequence[Sequence[Part]]) -> list[Part]:
    """The parts of many groups, as `split` gives them -> those of all their events; there is at least one group.

    For code that only passes states on: parts are merged as bytes wherever possible.
    """
    merged: list[Part] = []
    columns = list(zip(*many, strict=True))
    for name in sorted(algebras):
        algebra = algebras[name]
        of_algebra = columns[len(merged) : len(merged) + len(algebra.kinds)]
        merged += algebra.merge_parts(of_algebra)
    return merged


def merge_packed(algebras: Mapping[str, Algebra], packed: Sequence[bytes]) -> bytes:
    """The same, from bytes to bytes."""
    kinds = kinds_of(algebras)
    return join(merge_parts(algebras, [split(kinds, state) for state in packed])) if len(packed) > 1 else packed[0]


def pack_sql(parts: Sequence[tuple[str, str]]) -> str:
    """The same as `pack`, in Spark: (kind, SQL of the part) in the order of the answers' names -> SQL of the bytes."""
    words = [sql if kind == "t" else f"cast(length({sql}) AS string)" for kind, sql in parts]
    header = ", ".join(f"coalesce({word}, '{NOTHING}')" for word in words)
    blobs = "".join(f", coalesce({sql}, X'')" for kind, sql in parts if kind == "b")
    return f"concat(X'{VERSION.hex()}', cast(concat_ws(' ', {header}) AS binary), X'0A'{blobs})"
