"""Records that no source can accept, each with the reason that the platform must give."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Poison:
    """An invalid record as it goes into Kafka."""

    name: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())
    reason: str = ""
    """How the reason in its dead letter begins; empty: any."""


POISON: list[Poison] = [
    Poison("cut off", b"{"),
    Poison("empty", b""),
    Poison("no value", None),
    Poison("a text for a number", b'{"cents": "many"}'),
    Poison("not UTF-8", b"\xff"),
    Poison("a list", b"[1]"),
    Poison("too large a number", b'{"cents": 1e400}'),
]
