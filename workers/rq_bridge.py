"""Workers of RQ that take a GPU lease before each job: ``rq worker --worker-class workers.rq_bridge.GpuWorker …``.

The lease comes first, then the job, so that no dequeued job waits for a device. An idle worker has no device. The
lease goes back when the work horse has ended and what it left behind is gone. Only methods of RQ are overridden that
are alike in 2.12 and 3.0; what they are given is passed on as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from rq.job import Job
from rq.queue import Queue
from rq.suspension import is_suspended
from rq.worker import Worker

from foxqueue.errors import FoxqueueError, InvalidInput, LeaseLost, NoServer, OutcomeUnknown, ServerUnavailable
from foxqueue.leases import GpuLeases, Lease
from foxqueue.processes import become_subreaper, descendants, kill_marked
from foxqueue.rundirs import MARK
from foxqueue.units import parse_memory, parse_priority
from workers.tree import kill_orphans

IDLE_STEP_S: Final = 0.2  # between looks at empty queues
SIGN_S: Final = 15.0  # between heartbeats to RQ while there is no job
LOOK_S: Final = 1.0  # between looks whether a device is still to be waited for
SWEEP_UP_S: Final = 20.0  # that killing what a job left may take
AGAIN_S: Final = 2.0  # after which a server that did not answer is asked again

_log = logging.getLogger(__name__)


class _GoneAway(Exception):
    """There is nothing to wait for a device for: the queues are empty, or the workers are suspended."""


@dataclass(frozen=True)
class Wish:
    """What is asked for each job.

    Attributes:
        gpus: devices that may be used, with commas between them; None for all of this machine.
        memory: that must be free, like ``8G``; None for any.
        priority: rank in line, 0 to 9.
    """

    gpus: str | None = None
    memory: str | None = None
    priority: int = 5

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Wish:
        """Read FOXQUEUE_RQ_GPUS, FOXQUEUE_RQ_MEMORY and FOXQUEUE_RQ_PRIORITY.

        Raises:
            InvalidInput: one of them is malformed; the text says which.
        """

        def read(name: str) -> str | None:
            return environ.get(f"FOXQUEUE_RQ_{name}", "").strip() or None

        memory, priority = read("MEMORY"), read("PRIORITY")
        try:
            if memory is not None and parse_memory(memory) < 1:
                raise InvalidInput(f"memory {memory!r} is not possible: give a size like 8G")
            return cls(read("GPUS"), memory, 5 if priority is None else parse_priority(priority))
        except InvalidInput as error:
            raise InvalidInput(f"FOXQUEUE_RQ_GPUS, _MEMORY and _PRIORITY: {error}") from error


class GpuWorker(Worker):
    """A worker of RQ with a device for each job. Configured by the environment, see :class:`Wish`.

    FOXQUEUE_URL, FOXQUEUE_NAMESPACE and FOXQUEUE_HOME say where the leases are kept; RQ's own server may be another.
    """

    _leases: GpuLeases | None = None
    _wish = Wish()
    _lease: Lease | None = None
    _lost: LeaseLost | None = None
    _mark = ""
    _before: frozenset[int] | None = None  # our processes before the job; None when none was begun

    def work(self, *args: Any, **kwargs: Any) -> bool:
        """As RQ's; what is configured for leases is checked before.

        Raises:
            SystemExit: it is malformed, or the server or the devices are not there; the text says so.
        """
        try:
            self._wish = Wish.of(os.environ)
            self._leases = GpuLeases(gpus=self._wish.gpus, lost=self._is_lost)
            self._leases.statistics()  # the server and the devices are there
        except FoxqueueError as error:
            raise SystemExit(f"foxqueue: {error}") from error
        become_subreaper()
        try:
            return bool(super().work(*args, **kwargs))
        finally:
            self._give_back()  # a stop may have come just before it was done
            self._leases.close()

    # --- the device, then the job ----------------------------------------------------------------------

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Job, Queue] | None:
        """Wait for work, then for a device, then take the job."""
        burst = timeout is None
        idle_until = None if max_idle_time is None else time.monotonic() + max_idle_time
        while self._await_work(burst, idle_until):
            try:
                self._acquire()
                found = super().dequeue_job_and_maintain_ttl(None, None, *args, **kwargs)
            except _GoneAway:
                self._give_back()  # it may have come at that very moment
                continue
            except BaseException:
                self._give_back()
                raise
            if found is not None:
                return found
            self._give_back()  # another worker was quicker
        return None

    def _await_work(self, burst: bool, idle_until: float | None) -> bool:
        """Until a queue holds a job. False when the worker is to end without one."""
        sign_at = 0.0
        while True:
            now = time.monotonic()
            try:
                self.check_for_suspension(burst)  # ends a burst, else lasts as long as the suspension
                if self._has_work():
                    return True
                if burst or (idle_until is not None and now >= idle_until):
                    return False
                if now >= sign_at:
                    self.heartbeat()
                    sign_at = now + SIGN_S
                    if self.should_run_maintenance_tasks:
                        self.run_maintenance_tasks()  # type: ignore[no-untyped-call]  # RQ's
            except Exception as error:
                if not _is_away(error):
                    raise
                _log.error("RQ's server does not answer, it is asked again in %g s: %s", AGAIN_S, error)
                time.sleep(AGAIN_S)
            time.sleep(IDLE_STEP_S)

    def _has_work(self) -> bool:
        return bool(self.connection.exists(*(queue.key for queue in self.queues)))

    def _acquire(self) -> None:
        """Wait in line for a device.

        Raises:
            _GoneAway: there is nothing to do any more, or the server of the leases does not answer.
            StopRequested: RQ's, when the worker is told to stop.
            SystemExit: such a device will never be had; the text says why.
        """
        leases = self._leases
        if leases is None:
            raise RuntimeError("a GpuWorker takes leases in work() only")
        self._lost = None
        try:
            with self._looking():
                self._lease = leases.acquire_any(
                    holder=f"rq {self.name}"[:60], memory=self._wish.memory, priority=self._wish.priority
                )
            self._mark = f"rq-{secrets.token_hex(8)}"
            self._lease.note(mark=self._mark)
        except (ServerUnavailable, NoServer, OutcomeUnknown) as error:
            _log.error("no lease can be had now, it is asked for again in %g s: %s", AGAIN_S, error)
            time.sleep(AGAIN_S)
            raise _GoneAway from error
        except FoxqueueError as error:
            raise SystemExit(f"foxqueue: {error}") from error
        finally:
            kept = self._lease
            for lease in leases.leases():  # granted just when the waiting was ended
                if lease is not kept:
                    lease.release()

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """While a device is waited for: heartbeats go on, and the waiting ends when there is nothing to do any more."""
        sign_at = time.monotonic() + SIGN_S
        over = False  # it is raised once only, wherever that hits

        def look(_signum: int, _frame: FrameType | None) -> None:
            nonlocal sign_at, over
            if over:
                return
            try:
                gone = not self._has_work() or is_suspended(self.connection)
                if not gone and time.monotonic() >= sign_at:
                    self.heartbeat()
                    sign_at = time.monotonic() + SIGN_S
            except Exception as error:
                if not _is_away(error):
                    raise
                return
            if gone:
                over = True
                raise _GoneAway

        before = signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
        try:
            yield
        finally:
            over = True
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    # --- the job ---------------------------------------------------------------------------------------

    def execute_job(self, job: Job, queue: Queue, *args: Any, **kwargs: Any) -> None:
        """Run the job on the leased device, and give that back when all of it has ended."""
        try:
            if self._lease is None:
                raise RuntimeError("a job was dequeued without a lease")
            self._before = frozenset(descendants(os.getpid()))
            super().execute_job(job, queue, *args, **kwargs)
        finally:
            self._give_back()

    def fork_work_horse(self, job: Job, queue: Queue, *args: Any, **kwargs: Any) -> None:
        """The horse finds its device in its environment."""
        lease = self._lease
        if lease is None:
            raise RuntimeError("a work horse is not started without a lease")
        shown = {
            **lease.env(),
            "FOXQUEUE_GPUS": ",".join(lease.gpu_uuids),
            "FOXQUEUE_FENCE": str(lease.fence),
            MARK: self._mark,
        }
        before = {name: os.environ.get(name) for name in shown}
        os.environ.update(shown)
        try:
            super().fork_work_horse(job, queue, *args, **kwargs)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        if self._lost is not None:  # between the grant and now
            self.kill_horse()

    def kill_horse(self, *args: Any, **kwargs: Any) -> None:
        """As RQ's, which kills a process group: that of the worker itself while the horse has none of its own."""
        if self.horse_pid:
            with contextlib.suppress(OSError):  # it has begun one, or has ended
                os.setpgid(self.horse_pid, self.horse_pid)
            super().kill_horse(*args, **kwargs)

    def _is_lost(self, error: LeaseLost) -> None:
        """Called in a thread."""
        self._lost = error
        self.kill_horse()

    def handle_job_failure(self, job: Job, *args: Any, **kwargs: Any) -> None:
        """As RQ's; a job whose lease was lost says so."""
        if self._lost is not None:
            kwargs["exc_string"] = f"{self._lost}; {kwargs.get('exc_string') or ''}".rstrip("; ")
        super().handle_job_failure(job, *args, **kwargs)

    # --- the end ---------------------------------------------------------------------------------------

    def _give_back(self) -> None:
        """End what is left of the job, then release the device: all of it, whatever is asked for meanwhile."""
        with _undisturbed():
            lease = self._lease
            if lease is None:
                return
            if self.horse_pid:  # we leave in the middle of it
                self.kill_horse()
                self.wait_for_horse()
            if self._before is not None:
                gone = kill_marked(MARK, self._mark, 0.0, SWEEP_UP_S)
                gone = kill_orphans(self._before, SWEEP_UP_S) and gone
                self._before = None
                if not gone:
                    _log.error("processes of the job on %s cannot be killed: end them by hand", lease.names)
            self._lease = None
            try:
                lease.release()
            except LeaseLost as error:
                _log.warning("%s", error)
            except FoxqueueError as error:
                _log.error("the lease of %s was not released, its helper goes on trying: %s", lease.names, error)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that RQ makes exceptions of come when the block is over. A mask would not do: other threads take them."""
    came: list[int] = []

    def note(signum: int, _frame: FrameType | None) -> None:
        came.append(signum)

    stops = (signal.SIGINT, signal.SIGTERM)
    before = {int(number): signal.signal(number, note) for number in stops}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def _is_away(error: Exception) -> bool:
    """Whether it says that RQ's server was not reached. By name: only foxqueue.connection imports the client."""
    return any(
        kind.__module__ == "redis.exceptions" and kind.__name__ in ("ConnectionError", "TimeoutError")
        for kind in type(error).__mro__
    )
