"""The scenarios that are explored: the events, the catalogs of the runs, and which faults may happen."""

from __future__ import annotations

from typing import NamedTuple

from hand_off.model.world import Catalog, Invalid


class Scenario(NamedTuple):
    """What is there, and which faults may happen."""

    name: str
    events: tuple[tuple[tuple[str, str], ...], ...]  # per partition ((event id, payload), ...)
    catalogs: tuple[Catalog, ...]  # catalog of run 0 (genesis), 1, 2, ...
    losses: int = 0  # Redis falls back to `saved` (empty: flush)
    saves: int = 0  # how often Redis reaches its disk
    takeovers: int = 0
    overtakes: int = 0
    writers: int = 2
    adopts: int = 0  # how often a run goes on with the generation of another
    lost_reply: bool = False  # the reply of apply may be lost
    lean: bool = False  # fenced writers exit at once (others: full zombies)
    rebases: int = 0
    later: tuple[tuple[tuple[str, str], ...], ...] = ((), ())  # the records of the new Kafka
    invalid: Invalid = ()  # what a version of the source finds invalid; a catalog of another version is a switch


OLD: Catalog = (("v", 1),)
NEW: Catalog = (("v", 2), ("w", 1))
SECOND: Catalog = (("v", 2), ("w", 2))  # of version 2 of the source
SAME = ((("a", "a"), ("a", "A")), (("c", "c"),))  # one home partition
LONG = ((("a", "a"), ("b", "b"), ("a", "A")), (("c", "c"),))
CROSS = ((("a", "a"), ("b", "b")), (("a", "a"),))  # equal payloads
SHORT = ((("a", "a"),), (("c", "c"),))
LATER = ((("a", "a"), ("d", "d")), ())  # a new Kafka: a duplicate of an old event, and another
CROSS5 = ((("a", "a"), ("b", "b"), ("a", "a")), (("c", "c"), ("a", "a")))

AGAIN: Invalid = ((1, (0, 0)),)  # version 1 counts the duplicate, version 2 the first event
NO_MORE: Invalid = ((2, (0, 0)),)  # the other way round

SCENARIOS = (
    Scenario("hand-off, lost replies", SAME, (OLD, NEW), lost_reply=True),
    Scenario("flush", SAME, (OLD, NEW), losses=1),
    Scenario("takeover", SAME, (OLD, NEW), takeovers=1),
    Scenario("takeover and flush", CROSS, (OLD, NEW), losses=1, takeovers=1),
    Scenario("two runs, new views", SAME, (OLD, OLD, NEW), lean=True),
    Scenario("two runs, flush", CROSS, (OLD, OLD, NEW), losses=1, lean=True),
    Scenario("two runs, takeover", SAME, (OLD, OLD, NEW), takeovers=1, lean=True),
    Scenario("five events, flush", CROSS5, (OLD, NEW), losses=1, lean=True),
    Scenario("rollback and takeover, one writer", SAME, (OLD, NEW), losses=1, saves=1, takeovers=1, writers=1),
    Scenario("rollback: Redis loses its last second", CROSS, (OLD, NEW), losses=1, saves=1),
    Scenario("adopt", SAME, (OLD, OLD, OLD), adopts=1, lean=True),
    Scenario("adopt, new views", SAME, (OLD, OLD, NEW), adopts=1, lean=True, writers=1),
    Scenario("adopt and flush", CROSS, (OLD, NEW, NEW), losses=1, adopts=1, lean=True, writers=1),
    Scenario("adopt and rollback", SAME, (OLD, NEW, NEW), losses=1, saves=1, adopts=1, writers=1),
    Scenario("adopt beside takeover", SAME, (OLD, NEW, NEW), takeovers=1, adopts=1, lean=True, writers=1),
    Scenario("overtake", SAME, (OLD, NEW), overtakes=1, lost_reply=True),
    Scenario("overtake and flush", CROSS, (OLD, NEW), losses=1, overtakes=1),
    Scenario("overtake beside a run", SAME, (OLD, OLD, NEW), overtakes=1, lean=True),
    Scenario("overtake and rollback, one writer", SAME, (OLD, NEW), losses=1, saves=1, overtakes=1, writers=1),
    Scenario("rebase", SHORT, (OLD, NEW), rebases=1, later=LATER),
    Scenario("rebase between two runs", SHORT, (OLD, OLD, NEW), rebases=1, later=LATER, lean=True, writers=1),
    Scenario("rebase and flush", SHORT, (OLD, NEW), losses=1, rebases=1, later=LATER, lean=True),
    Scenario("rebase and rollback", SHORT, (OLD, NEW), losses=1, saves=1, rebases=1, later=LATER, writers=1),
    Scenario("overtake beside takeover", SAME, (OLD, OLD, NEW), takeovers=1, overtakes=1, lean=True, writers=1),
    Scenario("overtake beside adopt", SAME, (OLD, NEW, NEW), overtakes=1, adopts=1, lean=True, writers=1),
    Scenario("switch", SAME, (OLD, SECOND), invalid=AGAIN, lost_reply=True),
    Scenario("switch, records become invalid", SAME, (OLD, SECOND), invalid=NO_MORE),
    Scenario("switch and flush", CROSS, (OLD, SECOND), losses=1, invalid=AGAIN, lean=True),
    Scenario("switch after a run", SAME, (OLD, OLD, SECOND), invalid=AGAIN, lean=True, writers=1),
    Scenario("switch and back", SAME, (OLD, SECOND, OLD), invalid=AGAIN, lean=True, writers=1),
    Scenario("switch and rollback, one writer", SAME, (OLD, SECOND), losses=1, saves=1, invalid=AGAIN, writers=1),
)

# only with --full, which also keeps full zombies in every scenario (minutes)
EXTRA = (
    Scenario("three runs, flush", SAME, (OLD, OLD, NEW, NEW), losses=1, writers=1),
    Scenario("rollback and takeover", SAME, (OLD, NEW), losses=1, saves=1, takeovers=1),
)
