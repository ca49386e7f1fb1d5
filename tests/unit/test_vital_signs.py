"""When a silent service counts as working, and how silence is measured."""

from __future__ import annotations

import os

import pytest

from infra.stack.service import Service
from infra.stack.vital_signs import Look, Vitality, Work, look_at, work_of

SILENT = "no answer"


def worked(before: Work, after: Work | None) -> bool:
    """Whether a service has worked between two looks that are a second apart."""
    life = Vitality()
    life.note(Look(SILENT, None, before))
    life.pass_time(1.0)
    life.note(Look(SILENT, None, after))
    return life.is_working


@pytest.mark.parametrize(
    ("after", "is_working"),
    [
        (Work(10.0, 0), False),
        (Work(10.02, 1000), False),  # an idle JVM
        (Work(10.4, 0), True),  # it computes
        (Work(10.01, 2**20), True),  # it reads
        (Work(10.0, 0, waits_for_disk=True), True),  # it waits for a slow disk
        (Work(10.4, 2**20, is_stopped=True), False),  # SIGSTOP: what its children do is no excuse
    ],
)
def test_work_is_time_of_the_processor_or_bytes_of_the_disk(after: Work, is_working: bool) -> None:
    assert worked(Work(10.0, 0), after) == is_working


def test_sign_of_life_ends_the_silence_and_the_same_sign_does_not() -> None:
    life = Vitality()
    for sign, silent_s, looks in ((1, 0.0, 0), (1, 1.0, 1), (None, 2.0, 2), (2, 0.0, 0)):
        life.note(Look(SILENT, sign, None))
        assert (life.silent_s, life.silent_looks) == (silent_s, looks)
        life.pass_time(1.0)


def test_clock_that_jumps_adds_a_second_at_most_and_takes_nothing() -> None:
    life = Vitality()
    for step_s in (0.05, 86_400.0, -86_400.0, 0.05):
        life.pass_time(step_s)
    assert life.silent_s == pytest.approx(1.1)


def test_check_that_passes_is_a_sign_of_life_where_there_is_no_other() -> None:
    def broken() -> None:
        raise LookupError("no such door")

    made = Service(name="one", command=(), address="", check=lambda: None)
    assert look_at(made, os.getpid(), asks_work=True).sign is not None
    found = look_at(Service(name="one", command=(), address="", check=broken), os.getpid(), asks_work=True)
    assert (found.missing, found.sign) == ("LookupError: no such door", None)
    assert found.work is not None
    assert found.work.cpu_s > 0


def test_process_that_is_gone_does_no_work() -> None:
    assert work_of(2**22 + 1) is None
