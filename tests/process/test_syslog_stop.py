"""Syslog over TCP when the collector stops: what it has read and cannot store is counted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from infra.settings import load_settings
from infra.stack.ports import LOOPBACK
from master_dataset.collector.app import create_app
from master_dataset.collector.doors import syslog_server
from tests.process.test_syslog import counts, until
from torture.installation_settings import free_port
from views.catalog.syslog import syslog
from views.declarations import Declarations

WAITING = 10
SENT = 50


def test_messages_that_wait_for_room_at_a_stop_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syslog_server, "MAX_BACKLOG", WAITING)
    monkeypatch.setattr(syslog_server, "CLOSE_TIMEOUT_S", 0.1)
    port = free_port()
    settings = load_settings(
        home=tmp_path,
        kafka_bootstrap="127.0.0.1:1",
        access_required=False,
        collector_syslog_tcp_port=port,
        registry_enabled=False,
    )
    app = create_app(settings, Declarations({syslog.name: syslog}))

    async def stop_while_they_wait() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            async with app.router.lifespan_context(app):
                _, writer = await asyncio.open_connection(LOOPBACK, port)
                writer.write(b"<13>a\n" * SENT + b"<13>unfinished")
                # one batch is being sent, one fills the backlog, and the others wait for room
                await until("a full backlog", client, lambda found: found["tcp"] > WAITING)
            found = await counts(client)
            writer.transport.abort()
        assert (found["tcp"], found["not-stored-at-stop"]) == (SENT + 1, SENT + 1)

    asyncio.run(stop_while_they_wait())
