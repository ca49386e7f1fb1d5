"""The configuration of a Prometheus that watches one home: the ports that the home really has, and the rules."""

from __future__ import annotations

from importlib.resources import files

from infra.home import Home, read_json
from infra.settings import Settings
from infra.stack.addresses import wanted_ports
from infra.stack.ports import FIRST, LOOPBACK

RULES_FILE = "tidemark.rules.yml"
KEY_NAME = "prometheus"
WITH_KEY = {"collector_port": "collector", "serving_port": "serving"}
WITHOUT_KEY = {
    "scheduler_metrics_port": "scheduler",
    "archiver_metrics_port": "archiver",
    "speed_metrics_port": "speed",
    "alerts_metrics_port": "alerts",
    "supervisor_metrics_port": "supervisor",
}


def rules_text() -> str:
    """The alerting rules."""
    return files(__name__.rpartition(".")[0]).joinpath(RULES_FILE).read_text(encoding="utf-8")


def configuration_text(settings: Settings) -> str:
    """A configuration. Two jobs: only the REST servers are sent the key."""
    hosts = {"collector_port": settings.collector_host, "serving_port": settings.serving_host}
    wanted, chosen = wanted_ports(settings), read_json(Home(settings.home).ports_file) or {}
    addresses = {
        setting: f"{_reachable(hosts.get(setting, LOOPBACK))}:{port or chosen.get(setting) or FIRST[setting]}"
        for setting, port in wanted.items()
    }
    return f"""\
# Made by `tidemark prometheus-config`. Make it again when ports change.
# Prometheus proves this access key to the collector and the serving layer:
#   tidemark keys add {KEY_NAME} --scope metrics
# Write its secret, without a line break, into the file that password_file names.
global:
  scrape_interval: 15s
  evaluation_interval: 15s

rule_files:
  - {RULES_FILE}  # tidemark prometheus-rules > {RULES_FILE}

scrape_configs:
  - job_name: tidemark
    basic_auth:
      username: {KEY_NAME}
      password_file: tidemark.secret
    static_configs:
{_targets(addresses, WITH_KEY)}
  - job_name: tidemark-layers
    static_configs:
{_targets(addresses, WITHOUT_KEY)}
"""


def unknown_ports(settings: Settings) -> list[str]:
    """The settings of ports that the home has not chosen yet: the configuration has the usual ones instead."""
    chosen = read_json(Home(settings.home).ports_file) or {}
    asked = {**WITH_KEY, **WITHOUT_KEY}
    return [name for name, port in wanted_ports(settings).items() if name in asked and not port and name not in chosen]


def _targets(addresses: dict[str, str], components: dict[str, str]) -> str:
    lines = [
        f'      - targets: ["{addresses[setting]}"]\n        labels: {{component: {component}}}'
        for setting, component in components.items()
        if setting in addresses
    ]
    return "\n".join(lines) or "      []"


def _reachable(host: str) -> str:
    """An address by which a server on this machine can be asked."""
    if host in ("0.0.0.0", "::", ""):  # noqa: S104  nothing listens here
        return LOOPBACK
    return f"[{host}]" if ":" in host else host
