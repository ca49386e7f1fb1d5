"""The grain of a view: how long its buckets are. A bucket is half-open, from one multiple of the grain in UTC on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from views.errors import DeclarationError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
GRAIN = re.compile(r"([1-9][0-9]{0,5})([smhd])")
DAY = 86400


@dataclass(frozen=True)
class Grain:
    """`1h` -> 3600 seconds."""

    text: str
    seconds: int

    @property
    def micros(self) -> int:
        """The same in microseconds."""
        return self.seconds * 1_000_000

    def bucket(self, micros: int) -> int:
        """The beginning of the bucket that a time is in, both in microseconds since 1970."""
        return micros - micros % self.micros

    def bucket_sql(self, column: str) -> str:
        """The same in Spark: a timestamp -> a timestamp."""
        return f"timestamp_micros(unix_micros({column}) - pmod(unix_micros({column}), {self.micros}L))"


def parse_grain(text: str) -> Grain:
    """`5m` -> a Grain. It divides a day without remainder; queries may ask for longer and for calendar periods."""
    given: object = text
    match = GRAIN.fullmatch(given) if isinstance(given, str) else None
    seconds = int(match[1]) * UNITS[match[2]] if match else 0
    if not seconds or seconds > DAY or DAY % seconds:
        raise DeclarationError(
            f"grain is {text!r}; it should be a time that divides a day, for example '5s', '1m', '15m', '1h' or '1d'. "
            "Queries may ask for weeks and months."
        )
    return Grain(text, seconds)


def parse_length(text: str) -> int:
    """`5m` -> 300 seconds: any duration."""
    given: object = text
    match = GRAIN.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise DeclarationError(f"{text!r} is not a duration; write for example '30s', '5m', '1h' or '7d'.")
    return int(match[1]) * UNITS[match[2]]
