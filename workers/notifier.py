"""The thread that tells the ends of jobs to whom their submitters named with ``--notify``.

It has its own connection and shares nothing with the heartbeat or the claims, however slow a command or a server is.
An end is told at least once: what was told and could not be written down is told again, and what failed is tried again
a minute later, five times at most.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final

from foxqueue.broker import Broker, Reply
from foxqueue.config import Config
from foxqueue.errors import ServerError
from foxqueue.inspector import Inspector
from foxqueue.job import JobView
from workers.delivery import deliver, delivery

ONE: Final = 1  # taken at a time: none waits behind a slow one for longer than until it is due again
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
        self._pid: int | None = None
        self._starting = False

    def hear(self, swept: Reply) -> None:
        """Take a sweep's answer, which says how many ends are due. Any thread may; it does not wait."""
        if swept.word == "ok" and int(swept.rest[5]):
            self.wake()

    def wake(self) -> None:
        """Look now. Any thread may say so; it does not wait."""
        self._due.set()

    def children(self) -> list[int] | None:
        """Pids of the worker's children that are this thread's to wait for; None while one is being started."""
        if self._starting:
            return None
        pid = self._pid
        return [] if pid is None else [pid]

    def close(self) -> None:
        """End what is under way: another worker tells it then."""
        self._closed.set()
        self._due.set()
        self.join(LEAVE_S)

    def run(self) -> None:
        """The thread."""
        while not self._closed.is_set():
            self._due.wait()
            self._due.clear()
            try:
                while not self._closed.is_set() and self._tell_one():
                    continue
            except ServerError as error:  # a later sweep says that they are still due
                _log.debug("ends are told later: %s", error)

    def _tell_one(self) -> bool:
        """Take one end and tell it. False when none is due.

        Raises:
            ServerError: Redis is away.
        """
        if self._broker is None:
            self._broker = Broker.open(self._config)
        taken = self._broker.send(self._broker.notice_call(ONE))[0]
        if not taken.rest:
            return False
        number, born = int(taken.rest[0]), taken.rest[1].decode()
        job = Inspector(self._broker).views([number])[0]
        if job is None or job.born != born or not job.ended:
            return True  # queued again meanwhile, or lost: that end is nobody's news
        fault = self._deliver(job)
        if fault:
            _log.warning("job %d: its end could not be told: %s", number, fault)
        else:
            self._write_down(self._broker, job)
        return True

    def _deliver(self, job: JobView) -> str:
        to = job.spec.get("notify")
        if not isinstance(to, str) or not to.strip():
            return ""  # nobody was named
        what = delivery(job, to, self._config.namespace, os.environ)
        self._starting = True
        try:
            fault = deliver(what, self._begun, self._closed.is_set)
        finally:
            self._pid, self._starting = None, False
        return fault and f"{what.to}: {fault}"

    def _begun(self, pid: int) -> None:
        self._pid, self._starting = pid, False

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
