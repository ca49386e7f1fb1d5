"""Run pytest, and try each red test once more, alone: `python -m tests.run --name test -- PYTEST ARGUMENTS`.

A test that is red once and green when it runs alone in a fresh process is flaky: the run passes, the test is listed on
the last lines and, with the time, in artifacts/flaky.json, and somebody mends it. A test that is red twice fails the
run, and so do a crashed worker, a file that cannot be collected, and more red tests than `MAX_RETRIES`: these are no
accidents.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MAX_RETRIES = 10
"""With more red tests than this something is broken: none of them is tried again."""
MAX_ENTRIES = 1000
"""How many entries artifacts/flaky.json has at most: the newest."""
FLAKY = Path("artifacts") / "flaky.json"


@dataclass(frozen=True)
class Outcomes:
    """What became of the tests of one pytest process."""

    exit_code: int
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    fatal: list[str] = field(default_factory=list)

    @property
    def red(self) -> list[str]:
        """The tests that failed, or whose fixtures did."""
        return [name for name, test in self.tests.items() if test["outcome"] == "failed"]

    @property
    def is_green(self) -> bool:
        """Whether something ran, and all of it well."""
        return self.exit_code == 0 and not self.red and not self.fatal


def run_pytest(arguments: Sequence[str], folder: Path) -> Outcomes:
    """One pytest process with its usual output."""
    file = Path(tempfile.mkstemp(prefix="outcomes-", suffix=".json", dir=folder)[1])
    # As one word: else pytest takes the file for a folder of tests, when it looks for the root of the project.
    command = [sys.executable, "-m", "pytest", "-p", "tests.outcomes", f"--outcomes={file}", *arguments]
    exit_code = subprocess.run(command, check=False).returncode
    try:
        return Outcomes(exit_code, **json.loads(file.read_text()))
    except ValueError:
        return Outcomes(exit_code or 1, fatal=["pytest ended before it could report."])


def try_again(first: Outcomes, options: Sequence[str], folder: Path) -> list[str]:
    """The red tests that are green alone, each in a process and with fixtures of its own.

    A test that builds on those before it (marker in_order) is tried with its whole file. A test that judges answers
    under faults (marker no_second_try) is not tried again: a wrong answer is no accident.
    """
    if first.fatal or first.exit_code != 1 or not 0 < len(first.red) <= MAX_RETRIES:
        return []
    flaky = []
    for number, test in enumerate(first.red, 1):
        if first.tests[test]["no_second_try"]:
            continue
        print(f"\nTrying {test} again, alone ({number} of {len(first.red)}) ...", flush=True)
        alone = test.partition("::")[0] if first.tests[test]["in_order"] else test
        again = run_pytest([*options, alone], folder)
        if again.is_green and again.tests.get(test, {}).get("outcome") == "passed":
            flaky.append(test)
    return flaky


def record_flaky(name: str, first: Outcomes, flaky: Iterable[str], file: Path = FLAKY) -> None:
    """Append the flaky tests of this run, with the time. What earlier runs found stays."""
    earlier = json.loads(file.read_text()) if file.exists() else []
    at = datetime.now(UTC).isoformat(timespec="seconds")
    found = [{"run": name, "at": at, "test": test, "first_failure": first.tests[test]["failure"]} for test in flaky]
    file.parent.mkdir(exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(json.dumps([*earlier, *found][-MAX_ENTRIES:], indent=2) + "\n")
    partial.replace(file)


def summary(first: Outcomes, flaky: Sequence[str]) -> list[str]:
    """The last lines: what is wrong, what is flaky, and the totals."""
    counts = Counter(test["outcome"] for test in first.tests.values())
    red = [test for test in first.red if test not in flaky]
    totals = [f"{counts['passed'] + len(flaky)} passed", f"{len(red)} failed"]
    totals += [f"{counts['skipped']} skipped"] if counts["skipped"] else []
    totals += [f"{len(first.fatal)} errors"] if first.fatal else []
    return [
        "",
        *(f"FATAL {reason.strip().splitlines()[-1]}" for reason in first.fatal),
        *(f"FAILED {test}" for test in red),
        *(f"FLAKY {test}: failed at first, passed alone (see {FLAKY})" for test in flaky),
        ", ".join(totals),
    ]


def main() -> int:
    """Exit code 0 if every test is green at the first or the second try, else that of the first pytest process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="test", help="of this run in artifacts/flaky.json")
    parser.add_argument("--again", action="append", default=[], help="an argument for the second try, too (repeatable)")
    parser.add_argument("arguments", nargs="*", help="for pytest")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-run-") as folder:
        first = run_pytest(asked.arguments, Path(folder))
        flaky = try_again(first, asked.again, Path(folder))
    record_flaky(asked.name, first, flaky)
    print("\n".join(summary(first, flaky)), flush=True)
    if first.is_green or (flaky and set(flaky) == set(first.red)):
        return 0
    return first.exit_code or 1


if __name__ == "__main__":
    sys.exit(main())
