"""Where the speed views of a source stand in Redis, and what stands there.

    tidemark:{web}:epoch                        token of whoever may change what is applied
    tidemark:{web}:meta.2                       applied and marked (cuts), published (a run), horizon of the seen ids,
                                                the topic's id, the generation that the speed views were created with,
                                                whether all keys are in short form (views/short_texts.py), and for each
                                                generation about how many bytes its states take;
                                                missing: Redis was lost, or has another layout
    tidemark:{web}:gens                         the generations in order, as JSON; the last one is written
    tidemark:{web}:seen                         name -> seen ids: 64-bit hashes of the ids of counted events
    tidemark:{web}:gids                         generation -> its views, until its states are swept
    tidemark:{web}:alive                        token of the living writer, and for how many ms its heartbeat is valid
    tidemark:{web}:looked                       Kafka's end when the writer last read it, when all of it was applied,
                                                and why the writer cannot go on
    tidemark:{web}:overtaking                   whether a run is going to overtake the writer (`Announced`); it ends by
                                                itself
    tidemark:{web}:loading                      there while an import is sending: its name, and about how many events it
                                                has yet to send; it ends by itself
    tidemark:{web}:touched                      the change log: what the newest micro-batches changed (change_log.py)
    tidemark:{web}:recent                       which keys the newest micro-batches changed, for readers that need
                                                several calls (wide_read.py)
    tidemark:{web}:v:<gid>:<view>               buckets of a view that have states, by time
    tidemark:{web}:v:<gid>:<view>:<bucket>      key -> state
    tidemark:{web}:v:<gid>:<view>:<bucket>:<n>  its keys by their n-th number (ranks.py)
    tidemark:{web}:v:<gid>:t<view>...           the same for the totals of a view that has keys: one state for a bucket

All keys of a source share a hash tag, so they lie in one slot of a cluster.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from master_dataset.cut import Cut, cut_from_json, cut_to_json

VIEW_HASH = 16
"""How many characters of a definition hash stand in keys."""
META = "meta.2"
"""Contains the number of the layout: a Redis that another version filled counts as lost, and is filled again."""
CHANGE_LOG, RECENT = "touched", "recent"
TOTALS = "t"
"""The first letter of the name of a view's totals. No hash begins with it."""
ALL_KEYS = b""
"""The key of a total."""


class Announced:
    """The values of the key `overtaking`."""

    FORECAST = b"1"
    """The scheduler is going to start such a run."""
    BY_RUN = b"run"
    """The run is at work, and says so itself."""
    DECLINED = b"declined"
    """The run that was forecast is an ordinary one."""


class Layout:
    """The names of a source's keys."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.prefix = f"tidemark:{{{source}}}:"
        self.epoch, self.meta, self.generations, self.seen, self.known, self.alive, self.looked = (
            self.prefix + name for name in ("epoch", META, "gens", "seen", "gids", "alive", "looked")
        )
        self.change_log, self.recent = self.prefix + CHANGE_LOG, self.prefix + RECENT

        self.overtaking = self.prefix + "overtaking"
        self.loading = self.prefix + "loading"

    @property
    def data_prefix(self) -> str:
        """What the names of all states begin with."""
        return self.prefix + "v:"

    def buckets(self, gid: str, view: str) -> str:
        """The index of a view's buckets in a generation."""
        return f"{self.data_prefix}{gid}:{view[:VIEW_HASH]}"

    def data(self, gid: str, view: str, bucket: int) -> str:
        """The states of a bucket."""
        return f"{self.buckets(gid, view)}:{bucket}"


class Generation(NamedTuple):
    """The speed states since a cut: `views` are the definition hashes that it computes, `catalog` those of its run."""

    gid: str
    run: int
    start: Cut
    catalog: tuple[str, ...]
    views: tuple[str, ...]


class Meta(NamedTuple):
    """How far the speed views are, and the run that readers may use."""

    applied: Cut
    marked: Cut
    """Seen ids are complete below this cut, back to the horizon."""
    published: int
    horizon_ms: int = 0
    """How far back the seen ids reach; 0 where none were written."""
    topic_id: str = ""
    """The topic that the offsets belong to."""
    made: str = ""
    """The generation that the speed views were created with. If it changes, they were rebuilt from nothing."""


class RedisSnapshot(NamedTuple):
    """What Redis holds of a source at one moment."""

    epoch: str | None
    meta: Meta | None
    generations: tuple[Generation, ...]


class Group(NamedTuple):
    """Which state: definition hash, beginning of the bucket in seconds since 1970, bytes of the key."""

    view: str
    bucket: int
    key: bytes


STATE_BYTES, RANK_BYTES = 80, 110
"""What Redis takes for a state beside key and state, and for each of its ranks beside the key."""


def memory_of(group: Group, state_bytes: int, ranks: int) -> int:
    """About how many bytes of Redis a state takes, with so many ranks."""
    return STATE_BYTES + len(group.key) + state_bytes + ranks * (RANK_BYTES + len(group.key))


State = tuple[int, bytes, bytes]
"""(bucket, key, state)."""


def new_id() -> str:
    """A token or the id of a generation: random, compared for equality only. No counter could outlive Redis."""
    return secrets.token_hex(8)


def totals_of(view: str) -> str:
    """The name of the totals of a view: its states over all keys, so that readers need not merge them."""
    return TOTALS + view[: VIEW_HASH - 1]


def cut_text(cut: Cut) -> str:
    """A cut as Redis stores it: equal cuts are equal texts."""
    nonzero = {partition: offset for partition, offset in cut.items() if offset}
    return json.dumps(cut_to_json(nonzero), separators=(",", ":"))


def cut_of(text: bytes) -> Cut:
    """The cut that `cut_text` wrote."""
    return cut_from_json(json.loads(text))


def catalog_text(hashes: Iterable[str]) -> str:
    """Definition hashes as Redis stores them."""
    return " ".join(sorted(hashes))


def new_generation(run: int, cut: Cut, catalog: Iterable[str]) -> str:
    """The JSON of a generation that computes the views of its own run alone."""
    text = catalog_text(catalog)
    return json.dumps({"gid": new_id(), "run": run, "from": cut_text(cut), "catalog": text, "views": text})


def meta_of(fields: Sequence[bytes | None], generations: Sequence[bytes]) -> Meta | None:
    """Meta as scripts return it. None where a part of it was lost: Redis is then filled again."""
    applied, marked, published, horizon_ms, topic_id, made = fields
    if applied is None or marked is None or published is None or not generations:
        return None
    topic, made_by = ((text or b"").decode() for text in (topic_id, made))
    return Meta(cut_of(applied), cut_of(marked), int(published), int(horizon_ms or 0), topic, made_by)


def generations_of(texts: Iterable[bytes]) -> tuple[Generation, ...]:
    """The generations as scripts return them."""
    return tuple(
        Generation(
            gid=value["gid"],
            run=int(value["run"]),
            start=cut_from_json(json.loads(value["from"])),
            catalog=tuple(value["catalog"].split()),
            views=tuple(value["views"].split()),
        )
        for value in map(json.loads, texts)
    )
