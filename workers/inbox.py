"""Where a worker's main thread waits: for signals, for its other threads, and for the runner, all at once."""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol


class Readable(Protocol):
    """Something to wait on."""

    def fileno(self) -> int:
        """Its descriptor."""


@dataclass(frozen=True)
class Event:
    """What another thread tells; ``text`` says more.

    Kinds: ``token`` (woken for a shape), ``asked`` (a running job is to be cancelled or given back, says the listener),
    ``cancel`` (says the heartbeat's answer, and by whom), ``give back`` (it says by whom and why), ``lost`` (the
    heartbeat was refused with this word), ``away`` and ``again`` (Redis does not answer, answers again). ``fence`` says
    which run ``cancel``, ``give back`` and ``lost`` are about: they may come late.
    """

    kind: str
    text: str = ""
    fence: str = ""


class Inbox:
    """Events of other threads in order, and a count of stop signals. Made in the main thread."""

    def __init__(self) -> None:
        self.stops = 0
        self._events: deque[Event] = deque()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def catch_signals(self) -> None:
        """Count SIGTERM, SIGINT and SIGHUP (unless it was ignored: nohup); ended children cut a wait short."""
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, _noted)  # SIG_IGN would reap the runner before we see its status

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stops += 1

    def put(self, kind: str, text: str = "", fence: str = "") -> None:
        """Tell the main thread; any thread may."""
        self._events.append(Event(kind, text, fence))
        try:
            os.write(self._writer, b".")
        except BlockingIOError:
            return  # the pipe is full of wake-ups: the main thread will look

    def wait(self, seconds: float, *others: Readable) -> list[Event]:
        """Wait until something comes, one of ``others`` can be read, or the time is over; take the events."""
        waited: list[Any] = [self._reader, *(other for other in others if other.fileno() >= 0)]
        if not self._events:
            select.select(waited, [], [], max(seconds, 0.0))
        try:
            while os.read(self._reader, 4096):
                continue
        except BlockingIOError:
            pass
        found = []
        while self._events:
            found.append(self._events.popleft())
        return found


def _noted(_number: int, _frame: FrameType | None) -> None:
    """The wake-up descriptor has it."""
