"""Words that docs/glossary.md retired are in no code, comment, message or page, except as names on the wire.

`python -m tests.unit.test_glossary` lists every hit: room, word, file and line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import repository_files

pytestmark = pytest.mark.process  # git says which files there are
ROOT = Path(__file__).parents[2]
TEXTS = {".py", ".md", ".js", ".html", ".css", ".lua", ".toml", ".yml", ".c", ".properties", ""}
"""What is read: names of files that end so; "" is for Makefile and the like."""

RETIRED = {
    "set aside, aside": r"aside",
    "batch side": r"batch sides?",
    "speed side": r"speed sides?",
    "told, untold": r"told(?! (?:not )?to\b)|untold",
    "tend": r"tend|tends|tended|tending|untended",
    "stretch": r"stretch|stretches",
    "touched": r"touched|untouched",
    "mark (a seen id)": r"marks",
    "copies (duplicates)": r"copies",
    "fact": r"facts?",
    "keeper": r"keepers?",
    "make anew": r"anew",
    "mend": r"mend|mends|mended|mending",
    "in vain": r"in vain",
}
"""Retired word -> pattern of the words it is made of, in any spelling: set_aside, SetAside, set-aside, set aside."""
RETIRED_NAMES = {
    "MOST_, LEAST_": r"\b_?(?:MOST|LEAST)_[A-Z]",
    "place (a fixture)": r"\b(?!test_)\w+(?<!in)_place\b|[a-z]Place\b",
}
"""Retired as a part of names, spelt exactly so."""
MAYBE = re.compile(
    r"side|told|tend|stretch|MOST|touched|marks|copies|fact|keeper|place|anew|mend|vain|LEAST", re.IGNORECASE
)
"""A line without any of this has no retired word: most lines are passed by quickly."""
PATTERNS = {word: re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE) for word, pattern in RETIRED.items()}

NOT_YET = frozenset(
    {"tests/browser", "tests/conftest.py", "tests/process", "tests/run.py", "tests/system", "tests/unit"}
)
"""Rooms that still use retired words. Take a room out when it is done; none may come in."""

NOT_READ = {
    "tests/browser/vendor/*": "not our words",
    "docs/glossary.md": "it lists the retired words",
    "tests/unit/test_glossary.py": "so does this test",
    "docs/decisions/0017-*.md": "it tells of the renaming",
    "LICENSE": "not our words",
    "*.lock": "names of packages",
    "benchmarks/results/*": "measured figures, with the names that they had",
}
WIRE = {
    r"(?:tidemark|…)_[a-z_]+": "metrics keep their names",
    r"TIDEMARK_[A-Z_]+": "settings keep their names",
    r"tidemark:\{[^}]*\}:[a-z.0-9]+": "keys in Redis keep their names",
    r"no-batch-side": "the type of a problem document",
    r"[\"'](?:run|tend)\.[a-z_]+[\"']": "failpoints keep their names: programmes of faults name them",
    r"\"by late copies\"": "a member of the JSON of `tidemark verify`",
    r"[\"'`]set_aside[\"'`]": "a member of JSON documents, and a label of metrics",
    r"[\"'`]copies[\"'`]": "a member of manifests",
    r"[\"'`]touched[\"'`]": "a key in Redis",
    r"[\"'`]marks[\"'`]": "a key in Redis",
    r"mended by commit": "a part of the manifest: another text would cost every installation a full run",
}
"""Names on the wire and on disk, which stay so that old data is readable. They are not looked at."""
ALLOWED = {
    ("serving_layer/dashboard/static/*", "fact"): "the class of a description list: facts about a thing",
    ("serving_layer/dashboard/static/chart.js", "marks"): "the marks of a chart: points, bars and lines",
    ("serving_layer/dashboard/static/style.css", "stretch"): "a value of CSS",
}
"""(file, a part of the line) -> why a retired word is right there."""


class Hit(NamedTuple):
    """A retired word in a line."""

    room: str
    word: str
    file: str
    line: int
    text: str


def words_of(line: str) -> str:
    """The words of a line, separated by spaces, whatever joined them: `SetAside`, `set_aside` and `set-aside` alike."""
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", line))


def room_of(name: str) -> str:
    """The first folder; of docs/ and tests/ also the second, or the page."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] in ("docs", "tests") else parts[0]


def hits() -> Iterator[Hit]:
    """Every retired word in the repository that no exception covers."""
    wire = re.compile("|".join(WIRE))
    for path in repository_files(ROOT):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix not in TEXTS or any(fnmatch(name, pattern) for pattern in NOT_READ):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if not MAYBE.search(line):
                continue
            for word in retired_words(wire.sub(" ", line)):
                if not any(fnmatch(name, file) and part in line for file, part in ALLOWED):
                    yield Hit(room_of(name), word, name, number, line.strip())
        for word in retired_words(name):
            yield Hit(room_of(name), word, name, 0, name)


def retired_words(text: str) -> list[str]:
    """Which of them a text has."""
    words = words_of(text)
    found = [word for word, pattern in PATTERNS.items() if pattern.search(words)]
    return [*found, *(word for word, pattern in RETIRED_NAMES.items() if re.search(pattern, text))]


@pytest.fixture(scope="module")
def all_hits() -> list[Hit]:
    return list(hits())


@pytest.mark.parametrize("word", [*RETIRED, *RETIRED_NAMES])
def test_no_room_uses_a_retired_word(word: str, all_hits: list[Hit]) -> None:
    found = [hit for hit in all_hits if hit.word == word and hit.room not in NOT_YET]
    assert not found, "\n".join(f"{hit.file}:{hit.line}: {word}: {hit.text}" for hit in found)


@pytest.mark.parametrize(
    "text", ["set_aside = 1", "SetAside", "a set-aside view", "told_live", "MOST_KEYS", "tests/speed_place.py"]
)
def test_retired_word_is_found_in_any_spelling(text: str) -> None:
    assert retired_words(text)


@pytest.mark.parametrize(
    "text", ["bedside", "marked", "copy a file", "at most", "factor", "recommend", "placed", "attend"]
)
def test_other_words_are_not_taken_for_retired_ones(text: str) -> None:
    assert not retired_words(text)


if __name__ == "__main__":
    every = list(hits())
    for hit in every:
        print(f"{hit.file}:{hit.line}: {hit.word}: {hit.text[:150]}")
    for (room, word), count in sorted(Counter((hit.room, hit.word) for hit in every).items()):
        print(f"{room:20} {word:24} {count:5}")
    for room, count in Counter(hit.room for hit in every).most_common():
        print(f"{room:20} {count:5}")
