"""Metrics over HTTP: served on the port that was asked for, and gone with their process."""

from __future__ import annotations

import socket

import httpx
import pytest
from prometheus_client import Gauge

from infra.errors import InfraError
from infra.metrics import new_registry, serve_metrics
from infra.ports import LOOPBACK, is_free
from infra.version import VERSION


def test_registry_is_served_as_text_and_read_anew_each_time() -> None:
    registry = new_registry("speed")
    depth = Gauge("tidemark_depth", "How deep.", registry=registry)
    with serve_metrics(registry, LOOPBACK, 0) as address:
        for value in (3, 4):
            depth.set(value)
            answer = httpx.get(address)
            assert answer.headers["content-type"].startswith("text/plain")
            assert f"tidemark_depth {value}.0" in answer.text.splitlines()
        assert f'tidemark_info{{process="speed",version="{VERSION}"}} 1.0' in answer.text.splitlines()
    assert is_free(httpx.URL(address).port or 0), "the port is given back"


def test_registries_know_nothing_of_each_other() -> None:
    Gauge("tidemark_depth", "How deep.", registry=new_registry("one"))
    Gauge("tidemark_depth", "How deep.", registry=new_registry("two"))


def test_taken_port_is_refused_with_its_holder() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        said = rf"127.0.0.1:{port} .*, which is held by python"
        with pytest.raises(InfraError, match=said), serve_metrics(new_registry("speed"), LOOPBACK, port):
            pass
