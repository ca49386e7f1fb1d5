"""Settings of the serving layer and of the alert process."""

from __future__ import annotations

from pydantic import BaseModel, Field

from infra.settings.types import Location, Port


class ServingSettings(BaseModel):
    """The serving layer."""

    serving_enabled: bool = Field(
        default=True, description="Whether `up` runs the serving layer, which answers queries by REST."
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
        description="Number of processes of the serving layer; each uses one core, and they share the port.",
    )
    serving_threads: int = Field(default=4, ge=1, le=256, description="Threads in each process that answer queries.")
    serving_max_queries: int = Field(
        default=100,
        ge=1,
        description="Maximum number of queries that each process works on or keeps waiting; beyond it, it answers 429.",
    )
    serving_max_waiting: int = Field(
        default=32,
        ge=1,
        description="Maximum number of queries in each process that wait for fresher views (max_staleness, min_cut).",
    )
    serving_max_wait_s: float = Field(
        default=30, ge=0, description="Maximum time, in seconds, that a query may wait for fresher views."
    )
    serving_timeout_s: float = Field(
        default=30, gt=0, description="Seconds after which an unfinished query ends with 503."
    )
    serving_max_rows: int = Field(default=10_000, ge=1, description="Maximum number of rows in one page of an answer.")
    serving_max_answer_mb: float = Field(
        default=16,
        gt=0,
        description="Maximum size of the body of an answer, in MB; of POST /query that of all answers together. A "
        "larger one is refused with status 422 and the `limit` that would do.",
    )
    serving_max_periods: int = Field(
        default=20_000, ge=1, description="Maximum number of periods (of its grain) in the range of one query."
    )
    serving_max_groups: int = Field(
        default=1_000_000,
        ge=1,
        description="Maximum number of groups merged for one answer; beyond it, the answer is 422.",
    )
    serving_max_state_mb: float = Field(
        default=256, gt=0, description="Maximum MB of states read for one answer; beyond it, the answer is 422."
    )
    serving_max_speed_states: int = Field(
        default=1_000_000,
        ge=1,
        description="Maximum number of states of the speed view read for one answer; beyond it, the answer is 422.",
    )
    serving_speed_states_at_once: int = Field(
        default=20_000,
        ge=1,
        le=100_000,
        description="Maximum number of states that Redis reads in one call, about 2 µs each, while the speed layer "
        "waits. More states are read in several short calls, all at one cut.",
    )
    serving_followed_states: int = Field(
        default=250_000,
        ge=0,
        description="Maximum number of states of the speed view whose numbers a process keeps to rank very many keys, "
        "about 100 bytes each; a repeated query then reads only what has changed. Without them it reads all states.",
    )
    serving_cache_mb: float = Field(
        default=32,
        ge=0,
        description="Approximate size, in MB, of the caches of presented answers and of queries in each process.",
    )
    serving_redis_timeout_s: float = Field(
        default=0.5,
        gt=0,
        description="Seconds to wait for Redis; after that, the answer comes from the batch view alone, and says so.",
    )
    serving_max_values: int = Field(
        default=1_000, ge=1, description="Maximum number of values in all filters of one query."
    )
    serving_max_questions: int = Field(default=20, ge=1, description="Maximum number of queries in one POST /query.")
    serving_max_body_kb: float = Field(
        default=256,
        gt=0,
        le=1_000_000,
        description="Maximum size of a request body to the serving layer in KB, also unpacked.",
    )
    serving_session_hours: float = Field(
        default=12,
        gt=0,
        le=24 * 365,
        description="Hours after which a user of the dashboard has to sign in again.",
    )
    serving_sessions_dir: Location | None = Field(
        default=None,
        description="Folder that says who is signed in to the dashboard; empty: sessions in the home. "
        "The serving layer writes nothing else, so with this a home may be read-only for it.",
    )
    serving_live_subscribers: int = Field(
        default=500, ge=0, description="Maximum number of live connections to each process of the serving layer."
    )
    serving_live_questions: int = Field(
        default=50,
        ge=0,
        description="Maximum number of different queries that live connections follow; each is kept up to date.",
    )
    serving_live_every_s: float = Field(
        default=0.2, gt=0, description="Minimum time, in seconds, between two answers to a live connection."
    )


class AlertsSettings(BaseModel):
    """The alert process."""

    alerts_enabled: bool = Field(
        default=True, description="Whether `up` runs the alert process, which evaluates alerts, watches and feeds."
    )
    alerts_metrics_port: Port = Field(
        default=0,
        description="Loopback port of the alert process's /metrics; 0: chosen once for the home, from 9467 on.",
    )
    alerts_late_s: float = Field(
        default=86_400,
        gt=0,
        description="How late, in seconds, an event may arrive and still be evaluated by alerts; its period counts.",
    )
    alerts_max_keys: int = Field(
        default=100_000,
        ge=1,
        description="Maximum number of keys of one alert on silence; further keys are not evaluated.",
    )
    alerts_max_episodes: int = Field(
        default=10_000, ge=100, description="Number of newest episodes kept in the history of alerts."
    )
    alerts_history_days: float = Field(
        default=0,
        ge=0,
        description=(
            "Days for which resolved episodes stay in the history of alerts (at most alerts_max_episodes); 0: age "
            "does not matter. Open episodes are never removed."
        ),
    )
    alerts_webhooks_file: Location | None = Field(
        default=None,
        description="JSON file with the names, addresses and secrets of webhooks; empty: none.",
    )
    alerts_webhooks_timeout_s: float = Field(
        default=10, gt=0, le=120, description="Seconds that a webhook may take to answer."
    )
    alerts_webhooks_give_up_s: float = Field(
        default=86_400, gt=0, description="Seconds after which the delivery of a notification to a webhook is given up."
    )
    alerts_webhooks_private: bool = Field(
        default=False, description="Whether webhooks may be in private networks or on this machine."
    )
