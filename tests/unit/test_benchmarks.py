"""The benchmarks' own parts: the page's head, the year of flights, and the lock of the peers' jars."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orjson
import pytest

from infra.java.jars import locked_hashes
from views.formats.avro_decoding import decode_framed
from views.formats.framing import frame_of_id
from views.formats.protobuf_decoding import ProtobufDecoder, writers_of
from views.formats.writer_schemas import WriterSchema
from views.reading import typed_event

NOT_YET_MEASURED = {
    "group by two keys over the year, before the next run", "150,000 distinct urls in the current hour: top 10 by url",
    "idle stack", "one more changed day, per view",
}  # fmt: skip
"""Aims whose benchmarks were extended: their newest results are of before."""
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the benchmarks as they import each other."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@pytest.mark.parametrize("module", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_every_benchmark_finds_what_it_imports(load: Any, module: str) -> None:
    load(module)


def speed(ours_ms: float, peer_ms: float, ours_rate: float, peer_rate: float) -> dict[str, Any]:
    return {
        "latency_ms": {"Tidemark": {"500": [ours_ms, 1]}, "Flink": {"500": [peer_ms, 1]}},
        "drained": {"Tidemark": ours_rate, "Flink": peer_rate},
    }


def test_page_says_where_tidemark_is_behind(load: Any) -> None:
    standing = load("standing")
    text = standing.section({"speed": speed(140, 7, 60_000, 30_000)})
    behind, ahead = text.split("## Where Tidemark is level or ahead")
    assert "| latency at 500 events/s, median | 140 ms | Flink: 7 ms | 20 |" in behind
    assert "| a backlog of the speed layer | 60,000 events/s | Flink: 30,000 events/s | 0.5 |" in ahead


def test_worst_comparison_comes_first(load: Any) -> None:
    standing = load("standing")
    times = [2.0, 9.0, 5.0]
    results = {"speed": {"latency_ms": {"Tidemark": {"500": [90.0, 1]}}, "drained": {"Tidemark": 90.0}}}
    results["speed"]["drained"] |= {f"peer {each}": 90.0 * each for each in times}
    found = re.findall(r"\| (\d) \|", standing.section(results))
    assert found == ["9", "5", "2"]


@pytest.mark.parametrize("lacking", [{}, {"latency_ms": {}}, {"latency_ms": {"Tidemark": {"500": [1.0, 1]}}}])
def test_result_that_lacks_figures_is_left_out(load: Any, lacking: dict[str, Any]) -> None:
    standing = load("standing")
    assert standing.comparisons({"speed": lacking, "archiver": {"rates": {}}}) == []


def test_results_on_the_page_can_be_compared(load: Any) -> None:
    """Names of figures that a benchmark changed would silently drop its comparisons."""
    report, standing = load("report"), load("standing")
    compared = {"serving", "collector", "archiver", "alerts", "startup", "speed"}
    results = report.read_results()
    assert [name for name in compared if not standing.comparisons({name: results[name]})] == []


def test_page_says_what_was_tried_only_of_an_aim_that_is_missed(load: Any) -> None:
    aims = load("aims")
    (row,) = (each for each in aims.AIMS if each.what.startswith("archiver"))
    page = {share: aims.section({"archiver": {"share_of_floor": share}}) for share in (0.39, 0.40)}
    assert f"| 0.39 | 0.40 | {row.tried} |" in page[0.39]
    assert "| 0.40 | 0.40 |  |" in page[0.40]


@pytest.mark.parametrize(
    "lacking", [{}, {"archiver": {}}, {"startup": {"whole_up_s": {}}}, {"wide": {"scenarios": {}}}]
)
def test_aim_without_a_figure_is_not_measured(load: Any, lacking: dict[str, Any]) -> None:
    aims = load("aims")
    assert aims.section(lacking).count(f" | {aims.NOT_MEASURED} | ") == len(aims.AIMS)


def test_results_on_the_page_have_the_figures_of_the_aims(load: Any) -> None:
    """Names of figures that a benchmark changed would silently show as not measured."""
    report, aims = load("report"), load("aims")
    results = report.read_results()
    missing = [each.what for each in aims.AIMS if aims._now(each, results) is None]
    assert {*missing} <= NOT_YET_MEASURED


@pytest.mark.process  # protoc compiles in a process of its own
def test_formats_hold_the_same_events(load: Any) -> None:
    """Else one format would be fast because it carries less."""
    written = load("written_formats")
    sent, frame = written.event(12_345), frame_of_id(7)
    json, json_schema, avro, protobuf = (each.writer(7)(sent) for each in written.FORMATS)
    by_name = {each.name: each for each in written.FORMATS}
    of_avro, of_protobuf = by_name["avro"], by_name["protobuf"]
    writers = {frame: WriterSchema("PROTOBUF", of_protobuf.schema)}
    protobuf_decoder = ProtobufDecoder(
        of_protobuf.source.protobuf, writers_of(of_protobuf.source.protobuf, writers), is_framed=True
    )
    assert decode_framed(of_avro.source.avro, {frame: WriterSchema("AVRO", of_avro.schema)}, avro) == sent
    assert protobuf_decoder.decode(protobuf) == sent
    assert typed_event(by_name["json"].source.schema, orjson.loads(json)) == sent
    assert json_schema == frame + json
    schemas = {each.name: [(field.name, field.type.ddl()) for field in each.source.schema] for each in written.FORMATS}
    assert set(map(str, schemas.values())) == {str(list(written.FIELDS))}


def test_year_of_flights_has_late_rows_and_duplicates(load: Any) -> None:
    rows = list(load("bench_history").rows(4_000))
    ids = Counter(row["flight_id"] for row in rows)
    times = [row["event_time"] for row in rows]
    assert len(ids) == 4_000
    assert 15 < sum(count == 2 for count in ids.values()) < 80
    assert max(ids.values()) == 2
    assert sum(after < before for before, after in pairwise(times)) > 80
    assert len({(row["origin"], row["carrier"]) for row in rows}) == 35
    assert rows == list(load("bench_history").rows(4_000))


def test_lock_of_the_peers_names_exactly_the_jars_of_their_ivy_xml() -> None:
    dependencies = ElementTree.parse(BENCHMARKS / "peers" / "ivy.xml").findall("dependencies/dependency")  # noqa: S314
    named = sorted(
        f"{each.attrib['conf'].partition('->')[0]}/{each.attrib['name']}-{each.attrib['rev']}.jar"
        for each in dependencies
    )
    assert named == sorted(locked_hashes(BENCHMARKS / "peers" / "jars.sha256"))
    assert all(each.attrib["transitive"] == "false" for each in dependencies)


def test_peers_without_a_compiler_are_refused_plainly(load: Any, tmp_path: Path) -> None:
    peers = load("stream_peers")
    with pytest.raises(peers.NoCompiler, match="has no javac; the peers need a JDK"):
        peers.compiler_of(peers.Java(tmp_path, 17))


def test_rate_that_the_sender_did_not_reach_is_not_held(load: Any) -> None:
    bench = load("bench_speed")
    held, unsent = bench.Tried(20_000, 19_500, 900, 1_000), bench.Tried(30_000, 28_000, 0, 0)
    grew = bench.Tried(30_000, 29_900, 10_000, 90_000)
    assert [each.is_held for each in (held, unsent, grew)] == [True, False, False]
    assert bench.highest([held, unsent]) == held
    assert "(19,500 a second were sent)" in bench.held_text([held, unsent], 60)
    assert "reached 28,000" in bench.held_text([held, unsent], 60)
    assert "the lag grew from 10,000 to 90,000" in bench.held_text([held, grew], 60)


def test_page_says_where_the_time_of_the_whole_run_goes(load: Any) -> None:
    batch = load("bench_batch")
    rounds = [
        [batch.Phase("duplicates", took, 4), batch.Phase("hits: compute", 3 * took, 2)] for took in (8.0, 10.0, 12.0)
    ]
    text = batch.by_phase([[*phases, batch.Phase("manifest", 0.01, 0)] for phases in rounds])
    assert "| duplicates | 10.0 s | 8.0 – 12.0 s | 25% | 4 |" in text
    assert "| hits: compute | 30.0 s | 24.0 – 36.0 s | 75% | 2 |" in text
    assert "manifest" not in text


def test_cost_of_a_day_is_the_difference_of_two_runs_for_each_day_between_them(load: Any) -> None:
    """What both runs need, and what is of another view, is not in it."""
    days = load("bench_days")

    def run(compute: float, daily: float) -> dict[str, Any]:
        phases = [("duplicates", 50.0, 1), ("wide: compute", compute, 3), ("wide: index", 2.0, 1)]
        return {"phases": [*phases, ("daily: compute", daily, 3), ("daily: index", 1.0, 1)]}

    found = {
        366: [run(8.0, 9.58), run(11.29, 9.58), run(30.0, 9.58)],
        37: [run(8.0, 3.0), run(8.0, 3.0), run(7.0, 3.0)],
    }
    assert days.slopes_of(found) == {"wide": 0.01, "daily": 0.02}
    page = load("aims").section({"days": {"slopes_s": days.slopes_of(found)}})
    assert "| 0.010 and 0.020 s in two views | 0.01 s |" in page
