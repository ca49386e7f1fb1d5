"""Messages in a stream of syslog over TCP (RFC 6587): each with its length before it, or a newline or NUL after it."""

from __future__ import annotations

import re

MAX_MESSAGE = 65_536
"""Of a message in bytes. A longer one is skipped and counted."""
_LENGTH = re.compile(rb"([1-9]\d{0,8}) (?=<)")
_LENGTH_BEGUN = re.compile(rb"[1-9]\d{0,8} ?")


class Frames:
    """The messages of one connection. Memory is bounded: what waits for its end has at most MAX_MESSAGE bytes."""

    def __init__(self) -> None:
        self.too_long = 0
        self.cut = 0
        self._waiting = b""
        self._to_skip = 0
        self._skips_line = False

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete now."""
        data, self._waiting = self._waiting + data, b""
        found: list[bytes] = []
        at = 0
        while at < len(data):
            if self._to_skip:
                skipped = min(self._to_skip, len(data) - at)
                at, self._to_skip = at + skipped, self._to_skip - skipped
            elif not self._skips_line and (counted := _LENGTH.match(data, at)):
                start, size = counted.end(), int(counted[1])
                if size > MAX_MESSAGE:
                    self.too_long += 1
                    at, self._to_skip = start, size
                elif len(data) - start < size:
                    break
                else:
                    found.append(data[start : start + size])
                    at = start + size
            elif (end := _end_of_line(data, at)) is not None:
                if self._skips_line or end - at > MAX_MESSAGE:
                    self.too_long += not self._skips_line
                    self._skips_line = False
                elif end > at:
                    found.append(data[at:end])
                at = end + 1
            elif self._skips_line or len(data) - at > MAX_MESSAGE:
                self.too_long += not self._skips_line
                self._skips_line, at = True, len(data)
            else:
                break
        self._waiting = data[at:]
        return found

    def end(self) -> bytes:
        """The message that the end of the stream ended; empty if there is none, or less than its length promised."""
        rest, self._waiting = self._waiting, b""
        is_cut = _LENGTH.match(rest) is not None or _LENGTH_BEGUN.fullmatch(rest) is not None
        self.cut += is_cut
        return b"" if is_cut else rest

    def break_off(self) -> None:
        """The stream broke instead: whatever has not ended by now is cut."""
        self.cut += bool(self._waiting)
        self._waiting = b""


def _end_of_line(data: bytes, at: int) -> int | None:
    """Where the next newline or NUL is."""
    newline = data.find(b"\n", at)
    nul = data.find(b"\0", at, newline if newline >= 0 else len(data))
    end = nul if nul >= 0 else newline
    return end if end >= 0 else None
