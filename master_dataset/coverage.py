"""Which offsets a master table holds, by the proofs of its commits: the chain without gap or overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from master_dataset.commits import Commit, Kind, Proof
from master_dataset.cut import OffsetRange, join, ranges


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


def effective_proofs(commits: Iterable[Commit], ledger: Mapping[int, Proof]) -> dict[int, Proof]:
    """What was committed, by version: by the commit itself, or by the ledger where the commit is damaged or void."""
    own = {c.version: c.proof for c in commits if c.proof is not None and c.proof.kind != Kind.VOID}
    return {**ledger, **own}


def follow(proofs: Mapping[int, Proof]) -> Coverage:
    """Follow the proofs in the order of their versions. The rows of a commit that was repaired are its repair's."""
    replaced = {version for proof in proofs.values() for version in proof.replaces}
    found = Coverage()
    filled: list[OffsetRange] = []
    for version in sorted(proofs):
        proof = proofs[version]
        if proof.kind not in (Kind.APPEND, Kind.REPAIR, Kind.LOST):
            continue
        found.topic_id = proof.topic_id or found.topic_id
        if proof.kind == Kind.APPEND:
            _check_link(found, proof)
        else:
            filled += ranges(proof.start, proof.end)
        if proof.kind == Kind.LOST:
            found.lost += ranges(proof.start, proof.end)
        found.cut = join(found.cut, proof.end)
        if version not in replaced:
            found.rows += proof.rows
            found.hash ^= proof.hash
            found.parsed_hash ^= proof.parsed_hash
    found.gaps = [gap for gap in found.gaps if not _is_within(gap, filled)]
    return found


def _check_link(found: Coverage, proof: Proof) -> None:
    """New facts begin exactly where the last ones ended; a partition that was never seen may begin anywhere."""
    for partition in sorted(proof.end):
        start, at = proof.start.get(partition, 0), found.cut.get(partition)
        if at is None or start == at:
            continue
        if start > at:
            found.gaps.append(OffsetRange(partition, at, start))
        else:
            found.overlaps.append(OffsetRange(partition, start, min(at, proof.end[partition])))


def _is_within(gap: OffsetRange, filled: list[OffsetRange]) -> bool:
    """Whether repairs cover every offset of a gap."""
    at = gap.start
    for each in sorted(f for f in filled if f.partition == gap.partition):
        if each.start <= at < each.end_exclusive:
            at = each.end_exclusive
    return at >= gap.end_exclusive
