"""The status of the alert process: no error that passes, every error that lasts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.process_status import refusals, write_status
from infra.settings import load_settings
from serving_layer.alerts.change_follower import ChangeFollower
from serving_layer.alerts.couriers import Courier
from serving_layer.alerts.evaluator import Evaluator
from serving_layer.alerts.journal import Journal
from serving_layer.alerts.memory import AlertMemory
from serving_layer.alerts.notifier import Notifier
from serving_layer.alerts.process import LASTING_S, AlertProcess
from views.declarations import declared_by


@pytest.fixture
def process(tmp_path: Path) -> Iterator[AlertProcess]:
    settings = load_settings(home=tmp_path)
    journal, stopping = Journal(tmp_path / "alerts.sqlite"), threading.Event()
    declarations, nobody = declared_by(settings), (None,) * 2
    made = AlertProcess(declarations)
    evaluator: Any = Evaluator(settings, declarations, "web", nobody, journal, Notifier(declarations, journal))  # type: ignore[arg-type]
    evaluator.memory = {"slow_page": AlertMemory()}
    made.evaluators = {"web": evaluator}
    made.followers = [ChangeFollower("web", "web", evaluator, journal, nobody, stopping)]  # type: ignore[arg-type]
    made.couriers = [Courier("webhook:ops", journal, lambda _due: None, stopping)]
    yield made
    journal.close()


def lasting_errors(process: AlertProcess, now: float) -> str:
    path = process.couriers[0].journal.path.with_name("status.json")
    write_status(path, process.status(now))
    return refusals(path)


def test_errors_that_last_are_shown_until_they_pass(process: AlertProcess) -> None:
    assert lasting_errors(process, 0) == ""
    process.followers[0].error = "Redis does not answer"
    process.couriers[0].error = "example.org answered 500"
    assert lasting_errors(process, 1) == ""
    assert lasting_errors(process, 1 + LASTING_S) == ""
    assert lasting_errors(process, 2 + LASTING_S) == (
        "source 'web': web/web: Redis does not answer\nwebhook:ops: example.org answered 500"
    )
    process.followers[0].error = process.couriers[0].error = ""
    assert lasting_errors(process, 3 + LASTING_S) == ""
    process.followers[0].error = "Redis does not answer"
    assert lasting_errors(process, 4 + LASTING_S) == ""  # it starts again


def test_an_alert_whose_answers_are_too_large_is_shown_and_one_that_waits_for_a_run_is_not(
    process: AlertProcess,
) -> None:
    memory = process.evaluators["web"].memory["slow_page"]
    memory.error = "it joins at the next batch run"
    lasting_errors(process, 0)
    assert lasting_errors(process, 1 + LASTING_S) == ""
    memory.error, memory.is_behind = "too many states", True
    lasting_errors(process, 100)
    assert "alert slow_page: too many states" in lasting_errors(process, 101 + LASTING_S)
