"""The thread that tells the ends of jobs to whom their submitters named with ``--notify``.

It has its own connection and shares nothing with the heartbeat or the claims, however slow a command or a server is.
An end is told at least once: what was told and could not be written down is told again, and what failed is tried again
a minute later, five times at most. Several are told at once: one that hangs holds up none of the others.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from typing import Final

from foxqueue.broker import Broker, Reply
from foxqueue.config import Config
from foxqueue.errors import ServerError
from foxqueue.inspector import Inspector
from foxqueue.job import JobView
from workers.delivery import deliver, delivery, end_abandoned

AT_ONCE: Final = 4
ONE: Final = 1  # taken at a time, and only when it can be told at once: others may have room for the next
TRIES: Final = 5  # as the script notice has it
WRITE_S: Final = 30.0  # that it is tried to write down that an end was told
AGAIN_S: Final = 0.5
LEAVE_S: Final = 8.0  # that a worker which leaves waits for what is under way to be ended

_log = logging.getLogger(__name__)


class Notifier(threading.Thread):
    """Tells ends, when a sweep says that some are due.

    Args:
        config: home, server and namespace; the connection is made when it is first needed.
        worker: name of the worker, for the audit trail.
    """

    def __init__(self, config: Config, worker: str) -> None:
        super().__init__(name="notifier", daemon=True)
        self._config = config
        self._worker = worker
        self._broker: Broker | None = None
        self._due = threading.Event()
        self._closed = threading.Event()
        self._room = threading.Semaphore(AT_ONCE)
        self._tellers: list[threading.Thread] = []
        self._lock = threading.Lock()  # over the two below
        self._starting = 0
        self._pids: set[int] = set()

    def hear(self, swept: Reply) -> None:
        """Take a sweep's answer, which says how many ends are due. Any thread may; it does not wait."""
        if int(swept.rest[-1]):
            self.wake()

    def wake(self) -> None:
        """Look now. Any thread may say so; it does not wait."""
        self._due.set()

    def children(self) -> tuple[list[int], bool]:
        """Pids of the worker's children that are waited for here, and whether these are all: one may be starting."""
        with self._lock:
            return list(self._pids), not self._starting

    def close(self) -> None:
        """End what is under way: another worker tells it then."""
        until = time.monotonic() + LEAVE_S
        self._closed.set()
        self._due.set()
        for thread in (self, *self._tellers):
            thread.join(max(until - time.monotonic(), 0.0))

    def run(self) -> None:
        """The thread."""
        left = end_abandoned(str(self._config.home))
        if left:
            _log.warning("ended what dead workers had left that told the ends of jobs: pids %s", left)
        while not self._closed.is_set():
            self._due.wait()
            self._due.clear()
            try:
                while not self._closed.is_set() and self._take_one():
                    continue
            except (ServerError, RuntimeError) as error:  # or no thread can be started: a later sweep says what is due
                _log.debug("ends are told later: %s", error)

    def _take_one(self) -> bool:
        """Take one end and have it told, when there is room for it. False when none is due.

        Raises:
            ServerError: Redis is away.
        """
        if self._broker is None:
            self._broker = Broker.open(self._config)
        self._room.acquire()
        began = False
        try:
            if self._closed.is_set():
                return False
            taken = self._broker.send(self._broker.notice_call(ONE))[0]
            if taken.rest:
                told = (self._broker, int(taken.rest[0]), taken.rest[1].decode())
                teller = threading.Thread(target=self._tell, args=told, name="teller", daemon=True)
                self._tellers = [*(thread for thread in self._tellers if thread.is_alive()), teller]
                teller.start()
                began = True
            return began
        finally:
            if not began:
                self._room.release()

    def _tell(self, broker: Broker, number: int, born: str) -> None:
        """Tell one end: a thread of its own."""
        try:
            job = Inspector(broker).views([number])[0]
            if job is None or job.born != born or not job.ended:
                return  # queued again meanwhile, or lost: that end is nobody's news
            fault = self._deliver(job)
            if fault:
                _log.warning("job %d: its end could not be told%s: %s", number, _which_try(broker, number), fault)
            else:
                self._write_down(broker, job)
        except ServerError as error:  # it is told again
            _log.debug("job %d: its end is told later: %s", number, error)
        finally:
            self._room.release()

    def _deliver(self, job: JobView) -> str:
        to = job.spec.get("notify")
        if not isinstance(to, str) or not to.strip():
            return ""  # nobody was named
        what = delivery(job, to, self._config.namespace, os.environ)
        pids: list[int] = []

        def begun(started: list[int]) -> None:
            pids.extend(started)
            with self._lock:
                self._pids.update(started)
                self._starting -= 1

        with self._lock:
            self._starting += 1
        try:
            fault = deliver(what, str(self._config.home), begun, self._closed.is_set)
        finally:
            with self._lock:
                self._starting -= not pids
                self._pids.difference_update(pids)
        return fault and f"{what.to}: {fault}"

    def _write_down(self, broker: Broker, job: JobView) -> None:
        """Say that it was told, again while Redis is away.

        Raises:
            ServerError: it is away for long.
        """
        until = time.monotonic() + WRITE_S
        while True:
            try:
                broker.send(broker.told_call(job.number, job.born, job.finished_ms or 0, self._worker))
                return
            except ServerError:
                if time.monotonic() > until or self._closed.wait(AGAIN_S):
                    raise


def _which_try(broker: Broker, number: int) -> str:
    """For people; empty when Redis does not say."""
    with suppress(ServerError, TypeError, ValueError):
        tries = int(broker.connection.answer(("HGET", broker.keys.job(number), "notify"), "read"))
        return f" (try {tries} of {TRIES}{', the last' if tries >= TRIES else ''})"
    return ""
