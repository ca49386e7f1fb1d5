"""The loop of an import: line, id, event, Kafka; and, after each acknowledgement of everything so far, the journal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import PreparedEvent, compile_validator, prepare_event
from master_dataset.importer.csv_file import CsvReader
from master_dataset.importer.errors import UnreadableInput
from master_dataset.importer.formats import FormatReader, ImportFormat
from master_dataset.importer.inputs import HashedStream, Input
from master_dataset.importer.journal import ImportJournal, ImportProgress, Start
from master_dataset.importer.line_ids import LineIds
from master_dataset.importer.lines import MAX_LINE_BYTES, Line, join_quoted, read_lines
from master_dataset.importer.rejects import MARK, Rejects
from master_dataset.importer.sender import Sender
from master_dataset.importer.tally import Tally
from views.source import Source

JOURNAL_EVERY_S = 0.5
LOOK_EVERY_LINES = 256

OnProgress = Callable[[int, Tally], None]
"""Called with the bytes of the file that were read and the figures so far."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after everything that was sent is acknowledged and written down."""


@dataclass
class Import:
    """One file on its way into one source. `journal` is None for what cannot be read a second time."""

    found: Input
    source: Source
    reader: FormatReader
    stream: HashedStream
    origin: str
    start: Start
    journal: ImportJournal | None
    sender: Sender
    rejects: Rejects
    on_progress: OnProgress

    def __post_init__(self) -> None:
        before = self.start.entry
        self.tally = Tally.from_json(before.tally.as_json()) if before else Tally()
        self._position, self._line = (before.position, before.line) if before else (0, 0)
        self._validate = compile_validator(self.source)
        self._id_field = self.source.id_field
        self._encode = self.reader.encode if isinstance(self.reader, CsvReader) else None

    def run(self) -> None:
        """Send every line after the start. Whatever ends it early, the journal tells no more than what is stored."""
        with _interrupts(is_deferred=self.journal is not None) as interrupted:
            try:
                self._send_all(interrupted)
            except KeyboardInterrupt:
                if self.journal is None:  # nothing else will send what was read
                    self.sender.settle()
                raise Interrupted from None
            except UnreadableInput:
                self._record(is_finished=False)
                raise
            except BaseException:
                self.sender.abandon()
                raise

    def _send_all(self, interrupted: threading.Event) -> None:
        next_look, next_record_s = 0, time.monotonic() + JOURNAL_EVERY_S
        for line, event_id in self._new_lines(interrupted):
            self._send(line, event_id)
            self._position, self._line = line.end_exclusive, line.number
            if self.tally.lines < next_look and not interrupted.is_set():
                continue
            next_look = self.tally.lines + LOOK_EVERY_LINES
            self.on_progress(self.stream.progress_bytes(), self.tally)
            if interrupted.is_set() or time.monotonic() > next_record_s:
                began_s = time.monotonic()
                self._record(is_finished=False)
                ended_s = time.monotonic()
                # Nothing is sent while everything is settled: with a slow broker, settle more rarely.
                next_record_s = ended_s + max(JOURNAL_EVERY_S, 9 * (ended_s - began_s))
            if interrupted.is_set():
                raise Interrupted
        self._record(is_finished=True)
        self.on_progress(self.stream.progress_bytes(), self.tally)

    def _new_lines(self, interrupted: threading.Event) -> Iterator[tuple[Line, str]]:
        """The lines that may be events, with their ids. Those sent before are read too, because ids count them."""
        reader, ids, already = self.reader, LineIds(self.origin), self._position
        lines = read_lines(self.stream)
        for line in join_quoted(lines) if reader.format is ImportFormat.CSV else lines:
            raw = line.raw
            if raw.startswith(MARK) or not reader.is_event(raw):
                continue
            event_id = ids.next_id(raw, line.number, reader.context)
            if line.end_exclusive > already:
                yield line, event_id
            elif not line.number % LOOK_EVERY_LINES:
                self.on_progress(self.stream.progress_bytes(), self.tally)
                if interrupted.is_set():
                    raise Interrupted

    def _send(self, line: Line, event_id: str) -> None:
        self.tally.lines += 1
        try:
            prepared = self._prepare(line.raw, event_id)
            self.sender.send(prepared.key, prepared.value)
        except InvalidEvent as error:
            self.tally.refuse(error, line.number)
            self.rejects.add(self.found.name, line, error, self.reader)
        else:
            self.tally.sent += 1

    def _prepare(self, raw: bytes, event_id: str) -> PreparedEvent:
        try:
            _check_bytes(raw)
            if self._encode is not None and (encoded := self._encode(raw, event_id)) is not None:
                return encoded
            event = self.reader.read(raw)
            self._validate(event)
            if event.get(self._id_field) is None:
                event[self._id_field] = event_id
            return prepare_event(self.source, event)
        except ValueError as error:  # nothing known raises it; whatever does, one line must not end an import
            raise InvalidEvent("", f"the line cannot be read: {error}") from error

    def _record(self, *, is_finished: bool) -> None:
        # Step 1. Everything sent so far is acknowledged. A crash before this is over leaves the journal where it was:
        # the lines since then are sent again, with the same ids.
        self.sender.settle()
        # Step 2. The refused lines are in their file. A crash here writes some of them there twice, none never.
        self.rejects.flush()
        # Step 3. Only now the journal moves on.
        if self.journal is not None:
            self.journal.write(
                ImportProgress(
                    file=str(self.found.path),
                    source=self.source.name,
                    size=self.found.size or 0,
                    mtime_ns=self.found.mtime_ns,
                    position=self._position,
                    line=self._line,
                    hashed_bytes=self.stream.bytes_read,
                    digest=self.stream.digest(),
                    is_finished=is_finished,
                    tally=self.tally,
                )
            )


def _check_bytes(raw: bytes) -> None:
    """What no format may hold."""
    if len(raw) > MAX_LINE_BYTES:
        raise InvalidEvent("", f"the line is longer than {MAX_LINE_BYTES} bytes")
    if b"\0" in raw:
        raise InvalidEvent("", "the line contains a NUL byte")


@contextmanager
def _interrupts(*, is_deferred: bool) -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, so that it never falls between a line and its count. A second Ctrl-C ends at once."""
    asked = threading.Event()
    if not is_deferred or threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(_number: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
