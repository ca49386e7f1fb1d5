"""The invariants, checked in every state that can be reached, breadth first."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from hand_off.model.mutations import SEEN_BEFORE_APPLY
from hand_off.model.scenarios import Scenario
from hand_off.model.steps import Steps
from hand_off.model.world import OVERTAKE, Answer, Cut, LogEntry, Redis, RunState, World, WriterState, given, leq


class InvariantBroken(Exception):
    """An invariant does not hold. `trace` is the shortest way there, `states` how many states were explored."""

    trace: list[str]
    states: int


class Model(Steps):
    """The protocol over one scenario: its invariants, and every state that can be reached."""

    def __init__(self, scenario: Scenario, mutation: str | None = None) -> None:
        super().__init__(scenario, mutation)
        self.checked: set[tuple[Redis, tuple[LogEntry, ...], int]] = set()
        self.rebased: dict[tuple[Cut, Cut], Model] = {}

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
        """An answer that was given is the oracle's, by the version of the source that its views are of."""
        if got is None:
            return
        cut, views = got
        expected = self.oracle(cut, m.catalog)
        for definition, value in views.items():
            if value != expected:
                raise InvariantBroken(f"I1 run {m.run} {definition} at {cut}: answer {value}, oracle {expected}")

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
        if self.mut is None and r.applied:
            below = self.first((0, 0), given(r.marked), self.version(r.gens[-1].catalog))
            if dict(r.seen).keys() != below.keys():
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
        is_switch = self.is_switch(s.redis, n) and self.mut != "switch_opens"
        opened = s.redis if is_switch else self.lua_open(s, n)
        run = RunState("open", opened.applied, content=self.oracle(given(opened.applied), self.catalog(n)))
        longer = self.append(log, n, run)
        publish = self.lua_overtake(s, n, run) if is_switch else self.lua_publish(opened, n, run)
        redis = publish if longer else None
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
        runs = tuple(
            x._replace(token=tok(x.token), judged=x.judged and (given(gid(x.judged[0])), x.judged[1])) for x in s.runs
        )
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
