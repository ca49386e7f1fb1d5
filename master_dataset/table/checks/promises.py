"""What a damaged commit promised, or a damaged compaction with all the commits whose rows are in its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from master_dataset.cut import Cut, is_below, ranges
from master_dataset.table.coverage import follow, replacements
from master_dataset.table.delta_log import Commit
from master_dataset.table.proofs import Kind, Proof


def rows_of_compaction(version: int, commits: list[Commit], proofs: Mapping[int, Proof]) -> list[int]:
    """The commits that answer for the rows of a compaction's files, and those with offsets between theirs."""
    by_version = {commit.version: commit for commit in commits}
    owner = {file.path: file.version for commit in reversed(commits) for file in commit.added}
    replaced, found, open_ones = replacements(proofs), set[int](), [version]
    while open_ones:
        for path in by_version[open_ones.pop()].removed:
            first = owner[path]
            if first in proofs and proofs[first].kind == Kind.COMPACT:
                open_ones.append(first)
            else:
                found.add(replaced.get(first, first))
    gone = follow(proofs).removed.cut
    covering = {
        v: proof
        for v, proof in proofs.items()
        if proof.kind in Kind.COVERING and v not in replaced and not is_gone(proof, gone)
    }
    found &= covering.keys()
    start, end = _hull(covering[each] for each in found)
    while more := {v for v, proof in covering.items() if v not in found and _overlap(proof, start, end)}:
        found |= more
        start, end = _hull(covering[each] for each in found)
    return sorted(found)


def is_gone(proof: Proof, removed: Cut) -> bool:
    """Whether all that a commit holds is below the cut up to which retention removed the records."""
    return bool(removed) and is_below(proof.end, removed)


def _hull(proofs: Iterable[Proof]) -> tuple[dict[int, int], dict[int, int]]:
    """The smallest range of offsets, partition by partition, that holds those of all proofs."""
    start, end = dict[int, int](), dict[int, int]()
    for each in (span for proof in proofs for span in ranges(proof.start, proof.end)):
        start[each.partition] = min(start.get(each.partition, each.start), each.start)
        end[each.partition] = max(end.get(each.partition, 0), each.end_exclusive)
    return start, end


def _overlap(proof: Proof, start: Cut, end: Cut) -> bool:
    spans = ranges(proof.start, proof.end)
    return any(s.start < end.get(s.partition, 0) and s.end_exclusive > start.get(s.partition, 0) for s in spans)


def promise_of(versions: list[int], proofs: Mapping[int, Proof]) -> Proof:
    """What one commit would have promised that holds what these hold together."""
    if len(versions) == 1:
        start, end = _span(versions[0], proofs)
        return replace(proofs.get(versions[0], Proof(Kind.VOID)), start=start, end=end)
    parts = [proofs[version] for version in versions if proofs[version].kind in Kind.COVERING]
    start, end = _hull(parts)
    whole = Proof(Kind.REPAIR, start=start, end=end, unproved=any(part.unproved for part in parts))
    for part in parts:
        span = tuple(ranges(part.start, part.end))
        whole = replace(
            whole,
            rows=whole.rows + part.rows + part.kept_rows,
            hash=whole.hash ^ part.hash ^ part.kept_hash,
            parsed_hash=whole.parsed_hash ^ part.parsed_hash ^ part.kept_parsed_hash,
            lost=whole.lost + (span if part.kind in Kind.WITHOUT_ROWS else part.lost),
        )
    return whole


def _span(version: int, proofs: Mapping[int, Proof]) -> tuple[Cut, Cut]:
    """The offsets of a commit: by its own proof or the ledger, else between its neighbours."""
    if version in proofs:
        return proofs[version].start, proofs[version].end
    before = follow({v: proof for v, proof in proofs.items() if v < version}).cut
    later = [proof for v, proof in sorted(proofs.items()) if v > version and proof.kind == Kind.APPEND]
    return before, dict(later[0].start) if later else before
