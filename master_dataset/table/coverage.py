"""Which offsets a master table holds, by the proofs of its commits: the chain without gap or overlap.

The chain of sealed commits was followed when they were sealed; only what came after is followed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from master_dataset.cut import Cut, OffsetRange, cut_from_json, cut_to_json, is_below, join, ranges
from master_dataset.kafka.offset_base import OffsetBase
from master_dataset.table.delta_log import Commit, parse_commit, read_commits
from master_dataset.table.history import History, read_history
from master_dataset.table.ledger import read_ledger
from master_dataset.table.proofs import Kind, Proof, proof_from_json
from master_dataset.table.segments import sealed_commit

REPAIRING = (Kind.REPAIR, Kind.LOST)


@dataclass
class Removed:
    """What retention removed: all records below `cut`, so many rows of this content."""

    cut: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    hash: int = 0
    parsed_hash: int = 0
    day: str = ""
    """They were in Kafka before this day (UTC)."""
    foundation: str = ""
    """Names what the views counted of them (hand_off/foundations.py)."""
    version: int = -1
    """The newest commit that removed some."""

    def to_json(self) -> dict[str, Any]:
        """What a summary keeps."""
        return {**asdict(self), "cut": cut_to_json(self.cut)}


@dataclass
class Coverage:
    """The result of following the chain."""

    cut: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    hash: int = 0
    parsed_hash: int = 0
    topic_id: str = ""
    """Of the topic that the newest records come from."""
    base: dict[int, int] = field(default_factory=dict)
    """What its offsets are raised by, and the cut from which on they are: see kafka/offset_base.py."""
    base_begin: dict[int, int] = field(default_factory=dict)
    origin: str = ""
    """Of the topic that the first records came from."""
    unrecorded: list[int] = field(default_factory=list)
    """Appends from another topic, or with another base, than the commits before them say."""
    gaps: list[OffsetRange] = field(default_factory=list)
    overlaps: list[OffsetRange] = field(default_factory=list)
    lost: list[OffsetRange] = field(default_factory=list)
    unproved: dict[int, int] = field(default_factory=dict)
    """Repairs that could only save rows from a changed file -> how many."""
    held: list[OffsetRange] = field(default_factory=list)
    """The offsets that commits hold; a range that goes on where one ends is part of it."""
    replaced: list[int] = field(default_factory=list)
    """The commits whose rows are those of a repair now."""
    last_repair: int | None = None
    """The newest commit that changed which old records there are: a repair, or a loss that was accepted."""
    last_invalid: int = -1
    """The newest append with invalid records."""
    last_with_rows: Proof | None = None
    """The proof of the newest append that has rows: commits without rows say nothing about the size of records."""
    removed: Removed = field(default_factory=Removed)
    """What retention removed. `rows` and the hashes are of what is left."""

    @property
    def is_sound(self) -> bool:
        """Whether the chain is complete."""
        return not self.gaps and not self.overlaps

    @property
    def offset_base(self) -> OffsetBase:
        """How Kafka's offsets become those of the table."""
        return OffsetBase(self.topic_id, self.base, self.base_begin)

    def to_json(self) -> dict[str, Any]:
        """What a summary keeps of a sound chain."""
        return {
            "cut": cut_to_json(self.cut),
            "rows": self.rows,
            "hash": self.hash,
            "parsed_hash": self.parsed_hash,
            "topic_id": self.topic_id,
            "base": cut_to_json(self.base),
            "base_begin": cut_to_json(self.base_begin),
            "origin": self.origin,
            "unrecorded": self.unrecorded,
            "lost": [list(each) for each in self.lost],
            "unproved": {str(version): rows for version, rows in self.unproved.items()},
            "held": [list(each) for each in self.held],
            "replaced": self.replaced,
            "last_repair": self.last_repair,
            "last_invalid": self.last_invalid,
            "last_with_rows": self.last_with_rows.to_json() if self.last_with_rows else "",
            **({"removed": self.removed.to_json()} if self.removed.cut else {}),
        }


def coverage_from_json(value: Mapping[str, Any]) -> Coverage:
    """The inverse of `Coverage.to_json`."""
    return Coverage(
        cut=cut_from_json(value["cut"]),
        rows=value["rows"],
        hash=value["hash"],
        parsed_hash=value["parsed_hash"],
        topic_id=value["topic_id"],
        base=cut_from_json(value.get("base", {})),  # a summary of an older version has none of these
        base_begin=cut_from_json(value.get("base_begin", {})),
        origin=value.get("origin", value["topic_id"]),
        unrecorded=value.get("unrecorded", []),
        lost=[OffsetRange(*each) for each in value["lost"]],
        unproved={int(version): rows for version, rows in value["unproved"].items()},
        held=[OffsetRange(*each) for each in value["held"]],
        replaced=value["replaced"],
        last_repair=value["last_repair"],
        last_invalid=value["last_invalid"],
        last_with_rows=proof_from_json(value["last_with_rows"]),
        removed=_removed_from_json(value.get("removed")),
    )


def _removed_from_json(value: Mapping[str, Any] | None) -> Removed:
    return Removed() if value is None else Removed(**{**value, "cut": cut_from_json(value["cut"])})


def of(table: Path) -> Coverage:
    """What a table holds, by its proofs and the ledger; nothing where there is no table."""
    return of_history(read_history(table))


def of_history(history: History) -> Coverage:
    """What the commits of a history hold."""
    return follow(*_links(history))


def below(history: History, cut: Cut) -> Coverage:
    """What those commits hold that end at or below a cut."""
    newest, before = _links(history)
    if not is_below(before.cut, cut):
        newest, before = all_proofs(history), Coverage()
    return follow({version: proof for version, proof in newest.items() if is_below(proof.end, cut)}, before)


def files_from(history: History, start: Cut) -> list[str]:
    """The data files that may have records at or above a cut: all but those whose commits end below it.

    A repair or a compaction may hold any records; those that are summed up hold none above what the summary does.
    """
    ends = {each.version: each.proof.end for each in history.commits if each.proof and each.proof.kind == Kind.APPEND}
    if history.summary is not None:
        held = coverage_from_json(history.summary.held).cut
        ends |= {file.version: held for file in history.files.live.values() if file.version < history.first}
    return [
        path
        for path, file in history.files.live.items()
        if file.version not in ends or not is_below(ends[file.version], start)
    ]


def invalid_after(history: History, version: int) -> dict[int, Proof]:
    """The proofs of the appends above a version that have invalid records.

    A repair or a compaction writes rows again; they belong to the append that was first.
    """
    sealed = -1 if history.summary is None else coverage_from_json(history.summary.held).last_invalid
    proofs = all_proofs(history) if sealed > version else effective_proofs(history.commits, history.ledger)
    return {each: p for each, p in proofs.items() if each > version and p.kind == Kind.APPEND and p.invalid}


def _links(history: History) -> tuple[dict[int, Proof], Coverage]:
    """The proofs to follow, and what was held before them. The rows of a sealed commit may be those of a repair now."""
    proofs = effective_proofs(history.commits, history.ledger)
    if history.summary is None:
        return proofs, Coverage()
    before = coverage_from_json(history.summary.held)
    repaired = {old for proof in proofs.values() for old in proof.replaces if old < history.first}
    for version in sorted(repaired.difference(before.replaced)):
        _take_back(before, version, _sealed_proof(history.table, version))
    return proofs, before


def _sealed_proof(table: Path, version: int) -> Proof | None:
    sealed = sealed_commit(table, version)
    if sealed is None:
        return None
    own = parse_commit(version, sealed.text.encode(), None).proof
    return proof_from_json(sealed.proof) if own is None or own.kind == Kind.VOID else own


def _take_back(held: Coverage, version: int, proof: Proof | None) -> None:
    """Take away what one commit holds, whatever `follow` added for it but the cut."""
    if proof is None or proof.kind not in Kind.COVERING:
        return
    span = list(ranges(proof.start, proof.end))
    for each in span if proof.kind in Kind.WITHOUT_ROWS else proof.lost:
        held.lost.remove(each)
    held.rows -= proof.rows + proof.kept_rows
    held.hash ^= proof.hash ^ proof.kept_hash
    held.parsed_hash ^= proof.parsed_hash ^ proof.kept_parsed_hash
    held.unproved.pop(version, None)
    held.held = [part for each in held.held for part in _without(each, span)]


def _without(held: OffsetRange, span: Iterable[OffsetRange]) -> Iterable[OffsetRange]:
    """What is left of a range that holds no, or one whole, range of a commit. A commit has one range per partition."""
    for each in span:
        if each.partition == held.partition and held.start <= each.start and each.end_exclusive <= held.end_exclusive:
            parts = (held._replace(end_exclusive=each.start), held._replace(start=each.end_exclusive))
            return [part for part in parts if part.size]
    return [held]


def all_proofs(history: History) -> dict[int, Proof]:
    """What was ever committed, by version. It takes as long as the table is old."""
    ledger = {**read_ledger(history.table), **history.ledger}
    newest = max([history.newest, *history.ledger])
    proofs = effective_proofs(read_commits(history.table), ledger)
    return {version: proof for version, proof in proofs.items() if version <= newest}


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


def follow(proofs: Mapping[int, Proof], before: Coverage | None = None) -> Coverage:
    """Follow the proofs in the order of their versions. The rows of a commit that was repaired are its repair's.

    `before` is what the commits before them hold, without those that one of these repaired. It is changed.
    """
    replaced = replacements(proofs)
    found = before or Coverage()
    found.replaced = sorted({*found.replaced, *replaced})
    cut = found.cut
    filled: list[OffsetRange] = []
    for version in sorted(proofs):
        proof = proofs[version]
        if proof.kind == Kind.RETAIN:
            _remove(found, version, proof)
        if proof.kind not in Kind.COVERING:
            continue
        _number(found, version, proof)
        found.last_repair = version if proof.kind in REPAIRING else found.last_repair
        span = list(ranges(proof.start, proof.end))
        if proof.kind == Kind.APPEND:
            found.gaps += _gaps_before(cut, proof)
            found.last_invalid = version if proof.invalid else found.last_invalid
            found.last_with_rows = proof if proof.rows else found.last_with_rows
        else:
            filled += span
        for partition, offset in proof.end.items():
            cut[partition] = max(cut.get(partition, 0), offset)
        if version not in replaced:
            _hold(found.held, span)
            found.lost += span if proof.kind in Kind.WITHOUT_ROWS else proof.lost
            found.rows += proof.rows + proof.kept_rows
            if proof.unproved:
                found.unproved[version] = proof.rows + proof.kept_rows
            found.hash ^= proof.hash ^ proof.kept_hash
            found.parsed_hash ^= proof.parsed_hash ^ proof.kept_parsed_hash
    found.cut = dict(sorted(cut.items()))
    found.gaps = [gap for gap in found.gaps if not _is_within(gap, filled)]
    found.overlaps = list(_overlaps(found.held))
    in_order: list[OffsetRange] = []
    _hold(in_order, sorted(found.held))
    found.held = in_order
    return found


def _number(found: Coverage, version: int, proof: Proof) -> None:
    """Follow which topic the offsets are of, and their base. A rebase changes that; each append repeats it.

    Where the two differ, the record of a rebase was lost with its commit and its line of the ledger.
    """
    if not proof.topic_id:
        return
    before = (found.topic_id, found.base)
    found.topic_id, found.origin = proof.topic_id, found.origin or proof.topic_id
    if proof.kind == Kind.REBASE:
        found.base, found.base_begin = dict(proof.base), dict(proof.end)
    elif proof.kind == Kind.APPEND and before[0] and before != (proof.topic_id, proof.base):
        found.unrecorded = [*found.unrecorded, version]
        found.base, found.base_begin = dict(proof.base), dict(proof.start)


def _remove(found: Coverage, version: int, proof: Proof) -> None:
    """Take away what a retention removed. It begins where the one before ended, and ends where there are records."""
    before = found.removed
    if dict(proof.start) != before.cut:
        wrong = [*ranges(proof.start, before.cut), *ranges(before.cut, proof.start)]
        found.gaps += wrong
    found.gaps += ranges(found.cut, proof.end)
    found.rows -= proof.rows
    found.hash ^= proof.hash
    found.parsed_hash ^= proof.parsed_hash
    found.removed = Removed(
        join(before.cut, proof.end),
        before.rows + proof.rows,
        before.hash ^ proof.hash,
        before.parsed_hash ^ proof.parsed_hash,
        proof.day,
        proof.foundation,
        version,
    )


def _hold(held: list[OffsetRange], span: Iterable[OffsetRange]) -> None:
    """Add ranges. One that goes on where the newest of its partition ends makes that one longer."""
    for each in span:
        at = next((i for i in reversed(range(len(held))) if held[i].partition == each.partition), None)
        if at is not None and held[at].end_exclusive == each.start:
            held[at] = held[at]._replace(end_exclusive=each.end_exclusive)
        else:
            held.append(each)


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
