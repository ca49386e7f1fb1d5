"""A copy of a user's installation for the fault programme: what it computes, and nothing of where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.errors import HomeError
from infra.home import Home
from infra.settings import Settings
from torture.errors import TortureError
from torture.home_copy import LIMITS, copied
from torture.installation import Installation
from torture.installation_settings import PLAIN
from torture.links import PAIRS

DECLARED = """
from views.aggregates import Count
from views.source import Source
from views.view import View

tills = Source("tills", fields="event_id string, event_time timestamp, till string")
idle = Source("idle", fields="event_id string, event_time timestamp")
sales = View("sales", source=tills, grain="1h", keys={"till": "till"}, answers={"sales": Count()})
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home with a view of its own; other settings are given as variables."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tills.py").write_text(DECLARED)
    Home(tmp_path / "user").prepare()
    monkeypatch.setenv("TIDEMARK_VIEWS_DIR", str(tmp_path / "mine"))
    return tmp_path / "user"


def contents(folder: Path) -> dict[str, Any]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_has_the_views_and_settings_and_the_home_is_only_read(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_WITH_EXAMPLES", "false")
    monkeypatch.setenv("TIDEMARK_SPEED_GRACE_S", "7")
    before = contents(home)
    how = copied(home, "")
    made = Installation(tmp_path / "new", **how)
    assert contents(home) == before
    assert made.source_name == "tills"
    assert [*made.declared.views] == ["sales"]
    assert made.settings.speed_grace_s == 7
    assert made.settings.home == tmp_path / "new" / "home"
    assert made.settings.views_dir == tmp_path / "new" / "views"


@pytest.mark.parametrize("source", ["web", "tills"])
def test_any_source_with_views_can_be_named(home: Path, source: str) -> None:
    assert copied(home, source)["source"] == source


@pytest.mark.parametrize("source", ["idle", "nonsense"])
def test_a_source_without_views_is_refused_with_those_that_have_some(home: Path, source: str) -> None:
    with pytest.raises(TortureError, match=f"--source is '{source}', which has no views there.*tills"):
        copied(home, source)


def test_a_folder_that_is_no_home_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match="there is no home"):
        copied(tmp_path, "")


@pytest.mark.parametrize(
    ("name", "theirs", "expected"),
    [
        ("speed_dedup_horizon_s", "60", PLAIN["speed_dedup_horizon_s"]),
        ("speed_dedup_horizon_s", "0", PLAIN["speed_dedup_horizon_s"]),
        ("speed_dedup_horizon_s", "9999999", 9_999_999),
        ("min_free_disk_mb", "50000", PLAIN["min_free_disk_mb"]),
        ("batch_wait_s", "1", PLAIN["batch_wait_s"]),
        ("batch_wait_s", "900", 900),
        ("archive_interval_s", "600", PLAIN["archive_interval_s"]),
        ("archive_interval_s", "0.5", 0.5),
        ("serving_max_rows", "10", 10_000),
        ("serving_max_rows", "20000", 20_000),
        ("serving_workers", "4", 1),
    ],
)
def test_settings_that_the_programme_counts_on_are_at_least_its_own(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, theirs: str, expected: float
) -> None:
    monkeypatch.setenv(f"TIDEMARK_{name.upper()}", theirs)
    how = copied(home, "tills")
    assert getattr(Installation(tmp_path / "new", **how).settings, name) == expected


def test_limits_are_settings_with_a_number() -> None:
    assert all(Settings.model_fields[name].default > 0 for name in LIMITS)


ELSEWHERE = {
    "TIDEMARK_KAFKA_BOOTSTRAP": "production.example:9092",
    "TIDEMARK_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "TIDEMARK_KAFKA_USERNAME": "me",
    "TIDEMARK_KAFKA_PASSWORD": "secret",
    "TIDEMARK_REDIS_URL": "redis://production.example:6379/0",
    "TIDEMARK_MASTER_DIR": "/srv/master",
    "TIDEMARK_BATCH_DIR": "/srv/batch",
    "TIDEMARK_SPARK_MASTER": "spark://production.example:7077",
    "TIDEMARK_COLLECTOR_ENABLED": "false",
    "TIDEMARK_COLLECTOR_PORT": "8080",
    "TIDEMARK_SERVING_HOST": "0.0.0.0",
}


@pytest.mark.process
@pytest.mark.parametrize("is_copy", [False, True])
def test_whatever_cluster_is_set_what_is_hurt_is_its_own(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_copy: bool
) -> None:
    """Redis is flushed and poison is sent: never to where the user's own installation is."""
    for name, value in ELSEWHERE.items():
        monkeypatch.setenv(name, value)
    how = copied(home, "tills") if is_copy else {}
    settings = Installation(tmp_path / "new", links=PAIRS, **how).settings
    for name in ELSEWHERE:
        setting = name.removeprefix("TIDEMARK_").lower()
        found, default = getattr(settings, setting), Settings.model_fields[setting].default
        assert found == default or setting == "collector_port", setting
    assert settings.collector_port not in (0, 8080)
