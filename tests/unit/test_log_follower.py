"""A follower of the publish log says what the log says, and reads only what changed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.entries import name_of
from hand_off.log_follower import LogFollower
from hand_off.publish_log import Entry
from infra.store import PosixStore

STEPS = st.lists(
    st.tuples(st.sampled_from(["publish", "unpin", "rollback", "latest"]), st.integers(1, 12)), max_size=12
)


def publish(folder: BatchFolder, run: int, *, unpin: bool = False) -> None:
    folder.runs.mkdir(parents=True, exist_ok=True)
    folder.manifest(run).write_text("{}")
    publish_log.append(folder, Entry(run, {0: run}, {"page_hits": "1f" * 32}, float(run)), unpin=unpin)


@given(STEPS)
def test_follower_says_after_every_step_what_the_whole_log_says(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = BatchFolder(Path(root) / "web")
        follower = LogFollower(folder)
        for step, number in steps:
            published = [entry.run for entry in publish_log.read(folder)]
            if step in ("publish", "unpin"):
                publish(folder, published[-1] + number, unpin=step == "unpin")
            elif published[1:]:
                publish_log.serve(folder, published[1:][number % len(published[1:])] if step == "rollback" else None)
            entries = publish_log.read(folder)
            assert follower.newest() == entries[-1]
            assert follower.pinned() == publish_log.pinned(folder)
            by_run = {entry.run: entry for entry in entries}
            for run in range(entries[-1].run + 2):
                assert follower.find(run) == by_run.get(run)


def reads_of(monkeypatch: pytest.MonkeyPatch, ask: Callable[[], object]) -> list[str]:
    """The names that are read or listed meanwhile."""
    seen: list[str] = []
    with monkeypatch.context() as patch:
        for method in ("get", "list", "settle"):
            real = getattr(PosixStore, method)
            patch.setattr(
                PosixStore, method, lambda self, name, *more, real=real: (seen.append(name), real(self, name, *more))[1]
            )
        ask()
    return seen


@pytest.mark.parametrize("length", [5, 300])
def test_long_log_takes_no_longer_than_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    folder = BatchFolder(tmp_path / "web")
    for run in range(1, length):
        publish(folder, run)
    follower = LogFollower(folder)

    def ask() -> None:
        newest = follower.newest()
        follower.find(newest.run)
        follower.pinned()

    first = reads_of(monkeypatch, ask)
    assert first.count(name_of(length - 1)) == 1
    assert [name for name in first if name.endswith(".json")] == [name_of(length - 1)]
    assert reads_of(monkeypatch, ask) == [], "nothing changed"
    publish(folder, length)
    assert [name for name in reads_of(monkeypatch, ask) if name.endswith(".json")] == [name_of(length)]
    publish_log.serve(folder, 2)
    ask()
    assert reads_of(monkeypatch, ask) == [], "nothing changed, also while readers are pinned"
    assert reads_of(monkeypatch, lambda: follower.find(3)), "an older run has to be looked for"
    assert reads_of(monkeypatch, lambda: follower.find(3)) == []
