"""Rebuild damaged entries of the publish log, from the entry after each or from the manifests of the runs.

An entry is a function of the manifest of its run (`entry_of`), and manifests are written before their runs are
published. A manifest of a run that failed before it was published looks the same: where one of several may be meant, a
person decides. One that was only prepared for a switch says so, and is never meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hand_off.batch_folder import BatchFolder
from hand_off.entries import GENESIS, Entry, Slot, entry_of, to_text
from hand_off.errors import BatchError
from hand_off.manifests import read_manifest, runs_with_manifests
from master_dataset.cut import is_below


@dataclass(frozen=True)
class Repair:
    """What becomes of a damaged position: its entry, or None where it is lost, and what that was taken from."""

    number: int
    entry: Entry | None
    taken_from: str


def rebuild(
    folder: BatchFolder, slots: Sequence[Slot], *, unpublished: Collection[int] = (), newest_of_several: bool = False
) -> list[Repair]:
    """What to put into each damaged position. BatchError where that is not certain.

    Runs that are `unpublished` are no candidates. With `newest_of_several`, the newest of several candidates is taken.
    """
    repairs: list[Repair] = []
    known = list(slots)
    # Step 1. What the next entry says, from the end: a restored entry says nothing of the one before it.
    for slot in reversed(slots):
        after = slots[slot.number + 1] if slot.number + 1 < len(slots) else None
        if slot.is_damaged and after is not None and after.before is not None:
            repairs.append(Repair(slot.number, after.before, f"entry {after.number}"))
            known[slot.number] = replace(slot, entry=after.before)
    # Step 2. Genesis publishes nothing: it is the one entry that has no manifest.
    if known and known[0].is_damaged:
        repairs.append(Repair(0, GENESIS, "nothing: it is where every log begins"))
        known[0] = replace(known[0], entry=GENESIS)
    # Step 3. The manifests.
    for gap in _gaps(known):
        repairs += _fill(folder, known, gap, unpublished, newest_of_several)
    return sorted(repairs, key=lambda repair: repair.number)


def _gaps(slots: Sequence[Slot]) -> Iterator[range]:
    """The intervals of positions that are damaged."""
    start = None
    for slot in slots:
        if slot.is_damaged and start is None:
            start = slot.number
        if not slot.is_damaged and start is not None:
            yield range(start, slot.number)
            start = None
    if start is not None:
        yield range(start, len(slots))


def _fill(
    folder: BatchFolder, slots: Sequence[Slot], gap: range, unpublished: Collection[int], newest_of_several: bool
) -> Iterator[Repair]:
    before = next(slot.entry for slot in reversed(slots[: gap.start]) if slot.entry is not None)
    after = next((slot.entry for slot in slots[gap.stop :] if slot.entry is not None), None)
    candidates = [each for each in _candidates(folder, before, after) if each.run not in unpublished]
    if len(candidates) > len(gap):
        # The checksum that is left of a damaged entry tells its run, where that was not damaged too.
        named = [each for each in candidates if _is_named(each, slots, gap)]
        if len(named) == len(gap):
            candidates = named
        elif not newest_of_several:
            runs = ", ".join(str(each.run) for each in candidates)
            raise BatchError(
                f"{_what(folder, gap)} damaged, and more than one run may be meant: {runs}. Restore the folder from a "
                f"backup, or take the newest: `tidemark batch repair --newest --source {folder.source}`. Nothing is "
                "published until then."
            )
    candidates = candidates[-len(gap) :]
    if not all(is_below(one.cut, next_one.cut) for one, next_one in pairwise(candidates)):
        candidates = candidates[-1:]  # the others were refused
    if not candidates and after is None:
        raise BatchError(
            f"{_what(folder, gap)} damaged, and there is no manifest of a run after run {before.run} to rebuild the "
            f"log from. Restore {str(folder.root)!r} from a backup. Nothing is published until then."
        )
    # Where there are fewer runs than positions, the older ones were pruned: nobody can ask for them.
    for number in gap[: len(gap) - len(candidates)]:
        yield Repair(number, None, "nothing: the data of its run was pruned")
    for number, entry in zip(gap[len(gap) - len(candidates) :], candidates, strict=True):
        yield Repair(number, entry, f"the manifest of run {entry.run}")


def _candidates(folder: BatchFolder, before: Entry, after: Entry | None) -> Iterator[Entry]:
    """The runs that fit between two entries, in order; each at no smaller cut than the one before."""
    for run in runs_with_manifests(folder):
        if run <= before.run or (after is not None and run >= after.run):
            continue
        try:
            manifest = read_manifest(folder, run)
        except BatchError:
            continue
        if manifest.is_prepared:
            continue
        entry = entry_of(manifest)
        if is_below(before.cut, entry.cut) and (after is None or is_below(entry.cut, after.cut)):
            yield entry


def _is_named(entry: Entry, slots: Sequence[Slot], gap: range) -> bool:
    checksum = to_text(gap.start, entry, slots[gap.start - 1].entry)[-len('0123456789abcdef"}') :]
    return len(gap) == 1 and slots[gap.start].text.endswith(checksum)


def _what(folder: BatchFolder, gap: range) -> str:
    which = f"Entry {gap.start} of" if len(gap) == 1 else f"Entries {gap.start} to {gap.stop - 1} of"
    return f"{which} the publish log in {str(folder.root)!r} {'is' if len(gap) == 1 else 'are'}"
