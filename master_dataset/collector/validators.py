"""The validators of all sources, each by the reading that is in force: a source may evolve while the collector runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import structlog

from infra.settings import Settings
from master_dataset.errors import MasterDatasetError
from master_dataset.events.envelope import compile_validator
from master_dataset.table.paths import table_path
from master_dataset.table.readings import reading_in_force
from views.source import Source

LOOK_EVERY_S = 1.0

log = structlog.get_logger()


class InForce(NamedTuple):
    """A source with the reading that is followed, and the validator of just that reading."""

    source: Source
    validate: Callable[[Any], None]


class Validators:
    """One for each source, by its name, and the source with that reading.

    One task looks for new readings; requests only use what it compiled.
    """

    def __init__(self, settings: Settings, sources: Iterable[Source]) -> None:
        self._settings = settings
        self._in_force = {source.name: InForce(source, compile_validator(source)) for source in sources}
        self._troubles: dict[str, str] = {}
        self.look()

    def __getitem__(self, source: str) -> Callable[[Any], None]:
        return self._in_force[source].validate

    def source(self, name: str) -> Source:
        """The source with the reading that is followed."""
        return self._in_force[name].source

    def in_force(self, name: str) -> InForce:
        """Both, of one reading: another one may be followed from the next call on."""
        return self._in_force[name]

    async def watch(self) -> None:
        """Look every second, in a thread."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Compile the validators of sources whose reading is another one now."""
        for name, (source, _validate) in self._in_force.items():
            try:
                now = reading_in_force(table_path(self._settings, name), source)
            except (MasterDatasetError, OSError) as error:  # the validator stays; the archiver says more about it
                if self._troubles.get(name) != str(error):
                    log.warning("reading_not_found", source=name, reason=str(error))
                self._troubles[name] = str(error)
                continue
            if now.reading != source.reading:
                self._in_force[name] = InForce(now, compile_validator(now))
                log.info("reading_followed", source=name, version=now.version)
