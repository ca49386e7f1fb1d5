"""The short fault programme: one fault of each kind, none of which makes the platform lie or stops it for good.

The programme of `make soak` is the long one. Here the faults, their order and the events are always the same. What is
wrong fails the test; what a slow machine had no time for is printed, and fails nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torture.disks import missing
from torture.fault import KINDS
from torture.faults import all_faults
from torture.links import PAIRS
from torture.programme import ProgrammeOptions, torture
from torture.report import broken_promises, write_report
from torture.result import Shot
from torture.table import remarks, summary

SHORT = (
    "kafka stands still for 2 s", "killed at collector.before_answer", "kill redis and collector",
    "cut between speed and redis", "Redis is set back by seconds", "disk full: master", "clock of collector +1 h",
    "partition added", "a run is killed", "events to refuse from many sides", "readers that do not read", "kill speed",
    "power lost", "commit emptied", "a view is declared with a count",
)  # fmt: skip
"""One fault of each kind, the quickest first: where time is short, the slowest are left."""
SEED = 20261116
MINUTES = 3.5
"""No new fault after this time."""
RUN_EVERY_S = 75.0
MIN_COMPARISONS, MIN_KINDS = 200, 7
"""With less than this a green run would prove nothing. A busy machine reaches about six times and one and a half."""
REPORT = Path(__file__).parents[2] / "artifacts" / "test-faults.html"
FAULTS = {fault.name: fault for fault in all_faults()}


def test_the_short_programme_has_one_fault_of_each_kind() -> None:
    assert sorted(FAULTS[name].kind for name in SHORT) == sorted(KINDS)


@pytest.mark.slow
@pytest.mark.no_second_try
def test_nothing_that_is_done_to_it_makes_the_platform_lie(tmp_path: Path) -> None:
    result = torture(
        tmp_path,
        ProgrammeOptions(SEED, len(SHORT), MINUTES, run_every_s=RUN_EVERY_S, in_given_order=True),
        [FAULTS[name] for name in SHORT],
        _print_shot,
        links=PAIRS,
        has_disks=not missing(),
    )
    REPORT.parent.mkdir(exist_ok=True)
    write_report(result, REPORT, None)
    for name, value in summary(result):
        print(f"{name}: {value}")
    print(*remarks(result), *(f"left out: {name}: {reason}" for name, reason in result.left_out.items()), sep="\n")
    assert broken_promises(result) == []
    assert not result.has_broken_promise
    assert result.runs >= 1
    assert result.comparisons >= MIN_COMPARISONS
    injected = {FAULTS[shot.fault].kind for shot in result.shots if shot.is_injected}
    assert len(injected) >= MIN_KINDS, f"only {sorted(injected)}: too little to prove anything"


def _print_shot(number: int, shot: Shot) -> None:
    print(f"{shot.at:6.1f} s  {number:2}  {shot.fault}, healed at {shot.healed_at:.1f} s, recovery {shot.recovery_s} s")
