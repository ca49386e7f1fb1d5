"""A home that 0.1.0 wrote, on today's stack: the same answers at once, exact ones after a run, and no way back.

The home is the real one of `tests/old_home.py`: Kafka's log, the append-only file of Redis, the master dataset, batch
views and read indexes, in another folder than the one where it was recorded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from infra import home as home_module
from infra.errors import HomeError
from infra.home import LAYOUT, Home, read_json
from infra.settings import child_environment
from infra.version import VERSION
from tests import old_home
from tests.conftest import Stack, start_stack, stop_stack, wait_until
from tests.old_home import Recorded
from tests.old_home_recording import PARTS, events
from tests.serving_data import same

pytestmark = pytest.mark.in_order
TIDEMARK = str(Path(sys.executable).with_name("tidemark"))
NEW = 40


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return old_home.unpack(tmp_path_factory.mktemp("upgraded"))


@pytest.fixture(scope="module")
def recorded(home: Path) -> Recorded:
    return old_home.recorded(home)


@pytest.fixture(scope="module")
def upgraded(home: Path, recorded: Recorded) -> Iterator[Stack]:
    """Today's stack on the old home. The scheduler does not run: no batch run but that of the test."""
    stack = start_stack(
        home, views_dir=home.parent / "views", with_examples=False, archiver_enabled=True, speed_enabled=True,
        serving_enabled=True, alerts_enabled=True, alerts_late_s=10**9, start_timeout_s=180,
    )  # fmt: skip
    assert stack.secret == "", "the keys of the home are still there"
    yield stack._replace(secret=recorded.secret)
    stop_stack(stack)


def login(stack: Stack) -> tuple[str, str]:
    return old_home.SECRET_OF, stack.secret


def query(stack: Stack, view: str, given: dict[str, str], **more: str) -> dict[str, Any]:
    answer = httpx.get(f"{stack.serving}/views/{view}/query", params=given | more, auth=login(stack), timeout=60)
    assert answer.status_code == 200, f"never 503 until a full run: {answer.text}"
    return dict(answer.json())


def complete(stack: Stack, view: str, given: dict[str, str], end: dict[str, int]) -> dict[str, Any]:
    """The result once it has everything below `end`. Until then it is answered as far as it is."""

    def answer() -> dict[str, Any] | None:
        found = query(stack, view, given)
        is_complete = found["meta"]["complete"] and not found["meta"]["degraded"] and found["meta"]["cut"] == end
        return found if is_complete else None

    found: dict[str, Any] = wait_until(f"complete answers of {view!r}", answer, 120)
    return found


def tidemark(stack: Stack, *words: str) -> Any:
    done = subprocess.run(
        [TIDEMARK, *words, "--output", "json"],
        env=child_environment(stack.settings), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_answers_are_those_of_the_old_version_before_any_run(upgraded: Stack, recorded: Recorded) -> None:
    for view, given, then in recorded.answers:
        now = complete(upgraded, view, given, recorded.end)
        assert len(now["rows"]) == len(then["rows"])
        for row, before in zip(now["rows"], then["rows"], strict=True):
            assert same(row, before), (view, given)
        for member in ("version", "range", "cut"):
            assert now["meta"][member] == then["meta"][member]
        assert now["meta"]["batch"]["run"] == then["meta"]["batch"]["run"] == 2
    alert = tidemark(upgraded, "alerts", "show", "busy")
    assert {each["id"] for each in recorded.alert["episodes"]} <= {each["id"] for each in alert["episodes"]}
    assert [each["muted_until"] for each in tidemark(upgraded, "alerts", "list")] != [None]
    assert publish_log.last(BatchFolder.of(upgraded.settings, "shop")).run == 2


def test_new_events_and_a_run_follow_on_the_old_ones(upgraded: Stack, recorded: Recorded) -> None:
    """The new events repeat old ones of every part. The answers are those of the reference interpreter."""
    known: list[dict[str, Any]] = []
    for seed, count in enumerate(PARTS, start=1):
        known += events(count, seed, known)
    sent = events(NEW, len(PARTS) + 1, known)
    assert {each["event_id"] for each in sent} & {each["event_id"] for each in known}
    answer = httpx.post(f"{upgraded.collector}/events/shop", json=sent, auth=login(upgraded), timeout=60)
    assert answer.status_code == 200, answer.text
    end = dict(recorded.end)
    for each in answer.json():
        end[str(each["partition"])] = max(end[str(each["partition"])], each["offset"] + 1)
    assert sum(end.values()) == sum(recorded.end.values()) + NEW
    for view, given, _ in recorded.answers[:4:3]:
        assert complete(upgraded, view, given, end)["meta"]["batch"]["run"] == 2
    (run,) = tidemark(upgraded, "batch", "run")
    assert (run["run"], run["kind"]) == (3, "continued")
    for view, given, _ in recorded.answers:
        assert complete(upgraded, view, given, end)["meta"]["batch"]["run"] == 3
    compared = tidemark(upgraded, "verify", "--from-scratch")
    assert {each["view"]: each["result"] for each in compared} == dict.fromkeys(
        ("sales", "totals", "customers"), "equal"
    )
    assert not tidemark(upgraded, "master", "fsck", "--deep")


def test_old_version_refuses_the_home_from_then_on(upgraded: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_stack(upgraded)
    home = Home(upgraded.settings.home)
    assert read_json(home.root / "home.json") == {"layout": LAYOUT, "version": VERSION}
    monkeypatch.setattr(home_module, "LAYOUT", old_home.OLD_LAYOUT)
    monkeypatch.setattr(home_module, "VERSION", old_home.VERSION)
    with pytest.raises(HomeError, match=f"written by Tidemark {VERSION} with layout {LAYOUT}; this is Tidemark 0.1.0"):
        start_stack(home.root)
