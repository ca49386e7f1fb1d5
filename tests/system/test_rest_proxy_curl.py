"""The lines of Confluent's documentation of its REST Proxy, v2 and v3, run with curl as somebody copies them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.conftest import Stack, wait_until

pytestmark = pytest.mark.usefixtures("collector_alone")

LINES = Path(__file__).with_name("rest_proxy_quick_start.sh")
ADDRESS, CLUSTER = "http://localhost:8082", "xFhUvurESIeeCI87SXWR-Q"
"""What the documentation has."""
TOPICS = {
    **dict.fromkeys(("jsontest", "avrotest", "avrokeytest2", "binarytest", "protobuftest", "jsonschematest"), 1),
    "topic-1": 2, "topic-2": 1,
}  # fmt: skip
SCHEMAS = {"topic-2-key": '"int"', "topic-2-value": '"string"'}
"""What the documentation says to have registered before."""
CURLRC = 'user = "admin:{secret}"\nsilent\nshow-error\nwrite-out = "\\n%{{http_code}}"\n'
ANYTHING = "..."


class Example(NamedTuple):
    """A command, and what its answer is like."""

    command: str
    status: int
    like: list[Any]
    texts: list[str]


class Curl:
    """Runs commands with the curl of the machine. What all of them need is in its own file, not in the commands."""

    def __init__(self, stack: Stack, home: Path) -> None:
        (home / ".curlrc").write_text(CURLRC.format(secret=stack.secret))
        with stack.client() as client:
            (cluster,) = client.get("/v3/clusters").raise_for_status().json()["data"]
        self._home, self._here = home, stack.collector
        self._cluster: str = cluster["cluster_id"]

    def here(self, text: str) -> str:
        """A text of the documentation with the addresses and the cluster of this installation."""
        text = text.replace(f"{ADDRESS}/v3", f"{self._here}/v3").replace(ADDRESS, f"{self._here}/rest-proxy")
        return text.replace(CLUSTER, self._cluster)

    def run(self, command: str) -> tuple[int, str]:
        """The status and the body."""
        environment = {"HOME": str(self._home), "PATH": os.environ["PATH"]}
        ran = subprocess.run(
            ["sh", "-ec", self.here(command)], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        body, _, status = ran.stdout.rpartition("\n")
        return int(status), body


def examples() -> list[Example]:
    found = []
    for block in LINES.read_text().split("\n\n"):
        lines = block.splitlines()
        command = "\n".join(line for line in lines if not line.startswith("#"))
        marked = {mark: [line[3:] for line in lines if line.startswith(f"{mark} ")] for mark in ("#=", "#~", "#!")}
        if command:
            status = int(marked["#!"][0]) if marked["#!"] else 200
            found.append(Example(command, status, [json.loads(each) for each in marked["#="]], marked["#~"]))
    return found


@pytest.fixture
def curl(stack: Stack, tmp_path: Path) -> Iterator[Curl]:
    """With the topics and schemas of the documentation, which are gone afterwards."""
    registry = f"{stack.collector}/schema-registry/subjects"
    with stack.client() as client, httpx.Client(auth=("admin", stack.secret), timeout=30) as registering:
        for name, partitions in TOPICS.items():
            assert client.post("/admin/topics", json={"name": name, "partitions": partitions}).status_code == 201
        for subject, schema in SCHEMAS.items():
            registering.post(f"{registry}/{subject}/versions", json={"schema": schema}).raise_for_status()
        yield Curl(stack, tmp_path)
        for name in TOPICS:
            client.delete(f"/admin/topics/{name}").raise_for_status()


def is_like(expected: Any, found: Any) -> bool:
    """Whether all that is expected was found; an answer may have more members."""
    if expected == ANYTHING:
        return found is not None
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(name in found and is_like(value, found[name]) for name, value in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(is_like, expected, found))
    if isinstance(expected, str) and isinstance(found, str) and expected.endswith("Z"):  # a second has fractions here
        return found.replace(".000000Z", "Z") == expected
    return bool(expected == found)


def test_every_line_of_the_documentation_answers_as_documented(curl: Curl) -> None:
    """Records come a moment after the subscription: the documentation asks for them twice."""
    wrong = []
    for example in examples():
        status, body = curl.run(example.command)
        if example.command.endswith("/records") and "Accept:" in example.command:
            bodies = [body]

            def has_records(command: str = example.command, bodies: list[str] = bodies) -> bool:
                if bodies[-1] == "[]":
                    bodies.append(curl.run(command)[1])
                return bodies[-1] != "[]"

            wait_until("the records", has_records)
            body = bodies[-1]
        expected = json.loads(curl.here(json.dumps(example.like)))
        found = [json.loads(line) for line in body.splitlines()] if example.like else []
        is_right = status == example.status and is_like(expected, found) and all(each in body for each in example.texts)
        if not is_right:
            wrong.append((example.command, status, body))
    assert wrong == []


def test_the_documentation_is_read_whole() -> None:
    found = examples()
    assert len(found) == LINES.read_text().count("\ncurl ") >= 38
    assert all(each.like or each.texts or each.status == 204 for each in found)
