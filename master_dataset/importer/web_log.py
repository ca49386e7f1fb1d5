"""Access logs of Apache, nginx and whoever writes like them: the common and the combined log format."""

from __future__ import annotations

import re
from typing import Any

from master_dataset.errors import InvalidEvent
from master_dataset.importer.formats import ImportFormat, decoded
from master_dataset.importer.times import from_web_log
from master_dataset.importer.web_request import Request, ToEvent

# Every part can match in one way only, so that no hostile line makes the search slow. The user may hold spaces.
_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_COMMON = (
    r"(\S+) \S+ ([^\[]{1,256}) \[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "
    + _QUOTED
    + r" (\d{3}|-) (\d{1,19}|-)"
)
COMMON_LINE = re.compile(_COMMON + r"\s*", re.ASCII)
COMBINED_LINE = re.compile(rf"{_COMMON} {_QUOTED} {_QUOTED}(?:\s.*)?", re.ASCII | re.DOTALL)

_METHOD = re.compile(r"[A-Za-z][A-Za-z_-]{0,31}")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_PLAIN_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "b": b"\b", "f": b"\f", "v": b"\v"}


class WebLogReader:
    """Reads `::1 - ann [16/Nov/2026:02:40:11 +0000] "GET /a HTTP/1.1" 200 512 "https://b.example/" "curl/8"`.

    After the agent a combined line may hold more, which is left out.
    """

    context = b""

    def __init__(self, format_: ImportFormat, to_event: ToEvent) -> None:
        self.format = format_
        is_combined = format_ is ImportFormat.COMBINED
        self._match = (COMBINED_LINE if is_combined else COMMON_LINE).fullmatch
        self._parts = re.Match[str].groups if is_combined else _common_parts
        self._to_event = to_event

    def is_event(self, raw: bytes) -> bool:
        """Blank lines are left out."""
        return bool(raw) and not raw.isspace()

    def read(self, raw: bytes) -> dict[str, Any]:
        """The request in a line."""
        found = self._match(decoded(raw))
        if found is None:
            raise self._explained(raw)
        ip, user, time, request, status, size, referrer, agent = self._parts(found)
        method, url = _method_and_url(request)
        return self._to_event(
            Request(  # by position: names would cost a tenth of the whole import
                from_web_log(time),
                None if user in ("-", '""') else _unescaped(user),
                url,
                method,
                None if status == "-" else status,
                None,
                "0" if size == "-" else size,  # Apache's %b writes 0 bytes so
                _text(referrer),
                _text(agent),
                ip,
            )
        )

    def _explained(self, raw: bytes) -> InvalidEvent:
        text = decoded(raw)
        if self.format is ImportFormat.COMBINED and COMMON_LINE.fullmatch(text):
            return InvalidEvent("", "this is a common log line, without referrer and agent; or it was cut")
        if self.format is ImportFormat.COMMON and COMBINED_LINE.fullmatch(text):
            return InvalidEvent("", "this is a combined log line, with referrer and agent")
        return InvalidEvent("", f"this is no {self.format} log line")


def _common_parts(found: re.Match[str]) -> tuple[str | Any, ...]:
    return (*found.groups(), None, None)


def _method_and_url(request: str) -> tuple[str | None, str | None]:
    """`GET /a HTTP/1.1` -> GET and /a. Of a broken request line neither is known."""
    if "\\" in request:
        request = _unescaped(request)
    parts = request.split(" ")
    if len(parts) == 3:
        method, url, _protocol = parts
    else:
        method, url = parts[0], " ".join(parts[1:-1] if parts[-1].startswith("HTTP/") else parts[1:])
    if not url or not _METHOD.fullmatch(method):
        return None, None
    return method, url


def _text(quoted: str | None) -> str | None:
    if quoted is None or quoted in ("", "-"):
        return None
    return _unescaped(quoted) if "\\" in quoted else quoted


def _unescaped(text: str) -> str:
    r"""`a\"b\xc3\xa9` -> `a"bé`; text that would not be UTF-8, or would hold a NUL, stays as it is written."""
    if "\\" not in text:
        return text
    pieces, last = [], 0
    for found in _ESCAPE.finditer(text):
        code = found[1]
        pieces += [
            text[last : found.start()].encode(),
            bytes([int(code[1:], 16)]) if len(code) == 3 else _PLAIN_ESCAPES.get(code, code.encode()),
        ]
        last = found.end()
    try:
        plain = b"".join([*pieces, text[last:].encode()]).decode()
    except UnicodeDecodeError:
        return text
    return text if "\0" in plain else plain
