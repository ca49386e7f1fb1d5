"""Ports: chosen once for a home, never shared by two, and a taken one is told with its holder."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.errors import PortTaken
from infra.home import Home, read_json
from infra.stack.ports import FIRST, LOOPBACK, check_free, choose_ports, holder_of, is_free

ANY = {"kafka_port": 0, "kafka_controller_port": 0, "redis_port": 0}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server


def make_home(root: Path) -> Home:
    home = Home(root)
    home.prepare()
    return home


def test_ports_are_chosen_once(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    first = choose_ports(home, ANY, tmp_path / "ports.json")
    assert first == choose_ports(home, ANY, tmp_path / "ports.json") == read_json(home.ports_file)
    assert len(set(first.values())) == len(ANY)
    assert all(port >= FIRST[setting] for setting, port in first.items())


def test_homes_never_share_a_port_even_when_they_start_together(tmp_path: Path) -> None:
    homes = [make_home(tmp_path / f"home{number}") for number in range(8)]
    with ThreadPoolExecutor(len(homes)) as pool:
        chosen = list(pool.map(lambda home: choose_ports(home, ANY, tmp_path / "ports.json"), homes))
    ports = [port for each in chosen for port in each.values()]
    assert len(set(ports)) == len(homes) * len(ANY)


def test_removed_home_gives_its_ports_back(tmp_path: Path) -> None:
    gone = make_home(tmp_path / "gone")
    choose_ports(gone, ANY, tmp_path / "ports.json")
    gone.root.rename(tmp_path / "elsewhere")
    choose_ports(make_home(tmp_path / "next"), ANY, tmp_path / "ports.json")
    assert list(read_json(tmp_path / "ports.json")) == [str(tmp_path / "next")]


def test_wanted_port_is_used_and_given_to_nobody_else(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    before = choose_ports(home, ANY, tmp_path / "ports.json")
    after = choose_ports(home, {**ANY, "redis_port": before["kafka_port"]}, tmp_path / "ports.json")
    assert after["redis_port"] == before["kafka_port"]
    assert len(set(after.values())) == len(ANY)


def test_port_of_a_server_that_is_not_wanted_today_is_remembered(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    before = choose_ports(home, ANY, tmp_path / "ports.json")
    assert choose_ports(home, {"kafka_port": 0}, tmp_path / "ports.json") == {"kafka_port": before["kafka_port"]}
    assert choose_ports(home, ANY, tmp_path / "ports.json") == before


def test_homes_can_start_where_claims_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert choose_ports(make_home(tmp_path / "home"), ANY, tmp_path / "file" / "ports.json").keys() == ANY.keys()


def test_port_in_use_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
    taken = listener.getsockname()[1]
    monkeypatch.setitem(FIRST, "redis_port", taken)
    assert choose_ports(make_home(tmp_path / "h"), {"redis_port": 0}, tmp_path / "ports.json")["redis_port"] > taken


def test_taken_port_is_refused_with_its_holder(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(PortTaken) as error:
        check_free({"redis_port": port})
    said = str(error.value)
    assert f"Port {port} (redis_port) is taken by" in said
    assert f"process {os.getpid()}:" in said
    assert "TIDEMARK_REDIS_PORT=<port>" in said
    assert (error.value.port, error.value.exit_code) == (port, 1)


def test_port_taken_on_all_addresses_counts_as_taken() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_closed_port_is_free_at_once_though_a_connection_lingers(listener: socket.socket) -> None:
    """A restart must not wait for the kernel's TIME_WAIT minute."""
    port = listener.getsockname()[1]
    with socket.create_connection((LOOPBACK, port)) as client:
        accepted, _ = listener.accept()
        accepted.close()
        client.recv(1)
    listener.close()
    assert is_free(port)
    assert holder_of(port) == "a process of another user"


def test_refused_port_is_not_remembered(tmp_path: Path, listener: socket.socket) -> None:
    home = make_home(tmp_path / "home")
    taken = listener.getsockname()[1]
    with pytest.raises(PortTaken):
        choose_ports(home, {**ANY, "redis_port": taken}, tmp_path / "ports.json")
    assert choose_ports(home, ANY, tmp_path / "ports.json")["redis_port"] != taken
