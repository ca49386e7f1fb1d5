"""Calls from the JVM into this process, as for every micro-batch: only our own JVM may make them.

Python listens on a loopback port for such calls, and PySpark asks nobody there who they are: any user of the machine
could call the function that applies a micro-batch. The other direction, from Python into the JVM, has a secret, which
is used for this one too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_secret(session: SparkSession) -> None:
    """Let the port for calls ask for the gateway's secret, and let the JVM present it."""
    from py4j.clientserver import ClientServer
    from py4j.java_gateway import JavaObject
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = session.sparkContext._gateway
    if not isinstance(gateway, ClientServer):  # without pinned threads PySpark asks for the secret by itself
        return
    # Step 1. The port asks, from its first connection on.
    gateway.python_parameters.auth_token = gateway.java_parameters.auth_token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # PySpark has no types for it
    # Step 2. The JVM presents it. Its client was made with the secret; the copy that knows the port was made without.
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
    field = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    field.setAccessible(True)
    field.set(client, gateway.java_parameters.auth_token)
