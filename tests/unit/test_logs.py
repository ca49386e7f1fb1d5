"""Logs: one line an entry, rotated in place, read from their end, followed through a rotation."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import structlog

from infra.errors import InfraError
from infra.home import Home
from infra.logs import BLOCK, configure_logging, last_lines, rotate
from infra.stack import log_reader
from infra.stack.log_reader import follow_logs, print_logs


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.prepare()
    return home


def test_entry_is_one_line_with_event_and_values() -> None:
    stream = io.StringIO()
    before = structlog.get_config()
    try:
        configure_logging("INFO", stream)
        log = structlog.get_logger()
        log.debug("unseen")
        log.info("published", view="page_hits", rows=1204, note="two words")
    finally:
        structlog.configure(**before)
    (line,) = stream.getvalue().splitlines()
    assert "published" in line
    assert "view=page_hits rows=1204 note='two words'" in line
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("", 3, []),
        ("a\n", 3, ["a"]),
        ("a\nb\nc\nd\n", 2, ["c", "d"]),
        ("a\nb\nunfinished", 2, ["b", "unfinished"]),
        ("a\r\nb\r\n", 2, ["a", "b"]),
        ("ä\n\n", 2, ["ä", ""]),
    ],
)
def test_last_lines(tmp_path: Path, text: str, count: int, expected: list[str]) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(text.encode())
    assert last_lines(path, count) == expected


def test_as_many_lines_as_asked_come_from_a_long_log(tmp_path: Path) -> None:
    lines = [f"line {number} {'x' * (number % 90)}" for number in range(6 * BLOCK // 50)]
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines) + "\n")
    for count in (1, 100, len(lines) - 1, len(lines), len(lines) + 10):
        assert last_lines(path, count) == lines[-count:]


def test_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "no.log", 5) == []


def test_rotation_keeps_the_old_text_and_the_writer_goes_on(tmp_path: Path) -> None:
    """The writer is a child that holds the file open: it must neither lose its place nor leave a hole."""
    path = tmp_path / "x.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"old\n")
        assert not rotate(path, max_bytes=4)
        assert rotate(path, max_bytes=3)
        writer.write(b"new\n")
    assert path.read_bytes() == b"new\n"
    assert (tmp_path / "x.log.1").read_bytes() == b"old\n"
    assert not rotate(tmp_path / "no.log", 1)


def test_logs_of_all_services_are_printed_under_their_names(home: Home) -> None:
    home.log_file("kafka").write_text("k1\nk2\n")
    home.log_file("redis").write_text("r1\n")
    out = io.StringIO()
    print_logs(home.root, None, 1, out)
    assert out.getvalue() == "==> kafka <==\nk2\n==> redis <==\nr1\n"
    out = io.StringIO()
    print_logs(home.root, "kafka", 5, out)
    assert out.getvalue() == "k1\nk2\n"


def test_unknown_service_is_refused_with_the_known_ones(home: Home) -> None:
    with pytest.raises(InfraError, match="nothing was ever started"):
        print_logs(home.root, None, 1, io.StringIO())
    home.log_file("kafka").touch()
    with pytest.raises(InfraError, match=r"no log of 'kafak' in .* There are logs of: kafka\."):
        print_logs(home.root, "kafak", 1, io.StringIO())


def test_following_shows_new_lines_also_after_a_rotation(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, redis = home.log_file("kafka"), home.log_file("redis")
    kafka.write_text("before\n" * 10)
    redis.touch()

    def append() -> None:
        with kafka.open("a") as file:
            file.write("appended\n")

    def rotate_and_append() -> None:
        rotate(kafka, 0)
        kafka.write_text("after rotation\n")
        redis.write_text("other\n")

    def interrupt() -> None:
        raise KeyboardInterrupt

    happenings = iter([append, rotate_and_append, interrupt])
    monkeypatch.setattr(log_reader.time, "sleep", lambda _pause: next(happenings)())
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        follow_logs(home.root, None, out)
    assert out.getvalue() == "kafka: appended\nkafka: after rotation\nredis: other\n"
