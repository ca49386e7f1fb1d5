"""The ports of a Spark session: on loopback, and nobody without the session's secret gets anything done there."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from infra.stack.ports import LOOPBACK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RPC_REQUEST, RPC_FAILURE = 3, 5


def gateway(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway


def jvm(spark: SparkSession) -> psutil.Process:
    return psutil.Process(int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()))


def reply(port: int, sent: bytes) -> bytes:
    """What a server says to a stranger until it hangs up, or has nothing more to say."""
    received = b""
    with socket.create_connection((LOOPBACK, port), 5) as connection, suppress(OSError):  # it may hang up on us
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            received += part
    return received


def test_everything_listens_on_loopback(spark: SparkSession) -> None:
    processes = (jvm(spark), psutil.Process())
    listening = [c.laddr for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert len(listening) >= 4, "driver, block manager and both directions of py4j"
    assert {address.ip.removeprefix("::ffff:") for address in listening} <= {LOOPBACK, "::1"}


def test_the_driver_unpacks_nothing_of_a_stranger(spark: SparkSession) -> None:
    body = b"\xac\xed\x00\x05"  # how a Java object begins
    message = struct.pack(">BqI", RPC_REQUEST, 7, len(body)) + body
    answer = reply(int(spark.conf.get("spark.driver.port") or 0), struct.pack(">q", 8 + len(message)) + message)
    kind, request, length = struct.unpack(">BqI", answer[8:21])
    assert (kind, request) == (RPC_FAILURE, 7)
    text = answer[21 : 21 + length].decode()
    assert "Expected SaslMessage" in text
    assert "org.apache.spark.rpc" not in text, "it never reached what unpacks objects"


def test_a_stranger_calls_nothing_in_the_jvm(spark: SparkSession) -> None:
    port = gateway(spark).java_parameters.port
    assert b"!y" not in reply(port, b"c\nz:java.lang.System\ncurrentTimeMillis\ne\n")


@pytest.mark.parametrize("command", [b"c\nt\nhashCode\ne\n", b"g\np0\ne\n", b"A\nguess\ne\n"])
def test_a_stranger_calls_nothing_in_python(spark: SparkSession, command: bytes) -> None:
    """Neither a function of ours, nor the removal of one, nor with a guessed secret."""
    answer = reply(gateway(spark)._callback_server.port, command)
    assert answer == b"" or answer.startswith(b"!x"), "an error, if anything"


def test_our_own_jvm_calls_the_function_of_a_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[int] = []

    def take(batch: DataFrame, _number: int) -> None:
        seen.append(batch.count())

    spark.range(5).write.format("delta").save(str(tmp_path / "table"))
    stream = spark.readStream.format("delta").load(str(tmp_path / "table")).writeStream.foreachBatch(take)
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert query.exception() is None
    assert sum(seen) == 5
