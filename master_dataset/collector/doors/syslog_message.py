"""A syslog message of RFC 5424 or RFC 3164 as an event. Any bytes are a message: what is not understood is its text."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any

from master_dataset.collector.doors.door import placed
from master_dataset.errors import InvalidEvent
from master_dataset.importer.times import MONTHS
from views.formats.times import moment_of, time_text
from views.source import Source

FIELDS = (
    "facility", "severity", "hostname", "app_name", "proc_id", "msg_id", "message", "structured_data", "trace_id",
    "span_id", "trace_flags", "sender", "transport", "received_at",
)  # fmt: skip
DEFAULT_PRIORITY = 13
"""user.notice, by RFC 3164 that of a message without one."""
MAX_PARAMETERS = 1_000
REPLACED = "\N{REPLACEMENT CHARACTER}"
BOM = "\N{BYTE ORDER MARK}"

_PRIORITY = re.compile(r"<(\d{1,3})>", re.ASCII)
_HEADER_5424 = re.compile(r"1 (\S{1,64}) (\S{1,255}) (\S{1,48}) (\S{1,128}) (\S{1,32}) ")
_BSD_TIME = re.compile(r"([A-Z][a-z]{2}) ([ \d]\d) (\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))? ", re.ASCII)
_ISO_TIME = re.compile(r"(\d{4}-\d{2}-\d{2}T\S{8,30}) ", re.ASCII)
_TAG = re.compile(r"([^\s:\[\]]{1,255})(?:\[([^\]\s]{1,128})\])?: ?")
_HOST = re.compile(r"([^\s:\[\]]{1,255}) (?=\S)")
_ELEMENT = re.compile(r'\[([^\s=\]"]{1,64})')
_PARAMETER = re.compile(r' +([^\s=\]"]{1,64})="((?:[^"\\\]]|\\.)*+)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_ID_OF_TRACE = re.compile(r"[0-9a-f]{32}")


@dataclass
class Message:
    """What a message says. `time` is None where it says nothing that is a time."""

    priority: int = DEFAULT_PRIORITY
    time: datetime | None = None
    hostname: str | None = None
    app_name: str | None = None
    proc_id: str | None = None
    msg_id: str | None = None
    structured_data: dict[str, Any] = field(default_factory=dict)
    message: str = ""


def read_message(raw: bytes, now: datetime, zone: tzinfo) -> Message:
    """`<34>1 2026-11-18T12:00:00Z host app 7 ID1 [a b="c"] text` or `<34>Nov 18 12:00:00 host app[7]: text`.

    RFC 3164 has no year and no zone: the year is the one that is nearest to `now`, the zone is `zone`.
    """
    text = raw.rstrip(b"\0\r\n").decode(errors="replace").replace("\0", REPLACED)
    found = _PRIORITY.match(text)
    if found is None or int(found[1]) > 191:
        return Message(message=text)
    message = Message(priority=int(found[1]))
    rest = text[found.end() :]
    if not _read_5424(message, rest):
        _read_3164(message, rest, now, zone)
    return message


def event_of(
    source: Source, event_id: str, raw: bytes, received: datetime, zone: tzinfo, sender: str, transport: str
) -> dict[str, Any]:
    """A message as an event of a source. Without a time it happened when it was received."""
    message = read_message(raw, received, zone)
    fields: dict[str, Any] = {
        "facility": message.priority >> 3,
        "severity": message.priority & 7,
        "hostname": message.hostname,
        "app_name": message.app_name,
        "proc_id": message.proc_id,
        "msg_id": message.msg_id,
        "message": message.message,
        "structured_data": message.structured_data or None,
        "sender": sender,
        "transport": transport,
        "received_at": time_text(received, "received_at"),
        **_trace_of(message.structured_data),
    }
    try:
        raw.decode()
    except UnicodeDecodeError:
        fields["raw_base64"] = base64.b64encode(raw).decode()
    return placed(source, event_id, _event_time(message.time or received, received), fields)


def _event_time(moment: datetime, received: datetime) -> str:
    """The time of an event; one that no event may have is replaced by the time of receipt."""
    with suppress(InvalidEvent):
        if 1970 < moment.year < 2199:
            return time_text(moment, "time")
    return time_text(received, "time")


# ---- RFC 5424 ----------------------------------------------------------------


def _read_5424(message: Message, rest: str) -> bool:
    header = _HEADER_5424.match(rest)
    if header is None:
        return False
    data: dict[str, Any] = {}
    end = _read_structured_data(rest, header.end(), data)
    if end is None:
        return False
    time, hostname, app_name, proc_id, msg_id = (None if part == "-" else part for part in header.groups())
    if time is not None:
        with suppress(InvalidEvent):
            message.time = moment_of(time, "time")
    message.hostname, message.app_name, message.proc_id, message.msg_id = hostname, app_name, proc_id, msg_id
    message.structured_data, message.message = data, rest[end:].removeprefix(" ").removeprefix(BOM)
    return True


def _read_structured_data(text: str, at: int, data: dict[str, Any]) -> int | None:
    """Where the structured data end, with their parameters as `element.name` in `data`; None where they are none."""
    if text.startswith("-", at):
        return at + 1
    start = at
    while element := _ELEMENT.match(text, at):
        at = element.end()
        while parameter := _PARAMETER.match(text, at):
            at = parameter.end()
            _add(data, f"{element[1]}.{parameter[1]}", _ESCAPED.sub(r"\1", parameter[2]))
        if not text.startswith("]", at) or len(data) > MAX_PARAMETERS:
            return None
        at += 1
    return at if at > start else None


def _add(data: dict[str, Any], name: str, value: str) -> None:
    """A parameter may be repeated: then its values are a list."""
    known = data.get(name)
    if known is None:
        data[name] = value
    elif isinstance(known, list):
        known.append(value)
    else:
        data[name] = [known, value]


def _trace_of(data: dict[str, Any]) -> dict[str, str]:
    """The trace context of W3C: a parameter `traceparent`, or the element `opentelemetry` with the ids."""
    for name, value in data.items():
        if name.rpartition(".")[2] == "traceparent" and isinstance(value, str):
            found = _TRACEPARENT.fullmatch(value)
            if found is not None:
                return {"trace_id": found[1], "span_id": found[2], "trace_flags": found[3]}
    names = ("trace_id", "span_id", "trace_flags")
    ids = {name: value for name in names if isinstance(value := data.get(f"opentelemetry.{name}"), str)}
    return ids if _ID_OF_TRACE.fullmatch(ids.get("trace_id", "")) else {}


# ---- RFC 3164 ----------------------------------------------------------------


def _read_3164(message: Message, rest: str, now: datetime, zone: tzinfo) -> None:
    """Time, host and tag, as far as they are there: programs on the same machine often leave the host out."""
    at = 0
    if bsd := _BSD_TIME.match(rest):
        message.time, at = _nearest(bsd, now, zone), bsd.end()
    elif iso := _ISO_TIME.match(rest):
        with suppress(InvalidEvent):
            message.time, at = moment_of(iso[1], "time"), iso.end()
    if message.time is None:
        at = 0
    elif host := _HOST.match(rest, at):
        message.hostname, at = host[1], host.end()
    if tag := _TAG.match(rest, at):
        message.app_name, message.proc_id, at = tag[1], tag[2], tag.end()
    message.message = rest[at:]


def _nearest(found: re.Match[str], now: datetime, zone: tzinfo) -> datetime | None:
    month, day, hour, minute, second, fraction = found.groups()
    here = now.astimezone(zone)
    moments = [*_in_years(MONTHS.get(month, 0), int(day), (int(hour), int(minute), int(second)), fraction, here)]
    return min(moments, key=lambda moment: abs(moment - here), default=None)


def _in_years(
    month: int, day: int, clock: tuple[int, int, int], fraction: str | None, here: datetime
) -> Iterator[datetime]:
    for year in (here.year - 1, here.year, here.year + 1):
        with suppress(ValueError):  # 29 February of another year, or no time at all
            microsecond = int((fraction or "").ljust(6, "0"))
            yield datetime(year, month, day, *clock, microsecond, tzinfo=here.tzinfo).astimezone(UTC)
