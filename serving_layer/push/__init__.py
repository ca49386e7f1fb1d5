"""Push changes to clients by server-sent events and WebSocket.

    connection ─┐
    connection ─┼─ a mailbox each ◀── a channel ◀── its source: a live query, alert transitions, matches of a watch
    connection ─┘

A channel reads its source once for all its subscribers, and only while there are any (`registry`). It puts messages
into their mailboxes (`mailbox`), which `sse` and `websocket` empty. A slow reader fills its own mailbox and delays
nobody.
"""
