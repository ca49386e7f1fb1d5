"""What each process can do next: two writers, the runs, a rebase, and Redis, which may lose what it has."""

from __future__ import annotations

from collections.abc import Iterator

from hand_off.model.mutations import SEEN_BEFORE_APPLY
from hand_off.model.scripts import Scripts
from hand_off.model.world import OVERTAKE, LogEntry, Redis, RunState, World, WriterState, given, leq


class Steps(Scripts):
    """The steps, each with its label."""

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
                        gen = r.gens[-1]
                        chosen = self.accepted(r.seen, r.applied, to, gen.catalog)
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
        elif run.pc == "new" and r.applied is not None and self.is_switch(r, n) and self.mut != "switch_opens":
            yield from self.switch_steps(s, n, run)
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
            for kind, content in self.compute(given(run.cut), self.catalog(n)):
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
        elif run.pc == "durable" and run.token is not None and self.invalid:
            yield "looks at the speed views", s, run._replace(pc="looked", judged=self.judge(r, n))
        elif run.pc in ("durable", "looked"):
            redis = (
                self.lua_publish(r, n, run)
                if run.token is None
                else self.lua_overtake(s, n, run)
                if run.token == OVERTAKE
                else self.lua_takeover(s, n, run)
            )
            yield f"publish {'refused' if redis is None else 'OK'}", s._replace(redis=redis or r), end

    def switch_steps(self, s: World, n: int, run: RunState) -> Iterator[tuple[str, World, RunState]]:
        """A run of another version of the source: no generation of the version before goes on, nor does it open one.

        It overtakes a writer that lives, wherever that is, and takes over from one that does not.
        """
        r = s.redis
        fenced = s._replace(redis=r._replace(epoch=self.fresh(s, "epoch")))
        for cut in self.cuts:
            if leq(given(r.applied), cut):
                yield f"begins to switch, C = {cut}", s, run._replace(pc="open", cut=cut, token=OVERTAKE)
                taken = run._replace(pc="open", cut=cut, token=fenced.redis.epoch)
                yield f"begins to switch and fences, C = {cut}", fenced, taken

    def other_steps(self, s: World) -> Iterator[tuple[str, World]]:
        """Retire, loss of Redis, the rebase, and an overtake that somebody completes after a run's append."""
        r = s.redis
        yield from self.rebase_steps(s)
        if (self.sc.overtakes or self.invalid) and r.applied is not None:
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
