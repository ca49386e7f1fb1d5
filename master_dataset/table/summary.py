"""The summary of all sealed commits: which offsets they hold, and which files. It saves reading the segments.

A summary can be made again from the segments at any time. Its first line is small and has the offsets; the second has
the files. Each line begins with its digest, and a summary with a wrong one counts as none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from infra.store import ObjectMissing
from master_dataset.table.delta_log import Commit, TableFile
from master_dataset.table.digest import digest_of
from master_dataset.table.proofs import Kind
from master_dataset.table.segments import store_of

PREFIX = "summaries/"
FORMAT = 1
READABLE = frozenset({1})
KEPT = 2
"""How many summaries stay: a reader may just be reading the one before the newest."""
FIRST_READ = 64 * 1024


class ReplacedFile(NamedTuple):
    """A data file that left the table, by the commit `by` of a kind, at a time."""

    file: TableFile
    by: int
    kind: str
    at_ms: int


@dataclass
class Files:
    """The data files of a table: those that a reader reads, and those that were replaced and may still be there."""

    live: dict[str, TableFile] = field(default_factory=dict)
    replaced: dict[str, ReplacedFile] = field(default_factory=dict)

    def apply(self, commits: Iterable[Commit]) -> Files:
        """The files after these commits too. One that comes back belongs to the commit that first added it."""
        for commit in commits:
            kind = commit.proof.kind if commit.proof else Kind.VOID
            for path in commit.removed:
                if (file := self.live.pop(path, None)) is not None:
                    self.replaced[path] = ReplacedFile(file, commit.version, kind, commit.at_ms)
            for file in commit.added:
                before = self.replaced.pop(file.path, None)
                self.live[file.path] = self.live.get(file.path, before.file if before else file)
        return self

    @property
    def known(self) -> set[str]:
        """The paths of all of them: a file that is not among them was named by no commit."""
        return {*self.live, *self.replaced}


@dataclass(frozen=True)
class Summary:
    """What the commits up to `last` hold: the coverage as JSON."""

    last: int
    held: dict[str, Any]


def write_summary(table: Path, summary: Summary, files: Files) -> None:
    """Write a summary, and remove all but the newest. The caller holds `commit_lock`."""
    store, name = store_of(table), _name(summary.last)
    head = {"tidemark_summary": FORMAT, "last": summary.last, "held": summary.held}
    live = [list(file) for file in files.live.values()]
    replaced = [[list(each.file), each.by, each.kind, each.at_ms] for each in files.replaced.values()]
    text = _line(head) + _line({"live": live, "replaced": replaced})
    if not store.put_if_absent(name, text):  # one that was damaged
        store.delete(name)
        store.put_if_absent(name, text)
    for old in [*store.list(PREFIX)][:-KEPT]:
        store.delete(old)


def read_summary(table: Path, until: int) -> Summary | None:
    """The newest sound summary of no commit above `until`."""
    for version in _newest_first(table, until):
        line = _read_line(table, version, 0)
        if line is not None and line.get("tidemark_summary") in READABLE and line["last"] == version:
            return Summary(version, line["held"])
    return None


def read_files(table: Path, last: int) -> Files | None:
    """The files of the summary of this version; None where that is damaged."""
    line = _read_line(table, last, 1)
    if line is None:
        return None
    live = {each[0]: TableFile(*each) for each in line["live"]}
    replaced = {file[0]: ReplacedFile(TableFile(*file), *rest) for file, *rest in line["replaced"]}
    return Files(live, replaced)


def summed_up(table: Path) -> int:
    """The last version of the newest summary, sound or not; -1 if there is none."""
    return max(map(_version, store_of(table).list(PREFIX)), default=-1)


def _newest_first(table: Path, until: int) -> Iterator[int]:
    versions = map(_version, store_of(table).list(PREFIX))
    yield from sorted((version for version in versions if 0 <= version <= until), reverse=True)


def _name(last: int) -> str:
    return f"{PREFIX}{last:020}"


def _version(name: str) -> int:
    text = name.removeprefix(PREFIX)
    return int(text) if text.isdigit() else -1


def _line(value: object) -> bytes:
    text = orjson.dumps(value)
    return digest_of(text).encode() + b" " + text + b"\n"


def _read_line(table: Path, version: int, number: int) -> dict[str, Any] | None:
    """One of the two lines. The first is read without the second, which is as long as the list of files."""
    store, name = store_of(table), _name(version)
    try:
        content = store.get(name, 0, FIRST_READ) if number == 0 else store.get(name)
        if number == 0 and b"\n" not in content:
            content = store.get(name)
    except (ObjectMissing, OSError):
        return None
    digest, _, text = b"".join(content.split(b"\n")[number : number + 1]).partition(b" ")
    return orjson.loads(text) if digest == digest_of(text).encode() else None
