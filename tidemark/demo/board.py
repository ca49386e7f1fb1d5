"""The demo's table of queries, answers and proofs: it changes in place in a terminal, and is printed once elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from infra import terminal
from infra.tables import result_table


class Board:
    """The newest answer to each query."""

    def __init__(self) -> None:
        self._rows: dict[str, Mapping[str, Any]] = {}
        self._stage = self._cut = ""
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the table on the terminal while the context lasts; elsewhere, print it at the end."""
        if not terminal.out.is_terminal:
            try:
                yield
            finally:
                terminal.out.print(self.render())
            return
        with Live(console=terminal.out, auto_refresh=False, vertical_overflow="visible") as self._live:
            yield

    def update(self, stage: str, rows: Mapping[str, Mapping[str, Any]], cut: str) -> None:
        """Replace the rows of these queries."""
        self._stage, self._cut = stage, cut
        self._rows.update(rows)
        if self._live is not None:
            self._live.update(self.render(), refresh=True)

    def render(self) -> RenderableType:
        """The table as it is now."""
        if not self._rows:
            return ""
        rows = [{"query": query, **row} for query, row in self._rows.items()]
        title = Text(f"{self._stage}, at the cut {self._cut}", style="bold")
        return Group("", title, result_table(rows, terminal.out.width, optional=("speed", "batch")))
