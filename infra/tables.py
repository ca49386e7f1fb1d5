"""Results as tables that can be read in 80 columns: columns that fit, or one block a row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GAP = 2
"""Spaces between two columns."""
MIN_WRAPPED = 24
"""A column of sentences is never narrower than this."""
COLOURS = {
    "ready": "green", "ok": "green", "starting": "yellow", "waiting": "yellow", "pausing": "yellow",
    "warning": "yellow", "stopping": "yellow", "unresponsive": "red", "failed": "red", "stopped": "dim",
}  # fmt: skip
HEADINGS = {"marks": "seen ids"}
"""JSON members that keep an older name."""

Row = Mapping[str, Any]


def result_table(
    rows: Sequence[Row], width: int, *, as_is: Collection[str] = (), optional: Sequence[str] = (), group_by: str = ""
) -> RenderableType:
    """Rows with the same keys as a table, or as blocks where that would be wider than `width`.

    A table that is too wide loses the columns `optional`, in this order, before it becomes blocks. Rows with the same
    value of `group_by` stand under it as their heading. Numbers in the columns `as_is` have no separators.
    """
    if group_by:
        parts: list[RenderableType] = []
        for value in dict.fromkeys(row[group_by] for row in rows):
            own = [{name: row[name] for name in row if name != group_by} for row in rows if row[group_by] == value]
            parts += [Text(str(value), style="bold"), result_table(own, width, as_is=as_is, optional=optional), ""]
        return Group(*parts[:-1])
    names, left_out = list(dict.fromkeys(name for row in rows for name in row)), list(optional)
    cells = [{name: cell(row.get(name), is_exact=name in as_is) for name in names} for row in rows]
    while (widths := _fit(names, cells, width)) is None:
        dropped = next((name for name in left_out if name in names), None)
        if dropped is None:
            return blocks(rows, as_is=as_is)
        names.remove(dropped)
    numeric = {name for name in names if all(_is_number(row.get(name)) for row in rows)}
    return _table(names, cells, widths, numeric)


def blocks(rows: Sequence[Row], *, as_is: Collection[str] = ()) -> RenderableType:
    """One block a row: the first value as its heading, and a line for each other one that is not empty."""
    parts: list[RenderableType] = []
    for row in rows:
        (first, *_), shown = row, {name: cell(value, is_exact=name in as_is) for name, value in row.items()}
        pairs = {name: text for name, text in shown.items() if name != first and text}
        parts += [Text(shown[first], style="bold"), Padding(pairs_table(pairs), (0, 0, 0, 2))]
    return Group(*parts)


def pairs_table(pairs: Mapping[str, Any]) -> Table:
    """Names and their values, a line each. Long values go on under themselves."""
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(heading(name), coloured(cell(value)))
    return table


def cell(value: Any, *, is_exact: bool = False) -> str:
    """A value as a person reads it: 1,204 events, a cut as 0:120,1:98."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return str(value) if is_exact else f"{value:,}"
        case float():
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case Mapping():
            return ",".join(f"{name}:{each}" for name, each in value.items())
        case list() | tuple():
            return " ".join(map(str, value))
    return str(value)


def heading(name: str) -> str:
    """The name of a JSON member as a heading: `behind_s` -> `behind (s)`."""
    words = HEADINGS.get(name, name)
    return (f"{words[:-2]} (s)" if words.endswith("_s") else words).replace("_", " ")


def coloured(word: str) -> Text:
    """A state or verdict in its colour; anything else as it is."""
    return Text(word, style=COLOURS.get(word, ""))


def _table(names: Sequence[str], cells: Sequence[Row], widths: Mapping[str, int], numeric: Collection[str]) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(heading(name), width=widths[name], justify="right" if name in numeric else "left")
    for row in cells:
        table.add_row(*(coloured(row[name]) for name in names))
    return table


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | None) and not isinstance(value, bool)


def _fit(names: Sequence[str], cells: Sequence[Row], width: int) -> dict[str, int] | None:
    """How wide each column is, so that no word is broken; None where the table does not fit."""

    def longest(name: str, split: Callable[[str], Sequence[str]]) -> int:
        texts = (heading(name), *(row[name] for row in cells))
        return max((cell_len(part) for text in texts for part in split(text)), default=0)

    widths = {name: longest(name, str.splitlines) for name in names}
    spare = width - sum(widths.values()) - GAP * (len(names) - 1)
    wrapped = [name for name in names if widths[name] > MIN_WRAPPED and longest(name, str.split) < widths[name]]
    for name in sorted(wrapped, key=lambda each: -widths[each]):
        if spare < 0:
            narrower = max(widths[name] + spare, MIN_WRAPPED, longest(name, str.split))
            spare, widths[name] = spare + widths[name] - narrower, narrower
    return widths if spare >= 0 else None
