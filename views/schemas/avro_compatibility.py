"""Whether an Avro reader can read what an Avro writer wrote: the rules of schema resolution."""

from __future__ import annotations

from views.schemas.avro_types import AvroType, Field

MAX_COMPARISONS = 100_000
MAX_MESSAGES = 100

PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
"""By the reader's type: the types that it reads besides its own."""


class TooLarge(Exception):
    """Two schemas need more comparisons than are done."""


def unreadable(reader: AvroType, writer: AvroType) -> list[str]:
    """Why the reader cannot read what the writer wrote, with the path in the reader; empty if it can."""
    try:
        return _Comparison().compare(reader, writer)[:MAX_MESSAGES]
    except TooLarge:
        return [
            f"{reader.path}: the schemas need more than {MAX_COMPARISONS} comparisons, so they are not compared. "
            "Make them smaller, or register with the level NONE."
        ]


class _Comparison:
    """Compares types; a pair that is being compared further up is taken for readable there."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], list[str]] = {}
        self._steps = 0

    def compare(self, reader: AvroType, writer: AvroType) -> list[str]:
        pair = (id(reader), id(writer))
        if pair in self._pairs:
            # What is wrong with it is said where the pair came first; here it only has to be known that something is.
            return self._pairs[pair][:1]
        self._steps += 1
        if self._steps > MAX_COMPARISONS:
            raise TooLarge
        self._pairs[pair] = []
        found = self._pairs[pair] = self._problems(reader, writer)[:MAX_MESSAGES]
        return found

    def _problems(self, reader: AvroType, writer: AvroType) -> list[str]:
        if writer.kind == "union":
            return [problem for branch in writer.branches for problem in self.compare(reader, branch)]
        if reader.kind == "union":
            if any(not self.compare(branch, writer) for branch in reader.branches):
                return []
            kinds = ", ".join(str(branch) for branch in reader.branches)
            return [f"{reader.path}: the reader's union ({kinds}) has no type that reads the writer's {writer}"]
        if reader.is_record and writer.is_record:
            return self._names(reader, writer) + self._records(reader, writer)
        if reader.kind != writer.kind:
            if writer.kind in PROMOTIONS.get(reader.kind, ()):
                return []
            return [f"{reader.path}: the reader's {reader} does not read the writer's {writer}"]
        if reader.element is not None and writer.element is not None:
            return self.compare(reader.element, writer.element)
        if reader.kind == "fixed":
            return self._names(reader, writer) + _sizes(reader, writer)
        if reader.kind == "enum":
            return self._names(reader, writer) + _symbols(reader, writer)
        return []

    @staticmethod
    def _names(reader: AvroType, writer: AvroType) -> list[str]:
        simple, writers = reader.name.rpartition(".")[2], writer.name.rpartition(".")[2]
        if simple == writers or writer.name in reader.aliases:
            return []
        return [f"{reader.path}: the writer's name is {writer.name}, and the reader has no alias for it"]

    def _records(self, reader: AvroType, writer: AvroType) -> list[str]:
        written = {field.name: field for field in writer.fields}
        problems = []
        for field in reader.fields:
            sources = [written[name] for name in dict.fromkeys((field.name, *field.aliases)) if name in written]
            if sources:
                problems += self._field(reader, field, sources)
            elif not field.has_default:
                problems.append(
                    f"{reader.path}.{field.name}: the writer has no such field, and the reader has no default for it"
                )
        return problems

    def _field(self, reader: AvroType, field: Field, sources: list[Field]) -> list[str]:
        if len(sources) > 1:
            names = ", ".join(source.name for source in sources)
            return [f"{reader.path}.{field.name}: the name and the aliases match several fields of the writer: {names}"]
        return self.compare(field.type, sources[0].type)


def _sizes(reader: AvroType, writer: AvroType) -> list[str]:
    if reader.size == writer.size:
        return []
    return [f"{reader.path}: the reader expects {reader.size} bytes, and the writer wrote {writer.size}"]


def _symbols(reader: AvroType, writer: AvroType) -> list[str]:
    read = set(reader.symbols)
    missing = [symbol for symbol in writer.symbols if symbol not in read]
    if not missing or reader.default_symbol is not None:
        return []
    return [f"{reader.path}: the reader lacks the symbols {', '.join(missing[:20])} and has no default symbol"]
