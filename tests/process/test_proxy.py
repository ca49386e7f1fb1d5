"""The proxy between two parts: what arrives, and when, in each condition."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from infra.stack.ports import LOOPBACK
from tests.conftest import wait_until
from torture.proxy import GOOD, Condition, Proxies, Proxy, ProxyMode, proxies


class EchoServer:
    """Sends back what it gets, on a real socket."""

    def __init__(self) -> None:
        self.listening = socket.create_server((LOOPBACK, 0))
        self.port = int(self.listening.getsockname()[1])
        self.heard = bytearray()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(65_536):
                self.heard += data
                connection.sendall(data)


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    made = EchoServer()
    yield made
    made.listening.close()


@pytest.fixture
def carrier() -> Iterator[Proxies]:
    with proxies() as made:
        yield made


@pytest.fixture
def proxy(carrier: Proxies, echo: EchoServer) -> Proxy:
    return carrier.add("echo", echo.port)


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((LOOPBACK, proxy.port), timeout=5)


def read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            break
        found += part
    return found


def test_bytes_pass_both_ways_in_order(proxy: Proxy) -> None:
    sent = bytes(range(256)) * 4_000
    with connect(proxy) as client:
        threading.Thread(target=client.sendall, args=(sent,)).start()
        assert read(client, len(sent)) == sent


def test_a_clients_end_reaches_the_server_and_comes_back(proxy: Proxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"last")
        client.shutdown(socket.SHUT_WR)
        assert read(client, 100) == b"last"


def test_cut_resets_what_is_there_and_refuses_what_comes(proxy: Proxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"a")
        assert read(client, 1) == b"a"
        with proxy.during(Condition(ProxyMode.CUT)):
            with pytest.raises(ConnectionResetError):
                read(client, 1)
            with pytest.raises(ConnectionRefusedError):
                connect(proxy)
    with connect(proxy) as again:
        again.sendall(b"b")
        assert read(again, 1) == b"b"


def test_a_cut_proxy_keeps_its_port(proxy: Proxy) -> None:
    with proxy.during(Condition(ProxyMode.CUT)), socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, proxy.port))


def test_half_open_takes_connections_and_swallows(proxy: Proxy, echo: EchoServer) -> None:
    with connect(proxy) as before:
        with proxy.during(Condition(ProxyMode.HALF_OPEN)), connect(proxy) as client:
            for each in (before, client):
                each.sendall(b"lost")
                each.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    each.recv(1)
        with pytest.raises(ConnectionResetError):  # the stream has a hole: nobody may go on with it
            read(before, 1)
    assert bytes(echo.heard) == b""


def test_delay_lets_everything_arrive_later(proxy: Proxy) -> None:
    with connect(proxy) as client, proxy.during(Condition(ProxyMode.DELAY, delay_s=0.2)):
        began = time.monotonic()
        client.sendall(b"slow")
        assert read(client, 4) == b"slow"
        assert time.monotonic() - began >= 0.4  # both ways


def test_trickle_lets_everything_arrive_piece_by_piece(proxy: Proxy) -> None:
    with connect(proxy) as client, proxy.during(Condition(ProxyMode.TRICKLE, bytes_at_once=10, pause_s=0.01)):
        began = time.monotonic()
        client.sendall(b"x" * 200)
        assert read(client, 200) == b"x" * 200
        assert time.monotonic() - began >= 0.2


def test_reset_happens_in_the_middle(proxy: Proxy, echo: EchoServer) -> None:
    with connect(proxy) as client, proxy.during(Condition(ProxyMode.RESET, reset_after_bytes=50)):
        client.sendall(b"y" * 120)
        with pytest.raises(ConnectionResetError):
            read(client, 120)
    wait_until("what was heard before", lambda: bytes(echo.heard) == b"y" * 50)


def test_a_target_that_is_away_resets_the_client(carrier: Proxies) -> None:
    with socket.create_server((LOOPBACK, 0)) as gone:
        port = int(gone.getsockname()[1])
    away = carrier.add("away", port)
    with pytest.raises(ConnectionResetError), connect(away) as client:  # on a busy machine before connect() is back
        read(client, 1)


def test_it_is_good_again_after_each_condition(proxy: Proxy) -> None:
    for mode in ProxyMode:
        with proxy.during(Condition(mode)):
            pass
    assert proxy.condition == GOOD
    with connect(proxy) as client:
        client.sendall(b"ok")
        assert read(client, 2) == b"ok"


@pytest.mark.parametrize("mode", [mode for mode in ProxyMode if mode is not GOOD.mode], ids=str)
def test_what_it_has_hurt_is_counted(proxy: Proxy, mode: ProxyMode) -> None:
    condition = Condition(mode, delay_s=0.01, bytes_at_once=1, pause_s=0.001, reset_after_bytes=1)
    with connect(proxy) as client:
        client.sendall(b"before")
        assert client.recv(100) == b"before"
        with proxy.during(condition):
            with suppress(OSError):
                client.sendall(b"hurt")
            wait_until("something to be hurt", lambda: proxy.hurt)
    assert proxy.hurt == 0
