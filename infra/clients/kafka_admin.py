"""Kafka's control plane: topics, configurations, consumer groups and offsets, through kafka-python's admin client.

kafka-python connects in its constructor and gives up at once while a broker is away. `KafkaAdmin` connects when it is
first used, waits for a broker that restarts, and connects again.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from infra.clients.kafka import check_connection, kafka_login, kafka_python_config
from infra.settings import Settings

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

DEFAULT_TIMEOUT_S = 15.0
MAX_RECONNECT_PAUSE_MS = 1000
PAUSE_S = 0.05
Result = TypeVar("Result")

logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)  # our errors say what it would log, once and in context


class KafkaAdmin:
    """A client for administration that many threads may share. No call takes much longer than `timeout_s`."""

    def __init__(self, settings: Settings, bootstrap: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.settings = settings
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._client: KafkaAdminClient | None = None
        self._closing: weakref.finalize[Any, Any] | None = None

    def with_timeout(self, timeout_s: float) -> KafkaAdmin:
        """Another client for the same brokers. kafka-python's time limit belongs to the client, not to the call."""
        return KafkaAdmin(self.settings, self.bootstrap, timeout_s)

    def read(self, ask: Callable[[KafkaAdminClient], Result]) -> Result:
        """The reply to a question, asked again while no broker answers. Raises kafka-python's KafkaError."""
        from kafka.errors import KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError

        return self._run(ask, (NodeNotReadyError, KafkaConnectionError, KafkaTimeoutError, RequestTimedOutError))

    def change(self, order: Callable[[KafkaAdminClient], Result]) -> Result:
        """The reply to a change, which is sent at most once: a broker may carry it out and fail to say so."""
        from kafka.errors import NodeNotReadyError

        return self._run(order, (NodeNotReadyError,))

    def close(self) -> None:
        """Disconnect. The next call connects again."""
        with self._lock:
            self._disconnect()

    def __enter__(self) -> KafkaAdmin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, do: Callable[[KafkaAdminClient], Result], retried: tuple[type[Exception], ...]) -> Result:
        from kafka.errors import KafkaTimeoutError

        deadline = time.monotonic() + self.timeout_s
        while True:
            client = self._connect(deadline)
            try:
                return do(client)
            except retried as error:
                if time.monotonic() + PAUSE_S < deadline:
                    time.sleep(PAUSE_S)
                    continue
                self.close()  # the brokers may have moved: the next call begins with the bootstrap addresses
                reason = check_connection(self.bootstrap, 1.0) or f"no answer from {self.bootstrap}: {error}"
                raise KafkaTimeoutError(f"{reason} (waited {self.timeout_s:g} s)") from None

    def _connect(self, deadline: float) -> KafkaAdminClient:
        from kafka.errors import KafkaTimeoutError

        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise KafkaTimeoutError(f"no answer from {self.bootstrap} (waited {self.timeout_s:g} s)")
        try:
            while self._client is None:
                left_s = max(PAUSE_S, deadline - time.monotonic())
                unreachable = check_connection(self.bootstrap, left_s)
                if unreachable is None:
                    self._client = connect_admin(self.settings, self.bootstrap, left_s, self.timeout_s)
                    # Its thread would outlive an object that nobody closed.
                    self._closing = weakref.finalize(self, _close_beside, self._client)
                    self._closing.atexit = False
                elif time.monotonic() + PAUSE_S > deadline:
                    raise KafkaTimeoutError(f"{unreachable} (waited {self.timeout_s:g} s)")
                else:
                    time.sleep(PAUSE_S)
            return self._client
        finally:
            self._lock.release()

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if self._closing is not None:
            self._closing.detach()
        if client is not None:
            client.close()


def connect_admin(settings: Settings, bootstrap: str, connect_s: float, request_s: float) -> KafkaAdminClient:
    """kafka-python's own client, connected. Raises its KafkaError; one that could not connect leaves no thread."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError, KafkaTimeoutError
    from kafka.net.compat import KafkaNetClient

    made: list[KafkaNetClient] = []

    def make(**config: Any) -> KafkaNetClient:
        made.append(KafkaNetClient(**config))
        return made[-1]

    try:
        return KafkaAdminClient(
            **kafka_python_config(settings, bootstrap),
            request_timeout_ms=max(1, round(request_s * 1000)),
            bootstrap_timeout_ms=max(1, round(connect_s * 1000)),
            reconnect_backoff_max_ms=MAX_RECONNECT_PAUSE_MS,
            kafka_client=make,
        )
    except BaseException as error:
        for client in made:
            client.close()
        if isinstance(error, KafkaError):  # it calls a wrong password "Unable to bootstrap"
            raise KafkaTimeoutError(f"no answer from {bootstrap}: {error}{_password_hint(settings)}") from None
        raise


def check_kafka(settings: Settings, bootstrap: str, timeout_s: float = 3.0) -> str | None:
    """None where the brokers answer a metadata request; else the reason."""
    if unreachable := check_connection(bootstrap, timeout_s):
        return unreachable
    from kafka.errors import KafkaError

    try:
        admin = connect_admin(settings, bootstrap, timeout_s, timeout_s)
    except (KafkaError, OSError, ValueError) as error:
        return error_text(error)
    try:
        brokers = admin.describe_cluster()["brokers"]
    except (KafkaError, OSError) as error:
        return f"{bootstrap} does not answer a metadata request: {error_text(error)}"
    finally:
        admin.close()
    return None if brokers else f"{bootstrap} knows no broker yet"


def error_text(error: Exception) -> str:
    """An error of kafka-python without the name of its class."""
    return str(error.args[0] if error.args else error).rstrip(".")


def _password_hint(settings: Settings) -> str:
    login = kafka_login(settings)
    return f". Is the password of {login.username!r} right (kafka_password)?" if login.password is not None else ""


def _close_beside(client: KafkaAdminClient) -> None:
    """Close it in a thread: the garbage collector may run in the client's own thread, which cannot wait for itself."""
    threading.Thread(target=client.close, name="kafka-admin-close", daemon=True).start()
