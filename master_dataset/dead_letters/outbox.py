"""The archiver's outbox of dead letters: the invalid records of each commit, sent to the source's dead-letter topic.

How far they were sent is in a note beside the table, which the archiver alone writes (`sent`). The topic is never asked
for that: everybody who reaches the broker may write there. The steps, for each commit that has invalid records:

1. The archiver commits the records to the master table. The proof of the commit counts the invalid ones.
2. Their letters are sent, those of older commits first, and every one is acknowledged. A letter is made of its row and
   the number of its commit alone, so that it is the same, byte for byte, whenever it is sent. Its id is its digest.
3. The note is replaced: this commit, and where the topic ended.

After a crash the next start looks for commits beyond the note, and reads what the topic holds since the noted end.

- Between 1 and 2: the topic has none of the letters. All are sent.
- Within 2: the topic has some. A letter whose id is there is not sent again; the others are.
- Between 2 and 3: the topic has them all. None is sent, and the note is written.
- A request that was on its way when the process died may arrive after the topic was read. That letter is there twice,
  with one id, and readers get it once (`letters`).
- The note is lost, or the disk changed it: every letter that the topic no longer holds is sent again.
- The topic was emptied or made again: what was noted stays sent; the search begins at the topic's beginning.
- Somebody forges letters, with any version they like: their ids are other ones, so nothing is taken for sent. A forgery
  with the id of a letter is that letter. One in a transaction that is aborted is not read.
- Somebody fills the topic, or keeps a transaction open: the search ends after a while; what it did not find is sent.

The records are safe in the table whatever happens here, so no failure here stops the archiver: it is logged, and the
next commit or start catches up.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import structlog

from infra.clients.kafka import librdkafka_config
from infra.failpoints import reach
from infra.settings import Settings
from master_dataset.dead_letters.letters import ids_since, send_letters, watermarks
from master_dataset.dead_letters.sent import Sent, note_sent, read_sent
from master_dataset.errors import MasterDatasetError
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
        """After a crash: send what commits beyond the note hold and the topic lacks. Returns how many were sent."""
        return self._unless_it_fails(lambda: self._send_missing(history))

    def _unless_it_fails(self, send: Callable[[], int]) -> int:
        try:
            sent = send()
        except Exception as error:  # whatever it is, the records are in the table, and archiving must go on
            # Later commits must not overtake these: the note says up to where all were sent.
            self.is_behind = True
            log.warning("dead_letters_delayed", source=self.source.name, reason=str(error))
            return 0
        self.is_behind = False
        return sent

    def _send_new(self, version: int, proof: Proof) -> int:
        added = read_commit(commit_file(self.table, version)).added
        return self._send_and_note(version, self._invalid_rows(added, proof))

    def _send_missing(self, history: History) -> int:
        noted = read_sent(self.table)
        first = invalid_after(history, noted.version)
        missing = sorted(first)
        if not missing:
            return 0
        reach("letters.before_catching_up")
        present = ids_since(self.config, self.source, noted.end)
        reach("letters.after_search")
        live, count = history.files.live.values(), 0
        for version in missing:
            rows = self._invalid_rows([file for file in live if file.version >= version], first[version])
            count += self._send_and_note(version, rows, present)
        return count

    def _send_and_note(self, version: int, rows: Iterable[dict[str, Any]], present: Container[str] = ()) -> int:
        # Step 2. Send, and wait until all are acknowledged.
        reach("letters.before_send")
        count = send_letters(self.config, self.source, version, rows, present)
        # Step 3. Note it. After a crash before this, the next start finds the letters in the topic.
        reach("letters.after_send")
        note_sent(self.table, Sent(version, self._end()))
        reach("letters.after_note")
        return count

    def _end(self) -> int:
        """Where the topic ends. An earlier end will do: it only makes the next search longer."""
        try:
            return watermarks(self.config, self.source)[1]
        except MasterDatasetError:
            return read_sent(self.table).end

    def _invalid_rows(self, files: Iterable[TableFile], proof: Proof) -> Iterator[dict[str, Any]]:
        """The invalid rows of a commit's offsets, whichever files hold them by now, in the order of the files."""
        import pyarrow.compute as pc  # the collector reads dead letters too, and needs no Parquet for that

        from master_dataset.reading.read import RecordFilter, read_file

        offsets = RecordFilter(start=proof.start, end=proof.end, with_invalid=True)
        selected = offsets.filter() & pc.field("invalid").is_valid()
        for file in files:
            for batch in read_file(self.table / file.path, selected, COLUMNS):
                yield from batch.to_pylist()
