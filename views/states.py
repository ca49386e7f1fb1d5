"""The byte form of a state: what Spark writes, Delta and Redis keep, and the serving layer merges.

01  |  "3 12.5 40 - 53"  |  0a  |  blob  |  blob
version, a header with one word for each part of each answer (in the order of their names), a line end, the blobs.
The word of a text is the text, that of a blob its length; "-" is nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from views.aggregates.algebra import Algebra, Part
from views.errors import StateError

VERSION = b"\x01"
NOTHING = "-"


def pack(algebras: Mapping[str, Algebra], states: Mapping[str, Any]) -> bytes:
    """The states of a group, by answer -> bytes."""
    words: list[str] = []
    blobs: list[bytes] = []
    for name in sorted(algebras):
        for part in algebras[name].to_parts(states[name]):
            if part is None:
                words.append(NOTHING)
            elif isinstance(part, bytes):
                words.append(str(len(part)))
                blobs.append(part)
            else:
                words.append(part)
    return VERSION + " ".join(words).encode("ascii") + b"\n" + b"".join(blobs)


def unpack(algebras: Mapping[str, Algebra], packed: bytes) -> dict[str, Any]:
    """The inverse. StateError where the bytes are not such a state."""
    if packed[:1] != VERSION:
        raise StateError(
            f"A state begins with version {packed[:1].hex() or 'nothing'}; this Tidemark knows {VERSION.hex()}. "
            "A newer one wrote it, or it is damaged."
        )
    try:
        end = packed.index(b"\n")
        words = packed[1:end].decode("ascii").split(" ")
        return _read(algebras, words, packed, end + 1)
    except StateError:
        raise
    except (ValueError, LookupError, ArithmeticError, RuntimeError, MemoryError, struct.error) as error:
        raise StateError(f"A state of {len(packed)} bytes cannot be read ({error}). Recompute the view.") from error


def _read(algebras: Mapping[str, Algebra], words: Sequence[str], packed: bytes, at: int) -> dict[str, Any]:
    found, next_word = {}, 0
    for name in sorted(algebras):
        parts: list[Part] = []
        for kind in algebras[name].kinds:
            word = words[next_word]
            next_word += 1
            if word == NOTHING:
                parts.append(None)
            elif kind == "t":
                parts.append(word)
            else:
                size = int(word)
                parts.append(packed[at : at + size])
                at += size
        found[name] = algebras[name].from_parts(parts)
    if next_word != len(words) or at != len(packed):
        raise StateError(
            f"A state has {len(words)} words and {len(packed)} bytes, where {next_word} and {at} were expected: "
            "it is damaged, or of another definition of the view."
        )
    return found


def merge(algebras: Mapping[str, Algebra], left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """The states of both sides' events, answer by answer."""
    return {name: algebra.merge(left[name], right[name]) for name, algebra in algebras.items()}


def pack_sql(parts: Sequence[tuple[str, str]]) -> str:
    """The same as `pack`, in Spark: (kind, SQL of the part) in the order of the answers' names -> SQL of the bytes."""
    words = [sql if kind == "t" else f"cast(length({sql}) AS string)" for kind, sql in parts]
    header = ", ".join(f"coalesce({word}, '{NOTHING}')" for word in words)
    blobs = "".join(f", coalesce({sql}, X'')" for kind, sql in parts if kind == "b")
    return f"concat(X'{VERSION.hex()}', cast(concat_ws(' ', {header}) AS binary), X'0A'{blobs})"
