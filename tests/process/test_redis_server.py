"""Which Redis server is taken: one on PATH that is new enough, else the one that came with us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.errors import InfraError
from infra.home import Home
from infra.stack.redis_server import find_redis_server, redis_service, redis_version


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "redis-server"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return program


def pretend(program: Path, said: str) -> None:
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("said", "version", "is_taken"),
    [
        ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64", (7, 0, 15), True),
        ("Redis server v=6.2.14 sha=00000000:0", (6, 2, 14), True),
        ("Redis server v=5.0.7 sha=00000000:0", (5, 0, 7), False),
        ("something else", (0, 0, 0), False),
    ],
)
def test_server_on_path_is_taken_if_it_is_new_enough(
    on_path: Path, said: str, version: tuple[int, ...], is_taken: bool
) -> None:
    pretend(on_path, said)
    assert redis_version(on_path) == version
    assert (find_redis_server() == on_path) is is_taken


def test_older_server_does_not_start_empty_on_the_data_of_a_newer_one(on_path: Path, tmp_path: Path) -> None:
    pretend(on_path, "Redis server v=6.2.14")
    home = Home(tmp_path / "home")
    home.prepare()
    (home.redis / "appendonlydir").mkdir()
    with pytest.raises(InfraError, match="it would start empty"):
        redis_service(home, 6379, 100)
