"""The supervisor of an installation under torture: `python -m torture.supervised`, with the services bent to it.

It is the platform's own supervisor with the platform's own services. Only the environment of a service may be another
(through what it reaches Kafka and Redis, its failpoints, its clock), and the broker has a listener for each link.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra.home import Home, read_json
from infra.secret_files import write_private
from infra.settings import Settings
from infra.stack import up
from infra.stack.kafka_access import listener_properties
from infra.stack.ports import LOOPBACK
from infra.stack.service import Service
from infra.stack.services import build_services

VARIABLE = "TORTURE_BENT"
"""Names the file that says what is another: `{"environments": {service: {...}}, "listeners": {name: {...}}}`."""


class LiveEnvironment(Mapping[str, str]):
    """The environment of a service with what the file says at the moment when it is asked: before each start."""

    def __init__(self, usual: Mapping[str, str], service: str, bent_file: Path) -> None:
        self._usual, self._service, self._file = usual, service, bent_file

    def _now(self) -> dict[str, str]:
        bent = read_json(self._file) or {"environments": {}}
        return {**self._usual, **bent["environments"].get(self._service, {})}

    def __getitem__(self, name: str) -> str:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())


def bent_services(settings: Settings, bent_file: Path) -> list[Service]:
    """The services of a stack, with what the file changes."""
    bent: dict[str, Any] = read_json(bent_file) or {"environments": {}, "listeners": {}}
    services = []
    for service in build_services(settings):
        made = replace(service, environment=LiveEnvironment(service.environment, service.name, bent_file))
        if service.name == "kafka" and bent["listeners"]:
            made = replace(made, prepare=_with_listeners(service, settings, bent["listeners"]))
        services.append(made)
    return services


def _with_listeners(service: Service, settings: Settings, listeners: dict[str, dict[str, int]]) -> Any:
    config = Home(settings.home).kafka / "server.properties"
    protocol = "SASL_PLAINTEXT" if settings.kafka_auth else "PLAINTEXT"

    def prepare() -> None:
        service.prepare()
        text = config.read_text(encoding="utf-8")
        for name, ports in listeners.items():
            text = _appended(text, "listeners", f"{name}://{LOOPBACK}:{ports['upstream_port']}")
            text = _appended(text, "advertised.listeners", f"{name}://{LOOPBACK}:{ports['port']}")
            text = _appended(text, "listener.security.protocol.map", f"{name}:{protocol}")
            if settings.kafka_auth:
                text += "".join(f"{key}={value}\n" for key, value in listener_properties(name).items())
        if not settings.kafka_auth:
            text += "inter.broker.listener.name=PLAINTEXT\n"
        write_private(config, text)

    return prepare


def _appended(text: str, name: str, value: str) -> str:
    lines = text.splitlines()
    return "\n".join(f"{line},{value}" if line.startswith(f"{name}=") else line for line in lines) + "\n"


def main() -> int:
    """Run the supervisor."""
    bent_file = Path(os.environ[VARIABLE])
    return up.main(lambda settings: bent_services(settings, bent_file))


if __name__ == "__main__":
    sys.exit(main())
