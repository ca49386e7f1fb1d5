"""Records of sources that evolve: Spark reads each version as the readers without Spark do, which the laws check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from master_dataset.errors import InvalidEvent
from master_dataset.events.raw_records import RecordReader
from tests.laws.test_source_evolution import declared, versions_of, written_records
from tests.spark.test_avro_records import framed, plain
from views.on_spark.events import with_event

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import SparkSession

    from master_dataset.events.raw_records import RawRecord


def read(reader: RecordReader, record: RawRecord) -> Any:
    try:
        return reader.read(record)
    except InvalidEvent:
        return None


@pytest.mark.parametrize("form", ["json", "avro", "protobuf", "json_schema"])
def test_spark_reads_each_version_of_a_source_as_the_readers_in_python_do(form: str, spark: SparkSession) -> None:
    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(st.data())
    def law(data: st.DataObject) -> None:
        versions = data.draw(versions_of(form))
        writers, written = data.draw(written_records(form, versions))
        records = [each.record for each in written]
        rows = framed(spark, [each.value for each in records], [each.headers for each in records])
        for number, fields in enumerate(versions, start=1):
            source = declared(form, fields, number)
            found = with_event(rows, source, writers=writers).select("offset", "invalid", "event").collect()
            events = {row["offset"]: plain(row["event"]) for row in found}
            assert all((row["invalid"] is None) == (row["event"] is not None) for row in found)
            reader = RecordReader(source, writers)
            assert events == {each.offset: read(reader, each) for each in records}

    law()
