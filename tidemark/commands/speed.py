"""`tidemark speed`: show how far the speed layer is and what Redis holds; rebuild the speed views."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from hand_off.batch_folder import BatchFolder
    from hand_off.speed_views import RedisSnapshot, SpeedViews

KEEPS_UP_S = 10.0
"""A source whose newest applied event is no older than this keeps up, though events wait."""
app = typer.Typer(no_args_is_help=True)
OLD_S = 10.0


@app.command()
def status(
    source: Annotated[str | None, typer.Argument(help="Name of a source; all that have views if not given.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show, for each source, the applied cut, how far it is behind, its last micro-batch, its states and memory."""
    from redis.exceptions import RedisError

    from hand_off.batch_folder import BatchFolder
    from hand_off.errors import SpeedError
    from hand_off.speed_views import SpeedViews
    from infra import terminal
    from infra.clients.redis import redis_client
    from infra.process_status import read_status, status_path
    from infra.settings import load_settings
    from infra.stack.addresses import addresses
    from views.declarations import declared_by

    settings = load_settings()
    declarations = declared_by(settings)
    names = (
        [declarations.source(source).name] if source else sorted({v.source.name for v in declarations.views.values()})
    )
    status = read_status(status_path(settings, "speed"))
    sources = status.sources if status is not None and time.time() - status.at < OLD_S else {}
    url = addresses(settings).redis
    rows = []
    try:
        with redis_client(settings, url) as client:
            for name in names:
                speed_views = SpeedViews(client, name)
                snapshot = speed_views.reader.snapshot()
                row = _row(name, speed_views, snapshot, sources.get(name, {}))
                rows.append({**row, "against_batch": _against_batch(BatchFolder.of(settings, name), snapshot)})
    except (RedisError, OSError) as error:
        raise SpeedError(f"Redis at {url} does not answer ({error}). `tidemark status` shows what runs.") from None
    if output is Output.TABLE:
        rows = [{**row, "against_batch": row["against_batch"].replace("; ", "\n")} for row in rows]
    terminal.print_result(rows, output, "No source has a view.", as_is=("run",))


@app.command()
def rebuild(
    source: Annotated[str, typer.Argument(help="Name of the source.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Rebuild the speed views of a source from the last published run on; this ends the quarantine of its views.

    Kafka must still hold the events since then. Answers report that they are behind until all events are counted.
    """
    from redis.exceptions import RedisError

    from hand_off.errors import SpeedError
    from hand_off.speed_views import SpeedViews
    from infra import terminal
    from infra.clients.redis import redis_client
    from infra.settings import load_settings
    from infra.stack.addresses import addresses
    from views.declarations import declared_by

    settings = load_settings()
    name, url = declared_by(settings).source(source).name, addresses(settings).redis
    try:
        with redis_client(settings, url) as client:
            there = SpeedViews(client, name).runs.forget()
    except (RedisError, OSError) as error:
        raise SpeedError(f"Redis at {url} does not answer ({error}). `tidemark status` shows what runs.") from None
    what = "being rebuilt by the speed layer" if there else "there was nothing in Redis yet"
    terminal.print_result([{"source": name, "speed views": what}], output)


def _against_batch(folder: BatchFolder, snapshot: RedisSnapshot) -> str:
    """What the last comparisons with the batch views found, and which views are quarantined."""
    from batch_layer.consistency import quarantine
    from hand_off.errors import BatchError

    try:
        known = quarantine.read(folder)
    except BatchError as error:
        return str(error)
    results = []
    for name, found in sorted(known.views.items()):
        meta = snapshot.meta
        mark = None if meta is None else known.quarantine_of(found.hash, meta.published, meta.made)
        results.append(f"{name}: {'QUARANTINED, ' if mark else ''}{found.in_words}")
    return "; ".join(results)


def _state(problem: str, behind: int | None, behind_s: float | None, *, is_written: bool) -> str:
    """Whether the source keeps up, in words."""
    events = "an unknown number of events" if behind is None else f"{behind:,} events"
    if problem:
        return f"{events} behind: {problem}" if behind != 0 else problem
    if not is_written:
        return "no writer" if not behind else f"no writer, {events} behind"
    is_close = behind == 0 or (behind is not None and behind_s is not None and behind_s <= KEEPS_UP_S)
    return "keeps up" if is_close else f"{events} behind"


def _row(name: str, speed_views: SpeedViews, snapshot: RedisSnapshot, status: Mapping[str, Any]) -> dict[str, Any]:
    from master_dataset.cut import cut_to_json

    living = speed_views.reader.living_writer()
    if snapshot.meta is None:
        return {"source": name, "state": "nothing in Redis yet" if living is None else "starting"}
    counts, bytes_ = speed_views.reader.size()
    report = speed_views.reader.answer(snapshot.meta.published, {}, ())  # of another machine's writer too
    behind = status.get("behind_events", report.lag and report.lag.events)
    behind_s = status.get("behind_s", report.lag and report.lag.seconds)
    problem = status.get("refused") or report.problem
    state = _state(problem, behind, behind_s, is_written=living == snapshot.epoch)
    if speed_views.reader.is_overtaken():
        state += "; a batch run is going to overtake it"
    return {
        "source": name,
        "state": state,
        "applied": cut_to_json(snapshot.meta.applied),
        "run": snapshot.meta.published,
        "generations": len(snapshot.generations),
        "behind_events": behind,
        "behind_s": behind_s,
        "last_micro_batch_s": status.get("last_micro_batch_s"),
        "states": counts,
        "state_bytes": bytes_,
        "marks": status.get("marks"),
    }
