"""The executable specification of the hand-off between batch and speed; HANDOFF.md describes it in prose.

The model explores, breadth first, every interleaving of two speed writers (each may be the other's zombie),
overlapping batch runs, takeover, overtake, retire, loss of Redis and any number of readers. Each `Model` method named
`lua_*` is ONE atomic Redis script. Everything between two scripts may be interrupted for ever: that models a crash or a
paused process.

    python -m hand_off.model                  explore all scenarios
    python -m hand_off.model --mutate NAME    break one rule; the model must catch it
    python -m hand_off.model --mutate all     break each rule in turn, one line for each
    python -m hand_off.model --full           without reduction (long)
    python -m hand_off.model --list           names and meaning of the mutations

All simplifications are conservative. The Kafka log is fixed; arrival is the free choice of where a micro-batch ends. A
state is the multiset of event payloads that it counted (the free commutative monoid), so equality with the oracle is
the strictest possible. Readers have no state: after each step the model checks the answer of a reader that holds ANY
durable manifest. The master cut M is a free choice wherever it matters. Tokens and generation ids are unique (UUIDs);
here they are integers renamed to a canonical form. In a trace writer0 is always the writer that owns the epoch, so the
two may swap names when one starts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, product
from typing import NamedTuple, TypeVar

MUTATIONS = {
    # the obvious ones
    "off_by_one_cut": "batch computes offset <= C instead of < C",
    "no_fencing": "no script looks at the epoch",
    "flip_before_verify": "a run is published though its data was not verified",
    "no_gen_check": "apply does not compare the generation id",
    "non_atomic_apply": "states and `applied` are written by two scripts",
    "retire_too_early": "retire keeps only the newest generation",
    "seen_id_without_location": "seen id written before apply, a bare flag without (p, o)",
    "takeover_no_epoch_bump": "takeover does not fence the speed writer",
    # the rules of the first draft, each one a flaw
    "draft_views": "open: views := catalog, definitions still served are dropped",
    "draft_counters": "epoch and generation number are counters kept in Redis",
    "draft_publish": "publish does not check that its generation exists",
    "draft_manifest": "durable manifests unordered, the last written one wins",
    "draft_takeover": "takeover publish does not check that it still owns epoch",
    "draft_init": "creating meta does not check the epoch",
    "draft_retry": "RETRY re-reads states but keeps the old generation's views",
    "draft_setnx": "dedup by SETNX before apply, unfenced, a seen id always counts",
    "seen_id_before_apply": "as draft_setnx, but fenced and void when not below `from`",
    "draft_flush_seen_ids": "seen ids are not reloaded after Redis was lost",
    "draft_takeover_seen_ids": "seen ids are not loaded for what takeover skipped",
    # other mistakes a developer may make
    "no_offset_check": "apply does not compare `applied` with `from`",
    "no_marked_check": "apply does not check that the seen ids are complete",
    "no_wait_for_master": "batch does not wait until M >= C",
    "takeover_behind": "takeover takes M though M < applied",
    "takeover_keeps_gens": "takeover leaves older generations in place",
    "retire_data_first": "retire deletes states before the generation's entry",
    "reader_no_check": "reader sums whatever is there, with or without its own generation",
    "torn_read": "reader reads meta and states in two steps",
    "different_payloads": "duplicates in two partitions differ (producer contract broken)",
    "flip_redis_first": "Redis is flipped before the durable append",
    # adopt: a run goes on with the generation of one that failed
    "adopt_published": "adopt takes over the generation of the published run",
    "adopt_new_views": "adopt does not check that the generation computes the run's views",
    "adopt_keeps_run": "adopt leaves the failed run its generation: both runs have it",
    "append_unconditional": "a run compares with the last entry, and appends later whatever came meanwhile",
    # overtake: a run at the master's end while the writer goes on (a backlog of history)
    "overtake_back": "overtake does not check that the speed layer is not past C",
    "overtake_seen_ids": "seen ids are not loaded for what overtake skipped",
    "overtake_keeps_gens": "overtake leaves older generations in place",
    # rebase: Kafka lost its newest records, and the same source goes on with a new one
    "rebase_at_master": "the new records begin at the master's end, though speed has applied more",
    "rebase_late_floor": "rebase raises the floor only after it has read what is applied",
    "rebase_no_floor": "speed views of runs before the rebase are still used and continued",
}

OVERTAKE = -1
SEEN_BEFORE_APPLY = ("seen_id_without_location", "seen_id_before_apply", "draft_setnx")
Cut = tuple[int, int]
Location = tuple[int, int]
"""(partition, offset)."""
Definition = tuple[str, int]
"""(view, version)."""
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

    pc: str = "new"  # new, open, (compared, with append_unconditional), durable, end
    cut: Cut | None = None
    token: int | None = None  # a takeover owns the epoch; OVERTAKE needs none
    content: Payloads = ()


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


OLD: Catalog = (("v", 1),)
NEW: Catalog = (("v", 2), ("w", 1))
SAME = ((("a", "a"), ("a", "A")), (("c", "c"),))  # one home partition
LONG = ((("a", "a"), ("b", "b"), ("a", "A")), (("c", "c"),))
CROSS = ((("a", "a"), ("b", "b")), (("a", "a"),))  # equal payloads
SHORT = ((("a", "a"),), (("c", "c"),))
LATER = ((("a", "a"), ("d", "d")), ())  # a new Kafka: a duplicate of an old event, and another
CROSS5 = ((("a", "a"), ("b", "b"), ("a", "a")), (("c", "c"), ("a", "a")))

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
)

# only with --full, which also keeps full zombies in every scenario (minutes)
EXTRA = (
    Scenario("three runs, flush", SAME, (OLD, OLD, NEW, NEW), losses=1, writers=1),
    Scenario("rollback and takeover", SAME, (OLD, NEW), losses=1, saves=1, takeovers=1),
)


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


class InvariantBroken(Exception):
    """An invariant does not hold. `trace` is the shortest way there, `states` how many states were explored."""

    trace: list[str]
    states: int


class Model:
    """The protocol over one scenario, with at most one rule broken."""

    def __init__(self, scenario: Scenario, mutation: str | None = None) -> None:
        if mutation == "different_payloads":
            scenario = scenario._replace(
                events=tuple(
                    tuple((i, f"{i}{p}{o}") for o, (i, _) in enumerate(part)) for p, part in enumerate(scenario.events)
                )
            )
        self.sc, self.mut = scenario, mutation
        self.end: Cut = (len(scenario.events[0]), len(scenario.events[1]))
        self.cuts: list[Cut] = list(product(range(self.end[0] + 1), range(self.end[1] + 1)))
        self.checked: set[tuple[Redis, tuple[LogEntry, ...], int]] = set()
        self.rebased: dict[tuple[Cut, Cut], Model] = {}
        self.lost = frozenset[Location]()
        self.begin: Cut = (0, 0)  # below it Kafka has nothing

    def initial(self) -> World:
        """Nobody has started."""
        genesis = LogEntry(0, (0, 0), self.sc.catalogs[0], ())
        return World(
            Redis(),
            Redis(),
            (genesis,),
            (WriterState(),) * self.sc.writers,
            (RunState(),) * (len(self.sc.catalogs) - 1),
            self.sc.losses,
            self.sc.saves,
            self.sc.takeovers,
            self.sc.overtakes,
            self.sc.adopts,
            (0, 0),
            self.sc.rebases,
        )

    def of(self, s: World) -> Model:
        """The protocol over the records that there are in a world: after a rebase, others than before."""
        if s.rebase is None or not s.is_rebased:
            return self
        if s.rebase not in self.rebased:
            m, b = s.rebase
            nothing = ("", "")
            events = tuple((*self.sc.events[p][: m[p]], *(nothing,) * (b[p] - m[p]), *self.sc.later[p]) for p in (0, 1))
            made = Model(self.sc._replace(events=events, later=((), ())), None)
            made.mut, made.begin = self.mut, b
            made.lost = frozenset((p, o) for p in (0, 1) for o in range(m[p], b[p]))
            self.rebased[s.rebase] = made
        return self.rebased[s.rebase]

    # ---- pure functions: the same code in batch, speed and the oracle ------

    def ident(self, pos: Location) -> str:
        """The event id at a location."""
        return self.sc.events[pos[0]][pos[1]][0]

    def first(self, frm: Cut, to: Cut) -> dict[str, Location]:
        """The first event (lowest partition, offset) of each id in [frm, to)."""
        found: dict[str, Location] = {}
        for p in (0, 1):
            for o in range(frm[p], to[p]):
                if (p, o) not in self.lost:
                    found.setdefault(self.ident((p, o)), (p, o))
        return found

    def payloads(self, chosen: Iterable[tuple[str, Location]]) -> Payloads:
        """What chosen events add to a state."""
        return tuple(self.sc.events[p][o][1] for _, (p, o) in chosen)

    def catalog(self, n: int) -> Catalog:
        """The definitions that run n computes."""
        return self.sc.catalogs[min(n, len(self.sc.catalogs) - 1)]

    def oracle(self, cut: Cut) -> Payloads:
        """The true state of any view at a cut."""
        return tuple(sorted(self.payloads(self.first((0, 0), cut).items())))

    def accepted(self, seen_ids: SeenIds, frm: Cut, to: Cut) -> SeenIds:
        """Dedup rule: an event counts iff its id is not among the seen ids, and is the first of its duplicates in the
        micro-batch.
        """
        seen = dict(seen_ids)
        drafts: dict[str, Callable[[Location, Location], bool]] = {
            "draft_setnx": lambda at, pos: at == pos,  # "replay sees itself"
            "seen_id_before_apply": lambda at, pos: at[1] >= frm[at[0]],
        }
        own = drafts.get(self.mut or "")
        return tuple(
            (i, pos)
            for i, pos in self.first(frm, to).items()
            if i not in seen or (own is not None and own(seen[i], pos))
        )

    @staticmethod
    def merge(states: States, delta: Payloads) -> States:
        """Each state with the payloads of a micro-batch."""
        return tuple((d, tuple(sorted(s + delta))) for d, s in states)

    def answer(self, redis: Redis, m: LogEntry, states_of: Redis | None = None) -> Answer | None:
        """What a reader that holds manifest `m` answers, from one atomic read of Redis.

        None: refused, the reader loads the published run.
        """
        if redis.applied is None:
            return None  # degraded: batch only
        at = next((i for i, g in enumerate(redis.gens) if g.run == m.run), None)
        if at is None or redis.gens[at].frm != m.cut:
            if self.mut != "reader_no_check":
                return None
            at = next((i for i, g in enumerate(redis.gens) if leq(m.cut, g.frm)), 0)
        later = {g.gid: dict(g.states) for g in (states_of or redis).gens}
        nothing: dict[Definition, Payloads] = {}
        of_gens = [later.get(g.gid, nothing) for g in redis.gens[at:]]
        return redis.applied, {
            d: tuple(sorted((*m.content, *(payload for states in of_gens for payload in states.get(d, ())))))
            for d in m.catalog
        }

    # ---- atomic Redis scripts ----------------------------------------------

    def fenced(self, r: Redis, token: int | None) -> bool:
        """Whether somebody else owns the epoch."""
        return r.epoch != token and self.mut != "no_fencing"

    def fresh(self, s: World, kind: str) -> int:
        """A new unique token ('epoch') or generation id ('gid')."""
        r, q = s.redis, s.saved
        if self.mut == "draft_counters":
            return (r.epoch or 0) + 1 if kind == "epoch" else max((g.gid for g in r.gens), default=0) + 1
        if kind == "epoch":
            used = [r.epoch, q.epoch, *(w.token for w in s.writers), *(run.token for run in s.runs)]
        else:
            used = [*(g.gid for g in r.gens + q.gens), *(w.gid for w in s.writers)]
        return max((u for u in used if u is not None), default=0) + 1

    def lua_init(self, s: World, w: WriterState) -> Redis | None:
        """Create meta from the durable manifest read after our epoch was set."""
        r, m = s.redis, given(w.base)
        if r.applied is not None or (self.fenced(r, w.token) and self.mut != "draft_init"):
            return None
        gen = Gen(self.fresh(s, "gid"), m.run, m.cut, m.catalog, tuple((d, ()) for d in m.catalog))
        marked = m.cut if self.mut == "draft_flush_seen_ids" else (0, 0)
        return Redis(r.epoch, m.cut, marked, (gen,), m.run, ())

    def lua_load(self, r: Redis) -> Redis:
        """Load the ids of master rows in [marked, applied); then marked := applied."""
        seen = self.first((0, 0), given(r.applied)) | dict(r.seen)
        return r._replace(seen=tuple(sorted(seen.items())), marked=r.applied)

    def with_seen_ids(self, r: Redis, w: WriterState) -> Redis:
        """Add the ids of a micro-batch to the seen ids: a part of lua_apply."""
        new = dict(w.chosen)
        both = new | dict(r.seen) if self.mut == "draft_setnx" else dict(r.seen) | new
        return r._replace(seen=tuple(sorted(both.items())))

    def lua_apply(self, r: Redis, w: WriterState, part: str = "both") -> tuple[str, Redis]:
        """Apply one micro-batch, exactly once."""
        if self.fenced(r, w.token) or r.applied is None:
            return "FENCED", r
        if part != "cut":
            if r.applied == w.to:
                return "ALREADY", r
            if r.applied != w.frm and self.mut != "no_offset_check":
                return "RESTART", r
            if r.marked != r.applied and self.mut != "no_marked_check":
                return "LOAD", r  # Redis forgot loaded ids, but not our epoch
            if r.gens[-1].gid != w.gid and self.mut != "no_gen_check":
                return "RETRY", r
        gens = tuple(g._replace(states=w.states) if g.gid == w.gid else g for g in r.gens)
        if w.pc == "fly" and self.mut not in SEEN_BEFORE_APPLY:
            r = self.with_seen_ids(r, w)
        if part == "states":
            return "OK", r._replace(gens=gens)
        if part == "cut":
            return "OK", r._replace(applied=w.to, marked=w.to)
        return "OK", r._replace(gens=gens, applied=w.to, marked=w.to)

    def lua_open(self, s: World, n: int) -> Redis:
        """Start the generation of run n at C = applied.

        It also computes every definition that a retained generation was opened for.
        """
        r, catalog = s.redis, self.catalog(n)
        keep = [] if self.mut == "draft_views" else [g.catalog for g in r.gens]
        views = union(catalog, *keep)
        gen = Gen(self.fresh(s, "gid"), n, given(r.applied), catalog, tuple((d, ()) for d in views))
        return r._replace(gens=(*r.gens, gen))

    def lua_adopt(self, r: Redis, n: int) -> Redis | None:
        """Run n goes on with the newest generation, of a run that was not published and never will be: it failed, or
        its publish is refused from now on. Generations of runs that fail again and again stay few that way.

        The generation keeps its id, its cut, its views and its states; the writer does not notice. None: refused,
        the run opens its own.
        """
        last, catalog = r.gens[-1], self.catalog(n)
        if given(r.published) == last.run and self.mut != "adopt_published":
            return None
        if not set(catalog) <= {d for d, _ in last.states} and self.mut != "adopt_new_views":
            return None
        adopted = last._replace(run=last.run if self.mut == "adopt_keeps_run" else n, catalog=catalog)
        more = (adopted._replace(run=n),) if self.mut == "adopt_keeps_run" else ()
        return r._replace(gens=(*r.gens[:-1], adopted, *more))

    def lua_publish(self, r: Redis, n: int, run: RunState) -> Redis | None:
        """Flip readers to run n; its own process does so, or anyone who finds it in the durable log later.

        None: refused, the run is wasted.
        """
        if r.applied is None or given(r.published) >= n:
            return None
        if (n, run.cut) not in [(g.run, g.frm) for g in r.gens] and self.mut != "draft_publish":
            return None
        return r._replace(published=n)

    def lua_takeover(self, s: World, n: int, run: RunState) -> Redis | None:
        """Flip to run n AND move the speed layer to its cut."""
        r, catalog = s.redis, self.catalog(n)
        if r.applied is None or given(r.published) >= n:
            return None
        if r.epoch != run.token and self.mut not in ("draft_takeover", "no_fencing"):
            return None
        gen = Gen(self.fresh(s, "gid"), n, given(run.cut), catalog, tuple((d, ()) for d in catalog))
        old = r.gens if self.mut == "takeover_keeps_gens" else ()
        marked = run.cut if self.mut == "draft_takeover_seen_ids" else r.marked
        return r._replace(applied=run.cut, marked=marked, gens=(*old, gen), published=n)

    def lua_overtake(self, s: World, n: int, run: RunState) -> Redis | None:
        """Flip to run n and move the speed layer to its cut while its writer lives.

        The epoch stays: what the writer has in flight is refused (other `applied`, other generation), and it goes on
        at C after it loaded the seen ids. Refused where the speed layer is past C on any partition: then there is no
        backlog any more.
        """
        r, catalog = s.redis, self.catalog(n)
        if r.applied is None or given(r.published) >= n:
            return None
        if not leq(r.applied, given(run.cut)) and self.mut != "overtake_back":
            return None
        gen = Gen(self.fresh(s, "gid"), n, given(run.cut), catalog, tuple((d, ()) for d in catalog))
        old = r.gens if self.mut == "overtake_keeps_gens" else ()
        marked = run.cut if self.mut == "overtake_seen_ids" else r.marked
        return r._replace(applied=run.cut, marked=marked, gens=(*old, gen), published=n)

    def compute(self, cut: Cut) -> Iterator[tuple[str, Payloads]]:
        """What a run may give to the durable append: verified data only."""
        if self.mut == "off_by_one_cut":
            cut = min(cut[0] + 1, self.end[0]), min(cut[1] + 1, self.end[1])
        yield "", self.oracle(cut)
        if self.mut == "no_wait_for_master":
            yield " on a short master", self.oracle((0, 0))
        if self.mut == "flip_before_verify":
            yield " half, unverified", ()

    def append(self, log: tuple[LogEntry, ...], n: int, run: RunState) -> tuple[LogEntry, ...] | None:
        """Durable publish: compare-and-append, ordered by run number AND cut.

        Entry n is created if it is absent, by a run that compared itself with entry n - 1. Who compared with an older
        end of the log finds entry n taken: so comparing and creating are one step here.
        """
        last, cut = log[-1], given(run.cut)
        if not (n > last.run and leq(last.cut, cut)) and self.mut != "draft_manifest":
            return None
        return (*log, LogEntry(n, cut, self.catalog(n), run.content))

    def is_below_floor(self, s: World, run: int) -> bool:
        """Whether speed views that continue a run may hold lost records."""
        return run < s.floor and self.mut != "rebase_no_floor"

    # ---- steps of each process ---------------------------------------------

    def steps(self, s: World) -> Iterator[tuple[str, World]]:
        """Every step that anybody can take, with its label."""
        for i, w in enumerate(s.writers):
            for label, redis, w2 in self.writer_steps(s, w):
                yield f"writer{i} {label}", s._replace(redis=redis, writers=(*s.writers[:i], w2, *s.writers[i + 1 :]))
        for i, run in enumerate(s.runs):
            for label, t, run2 in self.run_steps(s, i + 1, run):
                yield f"run{i + 1} {label}", t._replace(runs=(*s.runs[:i], run2, *s.runs[i + 1 :]))
        yield from self.other_steps(s)

    def writer_steps(self, s: World, w: WriterState) -> Iterator[tuple[str, Redis, WriterState]]:
        """What a speed writer can do next. A writer that takes no further step has crashed."""
        r, down = s.redis, WriterState()
        if s.rebase is not None and not s.is_rebased and w.pc in ("down", "up"):
            return  # Kafka is behind, or another one: nobody reads it
        if w.pc == "down":
            if r.applied is not None and self.is_below_floor(s, given(r.published)):
                yield "drops speed views from before the rebase", Redis(), w
                return
            if r.applied is None and self.is_below_floor(s, s.log[-1].run):
                return  # waits for a run
            if not leq(self.begin, r.applied if r.applied is not None else s.log[-1].cut):
                return  # Kafka no longer has what comes next: waits for a run
            token = self.fresh(s, "epoch")
            if self.mut == "draft_counters" and token > 3:
                return
            if r.applied is None:  # set the epoch first, then read the manifest
                yield (
                    f"starts, meta missing, reads manifest of run {s.log[-1].run}",
                    r._replace(epoch=token),
                    WriterState("boot", token, s.log[-1]),
                )
            else:
                yield "starts", r._replace(epoch=token), WriterState("up", token)
        elif w.pc == "boot":
            made = self.lua_init(s, w)
            if made is None:
                yield "init refused", r, down
            else:
                yield f"init at {given(w.base).cut}", made, WriterState("up", w.token)
        elif w.pc == "up":
            if self.fenced(r, w.token) or r.applied is None:
                yield "exits, fenced", r, down
            elif not leq(self.begin, r.applied):
                yield "exits, Kafka no longer has what comes next", r, down
            elif r.marked != r.applied:
                yield "loads seen ids", self.lua_load(r), w
            else:
                for to in self.cuts:
                    if leq(r.applied, to) and to != r.applied:
                        chosen = self.accepted(r.seen, r.applied, to)
                        gen = r.gens[-1]
                        yield (
                            f"reads [{r.applied},{to}) counts {chosen}",
                            r,
                            WriterState(
                                "fly",
                                w.token,
                                None,
                                r.applied,
                                to,
                                gen.gid,
                                self.merge(gen.states, self.payloads(chosen)),
                                chosen,
                            ),
                        )
        elif w.pc == "fly" and self.mut in SEEN_BEFORE_APPLY:
            if r.applied is None or (self.fenced(r, w.token) and self.mut != "draft_setnx"):
                yield "writes seen ids: FENCED", r, down
            else:
                yield "writes seen ids", self.with_seen_ids(r, w), w._replace(pc="written")
        elif w.pc in ("fly", "written", "half"):
            split = self.mut == "non_atomic_apply"
            part = "cut" if w.pc == "half" else "states" if split else "both"
            result, redis = self.lua_apply(r, w, part)
            nxt = down if result == "FENCED" else WriterState("up", w.token)
            if result == "OK" and part == "states":
                nxt = w._replace(pc="half")
            if result == "RETRY" and self.mut == "draft_retry":
                new, delta = r.gens[-1], self.payloads(w.chosen)
                known = dict(w.states)
                states = tuple((d, tuple(sorted(c + delta)) if d in known else c) for d, c in new.states)
                nxt = w._replace(gid=new.gid, states=states)
            yield f"apply [{w.frm},{w.to}): {result}", redis, nxt
            if result == "OK" and self.sc.lost_reply and not split:
                yield f"apply [{w.frm},{w.to}): {result}, reply lost", redis, w

    def run_steps(self, s: World, n: int, run: RunState) -> Iterator[tuple[str, World, RunState]]:
        """What batch run n can do next. A run that takes no further step has crashed."""
        r, end = s.redis, RunState("end")
        if run.pc == "new" and r.applied is not None and self.is_below_floor(s, given(r.published)):
            yield "drops speed views from before the rebase", s._replace(redis=Redis()), run
        elif run.pc == "new" and s.is_rebased and (r.applied is None or not leq(self.begin, r.applied)):
            for cut in self.cuts:  # nobody writes: alone, or by takeover; C = M
                if leq(self.begin, cut):
                    if r.applied is None:
                        yield f"alone, C = {cut}", s, RunState("open", cut)
                    elif leq(r.applied, cut):
                        own = self.fresh(s, "epoch")
                        fenced = s._replace(redis=r._replace(epoch=own))
                        yield f"takeover fences, C = {cut}", fenced, RunState("open", cut, own)
        elif run.pc == "new" and r.applied is not None:
            made = self.lua_open(s, n)
            yield f"opens at {r.applied}", s._replace(redis=made), RunState("open", r.applied)
            if s.adopts and (adopted := self.lua_adopt(r, n)) is not None:
                before = r.gens[-1]
                yield (
                    f"adopts the generation of run {before.run} at {before.frm}",
                    s._replace(redis=adopted, adopts=s.adopts - 1),
                    RunState("open", before.frm),
                )
            if s.takeovers:
                token = r.epoch if self.mut == "takeover_no_epoch_bump" else self.fresh(s, "epoch")
                for cut in self.cuts:  # C = M, any master cut >= applied
                    if leq(r.applied, cut) or self.mut == "takeover_behind":
                        yield (
                            f"takeover fences, C = {cut}",
                            s._replace(redis=r._replace(epoch=token), takeovers=s.takeovers - 1),
                            RunState("open", cut, token),
                        )
            if s.overtakes:
                for cut in self.cuts:  # C = M, while the writer goes on
                    if leq(r.applied, cut) and cut != r.applied:
                        yield (
                            f"begins to overtake, C = {cut}",
                            s._replace(overtakes=s.overtakes - 1),
                            RunState("open", cut, OVERTAKE),
                        )
        elif run.pc == "open":  # waits for M >= C, computes, verifies
            if not leq(given(run.cut), self.end if s.rebase is None or s.is_rebased else s.rebase[0]):
                return  # the records that it waits for were lost
            for kind, content in self.compute(given(run.cut)):
                done = run._replace(content=content)
                log = self.append(s.log, n, done)
                if log is None:
                    yield f"computes{kind}, durable append refused", s, end
                elif self.mut == "append_unconditional":
                    yield f"computes{kind}, compares with the last entry", s, done._replace(pc="compared")
                elif self.mut == "flip_redis_first" and run.token is None:
                    redis = self.lua_publish(r, n, run)
                    if redis is not None:
                        yield "flips Redis first", s._replace(redis=redis), done._replace(pc="late")
                else:
                    yield f"computes{kind}, durable append", s._replace(log=log), run._replace(pc="durable")
        elif run.pc == "compared":
            appended = (*s.log, LogEntry(n, given(run.cut), self.catalog(n), run.content))
            yield "appends", s._replace(log=appended), run._replace(pc="durable")
        elif run.pc == "late":
            log = self.append(s.log, n, run)
            yield "durable append, late", s._replace(log=log or s.log), end
        elif run.pc == "durable":
            redis = (
                self.lua_publish(r, n, run)
                if run.token is None
                else self.lua_overtake(s, n, run)
                if run.token == OVERTAKE
                else self.lua_takeover(s, n, run)
            )
            yield f"publish {'refused' if redis is None else 'OK'}", s._replace(redis=redis or r), end

    def other_steps(self, s: World) -> Iterator[tuple[str, World]]:
        """Retire, loss of Redis, the rebase, and an overtake that somebody completes after a run's append."""
        r = s.redis
        yield from self.rebase_steps(s)
        if self.sc.overtakes and r.applied is not None:
            last = s.log[-1]
            if all((g.run, g.frm) != (last.run, last.cut) for g in r.gens):
                redis = self.lua_overtake(s, last.run, RunState("durable", last.cut, OVERTAKE))
                if redis is not None:
                    yield f"somebody overtakes with run {last.run}", s._replace(redis=redis)
        if r.applied is not None:
            at = next((i for i, g in enumerate(r.gens) if g.run == r.published), 0)
            if self.mut == "retire_too_early":
                at = len(r.gens) - 1
            if at and self.mut == "retire_data_first":
                bare = tuple(g._replace(states=tuple((d, ()) for d, _ in g.states)) for g in r.gens[:at])
                yield "retire deletes states", s._replace(redis=r._replace(gens=bare + r.gens[at:]))
            for k in range(1, at + 1):  # the grace period may keep some
                yield f"retire drops {k} generations", s._replace(redis=r._replace(gens=r.gens[k:]))
        if s.saves and r.applied is not None:
            yield "Redis reaches its disk", s._replace(saved=r, saves=s.saves - 1)
        if s.losses and r != s.saved:
            yield "Redis falls back to its disk", s._replace(redis=s.saved, losses=s.losses - 1)

    @staticmethod
    def next_run(s: World) -> int:
        """A run number that nobody has."""
        return max([e.run for e in s.log] + [n for n, run in enumerate(s.runs, 1) if run.pc != "new"]) + 1

    def rebase_steps(self, s: World) -> Iterator[tuple[str, World]]:
        """Kafka loses what the master does not have; then the master records where its new records begin."""
        r = s.redis
        if s.rebases and s.rebase is None:
            applied = r.applied or (0, 0)
            cuts = [e.cut for e in s.log] + [given(x.cut) for x in s.runs if x.pc == "durable"]
            floor = 0 if self.mut == "rebase_late_floor" else self.next_run(s)
            for m in self.cuts:
                if all(leq(cut, m) for cut in cuts):
                    b = m if self.mut == "rebase_at_master" else (max(m[0], applied[0]), max(m[1], applied[1]))
                    token = None if r.applied is None else self.fresh(s, "epoch")
                    yield (
                        f"Kafka is lost, M = {m}; rebase raises the floor to run {floor}, fences, B = {b}",
                        s._replace(redis=r._replace(epoch=token), rebases=s.rebases - 1, rebase=(m, b), floor=floor),
                    )
        elif s.rebase is not None and not s.is_rebased:
            yield "rebase commits", s._replace(is_rebased=True, floor=s.floor or self.next_run(s))

    # ---- invariants ----------------------------------------------------------

    def check(self, s: World, t: World, label: str) -> World:
        """Check the invariants of step s -> t. Returns t with its ghost updated."""
        lost = label.startswith("Redis falls")
        r, q = s.redis, t.redis
        if r.applied and q.applied and not lost and not leq(r.applied, q.applied):
            raise InvariantBroken(f"I2 reported cut went back: {r.applied} -> {q.applied}")
        for a, b in pairwise(t.log):
            if not leq(a.cut, b.cut):
                raise InvariantBroken(f"I3 durable cut went back: {a.cut} -> {b.cut}")
        if q.applied is not None:
            m = next((m for m in t.log if m.run == q.published), None)
            if m is None:
                raise InvariantBroken(f"I6 published run {q.published} is not durable")
            if not lost and not leq(s.shown, m.cut):
                raise InvariantBroken(f"I3 published cut went back: {s.shown} -> {m.cut}")
            t = t._replace(shown=m.cut)
        if s.is_rebased or self.sc.rebases:
            t = self.check_reported(t, is_lost=lost)
        if (q, t.log, t.floor) not in self.checked:
            self.check_readers(t)
            try:
                self.check_recovery(t)
            except InvariantBroken as v:
                raise InvariantBroken(f"{v} (all crash here, then an undisturbed restart)") from None
            self.checked.add((q, t.log, t.floor))
        if self.mut == "torn_read" and r.applied and q.applied:
            for m in s.log:
                self.compare(self.answer(r, m, states_of=q), m)
        return t

    def compare(self, got: Answer | None, m: LogEntry) -> None:
        """An answer that was given is the oracle's."""
        if got is None:
            return
        cut, views = got
        for definition, value in views.items():
            if value != self.oracle(cut):
                raise InvariantBroken(
                    f"I1 run {m.run} {definition} at {cut}: answer {value}, oracle {self.oracle(cut)}"
                )

    def check_reported(self, t: World, *, is_lost: bool) -> World:
        """I8: the cuts of complete answers do not go back across a rebase either."""
        m = next((m for m in t.log if m.run == t.redis.published), None)
        got = None if m is None or self.is_below_floor(t, m.run) else self.answer(t.redis, m)
        if is_lost:
            return t._replace(reported=(0, 0))
        if got is None:
            return t
        if not leq(t.reported, got[0]):
            raise InvariantBroken(f"I8 the cut of an answer went back: {t.reported} -> {got[0]}")
        return t._replace(reported=got[0])

    def check_readers(self, s: World) -> None:
        """I1 and I5 for a reader that holds any manifest; I6: the published run answers.

        I7: the seen ids are the ids below `marked`. A mutation of the seen ids must show in I1. Speed views of runs
        below the floor are not used.
        """
        r, log = s.redis, s.log
        if r.applied is not None and self.is_below_floor(s, given(r.published)):
            return
        if self.mut is None and r.applied and dict(r.seen).keys() != self.first((0, 0), given(r.marked)).keys():
            raise InvariantBroken(f"I7 seen ids {r.seen} are not the ids below {r.marked}")
        for m in log:
            got = None if self.is_below_floor(s, m.run) else self.answer(r, m)
            if got and m.run not in [g.run for g in r.gens]:
                raise InvariantBroken(f"I5 run {m.run} answered without its generation")
            if r.applied is not None and m.run == r.published and got is None and not self.is_below_floor(s, m.run):
                raise InvariantBroken(f"I6 published run {m.run} has no generation")
            self.compare(got, m)

    def check_recovery(self, t: World) -> None:
        """I4: everybody crashes here, then one writer, one run and one reader work undisturbed.

        All events must be counted by speed, then by batch.
        """
        if t.rebase is not None and not t.is_rebased:
            return  # the rebase has to be repeated first
        r, log, n = t.redis, t.log, len(self.sc.catalogs)  # one run more than the scenario has
        s = World(r, r, log, (WriterState(),), (RunState(),), 0, 0, 0, 0, 0, (0, 0))
        s = s._replace(rebase=t.rebase, is_rebased=t.is_rebased, floor=t.floor)

        def writer_until_idle(s: World) -> World:
            for _ in range(12):
                options = list(self.writer_steps(s, s.writers[0]))
                if not options:
                    return s
                _, redis, w = options[-1]  # the largest micro-batch
                s = s._replace(redis=redis, writers=(w,))
            return s

        if self.mut == "draft_counters":  # the bound on starts forbids it
            return
        s = writer_until_idle(s)
        if s.is_rebased and (s.redis.applied is None or not leq(self.begin, s.redis.applied)):
            run = RunState()
            while run.pc != "end":  # after a rebase the writer waits for a run
                _, s, run = list(self.run_steps(s, n, run))[-1]
            s, n, log = writer_until_idle(s._replace(writers=(WriterState(),))), n + 1, s.log
        held = next(m for m in log if m.run == s.redis.published)
        got = self.answer(s.redis, held)
        if got is None or got[0] != self.end:
            raise InvariantBroken(f"I4 speed does not catch up: {got}")
        self.compare(got, held)
        opened = self.lua_open(s, n)
        run = RunState("open", opened.applied, content=self.oracle(given(opened.applied)))
        longer = self.append(log, n, run)
        redis = self.lua_publish(opened, n, run) if longer else None
        if not longer or not redis or self.answer(redis, longer[-1]) is None:
            raise InvariantBroken("I4 the next run cannot be published")
        self.compare(self.answer(redis, longer[-1]), longer[-1])

    # ---- exploration -----------------------------------------------------------

    def canonical(self, s: World) -> World:
        """Rename tokens and generation ids; order the interchangeable writers."""
        if self.mut == "draft_counters":
            return s
        tokens: dict[int | None, int | None] = {None: None, OVERTAKE: OVERTAKE}
        gids: dict[int | None, int | None] = {None: None}

        def tok(x: int | None) -> int | None:
            return tokens.setdefault(x, len(tokens))

        def gid(x: int | None) -> int | None:
            return gids.setdefault(x, len(gids))

        def redis(r: Redis) -> Redis:
            return r._replace(epoch=tok(r.epoch), gens=tuple(g._replace(gid=given(gid(g.gid))) for g in r.gens))

        r, saved = redis(s.redis), redis(s.saved)
        runs = tuple(x._replace(token=tok(x.token)) for x in s.runs)
        ws = list(s.writers)
        if not self.sc.saves:  # a token never comes back: a fenced writer can only exit
            inert = ("up", "fly") if self.sc.lean and self.mut not in SEEN_BEFORE_APPLY else ("up",)
            ws = [WriterState() if w.pc in inert and self.fenced(s.redis, w.token) else w for w in ws]
        ws = sorted(ws, key=lambda w: (w.token != s.redis.epoch, w.pc, w.to or (0, 0), w.frm or (0, 0)))
        writers = tuple(w._replace(gid=gid(w.gid), token=tok(w.token)) for w in ws)
        return s._replace(redis=r, saved=saved, runs=runs, writers=writers)

    def explore(self, limit: int = 5_000_000) -> int:
        """Visit all states, breadth first; returns how many there are. Raises InvariantBroken at the first bad one."""
        start = self.initial()
        parent: dict[World, tuple[World, str] | None] = {start: None}
        queue = deque([start])
        while queue:
            s = queue.popleft()
            for label, t in self.of(s).steps(s):
                try:
                    t = self.canonical(self.of(t).check(s, t, label))
                except InvariantBroken as v:
                    trace = [label]
                    while (before := parent[s]) is not None:
                        s, earlier = before
                        trace.append(earlier)
                    v.trace, v.states = trace[::-1], len(parent)
                    raise
                if t not in parent:
                    parent[t] = (s, label)
                    queue.append(t)
                    if len(parent) > limit:
                        raise RuntimeError("state space too large")
        return len(parent)


def run_all(mutation: str | None, verbose: bool, full: bool = False) -> tuple[int, InvariantBroken | None, str]:
    """Explore the scenarios up to the first violation."""
    total = 0
    for sc in [s._replace(lean=False) for s in SCENARIOS + EXTRA] if full else SCENARIOS:
        t0 = time.time()
        try:
            n = Model(sc, mutation).explore()
        except InvariantBroken as v:
            return total + v.states, v, sc.name
        total += n
        if verbose:
            print(f"{sc.name:42s} {n:9,d} states {time.time() - t0:6.1f} s", flush=True)
    return total, None, ""


def main() -> int:
    """Explore, and print what was found."""
    ap = argparse.ArgumentParser(prog="python -m hand_off.model", description=(__doc__ or "").splitlines()[0])
    ap.add_argument("--mutate", metavar="NAME", help="a mutation, or 'all'")
    ap.add_argument("--full", action="store_true", help="no reduction, more scenarios")
    ap.add_argument("--list", action="store_true")
    args = ap.parse_args()
    if args.list:
        for name, text in MUTATIONS.items():
            print(f"{name:24s} {text}")
        return 0
    if args.mutate is None:
        total, bad, where = run_all(None, True, args.full)
        if bad is None:
            print(f"{total:,d} states, all invariants hold")
            return 0
        print(f"VIOLATION in '{where}': {bad}", *bad.trace, sep="\n  ")
        return 1
    names = list(MUTATIONS) if args.mutate == "all" else [args.mutate]
    missed = 0
    for name in names:
        if name not in MUTATIONS:
            ap.error(f"unknown mutation {name}; see --list")
        total, bad, where = run_all(name, len(names) == 1)
        missed += bad is None
        print(
            f"{name:24s} "
            + (
                f"caught: {bad} [{where}; {len(bad.trace)} steps, {total:,d} states]"
                if bad
                else f"NOT CAUGHT after {total:,d} states"
            ),
            flush=True,
        )
        if bad and len(names) == 1:
            print(*bad.trace, sep="\n", end="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
