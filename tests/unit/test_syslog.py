"""Syslog messages of all kinds, and how a TCP stream is cut into them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import SettingsError
from infra.settings import load_settings
from master_dataset.collector.bodies import parse_body
from master_dataset.collector.doors.syslog_frames import MAX_MESSAGE, Frames
from master_dataset.collector.doors.syslog_message import event_of, read_message
from master_dataset.collector.doors.syslog_server import MAX_BACKLOG, MAX_BACKLOG_BYTES, Backlog, Received
from master_dataset.events.envelope import compile_validator, prepare_event
from views.catalog.syslog import syslog
from views.formats.fit import fit_of

NOW = datetime(2026, 1, 1, 0, 30, tzinfo=UTC)
NEW_YEAR = datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def stored(raw: bytes) -> dict[str, Any]:
    """The event of a message as Kafka gets it, found valid."""
    event = fit_of(syslog)(event_of(syslog, "e-1", raw, NOW, UTC, "10.0.0.1", "udp"))
    compile_validator(syslog)(event)
    return dict(parse_body(prepare_event(syslog, event).value))


COMMON = {"event_id": "e-1", "sender": "10.0.0.1", "transport": "udp", "received_at": "2026-01-01T00:30:00Z"}
AT_RECEIPT = "2026-01-01T00:30:00Z"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            "<165>1 2025-12-31T23:14:15.003Z web.example app 8710 ID47 "
            '[a@1 n="1" q="say \\"hi\\" \\] \\\\"][b] \ufeffÄ message',
            {"facility": 20, "severity": 5, "event_time": "2025-12-31T23:14:15.003000Z", "hostname": "web.example",
             "app_name": "app", "proc_id": "8710", "msg_id": "ID47", "message": "Ä message",
             "structured_data": {"a@1.n": "1", "a@1.q": 'say "hi" ] \\'}},
        ),
        (
            "<34>1 - - - - - -",
            {"facility": 4, "severity": 2, "event_time": AT_RECEIPT, "message": ""},
        ),
        (
            '<14>1 2025-12-31T23:00:00+01:00 h a - - [ip ip="1" ip="2" ip="3"] x',
            {"facility": 1, "severity": 6, "event_time": "2025-12-31T22:00:00Z", "hostname": "h", "app_name": "a",
             "structured_data": {"ip.ip": '["1","2","3"]'}, "message": "x"},
        ),
        (
            '<14>1 - h a - - [t traceparent="00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01"] x',
            {"facility": 1, "severity": 6, "event_time": AT_RECEIPT, "hostname": "h", "app_name": "a",
             "trace_id": "0102030405060708090a0b0c0d0e0f10", "span_id": "0102030405060708", "trace_flags": "01",
             "structured_data": {"t.traceparent": "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01"},
             "message": "x"},
        ),
        (
            '<14>1 - h a - - [opentelemetry trace_id="0102030405060708090a0b0c0d0e0f10" span_id="0102030405060708"] x',
            {"facility": 1, "severity": 6, "event_time": AT_RECEIPT, "hostname": "h", "app_name": "a",
             "trace_id": "0102030405060708090a0b0c0d0e0f10", "span_id": "0102030405060708",
             "structured_data": {"opentelemetry.trace_id": "0102030405060708090a0b0c0d0e0f10",
                                 "opentelemetry.span_id": "0102030405060708"},
             "message": "x"},
        ),
        (
            "<34>Dec 31 23:14:15 mymachine su[77]: 'su root' failed\n",
            {"facility": 4, "severity": 2, "event_time": "2025-12-31T23:14:15Z", "hostname": "mymachine",
             "app_name": "su", "proc_id": "77", "message": "'su root' failed"},
        ),
        (
            "<13>Jan  1 00:29:59 cron: done",
            {"facility": 1, "severity": 5, "event_time": "2026-01-01T00:29:59Z", "app_name": "cron", "message": "done"},
        ),
        (
            "<13>2025-12-31T23:00:00.5+00:00 h a: forwarded",
            {"facility": 1, "severity": 5, "event_time": "2025-12-31T23:00:00.500000Z", "hostname": "h",
             "app_name": "a", "message": "forwarded"},
        ),
        ("<14>from python\0", {"facility": 1, "severity": 6, "event_time": AT_RECEIPT, "message": "from python"}),
        ("no priority", {"facility": 1, "severity": 5, "event_time": AT_RECEIPT, "message": "no priority"}),
        ("<999>x", {"facility": 1, "severity": 5, "event_time": AT_RECEIPT, "message": "<999>x"}),
        ("<14>Feb 30 00:00:00 h x", {"facility": 1, "severity": 6, "event_time": AT_RECEIPT,
                                     "message": "Feb 30 00:00:00 h x"}),
        ("<14>1 yesterday h a - - - x", {"facility": 1, "severity": 6, "event_time": AT_RECEIPT, "hostname": "h",
                                         "app_name": "a", "message": "x"}),
        ("<14>1 - h a - - [broken x", {"facility": 1, "severity": 6, "event_time": AT_RECEIPT,
                                       "message": "1 - h a - - [broken x"}),
        ("a\0b", {"facility": 1, "severity": 5, "event_time": AT_RECEIPT, "message": "a\ufffdb"}),
        ("", {"facility": 1, "severity": 5, "event_time": AT_RECEIPT, "message": ""}),
    ],
)  # fmt: skip
def test_a_message_becomes_an_event(raw: str, expected: dict[str, Any]) -> None:
    assert stored(raw.encode()) == {**COMMON, **expected}


def test_bytes_that_are_no_text_are_kept() -> None:
    event = stored(b"<14>caf\xe9")
    assert (event["message"], event["raw_base64"]) == ("caf\ufffd", "PDE0PmNhZuk=")


@pytest.mark.parametrize(
    ("now", "text", "zone", "expected"),
    [
        (NOW, "Dec 31 23:59:59", UTC, NEW_YEAR),
        (NEW_YEAR, "Jan  1 00:00:01", UTC, datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (datetime(2026, 7, 1, tzinfo=UTC), "Jul  1 02:00:00", BERLIN, datetime(2026, 7, 1, tzinfo=UTC)),
        (NOW, "Jan  1 01:30:00", BERLIN, NOW),
        (datetime(2028, 3, 1, tzinfo=UTC), "Feb 29 12:00:00", UTC, datetime(2028, 2, 29, 12, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_a_time_without_year_and_zone_is_the_nearest_one(
    now: datetime, text: str, zone: Any, expected: datetime
) -> None:
    assert read_message(f"<13>{text} h a: b".encode(), now, zone).time == expected


HEADS = (
    b"", b"<13>", b"<13>1 ", b"<13>1 2026-01-01T00:00:00Z h a p m ", b'<13>1 - - - - - [a b="', b"<13>Jan  1 00:00:00 ",
)  # fmt: skip


@given(raw=st.binary(max_size=200) | st.text(max_size=100).map(str.encode), head=st.sampled_from(HEADS))
def test_any_bytes_are_a_message(raw: bytes, head: bytes) -> None:
    assert stored(head + raw)["event_id"] == "e-1"


# ---- frames ------------------------------------------------------------------

STREAMS = [
    (b"<13>a\n<13>b\n", [b"<13>a", b"<13>b"]),
    (b"<13>a\0<13>b\0", [b"<13>a", b"<13>b"]),
    (b"\n\n<13>a\r\n", [b"<13>a\r"]),
    (b"5 <13>a6 <13>b\n7 <13>c\nd", [b"<13>a", b"<13>b\n", b"<13>c\nd"]),
    (b"5 <13>a<13>b\n", [b"<13>a", b"<13>b"]),
    (b"12 apples\n", [b"12 apples"]),
    (b"<13>" + b"x" * MAX_MESSAGE + b"\n<13>a\n", [b"<13>a"]),
    (b"99999 <13>" + b"x" * 99995 + b"5 <13>a", [b"<13>a"]),
]


@pytest.mark.parametrize(("stream", "messages"), STREAMS)
@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
def test_a_stream_is_cut_into_messages_wherever_it_is_cut(stream: bytes, messages: list[bytes], size: int) -> None:
    frames = Frames()
    size = size if len(stream) < 1_000 else max(size, 4_096)
    found = [message for at in range(0, len(stream), size) for message in frames.feed(stream[at : at + size])]
    assert found == messages
    assert frames.end() == b""
    assert frames.too_long == (len(stream) > MAX_MESSAGE)
    assert frames.cut == 0


@pytest.mark.parametrize(
    ("stream", "rest", "cut"), [(b"<13>a", b"<13>a", 0), (b"9 <13>a", b"", 1), (b"9", b"", 1), (b"", b"", 0)]
)
def test_the_end_of_a_stream_ends_a_line_and_cuts_a_counted_message(stream: bytes, rest: bytes, cut: int) -> None:
    frames = Frames()
    assert frames.feed(stream) == []
    assert (frames.end(), frames.cut) == (rest, cut)


@pytest.mark.parametrize(
    ("stream", "cut"),
    [(b"<13>a", 1), (b"9 <13>a", 1), (b"9", 1), (b"", 0), (b"<13>a\n", 0), (b"99999 <13>" + b"x" * 9, 0)],
)
def test_a_stream_that_breaks_cuts_what_has_not_ended(stream: bytes, cut: int) -> None:
    frames = Frames()
    frames.feed(stream)
    frames.break_off()
    assert (frames.cut, frames.end()) == (cut, b"")


@given(
    parts=st.lists(st.binary(max_size=50) | st.sampled_from([b"5 <1", b"9 ", b"\n", b"<13>a", b"70000 <"]), max_size=20)
)
def test_any_stream_is_read(parts: list[bytes]) -> None:
    frames = Frames()
    for part in parts:
        for message in frames.feed(part):
            assert 0 < len(message) <= MAX_MESSAGE
    frames.end()


# ---- backlog and settings ----------------------------------------------------


def received(size: int) -> Received:
    return Received("e", bytes(size), NOW, "s", "udp")


@pytest.mark.parametrize(("size", "room"), [(1, MAX_BACKLOG), (MAX_BACKLOG_BYTES // 4, 4)])
def test_a_backlog_is_full_by_number_or_by_size_and_has_room_again(size: int, room: int) -> None:
    async def fill() -> None:
        backlog = Backlog()
        assert [backlog.offer(received(size)) for _ in range(room + 1)] == [True] * room + [False]
        waiting = asyncio.create_task(backlog.add(received(1)))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await backlog.take()
        await waiting
        while backlog:
            await backlog.take()
        assert backlog.offer(received(size))

    asyncio.run(fill())


def test_syslog_beyond_this_machine_has_to_be_asked_for() -> None:
    with pytest.raises(SettingsError, match="access_open_network"):
        load_settings(collector_syslog_udp_port=5514, collector_syslog_host="0.0.0.0")
    assert load_settings(collector_syslog_host="0.0.0.0").collector_syslog_udp_port == 0
    load_settings(collector_syslog_tcp_port=5514, collector_syslog_host="0.0.0.0", access_open_network=True)
    with pytest.raises(SettingsError, match="time zone"):
        load_settings(collector_syslog_timezone="Mars")
