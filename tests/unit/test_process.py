"""The frame that the layers' processes share: signals, status file, metrics port and exit code."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import structlog
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from infra.disk import file_stamp
from infra.errors import HomeInUse, InfraError
from infra.home import Home, write_json
from infra.process_status import MAX_AGE_S, ProcessStatus, check_heartbeat, read_status, status_path, write_status
from infra.processes import Worker, run_worker
from infra.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """The program logs to the standard error of this test, which is closed after it."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = load_settings(home=tmp_path / "home")
    Home(made.home).prepare()
    return made


@pytest.mark.parametrize(
    ("error", "code", "message", "has_traceback"),
    [
        (None, 0, None, False),
        (InfraError("there is no disk"), 1, "there is no disk", False),
        (HomeInUse("held by another"), 75, "held by another", False),
        (ValueError("a defect"), 1, "a defect", True),
    ],
)
def test_error_of_the_work_is_in_the_status_and_is_the_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception | None,
    code: int,
    message: str | None,
    has_traceback: bool,
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("TIDEMARK_HOME", str(home))

    def work(worker: Worker) -> None:
        assert worker.settings.home == home
        if error is not None:
            raise error

    assert run_worker("tester", work) == code
    status = read_status(home / "run" / "tester.json")
    assert (status and status.error) == message
    logged = capsys.readouterr().err
    assert message is None or message in logged
    assert ("Traceback" in logged) is has_traceback


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_wait_at_once(settings: Settings, number: signal.Signals) -> None:
    worker, before = Worker(settings, "tester"), signal.getsignal(number)
    with worker.signals():
        assert not worker.wait(0)
        os.kill(os.getpid(), number)
        assert worker.wait(600)
        assert worker.is_stopping
        assert worker.stopping.is_set()
    assert signal.getsignal(number) is before


def test_thread_ends_the_wait_of_the_main_thread(settings: Settings) -> None:
    worker = Worker(settings, "tester")
    thread = threading.Thread(target=worker.stop)
    thread.start()
    assert worker.wait(600)
    thread.join()


@pytest.mark.process
def test_metrics_are_served_with_the_name_of_the_process(settings: Settings) -> None:
    class Depth(Collector):
        def collect(self) -> Iterator[GaugeMetricFamily]:
            yield GaugeMetricFamily("tidemark_depth", "How deep.", 3)

    with Worker(settings, "tester").metrics(0, Depth()) as address:
        text = httpx.get(address).text
    assert 'tidemark_info{process="tester"' in text
    assert "tidemark_depth 3.0" in text


@pytest.mark.parametrize(
    "status",
    [
        ProcessStatus(1.0),
        ProcessStatus(1.0, error="no disk"),
        ProcessStatus(1.0, error="Kafka is away", is_temporary=True),
        ProcessStatus(1.0, sources={"web": {"refused": "", "cut": {"0": 3}}}),
        ProcessStatus(1.0, couriers={"webhook:ops": {"refused": "no answer"}}),
        ProcessStatus(1.0, overdue="", details={"next_due": 5.0, "last": None}),
    ],
)
def test_status_is_read_as_it_was_written(settings: Settings, status: ProcessStatus) -> None:
    path = status_path(settings, "tester")
    write_status(path, status)
    assert read_status(path) == status


IDLE = {"web": {"refused": "", "cut": {"0": 3}}}


def test_a_heartbeat_by_which_nothing_changed_does_not_rewrite_the_status(settings: Settings) -> None:
    worker, path = Worker(settings, "tester"), status_path(settings, "tester")
    worker.write_status(ProcessStatus(1.0, sources=IDLE))
    first, text, stamp = path.stat(), path.read_bytes(), file_stamp(path)
    worker.write_status(ProcessStatus(2.0, sources=IDLE))
    second = path.stat()
    assert (second.st_ino, path.read_bytes()) == (first.st_ino, text)
    assert second.st_mtime > first.st_mtime
    assert read_status(path) == ProcessStatus(2.0, sources=IDLE)
    assert file_stamp(path) != stamp, "it is a sign of life"
    worker.write_status(changed := ProcessStatus(3.0, sources={"web": {"refused": "no disk", "cut": {"0": 3}}}))
    assert read_status(path) == changed
    worker.write_status(ProcessStatus(4.0, sources=IDLE))
    assert read_status(path) == ProcessStatus(4.0, sources=IDLE)


def test_what_changes_inside_of_a_status_is_written(settings: Settings) -> None:
    """A process may give the same dictionary each time."""
    worker, path, sources = Worker(settings, "tester"), status_path(settings, "tester"), {"web": {"rows": 1}}
    worker.write_status(ProcessStatus(1.0, sources=sources))
    sources["web"]["rows"] = 2
    worker.write_status(ProcessStatus(2.0, sources=sources))
    assert read_status(path) == ProcessStatus(2.0, sources={"web": {"rows": 2}})


def test_a_process_that_hangs_has_an_old_heartbeat_whatever_else_touches_its_status(settings: Settings) -> None:
    worker, path, old = Worker(settings, "tester"), status_path(settings, "tester"), time.time() - 60
    for at in (old - 1, old):
        worker.write_status(ProcessStatus(at, sources=IDLE))
    path.read_bytes()
    stamp = file_stamp(path)
    worker.show_life()
    assert file_stamp(path) != stamp, "the supervisor sees that it lives"
    assert (check_heartbeat(path) or "").startswith("its last heartbeat is 6")
    worker.write_status(ProcessStatus(time.time(), sources=IDLE))
    assert check_heartbeat(path) is None


def test_the_copy_of_a_status_is_as_old_as_what_it_says(settings: Settings, tmp_path: Path) -> None:
    """Its time is that of the copying, which is no heartbeat."""
    worker, path, copy = Worker(settings, "tester"), status_path(settings, "tester"), tmp_path / "copy.json"
    worker.write_status(ProcessStatus(1.0, sources=IDLE))
    shutil.copyfile(path, copy)
    assert time.time() - copy.stat().st_mtime < MAX_AGE_S
    assert read_status(copy) == ProcessStatus(1.0, sources=IDLE)
    assert "its last heartbeat is" in (check_heartbeat(copy) or "")


def test_a_status_that_was_removed_or_replaced_is_written_again(settings: Settings) -> None:
    worker, path = Worker(settings, "tester"), status_path(settings, "tester")
    worker.write_status(ProcessStatus(1.0, sources=IDLE))
    path.unlink()
    worker.write_status(ProcessStatus(2.0, sources=IDLE))
    assert read_status(path) == ProcessStatus(2.0, sources=IDLE)
    other = write_status(path, ProcessStatus(0.5, error="of another process"))
    worker.write_status(ProcessStatus(3.0, sources=IDLE))
    assert read_status(path) == ProcessStatus(3.0, sources=IDLE)
    assert path.stat().st_ino != other


@pytest.mark.parametrize("damage", [None, [], "x", {}, {"at": "now"}])
def test_damaged_status_is_none(settings: Settings, damage: object) -> None:
    path = status_path(settings, "tester")
    write_json(path, damage)
    assert read_status(path) is None
