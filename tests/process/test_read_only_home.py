"""The serving layer of a home that it cannot write, as docker-compose.yml gives it one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from infra.home import Home
from infra.rest.access_keys import add_key
from infra.stack.ports import LOOPBACK
from tests.conftest import wait_until
from torture.installation_settings import free_port

AS_OTHERS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
"""For root, no folder is read-only without this."""


class ReadOnlyHome:
    """A home with one key, in which nothing can be written, made or removed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        Home(root).prepare()
        self.secret = add_key(root, "ann", ["query"])
        self.files = self._everything()
        self._allow_writing(is_allowed=False)

    def _everything(self) -> set[Path]:
        return {self.root, *self.root.rglob("*")}

    def _allow_writing(self, *, is_allowed: bool) -> None:
        for path in self.files:
            path.chmod((0o700 if path.is_dir() else 0o600) if is_allowed else 0o500 if path.is_dir() else 0o400)

    def give_back(self) -> None:
        """Let pytest remove it; nothing came or went meanwhile."""
        self._allow_writing(is_allowed=True)
        assert self._everything() == self.files


@pytest.fixture
def home(tmp_path: Path) -> Iterator[ReadOnlyHome]:
    made = ReadOnlyHome(tmp_path / "home")
    yield made
    made.give_back()


@contextmanager
def serving(home: ReadOnlyHome, log: Path, **settings: str) -> Iterator[httpx.Client]:
    """The process that docker-compose.yml starts, as a user without power over permissions."""
    port = free_port()
    given = {
        "TIDEMARK_HOME": str(home.root), "TIDEMARK_SERVING_HOST": LOOPBACK, "TIDEMARK_SERVING_PORT": str(port),
        "TIDEMARK_REDIS_URL": f"redis://{LOOPBACK}:1/0", **settings,
    }  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*AS_OTHERS, sys.executable, "-P", "-m", "serving_layer"],
            env={**os.environ, **given}, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=30) as client:
            wait_until("the serving layer to answer", lambda: _is_up(client) or process.poll() is not None, 60)
            assert process.poll() is None, log.read_text()
            yield client
    finally:
        process.terminate()
        process.wait(30)


def _is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def sign_in(client: httpx.Client, home: ReadOnlyHome) -> httpx.Response:
    return client.post("/session", json={"name": "ann", "secret": home.secret})


def test_who_signs_in_is_kept_beside_a_home_that_cannot_be_written(home: ReadOnlyHome, tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    with serving(home, tmp_path / "log", TIDEMARK_SERVING_SESSIONS_DIR=str(folder)) as client:
        begun = sign_in(client, home)
        assert (begun.status_code, begun.json()["key"]) == (200, "ann"), begun.text
        assert client.get("/session").json()["key"] == "ann"
        assert client.get("/views").status_code == 200
        assert len([*folder.iterdir()]) == 1


def test_without_a_place_for_sessions_the_answer_says_what_to_do(home: ReadOnlyHome, tmp_path: Path) -> None:
    with serving(home, tmp_path / "log") as client:
        refused = sign_in(client, home)
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:tidemark:problem:sessions-unwritable")
        assert "serving_sessions_dir" in refused.json()["detail"]
        assert client.get("/views", auth=("ann", home.secret)).status_code == 200
    assert " bug " not in (tmp_path / "log").read_text()
