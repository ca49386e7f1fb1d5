"""The verdict on dead letters and on cuts: each mistake that the platform could make is found."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from master_dataset.dead_letters.letters import DeadLetter
from torture import checker as checking
from torture.checker import Checker
from torture.comparison import ServedAnswer
from torture.fates import Fate, Fates
from torture.poison import Poison
from torture.result import ProgrammeResult
from torture.shop import minutes, sales, totals
from torture.verdict import NOWHERE, _letter_problems, judge_rows
from views.view import View

POISON = Poison("torn", b"{", reason="not JSON")
LETTER = DeadLetter(
    number=0, partition=1, offset=7, version=3, reason="not JSON", timestamp_ms=0, key=None, value=b"{", headers=()
)
PLACE = (1, 7)


@pytest.mark.parametrize(
    ("letters", "said"),
    [
        ({PLACE: [LETTER]}, []),
        ({}, ["torn at (1, 7): 0 dead letters"]),
        ({PLACE: [LETTER, LETTER]}, ["torn at (1, 7): 2 dead letters"]),
        ({PLACE: [replace(LETTER, value=b"[")]}, ["torn at (1, 7): its dead letter has other bytes"]),
        ({PLACE: [replace(LETTER, value=None, left_out_bytes=9)]}, []),
        ({PLACE: [replace(LETTER, reason="empty")]}, ["torn at (1, 7): 'empty', expected 'not JSON'"]),
        ({PLACE: [LETTER], (0, 1): [LETTER]}, ["a dead letter of (0, 1), where e1 stands"]),
    ],
)
def test_each_poison_record_is_one_dead_letter(letters: Any, said: list[str]) -> None:
    truth: Any = SimpleNamespace(poison={PLACE: POISON}, ids={(0, 1): "e1"}, invalid_at_first=set())
    assert list(_letter_problems(truth, letters)) == said


def row(offset: int, event_id: str, *, invalid: str | None = None) -> dict[str, Any]:
    return {"partition": 0, "offset": offset, "event_id": event_id, "invalid": invalid}


A, B, LETTERED = row(0, "a"), row(1, "b"), row(2, "x", invalid="not JSON")


@pytest.mark.parametrize(
    ("rows", "lost", "doubled"),
    [
        ([A, B, LETTERED], [], []),
        ([A, B, LETTERED, row(3, "b")], [], []),  # the try whose outcome nobody knows is stored too
        ([A, B, LETTERED, row(3, "a")], [], ["a: 2 rows, and sent 1 times"]),
        ([A, B, LETTERED, row(3, "refused")], [], ["refused: 1 rows, and sent 0 times"]),
        ([A, A, B, LETTERED], [], ["partition 0, offset 0: 2 rows"]),
        ([A, row(1, "a"), LETTERED], [f"b: {NOWHERE}", "b at (0, 1): the master dataset has 'a' there"],
         ["a: 2 rows, and sent 1 times"]),
        ([B, LETTERED], [f"a: {NOWHERE}", "a at (0, 0): the master dataset has None there",
                         "a at (0, 0): not in the master dataset"], []),
        ([A, B], ["poison at (0, 2): the master dataset has None there", "poison at (0, 2): not in the master dataset"],
         []),
    ],
)  # fmt: skip
def test_each_acknowledged_event_is_there_and_none_more_often_than_it_was_sent(
    rows: list[dict[str, Any]], lost: list[str], doubled: list[str], tmp_path: Path
) -> None:
    fates = Fates(tmp_path / "fates.jsonl")
    for fate in (
        Fate(1, "a", "kafka", "acknowledged", 0, 0), Fate(2, "b", "rest", "unknown"),
        Fate(2, "b", "rest", "acknowledged", 0, 1), Fate(3, "", "kafka", "acknowledged", 0, 2),
        Fate(4, "refused", "rest", "refused"),
    ):  # fmt: skip
        fates.note(fate)
    fates.close()
    truth: Any = SimpleNamespace(ids={(0, 0): "a", (0, 1): "b"}, poison={(0, 2): POISON}, invalid_at_first=set())
    result = ProgrammeResult(1)
    judge_rows(rows, truth, fates, result)
    assert (result.lost, result.doubled) == (lost, doubled)


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> Checker:
    monkeypatch.setattr(checking.time, "sleep", lambda _seconds: None)
    installation: Any = SimpleNamespace(
        declared=SimpleNamespace(views_of=lambda _name: [sales, totals]),
        source_name="shop",
        processes=SimpleNamespace(pid=lambda _name: 1),
    )
    return Checker(installation, SimpleNamespace(), 1, time.monotonic())  # type: ignore[arg-type]


def follow(checker: Checker, offset: int, *, degraded: bool = False, view: View = totals, reason: str = "") -> None:
    meta = {"cut": {"0": offset}, "degraded": degraded, "why": reason}
    checker._follow(ServedAnswer(view, {}, {"rows": [], "next": None, "meta": meta}, time.monotonic()))


def test_a_cut_that_goes_back_is_found_unless_the_answer_says_that_it_is_degraded(checker: Checker) -> None:
    for offset, degraded in ((5, False), (5, False), (8, False), (2, True), (9, False)):
        follow(checker, offset, degraded=degraded)
    assert checker.regressions == []
    assert checker.seen.cut == {0: 9}
    follow(checker, 8)
    assert len(checker.regressions) == 1


def test_a_new_process_is_not_held_to_the_answers_of_the_one_before(checker: Checker) -> None:
    follow(checker, 8)
    checker._installation.processes.pid = lambda _name: 2  # type: ignore[method-assign]
    follow(checker, 5)
    assert checker.regressions == []


def test_all_is_well_only_if_every_view_has_a_complete_answer(checker: Checker) -> None:
    ends = {0: 9}
    assert checker.behind(ends) == ["sales", "totals"]
    follow(checker, 9)
    assert checker.behind(ends) == ["sales"]
    follow(checker, 8, view=sales)
    assert checker.behind(ends) == ["sales"]
    follow(checker, 9, view=sales, degraded=True, reason="The speed view of 'sales' is quarantined, because")
    assert checker.behind(ends) == ["sales"]
    assert checker.behind(ends, except_quarantined=True) == []
    follow(checker, 9, view=sales)
    assert checker.behind(ends) == []
    assert checker.behind(ends, since=checker.now()) == ["sales", "totals"]


def test_a_view_that_joins_has_to_be_complete_from_its_first_answer_on(checker: Checker) -> None:
    for view in (sales, totals):
        follow(checker, 9, view=view)
    checker._installation.declared.views_of = lambda _name: [sales, totals, minutes]  # type: ignore[method-assign]
    assert checker.behind({0: 9}) == []
    follow(checker, 8, view=minutes, degraded=True)
    assert checker.behind({0: 9}) == ["minutes"]
