"""The schema registry of this home, read from its topic `_schemas`: also while no collector runs, and without a JVM."""

from __future__ import annotations

import threading
import time

from infra.clients.kafka import librdkafka_config
from infra.settings import Settings
from infra.stack.addresses import addresses
from master_dataset.registry.errors import UnreadableTopic
from master_dataset.registry.snapshot import read_state
from master_dataset.registry.state import State
from serving_layer.errors import RegistryUnreadable

MAX_AGE_S = 2.0
"""How long a state, or the reason why there is none, is used again: each look reads the topic from its beginning."""


class RegistryReader:
    """The state of the registry. Threads share it; nobody changes what it gives."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._state: State | None = None
        self._why, self._status = "", 503
        self._end = 0.0

    def state(self) -> State:
        """The state, at most `MAX_AGE_S` old. RegistryUnreadable where there is none."""
        with self._lock:
            if time.monotonic() >= self._end:
                self._read()
                self._end = time.monotonic() + MAX_AGE_S
            if self._state is None:
                raise RegistryUnreadable(self._why, self._status)
            return self._state

    def _read(self) -> None:
        self._state = None
        if not self._settings.registry_enabled or self._settings.schema_registry_url:
            self._status = 404
            self._why = (
                "This home has no schema registry of its own: registry_enabled is off, or schema_registry_url names "
                "another one. Ask that one for its schemas."
            )
            return
        try:
            self._state = read_state(librdkafka_config(self._settings, addresses(self._settings).kafka))
        except UnreadableTopic as error:
            self._status, self._why = 503, f"The schema registry cannot be read. {error} Try again in some seconds."
