r"""Patterns of `like`, as regular expressions that never backtrack into what they have found.

    a%b_c%d -> a(?>.*?b.c).*d

Between two `%` stands text of a fixed length. Where it occurs first leaves the most room for the rest, so that no later
place needs to be tried: each part is searched once, from where the one before it ended. The usual translation,
`a.*b.c.*d`, tries all places of all parts, and a text of a thousand characters that matches nowhere stops a process
for seconds. Python and Java know atomic groups, `(?>...)`, and mean the same by everything else that is used here.
"""

from __future__ import annotations

import re
from functools import cached_property

from views.errors import ExpressionError
from views.types import literal

ESCAPABLE = ("%", "_", "\\")


class LikePattern:
    """A pattern: `%` is any text, `_` any character, and a backslash takes the meaning from these and itself."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._parts = _parts(pattern)

    @cached_property
    def regex(self) -> str:
        """A regular expression for whole texts, in which `.` has to match newlines too."""
        if len(self._parts) == 1:
            return self._parts[0]
        first, *between, last = self._parts
        return f"{first}{''.join(f'(?>.*?{part})' for part in between if part)}.*{last}"

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.regex, re.DOTALL)

    def matches(self, text: str) -> bool:
        """Whether the whole text is like this."""
        return self._compiled.fullmatch(text) is not None

    @property
    def backtracks(self) -> bool:
        """Whether Spark's own LIKE would try many places again.

        It does not where one part can be in several places and nothing after it can fail, as in `%x` and `a%x%`;
        and Spark's optimizer understands these.
        """
        return len(self._parts) > 2 and not (len(self._parts) == 3 and not self._parts[-1])


def without_backtracking(sql: str) -> str:
    r"""SQL of an expression with each LIKE that could backtrack as an RLIKE that does not.

    `(x LIKE '%a%b')` -> `(x RLIKE '(?s)\\A(?>.*?a).*b\\z')`. The first stays the text that expressions are compared by:
    it is part of what a view means, and views do not change because Spark is asked in another way.
    """
    return _TOKEN.sub(_translated, sql) if LIKE in sql else sql


LIKE = " LIKE "
_TOKEN = re.compile(rf"{LIKE}(?P<pattern>'(?:\\.|[^'\\])*+')|'(?:\\.|[^'\\])*+'|`[^`]*+`", re.DOTALL)
"""A pattern, or a text or name, in which LIKE means nothing."""
_ESCAPED = re.compile(r"\\(u0024|.)", re.DOTALL)


def _translated(token: re.Match[str]) -> str:
    written = token["pattern"]
    if written is None:
        return token[0]
    pattern = LikePattern(_ESCAPED.sub(lambda found: "$" if found[1] == "u0024" else found[1], written[1:-1]))
    if not pattern.backtracks:
        return token[0]
    whole = rf"(?s)\A{pattern.regex}\z"
    return f" RLIKE {literal(whole)}"


def _parts(pattern: str) -> list[str]:
    """What stands between the `%`, each as a regular expression of a fixed length, perhaps an empty one."""
    parts: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        match character:
            case "%":
                parts.append([])
            case "_":
                parts[-1].append(".")
            case "\\":
                escaped = next(characters, "")
                if escaped not in ESCAPABLE:
                    raise ExpressionError(f"like {pattern!r}: a backslash stands before %, _ or a backslash.")
                parts[-1].append(re.escape(escaped))
            case _:
                parts[-1].append(re.escape(character))
    return ["".join(part) for part in parts]
