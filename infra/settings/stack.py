"""Settings of the installation and of its dependencies: Kafka, Redis and Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from infra.settings.types import Location, LogLevel, Memory, Port, Text, brokers, http_address, redis_address


class InstallationSettings(BaseModel):
    """Folder, logs, time limits, Java and jars of one installation."""

    home: Location = Field(
        default=Path(".tidemark"),
        description="Directory that holds everything of this installation.",
        validate_default=True,
    )
    log_level: LogLevel = Field(default="INFO", description="Lowest severity that is logged.")
    log_format: Literal["text", "json"] = Field(
        default="text", description="How log entries are written: text, or json for one JSON object a line."
    )
    log_max_mb: int = Field(default=20, ge=1, description="Size in MB at which a service's log file is rotated.")
    log_keep_files: int = Field(
        default=5, ge=1, le=1000, description="Number of rotated log files of each service that are kept."
    )
    min_free_disk_mb: int = Field(
        default=1024, ge=0, description="`up` refuses to start with less free disk than this, in MB."
    )
    start_timeout_s: float = Field(
        default=60,
        gt=0,
        description="Seconds that a service may take to become ready; doubled each time it is too slow.",
    )
    stop_timeout_s: float = Field(
        default=20, gt=0, description="Seconds that a service may take to stop before it is killed."
    )
    restart_backoff_max_s: float = Field(
        default=30,
        gt=0,
        description="Maximum pause, in seconds, before a service that keeps failing is restarted.",
    )
    hang_timeout_s: float = Field(
        default=60,
        ge=0,
        description=(
            "Seconds that a running service may show no sign of life (no answer, no heartbeat) before it is killed and "
            "restarted; five times as long while Kafka, Redis or a worker is busy. 0: never."
        ),
    )
    supervisor_metrics_port: Port = Field(
        default=0, description="Loopback port of the supervisor's /metrics; 0: chosen once for the home, from 9468 on."
    )
    java_home: Location | None = Field(
        default=None, description="Java installation to use; empty: JAVA_HOME, then java on PATH."
    )
    jars_dir: Location = Field(
        default=Path("~/.cache/tidemark/jars"),
        validate_default=True,
        description="Cache of the Spark and Kafka jars, shared by all homes of a user.",
    )
    ports_file: Location = Field(
        default=Path("~/.cache/tidemark/ports.json"),
        validate_default=True,
        description="File in which the homes of a user record their ports, so that no two choose the same.",
    )
    ivy_settings: Location | None = Field(
        default=None,
        description="Ivy settings file naming a mirror to fetch jars from; empty: the public repository.",
    )


class KafkaSettings(BaseModel):
    """The Kafka cluster, or our own broker."""

    kafka_bootstrap: Annotated[Text, AfterValidator(brokers)] = Field(
        default="",
        description="Brokers of a Kafka cluster as host:port,host:port; empty: a broker of our own is started.",
    )
    kafka_port: Port = Field(
        default=0, description="Port of our own broker; 0: chosen once for the home, from 9092 on."
    )
    kafka_controller_port: Port = Field(
        default=0,
        description="Port of our own broker's controller; 0: chosen once for the home, from 9192 on.",
    )
    kafka_heap_mb: int = Field(default=512, ge=128, description="Heap of our own broker in MB.")
    kafka_auth: bool = Field(
        default=False,
        description=(
            "Whether our own broker asks its clients for a user and password (`tidemark kafka-users`). "
            "Otherwise every user of this machine can read and write its topics."
        ),
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="Security protocol of the cluster named by kafka_bootstrap."
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="SASL mechanism, with a SASL protocol."
    )
    kafka_username: Text = Field(default="", description="User name for a SASL protocol.")
    kafka_password: SecretStr | None = Field(default=None, description="Password for a SASL protocol.")
    kafka_password_file: Location | None = Field(default=None, description="File that holds kafka_password.")
    kafka_ca_file: Location | None = Field(
        default=None, description="Certificates (PEM) to trust, with an SSL protocol."
    )


class SchemaRegistrySettings(BaseModel):
    """The schema registry that knows the schemas of framed records."""

    schema_registry_url: Annotated[Text, AfterValidator(http_address)] = Field(
        default="",
        description="Schema registry that says which schema an id in a record is, as http://host:8081; empty: our own.",
    )
    schema_registry_username: Text = Field(default="", description="User name for the schema registry.")
    schema_registry_password: SecretStr | None = Field(default=None, description="Password for the schema registry.")
    schema_registry_password_file: Location | None = Field(
        default=None, description="File that holds schema_registry_password."
    )


class RedisSettings(BaseModel):
    """The Redis to use, or our own server."""

    redis_url: Annotated[Text, AfterValidator(redis_address)] = Field(
        default="",
        description="Redis to use, as redis://user@host:port/db; empty: a server of our own is started.",
    )
    redis_port: Port = Field(default=0, description="Port of our own Redis; 0: chosen once for the home, from 6379 on.")
    redis_max_memory_mb: int = Field(
        default=1024, ge=0, description="Memory at which our own Redis refuses writes, in MB; 0: no limit."
    )
    redis_password: SecretStr | None = Field(default=None, description="Password of the Redis named by redis_url.")
    redis_password_file: Location | None = Field(default=None, description="File that holds redis_password.")


class SparkSettings(BaseModel):
    """Spark, for all layers that use it."""

    spark_master: str = Field(
        default="local[*]",
        min_length=1,
        description="Where Spark runs: local[*], spark://host:7077, k8s://..., yarn.",
    )
    spark_driver_memory: Memory = Field(default="1g", description="Heap of each Spark driver.")
    spark_executor_memory: Memory = Field(default="1g", description="Heap of each Spark executor on a cluster.")
    spark_conf: dict[str, str] = Field(
        default={}, description="Additional Spark configuration: a table in tidemark.toml, JSON in the environment."
    )
