"""Split a stream of JSON objects, one after the other, into whole ones as its bytes arrive."""

from __future__ import annotations

import re

SPACE = b" \t\r\n"
STRUCTURE = re.compile(rb'["{}]')
TEXT_END = re.compile(rb'["\\]')


class JsonObjects:
    """Objects in `{"a": 1} {"b": 2}`, with or without spaces and line ends between them.

    Each byte is looked at once. After other bytes between two objects it `is_broken`, and finds no more.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._seen = 0
        self._depth = 0
        self._is_in_text = False
        self.is_broken = False

    @property
    def held(self) -> int:
        """The bytes of an object that is not complete."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The objects that these bytes complete."""
        if self.is_broken:
            return []
        self._buffer += chunk
        found: list[bytes] = []
        begin, at = 0, self._seen
        buffer = self._buffer
        while True:
            if self._is_in_text:
                match = TEXT_END.search(buffer, at)
                if match is None:
                    at = len(buffer)
                    break
                if match[0] == b"\\":
                    if match.end() == len(buffer):
                        at = match.start()  # what it escapes is still to come
                        break
                    at = match.end() + 1
                    continue
                self._is_in_text, at = False, match.end()
                continue
            match = STRUCTURE.search(buffer, at)
            if not self._depth:
                between = bytes(buffer[begin : match.start() if match else len(buffer)]).lstrip(SPACE)
                if between or (match and match[0] != b"{"):
                    self.is_broken = True
                    return found
                begin = match.start() if match else len(buffer)
            if match is None:
                at = len(buffer)
                break
            at = match.end()
            if match[0] == b'"':
                self._is_in_text = True
            elif match[0] == b"{":
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    found.append(bytes(buffer[begin:at]))
                    begin = at
        del buffer[:begin]
        self._seen = at - begin
        return found
