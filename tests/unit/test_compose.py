"""docker-compose.yml: what can be said about it without a Docker engine."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import AuthenticationError, Redis, ResponseError

from infra.clients.redis import OWN_USER, redis_client
from infra.home import Home
from infra.settings import Settings, load_settings
from infra.stack.addresses import addresses
from infra.stack.kafka_broker import _server_properties
from infra.stack.ports import LOOPBACK
from infra.stack.redis_server import find_redis_server, redis_service
from infra.version import VERSION
from tests.conftest import wait_until
from torture.installation_settings import free_port

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PASSWORD = "5ecret" * 8
PLACES_OF_REDIS = {"bind", "port", "dir", "daemonize"}


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
    """Everything but where it listens and keeps its data, and that ours knows the password by its hash."""
    home = Home(tmp_path / "home")
    home.prepare()
    redis_service(home, 6379, Settings.model_fields["redis_max_memory_mb"].default).prepare()
    ours = (home.redis / "redis.conf").read_text().splitlines()
    theirs = redis_configuration().splitlines()
    users = [[line for line in lines if line.startswith("user ")] for lines in (ours, theirs)]
    assert [re.sub(r' #\w{64} | ">\w+" ', " PASSWORD ", line) for line in users[0]] == [
        line.replace(f' ">{PASSWORD}" ', " PASSWORD ") for line in users[1]
    ]
    values = [dict(line.split(" ", 1) for line in lines if not line.startswith("user ")) for lines in (ours, theirs)]
    assert values[1] == {name: value for name, value in values[0].items() if name not in PLACES_OF_REDIS}


def test_nobody_without_a_password_gets_a_redis_and_the_password_is_in_no_command_line() -> None:
    """Compose refuses to start where a required variable is not set."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{TIDEMARK_REDIS_PASSWORD\b(..)", text)) == {":?"}
    assert SERVICES["redis"]["command"] == ["redis-server", SERVICES["redis"]["configs"][0]["target"]]
    for name, service in SERVICES.items():
        assert "PASSWORD" not in str([service.get("command"), service["healthcheck"]]), name
    asking = [name for name, service in SERVICES.items() if "TIDEMARK_REDIS_URL" in service["environment"]]
    assert asking == ["serving"]
    for name in asking:
        assert filled_in(SERVICES[name]["environment"]["TIDEMARK_REDIS_PASSWORD"]) == PASSWORD


@pytest.mark.process
def test_containers_redis_refuses_strangers_and_its_check_sees_whether_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration and its check, run with the server that there is."""
    server, port = find_redis_server(), free_port()
    configuration = tmp_path / "redis.conf"
    configuration.write_text(f"{redis_configuration()}bind {LOOPBACK}\nport {port}\ndir {tmp_path}\n")
    monkeypatch.setenv("PATH", f"{server.parent}{os.pathsep}{os.environ['PATH']}")
    for name, value in SERVICES["redis"]["environment"].items():
        monkeypatch.setenv(name, filled_in(value))
    check = [word.replace("redis-cli", f"redis-cli -p {port}") for word in SERVICES["redis"]["healthcheck"]["test"][1:]]

    def is_healthy() -> bool:
        return subprocess.run(check, capture_output=True, timeout=20, check=False).returncode == 0

    process = subprocess.Popen([server, configuration], stdout=subprocess.DEVNULL)
    try:
        wait_until("the check of the container to succeed", is_healthy, deadline_s=20)
        with pytest.raises(AuthenticationError):
            Redis(host=LOOPBACK, port=port).ping()
        url = serving_environment()["TIDEMARK_REDIS_URL"].replace("@redis:6379", f"@{LOOPBACK}:{port}")
        settings = load_settings(home=tmp_path / "home", redis_url=url, redis_password=PASSWORD)
        with redis_client(settings, url) as client:
            assert client.set("tidemark:x", 1)
            with pytest.raises(ResponseError, match="permissions"):
                client.config_set("dir", "/")
        monkeypatch.setenv("REDISCLI_AUTH", "wrong")
        assert not is_healthy(), "the check has to be signed in"
        monkeypatch.setenv("REDISCLI_AUTH", PASSWORD)
    finally:
        process.terminate()
        process.wait(timeout=20)
    assert not is_healthy()


def test_the_addresses_in_its_heading_are_valid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    heading = (ROOT / "docker-compose.yml").read_text(encoding="utf-8").partition("\nname:")[0]
    for exported in re.findall(r"export (TIDEMARK_.*)", heading):
        for assignment in exported.split() if "$(" not in exported else [exported]:
            monkeypatch.setenv(*assignment.split("=", 1))
    settings = load_settings()
    assert settings.kafka_bootstrap == SERVICES["kafka"]["ports"][0].rpartition(":")[0]
    assert settings.redis_url == f"redis://{OWN_USER}@{SERVICES['redis']['ports'][0].rpartition(':')[0]}/0"
    assert settings.redis_password is not None


def test_serving_layer_gets_settings_that_there_are_and_listens_where_its_port_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = SERVICES["serving"]
    for name, value in serving_environment().items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.redis_password is not None
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


def filled_in(value: object) -> str:
    """A value of the file as Compose reads it."""
    return re.sub(r"\$\{TIDEMARK_REDIS_PASSWORD:\?[^}]*\}", PASSWORD, str(value))


def redis_configuration() -> str:
    (config,) = SERVICES["redis"]["configs"]
    return filled_in(COMPOSE["configs"][config["source"]]["content"])


def serving_environment() -> dict[str, str]:
    return {name: filled_in(value) for name, value in SERVICES["serving"]["environment"].items()}


def locked(name: str) -> dict[str, set[str]]:
    """The versions and hashes of each package in a lock file."""
    found: dict[str, set[str]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / name).read_text(encoding="utf-8")):
        found.setdefault(package(entry), set()).update(re.findall(r"==[^ ]+|sha256:\w+", entry))
    return found


def package(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower()  # type: ignore[index]
