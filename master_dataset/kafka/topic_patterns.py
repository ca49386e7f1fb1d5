"""Which names of topics a pattern matches: a regular expression of RE2 that matches the whole name."""

from __future__ import annotations

from collections.abc import Sequence

MAX_PATTERN = 1000


class PatternError(Exception):
    """Why a pattern is no regular expression of RE2."""

    exit_code = 2


def matching_names(pattern: str, names: Sequence[str]) -> tuple[str, ...]:
    """Those that match. RE2 takes a time that grows with the name and not faster: the pattern may be a stranger's."""
    import pyarrow
    import pyarrow.compute

    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"it has {len(pattern)} characters; at most {MAX_PATTERN} are taken")
    try:
        whole = rf"\A(?:{pattern})\z"
        pyarrow.compute.match_substring_regex(pyarrow.array([""]), pattern=pattern)  # `a)|(b` is none
        found = pyarrow.compute.match_substring_regex(pyarrow.array(names, pyarrow.string()), pattern=whole)
    except pyarrow.ArrowInvalid as error:
        raise PatternError(str(error)[:200]) from None
    return tuple(name for name, does_match in zip(names, found.to_pylist(), strict=True) if does_match)
