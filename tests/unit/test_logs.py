"""Logs: one line an entry, rotated without a loss, read from their end, followed through a rotation."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
import structlog

from infra.errors import InfraError
from infra.home import Home
from infra.log_file import MAX_UNWRITTEN_BYTES, LogFile
from infra.logs import BLOCK, configure_logging, last_lines
from infra.stack import log_reader
from infra.stack.log_reader import follow_logs, print_logs
from infra.stack.log_writer import json_line


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


@pytest.mark.parametrize("piece", [1, 3, 7, 64, 10_000])
def test_rotated_files_have_every_line_once_and_whole(tmp_path: Path, piece: int) -> None:
    """In whatever pieces the lines arrive."""
    text = "".join(f"line {number} {'x' * (number % 40)}\n" for number in range(200)).encode()
    log = LogFile(tmp_path / "x.log", max_bytes=300, keep=100)
    for start in range(0, len(text), piece):
        log.append(text[start : start + piece])
    files = [tmp_path / "x.log", *(tmp_path / f"x.log.{number}" for number in range(1, 100))]
    parts = [path.read_bytes() for path in files if path.exists()]
    assert len(parts) > 10
    assert b"".join(reversed(parts)) == text
    assert all(part.endswith(b"\n") for part in parts)


def test_only_so_many_rotated_files_are_kept(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=5, keep=2)
    for number in range(6):
        log.append(f"line {number}\n".encode())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "x.log": "line 5\n", "x.log.1": "line 4\n", "x.log.2": "line 3\n",
    }  # fmt: skip


def test_log_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=1000, keep=2)
    log.append(b"one\n")
    (tmp_path / "x.log").unlink()
    log.append(b"two\n")
    assert (tmp_path / "x.log").read_text() == "two\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_wait_while_the_disk_is_full_and_those_that_are_lost_are_counted(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "logs"
    log = LogFile(folder / "x.log", max_bytes=10 * MAX_UNWRITTEN_BYTES, keep=2, form=form)
    log.append(b"first\n")  # there is no folder: it cannot be written
    log.append(b"second\n")
    folder.mkdir()
    log.append(b"third\n")
    assert (folder / "x.log").read_text() == "first\nsecond\nthird\n"
    shutil.rmtree(folder)
    line = b"y" * 1023 + b"\n"
    count = MAX_UNWRITTEN_BYTES // len(line) + 1
    for _ in range(count):
        log.append(line)
    folder.mkdir()
    log.append(b"last\n")
    note, *lines = (folder / "x.log").read_text().splitlines()
    lost = count + 1 - len(lines)
    words = f"{lost} lines are missing here: the disk was full"
    assert note == (words if form == "text" else json.dumps({"event": words}))
    assert (lost > 0, lines[-1]) == (True, "last")


def test_json_entry_is_one_object_a_line() -> None:
    stream = io.StringIO()
    before = structlog.get_config()
    try:
        configure_logging("INFO", stream, "json")
        structlog.get_logger().info("published", view="page_hits", path=Path("/x"), note="two\nlines \ud800")
    finally:
        structlog.configure(**before)
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["view"], entry["path"], entry["level"]) == ("published", "page_hits", "/x", "info")


@pytest.mark.parametrize("depth", [500, 100_000])
def test_line_that_is_nested_deeply_is_a_line_of_json_like_any_other(depth: int) -> None:
    line = b'{"event":' * depth + b"1" + b"}" * depth
    written = json_line("web", line)
    assert written.endswith(b"\n")
    assert json.loads(written)["service"] == "web"


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
        append()
        LogFile(kafka, max_bytes=1, keep=1).append(b"after rotation\n")
        redis.write_text("other\n")

    def interrupt() -> None:
        raise KeyboardInterrupt

    happenings = iter([append, rotate_and_append, interrupt])
    monkeypatch.setattr(log_reader.time, "sleep", lambda _pause: next(happenings)())
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        follow_logs(home.root, None, out)
    assert out.getvalue() == "kafka: appended\nkafka: appended\nkafka: after rotation\nredis: other\n"
