"""Pruning: what no kept run needs may go, and nothing else ever does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_layer import pruning
from batch_layer.pruning import ORPHAN_AGE_S, DiskFile, PrunePlan, kept_runs, plan, prune
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from hand_off.manifests import DataFile, Manifest, ViewData, missing_of, read_manifest, write_manifest
from hand_off.publish_log import Entry
from tests.tiers import times

NOW = 2_000_000_000.0
OLD, YOUNG = NOW - ORPHAN_AGE_S, NOW - ORPHAN_AGE_S + 1
HASH = "ab12" * 16
OTHER = "cd34" * 16


def manifest(run: int, files: list[str], *, ids: tuple[str, ...] = (), view_hash: str = HASH) -> Manifest:
    data = tuple(DataFile("2026-01-01", name, 1, len(name)) for name in files)
    view = ViewData("page_hits", view_hash, "full", data, 1, {}, (f"page_hits-{run}",), 0.1)
    return Manifest(run, "web", {0: run}, None, 1.0, 2.0, 1, 0, 0, (view,), ids)


def make(folder: BatchFolder, made: Manifest, *, published: bool = True, at: float = OLD) -> None:
    """A run as it is on the disk."""
    for path, text in [
        *((folder.table(view.name, view.hash) / file.path, file.path) for view in made.views for file in view.files),
        *((folder.indexes / name / "part", "index") for view in made.views for name in view.index),
        *((folder.ids / name, "ids") for name in made.ids),
    ]:
        make_file(path, text, at)
    write_manifest(folder, made)
    os.utime(folder.manifest(made.run), (at, at))
    if published:
        publish_log.append(folder, Entry(made.run, made.cut, {"page_hits": HASH}, at))


def expose(folder: BatchFolder, run: int, view_hash: str = HASH, version: int = 1) -> None:
    """The commit that brings the table of a version of the view to a run."""
    log = folder.table("page_hits", view_hash) / "_delta_log"
    make_file(log / f"{0:020}.json", '{"commitInfo":{"operation":"CREATE TABLE"}}\n{"metaData":{}}\n', OLD)
    info = {"commitInfo": {"operation": "Manual Update", "tags": {"tidemark.run": str(run)}}}
    make_file(log / f"{version:020}.json", json.dumps(info) + '\n{"add":{"path":"x"}}\n', OLD)


def make_file(path: Path, text: str, at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))


def names(folder: BatchFolder) -> set[str]:
    tops = (folder.tables, folder.ids, folder.indexes, folder.runs)
    return {str(path.relative_to(folder.root)) for top in tops for path in top.rglob("*") if path.is_file()}


TABLE = "tables/page_hits-ab12ab12ab12"


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    """Three runs, each going on from the one before: file b is in 1 and 2, file c in 2 and 3."""
    found = BatchFolder(tmp_path / "web")
    make(found, manifest(1, ["a", "b"], ids=("1",)))
    make(found, manifest(2, ["b", "day=1/c"], ids=("1", "2")))
    make(found, manifest(3, ["day=1/c", "d"], ids=("2", "3")))
    return found


def run_prune(folder: BatchFolder, keep: int, **options: object) -> PrunePlan:
    return prune(folder, keep, now=NOW, **options)  # type: ignore[arg-type]


# ---- which runs ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "served", "keep", "kept"),
    [
        ([0], 0, 7, set()),
        ([0, 1], 1, 7, {1}),
        ([0, 1, 2, 5], 5, 2, {2, 5}),
        ([0, 1, 2, 5], 1, 2, {1, 2, 5}),
        ([0, 1, 2, 5], 1, 1, {1, 5}),
        ([0, 1, 2, 5], 5, 0, {5}),
    ],
)
def test_newest_runs_and_the_served_one_are_kept(published: list[int], served: int, keep: int, kept: set[int]) -> None:
    assert kept_runs(published, served, keep) == kept
    assert kept_runs(published, served, keep, also=(3,)) == kept | {3}


# ---- on the disk -----------------------------------------------------------------


def test_only_what_no_kept_run_needs_goes(folder: BatchFolder) -> None:
    done = run_prune(folder, 2)
    assert (done.kept, done.dropped, done.bytes) == ((2, 3), (1,), len("a") + len("index"))
    assert names(folder) == {
        f"{TABLE}/b", f"{TABLE}/day=1/c", f"{TABLE}/d", "ids/1", "ids/2", "ids/3",
        "indexes/page_hits-2/part", "indexes/page_hits-3/part", "runs/00000002.json", "runs/00000003.json",
    }  # fmt: skip
    assert not (folder.indexes / "page_hits-1").exists(), "an emptied folder goes too"


def test_last_run_is_never_pruned_and_pruning_twice_changes_nothing(folder: BatchFolder) -> None:
    assert run_prune(folder, 1).dropped == (1, 2)
    left = names(folder)
    assert left == {
        f"{TABLE}/day=1/c", f"{TABLE}/d", "ids/2", "ids/3", "indexes/page_hits-3/part", "runs/00000003.json"
    }  # fmt: skip
    again = run_prune(folder, 7)
    assert (again.kept, again.dropped, again.files) == ((3,), (), ())
    assert names(folder) == left
    assert [entry.run for entry in publish_log.read(folder)] == [0, 1, 2, 3], "the log is never shortened"


def test_pinned_run_is_never_pruned(folder: BatchFolder) -> None:
    publish_log.serve(folder, 1)
    assert run_prune(folder, 1).dropped == (2,)
    assert {f"{TABLE}/a", f"{TABLE}/b", "ids/1"} <= names(folder)
    assert publish_log.served(folder).run == 1


def test_run_that_other_engines_still_see_is_kept_until_they_see_the_newest(folder: BatchFolder) -> None:
    """Run 3 was killed between its flip and the commit to the Delta table, which names the files of run 2."""
    expose(folder, 2)
    assert run_prune(folder, 1).kept == (2, 3)
    assert {f"{TABLE}/b", f"{TABLE}/day=1/c", f"{TABLE}/d"} <= names(folder)
    expose(folder, 3, version=2)
    assert run_prune(folder, 1).kept == (3,)
    assert f"{TABLE}/b" not in names(folder)


def test_table_that_shows_an_older_run_with_the_same_files_keeps_nothing_more(folder: BatchFolder) -> None:
    """A run without new events takes its files over, and the Delta table has nothing to commit."""
    expose(folder, 3)
    make(folder, manifest(4, ["day=1/c", "d"]))
    assert run_prune(folder, 1).kept == (4,)


def test_table_of_an_older_definition_is_kept_as_it_is_while_a_pinned_run_needs_it(folder: BatchFolder) -> None:
    expose(folder, 3)
    make(folder, manifest(4, ["z"], view_hash=OTHER))
    expose(folder, 4, OTHER)
    publish_log.serve(folder, 1)
    assert run_prune(folder, 1).kept == (1, 3, 4)
    publish_log.serve(folder, None)
    assert run_prune(folder, 1).kept == (4,)
    assert not (folder.root / TABLE).exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[5]", '{"commitInfo": 5}', '{"commitInfo": {"tags": {"tidemark.run": "x"}}}']
)
def test_nothing_goes_while_the_log_of_a_needed_table_cannot_be_read(folder: BatchFolder, text: str) -> None:
    expose(folder, 2)
    log = folder.root / TABLE / "_delta_log" / f"{2:020}.json"
    make_file(log, text, OLD)
    before = names(folder)
    with pytest.raises(BatchError, match=r"cannot be read .* which files other engines still need"):
        run_prune(folder, 1)
    assert names(folder) == before


def test_run_that_the_caller_needs_is_never_pruned(folder: BatchFolder) -> None:
    assert run_prune(folder, 1, also=(2,)).dropped == (1,)


def test_dry_run_says_the_same_and_deletes_nothing(folder: BatchFolder) -> None:
    before = names(folder)
    said = run_prune(folder, 1, dry_run=True)
    assert names(folder) == before
    assert run_prune(folder, 1) == said


def test_checksums_go_with_their_files_and_delta_logs_stay(folder: BatchFolder) -> None:
    table = folder.root / TABLE
    for name in (".a.crc", ".b.crc", "_delta_log/00000000000000000000.json"):
        make_file(table / name, "{}", YOUNG if name == ".a.crc" else OLD)
    run_prune(folder, 2)
    assert {str(path.relative_to(table)) for path in table.rglob("*") if path.is_file()} == {
        "b", "day=1/c", "d", ".b.crc", "_delta_log/00000000000000000000.json"
    }  # fmt: skip


def test_file_of_no_run_goes_when_it_is_a_day_old(folder: BatchFolder) -> None:
    """It may be of a run that is being made now."""
    for at, name in ((OLD, "old"), (YOUNG, "young")):
        make_file(folder.root / TABLE / name, "x", at)
        make_file(folder.ids / name, "x", at)
        make_file(folder.runs / f"00000009.json.{name}.partial", "x", at)
    run_prune(folder, 7)
    assert {name for name in names(folder) if "old" in name} == set()
    assert {name for name in names(folder) if "young" in name} == {
        f"{TABLE}/young", "ids/young", "runs/00000009.json.young.partial"
    }  # fmt: skip


def test_run_that_was_never_published_goes_when_it_is_a_day_old(folder: BatchFolder) -> None:
    make(folder, manifest(4, ["b", "e"]), published=False, at=OLD)
    make(folder, manifest(5, ["a", "f"]), published=False, at=YOUNG)
    os.utime(folder.root / TABLE / "f", (OLD, OLD))
    done = run_prune(folder, 1)
    assert done.dropped == (1, 2, 4)
    left = names(folder)
    assert f"{TABLE}/e" not in left
    assert {f"{TABLE}/a", f"{TABLE}/f", "runs/00000005.json"} <= left, "run 5 may be about to be published"


def test_table_of_a_view_that_no_kept_run_has_goes_with_its_delta_log(folder: BatchFolder) -> None:
    log = folder.root / TABLE / "_delta_log" / "00000000000000000000.json"
    make_file(log, "x", YOUNG)
    make(folder, manifest(4, ["z"], view_hash=OTHER))
    assert run_prune(folder, 1).folders == ()
    assert log.is_file(), "somebody wrote to this table just now"
    os.utime(log, (OLD, OLD))
    assert run_prune(folder, 1).folders == (folder.root / TABLE,)
    assert [path.name for path in folder.tables.iterdir()] == ["page_hits-cd34cd34cd34"]


def test_table_of_a_view_without_rows_stays(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path / "web")
    make(folder, manifest(1, []))
    log = folder.root / TABLE / "_delta_log" / "00000000000000000000.json"
    make_file(log, "{}", OLD)
    assert run_prune(folder, 1).folders == ()
    assert log.is_file()


def test_crash_while_pruning_leaves_what_the_next_call_deletes(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.unlink
    calls = 0
    while True:
        left = iter(range(calls))

        def crash(path: Path, missing_ok: bool = False, left: object = left) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]
                raise KeyboardInterrupt
            real(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", crash)
            try:
                run_prune(folder, 1)
            except KeyboardInterrupt:
                calls += 1
            else:
                break
        for path in folder.runs.glob("*.json"):
            missing = list(missing_of(folder, read_manifest(folder, int(path.stem))))
            assert not missing, f"{path.stem} lost a file before its manifest"
    assert names(folder) == {
        f"{TABLE}/day=1/c", f"{TABLE}/d", "ids/2", "ids/3", "indexes/page_hits-3/part", "runs/00000003.json"
    }  # fmt: skip
    assert calls > 3, "the crash was hardly reached"


def test_rollback_while_it_is_decided_what_goes_keeps_its_run(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any lock: the plan is made again, with the run that readers are on now."""
    real, looked = pruning._look, []

    def look(*arguments: Any) -> PrunePlan:
        plan = real(*arguments)
        if not looked:
            publish_log.serve(folder, 1)
        looked.append(plan.dropped)
        return plan

    monkeypatch.setattr(pruning, "_look", look)
    assert run_prune(folder, 1).dropped == (2,)
    assert looked == [(1, 2), (2,)]
    assert publish_log.served(folder).run == 1
    assert not list(missing_of(folder, read_manifest(folder, 1)))


@pytest.mark.parametrize("pin", [None, 1])
def test_nothing_goes_while_a_run_that_readers_need_has_no_manifest(folder: BatchFolder, pin: int | None) -> None:
    publish_log.serve(folder, pin)
    folder.manifest(pin or 3).unlink()
    before = names(folder)
    with pytest.raises(BatchError, match=f"Run {pin or 3} of source 'web' has no manifest"):
        run_prune(folder, 1)
    assert names(folder) == before


def test_nothing_goes_while_the_manifest_of_a_kept_run_is_damaged(folder: BatchFolder) -> None:
    folder.manifest(2).write_text("{}")
    before = names(folder)
    with pytest.raises(BatchError, match=r"manifest of run 2 .* is damaged"):
        run_prune(folder, 2)
    assert names(folder) == before
    run_prune(folder, 1)
    assert "runs/00000002.json" not in names(folder)


def test_source_without_runs_has_nothing_to_prune(tmp_path: Path) -> None:
    assert run_prune(BatchFolder(tmp_path / "web"), 7) == PrunePlan((), (), (), ())


# ---- the law -------------------------------------------------------------------

FOLDER = BatchFolder(Path("/batch/web"))
FILE_NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
RUNS = st.dictionaries(
    st.integers(1, 8),
    st.tuples(st.lists(FILE_NAMES, unique=True), st.booleans(), st.sampled_from([OLD, YOUNG])),
    max_size=6,
)


@settings(max_examples=times(80, 3000))
@given(runs=RUNS, keep=st.integers(1, 3), ages=st.dictionaries(FILE_NAMES, st.sampled_from([OLD, YOUNG])))
def test_no_kept_or_young_run_loses_a_file_and_no_old_one_keeps_its_own(
    runs: dict[int, tuple[list[str], bool, float]], keep: int, ages: dict[str, float]
) -> None:
    manifests = {run: manifest(run, content) for run, (content, _published, _at) in runs.items()}
    published = [0, *sorted(run for run, (_content, is_published, _at) in runs.items() if is_published)]
    kept = kept_runs(published, published[-1], keep)
    table = FOLDER.table("page_hits", HASH)
    files = [DiskFile(table / name, 1, at) for name, at in ages.items()]
    found = plan(
        FOLDER,
        published=published,
        kept=kept,
        manifests=manifests,
        made_at={run: at for run, (_content, _published, at) in runs.items()},
        files=files,
        now=NOW,
    )
    stays = {run for run, (_, is_published, at) in runs.items() if run in kept or (not is_published and at == YOUNG)}
    needed = {name for run in stays for name in runs[run][0]}
    released = {name for run, (content, is_published, _) in runs.items() if is_published for name in content} - needed
    gone = {file.path.name for file in found.files}
    assert set(found.dropped) == runs.keys() - stays
    assert not gone & needed
    assert gone == {name for name, at in ages.items() if name not in needed and (name in released or at == OLD)}
