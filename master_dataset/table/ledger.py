"""The ledger: a duplicate of every proof, in files of our own beside the Delta log.

Delta reads an emptied commit as "fewer rows", and a deleted last commit as if it had never been. The ledger knows
better. The proofs of old commits are in sealed segments, the newest in one file. Each of its lines is `<version>
<digest> <proof>`; lines of older versions of Tidemark have no digest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from infra.disk import replace_file, sync_file, sync_folder
from master_dataset.table.delta_log import Commit, commit_file
from master_dataset.table.digest import digest_of
from master_dataset.table.paths import own_folder
from master_dataset.table.proofs import Kind, Proof, proof_from_json
from master_dataset.table.segments import sealed_commits, sealed_until


def ledger_file(table: Path) -> Path:
    """The file with the newest proofs of a table."""
    return own_folder(table) / "ledger"


def read_ledger(table: Path, *, digest_only: bool = False) -> dict[int, Proof]:
    """All proofs by version, those in segments too. It takes as long as the table is old."""
    newest = read_ledger_file(table, digest_only=digest_only)  # first: what is sealed meanwhile is in both
    sealed = {c.version: proof for c in sealed_commits(table) if (proof := proof_from_json(c.proof))}
    return {**newest, **sealed}


def read_ledger_file(table: Path, *, digest_only: bool = False) -> dict[int, Proof]:
    """The proofs that are in no segment yet, by version; after a crash also some that are.

    A line that cannot be read is ignored; the next start adds it again from its commit. A crash leaves a torn last
    line, a bad disk one anywhere, and the digest reveals a single changed digit. With `digest_only`, lines without a
    digest are left out.
    """
    path = ledger_file(table)
    if not path.is_file():
        return {}
    entries = {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        version, _, rest = line.partition(" ")
        digest, _, text = rest.partition(" ") if not rest.startswith("{") else ("", "", rest)
        if digest != digest_of(f"{version} {text}") and (digest or digest_only):
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
        # A line that a crash cut off must not merge with the next one.
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


def complete_ledger(table: Path, commits: Iterable[Commit]) -> dict[int, Proof]:
    """Add the proofs of `commits` that the ledger's file lacks. All are synced then. Returns what the file holds.

    The caller holds `commit_lock`; `commits` are those that are in no segment.
    """
    ledger = read_ledger_file(table)
    missing = missing_from_ledger(commits, ledger)
    for version, _ in missing:
        sync_file(commit_file(table, version))
    if missing:
        sync_folder(table / "_delta_log")  # a file whose name is not on the disk is gone after a power cut
        append_to_ledger(table, missing)
    return {**ledger, **dict(missing)}


def forget_sealed_lines(table: Path) -> None:
    """Remove the lines of sealed commits from the ledger's file. The caller holds `commit_lock`.

    A crash leaves the old file or the new one, whole.
    """
    until, path = sealed_until(table), ledger_file(table)
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    kept = [line for line in lines if line and not _is_until(line, until)]
    if len(kept) < len(lines) - 1:
        replace_file(path, "".join(f"{line}\n" for line in kept))


def _is_until(line: str, version: int) -> bool:
    text = line.partition(" ")[0]
    return text.isdigit() and int(text) <= version


def missing_from_ledger(commits: Iterable[Commit], ledger: dict[int, Proof]) -> list[tuple[int, Proof]]:
    """Proofs that are not in the ledger: a crash came between the commit and its line, or the line cannot be read.

    A void commit holds nothing; in the ledger it would hide the proof of the commit that it replaced.
    """
    promised = ((c.version, c.proof) for c in commits if c.proof is not None and c.version not in ledger)
    return [(version, proof) for version, proof in promised if proof.kind != Kind.VOID]
