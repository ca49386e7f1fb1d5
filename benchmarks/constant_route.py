"""Floors: a FastAPI route that reads Redis once and returns a constant (bench_serving.py), and one that reads nothing.

Run by benchmarks, with the uvicorn settings of our servers: python benchmarks/constant_route.py PORT REDIS_URL
"""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI
from redis.asyncio import Redis


def main() -> None:
    """Serve until killed."""
    port, url = sys.argv[1:]
    app = FastAPI()
    client = Redis.from_url(url)

    @app.get("/constant")
    async def constant() -> dict[str, int]:
        await client.get("constant")
        return {"hits": 1}

    @app.get("/nothing")
    async def nothing() -> dict[str, int]:
        return {"hits": 1}

    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(port),
        loop="uvloop",
        http="httptools",
        proxy_headers=False,
        access_log=False,
        log_level="warning",
        server_header=False,
    )


if __name__ == "__main__":
    main()
