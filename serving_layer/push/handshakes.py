"""The handshake of a WebSocket, before a route sees it: one that cannot be read is refused, and not left unanswered."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class Handshakes(WebSocketsSansIOProtocol):
    """As uvicorn has it, and what `websockets` says of a line that is too long, or of too many headers, is sent.

    uvicorn 0.54 looks at requests that could be read alone: it would say nothing, and keep the connection for ever.
    """

    def data_received(self, data: bytes) -> None:
        """Take what came; close after a refusal."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.close_sent:
            self.close_sent = True
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
