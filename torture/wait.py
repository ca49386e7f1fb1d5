"""Wait for a condition, with a deadline that says what it waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from torture.errors import NotInTime

Value = TypeVar("Value")
EVERY_S = 0.05


def wait_for(what: str, condition: Callable[[], Value], deadline_s: float = 60, every_s: float = EVERY_S) -> Value:
    """The first true value of `condition`; NotInTime says what did not come in time."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise NotInTime(f"Waited {deadline_s:g} s for {what}; the last value was {value!r}.")
        time.sleep(every_s)
