"""Bytes as JSON can carry them: text where they are UTF-8, base64 under another name where they are not."""

from __future__ import annotations

import base64


def text_or_base64(name: str, data: bytes | str | None) -> dict[str, str | None]:
    """`("value", b"hi")` -> `{"value": "hi"}`; `("value", bytes([255]))` -> `{"value_base64": "/w=="}`."""
    if data is None or isinstance(data, str):
        return {name: data}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
