"""How many schemas the registry looks up a second, beside a route that answers a constant.

    python benchmarks/bench_registry.py [--seconds 5] [--rounds 5]

The floor is a FastAPI application with nothing but that route, in a process of its own, without a key. The registry's
own constant (its root, an empty object) is measured too: it has the key's check and the collector's middleware, and no
lookup. `/health` of the collector would be no floor, because its route is tried last, after those of all doors.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import report
from bench_serving import answers, free_port, wait_until
from load import drive

from infra.settings import Settings, load_settings
from infra.stack import up
from infra.stack.addresses import addresses

HERE = Path(__file__).parent
SCHEMAS = 1_000
CONNECTIONS = 8
FLOOR, OWN_CONSTANT = "a constant, of a process that does nothing else", "the registry's root, a constant"


def text_of(number: int) -> str:
    """A record with some fields, as the registry writes it."""
    fields = [{"name": f"field_{field}", "type": "string"} for field in range(10)]
    return json.dumps({"type": "record", "name": f"Record{number}", "fields": fields}, separators=(",", ":"))


def request(method: str, path: str, login: str, body: bytes = b"") -> bytes:
    """A request as it is sent."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic {login}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def fill(client: httpx.Client) -> list[int]:
    """Register the schemas, a subject each, and return their ids."""
    ids = []
    for number in range(SCHEMAS):
        answer = client.post(f"/schema-registry/subjects/s{number}/versions", json={"schema": text_of(number)})
        ids.append(int(answer.raise_for_status().json()["id"]))
    return ids


@contextmanager
def constant_route() -> Iterator[int]:
    """The port of the floor, for as long as the block lasts. It has a Redis, but does not ask it."""
    port = free_port()
    process = subprocess.Popen([sys.executable, str(HERE / "constant_route.py"), str(port), "redis://127.0.0.1:1/0"])
    try:
        wait_until("the constant route answers", lambda: answers(port, "/nothing"))
        yield port
    finally:
        process.kill()
        process.wait()


def measure(settings: Settings, constant_port: int, seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """Answers a second of each kind of request."""
    secret = up.first_access_key(settings) or ""
    up.start_detached(settings, lambda _status: None)
    try:
        collector = addresses(settings).collector
        with httpx.Client(base_url=collector, auth=("admin", secret), timeout=60) as client:
            ids = fill(client)
        login, port = base64.b64encode(f"admin:{secret}".encode()).decode(), urlsplit(collector).port or 0
        numbers = range(SCHEMAS)
        kinds = {
            FLOOR: [request("GET", "/nothing", login)],
            OWN_CONSTANT: [request("GET", "/schema-registry/", login)],
            "by id": [request("GET", f"/schema-registry/schemas/ids/{each}", login) for each in ids],
            "the latest of a subject": [
                request("GET", f"/schema-registry/subjects/s{each}/versions/latest", login) for each in numbers
            ],
            "by content": [
                request(
                    "POST", f"/schema-registry/subjects/s{each}", login, json.dumps({"schema": text_of(each)}).encode()
                )
                for each in numbers
            ],
        }
        found: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(rounds):
            for name, requests in kinds.items():
                asked = constant_port if name == FLOOR else port
                found[name].append(len(drive(asked, requests, CONNECTIONS, seconds)) / seconds)
        return {name: report.median(rates) for name, rates in found.items()}
    finally:
        up.stop(settings, lambda _status: None)


def main() -> None:
    """Measure, and write the result and the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=5)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    os.environ["TIDEMARK_CONFIG"] = os.devnull
    with tempfile.TemporaryDirectory() as folder:
        layers = ("archiver", "scheduler", "speed", "serving", "alerts")
        settings = load_settings(home=Path(folder) / "home", **{f"{layer}_enabled": False for layer in layers})
        up.check_and_fetch(settings)
        with constant_route() as constant_port:
            found = measure(settings, constant_port, given.seconds, given.rounds)
    floor = found[FLOOR]["median"]
    rows = [
        (
            name,
            f"{each['median']:,.0f} /s ({each['least']:,.0f} – {each['most']:,.0f})",
            f"{each['median'] / floor:.2f}",
        )
        for name, each in found.items()
    ]
    text = report.table(("requests", "median (least – most)", "of the floor"), *rows)
    what = (
        f"{SCHEMAS:,} schemas, {CONNECTIONS} connections, one collector; {given.rounds} rounds of {given.seconds:g} s. "
        "The first row is the floor: an application with that route alone, and without keys."
    )
    report.write("registry", "Collector: the schema registry", {"rates": found}, f"{text}\n\n{what}")


if __name__ == "__main__":
    main()
