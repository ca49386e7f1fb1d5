"""What every file format has in common: its name, the options, and the interface of its reader.

Outside its own module only CSV is known by name: its records may have line breaks (`import_loop.py`), and a file of
rejects has one header (`rejects.py`). `detect.py` creates the reader for a format.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from enum import StrEnum
from typing import Any, Protocol

from master_dataset.errors import InvalidEvent


class ImportFormat(StrEnum):
    """The formats that can be asked for."""

    AUTO = "auto"
    NDJSON = "ndjson"
    CSV = "csv"
    W3C = "w3c"
    COMMON = "common"
    COMBINED = "combined"


@dataclass(frozen=True)
class Options:
    """How to understand the lines; the same lines under other options are another import."""

    format: ImportFormat = ImportFormat.AUTO
    timezone: str = "UTC"
    delimiter: str = ""
    origin: str = ""
    ignore_unknown: bool = False
    zone: tzinfo = field(default=UTC, compare=False)


class FormatReader(Protocol):
    """Reads one file's lines in their order; it may remember a header or a directive."""

    format: ImportFormat
    context: bytes
    """What gives the following lines their meaning, like a CSV file's header; b"" where a line speaks for itself."""

    def is_event(self, raw: bytes) -> bool:
        """False for a line that is no event: blank, a comment, or a header, which is taken note of."""
        ...

    def read(self, raw: bytes) -> dict[str, Any]:
        """The event in a line, or InvalidEvent. Its id is missing where the line has none."""
        ...


def decoded(raw: bytes) -> str:
    """A line as text; bytes that are not UTF-8 are refused, because a guess could not be taken back."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidEvent(f"byte {error.start}", f"0x{raw[error.start]:02x} is not valid UTF-8 here") from None
