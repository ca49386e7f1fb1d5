"""What tests on the real stack share beside the stack itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Stack, interpreted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.system.master_source import Place
    from tests.system.speed_source import RedisServer, SpeedPlace

pytest.register_assert_rewrite("tests.system.master_source")
pytest.register_assert_rewrite("tests.system.speed_source")


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of all tests, interpreting: here it moves a few records at a time."""
    with interpreted(spark) as session:
        yield session


@pytest.fixture
def place(stack: Stack, tmp_path: Path) -> Place:
    """A source of its own on the shared broker, with its table."""
    from tests.system.master_source import Place  # its imports are heavy, and most tests need none of them

    return Place(stack, tmp_path)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that tests of the speed layer may harm."""
    from tests.system.speed_source import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def speed(stack: Stack, tmp_path: Path, redis: RedisServer, spark: SparkSession) -> SpeedPlace:
    """A source of its own, with its speed views."""
    from tests.system.speed_source import SpeedPlace

    return SpeedPlace(stack, tmp_path, redis, spark)
