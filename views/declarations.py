"""Load what was declared: the examples in views/catalog, and the user's own folder."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar

from views import catalog
from views.alert import Alert
from views.errors import DeclarationError
from views.feed import Feed
from views.source import Source, kafka_name
from views.view import View
from views.watch import Watch

DEFAULT_EXAMPLES = "web"
ALL_EXAMPLES = "all"
PACKAGE = "declared_views"
"""The package name of the user's folder: a file there imports another with `from .shop import shop`."""

ALERTS_TOPIC = "tidemark.alerts"
"""Where alert notifications go."""

Declaration = Source | View | Alert | Watch | Feed
Declared = TypeVar("Declared", Source, View, Alert, Watch, Feed)


class DeclarationSettings(Protocol):
    """The settings that say what is declared."""

    @property
    def views_dir(self) -> Path | None:
        """The user's own folder."""

    @property
    def with_examples(self) -> bool:
        """Whether any example runs."""

    @property
    def examples(self) -> str:
        """Which: sources of the catalog, separated by commas, or `all`."""


@dataclass(frozen=True)
class Declarations:
    """Everything declared, by name."""

    sources: dict[str, Source]
    views: dict[str, View] = field(default_factory=dict)
    alerts: dict[str, Alert] = field(default_factory=dict)
    watches: dict[str, Watch] = field(default_factory=dict)
    feeds: dict[str, Feed] = field(default_factory=dict)

    def source(self, name: str) -> Source:
        """One source, or a DeclarationError that names those there are."""
        if name not in self.sources:
            raise DeclarationError(f"There is no source {name!r}. There are: {', '.join(sorted(self.sources))}.")
        return self.sources[name]

    def source_of_topic(self, topic: str) -> Source | None:
        """The source whose records or dead letters a topic holds, if any."""
        return next((each for each in self.sources.values() if topic in (each.topic, each.dead_topic)), None)

    def view(self, name: str) -> View:
        """One view, or a DeclarationError that names those there are."""
        if name not in self.views:
            raise DeclarationError(f"There is no view {name!r}. There are: {', '.join(sorted(self.views)) or 'none'}.")
        return self.views[name]

    def views_of(self, source_name: str) -> list[View]:
        """The views of a source, in the order of their names."""
        return [view for _, view in sorted(self.views.items()) if view.source.name == source_name]

    def alerts_of(self, source_name: str) -> list[Alert]:
        """The alerts on views of a source, in the order of their names."""
        return [alert for _, alert in sorted(self.alerts.items()) if alert.view.source.name == source_name]

    def feeds_of(self, source_name: str) -> list[Feed]:
        """The feeds of views of a source, in the order of their names."""
        return [feed for _, feed in sorted(self.feeds.items()) if feed.view.source.name == source_name]

    def followed_views(self, source_name: str) -> frozenset[str]:
        """Names of the views of a source whose changes somebody follows: alerts and feeds."""
        return frozenset(alert.view.name for alert in self.alerts_of(source_name)) | frozenset(
            feed.view.name for feed in self.feeds_of(source_name)
        )


def declared_by(settings: DeclarationSettings) -> Declarations:
    """What an installation runs. Every process loads it here, so that all see the same declarations."""
    return load_declarations(settings.views_dir, with_catalog=settings.with_examples, examples=settings.examples)


def load_declarations(
    folder: Path | None = None, *, with_catalog: bool = True, examples: str = DEFAULT_EXAMPLES
) -> Declarations:
    """The chosen sources of the catalog with their views, and what every *.py file in `folder` declares.

    A view brings its source with it: the user's own view of an example's source makes that source run.
    """
    found = [
        *(_chosen(list(_declared_in(_catalog_modules())), examples) if with_catalog else ()),
        *(_declared_in(_folder_modules(folder)) if folder else ()),
    ]
    sources = _by_name("source", [(file, each) for file, each in found if isinstance(each, Source)])
    views = _by_name("view", [(file, each) for file, each in found if isinstance(each, View)])
    alerts = _by_name("alert", [(file, each) for file, each in found if isinstance(each, Alert)])
    watches = _by_name("watch", [(file, each) for file, each in found if isinstance(each, Watch)])
    feeds = _by_name("feed", [(file, each) for file, each in found if isinstance(each, Feed)])
    _check_topics(sources.values())
    _check_written(sources.values(), feeds.values())
    return Declarations(sources, views, alerts, watches, feeds)


def _declared_in(modules: Iterable[ModuleType]) -> Iterator[tuple[str, Declaration]]:
    """Each declaration with its file, after the declarations that it depends on."""
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Declaration):
                yield from ((str(module.__file__), each) for each in _with_ground(value))


def _with_ground(value: Declaration) -> list[Declaration]:
    """A declaration after its dependencies: an alert after its view, a view after its source."""
    if isinstance(value, Source):
        return [value]
    ground = value.view if isinstance(value, Alert | Feed) else value.source
    return [*_with_ground(ground), value]


def _chosen(found: list[tuple[str, Declaration]], examples: str) -> Iterator[tuple[str, Declaration]]:
    there = sorted({each.name for _, each in found if isinstance(each, Source)})
    names = {name.strip() for name in examples.split(",")} - {""}
    for name in sorted(names - {ALL_EXAMPLES, *there}):
        raise DeclarationError(
            f"examples names {name!r}, which is not a source of the catalog. There are: {', '.join(there)}; "
            f"or {ALL_EXAMPLES!r}."
        )
    for file, each in found:
        source = _with_ground(each)[0]
        if ALL_EXAMPLES in names or source.name in names:
            yield file, each


def _by_name(kind: str, found: Iterable[tuple[str, Declared]]) -> dict[str, Declared]:
    by_name: dict[str, Declared] = {}
    files: dict[str, str] = {}
    for file, each in found:
        known = by_name.setdefault(each.name, each)
        first_file = files.setdefault(each.name, file)
        if known != each:
            raise DeclarationError(
                f"{file}: {kind} {each.name!r} is declared twice, differently. The other one is in {first_file}. "
                "Rename one of them."
            )
    return by_name


def _check_topics(sources: Iterable[Source]) -> None:
    """Refuse sources whose records or dead letters would share a topic."""
    by_topic: dict[str, Source] = {}
    for source in sources:
        other = by_topic.setdefault(kafka_name(source.topic), source)
        if other is not source:
            raise DeclarationError(
                f"The sources {other.name!r} and {source.name!r} both read the topic {source.topic!r}"
                f"{'' if other.topic == source.topic else _same_name(other.topic)}. Give one of them another topic."
            )
    for source in sources:
        reader = by_topic.get(kafka_name(source.dead_topic))
        if reader is not None:
            raise DeclarationError(
                f"Source {reader.name!r}: its topic {reader.topic!r} is the dead-letter topic of source {source.name!r}"
                f"{'' if reader.topic == source.dead_topic else _same_name(source.dead_topic)}. Choose another topic."
            )


def _check_written(sources: Iterable[Source], feeds: Iterable[Feed]) -> None:
    """Refuse topics that Tidemark writes and that something else already uses."""
    taken = {kafka_name(ALERTS_TOPIC): "where alert notifications go"}
    for source in sources:
        if kafka_name(source.topic) in taken:
            raise DeclarationError(
                f"Source {source.name!r}: its topic {source.topic!r} is the topic of alert notifications."
            )
        taken |= {kafka_name(topic): f"of source {source.name!r}" for topic in (source.topic, source.dead_topic)}
    for feed in feeds:
        if kafka_name(feed.topic) in taken:
            raise DeclarationError(
                f"Feed {feed.name!r}: the topic {feed.topic!r} is {taken[kafka_name(feed.topic)]}. Choose another one."
            )
        taken[kafka_name(feed.topic)] = f"that of feed {feed.name!r}"


def _same_name(topic: str) -> str:
    return f" (for Kafka the same name as {topic!r})"


def _catalog_modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(catalog.__path__):
        yield importlib.import_module(f"{catalog.__name__}.{found.name}")


def _folder_modules(folder: Path) -> list[ModuleType]:
    if not folder.is_dir():
        raise DeclarationError(f"views_dir is {str(folder)!r}, which is not a folder.")
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]  # of a folder that was loaded before
    package = sys.modules[PACKAGE] = ModuleType(PACKAGE)
    package.__path__ = [str(folder)]
    importlib.invalidate_caches()  # a file may have been written a moment ago
    return [_load(path) for path in sorted(folder.glob("*.py"))]


def _load(path: Path) -> ModuleType:
    name = f"{PACKAGE}.{path.stem}"
    if name in sys.modules:  # another file imported it
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{path} cannot be loaded as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except DeclarationError as error:
        raise DeclarationError(f"{_file_of(error, path)}: {error}") from None
    except Exception as error:
        raise DeclarationError(f"{_file_of(error, path)} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _file_of(error: Exception, loaded: Path) -> str:
    """The file that is to blame: the one that was loaded, or one beside it that it imported."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((file for file in reversed(files) if Path(file).parent == loaded.parent), str(loaded))
