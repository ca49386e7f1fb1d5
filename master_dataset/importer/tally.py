"""Count what an import sent and what it refused, grouped by reason."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from master_dataset.errors import InvalidEvent

MAX_REASONS = 50
OTHER = "other reasons"

_POSITION = re.compile(r"(?:line \d+ column|byte) \d+")
_INDEX = re.compile(r"\[\d+\]")
_VALUE = re.compile(r"; (?:it|this) (?:is|has) .*", re.DOTALL)
_BYTE = re.compile(r"\b0x[0-9a-f]{2}\b")


@dataclass
class Reason:
    """Lines that were refused alike: how many, the first one's number and its text in full."""

    count: int
    first_line: int
    example: str


@dataclass
class Tally:
    """The figures of one file. `lines` are those that could be events."""

    lines: int = 0
    sent: int = 0
    refused: int = 0
    reasons: dict[str, Reason] = field(default_factory=dict)

    def refuse(self, error: InvalidEvent, line_number: int) -> None:
        """Count a refused line. The number of reasons is bounded, whatever the file holds."""
        self.refused += 1
        name = general(error)
        if name not in self.reasons and len(self.reasons) >= MAX_REASONS:
            name = OTHER
        reason = self.reasons.setdefault(name, Reason(0, line_number, str(error)[:300]))
        reason.count += 1

    def as_json(self) -> dict[str, Any]:
        """For the journal and for `--output json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Tally:
        """What `as_json` gave."""
        reasons = {name: Reason(**reason) for name, reason in values["reasons"].items()}
        return cls(values["lines"], values["sent"], values["refused"], reasons)


def general(error: InvalidEvent) -> str:
    """The reason without the line's own position and value: `ms: it should be a number; it is 'x'` -> up to the `;`."""
    where = _INDEX.sub("[]", _POSITION.sub("", error.where))
    reason = _BYTE.sub("a byte", _VALUE.sub("", error.reason))
    return (f"{where}: {reason}" if where else reason)[:200]
