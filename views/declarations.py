"""Load what was declared: the examples in views/catalog, and the user's own folder."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from views import catalog
from views.errors import DeclarationError
from views.source import Source, kafka_name


@dataclass(frozen=True)
class Declarations:
    """Everything declared, by name."""

    sources: dict[str, Source]

    def source(self, name: str) -> Source:
        """One source, or a DeclarationError that names those there are."""
        if name not in self.sources:
            raise DeclarationError(f"There is no source {name!r}. There are: {', '.join(sorted(self.sources))}.")
        return self.sources[name]

    def source_of_topic(self, topic: str) -> Source | None:
        """The source that reads a topic, if any does."""
        return next((source for source in self.sources.values() if source.topic == topic), None)


def load_declarations(folder: Path | None = None, *, with_catalog: bool = True) -> Declarations:
    """What every module in the catalog declares (unless that is switched off), and every *.py file in `folder`."""
    modules = [*(_catalog_modules() if with_catalog else ()), *(_folder_modules(folder) if folder else ())]
    sources: dict[str, Source] = {}
    for module in modules:
        for source in _declared_in(module, Source):
            known = sources.setdefault(source.name, source)
            if known != source:
                raise DeclarationError(f"{module.__file__}: source {source.name!r} is declared twice, differently.")
    _check_topics(sources.values())
    return Declarations(sources)


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


def _declared_in(module: ModuleType, kind: type[Source]) -> Iterator[Source]:
    return (value for value in vars(module).values() if isinstance(value, kind))


def _catalog_modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(catalog.__path__):
        yield importlib.import_module(f"{catalog.__name__}.{found.name}")


def _folder_modules(folder: Path) -> Iterator[ModuleType]:
    if not folder.is_dir():
        raise DeclarationError(f"views_dir is {str(folder)!r}, where there is no folder.")
    for path in sorted(folder.glob("*.py")):
        name = f"declared_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise DeclarationError(f"{path} cannot be loaded as Python.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except DeclarationError as error:
            raise DeclarationError(f"{path}: {error}") from None
        except Exception as error:
            raise DeclarationError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
        yield module
