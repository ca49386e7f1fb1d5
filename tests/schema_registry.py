"""A schema registry for tests: answers over HTTP as Confluent documents, and can be away."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Registry:
    """Its schemas, by the path that asks for them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.replies: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.is_away = False
        self.login: str | None = None

    def add(self, schema_id: int, schema: Any, **more: Any) -> None:
        """A schema of this id; `more` is what else is in the reply, such as schemaType and references."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.put(f"/schemas/ids/{schema_id}", {"schema": text, **more})

    def put(self, path: str, reply: dict[str, Any], status: int = 200) -> None:
        """The reply for a path."""
        self.replies[path] = status, json.dumps(reply).encode()

    def reply(self, path: str) -> tuple[int, bytes]:
        """What it answers."""
        self.asked.append(path)
        if self.is_away:
            return 503, b"away"
        if path in self.replies:
            return self.replies[path]
        code = 40403 if re.match("/schemas/", path) else 40401
        return 404, json.dumps({"error_code": code, "message": f"{path} not found"}).encode()


@contextmanager
def running_registry() -> Iterator[Registry]:
    """A registry on a port of its own, while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_allowed = registry.login is None or self.headers.get("Authorization") == registry.login
            status, body = registry.reply(self.path.partition("?")[0]) if is_allowed else (401, b"{}")
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry = Registry(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
