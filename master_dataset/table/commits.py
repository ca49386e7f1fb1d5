"""The commits of a master table, read from the Delta log as plain files: no Spark, no trust.

Each commit of ours carries a proof (Delta's `userMetadata`): the offsets it holds, how many rows, and the hash of their
content. A second copy of every proof is kept in the ledger, a file of our own beside the log, because Delta reads an
emptied commit as "fewer rows", and a deleted last commit as if it had never been.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote
from weakref import WeakValueDictionary

import orjson

from infra.disk import sync_file, sync_folder
from infra.settings import Settings
from master_dataset.cut import Cut, OffsetRange, cut_from_json, cut_to_json
from master_dataset.table.commit_cache import Entry, Stamp, add_entries, read_entries, stamp_of
from master_dataset.table.digest import digest_of

COMMIT_FILE = re.compile(r"(\d{20})\.json")
PROOF_VERSION = 1


def table_path(settings: Settings, source: str) -> Path:
    """Where a source's table lives."""
    return (settings.master_dir or settings.home / "master") / source


class Kind:
    """What a commit of ours did."""

    APPEND = "append"  # new facts, continuing where the one before ended
    REPAIR = "repair"  # facts brought back: it replaces the commits it names
    COMPACT = "compact"  # the same facts in fewer files
    LOST = "lost"  # a person accepted that these offsets are gone
    UNCOMPACT = "uncompact"  # compactions taken back: the files they rewrote are live again
    VOID = "void"  # stands in the place of a commit that was damaged

    FACTS = (APPEND, REPAIR, LOST)  # those that say which offsets the table answers for


@dataclass(frozen=True)
class Proof:
    """What a commit claims to hold."""

    kind: str
    topic: str = ""
    topic_id: str = ""
    start: Cut = field(default_factory=dict)
    end: Cut = field(default_factory=dict)
    rows: int = 0
    hash: int = 0  # of the records as Kafka gave them
    parsed_hash: int = 0  # of the columns that were read from them
    invalid: int = 0  # how many of the rows are
    raw_bytes: int = 0  # of their keys, values and headers
    replaces: tuple[int, ...] = ()
    # Of a repair alone: offsets that nothing holds any more, whether its rows are others than were promised, and what
    # other files hold of its offsets already.
    lost: tuple[OffsetRange, ...] = ()
    unproved: bool = False
    kept_rows: int = 0
    kept_hash: int = 0
    kept_parsed_hash: int = 0

    def to_json(self) -> str:
        """The text that goes into `userMetadata` and the ledger."""
        value = {
            "tidemark": PROOF_VERSION,
            "kind": self.kind,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "from": cut_to_json(self.start),
            "to": cut_to_json(self.end),
            "rows": self.rows,
            "hash": _hex(self.hash),
            "parsed_hash": _hex(self.parsed_hash),
            "invalid": self.invalid,
            "raw_bytes": self.raw_bytes,
            "replaces": list(self.replaces),
            "lost": [list(each) for each in self.lost],
            "unproved": self.unproved,
            "kept": [self.kept_rows, _hex(self.kept_hash), _hex(self.kept_parsed_hash)],
        }
        return json.dumps(value, separators=(",", ":"))


_proofs: WeakValueDictionary[str, Proof] = WeakValueDictionary()
"""Those in use, by their text: each is read at least twice, in its commit and in the ledger."""


def proof_from_json(text: str) -> Proof | None:
    """The inverse of `Proof.to_json`; None for what is not ours. A ValueError tells that one of ours lost something."""
    known = _proofs.get(text)
    if known is not None:
        return known
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("tidemark") != PROOF_VERSION:
        return None
    try:
        proof = _proofs[text] = _from_members(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a proof whose members are not what they should be: {error}") from None
    return proof


def _from_members(value: dict[str, Any]) -> Proof:
    kept_rows, kept_hash, kept_parsed_hash = value.get("kept", (0, "0", "0"))
    return Proof(
        kind=value["kind"],
        topic=value["topic"],
        topic_id=value["topic_id"],
        start=cut_from_json(value["from"]),
        end=cut_from_json(value["to"]),
        rows=int(value["rows"]),
        hash=_signed(value["hash"]),
        parsed_hash=_signed(value["parsed_hash"]),
        invalid=int(value["invalid"]),
        raw_bytes=int(value.get("raw_bytes", 0)),
        replaces=tuple(value["replaces"]),
        lost=tuple(OffsetRange(*each) for each in value.get("lost", ())),
        unproved=bool(value.get("unproved", False)),
        kept_rows=kept_rows,
        kept_hash=_signed(kept_hash),
        kept_parsed_hash=_signed(kept_parsed_hash),
    )


def _hex(signed: int) -> str:
    return f"{signed & (2**64 - 1):016x}"


def _signed(text: str) -> int:
    unsigned = int(text, 16)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


class DataFile(NamedTuple):
    """A Parquet file as its commit describes it."""

    path: str
    size: int
    rows: int
    version: int


@dataclass(frozen=True)
class Commit:
    """One commit file. `damage` says what is wrong with it, or is empty; `stamp` is None if it was not read itself."""

    version: int
    proof: Proof | None = None
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    damage: str = ""
    stamp: Stamp | None = field(default=None, compare=False)


def read_commits(table: Path, *, afresh: bool = False) -> list[Commit]:
    """Every commit whose file is there, in order. A file that cannot be read is a commit with `damage`.

    A file that is as it was when we wrote and synced it is not read again, unless `afresh`: its size and times are
    compared, and so an emptied, torn or replaced one is noticed, but not a byte that the disk itself changed.
    """
    log = table / "_delta_log"
    if not log.is_dir():
        return []
    known = {} if afresh else read_entries(remembered_file(table))
    commits = []
    for file in sorted(os.scandir(log), key=lambda file: file.name):
        if found := COMMIT_FILE.fullmatch(file.name):
            entry = known.get(int(found[1]))
            is_known = entry is not None and entry.stamp == stamp_of(file.stat())
            commits.append(_from_entry(entry) if entry is not None and is_known else read_commit(Path(file.path)))
    return commits


def read_commit(path: Path) -> Commit:
    """One commit file."""
    version = int(path.stem)
    stamp = stamp_of(path.stat())  # before it is read: a change in between must show
    text = path.read_bytes()
    if not text.strip():
        return Commit(version, damage="it is empty", stamp=stamp)
    try:
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        return _from_actions(version, actions, stamp)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Commit(version, damage=f"it is torn ({type(error).__name__}: {str(error)[:80]})", stamp=stamp)


def _from_actions(version: int, actions: list[dict[str, Any]], stamp: Stamp) -> Commit:
    info = next((action["commitInfo"] for action in actions if "commitInfo" in action), None)
    if info is None:
        raise ValueError("it has no commitInfo")
    added = []
    for action in actions:
        if "add" in action:
            add = action["add"]
            stats = json.loads(add.get("stats") or "{}")
            added.append(DataFile(unquote(add["path"]), add["size"], stats.get("numRecords", -1), version))
    removed = tuple(unquote(action["remove"]["path"]) for action in actions if "remove" in action)
    return Commit(version, proof_from_json(info.get("userMetadata") or ""), tuple(added), removed, stamp=stamp)


def live_files(commits: Iterable[Commit]) -> dict[str, DataFile]:
    """The data files of the newest version, by path. One that came back belongs to the commit that first added it."""
    known: dict[str, DataFile] = {}
    live: dict[str, DataFile] = {}
    for commit in commits:
        for path in commit.removed:
            live.pop(path, None)
        live |= {file.path: known.setdefault(file.path, file) for file in commit.added}
    return live


# ---- what is remembered of them ----------------------------------------------


def remembered_file(table: Path) -> Path:
    """Where it is. It may be deleted at any time."""
    return own_folder(table) / "commits.remembered"


def remember(table: Path, commits: Collection[Commit]) -> None:
    """Let the next reader of these commits do without their files.

    They must be on the disk: what a power cut may still spoil, without a change of size or time, is not remembered.
    """
    entries = list(_entries(commits))
    if 2 * len(entries) > len(commits):  # of most of them it knew nothing, or what they were before a backup came back
        remembered_file(table).unlink(missing_ok=True)
    if entries:
        add_entries(remembered_file(table), entries)


def remember_newest(table: Path, version: int) -> None:
    """The same for the commit that was just made."""
    commit = read_commit(table / "_delta_log" / f"{version:020}.json")
    add_entries(remembered_file(table), _entries([commit]))


def _entries(commits: Iterable[Commit]) -> Iterator[Entry]:
    """Of those that were read themselves and are sound."""
    for commit in commits:
        if commit.stamp is not None and commit.proof is not None and not commit.damage:
            added = [[file.path, file.size, file.rows] for file in commit.added]
            yield Entry(commit.version, commit.stamp, [commit.proof.to_json(), added, list(commit.removed)])


def _from_entry(entry: Entry) -> Commit:
    proof, added, removed = entry.content
    files = tuple(DataFile(path, size, rows, entry.version) for path, size, rows in added)
    return Commit(entry.version, proof_from_json(proof), files, tuple(removed))


# ---- the ledger --------------------------------------------------------------


def own_folder(table: Path) -> Path:
    """What we keep of a table beside it: ledger, locks, which dead letters were sent, what a repair took out."""
    return table.with_name(f"{table.name}.proofs")


def ledger_file(table: Path) -> Path:
    """Where the second copies are: one line a commit of ours, `<version> <digest> <proof>`, once without digest."""
    return own_folder(table) / "ledger"


def read_ledger(table: Path, *, sealed_only: bool = False) -> dict[int, Proof]:
    """The proofs by version. A line that cannot be read is ignored; the next start writes it anew from its commit.

    A crash leaves a torn last line, a bad disk one anywhere, and a digest tells if as little as a digit was changed.
    With `sealed_only`, lines without a digest are left out.
    """
    path = ledger_file(table)
    if not path.is_file():
        return {}
    entries = {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        version, _, rest = line.partition(" ")
        digest, _, text = rest.partition(" ") if not rest.startswith("{") else ("", "", rest)
        if digest != digest_of(f"{version} {text}") and (digest or sealed_only):
            continue
        try:
            proof = proof_from_json(text)
        except ValueError:
            continue
        if version.isdigit() and proof is not None:
            entries[int(version)] = proof
    return entries


def _ledger_line(version: int, proof: Proof) -> bytes:
    text = proof.to_json()
    return f"{version} {digest_of(f'{version} {text}')} {text}\n".encode()


def append_to_ledger(table: Path, entries: Iterable[tuple[int, Proof]]) -> None:
    """Add lines and wait until they are on the disk."""
    path = ledger_file(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("ab") as file:
        # A line that a crash cut off must not swallow the next one.
        before = b"\n" if file.tell() and not _ends_with_newline(path) else b""
        file.write(before + b"".join(_ledger_line(version, proof) for version, proof in entries))
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        for folder in (path.parent, path.parent.parent):
            sync_folder(folder)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def complete_ledger(table: Path) -> tuple[list[Commit], dict[int, Proof]]:
    """Add what the ledger lacks. Returns the commits, all on the disk now, and the whole ledger."""
    ledger = read_ledger(table)
    commits = read_commits(table)
    missing = missing_from_ledger(commits, ledger)
    for version, _ in missing:
        sync_file(table / "_delta_log" / f"{version:020}.json")
    if missing:
        sync_folder(table / "_delta_log")  # a file whose name is not on the disk is gone after a power cut
        append_to_ledger(table, missing)
    return commits, {**ledger, **dict(missing)}


def missing_from_ledger(commits: Iterable[Commit], ledger: dict[int, Proof]) -> list[tuple[int, Proof]]:
    """Proofs that are not in the ledger: a crash came between the commit and its line, or the line cannot be read.

    A void commit promises nothing: in the ledger it would stand for the rows of the commit that it replaced.
    """
    promised = ((c.version, c.proof) for c in commits if c.proof is not None and c.version not in ledger)
    return [(version, proof) for version, proof in promised if proof.kind != Kind.VOID]
