"""The commits of a master table, read from the Delta log as plain files: no Spark, no trust.

Each commit of ours carries a proof (Delta's `userMetadata`): the offsets it holds, how many rows, and the hash of their
content. A second copy of every proof is kept in the ledger, a file of our own beside the log, because Delta reads an
emptied commit as "fewer rows", and a deleted last commit as if it had never been.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from master_dataset.cut import Cut, OffsetRange, cut_from_json, cut_to_json

COMMIT_FILE = re.compile(r"(\d{20})\.json")
PROOF_VERSION = 1


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
    raw_bytes: int = 0  # of their keys and values
    replaces: tuple[int, ...] = ()
    # Of a repair alone: offsets that nothing holds any more, and what other files hold of its offsets already.
    lost: tuple[OffsetRange, ...] = ()
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
            "kept": [self.kept_rows, _hex(self.kept_hash), _hex(self.kept_parsed_hash)],
        }
        return json.dumps(value, separators=(",", ":"))


def proof_from_json(text: str) -> Proof | None:
    """The inverse of `Proof.to_json`; None for what is not ours."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("tidemark") != PROOF_VERSION:
        return None
    kept_rows, kept_hash, kept_parsed_hash = value.get("kept", (0, "0", "0"))
    return Proof(
        kind=value["kind"],
        topic=value["topic"],
        topic_id=value["topic_id"],
        start=cut_from_json(value["from"]),
        end=cut_from_json(value["to"]),
        rows=value["rows"],
        hash=_signed(value["hash"]),
        parsed_hash=_signed(value["parsed_hash"]),
        invalid=value["invalid"],
        raw_bytes=value.get("raw_bytes", 0),
        replaces=tuple(value["replaces"]),
        lost=tuple(OffsetRange(*each) for each in value.get("lost", ())),
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
    """One commit file. `damage` says what is wrong with it, or is empty."""

    version: int
    proof: Proof | None = None
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    damage: str = ""


def read_commits(table: Path) -> list[Commit]:
    """Every commit whose file is there, in order. A file that cannot be read is a commit with `damage`."""
    log = table / "_delta_log"
    if not log.is_dir():
        return []
    names = sorted(entry.name for entry in os.scandir(log) if COMMIT_FILE.fullmatch(entry.name))
    return [read_commit(log / name) for name in names]


def read_commit(path: Path) -> Commit:
    """One commit file."""
    version = int(path.stem)
    text = path.read_bytes()
    if not text.strip():
        return Commit(version, damage="it is empty")
    try:
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        return _from_actions(version, actions)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Commit(version, damage=f"it is torn ({type(error).__name__}: {str(error)[:80]})")


def _from_actions(version: int, actions: list[dict[str, Any]]) -> Commit:
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
    return Commit(version, proof_from_json(info.get("userMetadata") or ""), tuple(added), removed)


def live_files(commits: Iterable[Commit]) -> dict[str, DataFile]:
    """The data files of the newest version, by path. One that came back belongs to the commit that first added it."""
    known: dict[str, DataFile] = {}
    live: dict[str, DataFile] = {}
    for commit in commits:
        for path in commit.removed:
            live.pop(path, None)
        live |= {file.path: known.setdefault(file.path, file) for file in commit.added}
    return live


# ---- the ledger --------------------------------------------------------------


def own_folder(table: Path) -> Path:
    """What we keep of a table beside it: the ledger, the locks, and what a repair took out."""
    return table.with_name(f"{table.name}.proofs")


def ledger_file(table: Path) -> Path:
    """Where the second copies are: one line a commit of ours, `<version> <proof>`."""
    return own_folder(table) / "ledger"


def read_ledger(table: Path) -> dict[int, Proof]:
    """The proofs by version. A torn last line is what a crash leaves; it is ignored, and the next start writes it."""
    path = ledger_file(table)
    if not path.is_file():
        return {}
    entries = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        version, _, text = line.partition(" ")
        proof = proof_from_json(text)
        if version.isdigit() and proof is not None:
            entries[int(version)] = proof
    return entries


def append_to_ledger(table: Path, entries: Iterable[tuple[int, Proof]]) -> None:
    """Add lines and wait until they are on the disk."""
    path = ledger_file(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        # A line that a crash cut off must not swallow the next one.
        before = b"\n" if file.tell() and not _ends_with_newline(path) else b""
        file.write(before + b"".join(f"{version} {proof.to_json()}\n".encode() for version, proof in entries))
        file.flush()
        os.fsync(file.fileno())


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def missing_from_ledger(commits: Iterable[Commit], ledger: dict[int, Proof]) -> list[tuple[int, Proof]]:
    """Proofs that a crash kept out of the ledger: it happened between the commit and its ledger line.

    A void commit promises nothing: in the ledger it would stand for the rows of the commit that it replaced.
    """
    newest = max(ledger, default=-1)
    promised = ((c.version, c.proof) for c in commits if c.proof is not None and c.version > newest)
    return [(version, proof) for version, proof in promised if proof.kind != Kind.VOID]
