"""Files of batch runs: definitions, manifests, seals and the lease, and what a crash may leave of them."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_layer.lease import lease
from hand_off import definitions, publish_log
from hand_off.batch_folder import BatchFolder, folders_with_runs
from hand_off.checksums import seal, unseal
from hand_off.errors import BatchError, LeaseHeld
from hand_off.manifests import (
    DataFile,
    Manifest,
    Phase,
    ViewData,
    from_json,
    missing_of,
    paths_of,
    read_manifest,
    write_manifest,
)
from infra.disk import make_folder, replace_file
from infra.settings import load_settings

HASH = "ab12" * 16


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return BatchFolder(tmp_path / "batch" / "web")


# ---- folders -------------------------------------------------------------------


def test_batch_data_is_in_the_home_unless_a_setting_says_where(tmp_path: Path) -> None:
    home = load_settings(home=tmp_path / "home")
    assert BatchFolder.of(home, "web").root == tmp_path / "home" / "batch" / "web"
    elsewhere = load_settings(home=tmp_path / "home", batch_dir=tmp_path / "large")
    assert BatchFolder.of(elsewhere, "web").root == tmp_path / "large" / "web"


def test_paths_of_a_run_and_of_a_view(folder: BatchFolder) -> None:
    assert folder.source == "web"
    assert folder.manifest(7).name == "00000007.json"
    assert folder.manifest(123_456_789).name == "123456789.json"
    assert folder.table("page_hits", HASH).relative_to(folder.root) == Path("tables/page_hits-ab12ab12ab12")
    assert not folder.root.exists()


def test_sources_with_runs_are_found_on_the_disk(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    assert folders_with_runs(settings) == []
    for source in ("web", "ads", "empty"):
        BatchFolder.of(settings, source).root.mkdir(parents=True)
    publish_log.begin(BatchFolder.of(settings, "web"), {}, 1.0)
    BatchFolder.of(settings, "ads").publish_log.touch()  # of Tidemark 0.1
    assert [found.source for found in folders_with_runs(settings)] == ["ads", "web"]


# ---- seals ---------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text().filter(lambda name: name != "sum"), JSON)


@given(value=OBJECTS, indent=st.sampled_from([None, 1]))
def test_sealed_value_comes_back(value: dict[str, object], indent: int | None) -> None:
    text = seal(value, indent=indent)
    assert unseal(text) == unseal(text.encode()) == value
    assert indent or "\n" not in text


@given(data=st.data(), value=OBJECTS)
def test_changed_byte_is_never_believed(data: st.DataObject, value: dict[str, object]) -> None:
    """What comes out of a changed text is nothing, or still the same value: white space may change."""
    text = bytearray(seal(value).encode())
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    assert unseal(bytes(text)) in (None, value)


@pytest.mark.parametrize("text", ["", "[]", "1", "null", "{}", '{"run": 1}', '{"sum": 1}', b"\xff", "[" * 100_000])
def test_what_was_never_sealed_is_nothing(text: str | bytes) -> None:
    assert unseal(text) is None


# ---- files that are written whole ------------------------------------------------


def test_crash_before_the_end_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", crash)
        with pytest.raises(KeyboardInterrupt):
            replace_file(tmp_path / "x", "text")
    assert not (tmp_path / "x").exists(), "visible before it was on the disk"
    replace_file(tmp_path / "x", "text")
    assert (tmp_path / "x").read_text() == "text"


def test_folders_are_made_and_made_again(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


# ---- definitions ---------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "View('page_hits')", "späte\r\nEreignisse\n\n", "\u2028"])
def test_definition_comes_back_byte_for_byte_and_may_be_stored_again(folder: BatchFolder, text: str) -> None:
    for _ in range(2):
        definitions.store(folder, HASH, text)
    assert definitions.load(folder, HASH) == text


def test_definition_is_never_replaced(folder: BatchFolder) -> None:
    definitions.store(folder, HASH, "one")
    with pytest.raises(BatchError, match="holds another text"):
        definitions.store(folder, HASH, "two")
    assert definitions.load(folder, HASH) == "one"


def test_missing_definition_is_told_with_its_hash(folder: BatchFolder) -> None:
    with pytest.raises(BatchError, match=f"no definition '{HASH}'.*batch run --full"):
        definitions.load(folder, HASH)


def test_definition_that_is_no_text_any_more_is_told(folder: BatchFolder) -> None:
    definitions.store(folder, HASH, "one")
    (folder.definitions / HASH).write_bytes(b"\xff")
    with pytest.raises(BatchError, match="is damaged"):
        definitions.load(folder, HASH)


@pytest.mark.parametrize("name", ["", "../../etc", "a b", "a/b", "short"])
def test_name_that_is_no_hash_is_refused(folder: BatchFolder, name: str) -> None:
    with pytest.raises(BatchError, match="is no definition hash"):
        definitions.store(folder, name, "text")
    assert not folder.root.exists()


# ---- manifests -----------------------------------------------------------------

NAMES = st.text("abcxyz_ü/", min_size=1, max_size=6)
COUNTS = st.integers(0, 2**62)
TIMES = st.floats(0, 4e9)
FILES = st.builds(DataFile, day=NAMES, path=NAMES, rows=COUNTS, bytes=COUNTS, action=st.text())
VIEWS = st.builds(
    ViewData,
    name=NAMES,
    hash=st.just(HASH),
    kind=st.sampled_from(["full", "continued"]),
    files=st.lists(FILES, max_size=3).map(tuple),
    rows=COUNTS,
    totals=st.dictionaries(NAMES, st.text()),
    index=st.lists(NAMES, max_size=2).map(tuple),
    seconds=TIMES,
)
MANIFESTS = st.builds(
    Manifest,
    run=st.integers(1, 10**9),
    source=NAMES,
    cut=st.dictionaries(st.integers(0, 99), COUNTS),
    base_run=st.none() | st.integers(1, 10**9),
    started=TIMES,
    finished=TIMES,
    events=COUNTS,
    duplicates=COUNTS,
    invalid=COUNTS,
    views=st.lists(VIEWS, max_size=2).map(tuple),
    ids=st.lists(NAMES, max_size=2).map(tuple),
    timeline=st.lists(st.builds(Phase, name=NAMES, seconds=TIMES, jobs=COUNTS), max_size=2).map(tuple),
)


@given(manifest=MANIFESTS)
def test_manifest_comes_back_from_json(manifest: Manifest) -> None:
    assert from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


def test_manifest_of_an_older_version_has_no_timeline() -> None:
    value = json.loads(json.dumps(a_manifest().to_json()))
    del value["timeline"]
    assert from_json(value) == a_manifest()


def a_manifest(run: int = 3) -> Manifest:
    files = (DataFile("2026-01-01", "day=2026-01-01/a.parquet", 2, 4), DataFile("2026-01-02", "b.parquet", 1, 4))
    view = ViewData("page_hits", HASH, "full", files, 3, {"hits": "7"}, ("page_hits-3.index",), 1.5)
    return Manifest(run, "web", {0: 41}, None, 10.0, 12.5, 7, 1, 2, (view,), ("3.parquet",))


def test_manifest_is_written_once_and_read_whole(folder: BatchFolder) -> None:
    write_manifest(folder, a_manifest())
    assert read_manifest(folder, 3) == a_manifest()
    with pytest.raises(BatchError, match="Run 3 of source 'web' has a manifest already"):
        write_manifest(folder, dataclasses.replace(a_manifest(), events=8))
    assert read_manifest(folder, 3) == a_manifest()
    assert [path.name for path in folder.runs.iterdir()] == ["00000003.json"]


def test_view_of_a_manifest_by_name() -> None:
    assert a_manifest().view("page_hits").rows == 3
    with pytest.raises(BatchError, match=r"no view 'top_pages'\. It has: page_hits"):
        a_manifest().view("top_pages")


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [([], "full"), (["full"], "full"), (["full", "continued"], "continued"), (["continued"], "continued")],
)
def test_run_is_full_where_every_view_is(kinds: list[str], kind: str) -> None:
    (view,) = a_manifest().views
    views = tuple(dataclasses.replace(view, kind=each) for each in kinds)
    manifest = dataclasses.replace(a_manifest(), views=views)
    assert (manifest.kind, manifest.rows) == (kind, 3 * len(kinds))


def test_manifest_that_is_missing_damaged_or_newer_is_told_with_what_to_do(folder: BatchFolder) -> None:
    def refusal() -> str:
        with pytest.raises(BatchError) as error:
            read_manifest(folder, 3)
        assert "`tidemark batch run --full --source web`" in str(error.value)
        return str(error.value)

    assert "has no manifest" in refusal()
    write_manifest(folder, a_manifest())
    text = folder.manifest(3).read_text()
    folder.manifest(3).write_text(text.replace('"events": 7', '"events": 8'))
    assert "is damaged: its checksum is wrong" in refusal()
    folder.manifest(3).write_text(text[: len(text) // 2])
    assert "is damaged" in refusal()
    folder.manifest(3).write_text(seal({**a_manifest().to_json(), "format": 2}))
    assert "has format 2; this version of Tidemark reads 1" in refusal()


def test_files_of_a_run_that_are_gone_or_cut_short_are_told(folder: BatchFolder) -> None:
    manifest = a_manifest()
    paths = list(paths_of(folder, manifest))
    assert [str(path.relative_to(folder.root)) for path in paths] == [
        "tables/page_hits-ab12ab12ab12/day=2026-01-01/a.parquet",
        "tables/page_hits-ab12ab12ab12/b.parquet",
        "indexes/page_hits-3.index",
        "ids/3.parquet",
    ]
    assert len(list(missing_of(folder, manifest))) == 4
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1234")
    assert list(missing_of(folder, manifest)) == []
    paths[1].write_text("123")
    paths[3].unlink()
    assert list(missing_of(folder, manifest)) == [f"{paths[3]} is gone", f"{paths[1]} has 3 bytes instead of 4"]


# ---- the lease -----------------------------------------------------------------


def test_second_holder_of_the_lease_is_refused_and_told_the_first(folder: BatchFolder) -> None:
    with lease(folder, "batch run"):
        with (
            pytest.raises(
                LeaseHeld,
                match=rf"worked on by process {os.getpid()} on {socket.gethostname()} \(batch run\) since 20.* UTC",
            ) as error,
            lease(folder, "batch prune"),
        ):
            pass
        assert error.value.exit_code == 75
    with lease(folder, "batch prune"):
        assert json.loads(folder.lease.read_text())["doing"] == "batch prune"


def test_leases_of_two_sources_do_not_hinder_each_other(tmp_path: Path) -> None:
    with lease(BatchFolder(tmp_path / "web"), "batch run"), lease(BatchFolder(tmp_path / "ads"), "batch run"):
        pass


@pytest.mark.process
def test_lease_ends_with_a_holder_that_was_killed(folder: BatchFolder) -> None:
    code = (
        "import pathlib, sys, time\n"
        "from hand_off.batch_folder import BatchFolder\nfrom batch_layer.lease import lease\n"
        "with lease(BatchFolder(pathlib.Path(sys.argv[1])), 'x'): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder.root)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LeaseHeld, match=f"process {holder.pid} "), lease(folder, "y"):
            pass
        holder.kill()
    with lease(folder, "y"):
        pass


def test_holder_that_has_not_said_who_it_is(folder: BatchFolder) -> None:
    with lease(folder, "x"):
        folder.lease.write_text("")
        with pytest.raises(LeaseHeld, match="another process"), lease(folder, "y"):
            pass


# ---- who may import it -----------------------------------------------------------


@pytest.mark.process
def test_what_the_serving_layer_reads_with_needs_no_spark() -> None:
    code = (
        "import sys\nfrom batch_layer import lease, pruning\n"
        "from hand_off import batch_folder, definitions, errors, manifests, publish_log\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "hand_off.publish_log" in done.stdout.split()
    assert not {"pyspark", "delta", "py4j", "pydantic", "sqlglot"} & set(done.stdout.split())
