"""A program that reads one topic and writes another by REST, in one of three orders, and may be killed in between.

    python rest_pipeline.py URL SECRET ORDER INPUT OUTPUT GROUP DIE_AT

It kills itself with SIGKILL in the batch DIE_AT (0: never), between the two steps of its order, after it has printed
the batch. It ends when its group has committed everything that was in INPUT when it began.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import httpx

BATCH = 7
PARTITIONS = 2
TIMEOUT_MS = 500


def main() -> None:
    url, secret, order, source, target, group, die_at = sys.argv[1:]
    with httpx.Client(base_url=url, auth=("admin", secret), timeout=60) as client:
        # What an earlier life of this program had read and not committed is read again.
        client.post(f"/delete-consumer/{group}/only")
        if order == "exactly-once":  # so is its transaction, which Kafka lets nobody read past
            ask(client, f"/transactions/{ask(client, '/transactions', {'name': group})['transaction']}/abort")
        partitions = [{"topic": source, "partition": number} for number in range(PARTITIONS)]
        end = ask(client, "/offsets/latest", partitions)
        number = 0
        while ask(client, f"/committed/{group}/only", partitions) != end:
            batch = ask(client, f"/consume/{group}/only/{source}?limit={BATCH}&timeout={TIMEOUT_MS}")
            if batch:
                number += 1
                ORDERS[order](client, target, group, batch, is_last=number == int(die_at))


def at_most_once(client: httpx.Client, target: str, group: str, batch: list[Any], *, is_last: bool) -> None:
    ask(client, f"/commit/{group}/only")
    die_if(is_last, batch)
    ask(client, f"/produce/{target}", messages(batch))


def at_least_once(client: httpx.Client, target: str, group: str, batch: list[Any], *, is_last: bool) -> None:
    ask(client, f"/produce/{target}", messages(batch))
    die_if(is_last, batch)
    ask(client, f"/commit/{group}/only")


def exactly_once(client: httpx.Client, target: str, group: str, batch: list[Any], *, is_last: bool) -> None:
    transaction = ask(client, "/transactions", {"name": group})["transaction"]
    ask(client, f"/transactions/{transaction}/produce/{target}", messages(batch))
    ask(client, f"/transactions/{transaction}/offsets", {"group": group, "instance": "only"})
    die_if(is_last, batch)
    ask(client, f"/transactions/{transaction}/commit")


ORDERS = {"at-most-once": at_most_once, "at-least-once": at_least_once, "exactly-once": exactly_once}


def messages(batch: list[Any]) -> list[Any]:
    return [{"value": record["value"]} for record in batch]


def ask(client: httpx.Client, path: str, body: Any = None) -> Any:
    answer = client.post(path, json=body) if body is not None else client.post(path)
    answer.raise_for_status()
    return answer.json()


def die_if(is_time: bool, batch: list[Any]) -> None:
    if is_time:
        sys.stdout.write(json.dumps([record["value"] for record in batch]) + "\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
