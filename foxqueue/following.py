"""Waiting for jobs and for their output, as long as it takes, over every restart of the server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, TypeVar

from foxqueue.broker import Broker
from foxqueue.errors import InvalidInput, QueueFull, ServerError, ServerRefused, ServerUnavailable, WaitTimeout
from foxqueue.handle import Job, same_job
from foxqueue.inspector import BLOCK_S, Inspector
from foxqueue.replies import Piece
from foxqueue.when import seconds

_log = logging.getLogger("foxqueue.client")
_SAY_AGAIN_S = 30.0  # how often a waiting client repeats that the server is away
_PAUSE_S = 0.2
_READ_AGAIN = 1000  # jobs that a waiting client reads again in a second, though no event spoke of them
SHOWN = 20  # jobs that an error names

T = TypeVar("T")


class Following:
    """What one client waits for.

    Args:
        broker, inspector: of the namespace.
    """

    def __init__(self, broker: Broker, inspector: Inspector) -> None:
        self._broker = broker
        self._inspector = inspector
        self._warned = False

    def look(self) -> None:
        """Help the queue along; see :meth:`foxqueue.client.Client.look`."""
        try:
            self._broker.sweep()
        except (ServerUnavailable, ServerRefused):
            raise
        except ServerError as error:
            if not self._warned:
                _log.warning("%s", error)
            self._warned = True

    def wait(
        self, jobs: Job | Iterable[Job], timeout: float | str | None, on_end: Callable[[Job], None] | None
    ) -> None:
        """Wait until all these jobs have ended; see :meth:`foxqueue.client.Client.wait`."""
        deadline = deadline_of(timeout)
        waiting: dict[int, list[Job]] = {}  # one may be given twice
        for job in _handles(jobs):
            waiting.setdefault(job.number, []).append(job)
        event = self.patiently(self._inspector.last_event, deadline)
        doubtful, all_read = [*waiting], time.monotonic()
        while True:
            self.patiently(self.look, deadline)
            handles = [job for number in doubtful for job in waiting[number]]
            self.patiently(partial(self._reread, handles), deadline)
            for job in handles:
                if job.ended:
                    waiting.pop(job.number, None)
                    if on_end:
                        on_end(job)
            if not waiting:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(_unended([job for handles in waiting.values() for job in handles]))
            event, spoken_of = self._news_of(waiting.keys(), event, deadline)
            now = time.monotonic()
            if now - all_read >= len(waiting) / _READ_AGAIN or (deadline is not None and now >= deadline):
                doubtful, all_read = [*waiting], now
            else:  # so many that reading all of them at each piece of news would keep the server busy
                doubtful = sorted(spoken_of)

    def pieces(self, job: Job) -> Iterator[Piece]:
        """Output of a job as it comes, over all its attempts, until it has ended."""
        event, last = self.patiently(self._inspector.last_event, None), "0-0"
        while True:
            self.patiently(self.look, None)
            self.patiently(partial(self._reread, [job]), None)
            end = time.monotonic() + (0.0 if job.ended else BLOCK_S)
            while True:
                left = max(end - time.monotonic(), 0.001)
                news = self.patiently(partial(self._inspector.news, event, left, job.number, last), None)
                event = news.event
                for piece in news.pieces:
                    last = piece.entry
                    yield piece
                if job.ended and not news.pieces:
                    return
                if not job.ended and (job.number in news.jobs or time.monotonic() >= end):
                    break

    def with_room(self, put: Callable[[], T]) -> T:
        """Put something into a queue that may be full, as soon as there is room: again when a job has ended.

        Args:
            put: what raises QueueFull.
        """
        event, said = self.patiently(self._inspector.last_event, None), False
        while True:
            try:
                return put()
            except QueueFull as error:
                if not said:
                    _log.info("%s: waiting for room", error.what)
                said = True
            self.patiently(self.look, None)
            event = self._end_after(event)

    def _end_after(self, event: str) -> str:
        """Block until some job has ended, at most a second."""
        end, ended = time.monotonic() + BLOCK_S, False
        while not ended and (left := end - time.monotonic()) > 0:
            news = self.patiently(partial(self._inspector.news, event, left), None)
            event, ended = news.event, news.ended
        return event

    def patiently(self, ask: Callable[[], T], deadline: float | None) -> T:
        """Ask again while the server is away, and say so now and then.

        Args:
            ask: what raises ServerUnavailable then.
            deadline: of the monotonic clock, None for as long as it takes.

        Raises:
            WaitTimeout: the deadline has passed.
        """
        said = 0.0
        while True:
            try:
                return ask()
            except ServerUnavailable as error:
                now = time.monotonic()
                if deadline is not None and now > deadline:
                    raise WaitTimeout(f"the time is over, and {error}") from error
                if not said or now - said > _SAY_AGAIN_S:
                    said = now
                    _log.warning("%s; still waiting", error)
                time.sleep(_PAUSE_S)

    def _news_of(self, numbers: Set[int], event: str, deadline: float | None) -> tuple[str, Set[int]]:
        """Block until something happened to one of the jobs, at most a second; other jobs' events pass by."""
        end = min(time.monotonic() + BLOCK_S, deadline or float("inf"))
        spoken_of: Set[int] = frozenset()
        while not spoken_of and (left := end - time.monotonic()) > 0:
            news = self.patiently(partial(self._inspector.news, event, left), deadline)
            event, spoken_of = news.event, numbers & news.jobs
        return event, spoken_of

    def _reread(self, jobs: Sequence[Job]) -> None:
        """Read jobs again in one go, without the reasons they wait."""
        for job, view in zip(jobs, self._inspector.views([job.number for job in jobs]), strict=True):
            job.view = same_job(view, job.number, job.born)


def deadline_of(timeout: float | str | None) -> float | None:
    """When a time is over, of the monotonic clock; None for never.

    Args:
        timeout: seconds from now, or text like ``30m``; less than none, which a caller may have left, is none.

    Raises:
        InvalidInput: it is neither.
    """
    if timeout is None:
        return None
    over = isinstance(timeout, int | float) and timeout < 0
    return time.monotonic() + (0.0 if over else seconds(timeout, "timeout"))


def _handles(given: Any) -> list[Job]:
    """One job or several, checked."""
    if isinstance(given, Job):
        return [given]
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidInput(f"{given!r:.60} is no job, nor several: give what submit returned, or fox.job(42)")
    jobs = list(given)
    for job in jobs:
        if not isinstance(job, Job):
            raise InvalidInput(f"{job!r:.60} is no job: give what submit returned, or fox.job(42)")
    return jobs


def _unended(jobs: Sequence[Job]) -> str:
    which = ", ".join(f"{job.number} is {job.state}" for job in jobs[:SHOWN])
    more = f" and {len(jobs) - SHOWN:,} more" if len(jobs) > SHOWN else ""
    return f"the time is over and not all have ended: job {which}{more}"
