"""W3C extended log files, as IIS, CloudFront and others write them: the `#Fields` directive names what a line holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import tzinfo
from typing import Any
from urllib.parse import unquote

from master_dataset.errors import InvalidEvent
from master_dataset.importer.formats import ImportFormat, decoded
from master_dataset.importer.times import from_date_and_time
from master_dataset.importer.web_request import Request, ToEvent

_WORD = re.compile(r'"((?:[^"]|"")*+)"(?!\S)|(\S++)')
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)

NAMES = {
    "cs-method": "method",
    "sc-status": "status",
    "sc-bytes": "bytes",
    "bytes": "bytes",
    "time-taken": "ms",
    "cs(referer)": "referrer",
    "cs(referrer)": "referrer",
    "cs(user-agent)": "agent",
    "c-ip": "ip",
    "cs-username": "user_id",
    "date": "date",
    "time": "time",
    "cs-uri": "uri",
    "cs-uri-stem": "stem",
    "cs-uri-query": "query",
}
"""What the log calls a field, and what it is here. Other fields are left out."""


class W3cReader:
    """Reads the lines after `#Fields: date time c-ip cs-method cs-uri-stem sc-status`."""

    format = ImportFormat.W3C

    def __init__(self, to_event: ToEvent, zone: tzinfo) -> None:
        self._to_event = to_event
        self._zone = zone
        self._date: str | None = None  # of the last #Date, for logs whose lines have only a time
        self._fields_line = b""
        self._names: list[str | None] = []
        self.context = b""

    def is_event(self, raw: bytes) -> bool:
        """A line that begins with # is a directive or a comment."""
        if raw.startswith(b"#"):
            self._note(raw)
            return False
        return bool(raw) and not raw.isspace()

    def read(self, raw: bytes) -> dict[str, Any]:
        """The request in a line, by the last #Fields before it."""
        if not self._names:
            raise InvalidEvent("", "no #Fields directive comes before this line")
        words = _words(decoded(raw), len(self._names))
        found = {
            name: word for name, word in zip(self._names, words, strict=True) if name and word not in ("-", "", '""')
        }
        return self._to_event(
            Request(
                time=self._time(found),
                user_id=found.get("user_id"),
                url=_url(found),
                method=found.get("method"),
                status=found.get("status"),
                ms=_if_there(found.get("ms"), _ms),
                bytes=found.get("bytes"),
                referrer=found.get("referrer"),
                agent=_if_there(found.get("agent"), _with_spaces),
                ip=found.get("ip"),
            )
        )

    def _note(self, raw: bytes) -> None:
        name, _, value = raw.decode(errors="replace").partition(":")
        if name.lower() == "#fields":
            self._names = [NAMES.get(word.lower()) for word in value.split()]
            self._fields_line = raw
        elif name.lower() == "#date":
            day = _DATE.search(value)
            self._date = day[0] if day else None
        else:
            return
        # A line with a time and no date is another event under another #Date; with a date, it is not.
        has_date = "date" in self._names
        self.context = self._fields_line if has_date else self._fields_line + (self._date or "").encode()

    def _time(self, found: dict[str, str]) -> str:
        day, clock = found.get("date", self._date), found.get("time")
        if day is None or clock is None:
            raise InvalidEvent("time", "the line has no date and time, and no #Date comes before it")
        return from_date_and_time(day, clock, self._zone)


def _words(line: str, count: int) -> list[str]:
    """Fields are apart by spaces or tabs, and may be quoted. IIS quotes nothing: then a quote is just a character."""
    words = line.split("\t") if "\t" in line else line.split()
    if '"' in line and "\t" not in line:
        quoted = [found[2] if found[1] is None else found[1].replace('""', '"') for found in _WORD.finditer(line)]
        words = quoted if len(quoted) == count else words
    if len(words) != count:
        raise InvalidEvent("", f"the line should have {count} fields, as #Fields says; it is {len(words)}")
    return words


def _url(found: dict[str, str]) -> str | None:
    if "uri" in found or "stem" not in found:
        return found.get("uri")
    return f"{found['stem']}?{found['query']}" if "query" in found else found["stem"]


def _ms(text: str) -> str:
    """IIS writes whole milliseconds; the specification, and CloudFront, seconds with a point."""
    if "." not in text:
        return text
    try:
        return format(float(text) * 1000, ".6g")
    except ValueError:
        return text  # refused where it is converted, with the text as it is


def _with_spaces(agent: str) -> str:
    """`Mozilla/5.0+(a;++http://b)` -> `Mozilla/5.0 (a; +http://b)`; CloudFront writes %20 instead."""
    if "%20" in agent:
        return unquote(agent)
    if " " in agent or "+" not in agent:
        return agent
    return agent.replace("++", " \0").replace("+", " ").replace("\0", "+")


def _if_there(text: str | None, change: Callable[[str], str]) -> str | None:
    return None if text is None else change(text)
