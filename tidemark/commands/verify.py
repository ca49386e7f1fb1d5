"""`tidemark verify`: compare speed views, or all answers, with a recomputation from events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.commands.options import Output, OutputOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from batch_layer.consistency.quarantine import Compared
    from infra.settings import Settings
    from views.declarations import Declarations
    from views.source import Source
    from views.view import View

EQUAL, DIFFERS = "equal", "DIFFERS"
NOT_COMPARED, NOT_EXPLAINED, NO_ANSWERS = "not compared", "not explained", "no answers yet"
HEADINGS = {"by late copies": "late duplicates", "more": "details"}
NOT_KNOWN = 3
"""The exit code where a view that is served could not be verified."""


def command(
    views: Annotated[list[str] | None, typer.Argument(help="Names of views. Default: all.")] = None,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch",
            envvar="TIDEMARK_CLI_FROM_SCRATCH",
            help="Compare merged answers over all of history with a recomputation from every event.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the speed views, or with --from-scratch every answer, with a recompute from events.

    Each speed view is compared with the events of the same offsets. A wrong one is quarantined and a correct one is
    released, as after a batch run. With --from-scratch nothing changes: all answers are compared with the reference
    interpreter over the master dataset. That takes time, but memory is bounded (consistency_events).

    Exit code 0: equal; 1: a view differs; 3: no view differs, but one was not compared or has unexplained differences.
    A new view has no answers before the next batch run. It is ignored, unless all views are new: then the code is 3.
    """
    from infra import terminal
    from infra.logs import configure_logging
    from infra.settings import load_settings
    from views.declarations import declared_by

    settings = load_settings()
    configure_logging("WARNING")  # results alone go to stdout
    declarations = declared_by(settings)
    chosen = [declarations.view(name) for name in views] if views else list(declarations.views.values())
    check = _answers if from_scratch else _speed_views
    threshold = 0.0 if from_scratch else settings.consistency_threshold  # no answer may be wrong
    compared = list(check(settings, declarations, chosen))
    rows = [_row(found, threshold) for found in compared]
    shown = rows if output == Output.JSON else [_with_headings(row) for row in rows]
    terminal.print_result(shown, output, "No view is declared.")
    for line in _unknown(compared, threshold):
        terminal.err.print(line, highlight=False, markup=False)
    raise typer.Exit(_exit_code([row["result"] for row in rows]))


def _exit_code(results: list[str]) -> int:
    if DIFFERS in results:
        return 1
    is_unknown = NOT_COMPARED in results or NOT_EXPLAINED in results or {*results} == {NO_ANSWERS}
    return NOT_KNOWN if is_unknown else 0


def _unknown(compared: list[Compared], threshold: float) -> Iterator[str]:
    """The views that could not be verified, and why."""
    for found in compared:
        result = _result(found, threshold)
        if result not in (EQUAL, DIFFERS):
            yield f"{found.view}: {result}: {found.why_not or found.not_explained}"


def _speed_views(settings: Settings, declarations: Declarations, views: list[View]) -> Iterator[Compared]:
    from redis.exceptions import RedisError

    from hand_off.errors import SpeedError
    from hand_off.speed_views import SpeedViews
    from infra.clients.redis import redis_client
    from infra.stack.addresses import addresses
    from serving_layer.verification.verify import verify_speed_views

    url = addresses(settings).redis
    with redis_client(settings, url, timeout_s=30) as client:
        for source, ours in _by_source(declarations, views):
            try:
                yield from verify_speed_views(settings, SpeedViews(client, source.name), source, ours)
            except (RedisError, OSError) as error:
                raise SpeedError(f"Redis at {url} does not reply ({error}). See `tidemark status`.") from None


def _answers(settings: Settings, declarations: Declarations, views: list[View]) -> Iterator[Compared]:
    from batch_layer.consistency.quarantine import Compared
    from infra import terminal
    from serving_layer.engine import QueryEngine
    from serving_layer.errors import NotComputedYet
    from serving_layer.verification.verify import JOINS, from_scratch

    engine = QueryEngine(settings, declarations)
    try:
        for source, ours in _by_source(declarations, views):
            served = []
            for view in ours:
                try:
                    served.append(engine.served_view(view.name))
                except NotComputedYet:
                    yield Compared(view.name, view.hash, 0, 0, why_not=JOINS, at=time.time())
            if served:
                yield from from_scratch(settings, engine, source, served, terminal.err.print)
    finally:
        engine.close()


def _by_source(declarations: Declarations, views: list[View]) -> Iterator[tuple[Source, list[View]]]:
    for source in declarations.sources.values():
        ours = [view for view in views if view.source.name == source.name]
        if ours:
            yield source, ours


def _result(found: Compared, threshold: float) -> str:
    from serving_layer.verification.verify import JOINS

    if found.is_above(threshold):
        return DIFFERS
    if found.why_not:
        return NO_ANSWERS if found.why_not == JOINS else NOT_COMPARED
    return NOT_EXPLAINED if found.not_explained else EQUAL


def _row(found: Compared, threshold: float) -> dict[str, Any]:
    return {
        "view": found.view,
        "result": _result(found, threshold),
        "compared": found.compared,
        "differ": found.mismatched,
        "by late copies": found.excused,
        "more": found.why_not or "; ".join(found.examples),
    }


def _with_headings(row: dict[str, Any]) -> dict[str, Any]:
    """The row for a table. JSON members keep their names."""
    return {HEADINGS.get(name, name): value for name, value in row.items()}
