"""Seconds from `tidemark up` to all ready, beside the same servers started by hand; the idle stack; set-up; `--help`.

The floor is what nobody can beat: a bare broker and a bare Redis, on a home that is already formatted, until they
answer. Then everything is started, and left alone: the processor time of each process over a minute, and its memory.

    python benchmarks/bench_startup.py [--runs 5] [--whole-runs 3] [--idle 60]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import report

from infra.clients.kafka_admin import check_kafka
from infra.home import Home, read_json
from infra.java.find import find_java
from infra.java.jars import cached_jars
from infra.secret_files import ensure_secret
from infra.settings import Settings, load_settings
from infra.stack import up
from infra.stack.kafka_broker import kafka_service
from infra.stack.redis_server import check_redis_port, find_redis_server

SETTLE_S = 75
"""How long a stack is left alone before it counts as idle: for a minute the speed layer asks Kafka ever less often."""
IDLE_AIM_CORES, IDLE_AIM_MB, WHOLE_AIM_S = 0.10, 1_800, 12
AIM_S = 15
ROOT = Path(__file__).parents[1]
TIDEMARK = str(Path(sys.executable).with_name("tidemark"))


def main() -> None:
    """Measure, and write the result and the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=5, help="starts of Kafka and Redis, and of each command")
    options.add_argument("--whole-runs", type=int, default=3, help="starts of everything")
    options.add_argument("--idle", type=float, default=60, help="seconds for which the idle stack is watched")
    given = options.parse_args()
    machine = report.machine()
    timed(["make", "--silent", "setup"])  # so that nothing has changed when it is measured
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            home=Path(folder) / "home", collector_enabled=False, archiver_enabled=False, scheduler_enabled=False,
            speed_enabled=False, serving_enabled=False, alerts_enabled=False,
        )  # fmt: skip
        first_s = timed_up(settings, lambda: None)
        memory = {}

        def remember_memory() -> None:
            memory.update(resident_mb(settings))

        floor, ours = [], []
        for _ in range(given.runs):  # in turns, so that a busy minute falls on both
            floor.append(floor_up(settings))
            ours.append(timed_up(settings, remember_memory))
        whole = settings.model_copy(
            update={
                "collector_enabled": True,
                "archiver_enabled": True,
                "scheduler_enabled": True,
                "speed_enabled": True,
                "serving_enabled": True,
                "alerts_enabled": True,
            }
        )
        whole_memory: dict[str, int] = {}
        idle_cores: dict[str, float] = {}

        def remember_all() -> None:
            time.sleep(SETTLE_S)
            idle_cores.update(used_cores(whole, given.idle))
            whole_memory.update(resident_mb(whole))

        timed_up(whole, lambda: None)  # makes the tables
        # Only the last of them is watched: the others are for the time that starting takes.
        whole_s = [timed_up(whole, lambda: None) for _ in range(given.whole_runs - 1)]
        whole_s.append(timed_up(whole, remember_all))
    tool = [timed([TIDEMARK, "--help"]) for _ in range(given.runs)]
    python = [timed([sys.executable, "-c", "pass"]) for _ in range(given.runs)]
    setup = [timed(["make", "--silent", "setup"]) for _ in range(given.runs)]
    result: dict[str, Any] = {
        "machine": machine,
        "first_up_s": round(first_s, 2),
        "up_s": report.median(ours),
        "floor_s": report.median(floor),
        "ratio": round(report.median(ours)["median"] / report.median(floor)["median"], 2),
        "aim_s": AIM_S,
        "idle_memory_mb": memory,
        "whole_up_s": report.median(whole_s),
        "whole_idle_memory_mb": whole_memory,
        "idle_cores": idle_cores,
        "idle_measured_s": given.idle,
        "setup_s": report.median(setup),
        "help_s": report.median(tool),
        "python_s": report.median(python),
    }
    report.write("startup", "Start of the stack, and the idle stack", result, text(result))


def text(result: dict[str, Any]) -> str:
    """The result as the page shows it."""
    memory = result["idle_memory_mb"]
    rows = report.table(
        ("what", "median (least – most)", "beside"),
        ("`tidemark up --detach`, warm, until all ready", report.seconds(result["up_s"]),
         f"{result['ratio']} × the floor; aim: under {result['aim_s']} s"),
        ("floor: bare broker and bare Redis until they answer", report.seconds(result["floor_s"]), ""),
        ("`tidemark up --detach` on a new home", f"{result['first_up_s']:.2f} s", "once: Kafka's data folder is made"),
        ("the same with all processes, warm", report.seconds(result["whole_up_s"]), f"aim: {WHOLE_AIM_S} s"),
        ("`make setup` when nothing changed", report.seconds(result["setup_s"]), "every jar's hash is checked"),
        ("`tidemark --help`", report.seconds(result["help_s"]),
         f"`python -c pass`: {report.seconds(result['python_s'])}"),
    )  # fmt: skip
    used = " · ".join(f"{name} {megabytes} MB" for name, megabytes in memory.items())
    all_of_it = result["whole_idle_memory_mb"]
    cores = result["idle_cores"]
    idle = report.table(
        ("idle, all processes", *all_of_it, "together", "aim"),
        ("cores", *(f"{cores[name]:.3f}" for name in all_of_it), f"{sum(cores.values()):.2f}", f"{IDLE_AIM_CORES:.2f}"),
        ("memory", *(f"{each} MB" for each in all_of_it.values()), f"{sum(all_of_it.values()):,} MB",
         f"{IDLE_AIM_MB:,} MB"),
    )  # fmt: skip
    return (
        f"{rows}\n\n{idle}\n\nProcessor time over {result['idle_measured_s']:g} s without an event, begun {SETTLE_S} s "
        "after all were ready, with the example views; resident memory after it. Kafka and Redis alone: "
        f"{used}, together {sum(memory.values())} MB."
    )


def timed_up(settings: Settings, while_up: Callable[[], None]) -> float:
    """Seconds of `up --detach`. The stack is taken down again after `while_up`."""
    environment = {**os.environ, **up.child_environment(settings)}
    began = time.perf_counter()
    subprocess.run([TIDEMARK, "up", "--detach"], env=environment, check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - began
    try:
        while_up()
    finally:
        subprocess.run([TIDEMARK, "down"], env=environment, check=True, stdout=subprocess.DEVNULL)
    return took


def floor_up(settings: Settings) -> float:
    """The same two servers on the same home, by hand and at the same time, until both answer a client."""
    home = Home(settings.home)
    ports = read_json(home.ports_file)
    java, jars = find_java(settings.java_home), cached_jars(settings.jars_dir)
    broker = kafka_service(settings, home, java, jars, ports)
    began = time.perf_counter()
    with running(broker.command), running((str(find_redis_server()), str(home.redis / "redis.conf"))):
        until(lambda: check_redis_port(ports["redis_port"], ensure_secret(home.redis_secret)))
        until(lambda: check_kafka(settings, broker.address))
        return time.perf_counter() - began


@contextmanager
def running(command: tuple[str, ...]) -> Iterator[None]:
    """A bare server, for as long as the block lasts."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def until(missing: Callable[[], str | None]) -> None:
    """Wait until nothing is missing."""
    deadline = time.monotonic() + 120
    while (what := missing()) is not None:
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def running_processes(settings: Settings) -> dict[str, list[psutil.Process]]:
    """The supervisor and each service, with the processes that a service started."""
    status = up.read_status(settings)
    if status is None:
        raise RuntimeError("nothing runs")
    pids = {"supervisor": status["pid"], **{each["name"]: each["pid"] for each in status["services"]}}
    return {name: with_children(name, pid) for name, pid in pids.items()}


def resident_mb(settings: Settings) -> dict[str, int]:
    """Resident memory of each."""
    return {name: sum(map(resident, each)) // 2**20 for name, each in running_processes(settings).items()}


def used_cores(settings: Settings, seconds: float) -> dict[str, float]:
    """Processor time of each over some seconds, in cores. What a service starts meanwhile is not in it, unless it ends:
    the system adds the time of ended children to their parent.
    """
    processes = running_processes(settings)
    began, before = time.monotonic(), {name: sum(map(processor_s, each)) for name, each in processes.items()}
    time.sleep(seconds)
    took = time.monotonic() - began
    return {name: round((sum(map(processor_s, each)) - before[name]) / took, 4) for name, each in processes.items()}


def processor_s(process: psutil.Process) -> float:
    """Processor time of a process and of the children that have ended."""
    return float(sum(process.cpu_times()[:4]))


def with_children(name: str, pid: int) -> list[psutil.Process]:
    """A service's processes; the supervisor's children are services of their own."""
    process = psutil.Process(pid)
    return [process] if name == "supervisor" else [process, *process.children(recursive=True)]


def resident(process: psutil.Process) -> int:
    """Bytes that a process holds in memory."""
    return int(process.memory_info().rss)


def timed(command: list[str]) -> float:
    """Seconds of one run."""
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
