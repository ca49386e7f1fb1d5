"""What a run of the programme found: the shots, the course of lag and memory, and everything that was wrong."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MAX_NOT_INJECTED = 1 / 3


@dataclass(frozen=True)
class Shot:
    """One fault that was injected. Times are seconds since the run began."""

    fault: str
    kind: str
    at: float
    healed_at: float
    recovered_at: float | None
    """When answers were complete and up to date again; None: not within the bound."""
    recovery_s: float | None
    """From healing (what heals by itself: from the injection) to recovery; None where the next fault came first."""
    comparisons: int = 0
    """Values compared between injection and recovery."""
    errors: int = 0
    """Requests that were refused or found nobody between injection and recovery."""
    note: str = ""
    is_injected: bool = True
    """False: the fault itself failed, and nothing may have been hurt."""


@dataclass(frozen=True)
class Sample:
    """How the installation was at one moment."""

    at: float
    lag_events: int
    """Acknowledged events that the newest answer did not hold yet."""
    cut: dict[int, int]
    degraded: bool
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes by service; `redis.used` is what Redis says of itself."""
    files: dict[str, int] = field(default_factory=dict)
    """Open files by service."""
    disk: dict[str, int] = field(default_factory=dict)
    """Bytes by folder of the home; `scratch` is the number of scratch files of Spark's sessions."""
    errors: int = 0
    """Requests that were refused or found nobody since the sample before."""


@dataclass(frozen=True)
class Violation:
    """One thing that must never be. `what` says which promise was broken."""

    at: float
    what: str
    detail: str


@dataclass
class ProgrammeResult:
    """One run. It is right when `wrong` is empty and everything was recovered from."""

    seed: int
    began: str = ""
    seconds: float = 0.0
    shots: list[Shot] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    wrong: list[Violation] = field(default_factory=list)
    """Wrong answers, cuts that went back, errors that are no 429 or 503, growth, ..."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Faults that this machine cannot have, and why."""
    not_injected: list[str] = field(default_factory=list)
    """Shots whose fault failed itself, and how. They are among `shots`, and prove nothing."""
    not_tried: list[str] = field(default_factory=list)
    """Planned faults whose turn never came, because the time was over."""
    answers: int = 0
    """Answers that were held against the reference interpreter."""
    comparisons: int = 0
    """Values in them."""
    degraded: int = 0
    """Answers among them that said they were degraded."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Requests without an answer, by status (`0`: nobody there)."""
    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    """Sends whose outcome the client never learned."""
    duplicates: int = 0
    """Records sent that repeat an earlier event's id."""
    poison: int = 0
    episodes: int = 0
    """Episodes of alerts that fired, each compared with what had to fire."""
    lost: list[str] = field(default_factory=list)
    """Acknowledged ids that the master dataset lacks."""
    doubled: list[str] = field(default_factory=list)
    """Offsets that the master dataset holds more than once, and ids that are counted twice."""
    poison_missing: list[str] = field(default_factory=list)
    """Poison records that are not in the dead letters exactly once."""
    cut_regressions: list[str] = field(default_factory=list)
    unrecovered: list[str] = field(default_factory=list)
    runs: int = 0
    """Batch runs that were published, those of faults not among them."""
    failed_runs: list[str] = field(default_factory=list)
    """The last words of those that were not. Faults may be the reason."""
    quarantined: list[str] = field(default_factory=list)
    """Views that the platform itself quarantined: when, and the reason. A speed view that is never wrong never is."""

    @property
    def is_right(self) -> bool:
        """Whether no promise was broken, and enough was tried."""
        return not self.has_broken_promise and not self.is_idle

    @property
    def has_broken_promise(self) -> bool:
        """Whether anything at all was wrong with the platform, however little was tried."""
        return any((
            self.wrong, self.lost, self.doubled, self.poison_missing, self.cut_regressions, self.unrecovered,
            self.quarantined,
        ))  # fmt: skip

    @property
    def is_idle(self) -> bool:
        """Whether too many shots were none."""
        return len(self.not_injected) > MAX_NOT_INJECTED * len(self.shots)

    def write(self, path: Path) -> None:
        """As JSON, which `read_result` reads."""
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def read_result(path: Path) -> ProgrammeResult:
    """Read what `ProgrammeResult.write` wrote, now or before the member `quarantined` had its name."""
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    value.setdefault("quarantined", value.pop("set_aside", []))
    value["shots"] = [Shot(**each) for each in value["shots"]]
    value["samples"] = [
        Sample(**{**each, "cut": {int(p): o for p, o in each["cut"].items()}}) for each in value["samples"]
    ]
    value["wrong"] = [Violation(**each) for each in value["wrong"]]
    return ProgrammeResult(**value)
