"""Deliberately broken builds, for tests alone: Python imports this file first where its folder is on PYTHONPATH.

The variable TORTURE_SABOTAGE names some of SABOTAGES, separated by commas. The functions below patch a module of the
platform right after it was imported; nothing in the platform knows of them. Each process writes down which patches it
applied, and which could not be applied, in the file that TORTURE_STRUCK names: a patch that strikes nothing would be
caught by nobody, and look like a blind spot of the programme.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "TORTURE_SABOTAGE"
STRUCK_VARIABLE = "TORTURE_STRUCK"
Patch = Callable[[Any], None]
SABOTAGES: dict[str, dict[str, Patch]] = {}
"""Name -> module -> what is done to it."""
REPLACED: list[tuple[Any, str, Any]] = []
"""What `put` has replaced: the owner, the name, and what was there before."""


MISFITS = (AttributeError, NameError, TypeError)
installed: list[str] = []
"""The sabotages of this process."""


class NothingToPatch(RuntimeError):
    """What a sabotage replaces is not there: the platform has changed, and the sabotage has to change with it."""


def put(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute of a module or a class, which must be there."""
    if not hasattr(owner, name):
        raise NothingToPatch(f"{getattr(owner, '__name__', owner)} has no {name!r} any more: adapt the sabotage")
    REPLACED.append((owner, name, vars(owner).get(name)))
    setattr(owner, name, _guarded(value))


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function. Where its own code does not fit the platform any more, it says so before it raises.

    Else a run that fails by a defect of the sabotage would pass for one that the platform refused.
    """
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def guarded_coroutine(*arguments: Any, **options: Any) -> Any:
            try:
                return await function(*arguments, **options)
            except MISFITS as error:
                _note_misfit(function, error)
                raise

        return guarded_coroutine

    @wraps(function)
    def guarded(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except MISFITS as error:
            _note_misfit(function, error)
            raise

    return guarded


def _note_misfit(function: Callable[..., Any], error: BaseException) -> None:
    *_, innermost = traceback.extract_tb(error.__traceback__)
    if (
        innermost.filename == __file__
    ):  # raised here, or by a call from here; what the platform raises is its own affair
        note(",".join(installed), function.__module__, f"{function.__qualname__}: {type(error).__name__}: {error}")


def put_back() -> None:
    """Undo every `put` of this process."""
    while REPLACED:
        owner, name, value = REPLACED.pop()
        if value is None:  # it was inherited
            delattr(owner, name)
        else:
            setattr(owner, name, value)


def sabotages(name: str, module: str) -> Callable[[Patch], Patch]:
    """Register a patch."""

    def register(patch: Patch) -> Patch:
        SABOTAGES.setdefault(name, {})[module] = patch
        return patch

    return register


def lua(module: Any, script: str, old: str, new: str) -> None:
    """Replace a part of a script's text, which must be there."""
    read = module.read_script

    def changed(name: str) -> str:
        text: str = read(name)
        if name != script:
            return text
        if old not in text:
            raise NothingToPatch(f"{script}.lua has no {old!r} any more: adapt the sabotage")
        return text.replace(old, new)

    changed(script)  # now, not when somebody first needs the script
    put(module, "read_script", changed)


# ---- the speed layer ----


@sabotages("dedup off", "speed_layer.micro_batch")
def _dedup_off(module: Any) -> None:
    count = module._count
    put(module, "_count", lambda found, _seen_ids: count(found, None))


@sabotages("fencing off", "hand_off.speed_views.scripts")
def _fencing_off(module: Any) -> None:
    """The step believes every writer, whoever owns the epoch and wherever Redis is."""
    for script in ("apply", "heartbeat"):
        lua(module, script, "if redis.call('GET', KEYS[1]) ~= ARGV[1] then", "if false then")
    lua(module, "apply", "if applied ~= ARGV[2] then", "if false then")


@sabotages("fencing off", "speed_layer.stream")
def _never_checks_redis(module: Any) -> None:
    put(module.Stream, "_check_redis", lambda self: None)


@sabotages("atomic step split in two", "hand_off.speed_views.writer")
def _split_step(module: Any) -> None:
    """First the states, then, a moment later, the cut and the seen ids."""
    whole = module.SpeedWriter.apply

    def apply(self: Any, batch: Any) -> Any:
        generations, layout = self.reader.snapshot().generations, self._scripts.layout
        if generations and generations[-1].gid == batch.gid:
            with self._scripts.client.pipeline(transaction=False) as pipe:
                for group, state in batch.states.items():
                    pipe.zadd(layout.buckets(batch.gid, group.view), {str(group.bucket): group.bucket})
                    pipe.hset(layout.data(batch.gid, group.view, group.bucket), group.key, state)
                pipe.execute()
            time.sleep(0.3)
        return whole(self, batch)

    put(module.SpeedWriter, "apply", apply)


@sabotages("cut off by one", "speed_layer.stream")
def _cut_off_by_one(module: Any) -> None:
    """It claims to hold one record more of each partition than it does, and begins behind it."""
    planned_end = module.planned_end

    def beyond(checkpoint: Any, batch_id: int, topic: str) -> dict[int, int]:
        return {
            partition: offset + 1 if offset else 0
            for partition, offset in planned_end(checkpoint, batch_id, topic).items()
        }

    put(module, "planned_end", beyond)


@sabotages("poison takes its neighbours", "speed_layer.micro_batch")
def _neighbours_dropped(module: Any) -> None:
    """A micro-batch with an invalid record in it is left out whole."""
    delta_of = module.delta_of

    def delta(rows: Any, *arguments: Any, **options: Any) -> Any:
        has_poison = rows.where(f"not ({module.VALID})").limit(1).count()
        return delta_of(rows.limit(0) if has_poison else rows, *arguments, **options)

    put(module, "delta_of", delta)


# ---- the serving layer ----


@sabotages("merge drops a generation", "hand_off.speed_views.scripts")
def _generation_dropped(module: Any) -> None:
    lua(module, "answer", "  gids[#gids + 1] = generation.gid\n", "  gids = {generation.gid}\n")


@sabotages("a lost Redis is not reported", "hand_off.speed_views.scripts")
def _loss_unreported(module: Any) -> None:
    """A reader takes a Redis without meta for one that is up to date and has nothing."""
    lua(module, "answer", "  return {'LOST'}\n", "  applied, published = ARGV[2], ARGV[1]\n")
    lua(module, "answer", "if not found then", "if false then")


@sabotages("a lost Redis is not reported", "serving_layer.readers.speed")
def _forgets_what_it_said(module: Any) -> None:
    """It would tell by itself that its answers went back behind earlier ones."""
    put(module.SpeedViewReader, "record_cut", lambda self, cut: None)


@sabotages("a page leaves out a row", "serving_layer.query.rows")
def _row_left_out(module: Any) -> None:
    """A page that goes on behind another begins one row too late."""
    whole = module.page

    def page(rows: Any, question: Any, after: Any) -> Any:
        made, has_more = whole(rows, question, after)
        return (made if after is None else made[1:] or made), has_more

    put(module, "page", page)


@sabotages("a window is short by an hour", "serving_layer.query.periods")
def _short_window(module: Any) -> None:
    rolling = module.rolling
    put(module, "rolling", lambda *given: tuple(each._replace(start=each.start + 3600) for each in rolling(*given)))


@sabotages("days are those of UTC", "serving_layer.query.periods")
def _days_of_utc(module: Any) -> None:
    from datetime import UTC

    cut = module.cut
    put(module, "cut", lambda whole, step, zone, most: cut(whole, step, UTC, most))


# ---- the alert process ----


@sabotages("alerts forget their notifications", "serving_layer.alerts.evaluator")
def _notifications_forgotten(module: Any) -> None:
    """A process that starts does not load the episodes of the one before."""
    whole = module.Evaluator.resume

    def resume(self: Any) -> None:
        whole(self)
        for memory in self.memory.values():
            memory.episodes.clear()

    put(module.Evaluator, "resume", resume)


# ---- the collector ----


@sabotages("acknowledged before the broker", "master_dataset.collector.producer")
def _acknowledged_early(module: Any) -> None:
    async def deliver(self: Any, produce: Any, only: Sequence[int], acks: Any) -> Any:
        import asyncio

        delivery = module._Delivery(len(only), asyncio.get_running_loop().create_future())
        produce(self._producer(acks), delivery, only)
        delivery.outcomes = [module.Ack(0, 0, int(time.time() * 1000)) for _ in only]
        delivery.refusals = 0
        return delivery

    put(module.AckedProducer, "_deliver", deliver)


# ---- the archiver ----


@sabotages("auto-commit on", "master_dataset.archiver.archive")
def _auto_commit(module: Any) -> None:
    """It goes on where it had read to, whatever the table holds: as a consumer that commits by the clock."""
    check = module.check_positions

    def where_kafka_ends(source: Any, found: Any, cut: dict[int, int], topic_id: str) -> dict[int, int]:
        begin: dict[int, int] = check(source, found, cut, topic_id)
        return dict(found.latest) if cut else begin

    put(module, "check_positions", where_kafka_ends)


@sabotages("failOnDataLoss off", "master_dataset.archiver.archive")
def _data_loss_ignored(module: Any) -> None:
    options = module.Archive._reading_options
    put(module.Archive, "_reading_options", lambda self, spark: {**options(self, spark), "failOnDataLoss": "false"})
    put(
        module,
        "check_positions",
        lambda source, found, cut, topic_id: {
            partition: max(cut.get(partition, 0), earliest) for partition, earliest in found.earliest.items()
        },
    )


@sabotages("dead letters dropped", "master_dataset.dead_letters.outbox")
def _letters_dropped(module: Any) -> None:
    put(module, "send_letters", lambda config, source, version, rows, present=(): len(list(rows)))


@sabotages("dead letters believed", "master_dataset.dead_letters.outbox")
def _letters_believed(module: Any) -> None:
    """How far dead letters were sent is taken from the newest one in the topic, whoever sent it."""
    from master_dataset.dead_letters.letters import newest_first

    send = module.DeadLetters._send_missing

    def believe(self: Any, commits: Any) -> int:
        newest = next((each.version for each in newest_first(self.config, self.source) if each.version >= 0), -1)
        noted = module.read_sent(self.table)
        module.note_sent(self.table, noted._replace(version=max(noted.version, newest)))
        sent: int = send(self, commits)
        return sent

    put(module.DeadLetters, "_send_missing", believe)


@sabotages("fsck off", "master_dataset.table.checks.fsck")
def _fsck_off(module: Any) -> None:
    put(module, "quick_check", lambda *_arguments, **_options: [])
    put(module, "refuse_damage", lambda *_arguments, **_options: None)


@sabotages("fsck off", "batch_layer.master_snapshot")
def _count_off(module: Any) -> None:
    put(module.MasterSnapshot, "check_records", lambda *_arguments: None)


# ---- batch runs ----


@sabotages("publish before verify", "batch_layer.master_snapshot")
def _publish_unverified(module: Any) -> None:
    """A run neither waits until the master dataset holds its cut, nor counts what it got."""

    def at_once(self: Any, opening: Any, wait_s: float, report: Any) -> Any:
        del wait_s, report
        return opening.cut if opening.mode == "open" else dict(self.held.cut)

    put(module.MasterSnapshot, "wait_for", at_once)
    put(module.MasterSnapshot, "check_records", lambda *_arguments: None)


@sabotages("an overtake loads no seen ids", "hand_off.speed_views.scripts")
def _seen_ids_not_loaded(module: Any) -> None:
    """The speed layer jumps to the cut of a run, and takes the ids of what it skipped for known."""
    lua(module, "overtake", "'applied', ARGV[2],", "'applied', ARGV[2], 'marked', ARGV[2],")


@sabotages("a switch keeps the seen ids", "hand_off.speed_views.scripts")
def _seen_ids_kept(module: Any) -> None:
    """Events that only the next version of the source counts are unknown to the speed layer after the switch."""
    for script, seen_by in (("overtake", "ARGV[4]"), ("takeover", "ARGV[5]")):
        lua(module, script, f"if {seen_by} ~= '*' and not", "if false and not")


@sabotages("batch cut off by one", "batch_layer.view_computation")
def _one_too_many(module: Any) -> None:
    """A run counts the record at its cut too, which the speed layer counts as well."""
    between = module.records_between

    def with_one_more(spark: Any, table: Any, source: Any, start: Any, end: Any) -> Any:
        return between(spark, table, source, start, {partition: offset + 1 for partition, offset in end.items()})

    put(module, "records_between", with_one_more)


@sabotages("batch cut off by one", "batch_layer.duplicates_in_memory")
def _one_too_many_of_few(module: Any) -> None:
    """The same where few events are evaluated at once."""
    of_files = module.records_of_files

    def with_one_more(spark: Any, history: Any, source: Any, start: Any, end: Any) -> Any:
        return of_files(spark, history, source, start, {partition: offset + 1 for partition, offset in end.items()})

    put(module, "records_of_files", with_one_more)


@sabotages("duplicates count in batch runs", "batch_layer.view_computation")
def _duplicates_count(module: Any) -> None:
    put(module, "without_duplicates", lambda events, _where: events)


@sabotages("duplicates count in batch runs", "batch_layer.duplicates")
def _duplicates_count_of_few(module: Any) -> None:
    put(module, "without", lambda events, _duplicates: events.values)


# ---- how they get in ----


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what is to be patched, as the others would, and patches it when it was loaded."""

    def __init__(self, sabotage: str) -> None:
        self._sabotage, self._patches = sabotage, dict(SABOTAGES[sabotage])

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            raise ImportError(f"the sabotage of {name} finds no such module")
        load = spec.loader.exec_module

        def load_and_patch(module: ModuleType) -> None:
            load(module)
            try:
                patch(module)
            except Exception as error:
                note(self._sabotage, name, f"{type(error).__name__}: {error}")
                raise
            note(self._sabotage, name)

        spec.loader.exec_module = load_and_patch  # type: ignore[method-assign]
        return spec


def note(sabotage: str, module: str, error: str = "") -> None:
    """Write down that a patch was applied, or why not: one line, in one write, so that processes may share the file."""
    if path := os.environ.get(STRUCK_VARIABLE):
        line = json.dumps({"sabotage": sabotage, "module": module, "error": error, "pid": os.getpid()})
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def install(names: Sequence[str]) -> None:
    """From now on modules are loaded broken."""
    installed.extend(names)
    for name in names:
        sys.meta_path.insert(0, _Finder(name))


if os.environ.get(VARIABLE):
    install(os.environ[VARIABLE].split(","))
