"""The files of the dashboard, as they lie in static/: read once, compressed once, never from anywhere else."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.rest.problems import Problem

STATIC = Path(__file__).with_name("static")
PAGE = "index.html"
API_PAGE = "/#/api"
"""Where the dashboard shows the description of the API."""
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Scripts and styles are files of ours, and no text becomes markup: what events carry can only be shown."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked about each time, which costs a 304: a new version is there at once
    "Vary": "Accept-Encoding",
}


class StaticFile(NamedTuple):
    """One file, plain and compressed."""

    plain: bytes
    packed: bytes
    media_type: str
    etag: str


def read_files(folder: Path = STATIC) -> dict[str, StaticFile]:
    """By their paths below the folder."""
    return {
        path.relative_to(folder).as_posix(): _read(path)
        for path in sorted(folder.rglob("*"))
        if path.suffix in MEDIA_TYPES
    }


def _read(path: Path) -> StaticFile:
    plain = path.read_bytes()
    packed = gzip.compress(plain, 9, mtime=0)
    return StaticFile(plain, packed, MEDIA_TYPES[path.suffix], hashlib.sha256(plain).hexdigest()[:32])


def dashboard_routes() -> list[Route]:
    """`/` and what it loads. They need no key: they say nothing of anybody's data."""
    files = read_files()

    async def page(request: Request) -> Response:
        return _response(request, files[PAGE])

    async def part(request: Request) -> Response:
        found = files.get(request.path_params["path"])
        if found is None:
            raise Problem(404, "no-such-path", "The dashboard has no such file. It begins at /.")
        return _response(request, found)

    return [Route("/", page), Route("/dashboard/{path:path}", part)]


def _response(request: Request, file: StaticFile) -> Response:
    is_packed = "gzip" in request.headers.get("accept-encoding", "")
    etag = f'"{file.etag}{"-gzip" if is_packed else ""}"'
    headers = {**HEADERS, "ETag": etag}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    return Response(file.packed if is_packed else file.plain, headers=headers, media_type=file.media_type)
