"""Which offsets a master table holds, by the proofs of its commits: the chain without gap or overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from master_dataset.cut import OffsetRange, ranges
from master_dataset.table.delta_log import Commit, read_commits
from master_dataset.table.ledger import read_ledger
from master_dataset.table.proofs import Kind, Proof


@dataclass
class Coverage:
    """The result of following the chain."""

    cut: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    hash: int = 0
    parsed_hash: int = 0
    topic_id: str = ""
    gaps: list[OffsetRange] = field(default_factory=list)
    overlaps: list[OffsetRange] = field(default_factory=list)
    lost: list[OffsetRange] = field(default_factory=list)
    unproved: dict[int, int] = field(default_factory=dict)
    """Repairs that could only save rows from a changed file -> how many."""


def of(table: Path, commits: Iterable[Commit] | None = None) -> Coverage:
    """What a table holds, by its proofs and the ledger. `commits` are its own, if they were read already."""
    # The ledger first: a commit made between the two readings is then ahead of it, not missing.
    ledger = read_ledger(table)
    return follow(effective_proofs(read_commits(table) if commits is None else commits, ledger))


def effective_proofs(commits: Iterable[Commit], ledger: Mapping[int, Proof]) -> dict[int, Proof]:
    """What was committed, by version: by the commit itself, or by the ledger where the commit is damaged or void."""
    own = {c.version: c.proof for c in commits if c.proof is not None and c.proof.kind != Kind.VOID}
    return {**ledger, **own}


def replacements(proofs: Mapping[int, Proof]) -> dict[int, int]:
    """Each commit that was repaired -> the repair that now answers for its rows, through repairs of repairs."""
    direct = {old: version for version in sorted(proofs) for old in proofs[version].replaces}
    found = {}
    for old, version in direct.items():
        newest = version
        while newest in direct:
            newest = direct[newest]
        found[old] = newest
    return found


def follow(proofs: Mapping[int, Proof]) -> Coverage:
    """Follow the proofs in the order of their versions. The rows of a commit that was repaired are its repair's."""
    replaced = replacements(proofs)
    found, cut = Coverage(), dict[int, int]()
    filled: list[OffsetRange] = []
    held: list[OffsetRange] = []
    for version in sorted(proofs):
        proof = proofs[version]
        if proof.kind not in Kind.COVERING:
            continue
        found.topic_id = proof.topic_id or found.topic_id
        span = list(ranges(proof.start, proof.end))
        if proof.kind == Kind.APPEND:
            found.gaps += _gaps_before(cut, proof)
        else:
            filled += span
        for partition, offset in proof.end.items():
            cut[partition] = max(cut.get(partition, 0), offset)
        if version not in replaced:
            held += span
            found.lost += span if proof.kind == Kind.LOST else proof.lost
            found.rows += proof.rows + proof.kept_rows
            if proof.unproved:
                found.unproved[version] = proof.rows + proof.kept_rows
            found.hash ^= proof.hash ^ proof.kept_hash
            found.parsed_hash ^= proof.parsed_hash ^ proof.kept_parsed_hash
    found.cut = dict(sorted(cut.items()))
    found.gaps = [gap for gap in found.gaps if not _is_within(gap, filled)]
    found.overlaps = list(_overlaps(held))
    return found


def _gaps_before(cut: Mapping[int, int], proof: Proof) -> Iterable[OffsetRange]:
    """An append begins where the last one ended. The first commit may begin anywhere, a partition added later at 0."""
    for partition in proof.end if cut else ():
        start, at = proof.start.get(partition, 0), cut.get(partition, 0)
        if start > at:
            yield OffsetRange(partition, at, start)


def _overlaps(held: list[OffsetRange]) -> Iterable[OffsetRange]:
    """Offsets that two commits hold."""
    ends: dict[int, int] = {}
    for each in sorted(held):
        end = ends.get(each.partition, each.start)
        if each.start < end:
            yield each._replace(end_exclusive=min(end, each.end_exclusive))
        ends[each.partition] = max(end, each.end_exclusive)


def _is_within(gap: OffsetRange, filled: list[OffsetRange]) -> bool:
    """Whether repairs cover every offset of a gap."""
    at = gap.start
    for each in sorted(f for f in filled if f.partition == gap.partition):
        if each.start <= at < each.end_exclusive:
            at = each.end_exclusive
    return at >= gap.end_exclusive
