"""Metrics: over HTTP on the port that was asked for, gone with their process; and what each layer counts."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from batch_layer import metrics as batch_metrics
from infra.errors import InfraError
from infra.metrics import PerSource, SourceMetrics, new_registry, serve_metrics
from infra.process_status import ProcessStatus
from infra.rest.access import Access
from infra.rest.access_keys import add_key
from infra.rest.key_metrics import KeyMetrics
from infra.rest.problems import install_problems
from infra.rest.response_counter import ResponseCounter
from infra.rest.responses import add_metrics
from infra.settings import load_settings
from infra.stack.child import Cause, Child, End
from infra.stack.metrics import SupervisorMetrics, served_metrics
from infra.stack.ports import LOOPBACK, is_free
from infra.stack.service import Service, State
from infra.version import VERSION
from master_dataset.archiver import metrics as archiver_metrics
from master_dataset.collector.doors.syslog_server import SyslogMetrics
from master_dataset.collector.free_disk import FreeDisk
from master_dataset.collector.limits import Budget
from master_dataset.collector.metrics import CollectorMetrics
from master_dataset.collector.producer import UNANSWERED, Ack, Outcome, Refusal
from serving_layer import metrics as serving_metrics
from serving_layer.alerts.journal import Journal
from serving_layer.alerts.metrics import AlertMetrics
from serving_layer.metrics import ServingMetrics
from speed_layer import metrics as speed_metrics
from torture.installation_settings import free_port


def test_registry_is_served_as_text_and_read_anew_each_time() -> None:
    registry = new_registry("speed")
    depth = Gauge("tidemark_depth", "How deep.", registry=registry)
    with serve_metrics(registry, LOOPBACK, 0) as address:
        for value in (3, 4):
            depth.set(value)
            answer = httpx.get(address)
            assert answer.headers["content-type"].startswith("text/plain")
            assert f"tidemark_depth {value}.0" in answer.text.splitlines()
        assert f'tidemark_info{{process="speed",version="{VERSION}"}} 1.0' in answer.text.splitlines()
    assert is_free(httpx.URL(address).port or 0), "the port is given back"


def test_registries_know_nothing_of_each_other() -> None:
    Gauge("tidemark_depth", "How deep.", registry=new_registry("one"))
    Gauge("tidemark_depth", "How deep.", registry=new_registry("two"))


def test_taken_port_is_refused_with_its_holder() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        said = rf"127.0.0.1:{port} .*, which is held by python"
        with pytest.raises(InfraError, match=said), serve_metrics(new_registry("speed"), LOOPBACK, port):
            pass


def test_metrics_of_a_server_want_a_key_that_may_read_them(tmp_path: Path) -> None:
    app, registry = FastAPI(), new_registry("collector")
    install_problems(app)
    add_metrics(app, Access(load_settings(home=tmp_path)), lambda: registry)
    assert scrape(app).status_code == 401
    for scope, status in (("produce", 403), ("query", 403), ("metrics", 200), ("admin", 200)):
        assert scrape(app, scope, add_key(tmp_path, scope, [scope])).status_code == status, scope
    answer = scrape(app, "prometheus", add_key(tmp_path, "prometheus", ["metrics"]))
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'tidemark_info{process="collector"' in answer.text


def test_responses_are_counted_by_status_and_an_unexpected_error_is_500() -> None:
    """The server answers such an error outside of every middleware."""
    app, seen = FastAPI(), Counter[int]()
    install_problems(app)
    app.add_middleware(ResponseCounter, count=lambda status: seen.update([status]))
    app.add_api_route("/bug", lambda: 1 // 0)

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [(await client.get(path)).status_code for path in ("/bug", "/none", "/none")]

    assert asyncio.run(ask()) == [500, 404, 404]
    assert seen == {500: 1, 404: 2}


def scrape(app: FastAPI, *key: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.get("/metrics", auth=(key[0], key[1]) if key else None)

    return asyncio.run(ask())


# ---- what the layers count -----------------------------------------------------


def samples(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Name and values of labels -> value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_supervisor_counts_restarts_by_their_cause(tmp_path: Path) -> None:
    child = Child(Service(name="serving", command=(), address="", check=lambda: None), state=State.READY)
    child.note_end(End(Cause.HANG, "it hung"))
    child.life.silent_s = 3.0
    registry = CollectorRegistry()
    registry.register(SupervisorMetrics([child]))
    found = samples(registry)
    assert found["tidemark_service_restarts_total", "serving", "hang"] == 1
    assert found["tidemark_service_restarts_total", "serving", "crash"] == 0
    assert found["tidemark_service_ready", "serving"] == 1
    assert found["tidemark_service_silent_seconds", "serving"] == 3
    settings = load_settings(home=tmp_path, supervisor_metrics_port=free_port())
    with served_metrics(settings, [child]):
        answer = httpx.get(f"http://{LOOPBACK}:{settings.supervisor_metrics_port}/metrics")
    assert 'tidemark_service_restarts_total{cause="hang",service="serving"} 1.0' in answer.text.splitlines()


def test_taken_port_costs_the_supervisor_its_metrics_and_not_the_stack(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        settings = load_settings(home=tmp_path, supervisor_metrics_port=other.getsockname()[1])
        with served_metrics(settings, []):
            pass


NO_DISK = FreeDisk({}, 0)
ACK = Ack(0, 7, 1)
TOO_LARGE = Refusal(KafkaError.MSG_SIZE_TOO_LARGE, "too large")


@pytest.mark.parametrize(
    ("topics", "outcomes", "expected"),
    [
        ("web", [], {}),
        ("web", [ACK, ACK], {("events", "web"): 2}),
        ("web", [ACK, UNANSWERED, ACK], {("events", "web"): 2, ("refused", "web", "outcome-unknown"): 1}),
        ("web", [TOO_LARGE], {("refused", "web", "event-too-large"): 1}),
        (["web", "shop", "web"], [ACK, ACK, ACK], {("events", "web"): 2, ("events", "shop"): 1}),
        (["web", "shop"], [ACK, TOO_LARGE], {("events", "web"): 1, ("refused", "shop", "event-too-large"): 1}),
    ],
)
def test_collector_counts_what_became_of_records_by_topic(
    topics: Sequence[str] | str, outcomes: list[Outcome], expected: dict[tuple[str, ...], float]
) -> None:
    registry, budget = CollectorRegistry(), Budget(1000)
    metrics = CollectorMetrics(registry, budget, NO_DISK)
    metrics.count(topics, outcomes)
    metrics.count_invalid("web", 0)
    with budget.charge() as charge:
        charge.add(10)
        found = samples(registry)
    assert found.pop(("tidemark_collector_unacknowledged_bytes",)) == 10
    assert found == {
        (f"tidemark_collector_{name}_total", *labels): count for (name, *labels), count in expected.items()
    }


def test_collector_counts_events_that_are_not_valid() -> None:
    registry = CollectorRegistry()
    CollectorMetrics(registry, Budget(1), NO_DISK).count_invalid("web", 3)
    assert samples(registry)["tidemark_collector_refused_total", "web", "invalid-event"] == 3


def test_number_that_a_source_does_not_have_is_left_out() -> None:
    numbers = (
        PerSource("rows", "Rows.", lambda source, _now: source["rows"], is_counter=True),
        PerSource("age", "Age.", lambda source, now: None if source["at"] is None else now - source["at"]),
    )
    registry = CollectorRegistry()
    status = ProcessStatus(100.0, sources={"web": {"rows": 5, "at": 40.0}, "shop": {"rows": 0, "at": None}})
    registry.register(SourceMetrics("tidemark_x", numbers, lambda: status))
    assert samples(registry) == {
        ("tidemark_x_rows_total", "web"): 5,
        ("tidemark_x_rows_total", "shop"): 0,
        ("tidemark_x_age", "web"): 60.0,
    }


@pytest.mark.parametrize("layer", [archiver_metrics, speed_metrics])
def test_every_number_of_a_layer_is_told_with_its_help_and_a_name_that_prometheus_takes(layer: Any) -> None:
    """The status is the layer's own only in the system tests; here each number is read from one that says 1."""

    class Ones(dict[str, Any]):
        def __missing__(self, _name: str) -> int:
            return 1

    registry = CollectorRegistry()
    registry.register(
        SourceMetrics("tidemark_x", layer.PER_SOURCE, lambda: ProcessStatus(3.0, sources={"web": Ones()}))
    )
    with serve_metrics(registry, LOOPBACK, 0) as address:
        families = list(text_string_to_metric_families(httpx.get(address).text))
    assert len(families) == len(layer.PER_SOURCE)
    for family, number in zip(families, layer.PER_SOURCE, strict=True):
        assert family.documentation == number.help
        assert [sample.labels for sample in family.samples] == [{"source": "web"}]


def test_metrics_have_the_groups_of_each_view() -> None:
    registry = CollectorRegistry()
    numbers = {
        **dict.fromkeys([*(f"{number.name}" for number in speed_metrics.PER_SOURCE), "behind_s"], 1),
        "last_micro_batch_s": 1, "micro_batches_s": 1,
        "groups": {"hits": 7, "users": 0}, "largest_bucket_groups": {"hits": 4, "users": 0},
    }  # fmt: skip
    registry.register(speed_metrics.speed_metrics(lambda: {"web": numbers}))
    with serve_metrics(registry, LOOPBACK, 0) as address:
        families = text_string_to_metric_families(httpx.get(address).text)
        found = {
            (sample.name.removeprefix("tidemark_speed_"), sample.labels["view"]): sample.value
            for family in families
            for sample in family.samples
            if "view" in sample.labels
        }
    assert found == {
        ("groups", "hits"): 7, ("groups", "users"): 0,
        ("largest_bucket_groups", "hits"): 4, ("largest_bucket_groups", "users"): 0,
    }  # fmt: skip


def test_page_about_metrics_names_those_that_there_are_and_no_others(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    named = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `tidemark_")}
    layers = {
        "archiver": archiver_metrics.PER_SOURCE, "speed": speed_metrics.PER_SOURCE, "batch": batch_metrics.PER_SOURCE,
        "serving": serving_metrics.PER_SOURCE,
    }  # fmt: skip
    there = {
        f"tidemark_{layer}_{number.name}{'_total' * number.is_counter}"
        for layer, numbers in layers.items()
        for number in numbers
    }
    own = CollectorRegistry()
    CollectorMetrics(own, Budget(1), NO_DISK)
    own.register(SyslogMetrics(dict, dict))
    own.register(SupervisorMetrics([]))
    own.register(KeyMetrics(tmp_path))
    ServingMetrics(dict, own)
    there |= {f"tidemark_serving_{name}" for name in serving_metrics.PER_VIEW}
    there |= {f"tidemark_speed_{name}" for name in speed_metrics.PER_VIEW}
    own.register(AlertMetrics({}, (), {}, (), Journal(tmp_path / "alerts.sqlite")))
    there |= {f"{each.name}{'_total' * (each.type == 'counter')}" for each in own.collect()}
    assert named == there | {"tidemark_batch_failed_tries"}
