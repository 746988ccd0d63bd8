"""Calls that may hang, at a bounded cost: a driver that is sick, a server that says nothing."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

T = TypeVar("T")


class BoundedCaller:
    """Makes calls in a daemon thread of its own, so that one that hangs costs its caller a bounded time.

    For one calling thread. At most one call is ever under way: while one hangs, no other is begun.

    Args:
        name: of the thread.
        silent: makes the error to raise from the seconds that the call under way has not come back.
    """

    def __init__(self, name: str, silent: Callable[[float], Exception]) -> None:
        self._silent = silent
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._pending: Future[Any] | None = None
        self._since = 0.0
        threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()

    @property
    def hangs(self) -> bool:
        """Whether a call has not come back yet."""
        return self._pending is not None and not self._pending.done()

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Call ``function`` and return its value, or raise what it raised.

        Raises:
            Exception: what ``silent`` made; the call, or the one before it, did not come back within ``timeout_s``
                seconds in all.
        """
        deadline = time.monotonic() + timeout_s
        if self._pending is not None:
            self._wait(self._pending, deadline)  # its late answer is as old as its question: thrown away
        future: Future[T] = Future()
        self._pending, self._since = future, time.monotonic()
        self._calls.put((future, function))
        self._wait(future, deadline)
        return future.result()

    def close(self) -> None:
        """End the thread, once its call has come back."""
        self._calls.put(None)

    def _wait(self, future: Future[Any], deadline: float) -> None:
        try:
            future.exception(max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            raise self._silent(time.monotonic() - self._since) from None
        self._pending = None


def _serve(calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (item := calls.get()) is not None:
        future, function = item
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the thread that asked
            future.set_exception(error)
