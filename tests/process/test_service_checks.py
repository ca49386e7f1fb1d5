"""What the supervisor takes for a sign of life of the layers' processes, and for a problem."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra.process_status import ProcessStatus, status_path, write_status
from infra.processes import Worker
from infra.settings import Settings, load_settings
from infra.stack.services import RestCheck, archiver_service, scheduler_service
from infra.stack.vital_signs import Vitality, look_at
from torture.installation_settings import free_port


@contextmanager
def server(answers: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    """Answers as it is told; a path that is not named hangs until the end."""
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in answers:
                is_over.wait(60)
                return
            status, body = answers[self.path]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_port}"
        finally:
            is_over.set()
            made.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answers", "missing", "problems", "is_alive"),
    [
        ({"/ready": (200, b'{"status": "ready"}')}, None, "", True),
        ({"/ready": (200, b'{"problems": ["The disk is low.", "So is Redis."]}')}, None,
         "The disk is low.\nSo is Redis.", True),
        ({"/ready": (200, b'["odd"]')}, None, "", True),
        ({"/ready": (503, b"Kafka is away")}, "/ready answered 503: Kafka is away", "", True),
    ],
)  # fmt: skip
def test_any_answer_of_a_server_is_a_sign_of_life(
    answers: dict[str, tuple[int, bytes]], missing: str | None, problems: str, is_alive: bool
) -> None:
    with server(answers) as address:
        check = RestCheck(address)
        assert (check.check(), check.problems()) == (missing, problems)
        assert (check.pulse() is not None) == is_alive


def test_server_that_is_slow_to_say_whether_it_is_ready_is_asked_whether_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("infra.stack.services.ANSWER_S", 0.5)
    with server({"/health": (200, b"{}")}) as address:
        check = RestCheck(address)
        assert "no answer from" in (check.check() or "")
        assert check.pulse() is not None
    with server({}) as address:
        check = RestCheck(address)
        check.check()
        assert check.pulse() is None


def test_server_that_is_gone_shows_no_sign_of_life() -> None:
    check = RestCheck(f"http://127.0.0.1:{free_port()}")
    assert "no answer from" in (check.check() or "")
    assert check.pulse() is None


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "home" / "run").mkdir(parents=True)
    return load_settings(home=tmp_path / "home")


def test_each_heartbeat_of_a_worker_is_a_sign_of_life_whatever_its_clock_says(settings: Settings) -> None:
    archiver, worker = archiver_service(settings, ()), Worker(settings, "archiver")
    life = Vitality()

    def is_silent() -> bool:
        life.note(look_at(archiver, os.getpid(), asks_work=False))
        return life.silent_looks > 0

    assert is_silent(), "there is no status yet"
    for at in (0.0, 4e9, 0.0):  # a clock that was set: the check may fail, the process lives
        worker.write_status(ProcessStatus(at, sources={"web": {}}))
        assert not is_silent()
        assert is_silent(), "the same heartbeat again"
    worker.show_life()
    assert not is_silent()


def test_scheduler_whose_runs_are_overdue_is_alive(settings: Settings) -> None:
    scheduler = scheduler_service(settings, ())
    write_status(status_path(settings, "scheduler"), ProcessStatus(0.0, overdue="source 'web': overdue"))
    assert look_at(scheduler, os.getpid(), asks_work=False).sign is not None
