"""Which parts talk to which, and the ports by which something can stand between them."""

from __future__ import annotations

from dataclasses import dataclass

PAIRS: tuple[tuple[str, str], ...] = (
    ("collector", "kafka"),
    ("archiver", "kafka"),
    ("speed", "kafka"),
    ("speed", "redis"),
    ("serving", "redis"),
    ("alerts", "kafka"),
    ("alerts", "redis"),
    ("batch", "kafka"),
    ("batch", "redis"),
    ("client", "collector"),
    ("client", "serving"),
)
"""(client, server): every pair of parts with a connection. `batch` is a batch run, or whatever else is started beside
the services; `client` is whoever asks or sends."""


@dataclass(frozen=True)
class Link:
    """A pair with something between: the client connects to `port`, which is to pass all on to `upstream_port`.

    Both are on loopback. A broker tells its clients where it is, so it listens on a port of its own for each such
    pair, and tells the `port` to whoever comes by that.
    """

    client: str
    server: str
    port: int
    upstream_port: int

    @property
    def pair(self) -> tuple[str, str]:
        """Its name among PAIRS."""
        return self.client, self.server
