"""A broker is not started on a full disk: it would empty its own logs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from infra.errors import InfraError
from infra.home import Home
from infra.java.find import find_java
from infra.java.jars import JarSet, cached_jars
from infra.settings import load_settings
from infra.stack import kafka_broker


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_broker_is_not_prepared_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(home=tmp_path / "home")
    home = Home(settings.home)
    home.prepare()
    jars: JarSet = cached_jars(settings.jars_dir)
    ports = {"kafka_port": 1, "kafka_controller_port": 2}
    service = kafka_broker.kafka_service(settings, home, find_java(settings.java_home), jars, ports)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: Usage(10**9, 10**9 - 5 * 2**20, 5 * 2**20))
    with pytest.raises(InfraError, match=r"has 5 MB free, and a broker needs 64 MB"):
        service.prepare()
    assert not (home.kafka / "server.properties").exists()
