"""Rebase a source: its table, its speed views and its readers, in an order that is safe to cut off and to repeat.

1. The floor of the speed views is raised: from here on, answers are of the batch views alone and say so. A crash leaves
   them so; the command can be repeated.
2. The speed layer is fenced, so that what it has applied stands still. All that anybody has seen of the old Kafka
   (table, speed views, publish log, watches) is below where the new records begin.
3. The table records the topic, its bases and what is lost, in one commit. From here on the archiver goes on.
4. The old speed views are dropped. Whoever writes them or publishes a run would do so too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import SpeedError
from hand_off.speed_floor import first_run, raise_floor
from hand_off.speed_views import SpeedViews
from infra.clients.redis import redis_client
from infra.failpoints import reach
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.archiver.control import without_archiver
from master_dataset.cut import Cut, cut_from_json, cut_to_json, join
from master_dataset.kafka.positions import check_topic_id, read_positions
from master_dataset.table import coverage
from master_dataset.table.append import commit_lock, create_table
from master_dataset.table.checks.fsck import refuse_damage
from master_dataset.table.history import read_history
from master_dataset.table.ledger import complete_ledger
from master_dataset.table.paths import table_path
from master_dataset.table.readings import first_reading
from master_dataset.table.rebase import (
    LossNotAccepted,
    NothingToRebase,
    Rebase,
    check_is_needed,
    commit_rebase,
    compare_records,
    plan_rebase,
)
from master_dataset.writer_schemas.id_check import check_ids
from serving_layer.alerts.watches import CUT, redis_names
from views.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from redis import Redis


def rebase_source(
    settings: Settings, source: Source, start_spark: Callable[[], SparkSession], *, accept_loss: bool
) -> dict[str, Any]:
    """Do it, and return what was done. Raises where there is nothing to do, or nobody accepts what is lost."""
    table, folder = table_path(settings, source.name), BatchFolder.of(settings, source.name)
    with without_archiver(table):
        refuse_damage(source.name, table)
        with commit_lock(table):
            complete_ledger(table, read_history(table).in_log)
        held = coverage.of(table)
        seen = _seen_by_others(settings, source, folder, fence=False)
        try:
            found = read_positions(settings, addresses(settings).kafka, source)
            check_is_needed(source, held, found, seen)
        except NothingToRebase:
            if not _has_old_speed_views(settings, source, folder):
                raise
            _drop_speed_views(settings, source)  # a rebase was cut off before its last step
            return _report(settings, source, held.base, held.base_begin, held.topic_id, [])
        spark = start_spark()
        create_table(spark, table, first_reading(table, source))
        compared = compare_records(spark, settings, addresses(settings).kafka, source, table, held, found)

        def plan(seen: Cut) -> Rebase:
            planned = plan_rebase(source, held, found, seen, compared)
            if planned.lost and not accept_loss:
                raise LossNotAccepted(source.name, planned.lost)
            return planned

        plan(seen)
        reach("rebase.before_floor")
        raise_floor(folder)
        reach("rebase.after_floor")
        rebase = plan(join(seen, _seen_by_others(settings, source, folder, fence=True)))

        def check() -> None:
            now = read_positions(settings, addresses(settings).kafka, source)
            check_topic_id(source, now.topic_id, rebase.new.topic_id)  # it may have been made again since

        commit_rebase(spark, source, table, rebase, check)
        reach("rebase.after_commit")
    _drop_speed_views(settings, source)
    new = rebase.new
    return _report(settings, source, new.base, new.begin, new.topic_id, list(map(str, rebase.lost)))


def _report(
    settings: Settings, source: Source, base: Cut, begin: Cut, topic_id: str, lost: list[str]
) -> dict[str, Any]:
    return {
        "source": source.name,
        "topic": source.topic,
        "topic_id": topic_id,
        "base": cut_to_json(base),
        "begin": cut_to_json(begin),
        "lost": lost,
        "schema_ids": check_ids(settings, source),
        "next": f"tidemark batch run --source {source.name}",
    }


# ---- Redis -------------------------------------------------------------------------


def _seen_by_others(settings: Settings, source: Source, folder: BatchFolder, *, fence: bool) -> dict[int, int]:
    """The cut below which somebody has seen records of the old Kafka: runs, speed views, watches.

    With `fence`, the speed views stand still from here on.
    """
    seen = dict(publish_log.last(folder).cut)

    def ask(client: Redis) -> None:
        nonlocal seen
        views = SpeedViews(client, source.name)
        if fence:
            views.runs.fence()
        meta = views.reader.snapshot().meta
        stored: Any = client.hget(redis_names(source.name)[0], CUT)
        watched = cut_from_json(json.loads(stored)) if stored else {}
        seen = join(join(seen, {} if meta is None else meta.applied), watched)

    _with_redis(settings, ask)
    return seen


def _has_old_speed_views(settings: Settings, source: Source, folder: BatchFolder) -> bool:
    found: list[bool] = []

    def ask(client: Redis) -> None:
        meta = SpeedViews(client, source.name).reader.snapshot().meta
        found.append(meta is not None and meta.published < first_run(folder))

    _with_redis(settings, ask)
    return any(found)


def _drop_speed_views(settings: Settings, source: Source) -> None:
    _with_redis(settings, lambda client: SpeedViews(client, source.name).runs.forget())


def _with_redis(settings: Settings, ask: Callable[[Redis], Any]) -> None:
    """Without a speed layer there is nothing to ask for. One that does not answer may have seen more than the table."""
    where = addresses(settings)
    if not settings.speed_enabled or not where.has_redis:
        return
    try:
        with redis_client(settings, where.redis, timeout_s=30) as client:
            ask(client)
    except (RedisError, OSError) as error:
        raise SpeedError(
            f"Redis at {where.redis} does not answer ({error}), and it says how far the speed views are. Start it "
            "(`tidemark up`), empty if its data is gone, and repeat the command. Without a speed layer set "
            "speed_enabled to false."
        ) from None
