"""A program that reads one topic and writes another by REST, in one of three orders, and may be killed in between.

    python rest_pipeline.py URL SECRET ORDER INPUT OUTPUT GROUP INSTANCE DIE_AT

It kills itself with SIGKILL in the batch DIE_AT (0: never), between the two steps of its order, after it has printed
the batch. It ends when its group has committed everything that was in INPUT when it began. What the group takes away
from its instance meanwhile makes it begin again, as docs/collector.md says.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

import httpx

BATCH = 7
PARTITIONS = 2
TIMEOUT_MS = 500
CONFLICT = 409


@dataclass
class Pipeline:
    """One program, and the instance of the group that it reads as."""

    client: httpx.Client
    source: str
    target: str
    group: str
    instance: str
    batches: int = 0

    @property
    def name(self) -> str:
        return f"{self.group}-{self.instance}"

    def start_over(self, order: str) -> None:
        # What an earlier life of this program had read and not committed is read again.
        self.client.post(f"/delete-consumer/{self.group}/{self.instance}")
        if order == "exactly-once":  # so is its transaction, which Kafka lets nobody read past
            self.ask(f"/transactions/{self.ask('/transactions', {'name': self.name})['transaction']}/abort")

    def run(self, order: str, die_at: int) -> None:
        partitions = [{"topic": self.source, "partition": number} for number in range(PARTITIONS)]
        end = self.ask("/offsets/latest", partitions)
        while self.ask(f"/committed/{self.group}/{self.instance}", partitions) != end:
            batch = self.ask(f"/consume/{self.group}/{self.instance}/{self.source}?limit={BATCH}&timeout={TIMEOUT_MS}")
            if batch:
                self.batches += 1
                ORDERS[order](self, batch, is_last=self.batches == die_at)

    def at_most_once(self, batch: list[Any], *, is_last: bool) -> None:
        self.ask(f"/commit/{self.group}/{self.instance}")
        die_if(is_last, batch)
        self.ask(f"/produce/{self.target}", messages(batch))

    def at_least_once(self, batch: list[Any], *, is_last: bool) -> None:
        self.ask(f"/produce/{self.target}", messages(batch))
        die_if(is_last, batch)
        self.ask(f"/commit/{self.group}/{self.instance}")

    def exactly_once(self, batch: list[Any], *, is_last: bool) -> None:
        transaction = self.ask("/transactions", {"name": self.name})["transaction"]
        self.ask(f"/transactions/{transaction}/produce/{self.target}", messages(batch))
        self.ask(f"/transactions/{transaction}/offsets", {"group": self.group, "instance": self.instance})
        die_if(is_last, batch)
        self.ask(f"/transactions/{transaction}/commit")

    def ask(self, path: str, body: Any = None) -> Any:
        answer = self.client.post(path, json=body) if body is not None else self.client.post(path)
        answer.raise_for_status()
        return answer.json()


def main() -> None:
    url, secret, order, source, target, group, instance, die_at = sys.argv[1:]
    with httpx.Client(base_url=url, auth=("admin", secret), timeout=60) as client:
        pipeline = Pipeline(client, source, target, group, instance)
        is_done = False
        while not is_done:
            try:
                pipeline.start_over(order)
                pipeline.run(order, int(die_at))
                is_done = True
            except httpx.HTTPStatusError as error:
                if error.response.status_code != CONFLICT:
                    raise
        client.post(f"/delete-consumer/{group}/{instance}")


ORDERS = {
    "at-most-once": Pipeline.at_most_once,
    "at-least-once": Pipeline.at_least_once,
    "exactly-once": Pipeline.exactly_once,
}


def messages(batch: list[Any]) -> list[Any]:
    return [{"value": record["value"]} for record in batch]


def die_if(is_time: bool, batch: list[Any]) -> None:
    if is_time:
        sys.stdout.write(json.dumps([record["value"] for record in batch]) + "\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
