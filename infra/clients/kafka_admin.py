"""Kafka's control plane: topics, configurations, consumer groups and offsets, through kafka-python's admin client.

kafka-python connects in its constructor and gives up at once while a broker is away. `KafkaAdmin` connects when it is
first used, waits for a broker that restarts, and connects again.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass
class _Connection:
    """A client that several threads may be using. It is closed by the last of them, once it `is_retired`."""

    client: KafkaAdminClient
    closing: weakref.finalize[Any, Any] | None = None
    users: int = 0
    is_retired: bool = False


class KafkaAdmin:
    """A client for administration that many threads may share. No call takes much longer than `timeout_s`."""

    def __init__(self, settings: Settings, bootstrap: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.settings = settings
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        """Held while somebody connects."""
        self._counting = threading.Lock()
        """Held for a moment, around `users` and `is_retired`."""
        self._connection: _Connection | None = None

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
        """Disconnect, once no other thread waits for a reply. The next call connects again."""
        with self._lock:
            if self._connection is not None:
                self._retire(self._connection)

    def __enter__(self) -> KafkaAdmin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, do: Callable[[KafkaAdminClient], Result], retried: tuple[type[Exception], ...]) -> Result:
        from kafka.errors import KafkaTimeoutError

        deadline = time.monotonic() + self.timeout_s
        using = self._shared(deadline)
        while True:
            with using as connection:
                try:
                    return do(connection.client)
                except retried as error:
                    if time.monotonic() + PAUSE_S >= deadline:
                        self._retire(connection)  # the brokers may have moved: the next call begins with the bootstrap
                        reason = check_connection(self.bootstrap, 1.0) or f"no answer from {self.bootstrap}: {error}"
                        raise KafkaTimeoutError(f"{reason} (waited {self.timeout_s:g} s)") from None
            time.sleep(PAUSE_S)
            using = self._own(deadline)

    @contextmanager
    def _shared(self, deadline: float) -> Iterator[_Connection]:
        """The connection of all threads. It is not closed while the block runs, whatever others do."""
        connection = self._connect(deadline)
        try:
            yield connection
        finally:
            self._release(connection)

    @contextmanager
    def _own(self, deadline: float) -> Iterator[_Connection]:
        """A connection for a retry, which has only the time that is left."""
        client = self._open(deadline, max(PAUSE_S, deadline - time.monotonic()))
        try:
            yield _Connection(client, is_retired=True)
        finally:
            client.close()

    def _connect(self, deadline: float) -> _Connection:
        from kafka.errors import KafkaTimeoutError

        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise KafkaTimeoutError(f"no answer from {self.bootstrap} (waited {self.timeout_s:g} s)")
        try:
            if self._connection is not None and self._is_taken(self._connection):
                return self._connection
            client = self._open(deadline, self.timeout_s)
            # Its thread would outlive an object that nobody closed.
            closing = weakref.finalize(self, _close_beside, client)
            closing.atexit = False
            self._connection = _Connection(client, closing, users=1)
            return self._connection
        finally:
            self._lock.release()

    def _open(self, deadline: float, request_s: float) -> KafkaAdminClient:
        """A new client, once a broker accepts connections."""
        from kafka.errors import KafkaTimeoutError

        while True:
            left_s = max(PAUSE_S, deadline - time.monotonic())
            unreachable = check_connection(self.bootstrap, left_s)
            if unreachable is None:
                return connect_admin(self.settings, self.bootstrap, left_s, request_s)
            if time.monotonic() + PAUSE_S > deadline:
                raise KafkaTimeoutError(f"{unreachable} (waited {self.timeout_s:g} s)")
            time.sleep(PAUSE_S)

    def _is_taken(self, connection: _Connection) -> bool:
        """Become a user of it, unless it is retired."""
        with self._counting:
            connection.users += not connection.is_retired
            return not connection.is_retired

    def _retire(self, connection: _Connection) -> None:
        """Let no further call use it. Its last user closes it; where there is none, we do."""
        with self._counting:
            is_over = not connection.is_retired and not connection.users
            connection.is_retired = True
        if is_over:
            _close(connection)

    def _release(self, connection: _Connection) -> None:
        with self._counting:
            connection.users -= 1
            is_over = connection.is_retired and not connection.users
        if is_over:
            _close(connection)


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


def _close(connection: _Connection) -> None:
    if connection.closing is not None:
        connection.closing.detach()
    connection.client.close()


def _close_beside(client: KafkaAdminClient) -> None:
    """Close it in a thread: the garbage collector may run in the client's own thread, which cannot wait for itself."""
    threading.Thread(target=client.close, name="kafka-admin-close", daemon=True).start()
