"""Ways in Python from JSON to columns: what each costs, and whether it judges odd records as the collector does.

    python benchmarks/json_columns.py [--events 300000] [--rounds 3]

The figures of decision 31. Everything runs in this process, on events of bench_archiver.py in batches as Spark hands
them to a worker. What counts is processor time: a busy machine changes it little.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import orjson
import pyarrow as pa
import report
from bench_archiver import event
from pyarrow import compute
from pyarrow import json as arrow_json

from master_dataset.errors import InvalidEvent
from master_dataset.events.validator import compile_validator
from views.catalog.web import web
from views.strict_json import parse_json

BATCH = 10_000
"""Records that Spark hands to a worker at once."""
ARROW = pa.schema([
    *((name, pa.timestamp("us", "UTC") if name == "event_time" else pa.string())
      for name in ("event_id", "event_time", "user_id", "name", "category")),
    ("properties", pa.struct([
        ("url", pa.string()), ("method", pa.string()), ("status", pa.int32()), ("ms", pa.float64()),
        ("bytes", pa.int64()), ("referrer", pa.string()), ("agent", pa.string()), ("ip", pa.string()),
    ])),
])  # fmt: skip
AS_TEXT = ARROW.set(1, pa.field("event_time", pa.string()))
VALIDATE = compile_validator(web)
GOOD = '{"event_id":"a","properties":{"ms":1}}'
ODD = {
    "two values": f"{GOOD} {GOOD}",
    "text after the value": f"{GOOD}x",
    "a repeated key": '{"event_id":"a","event_id":"b"}',
    "half a surrogate pair": '{"event_id":"\\ud800"}',
    "a number as text": '{"properties":{"ms":"1"}}',
    "a text as number": '{"event_id":5}',
    "a fraction for an integer": '{"properties":{"status":1.5}}',
    "an integer beyond its type": '{"properties":{"status":3000000000}}',
    "NaN": '{"properties":{"ms":NaN}}',
    "a number beyond a double": '{"properties":{"ms":1e999}}',
    "single quotes": "{'event_id':'a'}",
    "an array": "[]",
}
"""Records that a way may judge otherwise."""


def by_collector(values: pa.Array) -> pa.Table:
    """As the collector judges a record; without columns."""
    for value in values.to_pylist():
        VALIDATE(parse_json(value))
    return pa.table({"value": values})


def by_orjson(values: pa.Array) -> pa.Table:
    """An object of Python for each record."""
    rows = list(map(orjson.loads, values.to_pylist()))
    return as_declared(pa.Table.from_pylist(rows, AS_TEXT))


def by_arrow(values: pa.Array) -> pa.Table:
    """Arrow's reader of lines, which fails for a whole batch where one record is none."""
    lines = pa.BufferReader(b"\n".join(values.to_pylist()))
    options = arrow_json.ParseOptions(explicit_schema=AS_TEXT, unexpected_field_behavior="ignore")
    return as_declared(arrow_json.read_json(lines, arrow_json.ReadOptions(use_threads=False), options))


def as_declared(table: pa.Table) -> pa.Table:
    """With the time parsed. All end in Z here."""
    texts = table.column("event_time")
    times = compute.strptime(texts, format="%Y-%m-%dT%H:%M:%SZ", unit="us")
    return table.set_column(1, ARROW.field("event_time"), times.cast(ARROW.field("event_time").type))


COLLECTOR = "the collector's strict parser and validator, without columns"
WAYS: dict[str, Callable[[pa.Array], pa.Table]] = {
    COLLECTOR: by_collector,
    "orjson, then Arrow's columns": by_orjson,
    "Arrow's own reader": by_arrow,
}


def main() -> None:
    """Measure, and write the result and the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--events", type=int, default=300_000)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    batches = [
        pa.array([orjson.dumps(event(number)) for number in range(first, min(first + BATCH, given.events))])
        for first in range(0, given.events, BATCH)
    ]
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(given.rounds):
        for name, way in WAYS.items():
            began = time.process_time()
            for batch in batches:
                way(batch)
            found[name].append((time.process_time() - began) / given.events * 1e6)
            sys.stderr.write(f"{name}: {found[name][-1]:.2f} µs a record\n")
    medians = {name: report.median(each) for name, each in found.items()}
    verdicts = {record: {name: verdict(way, value) for name, way in WAYS.items()} for record, value in ODD.items()}
    result = {"us_per_record": medians, "verdicts": verdicts}
    report.write("json_columns", "From JSON to columns in Python", result, text(medians, verdicts, given))


def verdict(way: Callable[[pa.Array], pa.Table], value: str) -> str:
    """What a way makes of one record."""
    try:
        return "valid" if way(pa.array([value.encode()])).num_rows == 1 else "invalid"
    except (InvalidEvent, pa.ArrowException, ValueError, TypeError, AttributeError):
        return "invalid"


def text(medians: dict[str, dict[str, float]], verdicts: dict[str, dict[str, str]], given: argparse.Namespace) -> str:
    """The result as the page shows it."""
    costs = report.table(
        ("processor time a record", "median (least – most)"),
        *(
            (name, f"{each['median']:.2f} µs ({each['least']:.2f} – {each['most']:.2f})")
            for name, each in medians.items()
        ),
    )
    differing = {record: of for record, of in verdicts.items() if any(each != of[COLLECTOR] for each in of.values())}
    judged = report.table(("record", *WAYS), *((record, *of.values()) for record, of in differing.items()))
    return (
        f"{costs}\n\n{given.events:,} events in batches of {BATCH:,}, {given.rounds} rounds in turns, in one process. "
        f"Of {len(verdicts)} odd records these are judged otherwise than by the collector:\n\n{judged}"
    )


if __name__ == "__main__":
    main()
