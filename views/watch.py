"""A watch: every matching event of a source is counted, and pushed to subscribers as it arrives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from views.errors import AlertError, ExpressionError
from views.expressions import parse_condition
from views.source import NAME, Source
from views.typed_expression import TypedExpression
from views.view import event_scope


@dataclass(frozen=True)
class Watch:
    """Search a stream: `where` is Spark SQL over the source's fields, as a view has it.

    server_errors = Watch("server_errors", web, where="properties.status >= 500")
    """

    name: str
    source: Source
    where: str
    doc: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise AlertError(f"Watch {self.name!r}: {problem}")
        self.condition  # noqa: B018  computed now: a problem is reported where it was declared

    @cached_property
    def condition(self) -> TypedExpression:
        """Which events match."""
        try:
            return parse_condition(self.where, event_scope(self.source))
        except ExpressionError as error:
            raise AlertError(f"Watch {self.name!r}, where: {error}") from None

    def _problems(self) -> Iterator[str]:
        given: Any = self
        if not isinstance(given.name, str) or not re.fullmatch(NAME, given.name):
            yield "a name consists of lower-case letters, digits and underscores, and begins with a letter."
        if not isinstance(given.source, Source):
            yield f"source is {given.source!r}; it should be a Source."
