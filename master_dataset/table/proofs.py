"""The proof of a commit: the offsets it holds, how many rows, and the hash of their content.

Each commit of ours carries one, in Delta's `userMetadata`, and the ledger holds a duplicate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import orjson

from master_dataset.cut import Cut, OffsetRange, cut_from_json, cut_to_json

PROOF_VERSION = 1


class Kind:
    """What a commit of ours did."""

    APPEND = "append"  # new records, continuing where the previous commit ended
    REPAIR = "repair"  # records restored: it replaces the commits it names
    COMPACT = "compact"  # the same records in fewer files
    LOST = "lost"  # a person accepted that these offsets are gone
    UNCOMPACT = "uncompact"  # compactions undone: the files they rewrote are live again
    VOID = "void"  # replaces a damaged commit
    REBASE = "rebase"  # from here on another topic, or other bases; the offsets in between are gone
    RETAIN = "retain"  # all records below a cut removed, because they are old

    REPLACING = (COMPACT, RETAIN)  # the kinds whose replaced files are removed from the disk after a time
    COVERING = (APPEND, REPAIR, LOST, REBASE)  # the kinds that define which offsets the table holds
    WITHOUT_ROWS = (LOST, REBASE)  # those of them whose offsets are lost


@dataclass(frozen=True)
class Proof:
    """What a commit claims to hold."""

    kind: str
    topic: str = ""
    topic_id: str = ""
    start: Cut = field(default_factory=dict)
    end: Cut = field(default_factory=dict)
    rows: int = 0
    hash: int = 0  # of the records as Kafka gave them
    parsed_hash: int = 0  # of the columns that were read from them
    invalid: int = 0  # how many of the rows are
    raw_bytes: int = 0  # of their keys, values and headers
    replaces: tuple[int, ...] = ()
    base: Cut = field(default_factory=dict)  # of a rebase and of the appends after it: see kafka/offset_base.py
    # Of a repair alone: offsets that nothing holds any more, whether its rows are others than were promised, and what
    # other files hold of its offsets already.
    lost: tuple[OffsetRange, ...] = ()
    unproved: bool = False
    kept_rows: int = 0
    kept_hash: int = 0
    kept_parsed_hash: int = 0
    # Of a retention alone. It removes the rows in [start, end): all were in Kafka before the day, and the foundation
    # has what the views counted of them.
    day: str = ""
    foundation: str = ""

    def to_json(self) -> str:
        """The text that goes into `userMetadata` and the ledger."""
        value = {
            "tidemark": PROOF_VERSION,
            "kind": self.kind,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "from": cut_to_json(self.start),
            "to": cut_to_json(self.end),
            "rows": self.rows,
            "hash": _hex(self.hash),
            "parsed_hash": _hex(self.parsed_hash),
            "invalid": self.invalid,
            "raw_bytes": self.raw_bytes,
            "replaces": list(self.replaces),
            "lost": [list(each) for each in self.lost],
            "unproved": self.unproved,
            "kept": [self.kept_rows, _hex(self.kept_hash), _hex(self.kept_parsed_hash)],
        }
        if self.base:  # else the text is that of older versions
            value["base"] = cut_to_json(self.base)
        if self.kind == Kind.RETAIN:
            value |= {"day": self.day, "foundation": self.foundation}
        return json.dumps(value, separators=(",", ":"))


_proofs: WeakValueDictionary[str, Proof] = WeakValueDictionary()
"""The proofs in use, by their text: each is parsed at least twice, from its commit and from the ledger."""


def proof_from_json(text: str) -> Proof | None:
    """The inverse of `Proof.to_json`; None for what is not ours. ValueError: one of ours is incomplete."""
    known = _proofs.get(text)
    if known is not None:
        return known
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("tidemark") != PROOF_VERSION:
        return None
    try:
        proof = _proofs[text] = _from_members(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a proof whose members are not what they should be: {error}") from None
    return proof


def _from_members(value: dict[str, Any]) -> Proof:
    kept_rows, kept_hash, kept_parsed_hash = value.get("kept", (0, "0", "0"))
    return Proof(
        kind=value["kind"],
        topic=value["topic"],
        topic_id=value["topic_id"],
        start=cut_from_json(value["from"]),
        end=cut_from_json(value["to"]),
        rows=int(value["rows"]),
        hash=_signed(value["hash"]),
        parsed_hash=_signed(value["parsed_hash"]),
        invalid=int(value["invalid"]),
        raw_bytes=int(value.get("raw_bytes", 0)),
        replaces=tuple(value["replaces"]),
        base=cut_from_json(value.get("base", {})),
        lost=tuple(OffsetRange(*each) for each in value.get("lost", ())),
        unproved=bool(value.get("unproved", False)),
        kept_rows=kept_rows,
        kept_hash=_signed(kept_hash),
        kept_parsed_hash=_signed(kept_parsed_hash),
        day=str(value.get("day", "")),
        foundation=str(value.get("foundation", "")),
    )


def _hex(signed: int) -> str:
    return f"{signed & (2**64 - 1):016x}"


def _signed(text: str) -> int:
    unsigned = int(text, 16)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned
