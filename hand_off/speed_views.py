"""The speed views of a source in Redis: their layout, and each step of the hand-off as one atomic script.

    tidemark:{web}:epoch                        token of whoever may change what is applied
    tidemark:{web}:meta.2                       applied and marked (cuts), published (a run), how far back marks reach,
                                                the topic's id, since which generation they were not made anew;
                                                missing: Redis was lost, or has another layout
    tidemark:{web}:gens                         the generations in order, as JSON; the last one is written
    tidemark:{web}:seen                         name -> marks: 64-bit hashes of the ids of counted events
    tidemark:{web}:gids                         generation -> its views, until its states are swept
    tidemark:{web}:alive                        the token of a writer that lives, and for how many ms it said so
    tidemark:{web}:looked                       Kafka's end when the writer last looked, and when all of it was applied
    tidemark:{web}:touched                      a stream: what the newest micro-batches touched (touched.py)
    tidemark:{web}:v:<gid>:<view>               buckets of a view that have states, by time
    tidemark:{web}:v:<gid>:<view>:<bucket>      key -> state
    tidemark:{web}:v:<gid>:<view>:<bucket>:<n>  its keys by their n-th number (ranks.py)
    tidemark:{web}:v:<gid>:t<view>...           the same for the totals of a view that has keys: one state for a bucket

All keys of a source share a hash tag, so that they lie in one slot of a cluster. The scripts are in lua/; each is one
step of the hand-off (docs/speed.md). Nothing here needs Spark: the batch and the serving layer use it too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hand_off import ranks
from hand_off.lag import Lag, Looked, lag
from master_dataset.cut import Cut, count_between, cut_from_json, cut_to_json

if TYPE_CHECKING:
    from redis import Redis

VIEW_HASH = 16
AHEAD_MS = 1_000
"""By so much a time may be ahead of the clock and be taken for now."""
"""So many characters of a definition hash stand in keys."""
META = "meta.2"
"""With the number of the layout. A Redis that another version filled is one that was lost: it is filled anew."""
TOTALS = "t"
"""What the name of a view's totals begins with. A hash does not."""
TOUCHED = "touched"
ALL_KEYS = b""
"""The key of a total."""
SWEPT_AT_ONCE = 200
MEASURED = 20
"""So many buckets of a generation, and states of a bucket, are measured to tell the size of all."""
SCRIPTS = (
    "start", "look", "init", "load", "apply", "open", "publish", "fence", "takeover", "retire", "sweep", "beat",
    "answer", "forget",
)  # fmt: skip


class Outcome(StrEnum):
    """What a script said."""

    OK = "OK"
    ALREADY = "ALREADY"
    FENCED = "FENCED"
    RESTART = "RESTART"
    LOAD = "LOAD"
    RETRY = "RETRY"
    LOST = "LOST"
    REFUSED = "REFUSED"
    TOO_MANY = "TOO MANY"
    NO_META = "NO META"
    NO_GENERATION = "NO GENERATION"
    OLD = "OLD"
    BEHIND = "BEHIND"
    IN_USE = "IN USE"


class Generation(NamedTuple):
    """The speed states since a cut: `views` are the definition hashes that it computes, `catalog` those of its run."""

    gid: str
    run: int
    start: Cut
    catalog: tuple[str, ...]
    views: tuple[str, ...]


class Meta(NamedTuple):
    """How far the speed views are, and the run that readers may go to."""

    applied: Cut
    marked: Cut
    """Below it, the marks of all events are there that are not older than the horizon."""
    published: int
    horizon_ms: int = 0
    """With which the marks were kept: 0 where they were not."""
    topic_id: str = ""
    """Of which the offsets are."""
    made: str = ""
    """The generation with which they were made from nothing: another one, and nothing of before is in them."""


class Kept(NamedTuple):
    """What Redis keeps of a source at one moment."""

    epoch: str | None
    meta: Meta | None
    generations: tuple[Generation, ...]


class Group(NamedTuple):
    """Where a state is: definition hash, beginning of the bucket in seconds since 1970, bytes of the key."""

    view: str
    bucket: int
    key: bytes


class Ranked(NamedTuple):
    """Beside the keys that are named, in each bucket the `depth` keys with the largest numbers, by the n-th from 1.

    Of the first `whole` keys that are named come the states, of all others their headers alone.
    """

    rank: int
    depth: int
    whole: int


class Stretch(NamedTuple):
    """What a reader asks for: the buckets of a view in [begin, end), seconds since 1970.

    Of these the keys that begin with `beginning`, or just `keys`. `heads`: of each state its header alone. `ranked`: of
    the keys that can come first alone.
    """

    view: str
    begin: int = -(2**40)
    end: int = 2**40
    keys: Sequence[bytes] | None = None
    beginning: bytes = b""
    heads: bool = False
    ranked: Ranked | None = None


State = tuple[int, bytes, bytes]
"""(bucket, key, state)."""


@dataclass(frozen=True)
class Answer:
    """What a reader adds to the batch views of its run, for each stretch that it asked for.

    States may name a group once for each generation. `lag` is None where the writer said nothing of it.
    """

    outcome: Outcome
    applied: Cut
    published: int
    lag: Lag | None = None
    made: str = ""
    stretches: tuple[list[State], ...] = ()
    rests: tuple[float, ...] = ()
    """For each stretch that is `ranked`: what a key that is not among its states has at most. -1: nobody knows."""

    @property
    def states(self) -> list[State]:
        """All together."""
        return [state for stretch in self.stretches for state in stretch]


@dataclass(frozen=True)
class MicroBatch:
    """What one apply writes: absolute states, and the marks of the events that were counted."""

    start: Cut
    end: Cut
    gid: str
    states: Mapping[Group, bytes]
    marks_name: str = ""
    marks: bytes = b""
    horizon_ms: int = 0
    """How far back the marks must reach by which copies were dropped; 0: none were, and there are no marks any more."""
    forget: tuple[str, ...] = ()
    """Names of marks that are older than the horizon."""
    ranks: Mapping[Group, tuple[int, ...]] = field(default_factory=dict)
    """The numbers by which groups are ranked, for all groups of a view or for none (ranks.py)."""
    touched: bytes = b""
    """For those who follow changes (touched.py); nothing where nobody does."""
    touched_kept: int = 0
    """How many such entries are kept."""


class SpeedViews:
    """The speed views of one source. Every method that changes them is one script, atomic in Redis."""

    def __init__(self, client: Redis, source: str) -> None:
        self.client, self.source = client, source
        self.prefix = f"tidemark:{{{source}}}:"
        self._keys = [
            self.prefix + name for name in ("epoch", META, "gens", "seen", "gids", "alive", "looked", TOUCHED)
        ]
        self._scripts = {name: client.register_script(_script(name)) for name in SCRIPTS}

    # ---- the writer ----

    def start(self) -> tuple[str, Kept]:
        """Become the only writer. The first step, before the publish log is read. Returns our token."""
        token = new_id()
        meta, generations = self._run("start", token)
        return token, Kept(token, _meta(meta, generations), _generations(generations))

    def init(self, token: str, run: int, cut: Cut, catalog: Iterable[str], topic_id: str = "") -> Outcome:
        """Make meta after Redis was lost, from the last entry of the publish log."""
        made = _generation_json(run, cut, catalog)
        return Outcome(self._said("init", token, cut_text(cut), run, made, topic_id))

    def load(self, token: str, chunk: int, *, is_last: bool, name: str, marks: bytes, horizon_ms: int) -> Outcome:
        """Marks of events that were counted without them, not older than the horizon, chunk by chunk from 1."""
        return Outcome(self._said("load", token, chunk, int(is_last), name, marks, horizon_ms))

    def read(self, gid: str, groups: Sequence[Group]) -> list[bytes | None]:
        """The states of these groups now."""
        by_bucket: dict[tuple[str, int], list[int]] = {}
        for place, group in enumerate(groups):
            by_bucket.setdefault((group.view, group.bucket), []).append(place)
        with self.client.pipeline(transaction=False) as pipe:
            for (view, bucket), places in by_bucket.items():
                pipe.hmget(self._data(gid, view, bucket), [groups[place].key for place in places])
            answers = pipe.execute()
        found: list[bytes | None] = [None] * len(groups)
        for places, states in zip(by_bucket.values(), answers, strict=True):
            for place, state in zip(places, states, strict=True):
                found[place] = state
        return found

    def apply(self, token: str, batch: MicroBatch) -> Outcome:
        """The states, the marks and the cut of a micro-batch, all or nothing."""
        keys: list[str] = []
        arguments: list[Any] = [token, cut_text(batch.start), cut_text(batch.end), batch.gid]
        arguments += [batch.marks_name, batch.marks, batch.horizon_ms, batch.touched, batch.touched_kept]
        arguments += [len(batch.forget), *batch.forget]
        by_bucket: dict[tuple[str, int], list[Group]] = {}
        for group in batch.states:
            by_bucket.setdefault((group.view, group.bucket), []).append(group)
        for (view, bucket), groups in by_bucket.items():
            keys += [self._buckets(batch.gid, view), self._data(batch.gid, view, bucket)]
            arguments += [bucket, len(groups)]
            for group in groups:
                arguments += [group.key, batch.states[group]]
            numbers = [batch.ranks.get(group, ()) for group in groups]
            arguments.append(len(numbers[0]))
            for of_rank in zip(*numbers, strict=True):
                for group, number in zip(groups, of_rank, strict=True):
                    arguments += [number, group.key]
        return Outcome(self._text(self._scripts["apply"](keys=[*self._keys[:5], self._keys[7], *keys], args=arguments)))

    def marks(self) -> Iterator[tuple[str, bytes]]:
        """All marks that are kept, by their names."""
        for name, marks in self.client.hscan_iter(self._keys[3], count=100):
            yield name.decode(), marks

    def beat(self, token: str, seconds: float, looked: Looked | None = None) -> Outcome:
        """Say that the writer lives, and how far it is; the others see it for so long."""
        said = (
            [cut_text(looked.end), _ms(looked.age_s), cut_text(looked.applied), _ms(looked.applied_age_s)]
            if looked
            else [""] * 4
        )
        return Outcome(self._said("beat", token, int(seconds * 1000), *said))

    def living_writer(self) -> str | None:
        """The token of the writer that last said so, if that is not too long ago.

        One that seems to live for longer than it said did so by another clock: Redis keeps when a key ends, and its
        clock was put right since. Whoever lives says so again in a moment.
        """
        with self.client.pipeline(transaction=True) as pipe:
            pipe.get(self._keys[5])
            pipe.pttl(self._keys[5])
            said, left_ms = pipe.execute()
        token, _, most_ms = (said or b"").decode().partition(" ")
        return token if token and left_ms <= int(most_ms or 0) else None

    # ---- a batch run ----

    def open(self, run: int, catalog: Iterable[str]) -> Cut | None:
        """A new generation at what is applied now, for a run that computes `catalog`. None: there is no meta."""
        found = self._run("open", new_id(), run, _listed(catalog))
        return None if found is None else cut_of(found)

    def publish(self, run: int, cut: Cut) -> Outcome:
        """Let readers go to a run of the publish log. May be repeated by anybody for its last entry."""
        return Outcome(self._said("publish", run, cut_text(cut)))

    def fence(self) -> tuple[str, Cut] | None:
        """The first step of a takeover: nobody writes any more. Our token, and what is applied. None: no meta."""
        token = new_id()
        found = self._run("fence", token)
        return None if found is None else (token, cut_of(found))

    def takeover(self, token: str, run: int, cut: Cut, catalog: Iterable[str]) -> Outcome:
        """The second step, after the durable append: the speed views begin anew at the run's cut."""
        return Outcome(self._said("takeover", token, run, cut_text(cut), _generation_json(run, cut, catalog)))

    def retire(self, first: str) -> int:
        """Drop the generations before this one, none that is still needed. Returns how many went."""
        return int(self._run("retire", first))

    def unswept(self) -> list[str]:
        """Generations that are no longer there, but whose states are."""
        kept = {generation.gid for generation in self.look().generations}
        return [gid for gid in self._known_generations() if gid not in kept]

    def sweep(self, gid: str) -> int:
        """Delete the states of a generation that is no longer there. Returns how many buckets that were."""
        swept = 0
        while True:
            buckets = self._some_buckets(gid)
            keys = [
                key for view, bucket in buckets for key in (self._buckets(gid, view), self._data(gid, view, bucket))
            ]
            is_last = len(buckets) < SWEPT_AT_ONCE
            said = self._scripts["sweep"](
                keys=[*self._keys[:5], *keys], args=[gid, int(is_last), *(bucket for _, bucket in buckets)]
            )
            if self._text(said) != Outcome.OK:
                return swept
            swept += len(buckets)
            if is_last:
                return swept

    def forget(self) -> bool:
        """Let them be made anew from the last published run on. False: Redis held nothing of this source."""
        return bool(self._run("forget"))

    # ---- a reader ----

    def look(self) -> Kept:
        """Epoch, meta and generations, as they are together."""
        epoch, meta, generations = self._run("look")
        return Kept(epoch.decode() if epoch else None, _meta(meta, generations), _generations(generations))

    def answer(
        self,
        run: int,
        cut: Cut,
        stretches: Sequence[Stretch],
        *,
        most_buckets: int = 100_000,
        most_states: int = 10_000_000,
        most_bytes: int = 2**40,
    ) -> Answer:
        """What stands since the cut of a run, of one or several views, all of one moment.

        TOO MANY where that is more buckets, states or (about) bytes of states than wanted, generation by generation,
        all stretches together.
        """
        arguments: list[Any] = [run, cut_text(cut), self.prefix + "v:", most_buckets, most_states, most_bytes]
        for each in stretches:
            keys = [-1] if each.keys is None else [len(each.keys), *each.keys]
            what = ":".join(map(str, each.ranked)) if each.ranked else int(each.heads)
            arguments += [each.view[:VIEW_HASH], each.begin, each.end, each.beginning, what, *keys]
        outcome, *found = self._run("answer", *arguments)
        if outcome == b"LOST":
            return Answer(Outcome.LOST, {}, 0)
        applied, published, now_ms, said, made, *states = found
        applied = cut_of(applied)
        return Answer(
            Outcome(outcome.decode()), applied, int(published), _lag(applied, now_ms, *said), (made or b"").decode(),
            tuple(map(_states, states[0])) if states else (), tuple(map(float, states[1])) if states else (),
        )  # fmt: skip

    def counted_buckets(self, gid: str, view: str) -> dict[int, int]:
        """Of a view (or its totals) in a generation: how many states each bucket has."""
        found: Any = self.client.zrange(self._buckets(gid, view), 0, -1)
        buckets = [int(bucket) for bucket in found]
        with self.client.pipeline(transaction=False) as pipe:
            for bucket in buckets:
                pipe.hlen(self._data(gid, view, bucket))
            return dict(zip(buckets, pipe.execute(), strict=True))

    def states_of(self, gid: str, view: str, bucket: int) -> Iterator[tuple[bytes, bytes]]:
        """Key and state of each group of a bucket, some at a time; of one moment only if nobody writes there."""
        yield from self.client.hscan_iter(self._data(gid, view, bucket), count=500)

    def size(self) -> tuple[int, int]:
        """How many states there are, and about how many bytes of Redis they take: some are measured, for people."""
        states = measured = measured_states = 0
        for gid in self._known_generations():
            keys = [self._data(gid, view, bucket) for view, bucket in self._all_buckets(gid)]
            with self.client.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.hlen(key)
                counts = pipe.execute()
            with self.client.pipeline(transaction=False) as pipe:
                for key in keys[:: max(len(keys) // MEASURED, 1)]:
                    for part in (key, *(f"{key}:{rank}" for rank in range(1, ranks.MOST + 1))):
                        pipe.memory_usage(part, samples=MEASURED)
                measured += sum(filter(None, pipe.execute()))
            measured_states += sum(counts[:: max(len(keys) // MEASURED, 1)])
            states += sum(counts)
        return states, measured * states // measured_states if measured_states else 0

    # ---- inside ----

    def _run(self, name: str, *arguments: Any) -> Any:
        return self._scripts[name](keys=self._keys[:7], args=arguments)

    def _said(self, name: str, *arguments: Any) -> str:
        return self._text(self._run(name, *arguments))

    @staticmethod
    def _text(said: Any) -> str:
        return said.decode() if isinstance(said, bytes) else str(said)

    def _buckets(self, gid: str, view: str) -> str:
        return f"{self.prefix}v:{gid}:{view[:VIEW_HASH]}"

    def _data(self, gid: str, view: str, bucket: int) -> str:
        return f"{self.prefix}v:{gid}:{view[:VIEW_HASH]}:{bucket}"

    def _known_generations(self) -> dict[str, tuple[str, ...]]:
        found: Any = self.client.hgetall(self._keys[4])
        return {gid.decode(): tuple(views.decode().split()) for gid, views in found.items()}

    def _all_buckets(self, gid: str, most: int = -1) -> Iterator[tuple[str, int]]:
        views = self._known_generations().get(gid, ())
        for view in (*views, *map(totals_of, views)):
            found: Any = self.client.zrange(self._buckets(gid, view), 0, most)
            yield from ((view, int(bucket)) for bucket in found)

    def _some_buckets(self, gid: str) -> list[tuple[str, int]]:
        return list(self._all_buckets(gid, SWEPT_AT_ONCE))[:SWEPT_AT_ONCE]


def new_id() -> str:
    """A token or the id of a generation: random, compared for equality only. No counter could outlive Redis."""
    return secrets.token_hex(8)


def totals_of(view: str) -> str:
    """The name of the totals of a view: its states over all keys, which spares readers to merge them."""
    return TOTALS + view[: VIEW_HASH - 1]


def cut_text(cut: Cut) -> str:
    """A cut as Redis keeps it: the same text exactly when it is the same cut."""
    given = {partition: offset for partition, offset in cut.items() if offset}
    return json.dumps(cut_to_json(given), separators=(",", ":"))


def cut_of(text: bytes) -> Cut:
    """The inverse."""
    return cut_from_json(json.loads(text))


def _script(name: str) -> str:
    return Path(__file__).with_name("lua").joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _listed(hashes: Iterable[str]) -> str:
    return " ".join(sorted(hashes))


def _generation_json(run: int, cut: Cut, catalog: Iterable[str]) -> str:
    listed = _listed(catalog)
    return json.dumps({"gid": new_id(), "run": run, "from": cut_text(cut), "catalog": listed, "views": listed})


def _meta(found: Sequence[bytes | None], generations: Sequence[bytes]) -> Meta | None:
    """None where something of it was lost: Redis is then to be filled anew."""
    applied, marked, published, horizon_ms, topic_id, made = found
    if applied is None or marked is None or published is None or not generations:
        return None
    topic, made_by = ((each or b"").decode() for each in (topic_id, made))
    return Meta(cut_of(applied), cut_of(marked), int(published), int(horizon_ms or 0), topic, made_by)


def _generations(found: Iterable[bytes]) -> tuple[Generation, ...]:
    return tuple(
        Generation(
            gid=each["gid"],
            run=int(each["run"]),
            start=cut_from_json(json.loads(each["from"])),
            catalog=tuple(each["catalog"].split()),
            views=tuple(each["views"].split()),
        )
        for each in map(json.loads, found)
    )


def _states(flat: Sequence[Any]) -> list[State]:
    return [
        (bucket, key, state)
        for bucket, rows in zip(map(int, flat[::2]), flat[1::2], strict=True)
        for key, state in zip(rows[::2], rows[1::2], strict=True)
    ]


def _lag(applied: Cut, now_ms: int, end: bytes | None, at: bytes, then: bytes, then_at: bytes) -> Lag | None:
    if end is None:
        return None
    age_s, then_age_s = (_age_s(now_ms, int(ms)) if ms else None for ms in (at, then_at))
    if age_s is None:
        return Lag(count_between(applied, cut_of(end)), None)
    return lag(applied, Looked(cut_of(end), age_s, cut_of(then), then_age_s))


def _age_s(now_ms: int, at_ms: int) -> float | None:
    """None of a time that is yet to come: the clock was ahead when it was told, and put right since."""
    return max(now_ms - at_ms, 0) / 1000 if at_ms <= now_ms + AHEAD_MS else None


def _ms(seconds: float | None) -> int | str:
    return "" if seconds is None else ceil(seconds * 1000)
