"""`tidemark query`: query a view, from the files and Redis of this home, or at a serving layer by HTTP."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.table import Table

Pairs = list[tuple[str, str]]
Document = dict[str, Any]
MAX_SERIES = 20
BARS = "▁▂▃▄▅▆▇█"
TIMEOUT_S = 60.0


class QueryFailed(Exception):
    """A query without a result. The text says why, and what to do."""

    def __init__(self, text: str, status: int = 500) -> None:
        super().__init__(text)
        self.exit_code = 2 if status in (404, 406, 422) else 1


class QueryOutput(StrEnum):
    """How the result is printed."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"


def _option(help_: str, *names: str, variable: str = "") -> Any:
    envvar = f"TIDEMARK_CLI_{variable or names[0].strip('-').replace('-', '_').upper()}"
    return typer.Option(*names, envvar=envvar, help=help_, show_default=False)


def command(
    view: Annotated[str, typer.Argument(help="Name of the view; `tidemark views list` lists them.")],
    from_: Annotated[
        str | None, _option("Start of the range: 2026-03-01, 2026-03-01T12:00Z, -7d. Default: -24h.", "--from")
    ] = None,
    to: Annotated[str | None, _option("End of the range, exclusive. Default: now.", "--to")] = None,
    grain: Annotated[
        str | None, _option("Length of a period: 15m, hour, day, week, month. Default: the whole range.", "--grain")
    ] = None,
    tz: Annotated[str | None, _option("Time zone of days and times, like Europe/Berlin. Default: UTC.", "--tz")] = None,
    by: Annotated[str | None, _option("Comma-separated keys: one row for each of their values.", "--by")] = None,
    where: Annotated[
        list[str] | None,
        _option(
            "Filter on a key: url=/docs, url.not=/, url.prefix=/d, url.null=true. May be repeated.", "--where", "-w"
        ),
    ] = None,
    answers: Annotated[str | None, _option("Comma-separated answers. Default: all.", "--answers")] = None,
    quantiles: Annotated[str | None, _option("Additional quantiles, like 0.5,0.99.", "--quantiles")] = None,
    having: Annotated[str | None, _option("Only rows that meet this condition, like 'hits > 100'.", "--having")] = None,
    order: Annotated[
        str | None, _option("Columns to sort by; - in front is descending, like -hits.", "--order")
    ] = None,
    limit: Annotated[int | None, _option("Maximum number of rows.", "--limit", "-n")] = None,
    cursor: Annotated[str | None, _option("Continue after the page that printed this cursor.", "--cursor")] = None,
    compare: Annotated[
        str | None, _option("previous_period: each row with the answers of the range before.", "--compare")
    ] = None,
    window: Annotated[str | None, _option("Rolling window that ends with each period, like 7d.", "--window")] = None,
    fill: Annotated[bool, _option("Also print periods without events.", "--fill")] = False,
    explain: Annotated[
        bool, _option("Also print the answers of the batch view and the speed view.", "--explain")
    ] = False,
    max_staleness: Annotated[
        str | None, _option("Fail if the views are older than this, like 5s.", "--max-staleness")
    ] = None,
    min_cut: Annotated[
        str | None, _option("Fail if the views have not reached these offsets: 0:17,1:20.", "--min-cut")
    ] = None,
    wait: Annotated[str | None, _option("How long to wait for these two. Default: 2s.", "--wait")] = None,
    output: Annotated[
        QueryOutput, typer.Option("--output", "-o", envvar="TIDEMARK_CLI_OUTPUT", help="Format of the result.")
    ] = QueryOutput.TABLE,
    url: Annotated[
        str | None, _option("Query the serving layer at this address instead of this home.", "--url")
    ] = None,
    key: Annotated[
        str | None,
        _option("Its access key as name:secret. Use the variable: other users can see command lines.", "--key"),
    ] = None,
) -> None:
    """Query a view: a table, bars over time, and the provenance of the result.

    Without --url this needs neither an access key nor a running serving layer: it reads the home and its Redis.
    """
    given = {
        "from": from_, "to": to, "grain": grain, "tz": tz, "by": by, "answers": answers, "quantiles": quantiles,
        "having": having, "order": order, "limit": limit, "cursor": cursor, "compare": compare, "window": window,
        "fill": "zero" if fill else None, "explain": "true" if explain else None, "max_staleness": max_staleness,
        "min_cut": min_cut, "wait": wait,
    }  # fmt: skip
    pairs = [(name, str(value)) for name, value in given.items() if value is not None]
    pairs += [_filter(text) for text in where or ()]
    as_format = "json" if output is QueryOutput.TABLE else str(output)
    encoded, meta = _query_by_http(url, key, view, pairs, as_format) if url else _query_here(view, pairs, as_format)
    if output is not QueryOutput.TABLE:
        typer.echo(encoded, nl=False)
        typer.echo(_provenance(meta), err=True)
        return
    import orjson

    _print(orjson.loads(encoded))


def _filter(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise typer.BadParameter(f"{text!r} should be a key and a value like url=/docs.", param_hint="--where")
    return name, value


# ---- executing --------------------------------------------------------------------


def _query_here(name: str, pairs: Pairs, as_format: str) -> tuple[bytes, Document]:
    """From the files and Redis of this home. They are the user's own, so this needs no key."""
    import time

    from infra.logs import configure_logging
    from infra.settings import load_settings
    from serving_layer.engine import QueryEngine
    from serving_layer.errors import ServingError
    from serving_layer.query.limits import execution_limits, query_limits
    from serving_layer.query.parse import parse_query
    from serving_layer.rest import formats
    from views.declarations import declared_by

    settings = load_settings()
    configure_logging("WARNING")  # the last line names the run that is served
    declarations = declared_by(settings)
    declarations.view(name)
    try:
        engine = QueryEngine(settings, declarations, execution_limits(settings))
        try:
            query = parse_query(engine.served_view(name), pairs, now=time.time(), limits=query_limits(settings))
            result = engine.execute(query)
        finally:
            engine.close()
    except ServingError as error:
        raise QueryFailed(error.detail, error.status) from None
    return formats.body(result, formats.choose_format(as_format, None)), formats.meta(result.meta)


def _query_by_http(url: str, key: str | None, name: str, pairs: Pairs, as_format: str) -> tuple[bytes, Document]:
    import base64
    import http.client
    from urllib.parse import quote, urlencode, urlsplit

    import orjson

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise typer.BadParameter(f"{url!r} should be an address like http://127.0.0.1:8090.", param_hint="--url")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=TIMEOUT_S)
    headers = {"Authorization": f"Basic {base64.b64encode(key.encode()).decode()}"} if key else {}
    path = f"{parts.path.rstrip('/')}/views/{quote(name, safe='')}/query?{urlencode([*pairs, ('format', as_format)])}"
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise QueryFailed(f"The serving layer at {url} does not reply ({error}). Is it running?") from None
    finally:
        connection.close()
    if response.status != 200:
        raise QueryFailed(_detail(body) or f"{url} replied {response.status} {response.reason}.", response.status)
    if as_format == "csv":
        return body, orjson.loads(response.headers["Tidemark-Meta"])
    return body, orjson.loads(body.splitlines()[-1])["meta"]


def _detail(body: bytes) -> str:
    import orjson

    try:
        return str(orjson.loads(body)["detail"])
    except (ValueError, LookupError, TypeError):
        return ""


# ---- printing ------------------------------------------------------------------


def _print(document: Document) -> None:
    from infra import terminal
    from infra.tables import blocks

    rows, meta = document["rows"], document["meta"]
    if rows:
        columns = dict.fromkeys(name for row in rows for name in row)
        if _width(rows, columns) > terminal.out.width:
            terminal.out.print(blocks(_stacked(rows, meta)))
        else:
            terminal.out.print(_table(rows, columns))
        for line in _series(rows, list(meta["answers"])):
            terminal.out.print(line, highlight=False)
    else:
        typer.echo("No rows: no events in this range pass the filters.")
    if document["next"]:
        typer.echo(f"There are more rows: --cursor {document['next']}")
    typer.echo(_provenance(meta))


def _table(rows: Sequence[Document], columns: Iterable[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in columns:
        table.add_column(name, justify="right" if _is_numeric(rows, name) else "left")
    for row in rows:
        table.add_row(*(Text(_cell(row.get(name))) for name in columns))
    return table


def _width(rows: Sequence[Document], columns: Iterable[str]) -> int:
    """Of the table without any line broken: two spaces and a border for each column, and a last border."""
    texts = ((name, *(line for row in rows for line in _cell(row.get(name)).splitlines())) for name in columns)
    return 1 + sum(max(map(len, column)) + 3 for column in texts)


def _stacked(rows: Sequence[Document], meta: Document) -> list[dict[str, str]]:
    """A block for each row: its period and keys as the heading, then a line for each answer."""
    below = {*meta["answers"], *(f"{name}.quantiles" for name in meta["answers"]), "previous", "explain"}
    return [
        {
            "row": "  ".join(_cell(value) for name, value in row.items() if name not in below),
            **{name: _cell(value) for name, value in row.items() if name in below},
        }
        for row in rows
    ]


def _is_numeric(rows: Sequence[Document], name: str) -> bool:
    return any(_is_number(row.get(name)) for row in rows)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
        case dict():
            return "  ".join(f"{name} {_cell(each)}" for name, each in value.items())
        case list():
            return "\n".join(_cell(each) for each in value)
    return str(value)


def _series(rows: Sequence[Document], answers: Sequence[str]) -> Iterator[str]:
    """Bars for each group and numeric answer, where there are several periods."""
    buckets = sorted({row["bucket"] for row in rows}, key=datetime.fromisoformat)
    if len(buckets) < 3:
        return
    keys = [name for name in rows[0] if name not in (*answers, "bucket", "previous", "explain")]
    groups: dict[tuple[Any, ...], dict[str, Document]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in keys), {})[row["bucket"]] = row
    lines = [
        (*map(_cell, group), name, bars([by_bucket.get(bucket, {}).get(name) for bucket in buckets]))
        for group, by_bucket in groups.items()
        for name in answers
        if any(_is_number(row.get(name)) for row in by_bucket.values())
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines[:MAX_SERIES]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    if len(lines) > MAX_SERIES:
        yield f"… and {len(lines) - MAX_SERIES} more"


def bars(values: Sequence[Any]) -> str:
    """Numbers as a line of bars, from the smallest (or 0) to the largest; a gap for each missing one."""
    numbers = [float(value) if _is_number(value) else None for value in values]
    known = [number for number in numbers if number is not None]
    least, most = min([0.0, *known]), max([0.0, *known])
    span = most - least or 1.0
    return "".join(
        " " if number is None else BARS[round((number - least) / span * (len(BARS) - 1))] for number in numbers
    )


def _provenance(meta: Document) -> str:
    """One line: range, run, cut, lag and accuracy; before it a line if the result is degraded."""
    batch, speed = meta["batch"], meta["speed"]
    parts = [f"{meta['view']} {meta['range']['from']} to {meta['range']['to']}"]
    parts.append(f"run {batch['run']}, published {batch['published']}" if batch["run"] else "no batch run yet")
    parts.append(f"cut {' '.join(f'{partition}:{offset}' for partition, offset in meta['cut'].items()) or 'empty'}")
    if speed is not None and speed["lag_s"] is not None:
        parts.append(f"{speed['lag_s']:.1f} s behind")
    approximate = [f"{name} ({each['error']})" for name, each in meta["answers"].items() if not each["exact"]]
    parts.append(f"approximate: {', '.join(approximate)}" if approximate else "exact")
    text = "; ".join(parts)
    return f"DEGRADED: {meta['why']}\n{text}" if meta["degraded"] else text
