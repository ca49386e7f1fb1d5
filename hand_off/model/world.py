"""What there is at one moment: Redis, the publish log, writers and runs, each as a tuple."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

OVERTAKE = -1
Cut = tuple[int, int]
Location = tuple[int, int]
"""(partition, offset)."""
Definition = tuple[str, int]
"""(view, version). In scenarios whose source has several versions, the version is that of the source."""
Invalid = tuple[tuple[int, Location], ...]
"""(version, location): the records that a version of the source finds invalid."""
Judged = tuple[int, bool]
"""The newest generation when somebody looked, and whether it was of another version of the source."""
Catalog = tuple[Definition, ...]
Payloads = tuple[str, ...]
States = tuple[tuple[Definition, Payloads], ...]
SeenIds = tuple[tuple[str, Location], ...]
Answer = tuple[Cut, dict[Definition, Payloads]]
T = TypeVar("T")


class Gen(NamedTuple):
    """A generation: what the speed layer applied since `frm`."""

    gid: int  # unique for ever
    run: int  # the batch run that opened it
    frm: Cut
    catalog: Catalog  # of that run
    states: States  # of every definition that it computes


class Redis(NamedTuple):
    """All of Redis. `applied is None` means that meta is missing (lost)."""

    epoch: int | None = None
    applied: Cut | None = None
    marked: Cut | None = None  # seen ids are complete below this cut
    gens: tuple[Gen, ...] = ()  # oldest first, the last one is written
    published: int | None = None  # run number
    seen: SeenIds = ()


class LogEntry(NamedTuple):
    """One entry of the durable publish log. Entry 0 is the genesis run."""

    run: int
    cut: Cut
    catalog: Catalog
    content: Payloads


class WriterState(NamedTuple):
    """A process that writes speed views; `pc` is its next step."""

    pc: str = "down"  # down, boot, up, fly (written, half: mutations only)
    token: int | None = None
    base: LogEntry | None = None  # boot: the manifest read
    frm: Cut | None = None  # fly: the micro-batch [frm, to)
    to: Cut | None = None
    gid: int | None = None
    states: States = ()  # merged states to write
    chosen: SeenIds = ()  # events that count


class RunState(NamedTuple):
    """A batch run; `pc` is its next step."""

    pc: str = "new"  # new, open, (compared, with append_unconditional), durable, (looked, with versions), end
    cut: Cut | None = None
    token: int | None = None  # a takeover owns the epoch; OVERTAKE needs none
    content: Payloads = ()
    judged: Judged | None = None  # looked: what it saw of the speed views


class World(NamedTuple):
    """Everything at one moment."""

    redis: Redis
    saved: Redis  # what a Redis restart would bring back
    log: tuple[LogEntry, ...]  # durable publish log, append only
    writers: tuple[WriterState, ...]
    runs: tuple[RunState, ...]
    losses: int  # faults still allowed
    saves: int
    takeovers: int
    overtakes: int
    adopts: int
    shown: Cut  # ghost: cut of the last run shown by Redis
    rebases: int = 0  # still allowed
    rebase: tuple[Cut, Cut] | None = None  # (M, B): Kafka lost all from M on; its new records begin at B
    is_rebased: bool = False  # whether the master table says so
    floor: int = 0  # the first run whose speed views are used
    reported: Cut = (0, 0)  # ghost: the cut of the last answer; zero after Redis was lost


def leq(a: Cut, b: Cut) -> bool:
    """Whether a <= b on each partition."""
    return a[0] <= b[0] and a[1] <= b[1]


def union(*catalogs: Catalog) -> Catalog:
    """All definitions, each once."""
    return tuple(sorted({d for c in catalogs for d in c}))


def given(value: T | None) -> T:
    """A value that is always there at the step that asks for it."""
    if value is None:
        raise TypeError("the model took a step before the step that gives this value")
    return value
