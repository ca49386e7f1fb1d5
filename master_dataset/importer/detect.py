"""Detect a file's format from its beginning, and create the reader for it."""

from __future__ import annotations

from master_dataset.importer.csv_file import CsvReader, field_paths, guess_delimiter
from master_dataset.importer.errors import UnusableInput
from master_dataset.importer.formats import FormatReader, ImportFormat, Options
from master_dataset.importer.lines import UTF8_BOM
from master_dataset.importer.ndjson import NdjsonReader
from master_dataset.importer.rejects import MARK
from master_dataset.importer.w3c_log import W3cReader
from master_dataset.importer.web_log import COMBINED_LINE, COMMON_LINE, WebLogReader
from master_dataset.importer.web_request import compile_web_event
from views.source import Source

SAMPLED_LINES = 20
"""A log may begin with a broken line; the first of so many lines that has a known form decides."""
NAMED = ", ".join(format_ for format_ in ImportFormat if format_ is not ImportFormat.AUTO)
"""The formats that --format can name."""


def make_reader(source: Source, options: Options, head: bytes, name: str) -> FormatReader:
    """The reader for a file that begins with `head`."""
    if source.format != "json":
        raise UnusableInput(
            f"The records of source {source.name!r} have the format {source.format!r}, and an import writes JSON. Send "
            f"them to the topic {source.topic!r} with a Kafka client and a serializer of that format."
        )
    format_ = options.format if options.format is not ImportFormat.AUTO else detect_format(source, head, name)
    match format_:
        case ImportFormat.NDJSON:
            return NdjsonReader()
        case ImportFormat.CSV:
            return CsvReader(source, options.zone, options.delimiter, ignore_unknown=options.ignore_unknown)
        case ImportFormat.W3C:
            return W3cReader(compile_web_event(source), options.zone)
        case ImportFormat.COMMON | ImportFormat.COMBINED:
            return WebLogReader(format_, compile_web_event(source))
    raise UnusableInput(f"{name} is to be read as {str(format_)!r}, for which there is no reader. Formats: {NAMED}.")


def detect_format(source: Source, head: bytes, name: str) -> ImportFormat:
    """The format, from the first lines. An empty file counts as NDJSON: it has no line to misread."""
    is_csv_name = name.removesuffix(".gz").endswith((".csv", ".tsv"))
    lines = [line.decode(errors="replace").strip() for line in head.removeprefix(UTF8_BOM).split(b"\n")]
    candidates = [line for line in lines if line and not line.startswith(MARK.decode())]
    if not candidates:
        return ImportFormat.CSV if is_csv_name else ImportFormat.NDJSON
    for line in candidates[:SAMPLED_LINES]:
        if line.startswith("{"):
            return ImportFormat.NDJSON
        if line.lower().startswith(("#version:", "#fields:", "#software:", "#date:")):
            return ImportFormat.W3C
        if COMBINED_LINE.fullmatch(line):
            return ImportFormat.COMBINED
        if COMMON_LINE.fullmatch(line):
            return ImportFormat.COMMON
    names = [cell.strip(' "') for cell in candidates[0].split(guess_delimiter(candidates[0]))]
    if is_csv_name or set(names) & set(field_paths(source)):
        return ImportFormat.CSV
    raise UnusableInput(
        f"The format of {name} cannot be detected from its beginning, {candidates[0][:60]!r}. "
        f"Name it with --format: {NAMED}."
    )
