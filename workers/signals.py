"""Signals as a count and a wake-up, for loops that wait: nothing but counting happens inside a handler."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopSignals:
    """While entered, SIGTERM, SIGINT and SIGHUP are counted, and they and ended children cut waits short.

    A SIGHUP that was ignored before (nohup, a detached process) stays ignored. Main thread only.

    Attributes:
        count: how many came.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}
        self._reader = self._writer = self._wakeup = -1

    def __enter__(self) -> StopSignals:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        stops = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            stops.append(signal.SIGHUP)
        for number in stops:
            self._before[number] = signal.signal(number, self._counted)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _nothing)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._reader)
        os.close(self._writer)

    def stopping(self) -> bool:
        """Whether one came."""
        return self.count > 0

    def wait(self, seconds: float) -> None:
        """Until a signal comes or a child ends, at most ``seconds``."""
        if select.select([self._reader], [], [], max(0.0, seconds))[0]:
            os.read(self._reader, 4096)

    def _counted(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


_nothing: Callable[[int, FrameType | None], None] = lambda _number, _frame: None  # noqa: E731 (SIG_IGN would reap)
