"""What tests on the real stack share beside the stack itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Stack, interpreted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.system.master_place import Place

pytest.register_assert_rewrite("tests.system.master_place")


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of all tests, interpreting: here it moves a few records at a time."""
    with interpreted(spark) as session:
        yield session


@pytest.fixture
def place(stack: Stack, tmp_path: Path) -> Place:
    """A source of its own on the shared broker, with its table."""
    from tests.system.master_place import Place  # its imports are heavy, and most tests need none of them

    return Place(stack, tmp_path)
