"""A complete running stack on a home of its own, into which faults are injected."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import structlog
from redis import Redis

from infra.clients.redis import redis_client
from infra.home import Home
from infra.rest.access_keys import add_key, read_keys, remove_key
from infra.settings import Settings, child_environment
from infra.stack import up
from infra.stack.addresses import Addresses, addresses, with_addresses
from torture import shop, supervised
from torture.commands import Commands, RunTurn
from torture.disks import Disks
from torture.environments import BATCH, ServiceEnvironments
from torture.installation_settings import free_port, torture_settings
from torture.links import Link
from torture.load import PlannedRecord
from torture.processes import Processes
from torture.proxy import Proxies, Proxy
from views.declarations import Declarations, declared_by
from views.source import Source

SOURCE = "shop"
OWN_KEY = "torture"

log = structlog.get_logger()


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
        for directory in (self.views_dir, self.failpoints_dir):
            directory.mkdir(parents=True, exist_ok=True)
        if views is not None:
            _copy_declarations(views, self.views_dir)
        self.source_name = source
        pairs = tuple(links)
        self.settings: Settings = torture_settings(folder, self.views_dir, pairs, overrides or {})
        self._declaring = threading.Lock()
        self.declared: Declarations = self.declare()
        self._source = self.declared.source(source)
        self.links = {pair: _link(pair, self.settings) for pair in pairs}
        self.proxies: dict[tuple[str, str], Proxy] = {}
        self._carrier: Proxies | None = None
        self.disks = Disks(self.settings.home, folder / "disks") if has_disks else None
        self.environments = ServiceEnvironments(
            folder / "bent.json", self.failpoints_dir, self.links, self.address, environments or {}
        )
        self.processes = Processes(self.settings, self.failpoints_dir)
        self.commands = Commands(folder, source, self._command_environment)
        self.secret = ""
        self.run_turn = RunTurn()
        """Held by whoever makes batch runs that must not meet others."""
        self.rush = 0.0
        """Minimum of records sent a second."""
        self.bulk: deque[PlannedRecord] = deque()
        """Records that a fault wants to have sent, straight to Kafka, as fast as Kafka takes them."""
        self.notes: list[str] = []
        """What faults report of the shot that is under way."""

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
        os.environ[supervised.VARIABLE] = str(self.environments.write())
        try:
            up.start_detached(self.settings, lambda _status: None, ("-m", "torture.supervised"))
        finally:
            del os.environ[supervised.VARIABLE]

    def stop(self) -> None:
        """Take it down, if it still runs. Stopped processes continue first: they could not end."""
        for name in self.processes.services:
            self.processes.signal(name, signal.SIGCONT)
        if up.read_status(self.settings) is not None:
            up.stop(self.settings, lambda _status: None)

    def throw_away(self) -> None:
        """Take it down with its proxies and disks. Of what is on its own disks, only logs and statuses stay."""
        with ExitStack() as around:  # each step runs even if another fails; disks go last
            if self.disks is not None:
                around.callback(self.disks.throw_away)
            if self._carrier is not None:
                around.callback(self._carrier.close)
                self._carrier = None
            if self.disks is not None:
                self._save(self.home.run, ".json")  # now: a supervisor that stops says so in them
                around.callback(self._save, self.home.logs)
            self.stop()

    def _save(self, origin: Path, ending: str = "") -> None:
        """Copy files off the disks, into the folder's `logs`: evidence. A disk without power is no reason to stop."""
        target = self.folder / "logs"
        try:
            target.mkdir(exist_ok=True)
            for path in sorted(origin.iterdir()):
                if path.is_file() and path.name.endswith(ending):
                    shutil.copy2(path, target / path.name)
        except OSError as error:
            log.warning("evidence_lost", folder=str(origin), reason=str(error))

    def _new_key(self) -> str:
        with suppress(Exception):
            remove_key(self.settings.home, OWN_KEY)
        return add_key(self.settings.home, OWN_KEY, ("produce", "consume", "query", "metrics", "admin"))

    # ---- where it is, and what it declares ----

    @property
    def home(self) -> Home:
        """The home folder."""
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
        """Read the declarations again: they may change under load."""
        with self._declaring:  # modules of a folder are loaded by one thread at a time
            self.declared = declared_by(self.settings)
        return self.declared

    @property
    def source(self) -> Source:
        """The source whose events are sent."""
        return self._source

    @property
    def source_topic(self) -> str:
        """The topic of that source."""
        return self.source.topic

    # ---- clients of it ----

    @property
    def admin(self) -> tuple[str, str]:
        """Name and secret of a key that may do everything."""
        return (OWN_KEY if OWN_KEY in read_keys(self.settings.home) else "admin"), self.secret

    def client(self, server: str, timeout_s: float = 30) -> httpx.Client:
        """A client of the collector or the serving layer; the caller closes it."""
        return httpx.Client(base_url=self.address("client", server), auth=self.admin, timeout=timeout_s)

    def redis(self, timeout_s: float = 10) -> Redis:
        """Redis itself, with nothing between."""
        return redis_client(self.settings, self.addresses.redis, timeout_s)

    def _command_environment(self) -> dict[str, str]:
        addressed = {"kafka_bootstrap": self.address(BATCH, "kafka"), "redis_url": self.address(BATCH, "redis")}
        return {
            **child_environment(with_addresses(self.settings).model_copy(update=addressed)),
            **self.environments.of(BATCH),
        }


def _copy_declarations(origin: Path, target: Path) -> None:
    if origin.is_dir():
        shutil.copytree(origin, target, dirs_exist_ok=True)
    else:
        shutil.copy(origin, target / "declared.py")


def _link(pair: tuple[str, str], settings: Settings) -> Link:
    client, server = pair
    upstream = free_port() if server == "kafka" else int(getattr(settings, f"{server}_port"))
    return Link(client, server, free_port(), upstream)


def _port_of(address: str) -> int:
    return int(address.removesuffix("/0").rpartition(":")[2])
