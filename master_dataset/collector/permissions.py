"""Which sources, topics and subjects a request's key may use: the problem 403 for others, and lists without them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from infra.rest.access import not_allowed
from infra.rest.access_keys import AccessKey
from infra.rest.key_limits import NO_LIMITS, KeyLimits
from infra.rest.problems import Problem
from views.declarations import Declarations
from views.source import Source

MAX_SHOWN = 260


@dataclass(frozen=True)
class Permissions:
    """What one request may use. `key` is None where no key is needed: everything."""

    declarations: Declarations
    key: AccessKey | None

    @property
    def limits(self) -> KeyLimits:
        """The limits of the key."""
        return NO_LIMITS if self.key is None else self.key.limits

    @property
    def owner(self) -> str:
        """The name of the key, for what belongs to the key that made it."""
        return "" if self.key is None else self.key.name

    def source(self, name: str) -> Source:
        """A declared source that the key may use; the problem 404 names those there are, 403 what the key may use."""
        source = self.declarations.sources.get(name)
        if source is not None and self.limits.allows_source(source.name, source.topic):
            return source
        if self.key is not None and self.limits.has_limited_topics:
            raise not_allowed(self.key, f"the source {name[:100]!r}", self.limits.describe_topics())
        known = ", ".join(sorted(self.declarations.sources)) or "none"
        raise Problem(404, "unknown-source", f"There is no source {name[:100]!r}. There are: {known}.")

    def allows_topic(self, topic: str) -> bool:
        """Whether the key may use a topic."""
        source = self.declarations.source_of_topic(topic)
        return self.limits.allows_topic(topic, source.name if source else None)

    def allows_subject(self, subject: str) -> bool:
        """Whether the key may use a subject of the schema registry."""
        limits = self.limits
        if limits.subjects is not None or not limits.has_limited_topics:
            return limits.subjects is None or limits.names_subject(subject)
        topic, _, part = subject.rpartition("-")
        return part in ("key", "value") and self.allows_topic(topic)

    def check_subject(self, subject: str) -> None:
        """Raise the problem 403 for a subject that the key may not use, whether there is such a subject or not."""
        if self.key is not None and not self.allows_subject(subject):
            raise not_allowed(self.key, f"the subject {subject[:MAX_SHOWN]!r}", self.limits.describe_subjects())

    def check_all_subjects(self) -> None:
        """Raise the problem 403 for a key that is limited to some subjects."""
        if self.key is not None and self.limits.has_limited_subjects:
            asked = "what counts for all subjects"
            raise not_allowed(self.key, asked, self.limits.describe_subjects())

    def check_topics(self, topics: Iterable[str]) -> None:
        """Raise the problem 403 for a topic that the key may not use, whether there is such a topic or not."""
        for topic in topics:
            if self.key is not None and not self.allows_topic(topic):
                raise not_allowed(self.key, f"the topic {topic[:MAX_SHOWN]!r}", self.limits.describe_topics())

    def check_unlimited(self, asked: str) -> None:
        """Raise the problem 403 for a key that is limited to some sources or topics."""
        if self.key is not None and self.limits.has_limited_topics:
            raise not_allowed(self.key, asked, self.limits.describe_topics())
