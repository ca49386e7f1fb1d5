"""Which groups a micro-batch touched, left in Redis with the micro-batch itself for those who follow changes.

    tidemark:{web}:touched      a stream, the newest micro-batches: from (cut), to (cut), groups

Its length is bounded, and so is each entry. A follower goes on where the entry begins that it expects; where that is
gone, or a micro-batch touched more than fits, it is told so, and looks at everything of late instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from hand_off.speed_views import TOUCHED, VIEW_HASH, Group, cut_of, cut_text
from master_dataset.cut import Cut
from views.keys import unpack_key

if TYPE_CHECKING:
    from redis import Redis

MOST_ENTRIES = 512
MOST_BYTES = 32_768
"""Of one entry: together at most 16 MB of a source's memory in Redis."""

Keys = frozenset[tuple[Any, ...]] | None
"""Values of keys; None: of any key."""
Buckets = dict[int, Keys]
"""Beginning of a bucket in seconds since 1970 -> which keys of it."""


class Touched(NamedTuple):
    """What was touched up to a cut. `views`: definition hash, in short -> its buckets; None: anything may have been."""

    cut: Cut
    views: Mapping[str, Buckets] | None
    place: bytes = b"0"
    """Of the last entry in the stream."""

    def of(self, view_hash: str) -> Buckets | None:
        """The buckets of a view; None where anything of it may have been touched."""
        return None if self.views is None else self.views.get(view_hash[:VIEW_HASH])


def written(groups: Iterable[Group], hashes: Iterable[str]) -> bytes:
    """The entry of a micro-batch for the views that are followed (by definition hash); nothing where none is."""
    views: dict[str, dict[str, list[str]]] = {each[:VIEW_HASH]: {} for each in hashes}
    if not views:
        return b""
    for group in groups:
        buckets = views.get(group.view[:VIEW_HASH])
        if buckets is not None:
            buckets.setdefault(str(group.bucket), []).append(group.key.hex())
    entry = orjson.dumps(views)
    if len(entry) > MOST_BYTES:
        entry = orjson.dumps({view: dict.fromkeys(buckets) for view, buckets in views.items()})
    return entry if len(entry) <= MOST_BYTES else orjson.dumps({})


def read_since(client: Redis, prefix: str, cut: Cut, place: bytes, wait_s: float) -> Touched | None:
    """What micro-batches touched since a cut, waited for; None where nothing came. `place`: the last entry read.

    Where only entries came that end at or before the cut, it has that cut: nothing was touched since, and the place
    is where to read on. Whoever asked again from the same place would get the same entries at once.
    """
    name = prefix + TOUCHED
    found: Any = client.xread({name: place}, count=MOST_ENTRIES, block=max(int(wait_s * 1000), 1))
    if not found:
        return None
    return _joined(entries_of(found), cut)


def entries_of(found: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """What XREAD gave of its one stream, which the client tells in the way of either protocol."""
    if not found:
        return []
    entries: Any = found[0][1] if isinstance(found, list) else next(iter(found.values()))[0]
    return list(entries)


def _joined(entries: list[tuple[bytes, dict[bytes, bytes]]], cut: Cut) -> Touched:
    """Several entries as one. What ends at or before the cut is left out; where one is missing, anything may be."""
    at, is_whole = cut_text(cut), True
    views: dict[str, Buckets] = {}
    seen: set[str] | None = None
    last = entries[-1]
    starts = [number for number, (_, fields) in enumerate(entries) if fields[b"from"].decode() == at]
    if not starts:
        is_known = last[1][b"to"].decode() == at
        return Touched(cut_of(last[1][b"to"]), {} if is_known else None, last[0])
    for _, fields in entries[starts[-1] :]:
        is_whole = is_whole and fields[b"from"].decode() == at
        at = fields[b"to"].decode()
        entry = orjson.loads(fields[b"groups"])
        seen = set(entry) if seen is None else seen & set(entry)
        for view, buckets in entry.items():
            ours = views.setdefault(view, {})
            for bucket, keys in buckets.items():
                ours[int(bucket)] = _both(ours.get(int(bucket), frozenset()), keys)
    known = {view: buckets for view, buckets in views.items() if view in (seen or ())}
    return Touched(cut_of(last[1][b"to"]), known if is_whole else None, last[0])


def _both(known: Keys, more: list[str] | None) -> Keys:
    if known is None or more is None:
        return None
    return known | {unpack_key(bytes.fromhex(key)) for key in more}
