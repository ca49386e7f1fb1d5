"""The demo keeps away from everything that is the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.settings import Settings, load_settings
from tidemark.demo.demo import demo_settings


def test_demo_never_touches_a_kafka_redis_or_master_dataset_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "KAFKA_BOOTSTRAP": "production.example:9092",
        "REDIS_URL": "redis://production.example:6379/0",
        "MASTER_DIR": str(tmp_path / "facts"),
        "KAFKA_PORT": "9999",
        "COLLECTOR_ENABLED": "false",
        "SPARK_MASTER": "spark://production.example:7077",
    }.items():
        monkeypatch.setenv(f"TIDEMARK_{name}", value)
    users = load_settings(home=tmp_path / "home", jars_dir=tmp_path / "jars")
    ours = demo_settings(users)
    assert (ours.home, ours.jars_dir) == (tmp_path / "home-demo", tmp_path / "jars")
    defaults = Settings.model_construct()
    for name in ("kafka_bootstrap", "redis_url", "master_dir", "kafka_port", "collector_enabled", "spark_master"):
        assert getattr(ours, name) == getattr(defaults, name), name
