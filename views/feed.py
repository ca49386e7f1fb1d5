"""A feed: the changed answers of a view, as messages of a compacted Kafka topic that other systems read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from views.errors import AlertError, DeclarationError
from views.grain import parse_length
from views.source import NAME, TOPIC
from views.view import View

DEFAULT_BACK = "1d"


@dataclass(frozen=True)
class Feed:
    """Send changed answers of a view to a compacted topic: the key is the view's key and bucket, the newest wins.

        attempts_feed = Feed("attempts_feed", card_attempts)

    `topic` is `tidemark.feed.<name>` unless given. `by`: the answers of which of the view's keys, all of them unless
    given. `back`: how far back the topic is filled when the feed is new, and after each batch run.
    """

    name: str
    view: View
    topic: str = ""
    by: tuple[str, ...] | None = None
    back: str = DEFAULT_BACK
    doc: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.topic:
            object.__setattr__(self, "topic", f"tidemark.feed.{self.name}")
        for problem in self._problems():
            raise AlertError(f"Feed {self.name!r}: {problem}")
        if self.by is None:
            object.__setattr__(self, "by", tuple(self.view.keys))
        self.back_s  # noqa: B018  computed now: a problem is reported where it was declared

    @property
    def keys(self) -> tuple[str, ...]:
        """The view's keys that its messages are about."""
        return self.by or ()

    @cached_property
    def back_s(self) -> int:
        """How far back it is filled, in seconds."""
        try:
            return parse_length(self.back)
        except DeclarationError as error:
            raise AlertError(f"Feed {self.name!r}: back: {error}") from None

    def _problems(self) -> Iterator[str]:
        given: Any = self
        if not isinstance(given.name, str) or not re.fullmatch(NAME, given.name):
            yield "a name consists of lower-case letters, digits and underscores, and begins with a letter."
        if not isinstance(given.view, View):
            yield f"view is {given.view!r}; it should be a View."
        if not isinstance(given.topic, str) or not TOPIC.fullmatch(given.topic) or given.topic in (".", ".."):
            yield f"{given.topic!r} is not a topic name; Kafka allows letters, digits, '.', '_' and '-'."
        if given.by is not None and not isinstance(given.by, tuple):
            yield f"by is {given.by!r}; it should be a tuple of names like ('url',)."
        for name in given.by or ():
            if name not in given.view.keys:
                there = ", ".join(given.view.keys) or "none"
                yield f"by names {name!r}, which is not a key of {given.view.name!r}. There are: {there}."
