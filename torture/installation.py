"""A whole running stack on a home of its own, made to be hurt."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
import psutil
import structlog
from redis import Redis

from infra.failpoints import STOP
from infra.failpoints import VARIABLE as FAILPOINTS
from infra.home import Home, write_json
from infra.rest.access_keys import add_key, remove_key
from infra.settings import Settings, child_environment, load_settings
from infra.stack import up
from infra.stack.addresses import Addresses, addresses
from infra.stack.ports import is_free
from torture import shop, supervised
from torture.disks import Disks
from torture.errors import NotInTime, TortureError
from torture.links import Link
from torture.proxy import Proxies, Proxy
from torture.wait import wait_for
from views.declarations import Declarations, declared_by
from views.sample_events import START
from views.source import Source

SERVICES = ("redis", "kafka", "collector", "archiver", "speed", "serving", "alerts")
BATCH_TIMEOUT_S = 480.0
YIELDS_S = 20.0
"""A run that has gone on for longer is waited for."""
READY_S = 180.0
ROOM_OF_LOAD_S = 5 * 24 * 3600
"""Events come two days late, and a clock may be two days ahead."""
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""A JVM that is soon killed: compiling its methods to the utmost costs more than it ever gives back."""
PORTS = (15_000, 32_000)
"""Below those that Linux gives to clients."""
SOURCE = "shop"
PLAIN: Mapping[str, Any] = {
    "with_examples": False,
    "archiver_enabled": True,
    "speed_enabled": True,
    "serving_enabled": True,
    "alerts_enabled": True,
    "scheduler_enabled": False,  # the programme starts runs itself, and knows when; a fault has one of its own
    "speed_grace_s": 2,
    "batch_wait_s": 60,
    "archive_interval_s": 1,
    "speed_dedup_horizon_s": 4 * 24 * 3600,  # copies come an hour later, and clocks are set wrong meanwhile
    "start_timeout_s": 180,
    "restart_backoff_max_s": 1,  # what is killed again and again is not to be waited for
    "min_free_disk_mb": 64,
}
OF_PLACE = ("home", "views_dir", "ports_file", "master_dir", "batch_dir", "kafka_", "redis_", "spark_master", "access_")
"""Settings (or what their names begin with) that say where things are, not what is computed."""
OF_MACHINE = ("java_home", "jars_dir", "ivy_settings", "ports_file", "spark_driver_memory")
"""What a file or a variable may say of the machine. Nothing else is taken from there, or each run would be another."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Ended:
    """How a batch run ended."""

    code: int
    said: str


class RunTurn:
    """Whose turn it is to make batch runs. A fault does not wait long for a run that is made without need."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._yielding: tuple[float, subprocess.Popen[str]] | None = None

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            since, run = self._yielding or (0.0, None)
            if run is not None and run.poll() is None and time.monotonic() - since < YIELDS_S:
                end_group(run)
            self._lock.acquire()

    def __exit__(self, *_why: object) -> None:
        self._yielding = None
        self._lock.release()

    def locked(self) -> bool:
        """Whether it is somebody's."""
        return self._lock.locked()

    def yields(self, run: subprocess.Popen[str]) -> None:
        """Whoever has the turn gives it away: for a while from now on, this run is killed for whoever wants it."""
        self._yielding = time.monotonic(), run


class Installation:
    """Kafka, Redis and all layers, supervised, with the views under torture declared.

    `links` are pairs with a proxy between them; `environments` are more variables for the process of a service (or of
    `batch`), also for one that is started again; with `has_disks` each data folder is a disk of its own.
    """

    def __init__(
        self,
        folder: Path,
        *,
        overrides: Mapping[str, Any] | None = None,
        links: Iterable[tuple[str, str]] = (),
        environments: Mapping[str, Mapping[str, str]] | None = None,
        views: Path | None = Path(shop.__file__),
        source: str = SOURCE,
        has_disks: bool = False,
    ) -> None:
        self.folder = folder
        self.views_dir = folder / "views"
        self.failpoints_dir = folder / "failpoints"
        for made in (self.views_dir, self.failpoints_dir):
            made.mkdir(parents=True, exist_ok=True)
        if views is not None:
            _copy_declarations(views, self.views_dir)
        self.source_name = source
        pairs = tuple(links)
        usual = {**_unset(), **PLAIN, **_ports(pairs), "alerts_late_s": _age_of_load_s(), "views_dir": self.views_dir}
        self.settings: Settings = load_settings(**{**usual, **(overrides or {})}, home=folder / "home")
        self._declaring = threading.Lock()
        self.declared: Declarations = self.declare()
        self._source = self.declared.source(source)
        self.links = {pair: _link(pair, self.settings) for pair in pairs}
        self.proxies: dict[tuple[str, str], Proxy] = {}
        self._carrier: Proxies | None = None
        self.disks = Disks(self.settings.home, folder / "disks") if has_disks else None
        self.environments = {name: dict(more) for name, more in (environments or {}).items()}
        self.secret = ""
        self.run_turn = RunTurn()
        """Held by whoever makes batch runs that are not to meet others."""
        self.rush = 0.0
        """Records a second that are sent at least."""
        self.notes: list[str] = []
        """What faults have to say of the shot that is under way."""

    # ---- its life ----

    def start(self) -> None:
        """Bring everything up; returns when all of it is ready."""
        if self.disks is not None:
            self.disks.mount()
        if self._carrier is None:
            self._carrier = Proxies()
            self.proxies = {
                pair: self._carrier.add("-".join(pair), link.upstream_port, link.port)
                for pair, link in self.links.items()
            }
        up.check_and_fetch(self.settings)
        self.secret = up.first_access_key(self.settings) or self.secret or self._new_key()
        bent = self.bend()
        os.environ[supervised.VARIABLE] = str(bent)
        try:
            up.start_detached(self.settings, lambda _status: None, ("-m", "torture.supervised"))
        finally:
            del os.environ[supervised.VARIABLE]

    def stop(self) -> None:
        """Take it down, if it still runs. Stopped processes are let go on first: they could not end."""
        for name in self.services:
            self.signal(name, signal.SIGCONT)
        if up.read_status(self.settings) is not None:
            up.stop(self.settings, lambda _status: None)

    def throw_away(self) -> None:
        """Take it down with what stands around it. What is on disks of its own is gone then, but for copies of logs."""
        with ExitStack() as around:  # whatever fails of it, the rest goes all the same; disks after what is on them
            if self.disks is not None:
                around.callback(self.disks.throw_away)
            if self._carrier is not None:
                around.callback(self._carrier.close)
                self._carrier = None
            if self.disks is not None:
                self._keep(self.home.run, ".json")  # now: a supervisor that stops says so in them
                around.callback(self._keep, self.home.logs)
            self.stop()

    def _keep(self, origin: Path, ending: str = "") -> None:
        """Copy files off the disks, into the folder's `logs`: evidence. A disk without power is no reason to stop."""
        kept = self.folder / "logs"
        try:
            kept.mkdir(exist_ok=True)
            for path in sorted(origin.iterdir()):
                if path.is_file() and path.name.endswith(ending):
                    shutil.copy2(path, kept / path.name)
        except OSError as error:
            log.warning("not_kept", place=str(origin), why=str(error))

    def bend(self) -> Path:
        """Say anew what is another than usual: a service that is started from now on has its new environment."""
        bent = self.folder / "bent.json"
        write_json(bent, {"environments": self._environments(), "listeners": self._listeners()})
        return bent

    def _new_key(self) -> str:
        with suppress(Exception):
            remove_key(self.settings.home, "torture")
        return add_key(self.settings.home, "torture", ("produce", "consume", "query", "metrics", "admin"))

    # ---- where it is ----

    @property
    def home(self) -> Home:
        """Its folder."""
        return Home(self.settings.home)

    @property
    def addresses(self) -> Addresses:
        """Where everything is, without anything between."""
        return addresses(self.settings)

    def address(self, client: str, server: str) -> str:
        """Where `client` finds `server`: behind the link of the two, if there is one."""
        direct: str = getattr(self.addresses, server)
        link = self.links.get((client, server))
        if link is None:
            return direct
        port = _port_of(direct)
        return direct.replace(f":{port}", f":{link.port}", 1)

    def declare(self) -> Declarations:
        """Read the declarations anew: they may be changed under load."""
        with self._declaring:  # modules of a folder are loaded by one thread at a time
            self.declared = declared_by(self.settings)
        return self.declared

    @property
    def source(self) -> Source:
        """The source whose events are sent."""
        return self._source

    @property
    def source_topic(self) -> str:
        """Where they go."""
        return self.source.topic

    @property
    def admin(self) -> tuple[str, str]:
        """Name and secret of a key that may do everything."""
        return ("admin" if not self._has_own_key() else "torture"), self.secret

    def _has_own_key(self) -> bool:
        from infra.rest.access_keys import read_keys

        return "torture" in read_keys(self.settings.home)

    def client(self, server: str, timeout_s: float = 30) -> httpx.Client:
        """Asks the collector or the serving layer; the caller closes it."""
        return httpx.Client(base_url=self.address("client", server), auth=self.admin, timeout=timeout_s)

    def redis(self, timeout_s: float = 10) -> Redis:
        """Redis itself, with nothing between."""
        return Redis.from_url(self.addresses.redis, socket_timeout=timeout_s)

    # ---- its processes ----

    def status(self) -> dict[str, Any]:
        """What its supervisor says now."""
        found = up.read_status(self.settings)
        if found is None:
            raise TortureError(f"Nothing runs on {self.settings.home}: its supervisor ended.")
        return found

    @property
    def services(self) -> tuple[str, ...]:
        """Those that it has."""
        return tuple(name for name in SERVICES if getattr(self.settings, f"{name}_enabled", True))

    def pid(self, service: str) -> int | None:
        """The process of a service now; None while it is being started again."""
        found = next((each for each in self.status()["services"] if each["name"] == service), None)
        if found is None:
            raise TortureError(f"{service} is no part of this installation")
        return int(found["pid"]) if found["pid"] else None

    def pids(self, service: str) -> list[int]:
        """The process of a service and all below it (Spark's JVM, say)."""
        pid = self.pid(service)
        if pid is None:
            return []
        with suppress(psutil.Error):
            return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        return []

    def signal(self, service: str, number: signal.Signals) -> bool:
        """Send a signal to every process of a service; False: there was none."""
        with suppress(TortureError):
            pids = self.pids(service)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            return bool(pids)
        return False

    def arm_stop(self, at: str) -> Path:
        """Let the process that next comes to the failpoint `at` stand still there; gives the file that goes then."""
        armed = self.failpoints_dir / at
        new = self.failpoints_dir / f"{at}.new"
        new.write_text(STOP, encoding="utf-8")
        new.replace(armed)  # at once: an empty file would kill
        return armed

    def stand_still(self, service: str, at: str, within_s: float = 25.0) -> None:
        """Stop every process of a service; where it comes to the failpoint `at` in time, at that place."""
        armed = self.arm_stop(at)
        with suppress(NotInTime):
            wait_for(f"{service} to come to {at}", lambda: not armed.exists(), within_s)
        armed.unlink(missing_ok=True)
        self.signal(service, signal.SIGSTOP)

    def kill(self, service: str) -> bool:
        """End its process as kill -9 does; what is below it ends with it."""
        pid = self.pid(service)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    def is_ready(self, services: Iterable[str] = SERVICES) -> bool:
        """Whether these are ready, each with everything that it does."""
        wanted = set(services)
        with suppress(TortureError):
            found = [each for each in self.status()["services"] if each["name"] in wanted]
            return all(each["state"] == "ready" and not each["message"] for each in found)
        return False

    def is_up(self) -> bool:
        """Whether every process is ready, whatever it has to say beside that."""
        with suppress(TortureError):
            return all(each["state"] == "ready" for each in self.status()["services"])
        return False

    def wait_ready(self, services: Iterable[str] = SERVICES, deadline_s: float = READY_S) -> None:
        """Until these are ready again, by themselves."""
        wanted = tuple(services)
        wait_for(f"{', '.join(wanted)} to be ready", lambda: self.is_ready(wanted), deadline_s, every_s=0.2)

    # ---- batch runs ----

    def spawn(self, *arguments: str, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """`tidemark <arguments>` in a process of its own, with the settings and links of a batch run."""
        return self._spawn("tidemark", *arguments, output=subprocess.PIPE, more=more)

    def spawn_module(self, module: str, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """A module of ours as a program, likewise. What it says goes into a file beside the home."""
        with (self.folder / f"{module}.log").open("a", encoding="utf-8") as output:
            return self._spawn(module, output=output, more=more)

    def _spawn(
        self, module: str, *arguments: str, output: int | IO[str], more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        actual = self.settings.model_copy(
            update={"kafka_bootstrap": self.address("batch", "kafka"), "redis_url": self.address("batch", "redis")}
        )
        environment = {**child_environment(actual), **self._environments().get("batch", {}), **(more or {})}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def batch_run(self, *options: str, timeout_s: float = BATCH_TIMEOUT_S) -> Ended:
        """A batch run of the source as a process of its own; one that does not end is killed."""
        process = self.spawn("batch", "run", "--source", self.source_name, *options)
        said = said_by(process, timeout_s)
        return Ended(process.returncode, said)

    # ---- what is bent ----

    def _environments(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for name in (*SERVICES, "batch"):
            more = {"JDK_JAVA_OPTIONS": os.environ.get("JDK_JAVA_OPTIONS", QUICK_JAVA)}
            if name not in ("redis", "kafka"):
                more[FAILPOINTS] = str(self.failpoints_dir)
            if (name, "kafka") in self.links:
                more["TIDEMARK_KAFKA_BOOTSTRAP"] = self.address(name, "kafka")
            if (name, "redis") in self.links:
                more["TIDEMARK_REDIS_URL"] = self.address(name, "redis")
            found[name] = {**more, **self.environments.get(name, {})}
        return found

    def _listeners(self) -> dict[str, dict[str, int]]:
        return {
            client.upper(): {"port": link.port, "upstream_port": link.upstream_port}
            for (client, server), link in self.links.items()
            if server == "kafka"
        }


def said_by(process: subprocess.Popen[str], timeout_s: float) -> str:
    """The last that a process has to say; one that does not end is killed, with all of its group."""
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end_group(process)
        said, _ = process.communicate()
        said += f"\nkilled after {timeout_s:g} s"
    return said[-2000:]


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a group of its own, and all of the group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    """A port that nobody uses now, and that no client is given by chance: a broker that is started again needs it."""
    while not is_free(port := random.randrange(*PORTS)):  # noqa: S311  no secret
        pass
    return port


def _copy_declarations(origin: Path, target: Path) -> None:
    if origin.is_dir():
        shutil.copytree(origin, target, dirs_exist_ok=True)
    else:
        shutil.copy(origin, target / "declared.py")


def is_of_place(name: str) -> bool:
    """Whether a setting says where things are: an installation under torture is always at a place of its own."""
    return name.startswith(OF_PLACE) or name.endswith(("_port", "_host", "_file", "_enabled"))


def _unset() -> dict[str, Any]:
    """Defaults, as if nobody had set anything: what is hurt is ours, whatever cluster a file or a variable names."""
    names = [name for name in Settings.model_fields if name not in ("home", *OF_MACHINE)]
    return {name: Settings.model_fields[name].get_default() for name in names}


def _age_of_load_s() -> float:
    """How late alerts look at events: those of the load are of some days in March, whatever day it is."""
    return time.time() - START.timestamp() + ROOM_OF_LOAD_S


def _ports(pairs: tuple[tuple[str, str], ...]) -> dict[str, int]:
    """Ports that must be known before anything starts, because links lead to them."""
    return {f"{server}_port": free_port() for server in sorted({server for _, server in pairs} - {"kafka"})}


def _link(pair: tuple[str, str], settings: Settings) -> Link:
    client, server = pair
    upstream = free_port() if server == "kafka" else int(getattr(settings, f"{server}_port"))
    return Link(client, server, free_port(), upstream)


def _port_of(address: str) -> int:
    return int(address.removesuffix("/0").rpartition(":")[2])
