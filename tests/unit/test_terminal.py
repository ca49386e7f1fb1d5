"""What commands print: a table for people that fits into 80 columns, JSON for programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest
from rich.console import Console

from infra import terminal
from infra.settings import load_settings, settings_rows
from infra.stack.doctor import Finding, Verdict
from tidemark.commands import batch
from tidemark.commands.options import Output

ROWS: list[dict[str, Any]] = [{"number": 1204, "rows": 98765, "is_new": True, "why": "[red]"}]


def test_numbers_that_are_pasted_into_a_command_have_no_separators(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_result(ROWS, Output.TABLE, as_is=("number",))
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].split() == ["1204", "98,765", "yes", "[red]"]


def test_programs_get_the_values_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_result(ROWS, Output.JSON, "nothing")
    assert json.loads(capsys.readouterr().out) == ROWS
    terminal.print_result([], Output.JSON, "nothing")
    assert json.loads(capsys.readouterr().out) == []


def test_an_empty_result_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_result([], Output.TABLE, "There are none.")
    assert capsys.readouterr().out == "There are none.\n"


# ---- 80 columns ----------------------------------------------------------------


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A terminal of 80 columns."""
    console = Console(width=80, markup=False, emoji=False)
    monkeypatch.setattr(terminal, "out", console)
    return console


CUT = "0:1234567,1:1234568,2:1234569,3:1234570"
SENTENCE = "it has not written its status yet; `tidemark logs archiver` shows what it does"
RUN = {
    "source": "web", "run": 12, "cut": CUT, "kind": "incremental", "views": 14, "rows": 1234567,
    "events": 12345678, "duplicates": 1234, "invalid": 12, "seconds": 1234.5,
}  # fmt: skip
LISTED = {
    "source": "web", "run": 12, "cut": CUT, "kind": "incremental", "views": 14, "rows": 1234567,
    "against speed": "1,234 differ, 34 excused", "when": "2026-11-18 03:15:00Z", "state": "published",
}  # fmt: skip
MASTER = {
    "source": "web", "cut": CUT, "rows": 12345678, "removed rows": 12345678, "commits": 1234, "files": 123,
    "bytes": 1234567890,
    "lost offsets": 0, "unproved rows": 0, "behind Kafka": "unknown: no broker answers", "archiver": SENTENCE,
}  # fmt: skip
SPEED = {
    "source": "web", "state": "keeps up", "applied": {"0": 1234567, "1": 1234568}, "run": 12, "generations": 2,
    "behind_events": 1234, "behind_s": 1.2345, "last_micro_batch_s": 0.25, "states": 123456, "state_bytes": 123456789,
    "marks": 1234567, "against_batch": f"page_hits: {SENTENCE}",
}  # fmt: skip
VIEW = {
    "view": "page_latency_by_region", "source": "web", "keys": ["url", "region", "device"], "grain": "1h",
    "answers": ["requests", "ms", "slow_share", "p95_ms", "visitors"], "definition": "0123456789ab", "active": True,
}  # fmt: skip
LETTER = {"number": 7, "partition": 0, "offset": 1234567, "reason": SENTENCE, "value": '{"event_id": "torn'}
KEY = {
    "name": "grafana",
    "scopes": ["query", "metrics"],
    "views": ["page_hits"],
    "created": "2026-11-18T03:15:00+00:00",
}
FOUND = {"source": "web", "trouble": "missing-file", "where": "commit 12", "what": SENTENCE}
TABLES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "batch run": (
        [RUN, {**RUN, "source": "service_errors"}],
        {"as_is": ("run",), "optional": ("cut", "kind", "views")},
    ),
    "batch list": ([LISTED, {**LISTED, "run": 11}], {**batch.LISTED}),
    "master status": ([MASTER], {}),
    "master fsck": ([FOUND, FOUND], {}),
    "speed status": ([SPEED, {"source": "cards", "state": "nothing in Redis yet", "against_batch": ""}], {}),
    "views list": ([VIEW, VIEW], {"optional": ("definition", "keys"), "group_by": "source"}),
    "dead list": ([LETTER, LETTER], {"as_is": ("number", "partition", "offset")}),
    "keys list": ([KEY], {}),
    "topics list": ([{"topic": "tidemark.web", "partitions": 8}], {}),
    "topics check": ([{"topic": "tidemark.web", "property": "partitions", "declared": "8", "found": "4"}], {}),
}


def check_readable(shown: str, words: set[str]) -> None:
    """No line is wider than the terminal, nothing is cut, and every word stands on one line."""
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    there = set(shown.split())
    assert not words - there, "these were broken or left out"


@pytest.mark.parametrize("command", TABLES)
def test_table_is_readable_in_80_columns(narrow: Console, capsys: pytest.CaptureFixture[str], command: str) -> None:
    rows, options = TABLES[command]
    terminal.print_result(rows, Output.TABLE, **options)
    left_out = options.get("optional", ())
    words = {
        word for row in rows for name, value in row.items() if name not in left_out and isinstance(value, str)
        for word in value.split()
    }  # fmt: skip
    check_readable(capsys.readouterr().out, words)


@pytest.mark.parametrize("command", TABLES)
def test_programs_get_every_member(narrow: Console, capsys: pytest.CaptureFixture[str], command: str) -> None:
    rows, options = TABLES[command]
    terminal.print_result(rows, Output.JSON, **options)
    assert json.loads(capsys.readouterr().out) == rows


def test_status_is_readable_in_80_columns(narrow: Console, capsys: pytest.CaptureFixture[str]) -> None:
    home = "/var/lib/tidemark/a/rather/long/path/to/the/home"
    addresses = {
        "redis": "redis://tidemark@127.0.0.1:6379/0", "kafka": "127.0.0.1:9092", "collector": "http://127.0.0.1:8080",
        "archiver": f"{home}/master", "scheduler": "http://127.0.0.1:9464/metrics",
    }  # fmt: skip
    services = [
        {
            "name": name,
            "state": "starting",
            "address": address,
            "pid": os.getpid(),
            "restarts": 1234,
            "message": SENTENCE,
        }
        for name, address in addresses.items()
    ]
    terminal.print_status({"version": "0.1.0", "home": home, "pid": 1, "began": time.time(), "services": services})
    shown = capsys.readouterr().out
    check_readable(
        shown, {*addresses, *(each.removeprefix(f"{home}/") for each in addresses.values()), *SENTENCE.split()}
    )


def test_doctor_and_config_are_readable_in_80_columns(narrow: Console, capsys: pytest.CaptureFixture[str]) -> None:
    found = f"{SENTENCE}; /usr/lib/jvm/java-17-openjdk-amd64/bin/java"
    findings = [
        Finding("Java", Verdict.OK, found, ""), Finding("free disk of the home", Verdict.FAILED, found, SENTENCE)
    ]  # fmt: skip
    terminal.print_findings(findings)
    check_readable(capsys.readouterr().out, {"Java", "failed", "Fix:", *found.split()})
    rows = settings_rows(load_settings())
    terminal.print_settings([row._replace(value="") for row in rows])
    check_readable(capsys.readouterr().out, {row.name for row in rows})


@pytest.mark.process
def test_memory_of_a_service_counts_its_children() -> None:
    """The JVM of a service is a child of its process."""
    hold = "import time; kept = bytearray(64 * 2**20); print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        own = psutil.Process().memory_info().rss // 2**20
        assert (terminal.memory_mb(os.getpid()) or 0) >= own + 60
        assert re.fullmatch(r"[\d,]+ MB", terminal.memory(os.getpid()))
        child.kill()
    assert terminal.memory_mb(None) is None
    assert terminal.memory(child.pid) == ""
