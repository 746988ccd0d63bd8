"""Tests wait for conditions with a deadline, never for time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = 10.0, what: str = "the condition", every: float = 0.02) -> T:
    """Call ``condition`` until it is true and return its value; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds:g} s (last: {value!r})")
        time.sleep(every)
