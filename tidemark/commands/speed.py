"""`tidemark speed`: how far the speed layer is, and what Redis holds of it; make that anew."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from hand_off.batch_folder import BatchFolder
    from hand_off.speed_views import RedisSnapshot, SpeedViews

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
    from infra.home import Home, read_json
    from infra.settings import load_settings
    from infra.stack.addresses import addresses
    from views.declarations import declared_by

    settings = load_settings()
    declarations = declared_by(settings)
    names = (
        [declarations.source(source).name] if source else sorted({v.source.name for v in declarations.views.values()})
    )
    told = read_json(Home(settings.home).run / "speed.json") or {}
    is_alive = time.time() - told.get("at", 0) < OLD_S
    url = addresses(settings).redis
    rows = []
    try:
        with redis_client(settings, url) as client:
            for name in names:
                speed_views = SpeedViews(client, name)
                said = told.get("sources", {}).get(name, {}) if is_alive else {}
                snapshot = speed_views.reader.snapshot()
                row = _row(name, speed_views, snapshot, said)
                rows.append({**row, "against_batch": _against_batch(BatchFolder.of(settings, name), snapshot)})
    except (RedisError, OSError) as error:
        raise SpeedError(f"Redis at {url} does not answer ({error}). `tidemark status` shows what runs.") from None
    terminal.print_result(rows, output, "No source has a view.", as_is=("run",))


@app.command()
def rebuild(
    source: Annotated[str, typer.Argument(help="Name of the source.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Make the speed views of a source anew, from the last published run on: views that were set aside come back.

    Kafka must still hold the events since then; answers say that they are behind until all are counted again.
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
    what = "is made anew by the speed layer" if there else "there was nothing in Redis yet"
    terminal.print_result([{"source": name, "speed views": what}], output)


def _against_batch(folder: BatchFolder, kept: RedisSnapshot) -> str:
    """What the last comparisons with the batch side found, and which views are set aside."""
    from batch_layer.consistency import quarantine
    from hand_off.errors import BatchError

    try:
        known = quarantine.read(folder)
    except BatchError as error:
        return str(error)
    told = []
    for name, found in sorted(known.views.items()):
        mark = known.mark_of(found.hash, kept.meta.published, kept.meta.made) if kept.meta is not None else None
        told.append(f"{name}: {'SET ASIDE, ' if mark else ''}{found.in_words}")
    return "; ".join(told)


def _row(name: str, speed_views: SpeedViews, kept: RedisSnapshot, said: dict[str, Any]) -> dict[str, Any]:
    from master_dataset.cut import cut_to_json

    living = speed_views.reader.living_writer()
    if kept.meta is None:
        return {"source": name, "state": "nothing in Redis yet" if living is None else "starting"}
    counts, bytes_ = speed_views.reader.size()
    state = said.get("refused") or ("keeps up" if living == kept.epoch else "no writer")
    return {
        "source": name,
        "state": state,
        "applied": cut_to_json(kept.meta.applied),
        "run": kept.meta.published,
        "generations": len(kept.generations),
        "behind_events": said.get("behind_events"),
        "behind_s": said.get("behind_s"),
        "last_micro_batch_s": said.get("last_micro_batch_s"),
        "states": counts,
        "state_bytes": bytes_,
        "marks": said.get("marks"),
    }
