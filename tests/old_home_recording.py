"""Record a home that another version of Tidemark makes, for `tests/fixtures`: its data, and what it answered.

    python -m tests.old_home_recording CHECKOUT tests/fixtures/home-0.1.0 tests/fixtures/home-0.1.0.tar.xz

CHECKOUT has that version, after `make setup`; the folder has its declarations. The whole stack runs, with two batch
runs and events after them, duplicates of each part in the next, invalid events, an access key, an alert that fired and
is muted. Left out of the archive are what every start writes: configurations, ports, logs, status. No file may name a
folder of this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.conftest import INTERPRETED
from torture.environments import QUICK_JAVA

FIRST = datetime(2025, 12, 28, tzinfo=UTC)
DAYS = (0, 2, 40, 41)
PARTS = (130, 90, 60)
"""Events before the first run, before the second, and after it."""
WINDOW = {"from": "2025-12-28", "to": "2026-03-10"}
QUERIES: tuple[tuple[str, dict[str, str]], ...] = (
    ("sales", {"grain": "1d", "by": "item,size"}),
    ("sales", {"grain": "1h", "by": "item", "item.not": "mug"}),
    ("sales", {"quantiles": "0.25,0.99"}),
    ("totals", {"grain": "1d"}),
    ("totals", {"grain": "month"}),
    ("customers", {"by": "user_id"}),
    ("customers", {"grain": "1d", "by": "user_id,on_day,gift"}),
)
"""Views and parameters, in the range WINDOW."""
BATCH_ONLY: tuple[tuple[str, dict[str, str]], ...] = (
    ("sales", {"grain": "1d", "by": "item,size"}),
    ("totals", {"grain": "1d"}),
    ("customers", {"grain": "1d", "by": "user_id,on_day,gift"}),
)
LEFT_OUT = ("logs", "run", "spark", "ports.json", "redis/redis.conf", "kafka/server.properties")
SETTINGS = {
    "TIDEMARK_WITH_EXAMPLES": "false",
    "TIDEMARK_BATCH_SCHEDULE": "",
    "TIDEMARK_ARCHIVE_INTERVAL_S": "1",
    "TIDEMARK_ALERTS_LATE_S": str(10**9),
    "TIDEMARK_CONFIG": os.devnull,
    "TIDEMARK_SPARK_CONF": json.dumps(INTERPRETED),
    "JDK_JAVA_OPTIONS": QUICK_JAVA,
}


class Recorder:
    """An installation of the other version, in a folder of its own."""

    def __init__(self, checkout: Path, declarations: Path, folder: Path) -> None:
        self.command = str(checkout / ".venv" / "bin" / "tidemark")
        self.folder, self.home = folder, folder / "home"
        views = folder / "views"
        views.mkdir()
        for path in declarations.glob("*.py"):
            (views / path.name).write_bytes(path.read_bytes())
        known = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
        known.pop("PYTHONPATH", None)
        places = {"HOME": self.home, "VIEWS_DIR": views, "PORTS_FILE": folder / "ports.json"}
        self.environment = known | SETTINGS | {f"TIDEMARK_{name}": str(path) for name, path in places.items()}
        self.secret = ""

    def run(self, *words: str, **more: str) -> str:
        """What a command prints; its failure ends the recording."""
        done = subprocess.run(
            [self.command, *words],
            env=self.environment | more, cwd=self.folder, text=True, capture_output=True, check=False, timeout=600,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"tidemark {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def request(self, service: str, path: str, body: object = None, **parameters: str) -> Any:
        """What a service of the stack replies, by the key `web`."""
        port = json.loads((self.home / "ports.json").read_text())[f"{service}_port"]
        method, address = "GET" if body is None else "POST", f"http://127.0.0.1:{port}{path}"
        answer = httpx.request(method, address, params=parameters, json=body, auth=("web", self.secret), timeout=60)
        return answer.raise_for_status().json()

    def query(self, view: str, parameters: dict[str, str], **more: str) -> Any:
        """A result, and what it is made of."""
        return self.request("serving", f"/views/{view}/query", **WINDOW, **parameters, **more)


def events(count: int, seed: int, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events on a few days; every eighth is one that was sent before."""
    chance, made = Random(seed), list(known)  # noqa: S311 - made-up data, the same every time
    for number in range(count):
        if made and number % 8 == 7:
            made.append(chance.choice(made))
            continue
        at = FIRST + timedelta(days=chance.choice(DAYS), seconds=chance.randrange(86_400))
        cents = chance.choice((None, 0, -5, 99, chance.randrange(5000)))
        made.append(
            {
                "event_id": f"e-{seed}-{number}",
                "event_time": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "item": chance.choice(("mug", "kettle", "grün", "", None)),
                "size": chance.choice((1, 2, None)),
                "gift": chance.choice((True, False, None)),
                "on_day": chance.choice(("2026-01-01", None)),
                "user_id": f"u-{chance.randrange(12)}",
                "cents": cents,
                "price": None if cents is None else cents / 100,
                "ms": round(chance.lognormvariate(3, 2), 3),
            }
        )
    return made[len(known) :]


def record(recorder: Recorder) -> dict[str, Any]:
    """Run everything. Returns what was answered, and what tests need to ask again."""
    recorder.run("up", "--detach")
    try:
        words = ("keys", "add", "web", "-s", "produce", "-s", "query", "-o", "json")
        recorder.secret = json.loads(recorder.run(*words))["secret"]
        sent: list[dict[str, Any]] = []
        end: dict[str, int] = {}
        batch_only: dict[str, Any] = {}
        for run, count in enumerate(PARTS, start=1):
            part = events(count, run, sent)
            sent += part
            acknowledged = recorder.request("collector", "/events/shop", part)
            wrong = [{"value": value} for value in ('{"event_id": "x"}', "no JSON")]
            acknowledged += recorder.request("collector", "/produce/shop", wrong[: 1 + run % 2])
            for each in acknowledged:
                partition = str(each["partition"])
                end[partition] = max(end.get(partition, 0), each["offset"] + 1)
            _wait(recorder, end)
            _until("the master dataset to have everything", lambda: _archived(recorder) == end)
            if run < len(PARTS):
                recorder.run("batch", "run")
        without_redis = {"TIDEMARK_REDIS_URL": "redis://127.0.0.1:1/0"}
        for run in range(1, len(PARTS)):
            recorder.run("batch", "rollback", str(run))
            batch_only[str(run)] = [
                [view, parameters, json.loads(_without_redis(recorder, view, parameters, without_redis))["rows"]]
                for view, parameters in BATCH_ONLY
            ]
        recorder.run("batch", "rollback", "--latest")
        recorder.run("alerts", "mute", "busy", "--for", "9000d")
        _until("the alert to fire", lambda: _alert(recorder)["episodes"])
        answers = [
            [view, parameters, _until("a complete answer", lambda: _complete(recorder, view, parameters, end))]  # noqa: B023
            for view, parameters in QUERIES
        ]
        return {
            "secret": recorder.secret, "end": end, "sent": len(sent), "window": WINDOW,
            "answers": answers, "batch": batch_only, "alert": _alert(recorder),
        }  # fmt: skip
    finally:
        recorder.run("down")


def _without_redis(recorder: Recorder, view: str, parameters: dict[str, str], more: dict[str, str]) -> str:
    options = [f"--{name}={value}" for name, value in (WINDOW | parameters).items()]
    return recorder.run("query", view, *options, "-o", "json", **more)


def _alert(recorder: Recorder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(recorder.run("alerts", "show", "busy", "-o", "json"))
    return found


def _archived(recorder: Recorder) -> dict[str, int]:
    (row,) = json.loads(recorder.run("master", "status", "shop", "-o", "json"))
    return {part: int(end) for part, end in (pair.split(":") for pair in row["cut"].split(",") if pair)}


def _wait(recorder: Recorder, end: dict[str, int]) -> None:
    cut = ",".join(f"{partition}:{offset}" for partition, offset in sorted(end.items()))
    for view in ("sales", "totals", "customers"):
        found = recorder.query(view, {}, min_cut=cut, wait="30s")
        assert found["meta"]["cut"] == end, found["meta"]


def _complete(recorder: Recorder, view: str, parameters: dict[str, str], end: dict[str, int]) -> Any:
    """The result of the newest run and everything after it, or None."""
    found = recorder.query(view, parameters)
    meta = found["meta"]
    is_complete = meta["complete"] and meta["cut"] == end and meta["batch"]["run"] == len(PARTS) - 1
    return found if is_complete else None


def _until(what: str, condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + 120
    while not (found := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"Waited 120 s for {what}, which did not come.")
        time.sleep(0.5)
    return found


def pack(folder: Path, target: Path) -> None:
    """Archive the home and what it answered, without what names the folder."""
    named = []

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        inside = member.name.removeprefix("home/")
        if member.isdir() and inside in LEFT_OUT:
            return _plain(member)
        if any(inside == name or inside.startswith(f"{name}/") for name in LEFT_OUT):
            return None
        if member.isfile() and str(folder).encode() in (folder / member.name).read_bytes():
            named.append(member.name)
        return _plain(member)

    with tarfile.open(target, "w:xz", preset=9) as archive:
        for name in ("home", "answers.json"):
            archive.add(folder / name, name, filter=kept)
    if named:
        raise SystemExit(f"These files name the folder of this machine: {', '.join(named)}.")


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    checkout, declarations, target = (Path(word).resolve() for word in sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="old-home-") as made:
        folder = Path(made)
        recorder = Recorder(checkout, declarations, folder)
        answers = record(recorder)
        (folder / "answers.json").write_text(json.dumps(answers, indent=1, ensure_ascii=False), encoding="utf-8")
        pack(folder, target)
    print(f"{target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
