"""The master dataset as a run sees it: checked, waited for, and counted below the run's cut."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from batch_layer.duplicates_in_memory import count_from
from batch_layer.progress import Report
from batch_layer.upstream import Refusal
from hand_off.errors import BatchError, NothingArchived
from hand_off.generations import Opening
from master_dataset.archiver.commit_request import ask_for_commit
from master_dataset.cut import Cut, count_between, cut_to_json, is_below
from master_dataset.reading.read_spark import count_records
from master_dataset.table.checks.fsck import TableDamaged, quick_check
from master_dataset.table.coverage import Coverage, below, of_history
from master_dataset.table.history import History, read_history

LOOK_S = 0.5


@dataclass
class MasterSnapshot:
    """The table of one source."""

    source: str
    table: Path
    refusal: Callable[[], Refusal | None] = lambda: None
    """Why the archiver does not archive the source now."""
    history: History | None = None
    held: Coverage = field(default_factory=Coverage)
    made_of: str = ""
    """A text that changes when old records do."""

    def check(self) -> None:
        """Look at what it holds, proved sound by the quick check. BatchError where that is nothing yet."""
        self._look()
        if not self.held.cut:
            raise NothingArchived(
                f"The master dataset of {self.source!r} holds nothing yet, so there is nothing to compute. Send "
                "events, and wait for the archiver: `tidemark master status` shows how far it is."
            )
        if damage := [finding for finding in quick_check(self.table) if finding.is_damage]:
            raise TableDamaged(self.source, self.table, damage)

    def wait_for_first(self, has_records: Callable[[], bool], wait_s: float, report: Report) -> None:
        """Return once the table holds anything, or where nothing is on its way to it.

        After the first events of a source it takes the archiver some seconds to commit them.
        """
        deadline = time.monotonic() + wait_s
        self._look()
        while not self.held.cut and time.monotonic() < deadline and has_records():
            self._check_refusal()
            report("waiting for the archiver's first commit", 0, 0)
            time.sleep(LOOK_S)
            self._look()

    def wait_for(self, opening: Opening, wait_s: float, report: Report) -> Cut:
        """The cut of the run, once the table holds it: the speed layer's own, or where the table ends."""
        deadline = time.monotonic() + wait_s
        ask_for_commit(self.table)
        while not is_below(opening.cut, self.held.cut):
            missing = count_between(self.held.cut, opening.cut)
            refused = self._check_refusal()
            if time.monotonic() > deadline:
                raise BatchError(
                    f"The master dataset of {self.source!r} did not reach the cut {cut_to_json(opening.cut)} of this "
                    f"run within {wait_s:g} s: it is at {cut_to_json(self.held.cut)}, {missing} records before it. "
                    "Is the archiver running? `tidemark master status` shows how far it is. Nothing was published."
                    + (f" The archiver's reason now: {refused.reason}" if refused else "")
                )
            report("waiting for the master dataset", 0, missing)
            time.sleep(LOOK_S)
            self._look()
        self.check()
        return opening.cut if opening.mode == "open" else dict(self.held.cut)

    def check_records(
        self, spark: SparkSession, start: Cut, cut: Cut, records: int, everywhere: pa.Table | None
    ) -> None:
        """The table gave as many records below the cut as the proofs of its commits promise.

        Of a commit that the cut goes through, the records below it are counted by themselves: among `everywhere`, the
        locations of the records from `start` on, where these are known and enough.
        """
        whole = below(self.history or read_history(self.table), cut)
        promised = whole.rows + whole.removed.rows
        if everywhere is not None and is_below(start, whole.cut):
            promised += count_from(everywhere, whole.cut)
        elif count_between(whole.cut, cut):
            promised += count_records(spark, self.table, whole.cut, cut)
        if records != promised:
            raise BatchError(
                f"Source {self.source!r}: the master dataset has {records} records below {cut_to_json(cut)}, its "
                f"commits promise {promised}. Nothing was published. `tidemark master fsck {self.source} --deep` looks "
                f"for what is wrong; if it finds nothing, `tidemark batch run --full --source {self.source}` "
                "recomputes everything."
            )

    def _check_refusal(self) -> Refusal | None:
        """Fail where the archiver waits for a person. Returns a refusal that its next attempt may end."""
        refused = self.refusal()
        if refused is not None and not refused.is_temporary:
            raise BatchError(
                f"Source {self.source!r}: the archiver does not archive it, so the master dataset does not reach the "
                f"cut of this run. Nothing was published. The archiver's reason: {refused.reason}"
            )
        return refused

    def _look(self) -> None:
        self.history = read_history(self.table)
        self.held = of_history(self.history)
        self.made_of = made_of(self.held)


def made_of(held: Coverage) -> str:
    """A text that changes when old records do, but not when they are removed because of their age."""
    return f"topic {held.origin}, mended by commit {held.last_repair}"
