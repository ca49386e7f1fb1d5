"""Settings of the collector, the archiver, the speed layer and batch runs, and of the declarations they read."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from infra.settings.types import Location, Port, Text, cron_text, time_zone


class CollectorSettings(BaseModel):
    """The collector, and access to the REST interfaces."""

    collector_enabled: bool = Field(default=True, description="Whether `up` runs the collector.")
    collector_host: str = Field(
        default="127.0.0.1", min_length=1, description="Address that the collector listens on; 0.0.0.0: all of them."
    )
    collector_port: Port = Field(
        default=0, description="Port of the collector; 0: chosen once for the home, from 8080 on."
    )
    collector_max_body_mb: float = Field(
        default=16, gt=0, le=1024, description="Maximum size of a request body to the collector in MB, also unpacked."
    )
    collector_max_event_kb: float = Field(
        default=1000,
        gt=0,
        le=100_000,
        description="Maximum size of an event or message in KB; Kafka itself refuses more than 1024.",
    )
    collector_max_batch: int = Field(
        default=10_000, ge=1, description="Maximum number of events or messages in one request to the collector."
    )
    collector_buffer_mb: float = Field(
        default=128,
        gt=0,
        description=(
            "MB of bodies, parsed JSON and unacknowledged events that the collector holds; beyond it, it answers 429."
        ),
    )
    collector_min_free_disk_mb: float = Field(
        default=256,
        ge=0,
        description="Free disk in MB, of our own Kafka or the master dataset, below which the collector answers 507.",
    )
    collector_ack_timeout_s: float = Field(
        default=10, ge=1, description="Seconds to wait for Kafka's acknowledgement before the collector answers 503."
    )
    collector_body_timeout_s: float = Field(
        default=30, gt=0, description="Seconds that a client may take to send the body of a request."
    )
    collector_max_consumers: int = Field(
        default=100, ge=0, description="Maximum number of consumer instances that the collector keeps for its clients."
    )
    collector_max_consumers_per_key: int = Field(
        default=50,
        ge=0,
        description="Maximum number of consumer instances that the collector keeps for one access key.",
    )
    collector_consumer_idle_s: float = Field(
        default=300, gt=0, description="Seconds after which an unused consumer instance is closed."
    )
    registry_enabled: bool = Field(
        default=True,
        description="Whether the collector serves a schema registry at /schema-registry, with its topic _schemas.",
    )
    collector_syslog_udp_port: Port = Field(
        default=0, description="UDP port on which the collector takes syslog messages; 0: none."
    )
    collector_syslog_tcp_port: Port = Field(
        default=0, description="TCP port on which the collector takes syslog messages; 0: none."
    )
    collector_syslog_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address on which the collector takes syslog messages. Syslog has no keys: an address that other "
        "machines can reach needs access_open_network.",
    )
    collector_syslog_source: str = Field(default="syslog", description="Source that syslog messages are events of.")
    collector_syslog_timezone: Annotated[str, AfterValidator(time_zone)] = Field(
        default="UTC", description="Time zone of syslog messages that do not say theirs (RFC 3164)."
    )
    collector_max_transactions: int = Field(
        default=20,
        ge=0,
        description="Maximum number of Kafka transactions that the collector keeps open for its clients.",
    )
    collector_transaction_timeout_s: float = Field(
        default=60,
        gt=0,
        le=840,
        description="Seconds after which the collector aborts a transaction that was not committed.",
    )
    access_required: bool = Field(
        default=True, description="Whether REST requests need an access key (`tidemark keys`)."
    )
    access_open_network: bool = Field(
        default=False,
        description=(
            "Whether other machines may reach the REST interfaces without a key: needed to listen beyond loopback "
            "where access_required is false."
        ),
    )


class ArchiverSettings(BaseModel):
    """The archiver and the master dataset."""

    archiver_enabled: bool = Field(
        default=True, description="Whether `up` runs the archiver, which writes the master dataset."
    )
    master_dir: Location | None = Field(
        default=None, description="Folder of the master dataset; empty: master in the home."
    )
    archive_interval_s: float = Field(
        default=5, gt=0, description="Seconds between two commits to the master dataset while many events arrive."
    )
    archive_max_interval_s: float = Field(
        default=60,
        gt=0,
        description=(
            "Seconds between two commits to the master dataset while few events arrive. A batch run, or whoever else "
            "waits for events in the master dataset, has them committed at once."
        ),
    )
    archive_min_events: int = Field(
        default=1_000,
        ge=1,
        description="Number of events that is worth a commit before archive_max_interval_s is over.",
    )
    archive_max_events: int = Field(
        default=500_000, ge=1, description="Maximum number of events in one commit to the master dataset."
    )
    archive_max_mb: float = Field(
        default=64,
        gt=0,
        description=(
            "Approximate maximum of keys and values in one commit to the master dataset, in MB, estimated from the "
            "previous commit. On disk they take about a fifth."
        ),
    )
    master_compact_files: int = Field(
        default=500,
        ge=0,
        description=(
            "Number of small files in a source's master table at which the archiver merges them into one; 0: only "
            "`tidemark master compact` does."
        ),
    )
    master_file_mb: int = Field(
        default=256, ge=1, description="Approximate maximum size of merged files in the master dataset, in MB."
    )
    master_keep_replaced_hours: float = Field(
        default=48,
        ge=1,
        description=(
            "Hours for which files of the master dataset stay on disk after they were merged, and those that a crash "
            "left. Until then a damaged merged file is restored from them, and whoever began to read before the merge "
            "can finish."
        ),
    )
    master_retention_days: int = Field(
        default=0,
        ge=0,
        description=(
            "Days for which records stay in the master dataset, by their time in Kafka; 0: for ever. Batch runs remove "
            "older ones in whole days, and first save what the views counted of them."
        ),
    )
    dead_letter_retention_days: float = Field(
        default=0,
        ge=0,
        description="Days for which Kafka keeps dead letters (`retention.ms` of their topics); 0: for ever.",
    )
    archiver_metrics_port: Port = Field(
        default=0, description="Loopback port of the archiver's /metrics; 0: chosen once for the home, from 9465 on."
    )


class SpeedSettings(BaseModel):
    """The speed layer."""

    speed_enabled: bool = Field(
        default=True, description="Whether `up` runs the speed layer, which keeps real-time views in Redis."
    )
    speed_max_events: int = Field(
        default=100_000,
        ge=1,
        description="Maximum number of events in one micro-batch of the speed layer; matters while it catches up.",
    )
    speed_max_mb: float = Field(
        default=128,
        gt=0,
        description=(
            "Approximate maximum size of the events in one micro-batch of the speed layer, in MB, estimated from the "
            "previous ones."
        ),
    )
    speed_fold_events: int = Field(
        default=100_000,
        ge=0,
        description=(
            "Micro-batches of the speed layer with more events than this are aggregated by Spark, not by the driver. "
            "Useful where Spark has many cores."
        ),
    )
    speed_dedup_horizon_s: float = Field(
        default=3600,
        ge=0,
        description=(
            "Seconds, by Kafka's timestamps, within which the speed layer drops a second event of one id; 0: it drops "
            "none. Batch runs drop all duplicates. A seen id takes 8 bytes in Redis and in the speed layer."
        ),
    )
    speed_grace_s: float = Field(
        default=60,
        ge=0,
        description="Seconds after a run is published until the speed states before its cut are dropped.",
    )
    speed_metrics_port: Port = Field(
        default=0, description="Loopback port of the speed layer's /metrics; 0: chosen once for the home, from 9466 on."
    )


class BatchSettings(BaseModel):
    """Batch runs, the scheduler and the comparison with the speed views."""

    batch_dir: Location | None = Field(default=None, description="Folder of the batch views; empty: batch in the home.")
    batch_keep_runs: int = Field(
        default=7,
        ge=1,
        description="Number of newest runs kept for rollback by `batch prune` and by each run at its end (at least 2).",
    )
    batch_wait_s: float = Field(
        default=300, gt=0, description="Seconds that a batch run waits for the master dataset to reach its cut."
    )
    batch_deadline_s: float = Field(
        default=43_200,
        ge=0,
        description="Seconds after which a batch run of a source that has not ended is ended as failed; 0: never.",
    )
    scheduler_enabled: bool = Field(
        default=True, description="Whether `up` runs the scheduler, which starts a batch run when one is due."
    )
    scheduler_metrics_port: Port = Field(
        default=0,
        description="Loopback port of the scheduler's /metrics; 0: chosen once for the home, from 9464 on.",
    )
    batch_schedule: Annotated[Text, AfterValidator(cron_text)] = Field(
        default="15 3 * * *",
        description="When batch runs are due, as a cron expression (minute hour day month weekday); empty: never.",
    )
    batch_schedule_tz: Annotated[str, AfterValidator(time_zone)] = Field(
        default="UTC", description="Time zone of batch_schedule, like UTC or Europe/Berlin."
    )
    consistency_groups: int = Field(
        default=20_000,
        ge=1,
        description=(
            "Maximum number of groups, and of totals, of a view that a batch run compares with the speed view. "
            "Of more groups it compares a sample, another one each time."
        ),
    )
    consistency_threshold: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description=(
            "Share of the compared groups of a view that may differ without an explanation; above it the speed view "
            "is quarantined: answers come from the batch view alone, and say so."
        ),
    )
    consistency_events: int = Field(
        default=200_000,
        ge=1,
        description=(
            "Maximum number of events read at once to explain a difference (duplicates after the horizon), or for "
            "`tidemark verify`. About 2 KB of memory each."
        ),
    )
    overtake_behind_events: int = Field(
        default=50_000,
        ge=0,
        description=(
            "Number of events that the speed layer is behind at which the scheduler considers a run at the end of the "
            "master dataset, to which the speed layer jumps; 0: never."
        ),
    )
    overtake_behind_s: float = Field(
        default=30,
        ge=0,
        description=(
            "Such a run is started only if the speed layer, at its measured rate, would need longer than this many "
            "seconds, and longer than the run, to work through what it is behind."
        ),
    )
    overtake_pause_s: float = Field(
        default=600,
        ge=0,
        description=(
            "Seconds that the speed layer waits for such a run, instead of computing what the run will skip; 0: it "
            "does not wait. A run that dies is not waited for."
        ),
    )
    overtake_redis_share: float = Field(
        default=0.4,
        gt=0,
        le=1,
        description=(
            "Share of Redis's memory that the speed views of a source may take before the scheduler starts a batch "
            "run, which frees them."
        ),
    )
    overtake_states: int = Field(
        default=500_000,
        ge=0,
        description=(
            "Number of states that the speed views of a source may have before the scheduler starts a batch run, which "
            "frees them; 0: any number."
        ),
    )
    batch_retry_s: float = Field(
        default=300,
        ge=0,
        description=(
            "Seconds before a failed scheduled run is retried, doubled after each further failure, up to an hour; "
            "0: at the next due time."
        ),
    )


class DeclarationsSettings(BaseModel):
    """Where sources and views are declared."""

    views_dir: Location | None = Field(
        default=None,
        description="Folder with your own declarations (*.py) of sources and views; empty: only the examples.",
    )
    with_examples: bool = Field(
        default=True, description="Whether examples in views/catalog run beside your own declarations."
    )
    examples: Text = Field(
        default="web",
        description="Which examples run: sources of views/catalog, separated by commas, each with its views; or all.",
    )
