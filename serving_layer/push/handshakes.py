"""The WebSocket handshake before a route sees it: a request that cannot be parsed is refused, not left unanswered."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class Handshakes(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which also sends the refusal of `websockets` for a line that is too long or too many headers.

    uvicorn 0.54 only handles requests that could be parsed: it would send nothing and keep the connection open forever.
    """

    def data_received(self, data: bytes) -> None:
        """Process the data; close the connection after a refusal."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.close_sent:
            self.close_sent = True
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
