"""The change log: which groups a micro-batch changed, written together with it for those who follow changes.

    tidemark:{web}:touched      a stream, the newest micro-batches: from (cut), to (cut), groups

The log and each entry are bounded. A follower goes on at the entry that begins where it stands. If that entry is gone,
or a micro-batch changed more than fits into an entry, the follower learns so, and reads everything recent instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from hand_off.speed_views import CHANGE_LOG, VIEW_HASH, Group, cut_of, cut_text
from master_dataset.cut import Cut
from views.keys import unpack_key

if TYPE_CHECKING:
    from redis import Redis

MAX_ENTRIES = 512
MAX_BYTES = 32_768
"""Of one entry: at most 16 MB of Redis for the whole log of a source."""

Keys = frozenset[tuple[Any, ...]] | None
"""Values of keys; None: any key."""
Buckets = dict[int, Keys]
"""Beginning of a bucket in seconds since 1970 -> which keys of it."""


class Changes(NamedTuple):
    """What changed up to a cut. `views`: shortened definition hash -> its buckets; None: anything may have changed."""

    cut: Cut
    views: Mapping[str, Buckets] | None
    entry_id: bytes = b"0"
    """Of the last entry in the stream."""

    def of(self, view_hash: str) -> Buckets | None:
        """The buckets of a view; None where anything of it may have changed."""
        return None if self.views is None else self.views.get(view_hash[:VIEW_HASH])


def entry_of(groups: Iterable[Group], hashes: Iterable[str]) -> bytes:
    """The entry of a micro-batch for the views that are followed (by definition hash); empty where none is."""
    views: dict[str, dict[str, list[str]]] = {view_hash[:VIEW_HASH]: {} for view_hash in hashes}
    if not views:
        return b""
    for group in groups:
        buckets = views.get(group.view[:VIEW_HASH])
        if buckets is not None:
            buckets.setdefault(str(group.bucket), []).append(group.key.hex())
    entry = orjson.dumps(views)
    if len(entry) > MAX_BYTES:
        entry = orjson.dumps({view: dict.fromkeys(buckets) for view, buckets in views.items()})
    return entry if len(entry) <= MAX_BYTES else orjson.dumps({})


def read_since(client: Redis, prefix: str, cut: Cut, entry_id: bytes, wait_s: float) -> Changes | None:
    """Wait for what micro-batches changed since a cut; None where nothing came. `entry_id`: the last entry read.

    Where all new entries end at or before the cut, the result has that cut and no changes, and its entry id is where
    to read on: reading again from the same id would return the same entries at once.
    """
    reply: Any = client.xread({prefix + CHANGE_LOG: entry_id}, count=MAX_ENTRIES, block=max(int(wait_s * 1000), 1))
    if not reply:
        return None
    return _joined(entries_of(reply), cut)


def entries_of(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries in the reply of XREAD for one stream, in either version of the protocol."""
    if not reply:
        return []
    entries: Any = reply[0][1] if isinstance(reply, list) else next(iter(reply.values()))[0]
    return list(entries)


def _joined(entries: list[tuple[bytes, dict[bytes, bytes]]], cut: Cut) -> Changes:
    """Several entries as one, without those that end at or before the cut. With a gap, anything may have changed."""
    at, is_whole = cut_text(cut), True
    views: dict[str, Buckets] = {}
    in_all: set[str] | None = None
    last = entries[-1]
    starts = [number for number, (_, fields) in enumerate(entries) if fields[b"from"].decode() == at]
    if not starts:
        is_known = last[1][b"to"].decode() == at
        return Changes(cut_of(last[1][b"to"]), {} if is_known else None, last[0])
    for _, fields in entries[starts[-1] :]:
        is_whole = is_whole and fields[b"from"].decode() == at
        at = fields[b"to"].decode()
        entry = orjson.loads(fields[b"groups"])
        in_all = set(entry) if in_all is None else in_all & set(entry)
        for view, buckets in entry.items():
            ours = views.setdefault(view, {})
            for bucket, keys in buckets.items():
                ours[int(bucket)] = _both(ours.get(int(bucket), frozenset()), keys)
    known = {view: buckets for view, buckets in views.items() if view in (in_all or ())}
    return Changes(cut_of(last[1][b"to"]), known if is_whole else None, last[0])


def _both(known: Keys, more: list[str] | None) -> Keys:
    if known is None or more is None:
        return None
    return known | {unpack_key(bytes.fromhex(key)) for key in more}
