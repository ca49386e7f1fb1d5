"""Clients that know nothing of Tidemark, unchanged, through the collector's doors into a real broker."""

from __future__ import annotations

import gzip as gzip_format
import json
import logging
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from logging.handlers import SysLogHandler
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import segment.analytics
from cloudevents.core.bindings import http as ce_http
from cloudevents.core.v1.event import CloudEvent
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from posthog import Posthog

from infra.rest.access_keys import add_key
from master_dataset.collector.doors.syslog_frames import MAX_MESSAGE
from tests.conftest import Stack, start_stack, stop_stack, wait_until
from tests.tiers import times
from torture.installation_settings import free_port

SOURCES = ("cloudevents", "segment", "posthog", "otel_logs", "syslog")
CLIENTS = Path(__file__).parents[1] / "clients"
HOSTILE_REQUESTS = times(300, 5_000)


@pytest.fixture(scope="module")
def doors(bare_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A collector with the sources of all doors, on the shared broker."""
    running = start_stack(
        tmp_path_factory.mktemp("doors") / "home", examples=",".join(("web", *SOURCES)),
        kafka_bootstrap=bare_stack.kafka, redis_url=bare_stack.redis,
        collector_port=free_port(), collector_syslog_udp_port=free_port(), collector_syslog_tcp_port=free_port(),
    )  # fmt: skip
    yield running
    stop_stack(running)


@pytest.fixture(scope="module")
def client(doors: Stack) -> Iterator[httpx.Client]:
    with doors.client(timeout_s=60) as made:
        yield made


@pytest.fixture(scope="module")
def write_key(doors: Stack) -> str:
    """The secret of a key that may write to the sources of doors and read them, and nothing else."""
    return add_key(doors.settings.home, "write-key", ["produce", "consume"], sources=SOURCES)


def records_from(client: httpx.Client, topic: str, partition: int, offset: int) -> list[dict[str, Any]]:
    """The records from an offset on, of which there is at least one: a busy broker may take its time."""
    asked = {"topic": topic, "partition": partition, "offset": offset, "timeout": 20_000}
    return list(wait_until("records", lambda: client.post("/fetch", json=asked).raise_for_status().json()))


def records_of(client: httpx.Client, topic: str) -> list[dict[str, Any]]:
    """Every record of a topic."""
    partitions = client.get(f"/admin/topics/{topic}").raise_for_status().json()["partitions"]
    found: list[dict[str, Any]] = []
    for partition in partitions:
        offset = partition["earliest"]
        while offset < partition["latest"]:
            found += records_from(client, topic, partition["partition"], offset)
            offset = found[-1]["offset"] + 1
    return found


def events_of(client: httpx.Client, topic: str) -> list[dict[str, Any]]:
    """Every event of a topic."""
    return [json.loads(record["value"]) for record in records_of(client, topic)]


def of_this_test(client: httpx.Client, topic: str, mark: str) -> list[dict[str, Any]]:
    return [event for event in events_of(client, topic) if mark in json.dumps(event)]


# ---- CloudEvents -------------------------------------------------------------


@pytest.mark.parametrize("mode", ["binary", "structured", "batch"])
def test_the_cloudevents_sdk_sends_in_every_mode(doors: Stack, client: httpx.Client, mode: str) -> None:
    made = [
        CloudEvent(
            {"id": f"ce-{uuid4()}", "source": f"/{mode}", "type": "com.example.order", "subject": "Größe 7",
             "time": datetime(2026, 3, 1, 12, number, tzinfo=UTC), "traceparent": "00-aa-bb-01",
             "datacontenttype": "application/json", "specversion": "1.0"},
            {"amount": 12.5, "lines": [1, 2]},
        )
        for number in range(2)
    ]  # fmt: skip
    url = f"{doors.collector}/cloudevents/cloudevents"
    if mode == "batch":
        messages = [batch_of(made)]
    else:
        send = ce_http.to_binary_event if mode == "binary" else ce_http.to_structured_event
        messages = [send(event) for event in made]
    for message in messages * 2:  # a retry counts once, by the same ids
        client.post(url, headers=message.headers, content=message.body).raise_for_status()
    found = of_this_test(client, "cloudevents", f'"/{mode}"')
    assert len(found) == 4
    for event in made:
        one = next(each for each in found if each["event_id"] == event.get_id())
        assert one == {
            "event_id": event.get_id(), "event_time": event.get_time().isoformat().replace("+00:00", "Z"),
            "source": f"/{mode}", "type": "com.example.order", "subject": "Größe 7", "traceparent": "00-aa-bb-01",
            "datacontenttype": "application/json", "data": {"amount": "12.5", "lines": "[1,2]"},
        }  # fmt: skip


def batch_of(events: list[CloudEvent]) -> ce_http.HTTPMessage:
    """The SDK writes no batches: an array of what it writes."""
    parts = b",".join(bytes(ce_http.to_structured_event(event).body) for event in events)
    return ce_http.HTTPMessage({"content-type": "application/cloudevents-batch+json"}, b"[" + parts + b"]")


def test_what_is_wrong_in_a_batch_is_named_and_the_rest_is_stored(client: httpx.Client) -> None:
    good = {"specversion": "1.0", "id": f"ce-{uuid4()}", "source": "/part", "type": "t"}
    refused = client.post(
        "/cloudevents/cloudevents", json=[good, {**good, "id": None}],
        headers={"Content-Type": "application/cloudevents-batch+json"},
    )  # fmt: skip
    assert refused.status_code == 422
    stored, wrong = refused.json()["results"]
    assert stored["event_id"] == good["id"]
    assert wrong["error"]["where"] == "id"
    assert len(of_this_test(client, "cloudevents", str(good["id"]))) == 1


# ---- Segment -----------------------------------------------------------------


@pytest.mark.parametrize("gzip", [False, True])
def test_segments_python_library_sends_all_calls(
    doors: Stack, client: httpx.Client, write_key: str, gzip: bool
) -> None:
    mark, errors = uuid4().hex, list[Any]()
    library = segment.analytics.Client(
        write_key, host=doors.collector, gzip=gzip, timeout=60,
        on_error=lambda error, items: errors.append((error, items)),
    )  # fmt: skip
    long_ago = datetime.now(UTC) - timedelta(days=400)
    library.identify(mark, {"plan": "pro", "seats": 5})
    library.track(mark, "Order Completed", {"revenue": 9.5, "items": ["a"]}, timestamp=long_ago, message_id=f"m-{mark}")
    library.page(mark, "Docs", "Install", {"url": "/docs"})
    library.screen(mark, "Home")
    library.group(mark, f"g-{mark}", {"name": "ACME"})
    library.alias(f"old-{mark}", mark)
    library.shutdown()
    assert errors == []
    found = {event["type"]: event for event in of_this_test(client, "segment", mark)}
    assert set(found) == {"identify", "track", "page", "screen", "group", "alias"}
    track = found["track"]
    assert track["event_id"] == f"m-{mark}"
    assert (track["event"], track["user_id"]) == ("Order Completed", mark)
    assert track["properties"] == {"revenue": "9.5", "items": '["a"]'}
    assert abs(datetime.fromisoformat(track["event_time"]) - long_ago) < timedelta(days=1)
    assert found["identify"]["traits"] == {"plan": "pro", "seats": "5"}
    assert found["page"]["name"] == "Install"
    assert found["page"]["category"] == "Docs"
    assert found["group"]["group_id"] == f"g-{mark}"
    assert found["alias"]["previous_id"] == f"old-{mark}"


@pytest.mark.soak  # npm fetches the library
def test_segments_library_for_node_sends_all_calls(
    doors: Stack, client: httpx.Client, write_key: str, tmp_path: Path
) -> None:
    mark, folder = uuid4().hex, shutil.copytree(CLIENTS / "segment", tmp_path / "segment")
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=300)
    subprocess.run(["node", "send.mjs", doors.collector, write_key, mark], cwd=folder, check=True, timeout=60)
    found = {event["type"]: event for event in of_this_test(client, "segment", mark)}
    assert set(found) == {"identify", "track", "page", "screen", "group", "alias"}
    assert found["track"]["event_id"] == f"m-{mark}"
    assert found["track"]["properties"] == {"revenue": "9.5"}


def test_segments_library_reports_a_wrong_key_and_what_is_not_valid(doors: Stack, write_key: str) -> None:
    for key, source, name, status in ((write_key + "x", "segment", "a", 401), (write_key, "segment", "a\0", 422),
                                      (write_key, "web", "a", 403), (write_key, "nosuch", "a", 403)):  # fmt: skip
        errors = list[Any]()
        library = segment.analytics.Client(
            key, host=f"{doors.collector}/segment/{source}", timeout=60,
            on_error=lambda error, _items, errors=errors: errors.append(error),
        )  # fmt: skip
        library.track("u", name)
        library.shutdown()
        assert [error.status for error in errors] == [status]
        assert errors[0].message


def test_a_write_key_in_the_body_is_a_key(doors: Stack, write_key: str) -> None:
    body: dict[str, Any] = {"userId": "a", "messageId": uuid4().hex}
    post = partial(httpx.post, f"{doors.collector}/v1/identify", timeout=60)
    assert post(json=body).status_code == 401
    assert post(json={**body, "writeKey": "wrong"}).status_code == 401
    assert post(json={**body, "writeKey": write_key}).json() == {"success": True}
    assert post(json={**body, "writeKey": write_key}, headers={"Authorization": "x"}).status_code == 401


def test_a_body_whose_sender_is_not_known_yet_is_small(doors: Stack, write_key: str) -> None:
    body = json.dumps({"userId": "a", "messageId": uuid4().hex, "writeKey": write_key}).encode().rjust(7 << 20)
    post = partial(httpx.post, f"{doors.collector}/v1/identify", timeout=60)
    for sent, headers in ((body, {}), (gzip_format.compress(body), {"Content-Encoding": "gzip"})):
        refused = post(content=sent, headers=headers)
        assert refused.status_code == 413
        assert "Authorization header" in refused.json()["detail"]
        assert post(content=sent, headers=headers, auth=("nobody", "wrong")).status_code == 401
        assert post(content=sent, headers=headers, auth=(write_key, "")).json() == {"success": True}


# ---- PostHog -----------------------------------------------------------------


@pytest.mark.parametrize("gzip", [False, True])
def test_posthogs_python_library_captures(doors: Stack, client: httpx.Client, write_key: str, gzip: bool) -> None:
    mark, event_id, errors = uuid4().hex, str(uuid4()), list[Any]()
    library = Posthog(
        write_key, host=doors.collector, gzip=gzip, on_error=lambda error, _items: errors.append(error), timeout=60
    )
    library.capture("signed_up", distinct_id=mark, properties={"plan": "pro", "seats": 3}, uuid=event_id)
    library.set(distinct_id=mark, properties={"age": 5})
    assert not library.evaluate_flags(mark).is_enabled("new-page"), "there are no flags"
    library.shutdown()
    assert errors == []
    found = {event["event"]: event for event in of_this_test(client, "posthog", mark)}
    one = found["signed_up"]
    assert (one["event_id"], one["distinct_id"]) == (event_id, mark)
    assert {name: one["properties"][name] for name in ("plan", "seats")} == {"plan": "pro", "seats": "3"}
    assert datetime.now(UTC) - datetime.fromisoformat(one["event_time"]) < timedelta(hours=1)
    assert found["$set"]["person_set"] == {"age": "5"}
    assert write_key not in json.dumps(list(found.values()))


def test_posthogs_library_reports_a_wrong_key(doors: Stack) -> None:
    errors = list[Any]()
    library = Posthog("wrong", host=doors.collector, on_error=lambda error, _items: errors.append(error), timeout=60)
    library.capture("signed_up", distinct_id="a")
    library.shutdown()
    assert [error.status for error in errors] == [401]


# ---- logs --------------------------------------------------------------------


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_otlp_exporter_sends_log_records(
    doors: Stack, client: httpx.Client, write_key: str, compression: Compression
) -> None:
    mark = uuid4().hex
    exporter = OTLPLogExporter(
        f"{doors.collector}/v1/logs", headers={"Authorization": f"Bearer {write_key}"}, compression=compression,
        timeout=60,
    )  # fmt: skip
    provider = LoggerProvider(Resource.create({"service.name": f"shop-{mark}"}))
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    logger = provider.get_logger(mark, "1.0")
    now = time.time_ns()
    logger.emit(
        timestamp=now, observed_timestamp=now, severity_number=SeverityNumber.ERROR, severity_text="ERROR",
        body="no room on sda", attributes={"free": 5},
    )  # fmt: skip
    logger.emit(timestamp=now, observed_timestamp=now, severity_number=SeverityNumber.INFO, body={"done": [True, 1]})
    assert provider.force_flush()  # waits as long as the exporter, which a shutdown does not
    provider.shutdown()
    error, done = sorted(of_this_test(client, "otel_logs", mark), key=lambda event: -event["severity_number"])
    assert (error["body"], error["severity_number"], error["service"]) == ("no room on sda", 17, f"shop-{mark}")
    assert error["attributes"]["free"] == "5"
    assert error["scope_name"] == mark
    assert datetime.now(UTC) - datetime.fromisoformat(error["event_time"]) < timedelta(hours=1)
    assert done["body"] == '{"done":[true,1]}'


def test_records_that_are_not_valid_are_counted_in_the_reply(client: httpx.Client) -> None:
    mark = uuid4().hex
    records = [{"body": {"stringValue": mark}}, {"traceId": "x"}, {"body": {"stringValue": f"{mark}\0"}}]
    reply = client.post("/v1/logs", json={"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]})
    assert reply.status_code == 200
    assert reply.json()["partialSuccess"]["rejectedLogRecords"] == "2"
    assert [event["body"] for event in of_this_test(client, "otel_logs", mark)] == [mark]


def test_a_w3c_log_is_sent_again_when_it_has_grown(client: httpx.Client) -> None:
    mark = uuid4().hex
    line = f"2026-03-01 12:00:00 10.0.0.1 GET /{mark} 200 15\r\n"
    log = "#Fields: date time c-ip cs-method cs-uri-stem sc-status time-taken\r\n" + line * 2
    for text in (log, log + line):
        client.post(f"/logs/w3c/web?origin={mark}", content=text.encode()).raise_for_status()
    found = of_this_test(client, "web", mark)
    assert len(found) == 5
    assert len({event["event_id"] for event in found}) == 3
    assert found[0]["properties"]["url"] == f"/{mark}"
    assert client.post("/logs/w3c/web", content=log.encode()).status_code == 400


# ---- syslog ------------------------------------------------------------------


def messages_of(client: httpx.Client, mark: str, count: int) -> list[dict[str, Any]]:
    """Syslog acknowledges nothing: wait until they are there."""

    def found() -> list[dict[str, Any]] | None:
        events = of_this_test(client, "syslog", mark)
        return events if len(events) >= count else None

    return list(wait_until(f"{count} messages", found))


@pytest.mark.parametrize(
    "options", [["-d"], ["-d", "--rfc3164"], ["-T"], ["-T", "--octet-count"], ["-T", "--rfc3164"]], ids=" ".join
)
def test_logger_of_util_linux_sends(doors: Stack, client: httpx.Client, options: list[str]) -> None:
    mark, settings = uuid4().hex, doors.settings
    port = settings.collector_syslog_udp_port if "-d" in options else settings.collector_syslog_tcp_port
    command = ["logger", "-n", "127.0.0.1", "-P", str(port), *options, "-p", "daemon.err", "-t", "backup"]
    data = [] if "--rfc3164" in options else ["--sd-id", "a@1", "--sd-param", 'free="5"', "--msgid", "ID7"]
    subprocess.run([*command, *data, f"{mark}: Größe 7"], check=True, timeout=60)
    (event,) = messages_of(client, mark, 1)
    assert (event["facility"], event["severity"], event["app_name"]) == (3, 3, "backup")
    assert event["message"] == f"{mark}: Größe 7"
    assert event["hostname"] == socket.gethostname().split(".")[0] or event["hostname"] == socket.gethostname()
    assert event["transport"] == ("udp" if "-d" in options else "tcp")
    assert abs(datetime.fromisoformat(event["event_time"]) - datetime.now(UTC)) < timedelta(days=1)
    if data:
        assert event["structured_data"]["a@1.free"] == "5"
        assert event["msg_id"] == "ID7"


RSYSLOG = """
module(load="imuxsock" SysSock.Use="off")
input(type="imuxsock" Socket="{folder}/log")
*.* action(
  type="omfwd" target="127.0.0.1" port="{port}" protocol="{protocol}" TCP_Framing="{framing}" template="{form}"
)
"""


@pytest.fixture
def rsyslogd() -> list[str]:
    """The command that is installed, or the one that `make rsyslog` unpacked."""
    if found := shutil.which("rsyslogd"):
        return [found]
    unpacked = Path(sys.prefix) / "share" / "rsyslog" / "usr"
    if not (unpacked / "sbin" / "rsyslogd").exists():
        pytest.skip("there is no rsyslogd: run make rsyslog, or install it")
    libraries = ":".join(map(str, unpacked.glob("lib/*-linux-*")))
    return [
        *("env", f"LD_LIBRARY_PATH={libraries}", str(unpacked / "sbin" / "rsyslogd")),
        *("-M", str(next(unpacked.glob("lib/**/rsyslog/imuxsock.so")).parent)),
    ]


@pytest.mark.soak  # needs rsyslogd
@pytest.mark.parametrize("form", ["RSYSLOG_SyslogProtocol23Format", "RSYSLOG_TraditionalForwardFormat"])
@pytest.mark.parametrize(
    ("protocol", "framing"), [("udp", "traditional"), ("tcp", "traditional"), ("tcp", "octet-counted")]
)
def test_rsyslog_forwards(
    doors: Stack, client: httpx.Client, tmp_path: Path, rsyslogd: list[str], protocol: str, framing: str, form: str
) -> None:
    mark, settings = uuid4().hex, doors.settings
    port = settings.collector_syslog_udp_port if protocol == "udp" else settings.collector_syslog_tcp_port
    file = tmp_path / "rsyslog.conf"
    file.write_text(RSYSLOG.format(folder=tmp_path, port=port, protocol=protocol, framing=framing, form=form))
    process = subprocess.Popen([*rsyslogd, "-n", "-f", file, "-i", tmp_path / "pid"])
    try:
        wait_until("the socket of rsyslog", (tmp_path / "log").exists)
        subprocess.run(
            ["logger", "-u", tmp_path / "log", "-t", "backup", "-p", "daemon.err", f"{mark} no room"], check=True
        )
        (event,) = messages_of(client, mark, 1)
    finally:
        process.terminate()
        process.wait(60)
    assert (event["facility"], event["severity"], event["app_name"]) == (3, 3, "backup")
    assert event["message"].strip() == f"{mark} no room"


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_pythons_syslog_handler_sends(doors: Stack, client: httpx.Client, kind: socket.SocketKind) -> None:
    mark, settings = uuid4().hex, doors.settings
    port = settings.collector_syslog_udp_port if kind == socket.SOCK_DGRAM else settings.collector_syslog_tcp_port
    handler = SysLogHandler(("127.0.0.1", port), socktype=kind)
    logger = logging.Logger(mark)
    logger.addHandler(handler)
    for number in range(20):
        logger.warning("%s number %d", mark, number)
    handler.close()
    found = messages_of(client, mark, 20)
    assert {event["message"] for event in found} == {f"{mark} number {number}" for number in range(20)}
    assert {event["severity"] for event in found} == {4}
    assert len({event["event_id"] for event in found}) == 20


def test_ready_tells_what_syslog_received_and_dropped(doors: Stack, client: httpx.Client) -> None:
    settings = doors.settings

    def counts() -> tuple[int, int, int]:
        said = client.get("/ready").raise_for_status().json()["syslog"]
        received = said["received"]
        return received.get("udp", 0), received.get("tcp", 0), said["dropped"].get("too-long", 0)

    udp, tcp, too_long = counts()
    with socket.create_connection(("127.0.0.1", settings.collector_syslog_tcp_port)) as sender:
        sender.sendall(b"<13>" + b"x" * MAX_MESSAGE + b"\n<13>ready\n")
    wait_until("a message and one too long over TCP", lambda: counts()[1:] == (tcp + 1, too_long + 1))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:

        def is_received() -> bool:
            sender.sendto(b"<13>ready", ("127.0.0.1", settings.collector_syslog_udp_port))  # may be lost
            return counts()[0] > udp

        wait_until("a message over UDP", is_received)


# ---- keys --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content_type", "body"),
    [
        ("/cloudevents/cloudevents?", "application/cloudevents+json",
         '{"specversion": "1.0", "id": "MARK", "source": "/a", "type": "t"}'),
        ("/v1/track?", "application/json", '{"event": "MARK", "messageId": "e"}'),
        ("/capture/?", "application/json", '{"event": "MARK", "distinct_id": "u"}'),
        ("/v1/logs?", "application/json",
         '{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "MARK"}}]}]}]}'),
        ("/logs/w3c/web?origin=keys&", "text/plain", "#Fields: date time cs-uri-stem\n2026-01-31 00:00:00 /MARK\n"),
    ],
    ids=["cloudevents", "segment", "posthog", "otlp", "w3c"],
)  # fmt: skip
def test_a_request_may_name_the_key_of_its_events(
    client: httpx.Client, path: str, content_type: str, body: str
) -> None:
    mark = uuid4().hex
    content = body.replace("MARK", mark)
    client.post(f"{path}key=user-7", content=content, headers={"Content-Type": content_type}).raise_for_status()
    topics = ("cloudevents", "segment", "posthog", "otel_logs", "web")
    assert [record["key"] for topic in topics for record in records_of(client, topic) if mark in record["value"]] == [
        "user-7"
    ]


# ---- hostile requests --------------------------------------------------------

JSON_PARTS: list[Any] = [None, 0, -1, 2**63, 1e300, "", "x" * 2000, "a\0b", True, [], {}, [[]], {"a": {"b": []}}, "now"]
PATHS = {
    "/cloudevents/cloudevents": ("specversion", "id", "source", "type", "time", "data", "data_base64"),
    "/v1/batch": ("batch", "type", "event", "messageId", "timestamp", "sentAt", "context"),
    "/capture/": ("event", "distinct_id", "uuid", "properties", "timestamp", "offset", "$set", "batch"),
    "/v1/logs": ("resourceLogs", "resource", "scopeLogs", "logRecords", "body", "attributes"),
    "/logs/w3c/web?origin=a": ("#Fields", "date"),
    "/v1/track": ("event", "userId", "messageId", "timestamp", "sentAt", "properties"),
}
CONTENT_TYPES = (
    "application/json", "application/x-protobuf", "application/cloudevents+json", "application/cloudevents-batch+json",
    "text/plain", "", "\xff",
)  # fmt: skip


def hostile_json(chance: random.Random, names: tuple[str, ...]) -> Any:
    value = {name: chance.choice(JSON_PARTS) for name in names if chance.random() < 0.6}
    return chance.choice([value, [value], {"batch": [value, 5]}, value])


def hostile_body(chance: random.Random, names: tuple[str, ...]) -> bytes:
    body = bytearray(json.dumps(hostile_json(chance, names)).encode())
    for _ in range(chance.choice([0, 0, 0, 1, 5])):
        body[chance.randrange(len(body))] = chance.randrange(256)
    return bytes(body[: chance.choice([len(body), len(body), chance.randrange(len(body) + 1)])])


def test_whatever_comes_in_is_stored_or_refused_by_a_problem(client: httpx.Client) -> None:
    chance = random.Random(7)  # noqa: S311  repeatable, not secret
    stored = 0
    for _ in range(HOSTILE_REQUESTS):
        path = chance.choice(list(PATHS))
        headers = {"Content-Type": chance.choice(CONTENT_TYPES).encode("latin-1")}
        if chance.random() < 0.3:
            headers |= {f"ce-{name}": chance.choice([b"1.0", b"", b"%ff", b"x"]) for name in PATHS[path]}
        answer = client.post(path, content=hostile_body(chance, PATHS[path]), headers=headers)
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, (path, answer.text)
        if answer.status_code == 200:
            stored += 1
        else:
            assert answer.headers["content-type"] == "application/problem+json"
    assert stored
    assert client.get("/ready").status_code == 200
