"""The store: of many writers one wins, and a writer that is killed leaves nothing or the whole object."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from infra.failpoints import VARIABLE
from infra.store import BadName, ObjectMissing, PosixStore, Stored, StoreError, StoreUnsafe, Version, check_name
from infra.store_probe import probe, probe_folder
from tests.tiers import times

LOOKS_REPLACED = b'{}\n{"nonce":"' + b"0" * 32 + b'"}\n'


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path / "deep" / "store")


def files_of(store: PosixStore) -> list[str]:
    return sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file())


# ---- what it holds -------------------------------------------------------------


def test_object_is_created_once_as_a_file_of_exactly_these_bytes(store: PosixStore) -> None:
    assert store.put_if_absent("publish/1.json", b"one")
    assert not store.put_if_absent("publish/1.json", b"two")
    assert (store.root / "publish" / "1.json").read_bytes() == store.get("publish/1.json") == b"one"
    assert files_of(store) == ["publish/1.json"]


def test_reading_a_store_that_does_not_exist_leaves_nothing_behind(store: PosixStore) -> None:
    assert [*store.list()] == [*store.list("publish/")] == []
    for read in (store.get, store.read):
        with pytest.raises(ObjectMissing, match="no object 'publish/1'"):
            read("publish/1")
    store.delete("publish/1")
    store.settle()
    assert store.sweep() == 0
    assert not store.root.exists()


@pytest.mark.parametrize("content", [b"", b"x", b"0123456789" * 1000, LOOKS_REPLACED])
@pytest.mark.parametrize("create", ["put_if_absent", "replace_if"])
def test_any_range_of_an_object_is_what_a_slice_gives(store: PosixStore, content: bytes, create: str) -> None:
    store.put_if_absent("a", content) if create == "put_if_absent" else store.replace_if("a", None, content)
    assert store.get("a") == store.read("a").data == content
    for start, end in [(0, None), (0, 0), (1, None), (0, 5), (3, 3), (3, 7), (len(content), None), (99_999, 100_000)]:
        assert store.get("a", start, end) == content[start:end], (start, end)
    for start, end in [(-1, None), (5, 4), (-5, -1)]:
        with pytest.raises(ValueError, match="is none"):
            store.get("a", start, end)


def test_version_never_comes_back_though_the_content_does(store: PosixStore) -> None:
    seen: set[Version | None] = {store.replace_if("a", None, b"x")}
    for content in (b"y", b"x", b"x", LOOKS_REPLACED, b"x"):
        found = store.read("a")
        new = store.replace_if("a", found.version, content)
        assert new is not None
        assert new not in seen
        assert store.read("a") == Stored(content, new)
        seen.add(new)
        assert store.replace_if("a", found.version, b"late") is None, "its version has gone"
    store.delete("a")
    assert store.replace_if("a", None, b"x") not in seen
    assert files_of(store) == [".store.lock", "a"]


def test_what_is_gone_is_not_replaced_and_what_is_there_not_created(store: PosixStore) -> None:
    version = store.replace_if("a", None, b"x")
    assert store.replace_if("a", None, b"y") is None
    store.delete("a")
    store.delete("a")
    assert store.replace_if("a", version, b"y") is None
    assert [*store.list()] == []


def test_file_that_another_program_wrote_is_read_and_replaced(store: PosixStore) -> None:
    """Tidemark 0.1 wrote its files without a nonce."""
    store.root.mkdir(parents=True)
    (store.root / "serving.json").write_bytes(b'{"run": 1}')
    found = store.read("serving.json")
    assert found.data == b'{"run": 1}'
    assert store.replace_if("serving.json", found.version, b'{"run": 2}')
    assert store.get("serving.json") == b'{"run": 2}'


BAD_NAMES = [
    "", "/", "/etc/passwd", "..", "../x", "a/../b", "a/..", "./a", "a/./b", "a//b", "a/", ".hidden", "a/.b", "a b",
    "a\n", "a\x00b", "a\\b", "~", "a/~", "é", "a:b", "x.partial", "a/x.partial", "n" * 201,
    "/".join(["n" * 100] * 10), "a*", "a?b",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_name_that_leads_elsewhere_is_refused_by_everything(store: PosixStore, name: str) -> None:
    store.put_if_absent("a/b", b"")
    before = files_of(store)
    acts: list[Callable[[], object]] = [
        lambda: store.put_if_absent(name, b""),
        lambda: store.replace_if(name, None, b""),
        lambda: store.replace_if(name, Version("v"), b""),
        lambda: store.get(name),
        lambda: store.read(name),
        lambda: store.delete(name),
    ]
    for act in acts:
        with pytest.raises(BadName):
            act()
    assert files_of(store) == before


@pytest.mark.parametrize("prefix", ["../", "/", "/etc/", "a/../", "a/../../b", "./"])
def test_list_does_not_leave_the_store(store: PosixStore, prefix: str) -> None:
    store.put_if_absent("a/b", b"")
    (store.root.parent / "b").write_bytes(b"secret")
    with pytest.raises(BadName):
        list(store.list(prefix))


def test_object_that_would_be_a_folder_is_refused(store: PosixStore) -> None:
    store.put_if_absent("a", b"")
    with pytest.raises(StoreError, match="is an object of the store"):
        store.put_if_absent("a/b", b"")
    with pytest.raises(ObjectMissing):
        store.get("a/b")


PARTS = st.text("ab-./0_", min_size=1, max_size=6)


def _fits(name: str, names: set[str]) -> bool:
    """Whether it is a name, and neither a folder of another nor below one."""
    try:
        check_name(name)
    except BadName:
        return False
    return not any(f"{each}/".startswith(f"{name}/") or f"{name}/".startswith(f"{each}/") for each in names)


@settings(max_examples=times(60, 2000), deadline=None)
@given(wanted=st.lists(PARTS, max_size=12), prefix=st.text("ab-./0_", max_size=4), after=PARTS | st.none())
def test_names_are_listed_in_the_order_of_their_characters(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[str], prefix: str, after: str | None
) -> None:
    """As an object store lists them: `a-b` before `a/b` before `a0`."""
    store, names = PosixStore(tmp_path_factory.mktemp("store")), set[str]()
    for name in wanted:
        if _fits(name, names):
            store.put_if_absent(name, b"")
            names.add(name)
    try:
        found = list(store.list(prefix, after))
    except BadName:
        return
    assert found == sorted(name for name in names if name.startswith(prefix) and (after is None or name > after))


class StoreMachine(RuleBasedStateMachine):
    """The store beside a dictionary, used by two handles in turn."""

    names = st.sampled_from(["a", "b/c", "b/d", "b-c"])
    data = st.sampled_from([b"", b"x", b"y", LOOKS_REPLACED])

    @initialize()
    def begin(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.stores = [PosixStore(Path(self.folder.name) / "store") for _ in range(2)]
        self.model: dict[str, bytes] = {}
        self.versions: dict[str, Version] = {}
        self.old: list[tuple[str, Version]] = []

    def teardown(self) -> None:
        self.folder.cleanup()

    def _forget(self, name: str) -> None:
        if name in self.versions:
            self.old.append((name, self.versions.pop(name)))

    @rule(name=names, data=data, who=st.integers(0, 1))
    def put(self, name: str, data: bytes, who: int) -> None:
        assert self.stores[who].put_if_absent(name, data) == (name not in self.model)
        self.model.setdefault(name, data)

    @rule(name=names, data=data, who=st.integers(0, 1))
    def create(self, name: str, data: bytes, who: int) -> None:
        version = self.stores[who].replace_if(name, None, data)
        assert (version is not None) == (name not in self.model)
        if version is not None:
            self.model[name], self.versions[name] = data, version

    @rule(name=names, data=data, who=st.integers(0, 1))
    def replace(self, name: str, data: bytes, who: int) -> None:
        if name not in self.model:
            return
        found = self.stores[who].read(name)
        version = self.stores[1 - who].replace_if(name, found.version, data)
        assert version is not None
        self._forget(name)
        self.model[name], self.versions[name] = data, version

    @rule(data=data, who=st.integers(0, 1), which=st.integers(0, 99))
    def replace_an_old_version(self, data: bytes, who: int, which: int) -> None:
        if self.old:
            name, version = self.old[which % len(self.old)]
            assert self.stores[who].replace_if(name, version, data) is None

    @rule(name=names, who=st.integers(0, 1))
    def delete(self, name: str, who: int) -> None:
        self.stores[who].delete(name)
        self.model.pop(name, None)
        self._forget(name)

    @rule(who=st.integers(0, 1))
    def sweep(self, who: int) -> None:
        assert self.stores[who].sweep() == 0, "nobody was killed"

    @invariant()
    def both_hold_what_the_dictionary_holds(self) -> None:
        for store in self.stores:
            assert {name: store.get(name) for name in store.list()} == self.model
            for name, version in self.versions.items():
                assert store.read(name).version == version


StoreMachine.TestCase.settings = settings(max_examples=times(25, 500), stateful_step_count=20, deadline=None)
TestStoreMachine = StoreMachine.TestCase


# ---- races ---------------------------------------------------------------------


def test_of_many_threads_one_creates_and_one_replaces(store: PosixStore) -> None:
    racers = 8
    gate = threading.Barrier(racers)

    def race(racer: int) -> tuple[list[bool], list[bool]]:
        own, created, replaced = PosixStore(store.root), [], []
        for number in range(10):
            gate.wait()
            created.append(own.put_if_absent(f"n/{number}", str(racer).encode()))
            gate.wait()
            version = own.read(f"n/{number}").version
            gate.wait()
            replaced.append(own.replace_if(f"n/{number}", version, str(racer).encode()) is not None)
        return created, replaced

    with ThreadPoolExecutor(racers) as pool:
        outcomes = list(pool.map(race, range(racers)))
    for number in range(10):
        assert sum(created[number] for created, _ in outcomes) == 1
        winners = [racer for racer, (_, replaced) in enumerate(outcomes) if replaced[number]]
        assert [store.get(f"n/{number}")] == [str(winner).encode() for winner in winners]
    assert files_of(store) == sorted([".store.lock", *(f"n/{number}" for number in range(10))])


RACE = """
import os, sys
from pathlib import Path
from infra.store import ObjectMissing, PosixStore
store, me, count = PosixStore(Path(sys.argv[1])), sys.argv[2].encode(), int(sys.argv[3])
won = 0
for number in range(count):
    won += store.put_if_absent(f"publish/{number:04}", me)
    while True:  # count to the end together: no step is lost
        try:
            found = store.read("total")
        except ObjectMissing:
            found = None
        total = int(found.data) + 1 if found else 1
        if store.replace_if("total", found and found.version, str(total).encode()) is not None:
            break
    if number % 5 == 0:
        store.sweep()
print(won)
"""


@pytest.mark.process
def test_of_many_processes_one_creates_each_object_and_no_replacement_is_lost(store: PosixStore) -> None:
    count = times(25, 300)
    racers = [
        subprocess.Popen([sys.executable, "-c", RACE, str(store.root), f"p{n}", str(count)], stdout=subprocess.PIPE)
        for n in range(6)
    ]
    won = [int(racer.communicate()[0]) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 6
    assert sum(won) == count
    owners = [store.get(name).decode() for name in store.list("publish/")]
    assert [owners.count(f"p{n}") for n in range(6)] == won
    assert int(store.get("total")) == 6 * count
    assert store.sweep() == 0


# ---- crashes -------------------------------------------------------------------

ACTS = {
    "put": "store.put_if_absent('f/a', b'n' * 100_000)",
    "create": "store.replace_if('f/a', None, b'n' * 100_000)",
    "replace": "store.replace_if('f/a', store.read('f/a').version, b'n' * 100_000)",
    "delete": "store.delete('f/a')",
}
POINTS = {
    "put": ["store.before_write", "store.before_sync", "store.before_link", "store.after_link", "store.after_unlink"],
    "create": ["store.before_link", "store.after_link"],
    "replace": ["store.before_write", "store.before_sync", "store.before_replace", "store.after_replace"],
    "delete": ["store.before_delete", "store.after_delete"],
}


@pytest.mark.process
@pytest.mark.parametrize(("act", "point"), [(act, point) for act, points in POINTS.items() for point in points])
def test_writer_killed_at_any_point_leaves_the_old_or_the_new_object_whole(
    store: PosixStore, tmp_path: Path, act: str, point: str
) -> None:
    old = {b"o" * 50_000} if act in ("replace", "delete") else set[bytes]()
    for content in old:
        store.put_if_absent("f/a", content)
    armed = tmp_path / "armed"
    armed.mkdir()
    (armed / point).touch()
    code = (
        f"from pathlib import Path; from infra.store import PosixStore\nstore = PosixStore(Path({str(store.root)!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + ACTS[act]], env={**os.environ, VARIABLE: str(armed)}, check=False
    )
    assert done.returncode == -signal.SIGKILL, "the point was reached"
    found = {store.get(name) for name in store.list()}
    assert found in (old, set() if act == "delete" else {b"n" * 100_000})
    is_done = point in ("store.after_link", "store.after_unlink", "store.after_replace", "store.after_delete")
    assert (found != old) == is_done
    store.sweep()
    assert [name for name in files_of(store) if not name.startswith(".store")] == [*store.list()], (
        "nothing is left over"
    )
    # Whoever comes next can do the same again.
    exec(ACTS[act], {"store": store})  # noqa: S102  our own text, above
    assert [store.get(name) for name in store.list()] == ([] if act == "delete" else [b"n" * 100_000])


@pytest.mark.process
def test_sweep_spares_a_writer_that_lives(store: PosixStore, tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    armed.mkdir()
    (armed / "store.before_link").write_text("stop")
    code = (
        f"from pathlib import Path; from infra.store import PosixStore\nstore = PosixStore(Path({str(store.root)!r}))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code + ACTS["put"]], env={**os.environ, VARIABLE: str(armed)}
    ) as writer:
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED | os.WNOWAIT)
        assert store.sweep() == 0
        assert [*store.list()] == []
        writer.send_signal(signal.SIGCONT)
        assert writer.wait() == 0
    assert [*store.list()] == ["f/a"]


def test_writer_whose_file_was_swept_before_it_was_locked_begins_again(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import infra.store

    real, swept = infra.store.lock, []

    def lock_late(file: object) -> None:
        if not swept:
            swept.append(store.sweep())
        real(file)  # type: ignore[arg-type]

    monkeypatch.setattr(infra.store, "lock", lock_late)
    assert store.put_if_absent("a", b"x")
    assert swept == [1]
    assert files_of(store) == ["a"]


def test_folder_that_was_removed_meanwhile_is_made_again(store: PosixStore) -> None:
    store.put_if_absent("f/a", b"x")
    (store.root / "f" / "a").unlink()
    (store.root / "f").rmdir()
    assert store.put_if_absent("f/a", b"x")


@pytest.mark.parametrize("act", ["put", "create", "replace"])
def test_full_disk_changes_nothing_and_leaves_nothing(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    if act == "replace":
        store.put_if_absent("f/a", b"old")

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = files_of(store)
    PosixStore(store.root).put_if_absent("f/other", b"")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            exec(ACTS[act], {"store": store})  # noqa: S102  our own text, above
    assert files_of(store) == [*before, "f/other"]


def test_object_is_on_the_disk_before_its_name_and_all_folders_above_it_when_put_returns(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_sync, real_link = os.fsync, os.link

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        calls.append("content" if path.is_file() else path.name)
        real_sync(descriptor)

    def link(old: Path, new: Path) -> None:
        calls.append("link")
        real_link(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    (store.root / "f" / "g").mkdir(parents=True)  # by somebody who was killed before they were synced
    store.put_if_absent("f/g/a", b"x")
    assert calls[-3:] == ["content", "link", "g"]
    assert calls[:-3] == ["deep", "store", "f"]
    calls.clear()
    assert not store.put_if_absent("f/g/a", b"y")
    assert calls[-1] == "g", "a loser may tell others of the object: it is on the disk too"


# ---- the probe -----------------------------------------------------------------


def test_probe_accepts_a_sound_store_and_leaves_nothing(store: PosixStore) -> None:
    probe(store)
    assert [*store.list()] == []
    assert files_of(store) == [".store.lock"]


class RenamingStore(PosixStore):
    """Creates by rename, as a careless implementation would: the last one wins, and everybody believes to have won."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self.root / name
        if path.exists():
            return False
        gate.wait()
        with self._partial(path.parent, data) as partial:
            partial.replace(path)
        return True


class ForgetfulStore(PosixStore):
    """Replaces whatever the version is."""

    def replace_if(self, name: str, version: Version | None, data: bytes) -> Version | None:
        return super().replace_if(name, version and self.read(name).version, data)


class OverwritingStore(PosixStore):
    """Does not know put-if-absent."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.delete(name)
        return super().put_if_absent(name, data)


class MixingStore(PosixStore):
    """Gives back something else than was written."""

    def read(self, name: str) -> Stored:
        found = super().read(name)
        return Stored(found.data[::-1], found.version)


gate = threading.Barrier(4)


@pytest.mark.parametrize("kind", [RenamingStore, ForgetfulStore, OverwritingStore, MixingStore])
def test_probe_refuses_a_store_that_breaks_a_promise(tmp_path: Path, kind: type[PosixStore]) -> None:
    with pytest.raises(StoreUnsafe):
        probe(kind(tmp_path))


def test_file_system_without_hard_links_is_refused(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_old: Path, _new: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreUnsafe, match="has no hard links"):
        probe(store)


def test_folder_is_probed_without_a_trace(tmp_path: Path) -> None:
    probe_folder(tmp_path)
    assert [*tmp_path.iterdir()] == []
