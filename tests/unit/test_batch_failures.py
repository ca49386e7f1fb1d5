"""The failures of runs: noted, counted, told by `tidemark status`, and forgotten after a success."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from batch_layer.failures import MAX_REASON, Failures, note_failure, noted, read_failures, reason_of
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError, NothingArchived
from hand_off.manifests import Manifest, write_manifest
from hand_off.publish_log import Entry
from infra.process_status import ProcessStatus, status_path, write_status
from infra.settings import Settings, load_settings
from tidemark.commands.notes import notes


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home")


@pytest.fixture
def web(here: Settings) -> BatchFolder:
    folder = BatchFolder.of(here, "web")
    folder.root.mkdir(parents=True)
    folder.lease.touch()
    return folder


def fail(folder: BatchFolder, error: Exception) -> None:
    with noted(folder):
        raise error


def test_failures_in_a_row_are_counted_until_a_run_succeeds(web: BatchFolder, here: Settings) -> None:
    assert (read_failures(web), notes(here)) == (None, [])
    for _ in range(3):
        with pytest.raises(BatchError):
            fail(web, BatchError("It failed."))
    found = read_failures(web)
    assert found is not None
    assert (found.count, found.reason, found.since <= found.at) == (3, "It failed.", True)
    (note,) = notes(here)
    assert note.startswith("Source 'web': 3 runs in a row failed, since ")
    assert note.endswith("The last one: It failed.")
    assert notes(here, said=f"overdue; {found}") == [], "the scheduler says it already"
    with noted(web):
        pass
    assert (read_failures(web), notes(here)) == (None, [])


def test_source_without_events_and_a_run_that_is_stopped_are_no_failures(web: BatchFolder) -> None:
    with pytest.raises(NothingArchived):
        fail(web, NothingArchived("nothing yet"))
    with pytest.raises(KeyboardInterrupt), noted(web):
        raise KeyboardInterrupt
    assert read_failures(web) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"count": "many"}', '{"count": 1}'])
def test_damaged_note_is_replaced_by_the_next_failure(web: BatchFolder, text: str) -> None:
    web.failures.write_text(text)
    assert read_failures(web) is None
    assert note_failure(web, "x" * 10_000, 5.0) == Failures(1, 5.0, 5.0, "x" * MAX_REASON) == read_failures(web)


def test_reason_is_one_line() -> None:
    assert reason_of(BatchError("Two\nlines.")) == "Two\nlines.", "our own texts are meant to be read as they are"
    assert reason_of(OSError(28, "No space left on device")) == "OSError: [Errno 28] No space left on device"
    assert reason_of(RuntimeError("\n first\nsecond")) == "RuntimeError: first"
    assert reason_of(RuntimeError()) == "RuntimeError"


def test_rollback_is_told(web: BatchFolder, here: Settings) -> None:
    for run in (1, 2):
        write_manifest(web, Manifest(run, "web", {0: run}, None, 0, 1, 1, 0, 0, (), ()))
        publish_log.append(web, Entry(run, {0: run}, {}, 1.0))
    assert notes(here) == []
    publish_log.serve(web, 1)
    (note,) = notes(here)
    assert note.startswith("Source 'web': readers are pinned to run 1 by a rollback.")
    web.serving.write_text("{")
    assert "is damaged" in notes(here)[0]


def test_an_overtake_under_way_is_a_note(web: BatchFolder, here: Settings) -> None:
    def report(*, is_waiting: bool, action: str, age_s: float = 0.0) -> None:
        at = time.time() - age_s
        speed = {"behind_events": 120_000, "waits_for_run": is_waiting}
        write_status(status_path(here, "speed"), ProcessStatus(at, sources={"web": speed}))
        backlog = {"action": action, "behind": 90_000}
        write_status(status_path(here, "scheduler"), ProcessStatus(at, sources={"web": {"backlog": backlog}}))

    status_path(here, "speed").parent.mkdir(parents=True)
    report(is_waiting=False, action="none")
    assert notes(here) == []
    report(is_waiting=True, action="overtake")
    text = "Source 'web': a batch run overtakes the speed layer, which is 120,000 events behind and"
    assert notes(here) == [f"{text} waits for it."]
    report(is_waiting=True, action="none")
    assert notes(here) == [f"{text} waits for it."], "a run that somebody typed"
    report(is_waiting=False, action="overtake")
    assert notes(here) == [f"{text} goes on meanwhile."]
    report(is_waiting=True, action="overtake", age_s=60)
    assert notes(here) == [], "nothing runs any more"
