"""`tidemark alerts`: list, show, mute and unmute."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from infra.settings import load_settings
from serving_layer.alerts.episodes import Episode, EpisodeState
from serving_layer.alerts.journal import Evaluation, Transitions, open_journal
from serving_layer.alerts.notifications import Notification
from serving_layer.alerts.tables.positions import FollowerPosition
from tidemark.commands.alerts import app
from views.errors import DeclarationError

FIRED = Episode(
    "slow_page-1-0",
    "slow_page",
    "page_latency",
    ("url",),
    ("/a",),
    EpisodeState.FIRING,
    0,
    0,
    1.0,
    2.0,
    None,
    {"p95_ms": 9.0},
)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    CliRunner().invoke(app, ["list"], catch_exceptions=False)  # makes the home
    journal = open_journal(load_settings())
    waiting = Transitions(notifications=(Notification("webhook:ops", "slow_page-1-0:firing", "key", "{}"),))
    journal.commit(Evaluation("web", FollowerPosition({}, 0.0), 1.0, changed=(FIRED,), transitions=waiting))
    journal.close()
    yield CliRunner()
    structlog.reset_defaults()  # `test` configures logs for a stderr that the runner closes


def test_list_and_show_say_how_alerts_stand(runner: CliRunner) -> None:
    listed = json.loads(runner.invoke(app, ["list", "-o", "json"], catch_exceptions=False).stdout)
    assert {each["name"]: each["state"] for each in listed} == {
        "fewer_hits": "ok", "no_visits": "ok", "slow_page": "firing (1)",
    }  # fmt: skip
    shown = json.loads(runner.invoke(app, ["show", "slow_page", "-o", "json"], catch_exceptions=False).stdout)
    assert [each["id"] for each in shown["episodes"]] == ["slow_page-1-0"]
    assert [each["target"] for each in shown["waiting"]] == ["webhook:ops"]


@pytest.mark.parametrize("arguments", [["list"], ["show", "slow_page"]])
def test_tables_are_readable_at_80_columns(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runner.invoke(app, ["mute", "slow_page"], catch_exceptions=False)
    printed = runner.invoke(app, arguments, catch_exceptions=False).stdout
    assert "…" not in printed
    assert all(len(line) <= 80 for line in printed.splitlines() if "─" in line)
    assert "requests >= 20 and p95_ms > 800" in printed
    assert "firing" in printed


@pytest.mark.parametrize(
    ("arguments", "members"),
    [
        (["mute", "slow_page"], {"name", "muted_until"}),
        (["unmute", "slow_page"], {"name", "was_muted"}),
        (["test", "no_visits"], {"name", "periods", "sent"}),
    ],
)
def test_each_command_prints_json(runner: CliRunner, arguments: list[str], members: set[str]) -> None:
    printed = runner.invoke(app, [*arguments, "-o", "json"], catch_exceptions=False).stdout
    assert set(json.loads(printed)) == members


def test_a_muted_alert_is_listed_until_it_is_unmuted(runner: CliRunner) -> None:
    said = runner.invoke(app, ["mute", "slow_page", "--for", "2h"], catch_exceptions=False).stdout
    assert said.startswith("slow_page is muted until 2")
    listed = json.loads(runner.invoke(app, ["list", "-o", "json"], catch_exceptions=False).stdout)
    assert [each["name"] for each in listed if each["muted_until"]] == ["slow_page"]
    assert "no longer muted" in runner.invoke(app, ["unmute", "slow_page"], catch_exceptions=False).stdout
    assert "was not muted" in runner.invoke(app, ["unmute", "slow_page"], catch_exceptions=False).stdout


def test_what_is_not_there_is_named_with_what_is(runner: CliRunner) -> None:
    with pytest.raises(
        DeclarationError, match=r"There is no alert 'nope'. There are: fewer_hits, no_visits, slow_page"
    ):
        runner.invoke(app, ["mute", "nope"], catch_exceptions=False)
    with pytest.raises(DeclarationError, match="'soon' is not a duration"):
        runner.invoke(app, ["mute", "slow_page", "--for", "soon"], catch_exceptions=False)
