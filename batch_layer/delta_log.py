"""Which run the Delta table of a view holds, read from the table's own log without Spark."""

from __future__ import annotations

import json
from pathlib import Path

from hand_off.errors import BatchError

RUN_TAG = "tidemark.run"
"""Under this name, each commit that brings a table to a run has the run's number."""


def exposed_run(table: Path) -> int | None:
    """The run whose files other engines find in a table; None before the first.

    It may be older than the last published one: a crash after the flip leaves the table behind until the next run.
    """
    for commit in sorted((table / "_delta_log").glob("*.json"), reverse=True):
        if commit.stem.isdecimal() and (run := _run_of(commit)) is not None:
            return run
    return None


def _run_of(commit: Path) -> int | None:
    try:
        actions = [dict(json.loads(line)) for line in commit.read_text(encoding="utf-8").splitlines()]
        if not actions:
            raise ValueError("it is empty")  # noqa: TRY301  reported like every other damage
        found = [action["commitInfo"].get("tags", {}) for action in actions if "commitInfo" in action]
        return next((int(tags[RUN_TAG]) for tags in found if RUN_TAG in tags), None)
    except (ValueError, TypeError, AttributeError) as error:
        raise BatchError(
            f"{str(commit)!r} cannot be read ({error}), so it is not known which files other engines still need. "
            f"Delete the table's folder {str(commit.parent.parent)!r}, then `tidemark batch run --full` rebuilds it."
        ) from None
