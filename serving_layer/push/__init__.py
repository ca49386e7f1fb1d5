"""Push changes to clients by server-sent events and WebSocket."""
