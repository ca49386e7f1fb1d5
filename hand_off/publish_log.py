"""The publish log: which runs readers may see, in order. Appending to it is the commit point of a run.

Each entry is an object of its own, `publish/00000007.json`, that is created if it is absent and never changed. Run
numbers grow and cuts never go back, which `append` holds by itself: entry n is created by whoever checked it against
entry n - 1, and of two who did, one wins. No lock, no lease and no clock is needed for it.

A rollback changes nothing here: it pins readers to an older run of the log (`serve`), and later runs are published all
the same. A run that is published with `unpin` frees the readers by the same entry that publishes it, so there is no
moment between the two; `tidemark batch run` does so unless told not to.

An entry whose checksum is wrong is rebuilt: readers do so for themselves, the next writer for good. Readers need no
lock and no JVM.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from hand_off import old_publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.checksums import seal, unseal
from hand_off.entries import FOLDER, GENESIS, Entry, Slot, from_text, name_of, number_of, to_text
from hand_off.errors import BatchError, RunRefused
from hand_off.manifests import runs_with_manifests
from hand_off.publish_log_repair import Repair, rebuild
from infra.disk import FileStamp, file_stamp
from infra.failpoints import reach
from infra.store import ObjectMissing, Stored, Version
from master_dataset.cut import is_below

__all__ = ["GENESIS", "Entry"]

log = structlog.get_logger()
SERVING, COUNTER = "serving.json", "run.counter"
PIN_FORMAT = 1


# ---- reading -----------------------------------------------------------------


def read(folder: BatchFolder) -> list[Entry]:
    """Every entry, in order, with at least genesis. BatchError where one is damaged and cannot be rebuilt."""
    return _entries(folder, _slots(folder))


def last(folder: BatchFolder) -> Entry:
    """The newest entry. It costs the same however long the log is, unless something is damaged."""
    end = _end(folder)
    return read(folder)[-1] if end is None or end.entry is None else end.entry


def find(folder: BatchFolder, run: int) -> Entry:
    """The entry of a run, or a BatchError that names the runs there are."""
    entries = read(folder)
    for entry in entries:
        if entry.run == run:
            return entry
    numbers = ", ".join(str(entry.run) for entry in entries[1:]) or "none yet"
    raise BatchError(f"Source {folder.source!r} has no run {run} in its publish log. There are: {numbers}.")


class LogStamp(NamedTuple):
    """What changes when the log does: the number of its newest entry, and the file of Tidemark 0.1."""

    newest: int | None
    old: FileStamp | None


def stamp(folder: BatchFolder, known: LogStamp | None = None) -> LogStamp | None:
    """The stamp of the log; None where there is none. Take it before you read: a later change then shows next time.

    With the stamp that is `known` it takes no longer than to ask for the next entry.
    """
    old, newest = file_stamp(folder.publish_log), None if known is None else known.newest
    if newest is None or not folder.store.exists(name_of(newest)):
        newest = _newest_number(folder)
    while newest is not None and folder.store.exists(name_of(newest + 1)):
        newest += 1
    return None if newest is None and old is None else LogStamp(newest, old)


def _entries(folder: BatchFolder, slots: Sequence[Slot]) -> list[Entry]:
    """The entries of the log, with those that can be rebuilt."""
    if not any(slot.is_damaged for slot in slots):
        return [slot.entry for slot in slots if slot.entry is not None] or [GENESIS]
    repairs = {repair.number: repair for repair in rebuild(folder, slots)}
    for repair in repairs.values():
        log.warning("publish_log_damaged", source=folder.source, entry=repair.number, rebuilt_from=repair.taken_from)
    known = (repairs[slot.number].entry if slot.is_damaged else slot.entry for slot in slots)
    return [entry for entry in known if entry is not None]


def _slots(folder: BatchFolder) -> list[Slot]:
    """Every position, from objects and from the file of Tidemark 0.1; settled, so that it may be passed on."""
    # The file first: where it is gone, all its entries are objects.
    old = old_publish_log.read_slots(folder)
    numbers = _numbers(folder)
    slots = [_slot(folder, number) for number in range(max(numbers, default=-1) + 1)]
    if slots:
        # An entry is one only when it survives a power cut. Its writer may have been killed before it saw to that,
        # and what we tell others of it (Redis, say) would outlive it.
        folder.store.settle(FOLDER)
    if any(one.entry != other.entry for one, other in zip(old, slots, strict=False) if one.entry and other.entry):
        raise BatchError(
            f"{str(folder.publish_log)!r} and the objects in {str(folder.root / FOLDER)!r} disagree: two versions of "
            f"Tidemark published runs here. Remove the one that is wrong; see `tidemark batch list` of each version."
        )
    # A migration that was killed leaves the first entries as objects.
    return [*slots, *old[len(slots) :]]


def _end(folder: BatchFolder) -> Slot | None:
    """The last position, settled; None where there is none, or only a look at the whole log tells."""
    number = None if folder.publish_log.exists() else _newest_number(folder)
    if number is None:
        return None
    folder.store.settle(FOLDER)
    return _slot(folder, number)


def _slot(folder: BatchFolder, number: int) -> Slot:
    try:
        return from_text(number, folder.store.get(name_of(number)), repr(str(folder.root)))
    except ObjectMissing:
        return Slot(number, None)


def _numbers(folder: BatchFolder) -> list[int]:
    found = (number_of(name) for name in folder.store.list(f"{FOLDER}/"))
    return [number for number in found if number is not None]


def _newest_number(folder: BatchFolder) -> int | None:
    return max(_numbers(folder), default=None)


# ---- writing -----------------------------------------------------------------


def begin(folder: BatchFolder, catalog: dict[str, str], at: float) -> Entry:
    """Write genesis with the views that are kept from the beginning, unless the log has begun. Returns its genesis."""
    genesis = Entry(0, {}, catalog, at)
    if _settle_log(folder, genesis=genesis) or not folder.store.put_if_absent(name_of(0), to_text(0, genesis, None)):
        return read(folder)[0]
    return genesis


def append(folder: BatchFolder, entry: Entry, *, unpin: bool = False) -> Entry:
    """Publish a run, durably, or raise RunRefused: only after every run of the log, at no smaller cut.

    With `unpin`, readers that were pinned to an older run are free from this very entry on. Returns the entry.
    """
    entry = replace(entry, unpin=unpin)
    while True:
        # Step 1. The end of the log. The manifest of this run is no proof that it was published.
        end = _end(folder)
        if end is None or end.entry is None:
            slots = _settle_log(folder, unpublished={entry.run})
            number, newest = len(slots), _entries(folder, slots)[-1]
        else:
            number, newest = end.number + 1, end.entry
        if entry.run <= newest.run or not is_below(newest.cut, entry.cut):
            raise RunRefused(entry.run, entry.cut, newest.run, newest.cut)
        if not number:
            folder.store.put_if_absent(name_of(0), to_text(0, GENESIS, None))
            continue
        # Step 2. The entry after it: from here on the run is published. A crash before leaves none. Whoever looked at
        # the same end and comes later finds this entry, and looks again.
        reach("publish_log.before_line")
        if folder.store.put_if_absent(name_of(number), to_text(number, entry, newest)):
            reach("publish_log.after_line")
            return entry


def repair(folder: BatchFolder, *, newest_of_several: bool = False) -> list[Repair]:
    """Rebuild damaged entries for good, and move those of Tidemark 0.1 into objects. Returns what was damaged."""
    slots = _slots(folder)
    repairs = rebuild(folder, slots, newest_of_several=newest_of_several) if slots else []
    _rewrite(folder, slots, repairs)
    return repairs


def _settle_log(folder: BatchFolder, *, unpublished: Collection[int] = (), genesis: Entry | None = None) -> list[Slot]:
    """The positions of the log as objects without damage, for a writer to go on from."""
    slots = _slots(folder)
    if any(slot.is_damaged for slot in slots) or folder.publish_log.exists():
        repairs = rebuild(folder, slots, unpublished=unpublished)
        if genesis is not None and len(slots) == 1 and repairs:
            repairs = [replace(repairs[0], entry=genesis)]
        _rewrite(folder, slots, repairs)
        slots = _slots(folder)
    return slots


def _rewrite(folder: BatchFolder, slots: Sequence[Slot], repairs: Sequence[Repair]) -> None:
    """Bring the objects to what is known. A crash leaves some of it, and the next call does the rest."""
    by_number = {repair.number: repair for repair in repairs}
    before: Entry | None = None
    for slot in slots:
        found = by_number.get(slot.number)
        entry = slot.entry if found is None else found.entry
        text = to_text(slot.number, entry, before)
        if not folder.store.put_if_absent(name_of(slot.number), text) and found is not None:
            stored = folder.store.read(name_of(slot.number))
            if stored.data == slot.text:  # else another process has rebuilt it
                folder.store.replace_if(name_of(slot.number), stored.version, text)
        if found is not None:
            log.warning("publish_log_rebuilt", source=folder.source, entry=slot.number, taken_from=found.taken_from)
        before = entry
        reach("publish_log.between_entries")
    if folder.publish_log.exists():
        old_publish_log.rename_migrated(folder)
        log.info("publish_log_migrated", source=folder.source, entries=len(slots))


# ---- which run is served -------------------------------------------------------


@dataclass(frozen=True)
class Pin:
    """What `serving.json` says: the run that readers are pinned to, by a rollback after run `after`.

    No rollback goes to the runs that are `dropped`: their data is being pruned. `version` is that of the object, None
    where there is none.
    """

    run: int | None = None
    after: int = 0
    dropped: tuple[int, ...] = ()
    is_damaged: bool = False
    version: Version | None = None


def pinned(folder: BatchFolder) -> Entry | None:
    """The older run that readers are to serve, if somebody rolled back to it and nothing ended that."""
    pin = _checked(folder, read_pin(folder))
    return None if pin.run is None else _pinned(pin, read(folder))


def served(folder: BatchFolder) -> Entry:
    """The run that readers are to serve: the pinned one, else the newest."""
    return pinned(folder) or last(folder)


def read_pin(folder: BatchFolder) -> Pin:
    """What `serving.json` says now."""
    try:
        stored = folder.store.read(SERVING)
    except ObjectMissing:
        return Pin()
    value = unseal(stored.data)
    if value is None or value.get("format") != PIN_FORMAT:
        return Pin(is_damaged=True, version=stored.version)
    return Pin(value["run"], value["after"], tuple(value.get("dropped", ())), version=stored.version)


def _checked(folder: BatchFolder, pin: Pin) -> Pin:
    if pin.is_damaged:
        # Not taken for "not pinned": that would serve the very run that somebody rolled back from.
        raise BatchError(
            f"{str(folder.serving)!r} is damaged, so it is not known which run to serve. "
            "Say so with `tidemark batch rollback RUN`, or `tidemark batch rollback --latest`."
        )
    return pin


def _pinned(pin: Pin, entries: Sequence[Entry]) -> Entry | None:
    if any(entry.unpin for entry in entries if entry.run > pin.after):
        return None
    return next((entry for entry in entries if entry.run == pin.run), None)


def serve(folder: BatchFolder, run: int | None) -> Entry:
    """Pin readers to a run of the log, or with None to whatever is the newest. Returns what is served now."""
    while True:
        pin, entries = read_pin(folder), read(folder)
        newest = entries[-1]
        if run is None:
            if pin.version is None or _write_pin(folder, replace(pin, run=None, after=newest.run)):
                reach("rollback.after_unpin")
                return newest
            continue
        entry = next((entry for entry in entries if entry.run == run), None)
        # Pruning names the runs here before it removes their manifests, so a pin that is written was not overtaken.
        if entry is None or run in pin.dropped or not folder.manifest(run).is_file():
            raise BatchError(
                f"Source {folder.source!r} cannot serve run {run}: "
                f"{'it was never published' if entry is None else 'its data was pruned'}. "
                f"`tidemark batch list --source {folder.source}` shows the runs there are."
            )
        reach("rollback.before_pin")
        if _write_pin(folder, replace(pin, run=run, after=newest.run)):
            return entry


def announce_drop(folder: BatchFolder, pin: Pin, runs: Collection[int]) -> bool:
    """Keep rollbacks from runs that are about to be pruned; False where somebody rolled back since `pin` was read."""
    return _write_pin(folder, replace(_checked(folder, pin), dropped=tuple(sorted(runs))))


def _write_pin(folder: BatchFolder, pin: Pin) -> bool:
    value = {"format": PIN_FORMAT, "run": pin.run, "after": pin.after, "dropped": list(pin.dropped)}
    return folder.store.replace_if(SERVING, pin.version, seal(value, indent=1).encode()) is not None


# ---- run numbers ---------------------------------------------------------------


def next_run(folder: BatchFolder) -> int:
    """A run number that was never given out before; that is on the disk before it is returned.

    Where the counter was lost or damaged, it goes on after the newest run that the log or a manifest knows.
    """
    while True:
        stored = _read_counter(folder)
        value = unseal(stored.data) if stored else None
        counted = int(value["run"]) if value else 0
        number = max(counted, last(folder).run, *runs_with_manifests(folder)[-1:]) + 1
        text = seal({"run": number}).encode()
        if folder.store.replace_if(COUNTER, stored and stored.version, text) is not None:
            return number


def _read_counter(folder: BatchFolder) -> Stored | None:
    try:
        return folder.store.read(COUNTER)
    except ObjectMissing:
        return None
