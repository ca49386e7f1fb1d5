"""The speed layer alone on a Spark cluster, a standalone master and two workers, in both ways of docs/speed.md."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil
import pytest

from infra.java.find import find_java
from infra.settings import child_environment, load_settings
from infra.stack.ports import LOOPBACK
from tests.conftest import Stack, wait_until
from tests.system.redis_server import free_port

pytestmark = pytest.mark.soak

if TYPE_CHECKING:
    from tests.system.speed_source import RedisServer, SpeedPlace

MEMORY = "512m"
"""Of an executor. The default would not fit on our workers."""


class Cluster(NamedTuple):
    """Where the master is, and what it and the workers say."""

    master: str
    log: Path

    def executors(self) -> int:
        """How many were ever started."""
        return self.log.read_text().count("Launching executor")


@contextmanager
def ending(started: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A program that ends with the block, and all that it started."""
    try:
        yield started
    finally:
        below = psutil.Process(started.pid).children(recursive=True) if started.poll() is None else []
        started.kill()
        started.wait(timeout=20)
        for each in below:
            if each.is_running():
                each.kill()


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone master and two workers, from the installed PySpark."""
    import pyspark

    spark_home, folder, port = Path(pyspark.__file__).parent, tmp_path_factory.mktemp("cluster"), free_port()
    address, log = f"spark://{LOOPBACK}:{port}", folder / "cluster.log"
    at = ["--host", LOOPBACK, "--webui-port", "0"]
    worker = ["worker.Worker", *at, "--cores", "1", "--memory", "600m", "--work-dir", str(folder / "work"), address]
    environment = {
        **os.environ, "SPARK_HOME": str(spark_home), "JAVA_HOME": str(find_java(load_settings().java_home).home),
        "SPARK_LOCAL_IP": LOOPBACK, "SPARK_DAEMON_MEMORY": "256m",
    }  # fmt: skip
    with ExitStack() as running:
        for program in (["master.Master", *at, "--port", str(port)], worker, worker):
            # By spark-class, as Spark's own scripts do: started without it, a worker cannot start executors.
            command = [str(spark_home / "bin" / "spark-class"), f"org.apache.spark.deploy.{program[0]}", *program[1:]]
            with log.open("ab") as file:
                running.enter_context(ending(subprocess.Popen(command, env=environment, stdout=file, stderr=file)))
        wait_until("two workers", lambda: log.read_text().count("Registering worker") >= 2, 60)
        yield Cluster(address, log)


@pytest.fixture
def speed(stack: Stack, tmp_path: Path, redis: RedisServer, spark_cluster: Cluster) -> SpeedPlace:
    """A source whose speed layer is to run there."""
    from tests.system.speed_source import SpeedPlace

    return SpeedPlace(stack, tmp_path, redis, None)


def by_python(speed: SpeedPlace, master: str) -> subprocess.Popen[bytes]:
    conf = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    speed.settings = speed.settings.model_copy(
        update={"spark_master": master, "spark_executor_memory": MEMORY, "spark_conf": conf}
    )
    return speed.process()


def by_spark_submit(speed: SpeedPlace, master: str) -> subprocess.Popen[bytes]:
    programs = Path(sys.executable).parent
    seen = {**os.environ, **child_environment(speed.settings)}
    jars = subprocess.check_output([programs / "tidemark", "jars", "--for-spark"], env=seen, text=True).strip()
    options = ["--master", master, "--jars", jars, "--executor-memory", MEMORY]
    options += ["--conf", f"spark.driver.host={LOOPBACK}", "--conf", f"spark.driver.bindAddress={LOOPBACK}"]
    script = Path(__file__).parents[2] / "speed_layer" / "__main__.py"
    return speed.spawn([str(programs / "spark-submit"), *options, str(script)], PYSPARK_PYTHON=sys.executable)


@pytest.mark.parametrize("start", [by_python, by_spark_submit])
def test_the_speed_layer_keeps_up_on_a_cluster(
    speed: SpeedPlace, spark_cluster: Cluster, start: Callable[[SpeedPlace, str], subprocess.Popen[bytes]]
) -> None:
    before = spark_cluster.executors()
    speed.send(poison=3)
    with ending(start(speed, spark_cluster.master)) as running:
        speed.wait_until_applied(120)
        speed.send()
        speed.caught_up()
        assert running.poll() is None
    assert spark_cluster.executors() == before + 2, "one on each worker"
