"""When access keys expire, as a metric: nobody should learn it from the requests that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from infra.rest.access_keys import AccessKeyError, AccessKeys


class KeyMetrics(Collector):
    """Reads the keys of a home at each scrape. A damaged file leaves them out: requests report it."""

    def __init__(self, home: Path) -> None:
        self._keys = AccessKeys(home)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metric; the registry calls it."""
        family = GaugeMetricFamily(
            "tidemark_access_key_expires_timestamp_seconds",
            "When an access key expires, in seconds since 1970; keys that do not expire are left out.",
            labels=["key"],
        )
        with suppress(AccessKeyError):
            for key in self._keys.current().values():
                if key.expires is not None:
                    family.add_metric([key.name], key.expires)
        yield family
