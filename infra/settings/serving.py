"""Settings of the serving layer and of the alert process."""

from __future__ import annotations

from pydantic import BaseModel, Field

from infra.settings.types import Location, Port


class ServingSettings(BaseModel):
    """The serving layer."""

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


class AlertsSettings(BaseModel):
    """The alert process."""

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
