"""`tidemark verify`: compare what the speed side says, or every answer, with a recompute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import Output, OutputOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from batch_layer.consistency import Compared
    from infra.settings import Settings
    from views.declarations import Declarations
    from views.source import Source
    from views.view import View

DIFFERS, NOT_COMPARED = "DIFFERS", "not compared"
NOTHING_COMPARED = 3
"""The exit code where no view could be compared."""


def command(
    views: Annotated[list[str] | None, typer.Argument(help="Names of views; all if none is given.")] = None,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch",
            envvar="TIDEMARK_CLI_FROM_SCRATCH",
            help="Compare merged answers over all of history with a recompute from every event.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare what the speed side says now with the events of the same offsets.

    Exit code 1: something differs; 3: nothing could be compared, and nothing is known.
    A view whose speed side is wrong is set aside, and one that is found right comes back, as after a batch run. With
    --from-scratch nothing is changed: answers are compared with the reference interpreter over the master dataset,
    with bounded memory (consistency_events), however long that takes.
    """
    from infra import terminal
    from infra.logs import configure_logging
    from infra.settings import load_settings
    from views.declarations import declared_by

    settings = load_settings()
    configure_logging("WARNING")  # results alone go to stdout
    declarations = declared_by(settings)
    chosen = [declarations.view(name) for name in views] if views else list(declarations.views.values())
    check = _answers if from_scratch else _speed_sides
    threshold = 0.0 if from_scratch else settings.consistency_threshold  # of answers nothing may be wrong
    rows = [_row(found, threshold) for found in check(settings, declarations, chosen)]
    terminal.print_result(rows, output, "No view is declared.")
    if rows and all(row["result"] == NOT_COMPARED for row in rows):
        terminal.err.print("Nothing was compared: whether anything differs is not known.", highlight=False)
    raise typer.Exit(_exit_code([row["result"] for row in rows]))


def _exit_code(results: list[str]) -> int:
    if DIFFERS in results:
        return 1
    return NOTHING_COMPARED if results and all(result == NOT_COMPARED for result in results) else 0


def _speed_sides(settings: Settings, declarations: Declarations, views: list[View]) -> Iterator[Compared]:
    from redis.exceptions import RedisError

    from infra.local_stack import addresses
    from infra.redis_clients import redis_client
    from serving_layer.verifying import speed_side
    from speed_layer.errors import SpeedError
    from speed_layer.speed_views import SpeedViews

    url = addresses(settings).redis
    with redis_client(settings, url, timeout_s=30) as client:
        for source, ours in _by_source(declarations, views):
            try:
                yield from speed_side(settings, SpeedViews(client, source.name), source, ours)
            except (RedisError, OSError) as error:
                raise SpeedError(f"Redis at {url} does not answer ({error}). `tidemark status` shows.") from None


def _answers(settings: Settings, declarations: Declarations, views: list[View]) -> Iterator[Compared]:
    from infra import terminal
    from serving_layer.answering import Answering
    from serving_layer.errors import NotComputedYet
    from serving_layer.verifying import from_scratch

    answering = Answering(settings, declarations)
    try:
        for source, ours in _by_source(declarations, views):
            served = []
            for view in ours:
                try:
                    served.append(answering.latest(view.name))
                except NotComputedYet as error:
                    terminal.err.print(error.detail, highlight=False, markup=False)
            if served:
                yield from from_scratch(settings, answering, source, served, terminal.err.print)
    finally:
        answering.close()


def _by_source(declarations: Declarations, views: list[View]) -> Iterator[tuple[Source, list[View]]]:
    for source in declarations.sources.values():
        ours = [view for view in views if view.source.name == source.name]
        if ours:
            yield source, ours


def _row(found: Compared, threshold: float) -> dict[str, Any]:
    result = NOT_COMPARED if found.why_not else "not explained" if found.not_explained else "equal"
    if found.is_above(threshold):
        result = DIFFERS
    return {
        "view": found.view,
        "result": result,
        "compared": found.compared,
        "differ": found.mismatched,
        "by late copies": found.excused,
        "more": found.why_not or "; ".join(found.examples),
    }
