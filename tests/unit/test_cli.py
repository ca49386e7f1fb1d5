"""The command line, in this process: words, exit codes, tables and JSON, and that no secret comes out of it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from infra import terminal
from infra.home import Home
from tidemark import cli

HEAVY = ("pydantic", "psutil", "kafka", "redis", "pyspark", "fastapi", "structlog", "sqlglot", "pyarrow")


class Said(NamedTuple):
    out: str
    err: str
    code: int


Run = Callable[..., Said]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "300")
    return Home(tmp_path / "home")


@pytest.fixture
def tidemark(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["tidemark", *arguments])
        try:
            cli.main()
            code: int | str | None = 0
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        return Said(out, err, int(code or 0))

    return run


def test_no_command_prints_the_commands(tidemark: Run) -> None:
    said = tidemark()
    for name in ("up", "down", "status", "logs", "doctor", "config", "version"):
        assert f" {name} " in said.out


@pytest.mark.parametrize("name", [name for name, group in cli.GROUPS.items() if group.is_command])
def test_list_of_commands_says_of_a_command_what_its_own_help_begins_with(name: str) -> None:
    group = cli.GROUPS[name]
    first_paragraph = str(importlib.import_module(group.module).command.__doc__).split("\n\n")[0]
    assert group.help == " ".join(first_paragraph.split())


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("up", "--nonsense"), ("status", "-o", "xml"), ("logs", "-n", "0")]
)
def test_wrong_usage_is_exit_code_2(tidemark: Run, arguments: tuple[str, ...]) -> None:
    said = tidemark(*arguments)
    assert said.code == 2
    assert "Usage: " in said.err
    assert "Traceback" not in said.err


def test_status_of_a_home_where_nothing_runs(tidemark: Run, home: Home) -> None:
    assert tidemark("status") == (f"Nothing runs on {home.root}. Start it with `tidemark up`.\n", "", 1)
    said = tidemark("status", "-o", "json")
    assert json.loads(said.out) == {
        "home": str(home.root),
        "ready": False,
        "running": False,
        "services": [],
        "notes": [],
    }
    assert said.code == 1
    assert not home.root.exists(), "asking leaves nothing behind"


def test_down_where_nothing_runs_is_one_sentence(tidemark: Run, home: Home) -> None:
    assert tidemark("down") == ("", f"tidemark: Nothing runs on {str(home.root)!r}.\n", 1)


def test_restart_where_nothing_runs_is_one_sentence(tidemark: Run, home: Home) -> None:
    said = tidemark("restart", "serving", "-o", "json")
    assert said == (
        "",
        f"tidemark: Nothing runs on {str(home.root)!r}, so nothing can be restarted. "
        "Start everything with `tidemark up`.\n",
        1,
    )
    assert not home.root.exists()


def test_logs_as_json_name_the_service_of_each_line(tidemark: Run, home: Home) -> None:
    home.prepare()
    home.log_file("kafka").write_text("one\ntwo\n")
    home.log_file("redis").write_text('{"a": 1}\n')
    lines = [json.loads(line) for line in tidemark("logs", "-o", "json").out.splitlines()]
    assert lines == [
        {"service": "kafka", "line": "one"},
        {"service": "kafka", "line": "two"},
        {"service": "redis", "line": '{"a": 1}'},
    ]


def test_systemd_unit_in_words_and_as_json(tidemark: Run, home: Home) -> None:
    text = tidemark("systemd-unit").out
    assert f'Environment="TIDEMARK_HOME={home.root}"' in text.splitlines()
    assert json.loads(tidemark("systemd-unit", "-o", "json").out) == {"name": "tidemark.service", "text": text}


def test_prometheus_rules_and_config_are_printed_as_they_are_and_as_json(tidemark: Run, home: Home) -> None:
    rules = tidemark("prometheus-rules")
    assert rules.out.startswith("# Alerting rules")
    assert json.loads(tidemark("prometheus-rules", "-o", "json").out)["text"] == rules.out
    config = tidemark("prometheus-config")
    assert "rule_files:" in config.out
    assert "has not chosen collector_port" in config.err, "the ports are those of `up`, once it has run"


def test_logs(tidemark: Run, home: Home) -> None:
    assert tidemark("logs").code == 1
    home.prepare()
    home.log_file("kafka").write_text("one\ntwo\n")
    assert tidemark("logs", "kafka", "-n", "1").out == "two\n"
    said = tidemark("logs", "zookeeper")
    assert (said.code, said.out) == (1, "")
    assert "There are logs of: kafka." in said.err


def test_version_in_words_and_as_json(tidemark: Run) -> None:
    words = dict(line.split(" ", 1) for line in tidemark("version").out.splitlines())
    assert words == json.loads(tidemark("version", "--output", "json").out)
    assert {"tidemark", "pyspark", "delta-spark", "kafka-python", "redis"} <= words.keys()
    assert "not installed" not in words.values()


def test_output_may_be_set_by_variable(tidemark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_CLI_OUTPUT", "json")
    assert "tidemark" in json.loads(tidemark("version").out)


def test_home_option_beats_the_variable(tidemark: Run, tmp_path: Path) -> None:
    said = tidemark("--home", str(tmp_path / "other"), "status", "-o", "json")
    assert json.loads(said.out)["home"] == str(tmp_path / "other")


def test_config_in_words_and_as_json(tidemark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_KAFKA_HEAP_MB", "700")
    rows = {row["name"]: row for row in json.loads(tidemark("config", "-o", "json").out)}
    assert rows["kafka_heap_mb"]["value"] == "700"
    assert rows["kafka_heap_mb"]["default"] == "512"
    assert rows["kafka_heap_mb"]["origin"] == "TIDEMARK_KAFKA_HEAP_MB"
    table = tidemark("config").out
    assert all(name in table for name in rows)


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize("command", ["config", "doctor", "status"])
def test_secrets_come_out_of_no_command(
    tidemark: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, output: str
) -> None:
    (tmp_path / "secret").write_text("hunter2")
    monkeypatch.setenv("TIDEMARK_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("TIDEMARK_KAFKA_PASSWORD", "hunter2")
    monkeypatch.setenv("TIDEMARK_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("TIDEMARK_REDIS_PASSWORD_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("TIDEMARK_SPARK_CONF", '{"spark.hadoop.fs.s3a.access.key": "hunter2"}')
    said = tidemark(command, "-o", output)
    assert said.out
    assert "hunter2" not in said.out + said.err


def test_wrong_setting_is_one_sentence_and_exit_code_2(tidemark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_KAFKA_PORT", "x")
    for command in ("up", "down", "status", "logs", "doctor", "config"):
        said = tidemark(command)
        assert (said.out, said.code) == ("", 2)
        assert said.err.startswith("tidemark: TIDEMARK_KAFKA_PORT is 'x'; it should be a valid integer")


@pytest.mark.process
def test_doctor_fails_when_a_check_fails(tidemark: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEMARK_JAVA_HOME", str(tmp_path))
    said = tidemark("doctor", "-o", "json")
    assert said.code == 1
    verdicts = {finding["what"]: finding["verdict"] for finding in json.loads(said.out)}
    assert verdicts["Java"] == "failed"
    table = tidemark("doctor")
    assert table.code == 1
    assert "Install Java 17 or 21" in table.out


@pytest.mark.process
def test_doctor_is_content_with_this_machine(tidemark: Run) -> None:
    """The tests need everything that `doctor` looks for."""
    said = tidemark("doctor")
    assert said.code == 0, said.out


def test_refused_up_leaves_nothing_behind(tidemark: Run, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_MIN_FREE_DISK_MB", "99999999999")
    said = tidemark("up")
    assert said.code == 1
    assert "MB free; at least 99999999999 MB are required" in said.err
    assert not home.root.exists()


def test_up_names_changed_sources_at_once(tidemark: Run, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the archiver refuses them, in a sentence; everything else is started."""
    log = home.root / "master" / "web" / "_delta_log"
    log.mkdir(parents=True)
    columns = {"fields": [{"name": "event", "type": {"type": "struct", "fields": [{"name": "x", "type": "long"}]}}]}
    (log / f"{0:020}.json").write_text(json.dumps({"metaData": {"schemaString": json.dumps(columns)}}))
    begun = []
    monkeypatch.setattr("infra.stack.up.check_and_fetch", lambda *_: None)
    monkeypatch.setattr("infra.stack.up.first_access_key", lambda *_: None)
    monkeypatch.setattr("infra.stack.up.supervise", lambda *_: begun.append(True))
    said = tidemark("up")
    assert (said.code, begun) == (0, [True])
    assert said.err.startswith("tidemark: Source 'web' was changed: ")
    assert "'x' (bigint) is no longer declared" in said.err
    assert len(said.err) < 600


def test_error_of_a_layer_is_printed_as_its_sentence(tidemark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class LayerError(Exception):
        exit_code = 75

    def fail() -> None:
        raise LayerError("Somebody else holds it.")

    monkeypatch.setattr("infra.version.versions", fail)
    assert tidemark("version") == ("", "tidemark: Somebody else holds it.\n", 75)


def test_unforeseen_error_keeps_its_traceback(tidemark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.version.versions", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tidemark("version")


# ---- words with brackets in them ---------------------------------------------


def test_brackets_in_a_message_are_text_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """A message comes from Kafka or from a command line, and may hold anything; `[/x]` would end the supervisor."""
    service = {
        "name": "kafka",
        "state": "starting",
        "address": "",
        "pid": None,
        "restarts": 0,
        "message": "[/x] [red]y",
    }
    terminal.print_status({"version": "1", "home": "/a[b]/[/c]", "pid": 1, "began": time.time(), "services": [service]})
    printed = capsys.readouterr().out
    assert "[/x] [red]y" in printed.replace("\n", "")
    assert "/a[b]/[/c]" in printed


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7260, "2 h 1 min")]
)
def test_durations_are_read_easily(seconds: float, words: str) -> None:
    assert terminal.duration(seconds) == words


# ---- speed -------------------------------------------------------------------


@pytest.mark.process
def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['tidemark', '--help']\n"
        "from tidemark.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('MODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.partition("MODULES")[2].split())
    assert "typer" in modules
    assert not modules & set(HEAVY)


@pytest.mark.process
def test_help_is_quick_beside_python_itself() -> None:
    """It is about 8 times `python -c pass` here; heavy imports would make it 30 times and more."""

    def least(command: list[str]) -> float:
        """Seconds of processor time: how long it takes says more of what else is under way."""
        times = []
        for _ in range(3):
            began = os.times()
            subprocess.run(command, check=True, capture_output=True)
            ended = os.times()
            times.append(ended.children_user + ended.children_system - began.children_user - began.children_system)
        return min(times)

    tidemark = str(Path(sys.executable).with_name("tidemark"))
    assert os.access(tidemark, os.X_OK)
    assert least([tidemark, "--help"]) < 20 * least([sys.executable, "-c", "pass"])
