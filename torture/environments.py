"""What an installation under torture changes in the environment of each service: addresses, failpoints, clocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from infra.failpoints import VARIABLE as FAILPOINTS
from infra.home import write_json
from torture.links import Link
from torture.processes import SERVICES

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For a JVM that is soon killed: the second compiler costs more than it ever gives back."""
BATCH = "batch"
ADDRESSES = {"kafka": "TIDEMARK_KAFKA_BOOTSTRAP", "redis": "TIDEMARK_REDIS_URL"}


class ServiceEnvironments:
    """Environments by service, and of `batch`: what is started beside the services.

    The supervisor under torture reads them from a file before each start (`torture/supervised.py`).
    """

    def __init__(
        self,
        path: Path,
        failpoints_dir: Path,
        links: Mapping[tuple[str, str], Link],
        address: Callable[[str, str], str],
        more: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._path, self._failpoints_dir, self._links, self._address = path, failpoints_dir, links, address
        self.more = {name: dict(variables) for name, variables in more.items()}
        """Further variables by service: faults change them, and `write` again."""

    def of(self, service: str) -> dict[str, str]:
        """The variables of one service that differ from the usual ones."""
        variables = {"JDK_JAVA_OPTIONS": os.environ.get("JDK_JAVA_OPTIONS", QUICK_JAVA)}
        if service not in ADDRESSES:
            variables[FAILPOINTS] = str(self._failpoints_dir)
        for server, variable in ADDRESSES.items():
            if (service, server) in self._links:
                variables[variable] = self._address(service, server)
        return {**variables, **self.more.get(service, {})}

    def write(self) -> Path:
        """Write the file for the supervisor: a service that is started from now on has its new environment."""
        environments = {service: self.of(service) for service in (*SERVICES, BATCH)}
        write_json(self._path, {"environments": environments, "listeners": self._listeners()})
        return self._path

    def _listeners(self) -> dict[str, dict[str, int]]:
        """The broker's listeners, one for each client behind a link."""
        return {
            client.upper(): {"port": link.port, "upstream_port": link.upstream_port}
            for (client, server), link in self._links.items()
            if server == "kafka"
        }
