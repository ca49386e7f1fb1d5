"""Cut a stream of bytes into numbered lines, in constant memory whatever the file holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from master_dataset.importer.errors import UnusableInput

MAX_LINE_BYTES = 1_000_000
"""A longer line is refused. Kafka's own limit for a message is about the same."""
CHUNK_BYTES = 1 << 20

UTF8_BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


class LineStream(Protocol):
    """Anything to read bytes from."""

    def read(self, size: int, /) -> bytes: ...  # noqa: D102  as everywhere in Python


class Line(NamedTuple):
    """One line (of CSV: one record, which may have several) without its line ending.

    `start` and `end_exclusive` are offsets in the uncompressed bytes. A line above the limit is cut to one byte more
    than the limit, so that its length still tells.
    """

    raw: bytes
    number: int
    start: int
    end_exclusive: int


class _Block(NamedTuple):
    """Whole lines as they are in the file, and how many bytes of the file they stand for."""

    data: bytes
    size: int


def read_lines(stream: LineStream) -> Iterator[Line]:
    """Every line: LF or CRLF, with or without one at the end. A UTF-8 byte order mark is left out."""
    number, start = 1, 0
    for block in _read_blocks(stream):
        data, begin = block.data, start
        if begin == 0:
            if data.startswith(UTF16_BOMS):
                raise UnusableInput("This is UTF-16 text; an import reads UTF-8. Convert it: iconv -f UTF-16 -t UTF-8.")
            if data.startswith(UTF8_BOM):
                data, start = data[3:], 3
        pieces = data.split(b"\n")
        last = pieces.pop()
        for raw in pieces:
            end = start + len(raw) + 1
            yield Line(raw[:-1] if raw.endswith(b"\r") else raw, number, start, end)
            number, start = number + 1, end
        if last:  # the end of the file without a line ending, or a line that was cut
            raw = last if len(last) > MAX_LINE_BYTES else last.removesuffix(b"\r")
            yield Line(raw, number, start, begin + block.size)
            number += 1
        start = begin + block.size


def _read_blocks(stream: LineStream) -> Iterator[_Block]:
    carry = b""
    chunk = stream.read(CHUNK_BYTES)
    while chunk:
        end = chunk.rfind(b"\n") + 1
        if end:
            yield _Block(carry + chunk[:end], len(carry) + end)
            carry = chunk[end:]
        elif len(carry) + len(chunk) <= MAX_LINE_BYTES:
            carry += chunk
        else:
            head = (carry + chunk)[: MAX_LINE_BYTES + 1]
            size, chunk = _skip_line(stream, len(carry) + len(chunk))
            yield _Block(head, size)
            carry = b""
            if chunk:
                continue  # what was read beyond the long line is the next chunk
        chunk = stream.read(CHUNK_BYTES)
    if carry:
        yield _Block(carry, len(carry))


def _skip_line(stream: LineStream, size: int) -> tuple[int, bytes]:
    """Read to the end of a line of which `size` bytes were seen: its whole size, and what was read beyond it."""
    while chunk := stream.read(CHUNK_BYTES):
        end = chunk.find(b"\n") + 1
        if end:
            return size + end, chunk[end:]
        size += len(chunk)
    return size, b""


def join_quoted(lines: Iterator[Line]) -> Iterator[Line]:
    r"""CSV records: a line that ends inside quotes goes on in the next one.

        1,"two      ->  1,"two\nlines",3
        lines",3

    A quote that is never closed gives its line alone, which the CSV reader refuses, and goes on with the line after it.
    """
    waiting: list[Line] = []
    size = 0
    for line in lines:
        is_odd = line.raw.count(b'"') % 2 == 1
        if not waiting and not is_odd:
            yield line
            continue
        waiting.append(line)
        size += len(line.raw) + 1
        if is_odd and len(waiting) > 1:
            yield _joined(waiting)
            waiting, size = [], 0
        elif size > MAX_LINE_BYTES:
            yield from waiting  # every line after the first has its quotes closed: each is a record of its own
            waiting, size = [], 0
    yield from waiting


def _joined(lines: list[Line]) -> Line:
    first = lines[0]
    return Line(b"\n".join(line.raw for line in lines), first.number, first.start, lines[-1].end_exclusive)
