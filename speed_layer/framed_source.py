"""The writer schemas of a stream: those that were known when it began, and what happens when a record names another."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame

from master_dataset.writer_schemas.noted import NewSchemas, NotedSchemas
from speed_layer.micro_batch import UNKNOWN_FRAME
from views.formats.writer_schemas import WriterSchemas
from views.on_spark.events import with_event
from views.on_spark.framed_records import unknown_frame
from views.source import Source


@dataclass(frozen=True)
class FramedSource:
    """A source, and the schemas that the plan of a stream has a branch for; none where its records have no frames."""

    source: Source
    noted: NotedSchemas
    writers: WriterSchemas

    @staticmethod
    def of(source: Source, noted: NotedSchemas) -> FramedSource:
        """With the schemas that are known now."""
        return FramedSource(source, noted, noted.known())

    def with_event(self, records: DataFrame) -> DataFrame:
        """Records with their events. What is wrong with an invalid one, the archiver says."""
        return with_event(records, self.source, reasons=False, writers=self.writers)

    def columns(self) -> list[Column]:
        """What a micro-batch has beside the columns of views."""
        return [unknown_frame(self.writers).alias(UNKNOWN_FRAME)] if self.source.needs_writer_schemas else []

    def check(self, unknown: Set[bytes]) -> None:
        """Raise NewSchemas if the registry knows one of these: nothing of the micro-batch may count without it.

        RegistryAway, where it does not answer: the micro-batch waits.
        """
        new = self.noted.without_answer(unknown) if unknown else set()
        if new and self.noted.resolve(new):
            raise NewSchemas(new)
