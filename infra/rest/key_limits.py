"""What a key is limited to: patterns of sources, topics, views and subjects of the schema registry.

`*` stands for any characters and `?` for one, as in a shell. Sources and topics add up: a source brings its topic and
its dead letters, and a topic brings the source that reads it. Patterns of views decide which views may be queried;
a key without any that is limited to sources or topics sees the views of these sources. So it is with subjects: without
patterns of their own, a limited key uses the subjects `<topic>-key` and `<topic>-value` of its topics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

PATTERN = re.compile(r"[A-Za-z0-9._*?-]{1,249}")
WILDCARDS = frozenset("*?")
MAX_PATTERNS = 100
MAX_SHOWN = 10

Patterns = tuple[str, ...] | None
"""None: no limit. An empty tuple: nothing."""


@dataclass(frozen=True)
class KeyLimits:
    """The patterns of one key."""

    sources: Patterns = None
    topics: Patterns = None
    views: Patterns = None
    subjects: Patterns = None

    @property
    def has_limited_topics(self) -> bool:
        """Whether it is limited to some sources or topics."""
        return self.sources is not None or self.topics is not None

    @property
    def has_limited_views(self) -> bool:
        """Whether there are views that it may not see."""
        return self.views is not None or self.has_limited_topics

    def allows_source(self, source: str, topic: str) -> bool:
        """Whether it may use a source: one that is named, or whose topic is."""
        return not self.has_limited_topics or _matches(source, self.sources) or _matches(topic, self.topics)

    def allows_topic(self, topic: str, source: str | None) -> bool:
        """Whether it may use a topic. `source` is the one whose records or dead letters it holds, if any."""
        is_of_source = source is not None and _matches(source, self.sources)
        return not self.has_limited_topics or is_of_source or _matches(topic, self.topics)

    def allows_view(self, view: str, source: str, topic: str) -> bool:
        """Whether it may query a view, which is computed from a source with a topic."""
        return _matches(view, self.views) if self.views is not None else self.allows_source(source, topic)

    def names_view(self, view: str) -> bool:
        """Whether a view of this name would be allowed, if there were one: then "there is none" gives nothing away."""
        return not self.has_limited_views or (self.views is not None and _matches(view, self.views))

    @property
    def has_limited_subjects(self) -> bool:
        """Whether there are subjects that it may not use."""
        return self.subjects is not None or self.has_limited_topics

    def names_subject(self, subject: str) -> bool:
        """Whether a subject is among those that are named."""
        return _matches(subject, self.subjects)

    def describe_subjects(self) -> str:
        """Which subjects it may use, for a message: `the subjects web-*`."""
        if self.subjects is not None:
            return _named("subject", self.subjects) or "no subject"
        return f"the subjects of {self.describe_topics()}"

    def describe_topics(self) -> str:
        """What it may write and read, for a message: `the source web, the topics shop.*, orders`."""
        named = [_named("source", self.sources), _named("topic", self.topics)]
        return " and ".join(filter(None, named)) or "no source and no topic"

    def describe_views(self) -> str:
        """What it may query, for a message: `the views page_*, signups`."""
        if self.views is not None:
            return _named("view", self.views) or "no view"
        return f"the views of {self.describe_topics()}"


NO_LIMITS = KeyLimits()


def wrong_pattern(patterns: Iterable[str]) -> str | None:
    """The first text that is not a pattern."""
    return next((each for each in patterns if not PATTERN.fullmatch(each)), None)


def without_wildcards(names: Iterable[str]) -> tuple[str, ...]:
    """The names among these. Tidemark 0.1.0 knew no patterns: `*` was a name that nothing has."""
    return tuple(name for name in names if WILDCARDS.isdisjoint(name))


def _matches(name: str, patterns: Patterns) -> bool:
    return patterns is not None and any(fnmatchcase(name, pattern) for pattern in patterns)


def _named(kind: str, patterns: Patterns) -> str:
    if not patterns:
        return ""
    shown = ", ".join(patterns[:MAX_SHOWN]) + (", …" if len(patterns) > MAX_SHOWN else "")
    return f"the {kind}{'s' if len(patterns) > 1 or not WILDCARDS.isdisjoint(patterns[0]) else ''} {shown}"
