"""The rules that batch, speed and the oracle share: which events count, what an answer is, what may be appended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product

from hand_off.model.scenarios import Scenario
from hand_off.model.world import (
    Answer,
    Catalog,
    Cut,
    Definition,
    Location,
    LogEntry,
    Payloads,
    Redis,
    RunState,
    SeenIds,
    States,
    World,
    WriterState,
    given,
    leq,
)


class Rules:
    """What writers, runs, readers and the oracle share, over one scenario, with at most one rule broken."""

    def __init__(self, scenario: Scenario, mutation: str | None = None) -> None:
        if mutation == "different_payloads":
            scenario = scenario._replace(
                events=tuple(
                    tuple((i, f"{i}{p}{o}") for o, (i, _) in enumerate(part)) for p, part in enumerate(scenario.events)
                )
            )
        self.sc, self.mut = scenario, mutation
        self.invalid = frozenset(scenario.invalid)
        self.end: Cut = (len(scenario.events[0]), len(scenario.events[1]))
        self.cuts: list[Cut] = list(product(range(self.end[0] + 1), range(self.end[1] + 1)))
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

    def ident(self, pos: Location) -> str:
        """The event id at a location."""
        return self.sc.events[pos[0]][pos[1]][0]

    def version(self, catalog: Catalog) -> int:
        """The version of the source that these definitions are of."""
        return max(number for _, number in catalog) if self.invalid else 1

    def first(self, frm: Cut, to: Cut, version: int) -> dict[str, Location]:
        """The first event (lowest partition, offset) of each id in [frm, to), of those that a version finds valid."""
        found: dict[str, Location] = {}
        for p in (0, 1):
            for o in range(frm[p], to[p]):
                if (p, o) not in self.lost and (version, (p, o)) not in self.invalid:
                    found.setdefault(self.ident((p, o)), (p, o))
        return found

    def payloads(self, chosen: Iterable[tuple[str, Location]]) -> Payloads:
        """What chosen events add to a state."""
        return tuple(self.sc.events[p][o][1] for _, (p, o) in chosen)

    def catalog(self, n: int) -> Catalog:
        """The definitions that run n computes."""
        return self.sc.catalogs[min(n, len(self.sc.catalogs) - 1)]

    def oracle(self, cut: Cut, catalog: Catalog) -> Payloads:
        """The true state of any view of a catalog at a cut."""
        return tuple(sorted(self.payloads(self.first((0, 0), cut, self.version(catalog)).items())))

    def accepted(self, seen_ids: SeenIds, frm: Cut, to: Cut, catalog: Catalog) -> SeenIds:
        """Dedup rule: an event counts iff its id is not among the seen ids, and is the first of its duplicates in the
        micro-batch. The newest generation, whose catalog this is, says by which version of the source.
        """
        version = 1 if self.mut == "switch_old_reading" else self.version(catalog)
        seen = dict(seen_ids)
        drafts: dict[str, Callable[[Location, Location], bool]] = {
            "draft_setnx": lambda at, pos: at == pos,  # "replay sees itself"
            "seen_id_before_apply": lambda at, pos: at[1] >= frm[at[0]],
        }
        own = drafts.get(self.mut or "")
        return tuple(
            (i, pos)
            for i, pos in self.first(frm, to, version).items()
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
            looked = (run.judged[0] for run in s.runs if run.judged is not None)
            used = [*(g.gid for g in r.gens + q.gens), *(w.gid for w in s.writers), *looked]
        return max((u for u in used if u is not None), default=0) + 1

    def compute(self, cut: Cut, catalog: Catalog) -> Iterator[tuple[str, Payloads]]:
        """What a run may give to the durable append: verified data only."""
        if self.mut == "off_by_one_cut":
            cut = min(cut[0] + 1, self.end[0]), min(cut[1] + 1, self.end[1])
        yield "", self.oracle(cut, catalog)
        if self.mut == "no_wait_for_master":
            yield " on a short master", self.oracle((0, 0), catalog)
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
