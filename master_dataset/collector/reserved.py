"""What REST producers may not write, whatever their key: topics and headers of Tidemark's own.

Alert notifications, feeds and dead letters are believed because Tidemark alone writes them.
"""

from __future__ import annotations

from infra.rest.problems import Problem
from master_dataset.registry.topic import SCHEMAS_TOPIC
from views.declarations import ALERTS_TOPIC, Declarations

OWN_PREFIX = "tidemark."
DEAD_SUFFIX = ".dead"
HEADER_PREFIX = "tidemark-"
KAFKAS_PREFIX = "__"
MAX_SHOWN = 260


def check_writable(declarations: Declarations, topic: str) -> None:
    """Raise the problem 403 for a topic that only Kafka or Tidemark itself writes."""
    if topic == SCHEMAS_TOPIC:
        raise Problem(
            403,
            "reserved-topic",
            f"The topic {topic!r} is reserved: it holds the registry's schemas. Register them at /schema-registry.",
            topic=topic,
        )
    if topic.startswith(KAFKAS_PREFIX):
        raise Problem(
            403, "internal-topic", f"{topic[:MAX_SHOWN]!r} is one of Kafka's own topics; nobody else writes there."
        )
    holds = what_it_holds(declarations, topic)
    if holds:
        raise Problem(
            403,
            "reserved-topic",
            f"The topic {topic[:MAX_SHOWN]!r} is reserved: it holds {holds}, which Tidemark alone writes. "
            "Send to another topic; no key may write here.",
            topic=topic[:MAX_SHOWN],
        )


def check_header(name: str, where: str) -> None:
    """Raise the problem 422 for a header that says where a record comes from: Tidemark alone adds those."""
    if name.lower().startswith(HEADER_PREFIX):
        raise Problem(
            422,
            "reserved-header",
            f"The header {name[:MAX_SHOWN]!r} at {where} is reserved: names that begin with {HEADER_PREFIX!r} are "
            "added by Tidemark alone. Leave it out, or choose another name. Nothing was stored.",
            where=where,
            header=name[:MAX_SHOWN],
        )


def what_it_holds(declarations: Declarations, topic: str) -> str:
    """What a reserved topic holds; empty where it is none. The topic of a declared source is none, whatever its name.

    Topics of sources and feeds that are no longer declared, or not yet, are recognized by their names.
    """
    if any(topic == source.topic for source in declarations.sources.values()):
        return ""  # a declaration cannot give a source one of the topics below
    if topic == ALERTS_TOPIC:
        return "alert notifications"
    if topic.endswith(DEAD_SUFFIX):
        return "dead letters"
    if any(topic == feed.topic for feed in declarations.feeds.values()):
        return "a feed"
    return "a feed or other messages" if topic.startswith(OWN_PREFIX) else ""
