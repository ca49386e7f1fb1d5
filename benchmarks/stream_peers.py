"""Kafka Streams and Flink, the peers of bench_speed.py: their jars, their compiled programs, their commands.

    python benchmarks/stream_peers.py [lock]

fetches the jars (170 MB, once); with `lock` it first writes the hashes of what `benchmarks/peers/ivy.xml` names.
Nothing of Tidemark needs them. The sketches are Spark's, from the jars of PySpark.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import Consumer, TopicPartition

from infra.clients.kafka import librdkafka_config
from infra.clients.redis import redis_login
from infra.java.find import Java, find_java
from infra.java.jars import locked_hashes, of_pyspark, run_ivy, sha256, verify
from infra.locks import hold
from infra.settings import Settings, load_settings

FOLDER = Path(__file__).parent / "peers"
IVY_FILE, HASH_FILE = FOLDER / "ivy.xml", FOLDER / "jars.sha256"
SHARED = ("Event", "State", "RedisSink")
PROGRAMS = {"Kafka Streams": ("streams", "KafkaStreamsPeer"), "Flink": ("flink", "FlinkPeer")}
"""By the name of a peer: the folder of its jars, and its class."""
HEAP = "-Xmx1g"


class NoCompiler(Exception):
    """The Java that is used here has no javac."""


def fetch(settings: Settings) -> Path:
    """The folder with the jars of all peers, each of the right hash; fetched unless it is there."""
    lock = hashlib.sha256(HASH_FILE.read_bytes()).hexdigest()[:16]
    folder, staging = settings.jars_dir / f"peers-{lock}", settings.jars_dir / "peers-staging"
    settings.jars_dir.mkdir(parents=True, exist_ok=True)
    with hold(settings.jars_dir / ".peers-lock"):
        if not folder.is_dir():
            run_ivy(find_java(settings.java_home), staging, settings.ivy_settings, ivy_file=IVY_FILE)
            verify(staging / "jars", locked_hashes(HASH_FILE))
            (staging / "jars").rename(folder)
            shutil.rmtree(staging)
    verify(folder, locked_hashes(HASH_FILE))
    return folder


def compiler_of(java: Java) -> Path:
    """Its javac."""
    found = java.home / "bin" / "javac"
    if not found.is_file():
        raise NoCompiler(f"{str(java.home)!r} has no javac; the peers need a JDK, like openjdk-17-jdk-headless.")
    return found


class Peers:
    """The compiled programs."""

    def __init__(self, settings: Settings, scratch: Path) -> None:
        self._java = find_java(settings.java_home)
        compiler = compiler_of(self._java)
        self._settings, self._scratch, self._jars = settings, scratch, fetch(settings)
        for kind, program in PROGRAMS.values():
            files = [str(FOLDER / f"{name}.java") for name in (*SHARED, program)]
            subprocess.run([compiler, "-d", scratch / kind, "-cp", self._class_path(kind), *files], check=True)

    def command(self, name: str, bootstrap: str, redis_url: str, topic: str, begin: dict[int, int]) -> list[str]:
        """How to start a peer that begins at these offsets; its secrets are in its environment."""
        kind, program = PROGRAMS[name]
        where = urlsplit(redis_url)
        state = self._scratch / f"{kind}-state"
        state.mkdir(exist_ok=True)
        group = f"peer-{kind}-{sum(begin.values())}"
        _commit(librdkafka_config(self._settings, bootstrap), group, topic, begin)
        return [
            str(self._java.program), HEAP, *_opened(), "-cp", f"{self._scratch / kind}:{self._class_path(kind)}",
            program, bootstrap, topic, str(where.hostname), str(where.port), str(state), group,
        ]  # fmt: skip

    def environment(self, redis_url: str) -> dict[str, str]:
        """What a peer signs in to Redis with."""
        login = redis_login(self._settings, redis_url)
        if login.password is None:
            return {**os.environ}
        return {**os.environ, "REDIS_USER": urlsplit(login.url).username or "", "REDIS_PASSWORD": login.password}

    def _class_path(self, kind: str) -> str:
        return ":".join([str(self._jars / kind / "*"), *map(str, of_pyspark("datasketches-*.jar"))])


def _commit(config: dict[str, Any], group: str, topic: str, begin: dict[int, int]) -> None:
    """Let a group begin at these offsets: a peer that begins at the end misses what is sent while it starts."""
    consumer = Consumer({**config, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, each, offset) for each, offset in begin.items()], asynchronous=False)
    consumer.close()


def _opened() -> list[str]:
    """What Flink and the sketches reach into."""
    return [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util", "java.nio")]


def lock() -> int:
    """Write the hashes of what `ivy.xml` names. Returns how many."""
    settings = load_settings()
    staging = settings.jars_dir / "peers-relock"
    run_ivy(find_java(settings.java_home), staging, settings.ivy_settings, ivy_file=IVY_FILE)
    found = sorted(staging.glob("jars/*/*.jar"))
    lines = [f"{sha256(path)}  {path.relative_to(staging / 'jars')}\n" for path in found]
    HASH_FILE.write_text("".join(lines), encoding="utf-8")
    shutil.rmtree(staging)
    return len(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["lock"]:
        print(f"{lock()} jars are locked.")
    print(f"The jars are in {fetch(load_settings())}.")
