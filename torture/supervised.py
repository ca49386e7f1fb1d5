"""The supervisor of an installation under torture: `python -m torture.supervised`, with the services bent to it.

It is the platform's own supervisor with the platform's own services. Only the environment of a service may be another
(through what it reaches Kafka and Redis, its failpoints, its clock), and the broker has a listener for each link.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra import up
from infra.home import Home, read_json
from infra.local_stack import build_services
from infra.ports import LOOPBACK
from infra.service import Service
from infra.settings import Settings

VARIABLE = "TORTURE_BENT"
"""Names the file that says what is another: `{"environments": {service: {...}}, "listeners": {name: {...}}}`."""


def bent_services(settings: Settings, bent: dict[str, Any]) -> list[Service]:
    """The services of a stack, with what `bent` changes."""
    services = []
    for service in build_services(settings):
        more = bent["environments"].get(service.name, {})
        made = replace(service, environment={**service.environment, **more})
        if service.name == "kafka" and bent["listeners"]:
            made = replace(made, prepare=_with_listeners(service, Home(settings.home), bent["listeners"]))
        services.append(made)
    return services


def _with_listeners(service: Service, home: Home, listeners: dict[str, dict[str, int]]) -> Any:
    config = home.kafka / "server.properties"

    def prepare() -> None:
        service.prepare()
        text = config.read_text(encoding="utf-8")
        for name, ports in listeners.items():
            text = _appended(text, "listeners", f"{name}://{LOOPBACK}:{ports['upstream_port']}")
            text = _appended(text, "advertised.listeners", f"{name}://{LOOPBACK}:{ports['port']}")
            text = _appended(text, "listener.security.protocol.map", f"{name}:PLAINTEXT")
        config.write_text(text + "inter.broker.listener.name=PLAINTEXT\n", encoding="utf-8")

    return prepare


def _appended(text: str, name: str, value: str) -> str:
    lines = text.splitlines()
    return "\n".join(f"{line},{value}" if line.startswith(f"{name}=") else line for line in lines) + "\n"


def main() -> int:
    """The program."""
    bent = read_json(Path(os.environ[VARIABLE])) or {"environments": {}, "listeners": {}}
    return up.main(lambda settings: bent_services(settings, bent))


if __name__ == "__main__":
    sys.exit(main())
