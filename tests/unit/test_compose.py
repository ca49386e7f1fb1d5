"""docker-compose.yml: what can be said about it without a Docker engine."""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.home import Home
from infra.settings import Settings, load_settings
from infra.stack.addresses import addresses
from infra.stack.kafka_broker import _server_properties
from infra.stack.redis_server import redis_service
from infra.version import VERSION

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_pinned_checked_kept_and_on_loopback_only(name: str) -> None:
    service = SERVICES[name]
    assert service["image"].rpartition(":")[2] not in ("", "latest")
    assert service["healthcheck"]["test"][0] == "CMD"
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    for volume in service["volumes"]:
        if isinstance(volume, str):
            assert volume.partition(":")[0] in COMPOSE["volumes"]
        else:
            assert (volume["type"], volume["read_only"]) == ("bind", True)


def test_kafka_and_redis_are_the_versions_that_we_lock() -> None:
    ivy = (ROOT / "infra" / "java" / "ivy.xml").read_text(encoding="utf-8")
    version = SERVICES["kafka"]["image"].rpartition(":")[2]
    assert f'org="org.apache.kafka" name="kafka-server" rev="{version}"' in ivy
    assert SERVICES["redis"]["image"] == "redis:7.2"


def test_containers_broker_is_set_up_like_our_own(tmp_path: Path) -> None:
    """Everything but where it listens and keeps its data."""
    ours = dict(
        line.split("=", 1)
        for line in _server_properties(Home(tmp_path), {"kafka_port": 9092, "kafka_controller_port": 9192}).splitlines()
    )
    theirs = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): str(value)
        for name, value in SERVICES["kafka"]["environment"].items()
    }
    places = {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs", "heap.opts"}
    assert {k: v for k, v in theirs.items() if k not in places} == {k: v for k, v in ours.items() if k not in places}
    assert theirs["log.dirs"] == SERVICES["kafka"]["volumes"][0].partition(":")[2]


def test_containers_redis_is_set_up_like_our_own(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    redis_service(home, 6379, Settings.model_fields["redis_max_memory_mb"].default).prepare()
    ours = dict(line.split(" ", 1) for line in (home.redis / "redis.conf").read_text().splitlines())
    words = SERVICES["redis"]["command"][1:]
    theirs = dict(zip([word.removeprefix("--") for word in words[::2]], words[1::2], strict=True))
    assert theirs == {name: ours[name].strip('"') for name in theirs}
    assert theirs.keys() == ours.keys() - {"bind", "port", "dir", "daemonize", "user"}


def test_the_addresses_in_its_heading_are_valid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    heading = (ROOT / "docker-compose.yml").read_text(encoding="utf-8").partition("export ")[2].splitlines()[0]
    for assignment in heading.split():
        monkeypatch.setenv(*assignment.split("=", 1))
    settings = load_settings()
    assert settings.kafka_bootstrap == SERVICES["kafka"]["ports"][0].rpartition(":")[0]
    assert settings.redis_url == f"redis://{SERVICES['redis']['ports'][0].rpartition(':')[0]}/0"


def test_serving_layer_gets_settings_that_there_are_and_listens_where_its_port_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = SERVICES["serving"]
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, str(value))
    settings = load_settings()
    assert service["ports"] == [f"127.0.0.1:{settings.serving_port}:{settings.serving_port}"]
    assert addresses(settings).serving in service["healthcheck"]["test"][-1]
    assert str(settings.home) == service["volumes"][0]["target"]
    assert find_spec(service["command"][-1]) is not None
    assert service["image"] == f"tidemark:{VERSION}"


def test_serving_layer_writes_only_into_a_folder_of_its_own_beside_a_home_that_it_cannot_change() -> None:
    service = SERVICES["serving"]
    folder, _, options = service["tmpfs"][0].partition(":")
    assert folder == service["environment"]["TIDEMARK_SERVING_SESSIONS_DIR"]
    assert not folder.startswith(service["volumes"][0]["target"])
    uid, gid = service["user"].split("}:")
    assert set(options.split(",")) == {"mode=0700", f"uid={uid}}}", f"gid={gid}"}


def test_image_is_made_of_the_packages_and_the_locks_alone() -> None:
    """Everything else in the folder stays outside, such as a home with its keys."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "everything is left out that is not named"
    named = {rule[1:] for rule in rules if rule.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    locks = set(re.findall(r"-r (\S+)", SERVICES["serving"]["build"]["dockerfile_inline"]))
    described = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    assert named == packages | locks | described
    assert all((ROOT / name).exists() for name in named)
    assert {rule for rule in rules[1:] if not rule.startswith("!")} == {"**/__pycache__", "**/*.egg-info"}


def test_image_has_the_locked_packages_that_run_and_none_that_develop() -> None:
    everything, running = locked("requirements.lock"), locked("requirements-run.lock")
    assert "requirements-run.lock" in SERVICES["serving"]["build"]["dockerfile_inline"]
    assert {name: everything.get(name) for name in running} == running
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {package(each) for each in project["dependencies"]} <= running.keys()
    both = {package(each) for each in project["dependencies"]}  # those that tests use with an extra
    assert running.keys().isdisjoint({package(each) for each in project["optional-dependencies"]["dev"]} - both)


def locked(name: str) -> dict[str, set[str]]:
    """The versions and hashes of each package in a lock file."""
    found: dict[str, set[str]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / name).read_text(encoding="utf-8")):
        found.setdefault(package(entry), set()).update(re.findall(r"==[^ ]+|sha256:\w+", entry))
    return found


def package(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower()  # type: ignore[index]
