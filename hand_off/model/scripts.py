"""The atomic scripts of Redis: each `lua_*` method is one, and nothing comes between its lines."""

from __future__ import annotations

from hand_off.model.mutations import SEEN_BEFORE_APPLY
from hand_off.model.rules import Rules
from hand_off.model.world import Gen, Judged, Redis, RunState, World, WriterState, given, leq, union


class Scripts(Rules):
    """The scripts, over the rules."""

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
        seen = self.first(given(r.marked), given(r.applied), self.version(r.gens[-1].catalog)) | dict(r.seen)
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

    def is_switch(self, r: Redis, n: int) -> bool:
        """Whether run n is of another version of the source than the speed views."""
        return bool(r.gens) and self.version(r.gens[-1].catalog) != self.version(self.catalog(n))

    def judge(self, r: Redis, n: int) -> Judged:
        """What a run sees of the speed views before it calls a script: what is where may have changed by then."""
        return r.gens[-1].gid if r.gens else 0, self.is_switch(r, n)

    def without_seen_ids(self, r: Redis, judged: Judged) -> Redis:
        """A part of takeover and overtake. After a switch other events have ids that count: all are loaded again.

        So they are where the newest generation is not the one that was judged. To load them again is never wrong.
        """
        gid, is_switch = judged
        is_other = bool(r.gens) and r.gens[-1].gid != gid and self.mut != "switch_judged_before"
        if self.mut == "switch_keeps_seen_ids" or not (is_switch or is_other):
            return r
        return r._replace(seen=(), marked=(0, 0))

    def lua_takeover(self, s: World, n: int, run: RunState) -> Redis | None:
        """Flip to run n AND move the speed layer to its cut."""
        r, catalog = s.redis, self.catalog(n)
        if r.applied is None or given(r.published) >= n:
            return None
        if r.epoch != run.token and self.mut not in ("draft_takeover", "no_fencing"):
            return None
        gen = Gen(self.fresh(s, "gid"), n, given(run.cut), catalog, tuple((d, ()) for d in catalog))
        old = r.gens if self.mut == "takeover_keeps_gens" else ()
        r = self.without_seen_ids(r, run.judged or self.judge(r, n))
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
        r = self.without_seen_ids(r, run.judged or self.judge(r, n))
        marked = run.cut if self.mut == "overtake_seen_ids" else r.marked
        return r._replace(applied=run.cut, marked=marked, gens=(*old, gen), published=n)
