"""What the alert process says of itself: nothing of what passes, and everything that does not go for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.process_status import refusals, status_path, write_status
from infra.settings import load_settings
from serving_layer.alerts.change_follower import Follower
from serving_layer.alerts.couriers import Courier
from serving_layer.alerts.evaluator import Evaluator, Memory
from serving_layer.alerts.journal import Journal
from serving_layer.alerts.process import LONG_S, Kept
from views.declarations import declared_by


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    settings = load_settings(home=tmp_path)
    status_path(settings, "alerts").parent.mkdir()
    journal, stopping = Journal(tmp_path / "alerts.sqlite"), threading.Event()
    declarations, nobody = declared_by(settings), (None,) * 2
    made = Kept(settings, declarations, journal, stopping)
    looking: Any = Evaluator(settings, declarations, "web", nobody, journal)  # type: ignore[arg-type]
    looking.memory = {"slow_page": Memory()}
    made.evaluators = {"web": looking}
    made.followers = [Follower("web", "web", looking, journal, nobody, stopping)]  # type: ignore[arg-type]
    made.couriers = [Courier("webhook:ops", journal, lambda _due: None, stopping)]
    yield made
    journal.close()


def told(kept: Kept, now: float) -> str:
    path = status_path(kept.settings, "alerts")
    write_status(path, kept.status(now))
    return refusals(path)


def test_what_does_not_go_for_long_is_told_until_it_goes(kept: Kept) -> None:
    assert told(kept, 0) == ""
    kept.followers[0].error = "Redis does not answer"
    kept.couriers[0].error = "example.org answered 500"
    assert told(kept, 1) == ""
    assert told(kept, 1 + LONG_S) == ""
    assert told(kept, 2 + LONG_S) == (
        "source 'web': web/web: Redis does not answer\nwebhook:ops: example.org answered 500"
    )
    kept.followers[0].error = kept.couriers[0].error = ""
    assert told(kept, 3 + LONG_S) == ""
    kept.followers[0].error = "Redis does not answer"
    assert told(kept, 4 + LONG_S) == ""  # it begins anew


def test_an_alert_whose_answers_are_too_many_is_told_and_one_that_waits_for_a_run_is_not(kept: Kept) -> None:
    memory = kept.evaluators["web"].memory["slow_page"]
    memory.error = "it joins at the next batch run"
    told(kept, 0)
    assert told(kept, 1 + LONG_S) == ""
    memory.error, memory.is_behind = "too many states", True
    told(kept, 100)
    assert "alert slow_page: too many states" in told(kept, 101 + LONG_S)
