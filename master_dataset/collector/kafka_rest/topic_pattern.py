"""Topics by a pattern: those whose whole name it matches, of those that a key may read."""

from __future__ import annotations

import asyncio

from infra.rest.problems import Problem
from master_dataset.collector.permissions import Permissions
from master_dataset.collector.reserved import KAFKAS_PREFIX
from master_dataset.collector.topic_cache import TopicCache

MAX_PATTERN = 1000


async def matching_topics(topics: TopicCache, allowed: Permissions, pattern: str) -> tuple[str, ...]:
    """The topics of now that match, without Kafka's own. The problem 400 for what is no regular expression."""
    known = [each for each in await topics.names() if not each.startswith(KAFKAS_PREFIX) and allowed.allows_topic(each)]
    return await asyncio.to_thread(_matching, pattern, known)


def _matching(pattern: str, names: list[str]) -> tuple[str, ...]:
    """By RE2, which takes a time that grows with the name and not faster: the pattern is a stranger's."""
    import pyarrow
    import pyarrow.compute

    if len(pattern) > MAX_PATTERN:
        raise _wrong(pattern, f"it has {len(pattern)} characters; at most {MAX_PATTERN} are taken")
    try:
        whole = rf"\A(?:{pattern})\z"
        pyarrow.compute.match_substring_regex(pyarrow.array([""]), pattern=pattern)  # `a)|(b` is none
        found = pyarrow.compute.match_substring_regex(pyarrow.array(names, pyarrow.string()), pattern=whole)
    except pyarrow.ArrowInvalid as error:
        raise _wrong(pattern, str(error)) from None
    return tuple(name for name, does_match in zip(names, found.to_pylist(), strict=True) if does_match)


def _wrong(pattern: str, reason: str) -> Problem:
    return Problem(
        400,
        "invalid-parameter",
        f"topic_pattern is {pattern[:100]!r}; it should be a regular expression of RE2, such as 'shop\\..*': "
        f"{reason[:200]}.",
        where="topic_pattern",
    )
