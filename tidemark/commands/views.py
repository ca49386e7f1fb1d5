"""`tidemark views`: list, show and check the declared views, and create one of your own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tidemark.commands.notes import counts_since, since_of
from tidemark.commands.options import Output, OutputOption
from tidemark.commands.registry import KeyOption, UrlOption

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from views.declarations import Declarations
    from views.view import View

app = typer.Typer(no_args_is_help=True)

STARTER = '''\
"""$name: describe here in one sentence what it answers."""

from tidemark import Count, Distinct, Quantiles, Ratio, View
from views.catalog.web import web

# `web` is the example source: page views, clicks and sign-ups. For events of your own, import Source too, declare a
# source here and name it below. Another file in this folder can import it: `from .$name import orders`.
#
# orders = Source("orders", fields="event_id string, event_time timestamp, customer string, amount decimal(12, 2)")

$name = View(
    "$name",
    source=web,
    grain="1h",  # how long a bucket is, from 5s to 1d; queries may ask for longer times
    keys={"url": "properties.url"},  # one group for each value; {} for one group of all
    where="name = 'page_view'",  # Spark SQL over the fields of the source; leave it out to include every event
    answers={
        "hits": Count(),
        "visitors": Distinct("user_id"),
        "ms": Quantiles("properties.ms", at=(0.5, 0.99)),
        "slow": Count(where="properties.ms > 1000"),
        "slow_share": Ratio("slow", "hits"),  # computed from other answers when it is asked for
        # More: Sum, Min, Max, Average, Variance, StdDev, First, Last, TopK, Histogram; Derived("slow / hits * 100").
    },
    doc="Describe here what it answers: this text is shown beside the view.",
)
'''
"""What `tidemark views new` writes: it loads as it is."""


class Listed(NamedTuple):
    """A view and whether it is computed here."""

    view: View
    is_active: bool


EventsOption = Annotated[
    int, typer.Option(min=1, envvar="TIDEMARK_CLI_EVENTS", help="How many events to generate for each view.")
]
SeedOption = Annotated[
    int, typer.Option(min=0, envvar="TIDEMARK_CLI_SEED", help="The same seed gives the same events.")
]


@app.command("list")
def list_views(output: OutputOption = Output.TABLE) -> None:
    """List the views: yours and the catalog's. Active ones are computed here (settings: views_dir, examples)."""
    from infra import terminal

    rows = [
        {
            "view": view.name,
            "source": view.source.name,
            "keys": list(view.keys),
            "grain": view.grain,
            "answers": list(view.answers),
            "definition": view.hash if output is Output.JSON else view.hash[:12],
            "active": is_active,
        }
        for view, is_active in _listed().values()
    ]
    none = "No view is declared. `tidemark views new NAME` creates one."
    terminal.print_result(rows, output, none, optional=("definition", "keys"), group_by="source")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the view.")],
    sql: Annotated[
        bool,
        typer.Option("--sql", envvar="TIDEMARK_CLI_SQL", help="Also print the SQL by which Spark computes its states."),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a view: its source and filter, its keys and their types, its answers and their error bounds."""
    import json

    from infra import terminal
    from views.state_sql import state_sql

    view, is_active = _find([name])[0]
    keys = [
        {"key": key, "expression": view.keys[key], "type": typed.type.ddl()}
        for key, typed in view.key_expressions.items()
    ]
    answers = [_answer_row(view, answer) for answer in view.answers]
    if output is Output.JSON:
        found = {
            **_summary(view, is_active),
            "keys": keys,
            "answers": answers,
            "meaning": json.loads(view.definition()),
        }
        terminal.print_json({**found, "sql": state_sql(view)} if sql else found)
        return
    terminal.print_pairs(_summary(view, is_active))
    terminal.print_result(keys, output, "It has no keys: one group a bucket.")
    terminal.print_result(answers, output)
    if sql:
        typer.echo(state_sql(view))


@app.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which views.", show_default="all of them")
    ] = None,
    events: EventsOption = 500,
    seed: SeedOption = 0,
    spark: Annotated[
        bool,
        typer.Option("--spark", envvar="TIDEMARK_CLI_SPARK", help="Also compute them with Spark, and compare."),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check the laws of views on generated events: splits, order and duplicates change nothing. Exit code 1 if not.

    Also compares the fields of their sources with the master dataset of this home, and says which views lack records
    that retention removed.
    """
    from infra import terminal
    from views.laws import check_laws, hints

    found = _find(names)
    views = [view for view, _ in found]
    changed = _changed_sources([view for view, is_active in found if is_active])
    changes = _pending_changes([view for view, is_active in found if is_active])
    since = _since([view for view, is_active in found if is_active])
    rows: list[dict[str, Any]] = []
    with terminal.step_progress("checking") as progress:
        for done, view in enumerate(views):
            progress(done, len(views), view.name)
            rows.append(
                {
                    "view": view.name,
                    "events": events,
                    "seed": seed,
                    "broken": check_laws(view, seed=seed, events=events),
                    "hints": hints(view, seed=seed, events=events),
                    "source changed": changed.get(view.source.name),
                    "source changes": changes.get(view.source.name, []),
                    "since": since.get(view.name),
                }
            )
        if spark:
            progress(len(views), len(views), "with Spark")
            differences = _differences_of_spark(views, events, seed)
            rows = [{**row, "broken": [*row["broken"], *differences[row["view"]]]} for row in rows]
    if output is Output.JSON:
        terminal.print_json(rows)
    else:
        shown = [
            {
                "view": row["view"],
                "events": row["events"],
                "laws": _verdict(row, with_spark=spark),
                "hints": row["hints"],
            }
            for row in rows
        ]
        terminal.print_result(shown, output, "No view is declared.")
        for sentence in (*(sentence for row in rows for sentence in row["broken"]), *changed.values()):
            typer.echo(sentence)
        for name, each in changes.items():
            typer.echo(f"Source {name!r} changes at the next batch run: {'; '.join(each)}.")
        for name, counted in since.items():
            typer.echo(counts_since(name, counted))
    raise typer.Exit(1 if changed or any(row["broken"] for row in rows) else 0)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the view: what it answers, like page_hits.")],
    folder: Annotated[
        Path | None,
        typer.Option("--dir", envvar="TIDEMARK_CLI_DIR", help="Folder to write to.", show_default="views_dir"),
    ] = None,
    from_subject: Annotated[
        str | None,
        typer.Option(
            "--from-subject",
            envvar="TIDEMARK_CLI_FROM_SUBJECT",
            help="Declare a source by the latest schema of this subject, such as orders-value, and view its events.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            envvar="TIDEMARK_CLI_TOPIC",
            help="With --from-subject: the topic that has the records, where the subject is named after them alone.",
            show_default="by the subject: TOPIC-value or TOPIC-RECORD",
        ),
    ] = None,
    id_field: Annotated[
        str,
        typer.Option(
            "--id-field", envvar="TIDEMARK_CLI_ID_FIELD", help="With --from-subject: which field is an event's id."
        ),
    ] = "event_id",
    time_field: Annotated[
        str,
        typer.Option(
            "--time-field", envvar="TIDEMARK_CLI_TIME_FIELD", help="With --from-subject: which field is its time."
        ),
    ] = "event_time",
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Create a view of your own: write a file that works as it is, with comments on what to change.

    With --from-subject the schema is written beside it; --url and --key are for the registry that has the subject.
    """
    import shlex
    from string import Template

    from infra.settings import load_settings

    settings = load_settings()
    target = folder.absolute() if folder else settings.views_dir
    if target is None:
        raise typer.BadParameter("name the folder to write to: --dir my_views, or the setting views_dir.")
    declared = _check_name(name, settings, target)
    path = target / f"{name}.py"
    if from_subject is None:
        files = {path.name: Template(STARTER).substitute(name=name)}
    else:
        from tidemark.commands.registry import latest_version
        from tidemark.commands.subject_view import Roles, check_names_a_topic, first_view

        check_names_a_topic(from_subject, topic)
        _check_absent([path])
        found = latest_version(from_subject, url, key)
        roles = Roles(id_field, time_field)
        files = first_view(name, from_subject, found, roles, declared.sources.values(), topic)
    _check_absent(target / file for file in files)
    target.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        try:
            with (target / file).open("x", encoding="utf-8") as opened:
                opened.write(text)
        except FileExistsError:
            raise typer.BadParameter(f"{target / file} exists already, and was not changed.") from None
    prefix = "" if target == settings.views_dir else f"TIDEMARK_VIEWS_DIR={shlex.quote(str(target))} "
    typer.echo(
        f"Wrote {' and '.join(str(target / file) for file in reversed(files))}. It is a view already; make it yours, "
        "then:\n"
        f"  {prefix}tidemark views check {name}   tries its laws on made-up events\n"
        f"  {prefix}tidemark views show {name}    shows what Tidemark understood\n"
        f"  {prefix}tidemark up                   computes it from then on"
    )


# ---- what the commands share ---------------------------------------------------


def _listed() -> dict[str, Listed]:
    """By name: what runs here and, beside it, what the catalog could add."""
    from infra.settings import load_settings
    from views.declarations import ALL_EXAMPLES, declared_by, load_declarations

    settings = load_settings()
    active = declared_by(settings).views
    others = load_declarations(examples=ALL_EXAMPLES).views if settings.with_examples else {}
    return {name: Listed(view, name in active) for name, view in sorted({**others, **active}.items())}


def _find(names: Sequence[str] | None) -> list[Listed]:
    """The named views, or all."""
    from views.declarations import Declarations

    listed = _listed()
    declared = Declarations({}, {name: each.view for name, each in listed.items()})
    return [listed[declared.view(name).name] for name in names] if names else list(listed.values())


def _check_absent(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists():
            raise typer.BadParameter(f"{path} exists already, and was not changed.")


def _check_name(name: str, settings: Any, target: Path) -> Declarations:
    """Refuse a name that no view can have, that Python cannot, or that a view has. Gives what is declared."""
    import keyword

    from views.declarations import load_declarations
    from views.source import NAME

    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise typer.BadParameter(
            f"{name!r} cannot be the name of a view: lower-case letters, digits and underscores, a letter first, and "
            "no word of Python."
        )
    declared = load_declarations(
        target if target.is_dir() else None, with_catalog=settings.with_examples, examples=settings.examples
    )
    if name in declared.views and not (target / f"{name}.py").exists():
        raise typer.BadParameter(
            f"there is a view {name!r} already: `tidemark views show {name}`. Choose another name."
        )
    return declared


def _summary(view: View, is_active: bool) -> dict[str, Any]:
    return {
        "view": view.name,
        "doc": view.doc,
        "source": view.source.name,
        "grain": view.grain,
        "where": view.where,
        "definition": view.hash,
        "active": is_active,
    }


def _answer_row(view: View, name: str) -> dict[str, Any]:
    from views.aggregates import Aggregate

    answer = view.answers[name]
    if not isinstance(answer, Aggregate):
        return {"answer": name, "aggregate": "Derived", "expression": answer.of, "where": None, "error": "as its parts"}
    options = ", ".join(f"{option}={value}" for option, value in answer.meaning().items())
    return {
        "answer": name,
        "aggregate": f"{type(answer).__name__}({options})",
        "expression": answer.expression(),
        "where": answer.where,
        "error": view.algebras[name].error or "exact",
    }


def _pending_changes(views: Sequence[View]) -> dict[str, list[str]]:
    """By source: what its declaration changes when it is adopted."""
    from infra.settings import load_settings
    from master_dataset.table.readings import pending_changes

    settings, sources = load_settings(), {view.source.name: view.source for view in views}
    found = {name: pending_changes(settings, source) for name, source in sources.items()}
    return {name: changes for name, changes in found.items() if changes}


def _changed_sources(views: Sequence[View]) -> dict[str, str]:
    """The sources of views whose fields are not those of their master tables, and what differs."""
    from infra.settings import load_settings
    from master_dataset.table.readings import changed_sources

    return changed_sources(load_settings(), {view.source.name: view.source for view in views}.values())


def _since(views: Sequence[View]) -> dict[str, Mapping[str, Any]]:
    """Of the views that do not count from the first record on: from where on they do."""
    from infra.settings import load_settings

    settings = load_settings()
    return {view.name: since for view in views if (since := since_of(settings, view)) is not None}


def _verdict(row: dict[str, Any], *, with_spark: bool) -> str:
    return "broken" if row["broken"] else "hold, with Spark too" if with_spark else "hold"


def _differences_of_spark(views: Sequence[View], events: int, seed: int) -> dict[str, list[str]]:
    from infra.home import Home
    from infra.settings import load_settings
    from infra.spark.session import spark_session
    from views.on_spark.laws import check_spark

    settings = load_settings()
    session = spark_session(settings, "tidemark-views", output=Home(settings.home).log_file("views"))
    try:
        return check_spark(session, views, seed=seed, events=events)
    finally:
        session.stop()
