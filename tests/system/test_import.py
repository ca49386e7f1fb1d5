"""`tidemark import` into a real broker: every line exactly, through kill -9, twice and under other names."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from infra.settings import child_environment
from tests.conftest import Stack, wait_until

LINES = 50_000
KILLED_LINES = 250_000
"""Enough to last longer than the journal's first half second, and than it takes to see it there."""
AGENTS = ("Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0", "curl/8.5.0", 'odd \\"agent\\"')


def combined_log(count: int, seed: int = 1) -> bytes:
    """A log in which some lines are equal, as in every log of a busy server."""
    chance = random.Random(seed)  # noqa: S311  test data
    moment = datetime(2026, 11, 16, tzinfo=UTC)
    lines = []
    for _ in range(count):
        moment += timedelta(seconds=chance.choice((0, 0, 0, 1)))
        lines.append(
            f"2001:db8::{chance.randrange(9)} - {chance.choice(('-', 'ann'))} [{moment:%d/%b/%Y:%H:%M:%S} +0000] "
            f'"GET /page/{chance.randrange(9)} HTTP/1.1" {chance.choice((200, 404))} 512 '
            f'"https://a.example/" "{chance.choice(AGENTS)}"\n'
        )
    return "".join(lines).encode()


def expected_ids(data: bytes) -> Counter[str]:
    """The promise of docs/decisions/0004, written down a second time, without bounds."""
    seen: Counter[bytes] = Counter()
    ids: Counter[str] = Counter()
    for line in data.splitlines():
        name = blake2b(line, digest_size=16).hexdigest()
        ids[f"{name}-{seen[line]}" if seen[line] else name] += 1
        seen[line] += 1
    return ids


class Desk(NamedTuple):
    """Imports into one source of their own."""

    stack: Stack
    source: str
    environment: dict[str, str]

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "tidemark",
            "import",
            "-s",
            self.source,
            "-o",
            "json",
            *map(str, arguments),
        ]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, env=self.environment, text=True, **pipes)

    def run(self, *arguments: object, stdin: str = "") -> dict[str, Any]:
        out, err = (process := self.start(*arguments)).communicate(stdin, timeout=300)
        assert process.returncode == 0, err
        return dict(json.loads(out)[0])

    def events(self) -> list[dict[str, Any]]:
        """Every event in the topic."""
        return [json.loads(message.value()) for message in self.messages()]

    def ids(self) -> Counter[str]:
        """How often each id is in the topic. An event without a key of its own has its id as key."""
        return Counter(message.key().decode() for message in self.messages())

    def messages(self) -> Iterator[Message]:
        """Everything in the topic."""
        consumer = Consumer({"bootstrap.servers": self.stack.kafka, "group.id": "unused", "enable.auto.commit": False})
        found = 0
        try:
            partitions = consumer.list_topics(self.source, timeout=10).topics[self.source].partitions
            wanted = 0
            for partition in partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(self.source, partition), timeout=10)
                wanted += high - low
            consumer.assign([TopicPartition(self.source, partition, 0) for partition in partitions])
            while found < wanted:
                messages = consumer.consume(min(10_000, wanted - found), timeout=60)
                assert messages, f"{found} of {wanted} messages, then silence"
                found += len(messages)
                yield from messages
        finally:
            consumer.close()


@pytest.fixture
def desk(bare_stack: Stack, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    stack = bare_stack
    source = f"import_{abs(hash(request.node.name)) % 10**9}_{os.getpid()}"
    declared = tmp_path / "declared"
    declared.mkdir()
    (declared / "own.py").write_text(
        "from dataclasses import replace\nfrom views.catalog import web\n"
        f"own = replace(web.web, name={source!r}, topic={source!r})\n"
    )
    environment = child_environment(stack.settings) | {"TIDEMARK_VIEWS_DIR": str(declared)}
    yield Desk(stack, source, environment)
    shutil.rmtree(stack.settings.home / "imports", ignore_errors=True)


def test_combined_log_and_its_copy_arrive_exactly_with_the_same_ids(desk: Desk, tmp_path: Path) -> None:
    data = combined_log(LINES)
    path = tmp_path / "access.log"
    path.write_bytes(data)
    result = desk.run(path)
    assert (result["format"], result["state"], result["lines"], result["sent"], result["refused"]) == (
        "combined", "done", LINES, LINES, 0,
    )  # fmt: skip
    expected = expected_ids(data)
    assert Counter(event["event_id"] for event in desk.events()) == expected
    assert max(Counter(data.splitlines()).values()) > 1, "the log should have equal lines"

    assert desk.run(path)["state"] == "done before"
    assert desk.ids() == expected

    shutil.copy(path, tmp_path / "copy.log")
    assert desk.run(tmp_path / "copy.log")["sent_now"] == LINES
    assert desk.ids() == Counter(dict.fromkeys(expected, 2))


def test_file_imported_again_has_the_same_ids(desk: Desk, tmp_path: Path) -> None:
    data = combined_log(1000)
    path = tmp_path / "access.log"
    path.write_bytes(data)
    assert desk.run(path)["sent_now"] == desk.run(path, "--again")["sent_now"] == 1000
    assert desk.ids() == Counter(dict.fromkeys(expected_ids(data), 2))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_import_goes_on_and_no_line_is_lost(desk: Desk, tmp_path: Path, number: signal.Signals) -> None:
    data = combined_log(KILLED_LINES)
    path = tmp_path / "access.log"
    path.write_bytes(data)
    journals = desk.stack.settings.home / "imports"
    process = desk.start(path)
    wait_until("the journal", lambda: list(journals.glob("*.json")) or process.poll() is not None, 120)
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    entry = json.loads(next(journals.glob("*.json")).read_text())
    assert 0 < entry["position"] < len(data)
    before = desk.ids()
    if number == signal.SIGINT:
        assert entry["tally"]["sent"] == before.total()
    assert entry["tally"]["sent"] <= before.total()

    result = desk.run(path)
    assert result["note"] == f"was interrupted: continues after line {entry['line']}"
    assert (result["lines"], result["sent"], result["sent_now"]) == (
        KILLED_LINES,
        KILLED_LINES,
        KILLED_LINES - entry["line"],
    )
    after = desk.ids()
    assert set(after) == set(expected_ids(data))
    assert after.total() == before.total() + result["sent_now"]


def test_standard_input_gives_the_ids_of_the_file(desk: Desk) -> None:
    data = combined_log(100)
    result = desk.run("-", stdin=data.decode())
    assert (result["format"], result["sent"]) == ("combined", 100)
    assert desk.ids() == expected_ids(data)


def test_csv_values_arrive_typed(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("event_id,event_time,properties.ms,properties.url\n1,2026-11-16 03:00:00,2.5,/a\n2,never,1,/b\n")
    rejects = tmp_path / "rejects.csv"
    result = desk.run(path, "--timezone", "Europe/Vienna", "--rejects", rejects)
    assert (result["sent"], result["refused"], result["reasons"][0]["first_line"]) == (1, 1, 3)
    assert desk.events() == [
        {"event_id": "1", "event_time": "2026-11-16T02:00:00Z", "properties": {"ms": 2.5, "url": "/a"}}
    ]
    assert rejects.read_text().splitlines()[::2] == [
        "event_id,event_time,properties.ms,properties.url", "2,never,1,/b",
    ]  # fmt: skip


def test_broker_that_does_not_answer_is_an_error_in_bounded_time(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(combined_log(10))
    away = desk._replace(environment=desk.environment | {"TIDEMARK_KAFKA_BOOTSTRAP": "127.0.0.1:1"})
    process = away.start(path, "--wait", 2)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("tidemark: Kafka at 127.0.0.1:1 did not answer within 2 s, so nothing was sent.")
    assert not list((desk.stack.settings.home / "imports").glob("*.json"))
