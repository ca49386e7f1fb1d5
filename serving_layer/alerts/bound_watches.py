"""The watches of one source, with the version of it that is in force: both follow a switch while the process runs.

A condition is compiled for the fields that records have. After a switch it is the condition that is declared by then,
if that is of the version in force, else the one before. One that does not fit these fields is not evaluated, and says
so, until a version comes that it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from infra.settings import Settings
from master_dataset.reading.event_reader import EventReader
from master_dataset.table.paths import table_path
from master_dataset.table.readings import reading_in_force
from master_dataset.writer_schemas.noted import NotedSchemas
from views.declarations import Declarations
from views.errors import AlertError
from views.source import Source
from views.watch import Watch

log = structlog.get_logger()


@dataclass
class BoundWatches:
    """What a watcher evaluates now. `look` follows the version in force."""

    settings: Settings
    source: Source
    """With the reading that is followed."""
    watches: tuple[Watch, ...]
    """As they are declared, whether they can be evaluated or not."""
    declared: Callable[[], Declarations]
    """What is declared now."""
    evaluated: tuple[Watch, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    """Watches that are not evaluated, with the reason."""
    _version: int | None = None

    def __post_init__(self) -> None:
        self._bind_reader(self.source)

    def look(self) -> bool:
        """Follow the version that is in force; whether anything changed."""
        now = reading_in_force(table_path(self.settings, self.source.name), self.source)
        if self._version is not None and now.reading == self.source.reading:
            return False
        if now.reading != self.source.reading:
            self._bind_reader(now)
        declared = self.declared()
        if self._version is not None and (found := declared.sources.get(now.name)) and found.version == now.version:
            self.watches = tuple(declared.watches.get(each.name, each) for each in self.watches)
        self._bind(now)
        return True

    def status(self) -> Mapping[str, str]:
        """What readers of a watch may know, for the hash in Redis."""
        return {f"where:{each.name}": each.where for each in self.watches} | {
            f"refused:{each.name}": self.refused.get(each.name, "") for each in self.watches
        }

    def _bind_reader(self, source: Source) -> None:
        self.reader = EventReader(source, NotedSchemas(self.settings, source))

    def _bind(self, now: Source) -> None:
        evaluated, refused = list[Watch](), dict[str, str]()
        for watch in self.watches:
            try:
                evaluated.append(replace(watch, source=now))
            except AlertError as error:
                refused[watch.name] = (
                    f"It is not evaluated while version {now.version} of source {now.name!r} is in force. {error}"
                )
        self.source, self.evaluated, self.refused, self._version = now, tuple(evaluated), refused, now.version
        log.info("watches_bound", source=now.name, version=now.version, refused=sorted(refused))
