"""Webhooks: signed, in time, to public addresses alone, without redirects; and the outbox behind them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from serving_layer.alerts import couriers
from serving_layer.alerts.couriers import Courier
from serving_layer.alerts.episodes import Episode, EpisodeState
from serving_layer.alerts.journal import Evaluation, Journal, Transitions
from serving_layer.alerts.notifications import Notification
from serving_layer.alerts.output_topics import MessageTooLarge, OutputRecord, send_in_parts
from serving_layer.alerts.tables.outbox import WaitingNotification
from serving_layer.alerts.tables.positions import FollowerPosition
from serving_layer.alerts.webhooks import (
    DELIVERY,
    SIGNATURE,
    NotDelivered,
    Webhook,
    WebhookError,
    check_named,
    deliver,
    is_public,
    read_webhooks,
    resolve,
    signature,
)
from views.aggregates import Count
from views.alert import Alert
from views.source import Source
from views.view import View

SECRET = "0123456789abcdef"
BODY = b'{"id": "x"}'


@contextmanager
def server(status: int = 204, location: str | None = None, *, is_echo: bool = False) -> Iterator[tuple[str, list[Any]]]:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(f"Cannot POST {self.path}".encode() if is_echo else b"")

        def log_message(self, *_arguments: Any) -> None: ...

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}", got
    running.shutdown()
    running.server_close()


def send(url: str, timeout_s: float = 5, *, allow_private: bool = True) -> None:
    deliver(Webhook("operations", url, SECRET), "x:firing", BODY, timeout_s=timeout_s, allow_private=allow_private)


def test_a_delivery_is_a_signed_post_with_its_name() -> None:
    with server() as (url, got):
        send(f"{url}/hook?room=1")
    ((path, headers, body),) = got
    assert (path, body, headers[DELIVERY]) == ("/hook?room=1", BODY, "x:firing")
    at = int(headers[SIGNATURE].partition(",")[0].removeprefix("t="))
    assert abs(at - time.time()) < 60
    assert headers[SIGNATURE] == signature(SECRET, at, BODY)
    assert headers[SIGNATURE] != signature("another secret!!", at, BODY)


def test_a_redirect_is_not_followed() -> None:
    with server() as (other, others), server(302, f"{other}/inside") as (url, got):
        with pytest.raises(NotDelivered, match=r"answered 302 \(redirects are not followed\)"):
            send(url)
        assert len(got) == 1
        assert not others


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_anything_but_2xx_is_no_delivery(status: int) -> None:
    with server(status) as (url, _), pytest.raises(NotDelivered, match=f"answered {status}"):
        send(url)


def test_a_server_that_drips_bytes_for_ever_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = threading.Event()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not done.wait(0.1):
                    try:
                        connection.sendall(b"X-A: b\r\n")
                    except OSError:
                        return

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(NotDelivered, match="no answer within 1 s"):
            send(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout_s=1)
        assert time.monotonic() - began < 20
        done.set()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True), ("2001:4860:4860::8888", True), ("127.0.0.1", False), ("10.1.2.3", False),
        ("192.168.0.1", False), ("172.16.0.1", False), ("169.254.169.254", False), ("100.64.0.1", False),
        ("0.0.0.0", False), ("224.0.0.1", False), ("255.255.255.255", False), ("::1", False), ("fe80::1%eth0", False),
        ("fc00::1", False), ("::ffff:10.0.0.1", False), ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False),
        ("fec0::1", False), ("feff::1", False), ("3fff::1", False), ("3fff:1000::1", True), ("192.88.99.1", False),
    ],
)  # fmt: skip
def test_only_addresses_that_anybody_can_reach_are_public(address: str, expected: bool) -> None:
    assert is_public(address) is expected


def test_a_private_address_is_refused_before_anything_is_sent() -> None:
    with server() as (url, got):
        for name in (url, url.replace("127.0.0.1", "localhost"), url.replace("127.0.0.1", "2130706433")):
            with pytest.raises(NotDelivered, match="an address of a private network"):
                send(name, allow_private=False)
        assert not got


def test_a_name_with_one_private_address_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(2, 1, 6, "", ("8.8.8.8", 80)), (2, 1, 6, "", ("10.0.0.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_named: found)
    with pytest.raises(NotDelivered, match=r"is 10\.0\.0\.1"):
        resolve("example.org", 80, allow_private=False)


def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that answers differently the second time gains nothing: it is asked once."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def once(host: Any, *arguments: Any, **named: Any) -> Any:
        if host == "rebinding.example":
            asked.append(host)
            return real("127.0.0.1", *arguments, **named)
        return real(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", once)
    with server() as (url, got):
        send(url.replace("127.0.0.1", "rebinding.example"))
    assert asked == ["rebinding.example"]
    assert got[0][1]["Host"].startswith("rebinding.example")


WRONG = [
    ("[]", "must be an object"),
    ("{", "is not JSON"),
    ('{"Ops": {}}', "'Ops' is not a valid name"),
    ('{"ops": {"url": "https://a.example"}}', "must have url and secret"),
    ('{"ops": {"url": "ftp://a.example", "secret": "0123456789abcdef"}}', "must be like https://"),
    ('{"ops": {"url": "https://u:p@a.example", "secret": "0123456789abcdef"}}', "without a user name"),
    ('{"ops": {"url": "https://a.example", "secret": "short"}}', "at least 16 characters"),
    ('{"ops": {"url": "https://a.example/to ken", "secret": "0123456789abcdef"}}', "has a space"),
    ('{"ops": {"url": "https://a.example/a\\r\\nb", "secret": "0123456789abcdef"}}', "has a space"),
    ('{"ops": {"url": "https://a.example/\\u0007", "secret": "0123456789abcdef"}}', "has a space"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_a_file_that_cannot_be_used_is_refused_without_its_secrets(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "hooks.json"
    path.write_text(text)
    with pytest.raises(WebhookError, match=said) as refused:
        read_webhooks(path)
    assert "0123456789abcdef" not in str(refused.value)


def test_no_file_is_no_webhook() -> None:
    assert read_webhooks(None) == {}
    with pytest.raises(WebhookError, match="cannot be read"):
        read_webhooks(Path("/nowhere/hooks.json"))


def test_errors_do_not_contain_the_path() -> None:
    """The path of a webhook is often its secret."""
    with server() as (url, _got), pytest.raises(NotDelivered) as failed:
        send(f"{url}/secret path")
    assert "secret" not in str(failed.value)
    with (
        server(404, is_echo=True) as (url, _got),
        pytest.raises(NotDelivered, match="answered 404: Cannot POST") as failed,
    ):
        send(f"{url}/secret?token=hidden")
    assert "secret" not in str(failed.value)
    assert "hidden" not in str(failed.value)


def test_an_alert_that_names_an_unknown_webhook_is_refused_at_the_start() -> None:
    hits = View("hits", Source("web", fields="event_id string, event_time timestamp"), {"hits": Count()}, grain="1h")
    alert = Alert("many", hits, when="hits > 3", webhooks=("operatoins",))
    with pytest.raises(WebhookError, match=r"Alert 'many' names webhook 'operatoins'.*There are: operations"):
        check_named(["operations"], [alert])
    check_named(["operatoins"], [alert])
    check_named([], [Alert("many", hits, when="hits > 3")])


# ---- the outbox ----------------------------------------------------------------


def filled(tmp_path: Path, count: int = 3, target: str = "webhook:ops") -> Journal:
    journal = Journal(tmp_path / "alerts.sqlite")
    notifications = tuple(
        Notification(target, f"e{number}:firing", "key", json.dumps({"n": number})) for number in range(count)
    )
    journal.commit(
        Evaluation(
            "web", FollowerPosition({0: 5}, 1.0), time.time(), transitions=Transitions(notifications=notifications)
        )
    )
    return journal


def test_messages_are_carried_in_order_and_then_gone(tmp_path: Path) -> None:
    journal, sent = filled(tmp_path), list[str]()
    courier = Courier("webhook:ops", journal, lambda due: sent.extend(each.delivery for each in due), threading.Event())
    while courier.deliver_due():
        pass
    assert sent == ["e0:firing", "e1:firing", "e2:firing"]
    assert journal.outbox.all() == []


def test_what_fails_waits_longer_each_time_and_holds_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(couriers, "FIRST_PAUSE_S", 100.0)  # longer than any disk may take
    monkeypatch.setattr(couriers, "MAX_PAUSE_S", 1000.0)
    journal = filled(tmp_path)

    def fail(_due: list[WaitingNotification]) -> None:
        raise NotDelivered("no")

    courier = Courier("webhook:ops", journal, fail, threading.Event())
    assert not courier.deliver_due()
    first = journal.outbox.all()[0]
    assert (first.tries, first.error) == (1, "no")
    assert 0 < first.next_at - time.time() <= 100
    assert not courier.deliver_due()  # it is not due
    assert journal.outbox.all()[0].tries == 1
    journal.outbox.postpone(first.seq, 0.0, "no")
    courier.deliver_due()
    assert journal.outbox.all()[0].next_at - time.time() > 200
    assert journal.outbox.due("webhook:other", time.time(), 10) == []


def test_after_long_enough_a_message_is_given_up(tmp_path: Path) -> None:
    journal = filled(tmp_path)

    def fail(_due: list[WaitingNotification]) -> None:
        raise NotDelivered("no")

    courier = Courier("webhook:ops", journal, fail, threading.Event(), give_up_s=-1)
    courier.deliver_due()
    assert [each.delivery for each in journal.outbox.all()] == ["e1:firing", "e2:firing"]
    assert courier.given_up == 1


def test_a_message_that_kafka_never_takes_holds_up_none_of_the_others() -> None:
    got: list[str] = []

    def send(messages: Sequence[OutputRecord]) -> None:
        if any(len(value) > 10 for _, value, _ in messages):
            raise MessageTooLarge("too large")
        got.extend(delivery for _, _, delivery in messages)

    records = [OutputRecord(b"k", b"x" * (11 if number in (2, 5) else 1), str(number)) for number in range(7)]
    assert [delivery for _, _, delivery in send_in_parts(send, records)] == ["2", "5"]
    assert got == ["0", "1", "3", "4", "6"]


# ---- the journal ---------------------------------------------------------------


def episode(number: int, state: EpisodeState = EpisodeState.RESOLVED) -> Episode:
    return Episode(
        f"e{number}", "many", "tries", ("card",), ("a",), state, number, number, float(number), 1.0, None, {}
    )


def test_an_evaluation_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "alerts.sqlite")
    broken = Transitions(notifications=(Notification("kafka", "d", "k", None),))  # type: ignore[arg-type]
    torn = Evaluation("web", FollowerPosition({0: 9}, 2.0), 2.0, changed=(episode(1),), transitions=broken)
    with pytest.raises(Exception, match="NOT NULL"):
        journal.commit(torn)
    assert journal.episodes.all() == []
    assert journal.positions.get("web") is None
    journal.commit(torn._replace(transitions=Transitions()))
    journal.close()
    again = Journal(tmp_path / "alerts.sqlite")
    assert again.episodes.all() == [episode(1)]
    assert again.positions.get("web") == FollowerPosition({0: 9}, 2.0)


def test_history_is_bounded_and_what_is_open_stays(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "alerts.sqlite", max_episodes=10)
    journal.commit(Evaluation("web", FollowerPosition({}, 0.0), 0.0, changed=(episode(0, EpisodeState.FIRING),)))
    for number in range(1, 200):
        journal.commit(Evaluation("web", FollowerPosition({}, 0.0), 0.0, changed=(episode(number),)))
    assert len(journal.episodes.all()) < 120
    assert [each.id for each in journal.episodes.all(is_open=True)] == ["e0"]


def test_a_mute_ends_by_itself_and_by_hand(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "alerts.sqlite")
    journal.mutes.add("many", time.time() + 60)
    journal.mutes.add("few", time.time() - 1)
    assert list(journal.mutes.active()) == ["many"]
    assert journal.mutes.remove("many")
    assert not journal.mutes.remove("many")
