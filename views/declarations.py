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
from views.errors import DeclarationError
from views.source import Source, kafka_name
from views.view import View

DEFAULT_EXAMPLES = "web"
ALL_EXAMPLES = "all"
PACKAGE = "declared_views"
"""What the user's folder is to Python: a file there reaches another by `from .shop import shop`."""

Declared = TypeVar("Declared", Source, View)


class Chosen(Protocol):
    """The settings that say what is declared."""

    @property
    def views_dir(self) -> Path | None:
        """The user's own folder."""

    @property
    def with_examples(self) -> bool:
        """Whether any example is wanted."""

    @property
    def examples(self) -> str:
        """Which: sources of the catalog, separated by commas, or `all`."""


@dataclass(frozen=True)
class Declarations:
    """Everything declared, by name."""

    sources: dict[str, Source]
    views: dict[str, View] = field(default_factory=dict)

    def source(self, name: str) -> Source:
        """One source, or a DeclarationError that names those there are."""
        if name not in self.sources:
            raise DeclarationError(f"There is no source {name!r}. There are: {', '.join(sorted(self.sources))}.")
        return self.sources[name]

    def source_of_topic(self, topic: str) -> Source | None:
        """The source whose facts or dead letters a topic holds, if it is one of a source."""
        return next((each for each in self.sources.values() if topic in (each.topic, each.dead_topic)), None)

    def view(self, name: str) -> View:
        """One view, or a DeclarationError that names those there are."""
        if name not in self.views:
            raise DeclarationError(f"There is no view {name!r}. There are: {', '.join(sorted(self.views)) or 'none'}.")
        return self.views[name]

    def views_of(self, source_name: str) -> list[View]:
        """The views of a source, in the order of their names."""
        return [view for _, view in sorted(self.views.items()) if view.source.name == source_name]


def declared_by(settings: Chosen) -> Declarations:
    """What an installation runs. Every process asks here, so that all of them see the same."""
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
    _check_topics(sources.values())
    return Declarations(sources, views)


def _declared_in(modules: Iterable[ModuleType]) -> Iterator[tuple[str, Source | View]]:
    """Each declaration with the file that has it, each view after its source."""
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, View):
                yield str(module.__file__), value.source
            if isinstance(value, Source | View):
                yield str(module.__file__), value


def _chosen(found: list[tuple[str, Source | View]], examples: str) -> Iterator[tuple[str, Source | View]]:
    there = sorted({each.name for _, each in found if isinstance(each, Source)})
    names = {name.strip() for name in examples.split(",")} - {""}
    for name in sorted(names - {ALL_EXAMPLES, *there}):
        raise DeclarationError(
            f"examples names {name!r}, which is no source of the catalog. There are: {', '.join(there)}; "
            f"or {ALL_EXAMPLES!r}."
        )
    for file, each in found:
        source = each if isinstance(each, Source) else each.source
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
    """Refuse sources whose facts or dead letters would be in one topic."""
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


def _same_name(topic: str) -> str:
    return f" (for Kafka the same name as {topic!r})"


def _catalog_modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(catalog.__path__):
        yield importlib.import_module(f"{catalog.__name__}.{found.name}")


def _folder_modules(folder: Path) -> list[ModuleType]:
    if not folder.is_dir():
        raise DeclarationError(f"views_dir is {str(folder)!r}, where there is no folder.")
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
