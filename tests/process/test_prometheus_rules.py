"""Rules and configuration for Prometheus: they name what our processes expose, and each alert fires when it should.

promtool judges the last; `make promtool` fetches it. Without it, PromQL is parsed here, and the names are compared.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry

from batch_layer.metrics import PER_SOURCE as BATCH
from infra.home import Home, write_json
from infra.metrics import PerSource, SourceMetrics
from infra.process_status import ProcessStatus
from infra.prometheus.configuration import configuration_text, rules_text, unknown_ports
from infra.rest.access_keys import add_key
from infra.rest.key_metrics import KeyMetrics
from infra.settings import load_settings
from infra.stack.child import Cause
from infra.stack.metrics import SupervisorMetrics
from master_dataset.archiver.metrics import PER_SOURCE as ARCHIVER
from master_dataset.collector.free_disk import FreeDisk
from master_dataset.collector.limits import Budget
from master_dataset.collector.metrics import CollectorMetrics
from serving_layer.alerts.journal import Journal
from serving_layer.alerts.metrics import AlertMetrics
from serving_layer.metrics import PER_SOURCE as SERVING
from serving_layer.metrics import ServingMetrics
from speed_layer.metrics import speed_metrics

ROOT = Path(__file__).parents[2]
OF_PROMETHEUS = {"up": {"job", "instance", "component"}}
"""What Prometheus adds itself, with the labels of our configuration."""
ON_EVERY_SERIES = {"job", "instance", "component"}
ALERT_LINE = re.compile(r"\$labels\.(\w+)")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(rules_text())["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of every metric, as the registries of our processes have them."""
    home = tmp_path_factory.mktemp("home")
    registry = CollectorRegistry()
    CollectorMetrics(registry, Budget(1), FreeDisk({}, 0))
    ServingMetrics(dict, registry)
    collectors = [
        *registry._collector_to_names,
        SupervisorMetrics([]),
        KeyMetrics(home),
        AlertMetrics({}, (), {}, (), Journal(home / "alerts.sqlite")),
        ServingMetrics(dict, CollectorRegistry())._views,
        *(source_metrics(*each) for each in (("archiver", ARCHIVER), ("batch", BATCH))),
        speed_metrics(dict),
        source_metrics("serving", SERVING),
    ]
    return {name: labels for collector in collectors for name, labels in labels_of(collector)}


def source_metrics(layer: str, numbers: tuple[PerSource, ...]) -> SourceMetrics:
    return SourceMetrics(f"tidemark_{layer}", numbers, lambda: ProcessStatus(1.0, sources={}))


def labels_of(collector: Any) -> Iterator[tuple[str, set[str]]]:
    own = getattr(collector, "_labelnames", None)
    for family in collector.collect():
        labels = set(getattr(family, "_labelnames", own or ()))
        yield f"{family.name}{'_total' * (family.type == 'counter')}", labels


def walk(node: Any) -> Iterator[Any]:
    """All parts of an expression."""
    yield node
    for name in ("lhs", "rhs", "expr", "param", "args", "vector_selector", "vs"):
        below = getattr(node, name, None)
        for each in below if isinstance(below, list) else [below]:
            if each is not None and not isinstance(each, str):
                yield from walk(each)


def selectors(expression: str) -> list[Any]:
    return [part for part in walk(promql_parser.parse(expression)) if isinstance(part, promql_parser.VectorSelector)]


# ---- what the rules name -------------------------------------------------------------


def test_every_metric_and_label_of_a_rule_is_exposed(exposed: dict[str, set[str]]) -> None:
    known = {**exposed, **OF_PROMETHEUS}
    assert len(rules()) > 20
    for rule in rules():
        found = selectors(rule["expr"])
        names = set(re.findall(r"\b(?:tidemark_\w+|up)\b", rule["expr"]))
        assert {each.name for each in found} == names, f"{rule['alert']}: a metric was not seen by the parser"
        for each in found:
            assert each.name in known, f"{rule['alert']}: nobody exposes {each.name}"
            used = {matcher.name for matcher in each.matchers.matchers}
            assert used <= known[each.name], f"{rule['alert']}: {each.name} has no label {used - known[each.name]}"


def test_texts_of_a_rule_use_labels_that_the_alert_has(exposed: dict[str, set[str]]) -> None:
    known = {**exposed, **OF_PROMETHEUS}
    for rule in rules():
        kept = re.search(r"\bsum by \(([^)]*)\)", rule["expr"])
        has = set.intersection(*(known[each.name] | ON_EVERY_SERIES for each in selectors(rule["expr"])))
        if kept:
            has = {each.strip() for each in kept[1].split(",")}
        used = {name for text in rule["annotations"].values() for name in ALERT_LINE.findall(text)}
        assert used <= has, rule["alert"]


def test_every_rule_says_what_was_found_and_where_to_read_what_to_do() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    }
    for rule in rules():
        assert rule["for"], rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        file, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert file == "docs/operations.md"
        assert anchor in anchors, f"{rule['alert']}: docs/operations.md has no section {anchor!r}"
    assert len({rule["alert"] for rule in rules()}) == len(rules())


def test_causes_and_kinds_that_rules_name_exist() -> None:
    named = set(re.findall(r'cause!?="(\w+)"', rules_text()))
    assert named
    assert named <= {str(cause) for cause in Cause}


# ---- when they fire -----------------------------------------------------------------


class Case(NamedTuple):
    """Series that let one alert fire, and the same when all is well. promtool reads a value for each minute."""

    alert: str
    bad: dict[str, str]
    good: dict[str, str]
    minutes: int = 30


S = '{job="tidemark-layers",source="web"}'
CASES = [
    Case("TidemarkTargetDown", {'up{job="tidemark",component="serving"}': "0x40"}, {'up{job="tidemark"}': "1x40"}),
    Case(
        "TidemarkServiceNotReady",
        {'tidemark_service_ready{service="redis"}': "0x40"},
        {'tidemark_service_ready{service="redis"}': "1x9 0 1x30"},
    ),
    Case(
        "TidemarkServiceRestarting",
        {'tidemark_service_restarts_total{service="speed",cause="crash"}': "0+0.2x40"},
        {
            'tidemark_service_restarts_total{service="speed",cause="crash"}': "0x20 1x20",
            'tidemark_service_restarts_total{service="speed",cause="request"}': "0+1x40",
        },
    ),
    Case(
        "TidemarkServiceHung",
        {'tidemark_service_restarts_total{service="speed",cause="hang"}': "0x20 1x20"},
        {
            'tidemark_service_restarts_total{service="speed",cause="hang"}': "7x40",
            'tidemark_service_restarts_total{service="speed",cause="crash"}': "0x20 1x20",
        },
    ),
    Case(
        "TidemarkClockWrong",
        {"tidemark_clock_timestamp_seconds": "60+60x40"},
        {"tidemark_clock_timestamp_seconds": "1+60x40"},
    ),
    Case(
        "TidemarkDiskLow",
        {'tidemark_collector_disk_low{disk="kafka"}': "1x40"},
        {'tidemark_collector_disk_low{disk="kafka"}': "0x40"},
    ),
    Case(
        "TidemarkDiskFilling",
        {'tidemark_collector_disk_free_bytes{disk="kafka"}': "9000000000-8000000x100"},
        {'tidemark_collector_disk_free_bytes{disk="kafka"}': "9000000000-200000x100"},
        minutes=90,
    ),
    Case(
        "TidemarkCollectorErrors",
        {'tidemark_collector_responses_total{status="503"}': "0+3x40"},
        {
            'tidemark_collector_responses_total{status="503"}': "3x40",
            'tidemark_collector_responses_total{status="507"}': "0+3x40",
            'tidemark_collector_responses_total{status="400"}': "0+3x40",
        },
    ),
    Case(
        "TidemarkDeadLetters",
        {f"tidemark_archiver_dead_letters_total{S}": "0+1x40"},
        {f"tidemark_archiver_dead_letters_total{S}": "9x40"},
    ),
    Case(
        "TidemarkArchiverRefused", {f"tidemark_archiver_refused{S}": "1x40"}, {f"tidemark_archiver_refused{S}": "0x40"}
    ),
    Case(
        "TidemarkArchiverBehind",
        {f"tidemark_archiver_behind_offsets{S}": "5x40", f"tidemark_archiver_last_commit_age_seconds{S}": "600+60x40"},
        {f"tidemark_archiver_behind_offsets{S}": "5x40", f"tidemark_archiver_last_commit_age_seconds{S}": "20x40"},
    ),
    Case(
        "TidemarkArchiverBehind",
        {f"tidemark_archiver_behind_offsets{S}": "5x40"},
        {f"tidemark_archiver_behind_offsets{S}": "0x40"},
    ),
    Case(
        "TidemarkKeyExpires",
        {'tidemark_access_key_expires_timestamp_seconds{key="shop"}': "500000x40"},
        {'tidemark_access_key_expires_timestamp_seconds{key="shop"}': "900000x40"},
    ),
    Case(
        "TidemarkRunOverdue",
        {f"tidemark_batch_overdue_seconds{S}": "0+60x40"},
        {f"tidemark_batch_overdue_seconds{S}": "0x20 60x5 0x20"},
    ),
    Case("TidemarkRunsFailing", {f"tidemark_batch_failed_runs{S}": "3x40"}, {f"tidemark_batch_failed_runs{S}": "2x40"}),
    Case(  # promtool's time begins at 0
        "TidemarkRunTooOld",
        {f"tidemark_batch_last_success_timestamp_seconds{S}": "-180000x40"},
        {f"tidemark_batch_last_success_timestamp_seconds{S}": "-160000x40"},
    ),
    Case(
        "TidemarkBatchTrouble",
        {
            f"tidemark_batch_trouble{S}": "1x40",
            f"tidemark_batch_overdue_seconds{S}": "0x40",
            f"tidemark_batch_failed_runs{S}": "0x40",
        },
        {f"tidemark_batch_trouble{S}": "1x40", f"tidemark_batch_failed_runs{S}": "1x40"},
    ),
    Case("TidemarkSpeedRefused", {f"tidemark_speed_refused{S}": "1x40"}, {f"tidemark_speed_refused{S}": "0x40"}),
    Case(
        "TidemarkSpeedBehind",
        {f"tidemark_speed_behind_seconds{S}": "0+60x40"},
        {f"tidemark_speed_behind_seconds{S}": "3x40"},
    ),
    Case(
        "TidemarkRedisNearlyFull",
        {f"tidemark_speed_redis_used_bytes{S}": "85x40", f"tidemark_speed_redis_max_bytes{S}": "100x40"},
        {f"tidemark_speed_redis_used_bytes{S}": "75x40", f"tidemark_speed_redis_max_bytes{S}": "100x40"},
    ),
    Case(
        "TidemarkManyKeys",
        {'tidemark_speed_largest_bucket_groups{source="web",view="hits"}': "100000+10000x60"},
        {'tidemark_speed_largest_bucket_groups{source="web",view="hits"}': "200000x60"},
    ),
    Case(
        "TidemarkAnswersDegraded", {f"tidemark_serving_degraded{S}": "1x40"}, {f"tidemark_serving_degraded{S}": "0x40"}
    ),
    Case(
        "TidemarkViewQuarantined",
        {'tidemark_serving_set_aside{source="web",view="hits"}': "1x40"},
        {'tidemark_serving_set_aside{source="web",view="hits"}': "0x40"},
    ),
    Case(
        "TidemarkUnexplainedDifferences",
        {'tidemark_serving_unexplained_groups{source="web",view="hits"}': "2x40"},
        {'tidemark_serving_unexplained_groups{source="web",view="hits"}': "0x40"},
    ),
    Case(
        "TidemarkServingErrors",
        {'tidemark_serving_responses_total{status="500"}': "0+1x40"},
        {
            'tidemark_serving_responses_total{status="500"}': "1x40",
            'tidemark_serving_responses_total{status="422"}': "0+9x40",
        },
    ),
    Case(
        "TidemarkDeliveryFailing",
        {'tidemark_alerts_failed_total{target="hook"}': "0+1x40", 'tidemark_alerts_waiting{target="hook"}': "2x40"},
        {'tidemark_alerts_failed_total{target="hook"}': "0+1x40", 'tidemark_alerts_waiting{target="hook"}': "0x40"},
    ),
    Case(
        "TidemarkNotificationsGivenUp",
        {'tidemark_alerts_given_up_total{target="hook"}': "0x20 1x20"},
        {'tidemark_alerts_given_up_total{target="hook"}': "3x40"},
    ),
]
SUPERVISED = {'tidemark_service_ready{service="kafka"}': "1x100"}
"""Every installation has this; without it TidemarkSupervisorMissing fires."""


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".venv/share/prometheus/usr/bin")
    if found is None:
        pytest.skip("there is no promtool: `make promtool` fetches it where Debian's packages can be had")
    return found


def run(promtool: str, *arguments: str) -> str:
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def firing(name: str, series: dict[str, str], minutes: int, alerts: Iterable[str]) -> dict[str, Any]:
    """A test of promtool: which alerts fire, and that no other does."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
            }
        ],
    }


def bundles() -> list[list[Case]]:
    """Cases that share no metric and no alert, together: promtool takes half a second for each test."""
    made: list[list[Case]] = []
    for case in CASES:
        fitting = (each for each in made if not any(_meet(case, other) for other in each))
        bundle = next(fitting, None)
        if bundle is None:
            made.append([case])
        else:
            bundle.append(case)
    return made


def _meet(one: Case, other: Case) -> bool:
    names, others = ({series.partition("{")[0] for series in (*case.bad, *case.good)} for case in (one, other))
    return one.alert == other.alert or one.minutes != other.minutes or not names.isdisjoint(others)


def test_every_rule_has_a_case() -> None:
    assert {case.alert for case in CASES} | {"TidemarkSupervisorMissing"} == {rule["alert"] for rule in rules()}


def test_each_alert_fires_once_on_bad_series_and_none_on_good_ones(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "tidemark.rules.yml").write_text(rules_text(), encoding="utf-8")
    tests = [firing("nobody supervises", {"nothing": "0x40"}, 30, ["TidemarkSupervisorMissing"])]
    for cases in bundles():
        bad = {series: values for case in cases for series, values in case.bad.items()}
        good = {series: values for case in cases for series, values in case.good.items()}
        alerts = [case.alert for case in cases]
        tests.append(firing(f"bad: {alerts}", {**SUPERVISED, **bad}, cases[0].minutes, alerts))
        tests.append(firing(f"good: {alerts}", {**SUPERVISED, **good}, cases[0].minutes, []))
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": ["tidemark.rules.yml"], "evaluation_interval": "1m", "tests": tests}),
        encoding="utf-8",
    )
    run(promtool, "check", "rules", str(tmp_path / "tidemark.rules.yml"))
    assert "SUCCESS" in run(promtool, "test", "rules", str(tmp_path / "tests.yml"))


# ---- the configuration ---------------------------------------------------------------


def test_configuration_has_the_ports_of_the_home_and_sends_the_key_to_rest_servers_alone(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, serving_port=4711, alerts_enabled=False, collector_host="0.0.0.0")
    assert "collector_port" in unknown_ports(settings)
    names = ("collector", "scheduler_metrics", "archiver_metrics", "speed_metrics", "supervisor_metrics")
    write_json(Home(tmp_path).ports_file, {f"{name}_port": 7000 + number for number, name in enumerate(names)})
    assert unknown_ports(settings) == []
    servers, layers = yaml.safe_load(configuration_text(settings))["scrape_configs"]
    assert targets(servers) == {"collector": "127.0.0.1:7000", "serving": "127.0.0.1:4711"}
    assert targets(layers) == {
        "scheduler": "127.0.0.1:7001", "archiver": "127.0.0.1:7002", "speed": "127.0.0.1:7003",
        "supervisor": "127.0.0.1:7004",
    }  # fmt: skip
    assert "basic_auth" in servers
    assert "basic_auth" not in layers


def targets(job: dict[str, Any]) -> dict[str, str]:
    return {each["labels"]["component"]: each["targets"][0] for each in job["static_configs"]}


def test_promtool_understands_the_configuration(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "tidemark.rules.yml").write_text(rules_text(), encoding="utf-8")
    (tmp_path / "tidemark.secret").write_text("x")
    (tmp_path / "prometheus.yml").write_text(configuration_text(load_settings(home=tmp_path)), encoding="utf-8")
    run(promtool, "check", "config", str(tmp_path / "prometheus.yml"))


def test_keys_that_expire_are_a_metric(tmp_path: Path) -> None:
    add_key(tmp_path, "for-ever", ["query"])
    add_key(tmp_path, "for-a-day", ["query"], expires_s=24 * 3600)
    (family,) = KeyMetrics(tmp_path).collect()
    assert [sample.labels for sample in family.samples] == [{"key": "for-a-day"}]
