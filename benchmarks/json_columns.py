"""Ways in Python from JSON to columns: what each costs, and whether it judges odd records as the collector does.

    python benchmarks/json_columns.py [--events 300000] [--rounds 3]

The figures of decision 31. Everything runs in this process, on events of bench_archiver.py in batches as Spark hands
them to a worker. What counts is processor time: a busy machine changes it little. msgspec joins where it is installed;
nothing else needs it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Optional

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


def by_msgspec() -> Callable[[pa.Array], pa.Table] | None:
    """Parse and judge in one step with msgspec's types of the same fields; without columns. None: it is not there."""
    try:
        import msgspec
    except ImportError:
        return None
    integer = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
    long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    texts = dict.fromkeys(("url", "method", "referrer", "agent", "ip"), str)
    properties = msgspec.defstruct(
        "Properties", _optional({**texts, "status": integer, "ms": float, "bytes": long}), gc=False
    )
    fields = dict.fromkeys(("event_id", "user_id", "name", "category"), str)
    record = msgspec.defstruct(
        "Record", _optional({**fields, "event_time": datetime, "properties": properties}), gc=False
    )
    decode = msgspec.json.Decoder(record).decode

    def way(values: pa.Array) -> pa.Table:
        try:
            for value in values.to_pylist():
                decode(value)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from error
        return pa.table({"value": values})

    return way


def _optional(fields: dict[str, Any]) -> list[tuple[str, Any, None]]:
    return [(name, Optional[kind], None) for name, kind in fields.items()]  # noqa: UP045  `|` takes no Annotated


COLLECTOR = "the collector's strict parser and validator, without columns"
WAYS: dict[str, Callable[[pa.Array], pa.Table]] = {
    COLLECTOR: by_collector,
    "orjson, then Arrow's columns": by_orjson,
    "Arrow's own reader": by_arrow,
}
MSGSPEC = "msgspec's decoder with types, without columns"
if found_msgspec := by_msgspec():
    WAYS[MSGSPEC] = found_msgspec


def main() -> None:
    """Measure, and write the result and the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--events", type=int, default=300_000)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    if MSGSPEC not in WAYS:
        sys.stderr.write("msgspec is not installed and left out. To measure it: pip install msgspec\n")
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
