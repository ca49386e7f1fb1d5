"""Look at the alerts of one source whenever a micro-batch touched their views, and when time alone decides.

    touched groups (Redis) -> questions about them -> merged answers at one cut -> judgements -> episodes -> journal

Only a complete answer is looked at: while Redis is away or being filled again, nothing is concluded. The time by which
periods are over is not the clock's but `as_of`: until then everything that Kafka had is in the answers.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from hand_off.change_log import Changes
from infra.failpoints import reach
from infra.settings import Settings
from master_dataset.cut import Cut, cut_to_json
from serving_layer.alerts import questions as asked
from serving_layer.alerts.answers import Asking, Found, Watched, read, rule_of
from serving_layer.alerts.episodes import Episode, Judged, Key, State, Step, advance, advance_silence, is_of, over_at
from serving_layer.alerts.journal import Journal, Look, Position
from serving_layer.alerts.payloads import Message, messages, told
from serving_layer.alerts.questions import Wanted
from serving_layer.engine import QueryEngine
from serving_layer.errors import ServingError
from serving_layer.query.result import Result
from views.alert import Alert
from views.declarations import Declarations
from views.errors import AlertError

TRIES = 10
"""Looks until the answers and what was touched are at one cut; after that what is newer counts too."""
AHEAD_S = 60.0
"""An event whose period begins so much later than the clock says is not looked at."""
AGAIN_S = 30.0
"""Until an alert whose answers were too many is looked at again."""
CHUNK = 2_000
"""Periods of one question where everything of late is looked at."""

log = structlog.get_logger()
Since = Callable[[Cut, bytes], Changes | None]


@dataclass
class Memory:
    """What is known of an alert's keys; the journal has the same."""

    episodes: dict[Key, list[Episode]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[Key, int] = field(default_factory=dict)
    unwritten: dict[Key, int] = field(default_factory=dict)
    """Of `seen` what the journal has not."""
    settled_until: int | None = None
    armed_at: float = 0.0
    is_new: bool = True
    """Whether it was never looked at."""
    is_behind: bool = False
    """Whether its answers were too many: nothing is concluded until it has looked at everything of late."""
    again_at: float = 0.0
    """Not before then, when it is behind."""
    error: str = ""


@dataclass
class Evaluator:
    """The alerts of one source."""

    settings: Settings
    declarations: Declarations
    source: str
    engine: QueryEngine
    journal: Journal
    webhooks: tuple[str, ...] = ()
    on_told: Callable[[], None] = lambda: None
    failpoint: Callable[[str], None] = reach
    clock: Callable[[], float] = time.time
    memory: dict[str, Memory] = field(default_factory=dict)
    as_of: float = 0.0
    looks: int = 0
    put_off: int = 0
    """Looks in a row at what time decides that were left to the next, because the views had moved on."""
    cut: Cut = field(default_factory=dict)

    @property
    def alerts(self) -> list[Alert]:
        """Those of the source."""
        return self.declarations.alerts_of(self.source)

    # ---- begin ----

    def begin(self) -> None:
        """Take up what the journal has."""
        for alert in self.alerts:
            found = self.memory[alert.name] = Memory()
            found.armed_at, found.settled_until = self.journal.armed(alert.name)
            found.is_new = self.journal.is_new(alert.name)
            found.is_behind = self.journal.is_behind(alert.name)
            found.seen = self.journal.seen(alert.name)
            rule = rule_of(alert)
            for episode in reversed(self.journal.episodes(alert.name)):
                if is_of(rule, episode):  # not by its time: a clock may have been wrong when it was told
                    found.episodes[episode.key].append(episode)
            if alert.silence_s and not alert.keys:
                found.seen.setdefault((), int(found.armed_at))
        position = self.journal.position(self.source)
        self.as_of = position.as_of if position else 0.0

    # ---- one look ----

    def look(self, touched: Changes | None, since: Since) -> bytes | None:
        """Look at what was touched, or without it at what time alone decides. The place in the stream that it got to.

        `since` says what was touched after a cut. NotNow where the answers are not complete.
        """
        now = self.clock()
        if self.as_of > now:  # the clock was ahead, and is set back: what it said then is no knowledge
            self.as_of = 0.0
        watched = list(self._watched())
        place: bytes | None = None
        is_exact = True
        if touched is not None:
            for number in range(TRIES):
                asking = [each for one in watched if (each := self._asked(one, touched, now)) is not None]
                found = self._read(asking, now)
                has_more = found.cut is not None and found.cut != touched.cut
                more = since(touched.cut, touched.entry_id) if has_more else None
                if more is None or number == TRIES - 1:
                    is_exact = found.cut == touched.cut
                    break
                touched = _joined(touched, more)
            place = touched.entry_id
            # Where everything was looked at, all up to the answers' cut is done with.
            is_all = touched.views is None and found.cut is not None
            position, is_exact = (found.cut or {}, True) if is_all else (touched.cut, is_exact)
        else:
            asking = [each for one in watched if (each := self._settling(one, now)) is not None]
            found = self._read(asking, now)
            known = self.journal.position(self.source)
            position = known.cut if known else found.applied
            is_exact = found.cut == position
            if found.applied != position or found.cut not in (None, position):
                return self._put_off(found.applied, since)
            self.put_off = 0
        self.as_of = max(self.as_of, found.as_of or 0.0)
        steps = {one.alert.name: self._steps(one, asking, found.answers, touched, now) for one in watched}
        settled = {
            each.watched.alert.name: each.settled_until
            for each in asking
            if each.settled_until is not None and each.watched.alert.name in found.answers
        }
        self._commit(position, now, steps, settled, was_touched=touched is not None, is_exact=is_exact)
        return place

    def _put_off(self, applied: Cut, since: Since) -> bytes | None:
        """Leave what time decides to the next look: an event that was applied since may be what it would call missing.

        Where nobody says what was touched since, as in a Redis that was filled again, everything of late is looked at.
        """
        self.put_off += 1
        if self.put_off < TRIES:
            return None
        self.put_off = 0
        return self.look(Changes(applied, None), since)

    def _watched(self) -> Iterator[Watched]:
        """The alerts that can be looked at; of the others the reason is kept."""
        for alert in self.alerts:
            memory = self.memory[alert.name]
            try:
                view = self.engine.served_view(alert.view.name)
                yield Watched(alert, view, alert.condition_for(view) if alert.when else None)
                memory.error = memory.error if memory.is_behind else ""
            except ServingError as error:
                memory.error = error.detail
            except AlertError as error:  # the version that is served lacks an answer; the next run has it
                memory.error = str(error)

    def _asked(self, watched: Watched, touched: Changes, now: float) -> Asking | None:
        """What a look asks for an alert because of what was touched."""
        alert, view = watched.alert, watched.view
        if self.memory[alert.name].is_behind:
            return self._catching_up(watched, now)
        # What was touched before an alert was declared is known of the view, but not looked at: its last periods are.
        buckets = None if self.memory[alert.name].is_new else touched.of(view.hash)
        if alert.silence_s:
            # Where keys are told apart, a bucket of "any key" (the entry was too long) does not say whose silence ends.
            is_known = buckets is not None and not (alert.keys and None in buckets.values())
            return None if is_known else self._asked_silence(watched, now)
        if buckets is None:
            return self._asked_all(watched, now)
        periods = self._within(alert, asked.touched_periods(alert, buckets), now)
        if not periods:
            return None
        wanted = Wanted(asked.around(alert, periods), asked.touched_keys(view, alert.keys, buckets))
        return Asking(watched, wanted, (asked.alert_question(alert, view, wanted),))

    def _catching_up(self, watched: Watched, now: float) -> Asking | None:
        """Everything of late for an alert whose answers were too many, now and then."""
        if now < self.memory[watched.alert.name].again_at:
            return None
        return self._asked_silence(watched, now) if watched.alert.silence_s else self._asked_all(watched, now)

    def _asked_all(self, watched: Watched, now: float) -> Asking:
        """Everything of late: what was touched is not known. When an alert is new, that is its last few periods."""
        alert = watched.alert
        is_new = self.memory[alert.name].is_new
        back_s = alert.step_s * (alert.for_buckets + 1) if is_new else self.settings.alerts_late_s
        last = int(now) - int(now) % alert.step_s
        first = int(now - back_s) - int(now - back_s) % alert.step_s
        periods = list(range(first, last + alert.step_s, alert.step_s))
        chunks = [frozenset(periods[at : at + CHUNK]) for at in range(0, len(periods), CHUNK)]
        questions = tuple(asked.alert_question(alert, watched.view, Wanted(each, None)) for each in chunks)
        return Asking(watched, Wanted(frozenset(periods), None), questions)

    def _asked_silence(self, watched: Watched, now: float) -> Asking:
        """The buckets in which an event would end a silence."""
        alert, view = watched.alert, watched.view
        step_s = view.bucket.seconds
        first = int(now - alert.silence_s - step_s)
        buckets = frozenset(range(first - first % step_s, int(now) + step_s, step_s))
        wanted = Wanted(buckets, None)
        ordered = sorted(buckets)
        chunks = [frozenset(ordered[at : at + CHUNK]) for at in range(0, len(ordered), CHUNK)]
        names = list(view.answers)[:1]
        questions = tuple(asked.question(view, alert.keys, step_s, Wanted(each, None), names) for each in chunks)
        return Asking(watched, wanted, questions)

    def _settling(self, watched: Watched, now: float) -> Asking | None:
        """The periods that are over since they were last judged, for an alert that waits for that."""
        alert, memory = watched.alert, self.memory[watched.alert.name]
        if memory.is_behind:
            return self._catching_up(watched, now)
        if not alert.settled or not self.as_of:
            return None
        until = int(self.as_of) - int(self.as_of) % alert.step_s
        since = until - alert.step_s if memory.settled_until is None else memory.settled_until
        if since > until:  # noted while the clock was ahead
            since = until - alert.step_s
        since = max(since, until - max(int(self.settings.alerts_late_s), alert.step_s))
        periods = frozenset(range(since - since % alert.step_s, until, alert.step_s))
        if not periods:
            return None
        wanted = Wanted(asked.around(alert, periods), None)
        return Asking(watched, wanted, (asked.alert_question(alert, watched.view, wanted),), until)

    def _within(self, alert: Alert, periods: Iterable[int], now: float) -> frozenset[int]:
        """Those that are neither too old nor ahead of the clock."""
        oldest = now - self.settings.alerts_late_s - alert.step_s
        return frozenset(period for period in periods if oldest <= period <= now + AHEAD_S)

    def _read(self, asking: Sequence[Asking], now: float) -> Found:
        """The answers; of an alert that asks too much it is noted that it has to catch up."""
        found = read(self.engine, self.source, asking, now)
        for memory in (self.memory[name] for name in found.answers):
            memory.is_behind, memory.error = False, ""
        for name, why in found.too_large.items():
            memory = self.memory[name]
            if not memory.is_behind:
                log.error("too_large", alert=name, why=why)
            memory.is_behind, memory.again_at, memory.error = True, now + AGAIN_S, why
        return found

    # ---- what follows ----

    def _steps(
        self, watched: Watched, asking: Sequence[Asking], answers: Mapping[str, Result], touched: Changes | None,
        now: float,
    ) -> list[Step]:  # fmt: skip
        name = watched.alert.name
        if self.memory[name].is_behind:
            return []
        ours = next((each for each in asking if each.watched.alert.name == name), None)
        found = answers[name] if ours is not None else None
        if watched.alert.silence_s:
            return list(self._silence(watched, found, touched, now))
        return list(self._judged(watched, ours, found, now))

    def _judged(self, watched: Watched, ours: Asking | None, answer: Result | None, now: float) -> Iterator[Step]:
        memory, rule = self.memory[watched.alert.name], watched.rule
        judged: dict[Key, dict[int, Judged]] = {}
        if ours is not None and answer is not None and watched.condition is not None:
            judged = asked.judged(watched.alert, watched.view, watched.condition, ours.wanted, answer, self.as_of)
        as_of = self._judged_until(watched.alert, ours)
        due = (
            key
            for key, known in memory.episodes.items()
            if any(each.is_open and as_of >= over_at(rule, each) for each in known)
        )
        for key in dict.fromkeys([*judged, *due]):
            of_key = judged.get(key, {})
            if key in memory.episodes or any(each.is_true for each in of_key.values()):
                yield advance(rule, key, memory.episodes.get(key, ()), of_key, as_of or now, now)

    def _judged_until(self, alert: Alert, ours: Asking | None) -> float:
        """Until when all is in and judged: a period that is over since the last look may make an episode longer."""
        settled = (ours.settled_until if ours else None) or self.memory[alert.name].settled_until
        if not alert.settled or settled is None or self.as_of < settled + alert.step_s:
            return self.as_of
        return float(settled)

    def _silence(self, watched: Watched, answer: Result | None, touched: Changes | None, now: float) -> Iterator[Step]:
        alert, view, memory = watched.alert, watched.view, self.memory[watched.alert.name]
        newest: dict[Key, int] = {}
        if answer is not None:
            for row in answer.rows:
                newest[row.key] = max(newest.get(row.key, 0), row.period.end)
        buckets = touched.of(view.hash) if touched is not None and answer is None else None
        for bucket in buckets or ():
            for key in asked.touched_keys(view, alert.keys, {bucket: (buckets or {})[bucket]}) or ():
                newest[key] = max(newest.get(key, 0), bucket + view.bucket.seconds)
        for key, last in newest.items():
            is_kept = key in memory.seen or len(memory.seen) < self.settings.alerts_max_keys
            if is_kept and memory.seen.get(key, 0) < last <= now + AHEAD_S + view.bucket.seconds:
                memory.seen[key] = memory.unwritten[key] = last
        for key, last in memory.seen.items():
            known = memory.episodes.get(key, [])
            if self.as_of >= last + alert.silence_s or any(each.is_open for each in known):
                step = advance_silence(watched.rule, key, known, last, alert.silence_s, self.as_of, now)
                if step.changed:
                    yield step

    def _commit(
        self, cut: Cut, now: float, steps: Mapping[str, list[Step]], settled: Mapping[str, int], *, was_touched: bool,
        is_exact: bool,
    ) -> None:  # fmt: skip
        """Into the journal, and then into our memory. Looks that changed nothing are not written."""
        changed = [episode for each in steps.values() for step in each for episode in step.changed]
        if not (changed or was_touched or settled):
            return
        position = Position(cut, self.as_of)
        seen = {name: dict(memory.unwritten) for name, memory in self.memory.items() if memory.unwritten}
        look = self.look_of(
            position, now, [episode for each in steps.values() for step in each for episode in step.told]
        )
        self.failpoint("alerts.before_commit")
        look = look._replace(
            changed=tuple(changed), is_exact=is_exact, seen=seen, settled=settled,
            behind={name: memory.is_behind for name, memory in self.memory.items()},
            horizons={alert.name: self._horizon(alert, now) for alert in self.alerts},
            no_more_new=tuple(self.memory) if was_touched else (),
        )  # fmt: skip
        self.journal.commit(look)
        self.failpoint("alerts.after_commit")
        for episode in changed:
            of_key = self.memory[episode.alert].episodes[episode.key]
            of_key[:] = [each for each in of_key if each.id != episode.id] + [episode]
        for name, until in settled.items():
            self.memory[name].settled_until = until
        for memory in self.memory.values():
            memory.unwritten.clear()
            memory.is_new = memory.is_new and not was_touched
        self._forget(now)
        self.cut = cut
        self.looks += 1
        if look.told:
            self.on_told()
            log.info("told", source=self.source, episodes=[f"{each.id} {each.state}" for each, _ in look.told],
                     cut=cut_to_json(cut))  # fmt: skip

    def look_of(self, position: Position, now: float, episodes: Iterable[Episode]) -> Look:
        """What is told of episodes, to everybody."""
        mutes = self.journal.mutes()
        told_of: list[tuple[Episode, str]] = []
        outbox: list[Message] = []
        for episode in episodes:
            # Who was told that it fires is told that it is over, whatever was muted since; and nobody else.
            then = self.journal.was_muted(episode.id) if episode.state is State.RESOLVED else None
            is_muted = episode.alert in mutes if then is None else then
            body = told(episode, is_muted=is_muted)
            told_of.append((episode, body))
            outbox += messages(episode, body, self._webhooks_of(episode.alert), is_muted=is_muted)
        return Look(self.source, position, now, told=tuple(told_of), outbox=tuple(outbox))

    def _webhooks_of(self, name: str) -> tuple[str, ...]:
        alert = self.declarations.alerts.get(name)
        wanted = alert.webhooks if alert is not None else None
        return self.webhooks if wanted is None else tuple(each for each in self.webhooks if each in wanted)

    def _horizon(self, alert: Alert, now: float) -> float:
        """No look joins anything to an episode whose last period is before this."""
        return now - 2 * self.settings.alerts_late_s - alert.keep_s - alert.step_s * (alert.for_buckets + 2)

    def _forget(self, now: float) -> None:
        """Episodes that nothing can join any more: their periods are older than what is looked at."""
        for alert in self.alerts:
            of_alert = self.memory[alert.name].episodes
            oldest = self._horizon(alert, now)
            for key in [key for key, known in of_alert.items() if known and known[0].last < oldest]:
                of_alert[key] = [each for each in of_alert[key] if each.is_open or each.last >= oldest]
                if not of_alert[key]:
                    del of_alert[key]


def ended(episodes: Iterable[Episode], now: float) -> list[Episode]:
    """Episodes of an alert that is declared no more, or otherwise: they are over."""
    return [replace(each, state=State.RESOLVED, resolved_at=now) for each in episodes if each.is_open]


def _joined(touched: Changes, more: Changes) -> Changes:
    """What was touched before and since, together."""
    if touched.views is None or more.views is None:
        return Changes(more.cut, None, more.entry_id)
    views = {view: dict(buckets) for view, buckets in touched.views.items() if view in more.views}
    for view in views:
        for bucket, keys in more.views[view].items():
            known = views[view].get(bucket, frozenset())
            views[view][bucket] = None if known is None or keys is None else known | keys
    return Changes(more.cut, views, more.entry_id)
