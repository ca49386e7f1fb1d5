"""The results of comparisons, and which views are quarantined: one small durable file.

A view whose speed states were wrong is quarantined: readers answer from its batch view alone, and say so. A quarantine
ends when the speed views are rebuilt (another `made`), and for runs from the first whose comparison found all later
generations right. A quarantine that ended stays in the file for a while, because a Redis that is rolled back needs it
again.

Readers need no lock, no Redis and no JVM: they check whether the file changed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hand_off.batch_folder import BatchFolder
from hand_off.checksums import seal, unseal
from hand_off.errors import BatchError
from infra.formats import reads
from infra.store import ObjectMissing, Stored

FORMAT = 1
READABLE = frozenset({1})
NAME = "consistency.json"
MAX_QUARANTINES = 200
MAX_EXAMPLES = 5


@dataclass(frozen=True)
class Compared:
    """The result of comparing a speed view with the truth, over the offsets between two cuts.

    Of the `groups` that it held, `compared` were compared, and `mismatched` of these differ. `excused` of them may
    differ, because of duplicates that came after the horizon. `why_not` says why nothing could be compared,
    `not_explained` why some differences could not be explained; `wrong` are wrong in any case.
    """

    view: str
    hash: str
    since_run: int
    run: int
    """The first run whose readers it answers for where all was right."""
    groups: int = 0
    compared: int = 0
    mismatched: int = 0
    excused: int = 0
    examples: tuple[str, ...] = ()
    why_not: str = ""
    not_explained: str = ""
    seconds: float = 0.0
    at: float = 0.0
    wrong: int = 0

    @property
    def unexplained(self) -> int:
        """Groups that differ and may not."""
        return self.mismatched - self.excused

    def is_above(self, threshold: float) -> bool:
        """Whether more of what was compared is wrong than is borne. What may be legal, for all we know, is no more."""
        wrong = self.wrong if self.not_explained else self.unexplained
        return bool(self.compared) and wrong > threshold * self.compared

    @property
    def in_words(self) -> str:
        """For people."""
        if self.why_not:
            return f"not compared: {self.why_not}"
        of = f"{self.compared:,} of {self.groups:,}" if self.compared < self.groups else f"{self.compared:,}"
        excused = f", {self.excused:,} by late duplicates" if self.excused else ""
        excused += f", {self.wrong:,} wrong in any case" if self.wrong and self.not_explained else ""
        excused += f", not explained: {self.not_explained}" if self.not_explained else ""
        return f"{self.mismatched:,} of {of} groups differ{excused}" if self.mismatched else f"{of} groups equal"


@dataclass(frozen=True)
class Quarantine:
    """A view whose speed view is quarantined. `lifted`: readers of this run and of later ones use it again."""

    view: str
    hash: str
    made: str
    run: int
    why: str
    at: float
    lifted: int | None = None


@dataclass(frozen=True)
class Consistency:
    """All of the file."""

    views: Mapping[str, Compared] = field(default_factory=dict)
    """The last comparison of each view, by name."""
    quarantines: tuple[Quarantine, ...] = ()

    def quarantine_of(self, definition_hash: str, run: int, made: str) -> Quarantine | None:
        """The quarantine that keeps readers of a run from the speed view of a view, if one does."""
        for one in reversed(self.quarantines):
            if one.hash == definition_hash and one.made == made and (one.lifted is None or run < one.lifted):
                return one
        return None


NOTHING = Consistency()


def read(folder: BatchFolder) -> Consistency:
    """What is known. BatchError where the file is damaged: then no speed view of the source is to be trusted."""
    return _parse(folder, _read(folder))


def _read(folder: BatchFolder) -> Stored | None:
    try:
        return folder.store.read(NAME)
    except ObjectMissing:
        return None


def _parse(folder: BatchFolder, stored: Stored | None) -> Consistency:
    if stored is None:
        return NOTHING
    value = unseal(stored.data)
    if value is None or value.get("format") not in READABLE:
        why = "is damaged" if value is None else f"has format {value.get('format')} ({reads(READABLE)})"
        raise BatchError(
            f"{str(folder.consistency)!r} {why}, so it is not known which views are quarantined. The next batch "
            f"run rewrites it: `tidemark batch run --source {folder.source}`."
        )
    views = {name: Compared(**{**each, "examples": tuple(each["examples"])}) for name, each in value["views"].items()}
    return Consistency(views, tuple(Quarantine(**each) for each in value["marks"]))


def record(folder: BatchFolder, made: str, found: Sequence[Compared], threshold: float) -> list[Quarantine]:
    """Record results durably: quarantine views above the threshold, lift the quarantine of those found right.

    `made`: the generation that the compared speed views were created with. Returns the new quarantines.
    """
    while True:  # whoever replaces the file meanwhile is taken into account
        stored = _read(folder)
        try:
            known = _parse(folder, stored)
        except BatchError:  # whatever was quarantined is so until it was found right once more
            if not made:  # a quarantine of unknown speed views would keep nobody from any
                return []
            known = Consistency(
                {}, tuple(_quarantine(each, made, "the earlier quarantines were lost") for each in found)
            )
        new, quarantines = [], list(known.quarantines)
        for each in found:
            if each.is_above(threshold):
                new.append(_quarantine(each, made, f"{each.in_words}, like {'; '.join(each.examples[:1])}"))
                quarantines = [one for one in quarantines if not _is_open(one, each, made)] + [new[-1]]
            elif each.compared and not each.why_not and not each.not_explained:
                quarantines = [_lifted(one, each) if _is_open(one, each, made) else one for one in quarantines]
        views = {**known.views, **{each.view: each for each in found}}
        value = {
            "format": FORMAT,
            "views": {name: asdict(each) for name, each in views.items()},
            "marks": [asdict(one) for one in quarantines[-MAX_QUARANTINES:]],
        }
        text = seal(value, indent=1).encode()
        if folder.store.replace_if(NAME, None if stored is None else stored.version, text) is not None:
            return new


def _quarantine(found: Compared, made: str, why: str) -> Quarantine:
    return Quarantine(found.view, found.hash, made, found.run, why, time.time())


def _is_open(mark: Quarantine, found: Compared, made: str) -> bool:
    return mark.hash == found.hash and mark.made == made and mark.lifted is None


def _lifted(mark: Quarantine, found: Compared) -> Quarantine:
    """Only by generations that were opened after those that were found wrong."""
    return replace(mark, lifted=found.run) if found.since_run >= mark.run else mark


def to_json(found: Compared) -> dict[str, Any]:
    """For manifests, commands and REST."""
    shown = asdict(found)
    return {**{name: shown[name] for name in shown if name not in ("view", "hash")}, "in_words": found.in_words}
