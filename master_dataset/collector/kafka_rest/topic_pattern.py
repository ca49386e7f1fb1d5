"""Topics by a pattern: those whose whole name it matches, of those that a key may read."""

from __future__ import annotations

import asyncio

from infra.rest.problems import Problem
from master_dataset.collector.permissions import Permissions
from master_dataset.collector.reserved import KAFKAS_PREFIX
from master_dataset.collector.topic_cache import TopicCache
from master_dataset.kafka.topic_patterns import PatternError, matching_names


async def matching_topics(topics: TopicCache, allowed: Permissions, pattern: str) -> tuple[str, ...]:
    """The topics of now that match, without Kafka's own. The problem 400 for what is no regular expression."""
    known = [each for each in await topics.names() if not each.startswith(KAFKAS_PREFIX) and allowed.allows_topic(each)]
    try:
        return await asyncio.to_thread(matching_names, pattern, known)
    except PatternError as error:
        raise Problem(
            400,
            "invalid-parameter",
            f"topic_pattern is {pattern[:100]!r}; it should be a regular expression of RE2, such as 'shop\\..*': "
            f"{error}.",
            where="topic_pattern",
        ) from None
