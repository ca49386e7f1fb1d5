"""The archiver's outbox of dead letters: the invalid records of each commit, sent once.

They are read from the master table after their commit. A note beside the table says up to which commit they were sent,
and the headers of the newest dead letter reveal a crash before the note: a restart sends only the rest. The records are
safe in the table whatever happens here, so no failure here stops the archiver: it is logged, and the next commit or
start catches up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import structlog

from infra.clients.kafka import librdkafka_config
from infra.failpoints import reach
from infra.settings import Settings
from master_dataset.dead_letters.letters import newest_first, send_letters
from master_dataset.dead_letters.sent import note_sent, read_sent
from master_dataset.table.coverage import invalid_after
from master_dataset.table.delta_log import TableFile, commit_file, read_commit
from master_dataset.table.history import History, read_history
from master_dataset.table.proofs import Proof
from views.source import Source

COLUMNS = ["partition", "offset", "timestamp", "key", "headers", "value", "invalid"]

log = structlog.get_logger()


class DeadLetters:
    """The dead letters of one source, as its archiver sends them."""

    def __init__(self, settings: Settings, bootstrap: str, source: Source, table: Path) -> None:
        self.config = librdkafka_config(settings, bootstrap)
        self.source = source
        self.table = table
        self.is_behind = False

    def send(self, version: int, proof: Proof) -> int:
        """Send the invalid records of one commit, and before them those that could not be sent. Returns its own."""
        if self.is_behind:
            self.catch_up(read_history(self.table))
        elif proof.invalid:
            self._unless_it_fails(lambda: self._send_new(version, proof))
        return proof.invalid

    def catch_up(self, history: History) -> int:
        """After a crash: send what a commit holds and the topic lacks. Returns how many were sent."""
        return self._unless_it_fails(lambda: self._send_missing(history))

    def _unless_it_fails(self, send: Callable[[], int]) -> int:
        try:
            sent = send()
        except Exception as error:  # whatever it is, the records are in the table, and archiving must go on
            # Later commits must not overtake these: the newest dead letter says up to where all were sent.
            self.is_behind = True
            log.warning("dead_letters_delayed", source=self.source.name, reason=str(error))
            return 0
        self.is_behind = False
        return sent

    def _send_new(self, version: int, proof: Proof) -> int:
        added = read_commit(commit_file(self.table, version)).added
        return self._send_and_note(version, self._invalid_rows(added, proof))

    def _send_missing(self, history: History) -> int:
        first = invalid_after(history, read_sent(self.table))
        missing = sorted(first)
        if not missing:
            return 0
        reach("letters.before_catching_up")
        # A crash came before the note, or a Tidemark without notes did: the topic may be further.
        newest, sent = self._newest()
        live, count = history.files.live.values(), 0
        for version in missing:
            if version < newest:
                continue
            rows = self._invalid_rows([file for file in live if file.version >= version], first[version])
            skipped = sent if version == newest else ()
            unsent = (row for row in rows if (row["partition"], row["offset"]) not in skipped)
            count += self._send_and_note(version, unsent)
        note_sent(self.table, missing[-1])  # also if the topic had them all
        return count

    def _send_and_note(self, version: int, rows: Iterable[dict[str, Any]]) -> int:
        # Step 1. Send. A crash after it: the newest dead letter in the topic says what is not noted yet.
        reach("letters.before_send")
        count = send_letters(self.config, self.source, version, rows)
        # Step 2. Note it, so that a topic that is emptied later is not filled again with everything since the first.
        reach("letters.after_send")
        note_sent(self.table, version)
        reach("letters.after_note")
        return count

    def _invalid_rows(self, files: Iterable[TableFile], proof: Proof) -> Iterator[dict[str, Any]]:
        """The invalid rows of a commit's offsets, whichever files hold them by now, in the order of the files."""
        import pyarrow.compute as pc  # the collector reads dead letters too, and needs no Parquet for that

        from master_dataset.reading.read import RecordFilter, read_file

        offsets = RecordFilter(start=proof.start, end=proof.end, with_invalid=True)
        selected = offsets.filter() & pc.field("invalid").is_valid()
        for file in files:
            for batch in read_file(self.table / file.path, selected, COLUMNS):
                yield from batch.to_pylist()

    def _newest(self) -> tuple[int, set[tuple[int, int]]]:
        """The commit that the last dead letter belongs to, and which of its records were sent; (-1, {}) if none."""
        newest, sent = -1, set()
        for letter in newest_first(self.config, self.source):
            if letter.version == -1:
                continue  # sent by others
            if newest == -1:
                newest = letter.version
            if letter.version != newest:
                break
            sent.add((letter.partition, letter.offset))
        return newest, sent
