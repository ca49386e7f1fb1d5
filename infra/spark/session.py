"""Build SparkSessions: tuned for small machines, the same code on a cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import InfraError
from infra.home import Home
from infra.java.class_archive import find_archive, option, quoted
from infra.java.find import find_java
from infra.java.jars import JarSet, fetch_jars
from infra.log_file import LogFile
from infra.logs import last_lines
from infra.settings import Settings
from infra.spark.callbacks import require_secret
from infra.spark.session_folder import own_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BARE_FILE_SYSTEM = {
    # Hadoop's local file system forks processes for permissions, about 50 in each micro-batch: 235 ms of it.
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""For a session that writes no Delta table: whether Delta's commit stays exclusive on this file system is not known."""
AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{kind}.maxLength={64 * 2**20}" for kind in ("string", "bytes", "collectionItems")
)
"""A text of an Avro record says its length first: one of ten bytes that claims 2 GB would end the JVM."""
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a session with little to do: the JVM ends before optimized code, and threads that collect garbage, would pay off.

They took about half of the processor time of a small batch run.
"""


def spark_session(
    settings: Settings,
    app_name: str,
    conf: Mapping[str, str] | None = None,
    output: Path | None = None,
    *,
    is_short_lived: bool = False,
) -> SparkSession:
    """Start Spark with Delta and the Kafka source.

    `conf` and then settings.spark_conf overrule what is set here, and all of it the arguments of spark-submit. What the
    JVM and Spark write goes to the file `output`, or to our own standard error. On one machine, a session that
    `is_short_lived` starts sooner, and is slow at much work.
    """
    import pyspark
    from pyspark.sql import SparkSession

    Home(settings.home).prepare()  # else Spark's scratch folder would make the home pass for a foreign folder
    java = find_java(settings.java_home)
    os.environ["JAVA_HOME"] = str(java.home)
    # Another Spark on this machine, or options meant for it, would be taken instead of the one that fits our jars.
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    if settings.spark_master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable  # else workers take any python3 on PATH, without our packages
    for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS"):
        os.environ.pop(name, None)
    jars = fetch_jars(java, settings.jars_dir, settings.ivy_settings)
    usual = spark_conf(settings, jars)
    if settings.spark_master.startswith("local"):
        folder = own_folder(Home(settings.home).spark / "scratch")
        usual |= _of_process(folder, find_archive(java, jars), is_short_lived=is_short_lived)
    merged = usual | dict(conf or {}) | settings.spark_conf
    whole = merged | spark_submit_arguments()
    if output is not None:
        _start_jvm(whole, LogFile(output, settings.log_max_mb * 2**20, settings.log_keep_files))
    builder = SparkSession.builder.appName(app_name)
    for name, value in whole.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    require_secret(session)
    session.sparkContext.setLogLevel("WARN")
    return session


def _start_jvm(conf: Mapping[str, str], log_file: LogFile) -> None:
    """Start the JVM of this process with its output in a file, unless it has one already."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    log_file.rotate_if_grown()
    output = log_file.path
    with output.open("ab") as file:  # for appending: other runs may write there too
        try:
            launch: Any = launch_gateway
            given = SparkConf(loadDefaults=False).setAll(list(conf.items()))
            gateway = launch(given, {"stdout": file, "stderr": file})
        except PySparkRuntimeError:
            last = "\n".join(f"  | {line}" for line in last_lines(output, 15))
            raise InfraError(f"Spark's JVM ended before it was ready. The end of {str(output)!r}:\n{last}") from None
    SparkContext._ensure_initialized(gateway=gateway)


def spark_submit_arguments() -> dict[str, str]:
    """The options that spark-submit was given, where it started this process; else none."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # SparkConf() asks the JVM
    return {name: value for name, value in SparkConf().getAll() if name != "spark.app.name"}


def as_submitted(settings: Settings) -> Settings:
    """The settings with the master given to spark-submit, where that started this process."""
    given = spark_submit_arguments()
    return settings.model_copy(update={"spark_master": given["spark.master"]}) if given else settings


def spark_conf(settings: Settings, jars: JarSet) -> dict[str, str]:
    """The configuration of every session of ours, before anybody overrules it."""
    home = Home(settings.home)
    cores = str(os.cpu_count() or 2)
    is_local = settings.spark_master.startswith("local")
    conf = {
        "spark.master": settings.spark_master,
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.executor.memory": settings.spark_executor_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log_config().as_uri()}",
        "spark.sql.session.timeZone": "UTC",
        # Spark's default, INT96, has no time zone: other engines read such times wrongly or not at all.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",  # half the bytes of snappy at the same rate
        # The master dataset hashes parsed events, and an event may have maps. Their order is that of the JSON.
        "spark.sql.legacy.allowHashOnMapType": "true",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # It takes lower(upper('ß')), which is 'ss', for lower('ß'): an answer would depend on how it is computed.
        "spark.sql.optimizer.excludedRules": (
            "org.apache.spark.sql.catalyst.optimizer.SimplifyCaseConversionExpressions"
        ),
        "spark.sql.warehouse.dir": str(home.spark / "warehouse"),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark keeps what its pages would show, with a plan for each query: by default of the last 1,000.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "20",
    }
    if is_local:
        # On one machine a shuffle of 200 partitions is 200 small tasks, and Delta's default of 50 for reading its
        # own log makes the first query take 14 s.
        conf |= {
            "spark.sql.shuffle.partitions": cores,
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Else any user of the machine could send the driver Java objects to unpack. Spark makes the secret, one
            # for each session. On a cluster the secret is the cluster's, and comes by spark_conf.
            "spark.authenticate": "true",
            "spark.driver.extraClassPath": os.pathsep.join(map(str, jars.spark)),
        }
    else:
        conf |= {
            "spark.jars": ",".join(path.as_uri() for path in jars.spark),
            "spark.driver.defaultJavaOptions": AVRO_LIMITS,
            "spark.executor.defaultJavaOptions": AVRO_LIMITS,
        }
    return conf


def _of_process(folder: Path, archive: Path | None, *, is_short_lived: bool) -> dict[str, str]:
    """What belongs to a process on one machine: a folder of its own, and Spark's classes as they are kept.

    The options come before those of `spark.driver.extraJavaOptions`.
    """
    options = [AVRO_LIMITS, *([option("-XX:SharedArchiveFile", archive)] if archive else [])]
    if is_short_lived:
        options.append(SHORT_LIVED)
    if not os.statvfs(folder).f_flag & os.ST_NOEXEC:  # libraries unpack their native parts there, to run them
        options.append(quoted(f"-Djava.io.tmpdir={folder}"))
    return {"spark.local.dir": str(folder), "spark.driver.defaultJavaOptions": " ".join(options)}


def planned_end(checkpoint: Path, batch_id: int, topic: str) -> dict[int, int]:
    """Where Spark planned a micro-batch to end: in its offset log, which it writes before the batch runs."""
    planned = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()[-1]
    return {int(p): int(o) for p, o in json.loads(planned)[topic].items()}


def _log_config() -> Path:
    return Path(__file__).with_name("log4j2-spark.properties")
