"""Every setting in one table: its name, its default and what it is for.

A value comes from the environment (`TIDEMARK_<NAME>`), then from `tidemark.toml`, then from the default.
Secrets come from the environment or from a file named by `<name>_file`, never from `tidemark.toml`.
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings.exceptions import SettingsError as UnreadableValue

from infra.cron import parse_cron, parse_zone
from infra.errors import SettingsError

PREFIX = "TIDEMARK_"
COMMAND_PREFIX = "TIDEMARK_CLI_"
"""Options of the command line, not settings."""
CONFIG_VARIABLE = "TIDEMARK_CONFIG"


def _absolute(path: Path) -> Path:
    try:
        return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100  resolve() would follow the user's links
    except RuntimeError:
        raise ValueError("a path whose ~ names a user of this machine") from None


def _without_password(url: str) -> str:
    if url and urlsplit(url).scheme not in ("redis", "rediss"):
        raise ValueError("an address like redis://host:6379/0 or rediss://host:6379/0")
    if url and (urlsplit(url).password or "password=" in url or "@" in url.partition(urlsplit(url).netloc)[2]):
        raise ValueError("an address without a password: put that into TIDEMARK_REDIS_PASSWORD or redis_password_file")
    return url


def _brokers(text: str) -> str:
    for broker in text.split(",") if text else ():
        host, _, port = broker.strip().rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError("brokers with their ports, like one.example:9092,two.example:9092")
    return text


def _empty_text(value: object) -> object:
    """An empty variable is no value (None) for a path or a secret, and an empty text for a text."""
    return "" if value is None else value


def _memory(text: str) -> str:
    if not (text[:-1].isdigit() and text[-1:].lower() in "mgt" and int(text[:-1]) > 0):
        raise ValueError("a size for the JVM: a whole number and m, g or t, like 1g or 1500m")
    return text


def _cron(text: str) -> str:
    try:
        if text:
            parse_cron(text)
    except ValueError as error:
        raise ValueError(
            f"a cron text (minute hour day month weekday) like '15 3 * * *', or empty for no schedule: {error}"
        ) from None
    return text


def _zone(name: str) -> str:
    try:
        parse_zone(name)
    except ValueError as error:
        raise ValueError(f"the name of a time zone like UTC or Europe/Berlin: {error}") from None
    return name


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


Location = Annotated[Path, AfterValidator(_absolute)]
Port = Annotated[int, Field(ge=0, le=65535)]
Text = Annotated[str, BeforeValidator(_empty_text)]
Memory = Annotated[str, AfterValidator(_memory)]
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)]


class Settings(BaseSettings):
    """The settings of one installation. Build it with `load_settings`, which explains what is wrong."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=False, env_parse_none_str=""
    )

    home: Location = Field(
        default=Path(".tidemark"),
        description="Folder that holds everything of this installation.",
        validate_default=True,
    )
    log_level: LogLevel = Field(default="INFO", description="Least severe log entry that is written.")
    log_max_mb: int = Field(
        default=20,
        ge=1,
        description="Size in MB at which a service's log file is rotated; one old file is kept.",
    )
    min_free_disk_mb: int = Field(
        default=1024, ge=0, description="`up` refuses to start with less free disk than this, in MB."
    )
    start_timeout_s: float = Field(
        default=60,
        gt=0,
        description="Seconds that a service may take to become ready; each time it is too slow, twice as long.",
    )
    stop_timeout_s: float = Field(
        default=20, gt=0, description="Seconds that a service may take to stop before it is killed."
    )
    restart_backoff_max_s: float = Field(
        default=30,
        gt=0,
        description="Longest pause, in seconds, before a service that keeps dying is started again.",
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
        description="Where the homes of a user note their ports, so that no two choose the same.",
    )
    ivy_settings: Location | None = Field(
        default=None,
        description="Ivy settings file naming a mirror to fetch jars from; empty: the public repository.",
    )

    kafka_bootstrap: Annotated[Text, AfterValidator(_brokers)] = Field(
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
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="How to talk to the cluster named by kafka_bootstrap."
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="How to sign in, with a SASL protocol."
    )
    kafka_username: Text = Field(default="", description="User name for a SASL protocol.")
    kafka_password: SecretStr | None = Field(default=None, description="Password for a SASL protocol.")
    kafka_password_file: Location | None = Field(default=None, description="File that holds kafka_password.")
    kafka_ca_file: Location | None = Field(
        default=None, description="Certificates (PEM) to trust, with an SSL protocol."
    )

    redis_url: Annotated[Text, AfterValidator(_without_password)] = Field(
        default="",
        description="Redis to use, as redis://host:port/db; empty: a server of our own is started.",
    )
    redis_port: Port = Field(default=0, description="Port of our own Redis; 0: chosen once for the home, from 6379 on.")
    redis_max_memory_mb: int = Field(
        default=1024, ge=0, description="Memory at which our own Redis refuses writes, in MB; 0: no limit."
    )
    redis_password: SecretStr | None = Field(default=None, description="Password of the Redis named by redis_url.")
    redis_password_file: Location | None = Field(default=None, description="File that holds redis_password.")

    collector_enabled: bool = Field(default=True, description="Whether `up` runs the collector.")
    collector_host: str = Field(
        default="127.0.0.1", min_length=1, description="Address that the collector listens on; 0.0.0.0: all of them."
    )
    collector_port: Port = Field(
        default=0, description="Port of the collector; 0: chosen once for the home, from 8080 on."
    )
    collector_max_body_mb: float = Field(
        default=16, gt=0, le=1024, description="Largest body of one request to the collector in MB, also unpacked."
    )
    collector_max_event_kb: float = Field(
        default=1000, gt=0, le=100_000, description="Largest event or message in KB; Kafka itself refuses above 1024."
    )
    collector_max_batch: int = Field(
        default=10_000, ge=1, description="Most events or messages in one request to the collector."
    )
    collector_buffer_mb: float = Field(
        default=128, gt=0, description="What the collector holds unacknowledged, in MB; beyond it answers 429."
    )
    collector_ack_timeout_s: float = Field(
        default=10, ge=1, description="Seconds to wait for Kafka's acknowledgement before the collector answers 503."
    )
    collector_body_timeout_s: float = Field(
        default=30, gt=0, description="Seconds that a client may take to send the body of a request."
    )
    collector_max_consumers: int = Field(
        default=100, ge=0, description="Most consumer instances that the collector keeps for its clients."
    )
    collector_consumer_idle_s: float = Field(
        default=300, gt=0, description="Seconds after which an unused consumer instance is closed."
    )
    access_required: bool = Field(
        default=True, description="Whether REST requests need an access key (`tidemark keys`)."
    )

    archiver_enabled: bool = Field(
        default=True, description="Whether `up` runs the archiver, which writes the master dataset."
    )
    master_dir: Location | None = Field(
        default=None, description="Folder of the master dataset; empty: master in the home."
    )
    archive_interval_s: float = Field(default=5, gt=0, description="Seconds between two commits to the master dataset.")
    archive_max_events: int = Field(
        default=500_000, ge=1, description="Most events that go into one commit to the master dataset."
    )
    archive_max_mb: float = Field(
        default=64,
        gt=0,
        description=(
            "About how many MB of keys and values go into one commit to the master dataset at most, judged by the "
            "mean of the commit before. On disk they take about a fifth."
        ),
    )

    archiver_metrics_port: Port = Field(
        default=0, description="Loopback port of the archiver's /metrics; 0: chosen once for the home, from 9465 on."
    )

    speed_enabled: bool = Field(
        default=True, description="Whether `up` runs the speed layer, which keeps real-time views in Redis."
    )
    speed_max_events: int = Field(
        default=100_000,
        ge=1,
        description="Most events in one micro-batch of the speed layer: what a backlog is worked off in.",
    )
    speed_fold_events: int = Field(
        default=100_000,
        ge=0,
        description=(
            "Micro-batches of the speed layer with more events than this are aggregated by Spark, not by its driver: "
            "worth it where Spark has many cores."
        ),
    )
    speed_dedup_horizon_s: float = Field(
        default=3600,
        ge=0,
        description=(
            "Seconds, by Kafka's timestamps, within which the speed layer drops a second event of one id; 0: it drops "
            "none. Batch runs drop all copies. A mark takes 8 bytes in Redis and in the speed layer."
        ),
    )
    speed_grace_s: float = Field(
        default=60, ge=0, description="Seconds after a run is published until speed states before it are dropped."
    )

    speed_metrics_port: Port = Field(
        default=0, description="Loopback port of the speed layer's /metrics; 0: chosen once for the home, from 9466 on."
    )

    batch_dir: Location | None = Field(default=None, description="Folder of the batch views; empty: batch in the home.")
    batch_keep_runs: int = Field(
        default=7, ge=1, description="How many of the newest runs `batch prune` keeps for rollback."
    )
    batch_wait_s: float = Field(
        default=300, gt=0, description="Seconds that a batch run waits for the master dataset to reach its cut."
    )
    scheduler_enabled: bool = Field(
        default=True, description="Whether `up` runs the scheduler, which starts a batch run when one is due."
    )
    scheduler_metrics_port: Port = Field(
        default=0,
        description="Loopback port of the scheduler's /metrics; 0: chosen once for the home, from 9464 on.",
    )
    batch_schedule: Annotated[Text, AfterValidator(_cron)] = Field(
        default="15 3 * * *",
        description="When batch runs are due, as cron text (minute hour day month weekday); empty: never.",
    )
    batch_schedule_tz: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC", description="Time zone of batch_schedule, like UTC or Europe/Berlin."
    )
    consistency_groups: int = Field(
        default=20_000,
        ge=1,
        description=(
            "Most groups of a view, and most totals, that a batch run compares with what the speed side had said of "
            "them. Of more a part is compared, another one each time."
        ),
    )
    consistency_threshold: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description=(
            "Share of the compared groups of a view that may differ without an explanation; above it the speed side "
            "of the view is set aside: its answers are those of the batch view alone, and say so."
        ),
    )
    consistency_events: int = Field(
        default=200_000,
        ge=1,
        description=(
            "Most events that are read at once to explain a difference (copies after the horizon), or for "
            "`tidemark verify`. About 2 KB of memory each."
        ),
    )
    batch_retry_s: float = Field(
        default=300,
        ge=0,
        description=(
            "Seconds before a scheduled run that failed is tried again, doubled after each further failure, up to an "
            "hour; 0: at the next due time."
        ),
    )

    serving_enabled: bool = Field(
        default=True, description="Whether `up` runs the serving layer, which answers questions by REST."
    )
    serving_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address that the serving layer listens on; 0.0.0.0: all of them.",
    )
    serving_port: Port = Field(
        default=0, description="Port of the serving layer; 0: chosen once for the home, from 8090 on."
    )
    serving_workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes of the serving layer: each uses one core, and they share the port.",
    )
    serving_threads: int = Field(
        default=4, ge=1, le=256, description="Threads of each of them in which questions are answered."
    )
    serving_max_queries: int = Field(
        default=100,
        ge=1,
        description="Most queries that each of them works on or keeps waiting; beyond it answers 429.",
    )
    serving_max_waiting: int = Field(
        default=32,
        ge=1,
        description="Most queries that wait for fresher views (max_staleness, min_cut) in each of them.",
    )
    serving_max_wait_s: float = Field(
        default=30, ge=0, description="Longest time, in seconds, that a query may ask to wait for fresher views."
    )
    serving_timeout_s: float = Field(
        default=30, gt=0, description="Seconds after which a query that is not answered yet ends with 503."
    )
    serving_max_rows: int = Field(default=10_000, ge=1, description="Most rows in one page of an answer.")
    serving_max_periods: int = Field(
        default=20_000, ge=1, description="Most periods (of its grain) that the range of one question is cut into."
    )
    serving_max_groups: int = Field(
        default=1_000_000, ge=1, description="Most groups that are merged for one answer; beyond it answers 422."
    )
    serving_max_state_mb: float = Field(
        default=256, gt=0, description="Most MB of states that are read for one answer; beyond it answers 422."
    )
    serving_cache_mb: float = Field(
        default=32, ge=0, description="About how many MB of presented answers a process keeps, to give them again."
    )
    serving_redis_timeout_s: float = Field(
        default=0.5,
        gt=0,
        description="Seconds to wait for Redis; beyond it an answer is made of the batch views alone, and says so.",
    )
    serving_max_values: int = Field(
        default=1_000, ge=1, description="Most values that the filters of one question name, all together."
    )
    serving_max_questions: int = Field(default=20, ge=1, description="Most questions in one POST /query.")
    serving_max_body_kb: float = Field(
        default=256,
        gt=0,
        le=1_000_000,
        description="Largest body of one request to the serving layer in KB, also unpacked.",
    )
    serving_session_hours: float = Field(
        default=12,
        gt=0,
        le=24 * 365,
        description="Hours after which who signed in to the dashboard has to do so again.",
    )
    serving_live_subscribers: int = Field(
        default=500, ge=0, description="Most live connections to each process of the serving layer."
    )
    serving_live_questions: int = Field(
        default=50,
        ge=0,
        description="Most different questions that live connections follow: each is answered anew all the time.",
    )
    serving_live_every_s: float = Field(
        default=0.2, gt=0, description="Least seconds between two answers to a live connection."
    )

    alerts_enabled: bool = Field(
        default=True, description="Whether `up` runs the alert process, which looks at alerts, watches and feeds."
    )
    alerts_metrics_port: Port = Field(
        default=0,
        description="Loopback port of the alert process's /metrics; 0: chosen once for the home, from 9467 on.",
    )
    alerts_late_s: float = Field(
        default=86_400,
        gt=0,
        description="How late an event may come, in seconds, and still be looked at by alerts; its period counts.",
    )
    alerts_max_keys: int = Field(
        default=100_000, ge=1, description="Most keys of one alert on silence; beyond it new ones are not looked at."
    )
    alerts_max_episodes: int = Field(
        default=10_000, ge=100, description="Episodes that are kept in the history of alerts, the newest."
    )
    alerts_webhooks_file: Location | None = Field(
        default=None,
        description="File (JSON) that names webhooks with their addresses and secrets; empty: none.",
    )
    alerts_webhooks_timeout_s: float = Field(
        default=10, gt=0, le=120, description="Seconds that a webhook may take to answer."
    )
    alerts_webhooks_give_up_s: float = Field(
        default=86_400, gt=0, description="Seconds after which a message is no longer tried to be told to a webhook."
    )
    alerts_webhooks_private: bool = Field(
        default=False, description="Whether webhooks may be in private networks, or on this machine."
    )

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

    spark_master: str = Field(
        default="local[*]",
        min_length=1,
        description="Where Spark runs: local[*], spark://host:7077, k8s://..., yarn.",
    )
    spark_driver_memory: Memory = Field(default="1g", description="Heap of each Spark driver.")
    spark_executor_memory: Memory = Field(default="1g", description="Heap of each Spark executor on a cluster.")
    spark_conf: dict[str, str] = Field(
        default={}, description="More Spark configuration: a table in tidemark.toml, JSON in the environment."
    )

    @model_validator(mode="before")
    @classmethod
    def _secrets_from_files(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in SECRETS:
            path = values.get(f"{name}_file")
            if isinstance(path, str | Path) and path and not values.get(name):
                values[name] = _read_secret(name, _absolute(Path(path)))
        return values

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Refuse what is right by itself but cannot work together."""
        ports = [name for name in Settings.model_fields if name.endswith("_port") and getattr(self, name)]
        for name, other in itertools.combinations(ports, 2):
            if getattr(self, name) == getattr(self, other):
                raise ValueError(f"{name} and {other} are both {getattr(self, name)}. Give each its own port.")
        if self.kafka_security_protocol != "PLAINTEXT" and not self.kafka_bootstrap:
            raise ValueError(
                f"kafka_security_protocol is {self.kafka_security_protocol!r}, but kafka_bootstrap names no cluster, "
                "and our own broker speaks PLAINTEXT on loopback. Set kafka_bootstrap, or leave the protocol out."
            )
        if self.kafka_security_protocol.startswith("SASL") and not (self.kafka_username and self.kafka_password):
            raise ValueError(
                f"kafka_security_protocol is {self.kafka_security_protocol!r}, which needs kafka_username and "
                "kafka_password (or kafka_password_file)."
            )
        if self.redis_password and not self.redis_url:
            raise ValueError(
                "redis_password is set, but redis_url names no Redis, and our own has no password. "
                "Set redis_url, or leave the password out."
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """First wins: arguments, environment, tidemark.toml."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_file())


SECRETS = tuple(name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation))


MASK = "********"
SECRET_NAME = re.compile(r"(?i)secret|pass|token|key|credential|jaas|\bsas\b")
"""Names of Spark's configuration whose values are masked too."""


class Row(NamedTuple):
    """One line of the settings table as a person reads it; a secret's value is masked."""

    name: str
    value: str
    default: str
    origin: str
    help: str


def config_file() -> Path:
    """The configuration file of this process: `tidemark.toml` here, or what TIDEMARK_CONFIG names."""
    return Path(os.environ.get(CONFIG_VARIABLE, "tidemark.toml"))


def load_settings(**overrides: Any) -> Settings:
    """The settings, or a SettingsError that names each wrong one, its value and what would be right."""
    in_file = _read_config_file()
    problems = [*_unknown_names(in_file), *_secrets_in_file(in_file)]
    if problems:
        raise SettingsError("\n".join(problems))
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(error, in_file))) from None
    except UnreadableValue:  # a table comes from the environment as JSON, and only tables do
        raise SettingsError("\n".join(_unreadable_tables())) from None


def settings_rows(settings: Settings) -> list[Row]:
    """The table that `tidemark config` prints."""
    in_file = _read_config_file()
    return [
        Row(
            name=name,
            value=_shown(getattr(settings, name)),
            default=_shown(field.default),
            origin=_origin(name, in_file),
            help=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment for a process that must see just these settings, whatever folder it runs in.

    Secrets travel in it too: unlike arguments, an environment is readable by nobody but the same user.
    """
    values = settings.model_dump(mode="json", exclude_defaults=True, exclude=set(SECRETS)) | {
        "home": str(settings.home)
    }
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    secrets = {name: value.get_secret_value() for name in SECRETS if (value := getattr(settings, name)) is not None}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    ours = {f"{PREFIX}{name.upper()}": value for name, value in {**texts, **secrets}.items()}
    return inherited | ours | {CONFIG_VARIABLE: os.devnull}


def _shown(value: object) -> str:
    if isinstance(value, dict):
        value = {name: MASK if SECRET_NAME.search(name) else text for name, text in value.items()}
    return MASK if isinstance(value, SecretStr) else "" if value is None else str(value)


def _masked(text: str) -> str:
    """`text` without the name and password of an address in it."""
    return re.sub(r"(?<=password=)[^&'\"]+|(?<=//).*(?=@)", MASK, text)


def _unreadable_tables() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        variable = f"{PREFIX}{name.upper()}"
        if "dict" in str(field.annotation) and variable in os.environ:
            try:
                json.loads(os.environ[variable])
            except ValueError as error:
                example = '{"spark.sql.ansi.enabled": "true"}'
                yield f"{variable} is not JSON ({error}); it should be an object like {example}. ({name})"


def _origin(name: str, in_file: Mapping[str, Any]) -> str:
    variable = f"{PREFIX}{name.upper()}"
    if variable in os.environ:
        return variable
    return config_file().name if name in in_file else "default"


def _read_secret(name: str, path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"{name}_file is {str(path)!r}, which cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{name}_file is {str(path)!r}, which is not UTF-8 text.") from None
    if not secret:
        raise SettingsError(f"{name}_file is {str(path)!r}, which is empty. Write the secret into it.")
    return secret


def _read_config_file() -> dict[str, Any]:
    path = config_file()
    if not path.is_file():
        if CONFIG_VARIABLE in os.environ and os.environ[CONFIG_VARIABLE] != os.devnull:
            raise SettingsError(f"{CONFIG_VARIABLE} is {str(path)!r}, and there is no such file.")
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.") from None


def _unknown_names(in_file: Mapping[str, Any]) -> Iterator[str]:
    """A misspelt name would otherwise be ignored, and its value with it."""
    known = list(Settings.model_fields)
    for name in in_file:
        if name not in known:
            yield f"{config_file()}: there is no setting {name!r}.{_suggest(name, known)}"
    variables = {f"{PREFIX}{name.upper()}" for name in known} | {CONFIG_VARIABLE}
    endings = [name.removeprefix(PREFIX) for name in variables]
    for variable in os.environ:
        if variable.startswith(PREFIX) and not variable.startswith(COMMAND_PREFIX) and variable not in variables:
            suggestion = _suggest(variable.removeprefix(PREFIX), endings, PREFIX)
            yield f"Environment: there is no setting {variable}.{suggestion}"


def _suggest(name: str, known: list[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {prefix}{close[0]}?" if close else " `tidemark config` lists them all."


def _secrets_in_file(in_file: Mapping[str, Any]) -> Iterator[str]:
    for name in SECRETS:
        if name in in_file:
            yield (
                f"{config_file()}: {name} is a secret and does not belong into this file. "
                f"Set {PREFIX}{name.upper()}, or name a file with {name}_file."
            )


def _explain(error: ValidationError, in_file: Mapping[str, Any]) -> Iterator[str]:
    for problem in error.errors():
        right = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        if not problem["loc"]:  # values that do not fit together; the input would be all of them, secrets included
            yield right
            continue
        name = str(problem["loc"][0])
        field = Settings.model_fields.get(name)
        origin = _origin(name, in_file)
        where = origin if origin.startswith(PREFIX) else f"{origin}: {name}"
        given = MASK if name in SECRETS or SECRET_NAME.search(str(problem["loc"])) else _masked(repr(problem["input"]))
        yield f"{where} is {given}; it should be {right}. ({name}: {field.description if field else 'unknown'})"
