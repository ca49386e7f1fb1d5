"""Bad bodies by the thousand: each one a 4xx problem, and nothing in Kafka that should not be there."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conftest import Stack
from tests.tiers import times

pytestmark = pytest.mark.usefixtures("collector_alone")

BAD_BODIES = times(2_000, 20_000)
FLIPPED_BODIES = times(500, 5_000)
BAD_MESSAGES = times(300, 5_000)
THREADS = 4
GOOD = {
    "event_id": "e-1",
    "event_time": "2026-01-01T00:00:00Z",
    "name": "vïew",
    "properties": {"url": "/", "status": 200, "ms": 1.5, "bytes": 10},
}
WRONG = {
    "event_id": [5, "", "x" * 513, [], {}, True, "a\0"],
    "event_time": [0, "now", "2026-13-01T00:00:00Z", "1969-01-01T00:00:00Z", "2200-01-01T00:00:00Z", "2026-01-01", []],
    "user_id": [1, {}, [], False],
    "properties": [1, "x", [], True, {"status": "200"}, {"status": 2**31}, {"bytes": 1.0}, {"ms": "1"}, {"url": 5}],
}

Body = tuple[bytes, dict[str, str]]


def _wrong_type(chance: random.Random) -> Body:
    name = chance.choice(list(WRONG))
    return json.dumps({**GOOD, name: chance.choice(WRONG[name])}).encode(), {}


def _cut(chance: random.Random) -> Body:
    whole = json.dumps(
        chance.choice([GOOD, [GOOD, GOOD]]), indent=chance.choice([None, 1]), ensure_ascii=False
    ).encode()
    return whole[: chance.randrange(len(whole))], {}


def _noise(chance: random.Random) -> Body:
    return b"\xff" + chance.randbytes(chance.randrange(200)), {}


def _not_utf8(chance: random.Random) -> Body:
    bad = chance.choice(
        [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xe2\x82", rb"\ud800", rb"\udfffx"]
    )
    return b'{"event_id":"e","name":"' + bad + b'"}', {}


def _not_json(chance: random.Random) -> Body:
    word = chance.choice(
        ["NaN", "Infinity", "-Infinity", "1e999", "01", "+1", ".5", "1.", "0x1", "'a'", "undefined", "//", "1e"]
    )
    return f'{{"event_id":"e","properties":{{"ms":{word}}}}}'.encode(), {}


def _twice(chance: random.Random) -> Body:
    inside = chance.choice(['"a":1,"a":1', '"a":1,"\\u0061":2', '"properties":{"b":1,"b":{}}', '"":0,"":0'])
    filler = f'"f":"{chance.randrange(10**6)}\\u0022"' if chance.random() < 0.5 else '"f":" "'
    return f'{{"event_id":"e",{inside},{filler}}}'.encode(), {}


def _deep(chance: random.Random) -> Body:
    depth = chance.choice([65, 100, 1000, 5000])
    left, right = chance.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
    return b'{"x":' + left * depth + b"1" + right * depth + b"}", {}


def _packed(chance: random.Random) -> Body:
    whole = gzip.compress(json.dumps(GOOD).encode())
    body = chance.choice(
        [
            whole[: chance.randrange(1, len(whole))],
            whole + b"x",
            chance.randbytes(50),
            json.dumps(GOOD).encode(),
            gzip.compress(b"\xff"),
        ]
    )
    return body, {"Content-Encoding": "gzip"}


def _no_event(chance: random.Random) -> Body:
    return json.dumps(chance.choice([None, 1, "x", True, [1], [[]], [None, "a"], [[GOOD]]])).encode(), {}


BAD: list[Callable[[random.Random], Body]] = [
    _wrong_type, _cut, _noise, _not_utf8, _not_json, _twice, _deep, _packed, _no_event,
]  # fmt: skip


@pytest.fixture
def client(stack: Stack) -> Any:
    with stack.client() as made:
        yield made


def ends(client: httpx.Client, topic: str) -> int:
    return sum(partition["latest"] for partition in client.get(f"/admin/topics/{topic}").json()["partitions"])


def send_all(stack: Stack, asked: list[tuple[str, Body]]) -> list[tuple[int, str, bytes]]:
    """Status, content type and body of each answer; a few connections at once."""
    authorization = "Basic " + base64.b64encode(f"admin:{stack.secret}".encode()).decode()
    address = stack.collector.removeprefix("http://")

    def send_some(mine: list[tuple[str, Body]]) -> list[tuple[int, str, bytes]]:
        connection = http.client.HTTPConnection(address, timeout=60)
        answers = []
        for path, (body, headers) in mine:
            connection.request("POST", path, body, {"Authorization": authorization, **headers})
            answer = connection.getresponse()
            answers.append((answer.status, answer.getheader("content-type", ""), answer.read()))
        connection.close()
        return answers

    with ThreadPoolExecutor(THREADS) as threads:
        parts = threads.map(send_some, [asked[number::THREADS] for number in range(THREADS)])
    return [answer for part in parts for answer in part]


def test_thousands_of_bad_events_are_refused_and_nothing_is_stored(stack: Stack, client: httpx.Client) -> None:
    chance = random.Random(4)  # noqa: S311  repeatable, not secret
    before = ends(client, "web")
    asked = [
        (chance.choice(["/events/web", "/events/web?atomic=true"]), chance.choice(BAD)(chance))
        for _ in range(BAD_BODIES)
    ]
    answers = send_all(stack, asked)
    assert len(answers) == BAD_BODIES
    wrong = [answer for answer in answers if not 400 <= answer[0] < 500 or answer[1] != "application/problem+json"]
    assert wrong == []
    assert ends(client, "web") == before
    assert client.get("/ready").status_code == 200


def test_bad_messages_for_the_produce_api_are_refused(stack: Stack, client: httpx.Client) -> None:
    topic = f"fuzz-{uuid.uuid4().hex[:8]}"
    client.post("/admin/topics", json={"name": topic, "partitions": 1})
    chance = random.Random(5)  # noqa: S311  likewise
    makers = [maker for maker in BAD if maker is not _no_event]  # none of these has a `value`
    paths = [f"/produce/{topic}", "/produce"]
    asked = [(chance.choice(paths), chance.choice(makers)(chance)) for _ in range(BAD_MESSAGES)]
    for status, content_type, body in send_all(stack, asked):
        assert 400 <= status < 500, body
        assert content_type == "application/problem+json"
    assert ends(client, topic) == 0


def test_flipped_bytes_store_just_what_was_answered(stack: Stack, client: httpx.Client) -> None:
    """A flipped byte may leave an event valid. Whatever is stored was answered, and every answer is stored."""
    chance = random.Random(6)  # noqa: S311  likewise
    before = ends(client, "web")
    asked = []
    for _ in range(FLIPPED_BODIES):
        body = bytearray(json.dumps([GOOD, GOOD], ensure_ascii=False).encode())
        for _ in range(chance.choice([1, 1, 2, 5])):
            body[chance.randrange(len(body))] = chance.randrange(256)
        asked.append(("/events/web", (bytes(body), {})))
    stored = 0
    for status, _content_type, body in send_all(stack, asked):
        assert status in (200, 207, 400, 422), body
        if status < 300:
            stored += sum("offset" in result for result in json.loads(body))
    assert stored > 0
    assert ends(client, "web") == before + stored
