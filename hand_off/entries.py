"""Entries of the publish log, and the objects that hold them: `publish/00000007.json` is entry 7.

Each object has a checksum of itself and a duplicate of the entry before it, so that a damaged entry is restored from
the one after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hand_off.checksums import seal, unseal
from hand_off.errors import BatchError
from hand_off.manifests import Manifest
from infra.formats import reads
from master_dataset.cut import Cut, cut_from_json, cut_to_json

FORMAT = 2
READABLE = frozenset({2})
FOLDER = "publish"
NAME = re.compile(FOLDER + r"/(\d{8,})\.json")


@dataclass(frozen=True)
class Entry:
    """One run of the log: it holds every event below `cut`, for each view of `catalog` (name -> definition hash)."""

    run: int
    cut: Cut
    catalog: dict[str, str]
    at: float = 0.0
    """When it was published, in seconds since 1970."""
    unpin: bool = field(default=False, kw_only=True)
    """Whether it ended a rollback that was in force."""


GENESIS = Entry(0, {}, {})
"""What a log begins with where nobody said otherwise: no events, no views."""


@dataclass(frozen=True)
class Slot:
    """One position of the log, as it was found.

    Without an `entry` it is damaged, unless it `is_lost`: then somebody found out that nothing can restore it.
    """

    number: int
    entry: Entry | None
    before: Entry | None = None
    """What the object says of the entry before it."""
    is_lost: bool = False
    text: bytes = b""

    @property
    def is_damaged(self) -> bool:
        """Whether it has to be rebuilt."""
        return self.entry is None and not self.is_lost


def entry_of(manifest: Manifest) -> Entry:
    """The entry that publishes a run, as its manifest says."""
    catalog = {view.name: view.hash for view in manifest.views}
    return Entry(manifest.run, manifest.cut, catalog, manifest.finished, unpin=manifest.unpin)


def name_of(number: int) -> str:
    """The object of a position: 7 -> `publish/00000007.json`."""
    return f"{FOLDER}/{number:08}.json"


def number_of(name: str) -> int | None:
    """The position of an object; None where it is none of the log."""
    found = NAME.fullmatch(name)
    return int(found[1]) if found else None


def to_text(number: int, entry: Entry | None, before: Entry | None) -> bytes:
    """The content of an object. Without an entry it says that the entry is lost."""
    value: dict[str, Any] = {"format": FORMAT, "n": number}
    value |= {"lost": True} if entry is None else entry_to_json(entry)
    if before is not None:
        value["before"] = entry_to_json(before)
    return seal(value).encode()


def from_text(number: int, text: bytes, where: str) -> Slot:
    """What an object holds. BatchError where another version of Tidemark wrote it."""
    value = unseal(text)
    if value is not None and value.get("format") not in READABLE:
        raise BatchError(
            f"Entry {number} of the publish log in {where} has format {value.get('format')}; {reads(READABLE)}. "
            "Use the version that wrote it."
        )
    if value is None or value.get("n") != number:  # of another position: somebody renamed it
        return Slot(number, None, text=text)
    before = entry_from_json(value["before"]) if "before" in value else None
    is_lost = value.get("lost", False)
    return Slot(number, None if is_lost else entry_from_json(value), before, is_lost, text)


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """The members of an entry."""
    value = {"run": entry.run, "cut": cut_to_json(entry.cut), "catalog": entry.catalog, "at": entry.at}
    return {**value, "unpin": True} if entry.unpin else value


def entry_from_json(value: Mapping[str, Any]) -> Entry:
    """The inverse of `entry_to_json`."""
    return Entry(
        run=int(value["run"]),
        cut=cut_from_json(value["cut"]),
        catalog=dict(value["catalog"]),
        at=float(value["at"]),
        unpin=bool(value.get("unpin", False)),
    )
