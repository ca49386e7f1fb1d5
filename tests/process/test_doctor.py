"""`doctor`: every check has its line, and every failure its fix."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

import pytest

from infra.home import Home, write_json
from infra.settings import Settings, load_settings
from infra.stack import doctor
from infra.stack.doctor import Finding, Verdict, examine
from infra.stack.ports import LOOPBACK


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home")


def findings(settings: Settings) -> dict[str, Finding]:
    return {finding.what: finding for finding in examine(settings)}


def test_everything_that_the_issue_names_is_examined(settings: Settings) -> None:
    found = findings(settings)
    assert list(found) == [
        "Python",
        "Java",
        "memory",
        "home",
        "disk",
        "shared files",
        "clock",
        "jars",
        "ports",
        "broker",
        "Redis",
    ]
    assert all(finding.found for finding in found.values())


def test_every_failure_and_warning_has_a_fix(tmp_path: Path) -> None:
    (tmp_path / "other.txt").touch()
    with socket.create_server((LOOPBACK, 0)) as server:
        settings = load_settings(
            home=tmp_path,
            java_home=tmp_path / "nowhere",
            jars_dir=tmp_path / "jars",
            min_free_disk_mb=99_999_999_999,
            redis_port=server.getsockname()[1],
            kafka_bootstrap="127.0.0.1:1",
        )
        found = findings(settings)
    bad = {what for what, finding in found.items() if finding.verdict is Verdict.FAILED}
    assert bad == {"Java", "home", "disk", "jars", "ports", "broker"}
    for what in bad:
        assert found[what].fix, what
    assert "Install Java 17 or 21" in found["Java"].fix
    assert "tidemark jars" in found["jars"].fix
    assert f"process {os.getpid()}" in found["ports"].found
    assert "TIDEMARK_REDIS_PORT" in found["ports"].fix


def test_folder_where_two_creators_win_is_found(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("home", "master"):
        (tmp_path / name).mkdir()
    shared = load_settings(home=settings.home, master_dir=tmp_path / "master")
    assert findings(shared)["shared files"].found == f"one creator wins in {shared.home}, {shared.master_dir}"
    monkeypatch.setattr(os, "link", lambda old, new: Path(new).write_bytes(Path(old).read_bytes()))
    monkeypatch.setattr(Path, "is_file", lambda _path: False)
    found = findings(shared)["shared files"]
    assert found.verdict is Verdict.FAILED
    assert "of 4 creators of one object win" in found.found
    assert found.fix
    assert [*(tmp_path / "master").iterdir()] == [], "nothing is left behind"


def test_untested_java_is_a_warning(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "bin" / "java").touch()
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="26"')
    finding = findings(settings.model_copy(update={"java_home": tmp_path / "jdk"}))["Java"]
    assert finding.verdict is Verdict.WARNING
    assert "17 and 21" in finding.fix


def test_little_memory_is_a_warning(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NEEDED_MEMORY_MB", 10**9)
    assert findings(settings)["memory"].verdict is Verdict.WARNING


def test_clock_before_the_installation_is_wrong(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.time, "time", lambda: 0.0)
    assert findings(settings)["clock"].verdict is Verdict.FAILED


def test_remembered_port_that_another_process_holds_is_found(settings: Settings) -> None:
    home = Home(settings.home)
    home.prepare()
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        write_json(home.ports_file, {"kafka_port": port})
        finding = findings(settings)["ports"]
    assert finding.verdict is Verdict.FAILED
    assert f"{port} (kafka_port) is taken by" in finding.found


def account(name: str, uid: int, shell: str = "/bin/bash") -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, uid, "", f"/home/{name}", shell))


ADA, BOB = account("ada", 1000), account("bob", 1001, "")
"""An empty shell is /bin/sh."""
MACHINE = [account("root", 0), account("www-data", 33), account("nobody", 65534, "/usr/sbin/nologin")]
DOOR = account("door", 1002, "/bin/false")


@pytest.mark.parametrize(
    ("uid", "people", "others"),
    [
        (1000, [], ""),
        (1000, [ADA, DOOR], ""),
        (1000, [ADA, BOB], "bob"),
        (0, [ADA], "ada"),
        (0, [BOB, ADA, account("cem", 1003), account("dee", 1004)], "ada, bob, cem, …"),
    ],
)
def test_broker_that_other_people_can_use_is_a_warning(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, uid: int, people: list[pwd.struct_passwd], others: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(pwd, "getpwall", lambda: [*MACHINE, *people])
    finding = findings(settings)["broker"]
    assert "kafka_auth" in finding.found + finding.fix
    assert finding.verdict is (Verdict.WARNING if others else Verdict.OK)
    if others:
        assert f"every user of this machine, such as {others}, can read and write its topics" in finding.found
        assert "\n" not in finding.found
    guarded = findings(settings.model_copy(update={"kafka_auth": True}))["broker"]
    assert guarded.verdict is Verdict.OK


@pytest.mark.parametrize(("release", "verdict"), [("6.2.14", Verdict.WARNING), ("7.2.11", Verdict.OK)])
def test_redis_with_known_holes_is_a_warning_that_says_what_to_install(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, verdict: Verdict
) -> None:
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\necho 'Redis server v={release} sha=00000000:0'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    finding = findings(settings)["Redis"]
    assert finding.verdict is verdict
    if verdict is Verdict.WARNING:
        assert f"it is Redis {release}, which has CVE-2025-49844" in finding.found
        assert "6.2.20, 7.2.11, 7.4.6, 8.0.4 or 8.2.2" in finding.fix


def test_password_of_an_unreachable_cluster_is_not_told() -> None:
    settings = load_settings(
        kafka_bootstrap="127.0.0.1:1",
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_username="ada",
        kafka_password="hunter2",
        redis_url="redis://127.0.0.1:1/0",
        redis_password="hunter2",
    )
    found = findings(settings)
    assert found["broker"].verdict is found["Redis"].verdict is Verdict.FAILED
    assert found["broker"].found == "no answer from 127.0.0.1:1: Connection refused"
    assert "hunter2" not in str(found)
