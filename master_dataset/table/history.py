"""The history of a master table as it is asked for often: the summary of what is sealed, and the commits after it.

So what a reader needs is read in the same time after a year as on the first day. Without a sound summary, `commits` are
all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from master_dataset.errors import MasterDatasetError
from master_dataset.table.delta_log import Commit, TableFile, parse_commit, read_log, read_sealed
from master_dataset.table.ledger import read_ledger_file
from master_dataset.table.proofs import Proof, proof_from_json
from master_dataset.table.segments import NOTHING, sealed_commits, sealed_until
from master_dataset.table.summary import Files, Summary, read_files, read_summary

TRIES = 20


@dataclass(frozen=True)
class History:
    """The history of a table at one moment."""

    table: Path
    summary: Summary | None
    sealed: int
    """The last version that is in a segment, or NOTHING."""
    commits: list[Commit] = field(default_factory=list)
    """Those after the summary, in order."""
    ledger: dict[int, Proof] = field(default_factory=dict)
    """Their proofs, as the ledger has them."""

    @property
    def first(self) -> int:
        """The first version that is not summed up."""
        return 0 if self.summary is None else self.summary.last + 1

    @property
    def in_log(self) -> list[Commit]:
        """The commits that are in no segment."""
        return [commit for commit in self.commits if commit.version > self.sealed]

    @property
    def newest(self) -> int:
        """The newest version; NOTHING if there is none."""
        return max([self.sealed, *(commit.version for commit in self.commits[-1:])])

    @cached_property
    def files(self) -> Files:
        """The data files of the newest version."""
        if self.summary is None:
            return Files().apply(self.commits)
        known = read_files(self.table, self.summary.last)
        if known is None:  # damaged, or removed while it was read; the segments have it all
            known = Files().apply(c for c in read_sealed(self.table) if c.version <= self.summary.last)
        return known.apply(self.commits)


def read_history(table: Path, *, afresh: bool = False, whole: bool = False) -> History:
    """The history of a table. With `afresh`, no cache is believed; with `whole`, no summary."""
    for _ in range(TRIES):
        # The ledger first: a commit made between the two readings is then ahead of it, not missing.
        ledger = read_ledger_file(table)
        sealed = sealed_until(table)
        summary = None if whole else read_summary(table, sealed)
        known = NOTHING if summary is None else summary.last
        commits = []
        for each in sealed_commits(table, known) if sealed > known else ():
            commits.append(parse_commit(each.version, each.text.encode(), None))
            if (proof := proof_from_json(each.proof)) is not None:
                ledger[each.version] = proof
        commits += read_log(table, after=sealed, afresh=afresh)
        if sealed_until(table) == sealed:  # else commits may have left the log before it was read
            newest = {version: proof for version, proof in ledger.items() if version > known}
            return History(table, summary, sealed, commits, newest)
    raise MasterDatasetError(f"The commits of {str(table)!r} were sealed {TRIES} times while they were read.")


def read_live_files(table: Path) -> dict[str, TableFile]:
    """The data files of the newest version, by path."""
    return read_history(table).files.live
