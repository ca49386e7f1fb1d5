"""Read the speed views of a source: what a query adds to a batch view, and how far the speed layer is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hand_off.lag import KafkaEnd, Lag, lag
from hand_off.speed_views.layout import (
    VIEW_HASH,
    Announced,
    Group,
    RedisSnapshot,
    State,
    cut_of,
    cut_text,
    generations_of,
    meta_of,
    totals_of,
)
from hand_off.speed_views.scripts import Outcome, Scripts
from master_dataset.cut import Cut, count_between
from views.keys import has_long_text

CLOCK_SKEW_MS = 1_000
"""How far a time may be ahead of the clock and still count as now."""


class Ranked(NamedTuple):
    """Besides the named keys, in each bucket the `depth` keys with the largest numbers; `rank` says which, from 1.

    The first `whole` named keys come with their states, all other keys with the headers of theirs.
    """

    rank: int
    depth: int
    whole: int


class StateRange(NamedTuple):
    """What a reader asks for: the buckets of a view in [begin, end), seconds since 1970.

    Of these, the keys that begin with `beginning`, or exactly `keys`. `heads`: only the header of each state.
    `ranked`: only the keys that can come first.
    """

    view: str
    begin: int = -(2**40)
    end: int = 2**40
    keys: Sequence[bytes] | None = None
    beginning: bytes = b""
    heads: bool = False
    ranked: Ranked | None = None


@dataclass(frozen=True)
class SpeedAnswer:
    """What a reader adds to the batch views of its run, for each range that it asked for.

    States may name a group once for each generation. `lag` is None where the writer has not reported it yet.
    """

    outcome: Outcome
    applied: Cut
    published: int
    lag: Lag | None = None
    made: str = ""
    problem: str = ""
    """Why the writer cannot go on; empty where it can."""
    ranges: tuple[list[State], ...] = ()
    rests: tuple[float, ...] = ()
    """For each `ranked` range: the most that a key outside its states can have. -1: unknown."""
    lasts: tuple[tuple[bytes, ...], ...] = ()
    """For each `ranked` range: keys that come before any key outside its states that has that most."""

    @property
    def states(self) -> list[State]:
        """The states of all ranges."""
        return [state for states in self.ranges for state in states]


class ReadLimits(NamedTuple):
    """How much one call reads at the most."""

    buckets: int
    states: int
    bytes: int


class SpeedReader:
    """Reads the speed views of one source; changes nothing."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts, self._client, self._layout = scripts, scripts.client, scripts.layout

    def snapshot(self) -> RedisSnapshot:
        """Epoch, meta and generations at one moment."""
        epoch, meta, generations = self._scripts.call("snapshot")
        return RedisSnapshot(epoch.decode() if epoch else None, meta_of(meta, generations), generations_of(generations))

    def answer(
        self,
        run: int,
        cut: Cut,
        ranges: Sequence[StateRange],
        *,
        max_buckets: int = 100_000,
        max_states: int = 10_000_000,
        max_bytes: int = 2**40,
    ) -> SpeedAnswer:
        """The states since the cut of a run, of one or several views, all of one moment.

        TOO MANY where all ranges together, generation by generation, have more buckets, states or (about) bytes.
        """
        limits = ReadLimits(max_buckets, max_states, max_bytes)
        return self.answer_from(self._scripts.call("answer", *self._arguments(run, cut, ranges, limits)))

    def encoded_answer(self, run: int, cut: Cut, ranges: Sequence[StateRange], limits: ReadLimits) -> bytes:
        """The call of `answer` as Redis reads it; `answer_from` reads its reply."""
        return self._scripts.encoded("answer", *self._arguments(run, cut, ranges, limits))

    def _arguments(self, run: int, cut: Cut, ranges: Sequence[StateRange], limits: ReadLimits) -> list[Any]:
        arguments: list[Any] = [run, cut_text(cut), self._layout.data_prefix, *limits]
        for asked in ranges:
            keys = [-1] if asked.keys is None else [len(asked.keys), *asked.keys]
            mode = ":".join(map(str, asked.ranked)) if asked.ranked else int(asked.heads)
            arguments += [asked.view[:VIEW_HASH], asked.begin, asked.end, asked.beginning, mode, *keys]
        return arguments

    def answer_from(self, reply: Sequence[Any]) -> SpeedAnswer:
        """What the script replied."""
        outcome, *reply = reply
        if outcome == b"LOST":
            return SpeedAnswer(Outcome.LOST, {}, 0)
        found, states = answer_of(outcome, *reply[:5]), reply[5:]
        if not states:
            return found
        ranges, rests, lasts = states
        return replace(
            found, ranges=tuple(map(_states, ranges)), rests=tuple(map(float, rests)), lasts=tuple(map(tuple, lasts))
        )

    def living_writer(self) -> str | None:
        """The token of the writer whose heartbeat is still valid.

        A heartbeat that would be valid for longer than its writer asked was written under another clock: Redis stores
        when a key expires, and its clock was set back since. A writer that lives repeats its heartbeat soon.
        """
        # Two reads and no transaction: a Redis whose memory is full refuses transactions, even those that only read.
        with self._client.pipeline(transaction=False) as pipe:
            pipe.get(self._layout.alive)
            pipe.pttl(self._layout.alive)
            reply, left_ms = pipe.execute()
        token, _, max_ms = (reply or b"").decode().partition(" ")
        return token if token and left_ms <= int(max_ms or 0) else None

    def is_overtaken(self) -> bool:
        """Whether a run has announced that it is going to overtake the writer."""
        return self._client.get(self._layout.overtaking) in (Announced.FORECAST, Announced.BY_RUN)

    def events_to_come(self) -> int | None:
        """About how many events an import has yet to send, as it says; None where no import is at work."""
        reply: Any = self._client.get(self._layout.loading)
        return None if reply is None else int(reply.decode().rpartition(" ")[2])

    def kafka_end(self) -> Cut | None:
        """Where Kafka ended when the writer last reported it; None where it never did."""
        reply: Any = self._client.hget(self._layout.looked, "end")
        return None if reply is None else cut_of(reply)

    def read_states(self, gid: str, groups: Sequence[Group]) -> list[bytes | None]:
        """The states of these groups now; None where a group has none."""
        by_bucket: dict[tuple[str, int], list[int]] = {}
        for number, group in enumerate(groups):
            by_bucket.setdefault((group.view, group.bucket), []).append(number)
        with self._client.pipeline(transaction=False) as pipe:
            for (view, bucket), numbers in by_bucket.items():
                pipe.hmget(self._layout.data(gid, view, bucket), [groups[number].key for number in numbers])
            replies = pipe.execute()
        states: list[bytes | None] = [None] * len(groups)
        for numbers, of_bucket in zip(by_bucket.values(), replies, strict=True):
            for number, state in zip(numbers, of_bucket, strict=True):
                states[number] = state
        return states

    def seen_ids(self) -> Iterator[tuple[str, bytes]]:
        """All seen ids, by the names they were written under."""
        for name, hashes in self._client.hscan_iter(self._layout.seen, count=100):
            yield name.decode(), hashes

    def bucket_sizes(self, gid: str, view: str) -> dict[int, int]:
        """How many states each bucket of a view (or of its totals) has in a generation."""
        buckets = self._buckets(gid, view)
        with self._client.pipeline(transaction=False) as pipe:
            for bucket in buckets:
                pipe.hlen(self._layout.data(gid, view, bucket))
            return dict(zip(buckets, pipe.execute(), strict=True))

    def bucket_range(self, gids: Iterable[str], view: str) -> tuple[int, int] | None:
        """The first and the last bucket of a view that have states in these generations; None where none has."""
        with self._client.pipeline(transaction=False) as pipe:
            for gid in gids:
                for end in (0, -1):
                    pipe.zrange(self._layout.buckets(gid, view), end, end)
            buckets = [int(bucket) for reply in pipe.execute() for bucket in reply]
        return (min(buckets), max(buckets)) if buckets else None

    def states_of(self, gid: str, view: str, bucket: int) -> Iterator[tuple[bytes, bytes]]:
        """Key and state of each group of a bucket, some at a time; of one moment only if nobody writes there."""
        yield from self._client.hscan_iter(self._layout.data(gid, view, bucket), count=500)

    def has_long_keys(self) -> bool:
        """Whether states have keys that are stored in short form now. Reads all of them unless a newer writer wrote."""
        if self._client.hexists(self._layout.meta, "short_keys"):
            return False
        return any(
            has_long_text(key)
            for gid in self.known_generations()
            for view, bucket in self.all_buckets(gid)
            for key, _ in self.states_of(gid, view, bucket)
        )

    def size(self) -> tuple[int, int]:
        """How many states there are, and about how many bytes they take in Redis, as the writer counted them."""
        return sum(map(sum, self.counts().values())), self.state_bytes()

    def counts(self) -> dict[str, list[int]]:
        """How many states each bucket of each view (and of its totals) has, in all generations."""
        found: dict[str, list[int]] = {}
        for gid in self.known_generations():
            buckets = list(self.all_buckets(gid))
            with self._client.pipeline(transaction=False) as pipe:
                for view, bucket in buckets:
                    pipe.hlen(self._layout.data(gid, view, bucket))
                for (view, _), count in zip(buckets, pipe.execute(), strict=True):
                    found.setdefault(view, []).append(count)
        return found

    def state_bytes(self) -> int:
        """About how many bytes of Redis the states of all generations take. One read."""
        reply: Any = self._client.hgetall(self._layout.meta)
        return sum(max(int(value), 0) for name, value in reply.items() if name.startswith(b"bytes:"))

    def known_generations(self) -> dict[str, tuple[str, ...]]:
        """Every generation whose states are not all swept -> its views."""
        reply: Any = self._client.hgetall(self._layout.known)
        return {gid.decode(): tuple(views.decode().split()) for gid, views in reply.items()}

    def all_buckets(self, gid: str, last: int = -1) -> Iterator[tuple[str, int]]:
        """(view, bucket) of every bucket of a generation, of each view up to the number `last`."""
        views = self.known_generations().get(gid, ())
        for view in (*views, *map(totals_of, views)):
            yield from ((view, bucket) for bucket in self._buckets(gid, view, last))

    def _buckets(self, gid: str, view: str, last: int = -1) -> list[int]:
        reply: Any = self._client.zrange(self._layout.buckets(gid, view), 0, last)
        return [int(bucket) for bucket in reply]


def answer_of(
    outcome: bytes, applied: bytes, published: bytes, now_ms: int, reported: Sequence[Any], made: bytes | None
) -> SpeedAnswer:
    """What the scripts for readers return before the states."""
    cut = cut_of(applied)
    return SpeedAnswer(
        Outcome(outcome.decode()), cut, int(published), _lag(cut, now_ms, *reported[:4]), (made or b"").decode(),
        (reported[4] or b"").decode(),
    )  # fmt: skip


def _states(flat: Sequence[Any]) -> list[State]:
    return [
        (bucket, key, state)
        for bucket, rows in zip(map(int, flat[::2]), flat[1::2], strict=True)
        for key, state in zip(rows[::2], rows[1::2], strict=True)
    ]


def _lag(
    applied: Cut, now_ms: int, end: bytes | None, at: bytes | None, then: bytes | None, then_at: bytes | None
) -> Lag | None:
    if end is None or then is None:
        return None
    age_s, then_age_s = (_age_s(now_ms, int(ms)) if ms else None for ms in (at, then_at))
    if age_s is None:
        return Lag(count_between(applied, cut_of(end)), None)
    return lag(applied, KafkaEnd(cut_of(end), age_s, cut_of(then), then_age_s))


def _age_s(now_ms: int, at_ms: int) -> float | None:
    """None of a time in the future: the clock was ahead when it was written, and was set back since."""
    return max(now_ms - at_ms, 0) / 1000 if at_ms <= now_ms + CLOCK_SKEW_MS else None
