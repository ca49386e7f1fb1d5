"""Live feeds: the first answer at once, the next when it changes, and nobody waits for anybody else."""

from __future__ import annotations

import asyncio
import base64
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any, NamedTuple

import httpx
import pytest

from infra.rest.access_keys import remove_key, rotate_key
from serving_layer.errors import NoBatchView
from serving_layer.push import connection, live_queries
from serving_layer.push.mailbox import NEWEST_ONLY, Mailbox, Message
from tests.conftest import wait_until
from tests.process.serving_server import Served, serving
from tests.process.test_serving_app import metrics, problem

LIVE = "/views/page_hits/live"
FAST = {"every": "200ms", "from": "2026-03-01", "to": "2026-03-02"}
PATIENCE_S = 60.0
"""For what comes at once, with a machine that is busy with other things."""


class Event(NamedTuple):
    """A server-sent event, or a comment."""

    name: str
    data: Any
    id: str | None = None


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "home") as running:
        yield running


class Reader:
    """Reads a stream in a thread of its own: `next` gives what comes."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def next(self, name: str, patience_s: float = PATIENCE_S) -> Event:
        """The next event of this name; the others before it are skipped."""
        while True:
            event = self._events.get(timeout=patience_s)
            assert event is not None, "the stream ended"
            if event.name == name:
                return event

    def rest(self, patience_s: float = PATIENCE_S) -> list[Event]:
        """What came until the end of the stream."""
        found = []
        while (event := self._events.get(timeout=patience_s)) is not None:
            found.append(event)
        return found

    @property
    def is_quiet(self) -> bool:
        return self._events.empty()

    def _read(self) -> None:
        said: dict[str, str] = {}
        try:
            for line in self._answer.iter_lines():
                if line.startswith(":"):
                    self._events.put(Event("comment", line[1:].strip()))
                elif line:
                    name, _, value = line.partition(": ")
                    said[name] = value
                elif "data" in said:
                    self._events.put(Event(said["event"], json.loads(said["data"]), said.get("id")))
                    said = {}
                else:
                    said = {}
        except httpx.HTTPError:
            pass
        self._events.put(None)


@contextmanager
def following(
    served: Served, auth: tuple[str, str] | None = None, headers: dict[str, str] | None = None, **parameters: str
) -> Iterator[Reader]:
    options: dict[str, Any] = {"auth": auth} if auth else {}
    with served.client.stream("GET", LIVE, params={**FAST, **parameters}, headers=headers, **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Reader(answer)
        hang_up(answer)


def hang_up(stream: httpx.Response) -> None:
    """End a stream whose reader is in the middle of a read, which keeps a socket open that is only closed."""
    stream.extensions["network_stream"].get_extra_info("socket").shutdown(SHUT_RDWR)


def refusal(served: Served, parameters: dict[str, Any]) -> httpx.Response:
    """What is answered instead of a stream, which would never end."""
    with served.client.stream("GET", LIVE, params=parameters) as answer:
        assert answer.status_code != 200, "it is a stream"
        answer.read()
    return answer


# ---- server-sent events --------------------------------------------------------


def test_first_answer_comes_at_once_and_the_next_when_it_changed(served: Served) -> None:
    with following(served) as reader:
        first = reader.next("answer")
        assert (
            first.data
            == served.client.get("/views/page_hits/query", params={k: FAST[k] for k in ("from", "to")}).json()
        )
        looks = len(served.engine.asked)
        wait_until("three more looks", lambda: len(served.engine.asked) >= looks + 3)
        assert reader.is_quiet, "nothing changed"
        served.engine.number = 7
        second = reader.next("answer")
        assert second.data["rows"][0]["hits"] == 7
        assert first.id != second.id


def test_an_answer_that_says_the_same_at_another_cut_is_pushed_now_and_then(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(served) as reader:
        first = reader.next("answer")
        served.engine.moved = 1
        looks = len(served.engine.asked)
        wait_until("three more looks", lambda: len(served.engine.asked) >= looks + 3)
        assert reader.is_quiet, "its rows are as they were"
        with following(served) as other:
            assert other.next("answer").id != first.id, "who comes gets the newest"
        monkeypatch.setattr(connection, "HEARTBEAT_S", 0.1)
        served.engine.moved = 2
        later = reader.next("answer")
        assert (later.data["rows"], later.id) == (first.data["rows"], first.id.replace("-0-", "-2-"))  # type: ignore[union-attr]
        served.engine.number = 7
        assert reader.next("answer").data["rows"] != first.data["rows"]


def test_a_live_query_with_max_staleness_reports_answers_that_are_too_old(served: Served) -> None:
    """Though nothing changed: the same tag may be that of an answer that became too old."""
    with following(served, max_staleness="2s") as reader:
        first = reader.next("answer")
        looks = len(served.engine.asked)
        wait_until("three more looks", lambda: len(served.engine.asked) >= looks + 3)
        assert reader.is_quiet, "nothing changed"
        served.engine.too_old = True
        assert reader.next("problem").data["type"].endswith("stale")
        served.engine.too_old = False
        assert reader.next("answer").data["rows"] == first.data["rows"]


def test_subscribers_of_one_question_share_its_looks_and_it_ends_with_the_last(served: Served) -> None:
    with following(served) as first, following(served) as second, following(served, by="url") as other:
        for reader in (first, second, other):
            reader.next("answer")
        assert metrics(served)["tidemark_serving_live_subscribers"] == 3
        assert len(served.app.state.live.channels) == 2
        served.engine.number = 2
        assert first.next("answer").data == second.next("answer").data
    state = served.app.state
    wait_until(
        "the channels to end, and a run that was under way",
        lambda: not state.live.channels and not state.live_queries.threads.busy,
    )
    looks = len(served.engine.asked)
    assert metrics(served)["tidemark_serving_live_subscribers"] == 0
    threading.Event().wait(0.5)  # two looks' time
    assert len(served.engine.asked) == looks, "nobody listens, and nobody looks"


def test_relative_range_moves_on_with_the_clock(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_772_323_200.0]
    monkeypatch.setattr(live_queries.time, "time", lambda: clock[0])
    with following(served, **{"from": "-1h", "to": "now"}) as reader:
        first = reader.next("answer").data["meta"]["range"]
        clock[0] += 3600
        second = reader.next("answer").data["meta"]["range"]
    assert (first["to"], second["from"]) == ("2026-03-01T00:00:00Z", "2026-03-01T00:00:00Z")


def test_problem_is_pushed_once_and_the_answer_again_when_there_is_one(served: Served) -> None:
    with following(served) as reader:
        before = reader.next("answer")
        served.engine.failure = NoBatchView("The disk is away.")
        pushed = reader.next("problem")
        assert (pushed.data["type"], pushed.id) == ("urn:tidemark:problem:no-batch-side", None)
        looks = len(served.engine.asked)
        wait_until("three more looks", lambda: len(served.engine.asked) >= looks + 3)
        assert reader.is_quiet, "it is pushed once"
        served.engine.failure = None
        assert reader.next("answer") == before


def test_mistake_of_ours_ends_no_feed(served: Served) -> None:
    with following(served) as reader:
        reader.next("answer")
        served.engine.failure = ZeroDivisionError("secret")
        assert reader.next("problem").data["status"] == 500
        served.engine.failure = None
        reader.next("answer")


def test_stream_begins_with_a_problem_that_may_pass(served: Served) -> None:
    served.engine.failure = NoBatchView("The disk is away.")
    with following(served) as reader:
        reader.next("problem")
        served.engine.failure = None
        reader.next("answer")


@pytest.mark.parametrize(
    ("parameters", "parameter"),
    [
        ({"every": "1ms"}, "every"),
        ({"every": "2h"}, "every"),
        ({"every": "often"}, "every"),
        ({"cursor": "x"}, "cursor"),
        ({"min_cut": "0:1"}, "min_cut"),
        ({"format": "csv"}, "format"),
        ({"grain": "tomorrow"}, "grain"),
        ({"every": ["1s", "2s"]}, "every"),
    ],
)
def test_mistake_is_answered_as_by_the_query(served: Served, parameters: Any, parameter: str) -> None:
    assert problem(refusal(served, parameters), 422, "bad-parameter")["parameter"] == parameter


def test_heartbeat_keeps_a_quiet_stream_open(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.05)
    with following(served) as reader:
        reader.next("answer")
        reader.next("comment")
        reader.next("comment")


def test_client_that_reconnects_does_not_receive_what_it_has(served: Served) -> None:
    with following(served) as reader:
        known = reader.next("answer")
    with following(served, headers={"Last-Event-ID": str(known.id)}) as reader:
        wait_until("a look", lambda: served.app.state.live.subscribers == 1)
        served.engine.number = 2
        assert reader.next("answer").data["rows"][0]["hits"] == 2


def test_key_that_is_removed_ends_its_stream(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.05)
    with following(served, auth=served.key("passing", ["query"])) as reader, following(served) as other:
        reader.next("answer")
        remove_key(served.home, "passing")
        wait_until("the stream to end", lambda: served.app.state.live.subscribers == 1, PATIENCE_S)
        reader.rest()
        other.next("comment")


def test_old_secret_ends_its_stream_when_its_grace_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.05)
    with following(served, auth=served.key("passing", ["query"], sources=["web"])) as reader:
        reader.next("answer")
        rotate_key(served.home, "passing", 3600)
        for _ in range(3):
            reader.next("comment")
        rotate_key(served.home, "passing", 0)
        wait_until("the stream to end", lambda: served.app.state.live.subscribers == 0, PATIENCE_S)
        reader.rest()


def test_stream_ends_when_the_server_stops(served: Served) -> None:
    with following(served) as reader:
        reader.next("answer")
        served.stop()
        assert [event for event in reader.rest() if event.name != "comment"] == []


@pytest.mark.parametrize(
    ("setting", "second"), [("serving_live_subscribers", {}), ("serving_live_questions", {"by": "url"})]
)
def test_more_than_allowed_are_sent_away(tmp_path: Path, setting: str, second: dict[str, str]) -> None:
    with serving(tmp_path / "home", **{setting: 1}) as served, following(served) as reader:
        reader.next("answer")
        refused = refusal(served, {**FAST, **second})
        assert setting in problem(refused, 429, "too-many-live")["detail"]
        assert refused.headers["retry-after"] == "10"


# ---- mailboxes -----------------------------------------------------------------


def test_slow_reader_finds_the_newest_and_only_that() -> None:
    async def read() -> tuple[list[Message], list[Message]]:
        mailbox = Mailbox(NEWEST_ONLY)
        for number in range(3):
            mailbox.put(Message("answer", "{}", str(number)))
        return await mailbox.take(1), await mailbox.take(0.01)

    assert asyncio.run(read()) == ([Message("answer", "{}", "2")], [])


def test_reader_that_takes_nothing_holds_up_no_other_and_finds_the_newest(tmp_path: Path) -> None:
    """Answers so large that what the network buffers is soon full, for a reader that does not read."""
    large = {"from": "2025-01-01", "to": "2026-02-01", "grain": "1h", "by": "url", "limit": "10000", "every": "20ms"}
    with (
        serving(tmp_path / "home", serving_live_every_s=0.02) as served,
        served.client.stream("GET", LIVE, params={**FAST, **large}) as stuck,
    ):
        (feed,) = served.app.state.live.channels.values()
        (mailbox,) = feed.mailboxes
        with following(served, **large) as reader:
            while not is_left_unread(mailbox):
                assert served.engine.number < 500, "it never got stuck"
                tell_another(served, reader)
            for _ in range(5):
                tell_another(served, reader)
            late, seen = Reader(stuck), list[int]()
            while not seen or seen[-1] != served.engine.number:
                seen.append(late.next("answer").data["rows"][0]["hits"])
        assert seen == sorted(set(seen))
        assert len(seen) <= served.engine.number - 5, "what it did not read was replaced"


def is_left_unread(mailbox: Mailbox) -> bool:
    """Whether a message lies there for longer than it takes to fetch it."""
    deadline = time.monotonic() + 3
    while mailbox.unread:
        if time.monotonic() > deadline:
            return True
        time.sleep(0.01)
    return False


def tell_another(served: Served, reader: Reader) -> None:
    """Change the answer, and let the reader have it."""
    served.engine.number += 1
    while reader.next("answer").data["rows"][0]["hits"] != served.engine.number:
        pass


# ---- WebSocket -----------------------------------------------------------------


class Socket:
    """A client of a WebSocket, without a network: what the application receives, and what it sends."""

    def __init__(self, app: Any, headers: list[tuple[bytes, bytes]], query: str, path: str = LIVE) -> None:
        self.from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {
            "type": "websocket", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
            "scheme": "ws", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": headers, "server": ("test", 80), "client": ("test", 1), "subprotocols": [], "app": app,
            "extensions": {"websocket.http.response": {}},
        }  # fmt: skip
        self.to_app.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(app(scope, self.to_app.get, self.from_app.put))

    async def next(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.from_app.get(), PATIENCE_S)

    async def message(self) -> Any:
        said = await self.next()
        assert said["type"] == "websocket.send", said
        return json.loads(said["text"])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def socket(served: Served, query: str = "", auth: httpx.BasicAuth | None = None) -> AsyncIterator[Socket]:
    request = next((auth or served.client.auth).auth_flow(httpx.Request("GET", "http://test")))  # type: ignore[union-attr]
    headers = [(b"authorization", request.headers["authorization"].encode())]
    made = Socket(served.app, headers, query or "&".join(f"{name}={value}" for name, value in FAST.items()))
    yield made
    made.to_app.put_nowait({"type": "websocket.disconnect", "code": 1000})
    await asyncio.wait_for(made.task, PATIENCE_S)


def test_websocket_receives_the_same(served: Served) -> None:
    async def talk() -> None:
        async with socket(served) as client, socket(served) as other:
            for each in (client, other):
                assert (await each.next())["type"] == "websocket.accept"
                assert (await each.message())["answer"]["rows"][0]["hits"] == 1
            client.to_app.put_nowait({"type": "websocket.receive", "text": "what a client says is not listened to"})
            served.engine.number = 2
            assert (await client.message())["answer"]["rows"][0]["hits"] == 2
            served.engine.failure = NoBatchView("The disk is away.")
            assert (await client.message())["problem"]["status"] == 503
        await until(lambda: served.app.state.live.subscribers == 0)

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("key", "query", "status", "kind"),
    [
        (("nobody", "x"), "", 401, "not-authorized"),
        (None, "every=1ms", 422, "bad-parameter"),
        (None, "grain=tomorrow", 422, "bad-parameter"),
    ],
)
def test_websocket_is_refused_with_the_same_problems(
    served: Served, key: tuple[str, str] | None, query: str, status: int, kind: str
) -> None:
    async def talk() -> tuple[int, Any]:
        async with socket(served, query, httpx.BasicAuth(*key) if key else None) as client:
            start, body = await client.next(), await client.next()
            return start["status"], json.loads(body["body"])

    found, document = asyncio.run(talk())
    assert (found, document["type"]) == (status, f"urn:tidemark:problem:{kind}")


def test_websocket_is_closed_when_the_server_stops(served: Served) -> None:
    async def talk() -> dict[str, Any]:
        async with socket(served) as client:
            await client.next()
            await client.message()
            served.app.state.live.close()
            return await client.next()

    closed = asyncio.run(talk())
    assert (closed["type"], closed["code"]) == ("websocket.close", 1001)


def test_websocket_is_closed_when_its_key_is_removed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.05)
    name, secret = served.key("passing", ["query"])

    async def talk() -> dict[str, Any]:
        async with socket(served, auth=httpx.BasicAuth(name, secret)) as client:
            await client.next()
            await client.message()
            remove_key(served.home, name)
            return await client.next()

    closed = asyncio.run(talk())
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)


@pytest.mark.parametrize("path", [LIVE, "/alerts/live", "/watches/server_errors/live"])
@pytest.mark.parametrize(
    ("origin", "is_refused"), [(b"https://evil.example", True), (b"null", True), (b"http://test", False), (None, False)]
)
@pytest.mark.parametrize("has_keys", [False, True])
def test_no_page_of_others_opens_a_websocket(
    tmp_path: Path, path: str, origin: bytes | None, *, is_refused: bool, has_keys: bool
) -> None:
    """Neither without keys nor with the name and secret that the browser remembers."""

    async def talk(served: Served) -> dict[str, Any]:
        remembered = base64.b64encode(":".join(served.key("remembered", ["query"])).encode())
        headers = [(b"host", b"test"), (b"authorization", b"Basic " + remembered)]
        headers += [(b"origin", origin)] if origin else []
        client = Socket(served.app, headers[: None if has_keys else 1] + headers[2:], "", path)
        first = await client.next()
        client.to_app.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.wait_for(client.task, PATIENCE_S)
        return first

    with serving(tmp_path / "home", access_required=has_keys) as served:
        first = asyncio.run(talk(served))
    assert (first.get("status") == 403) is is_refused
    assert (first["type"] == "websocket.accept") is not is_refused
