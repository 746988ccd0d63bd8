"""What applications use: submit jobs, follow them, look at devices.

from foxqueue import Client

fox = Client()
job = fox.submit(["python", "train.py"], priority="high", gpu_memory="8G")
job.wait()
print(job.state, job.logs().decode())
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from foxqueue.broker import Broker
from foxqueue.config import load_config
from foxqueue.errors import (
    InvalidInput,
    ServerError,
    ServerRefused,
    ServerUnavailable,
    Unsatisfiable,
    WaitTimeout,
)
from foxqueue.handle import Job, same_job
from foxqueue.inspector import BLOCK_S, Inspector, Listing
from foxqueue.job import JobView
from foxqueue.job import view as view_of
from foxqueue.replies import Piece
from foxqueue.requirement import Requirement, fits
from foxqueue.states import PENDING, STATES
from foxqueue.submission import Options, Request, Submission, Word, prepare, user
from foxqueue.waiting import never_fits

if TYPE_CHECKING:
    from redis import Redis

_log = logging.getLogger("foxqueue.client")
_SAY_AGAIN_S = 30.0  # how often a waiting client repeats that the server is away
_PAUSE_S = 0.2

T = TypeVar("T")

__all__ = ["Client", "Job"]


class Client:
    """One namespace on one server.

    Args:
        url: of the server; by default the configured one, else our own.
        namespace: name of the queue; the configured one by default.
        home: state directory; the configured one by default.

    Raises:
        InvalidInput: something configured or given is malformed.
        NoServer, ServerUnavailable, ServerRefused: no usable server.

    Attributes:
        config: what it works with.
        warnings: what the last ``submit`` had to say, sentences for people.
    """

    def __init__(
        self, url: str | None = None, namespace: str | None = None, home: str | os.PathLike[str] | None = None
    ) -> None:
        self.config = load_config(url, namespace, home)
        self.broker = Broker.open(self.config)
        self.inspector = Inspector(self.broker)
        self.warnings: list[str] = []
        self._warned = False

    @property
    def redis(self) -> Redis:
        """The connection, for measurements. Replies are bytes."""
        return self.broker.redis

    def close(self) -> None:
        """Close all connections."""
        self.broker.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, argv: Sequence[Word], **options: Unpack[Options]) -> Job:
        """Put a command into the queue.

        Args:
            argv: the command as a list, executed verbatim.
            options: see :class:`foxqueue.submission.Request`; the defaults of ``foxqueue submit``.

        Returns:
            The job as it was accepted. ``warnings`` of this client says what is worth knowing.

        Raises:
            InvalidInput: something is malformed.
            Unsatisfiable: no registered device can ever meet it.
            OutcomeUnknown: no answer came; it may or may not be queued.
            ServerUnavailable: the server refuses it for now.
        """
        return self.enqueue(prepare(Request(argv, **options), os.environ))

    def enqueue(self, submission: Submission) -> Job:
        """Put a checked request into the queue; see :meth:`submit`."""
        warnings = self._judge(submission.need)
        if submission.left_out:
            names = ", ".join(submission.left_out)
            warnings.append(f"left out of the job's environment: {names} (-e NAME, in Python env=, passes one)")
        number, born = self.broker.enqueue(submission.job)
        self.warnings = warnings
        return Job(self, _accepted(submission, number, born))

    def _judge(self, need: Requirement) -> list[str]:
        """Refuse what can never run; say what cannot run now."""
        devices = self.inspector.devices()
        never = never_fits(need, devices)
        if never:
            raise Unsatisfiable(f"{never}: ask for less, or add such a device")
        of_kind = [device for device in devices if fits(Requirement(need.gpus), device.kind, None)]
        if not devices:
            return ["no device is registered yet: the job waits until workers start (foxqueue up)"]
        if not of_kind and need.gpus == 0:
            return ["no CPU slot is registered: the job waits until there is one (foxqueue up --cpu 2)"]
        if not of_kind:
            return ["only CPU slots are registered: the job waits until a worker with a GPU starts (foxqueue up)"]
        if not any(device.live for device in of_kind):
            return ["no worker is running for a matching device: the job waits until one starts (foxqueue up)"]
        return []

    def job(self, number: int) -> Job:
        """The job with this number.

        Raises:
            JobNotFound: there is none.
        """
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InvalidInput(f"job {number!r} is not a number of a job: give a positive whole number")
        return Job(self, self.inspector.job(number))

    def listing(
        self,
        state: str | Collection[str] | None = None,
        name: str | None = None,
        mine: bool = False,
        limit: int = 50,
    ) -> Listing:
        """As :meth:`jobs`, with how many there are in all."""
        states = [state] if isinstance(state, str) else list(state or ())
        for word in states:
            if word not in STATES:
                raise InvalidInput(f"state {word!r} is not one: give {', '.join(STATES)}")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidInput(f"limit {limit!r} is not possible: give a whole number above 0")
        me = user()

        def match(job: JobView) -> bool:
            return (name is None or fnmatchcase(job.name or "", name)) and (not mine or job.user == me)

        return self.inspector.jobs(states, match if mine or name is not None else None, limit)

    def jobs(
        self,
        state: str | Collection[str] | None = None,
        name: str | None = None,
        mine: bool = False,
        limit: int = 50,
    ) -> list[Job]:
        """List jobs: pending in the order in which they would run, scheduled, running, then ended, newest first.

        Args:
            state: one or several words; all by default.
            name: pattern with ``*`` and ``?``, matched with case.
            mine: only those submitted by this user.
            limit: how many at most.
        """
        return [Job(self, view) for view in self.listing(state, name, mine, limit).jobs]

    def gpus(self) -> list[dict[str, Any]]:
        """All registered devices, CPU slots and those without a worker too."""
        return self.inspector.gpus()

    def workers(self) -> list[dict[str, Any]]:
        """The live workers, one a device."""
        return self.inspector.workers()

    def stats(self) -> dict[str, Any]:
        """Figures of the queue; ages in seconds."""
        return self.inspector.stats()

    def wait(
        self, jobs: Sequence[Job], timeout: float | None = None, on_end: Callable[[Job], None] | None = None
    ) -> None:
        """Wait until all these jobs have ended.

        Args:
            jobs: which; they are refreshed as they end.
            timeout: seconds, None for as long as it takes.
            on_end: called with each job when it is found ended.

        Raises:
            WaitTimeout: the time is over.
            JobNotFound, JobGone: the server lost one.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = list(jobs)
        event = self._patiently(self.inspector.last_event, deadline)
        while True:
            self._patiently(self.look, deadline)
            self._patiently(partial(self._reread, waiting), deadline)
            for job in [job for job in waiting if job.ended]:
                waiting.remove(job)
                if on_end:
                    on_end(job)
            if not waiting:
                return
            if deadline is not None and time.monotonic() >= deadline:
                which = ", ".join(f"{job.number} is {job.state}" for job in waiting)
                raise WaitTimeout(f"the time is over and not all have ended: job {which}")
            event = self._news_of({job.number for job in waiting}, event, deadline)

    def look(self) -> None:
        """Help the queue along, as every client does: due jobs start, overdue leases end.

        Raises:
            ServerUnavailable, ServerRefused: no answer. That the data are damaged is told once and stops nobody from
                reading them.
        """
        try:
            self.broker.sweep()
        except (ServerUnavailable, ServerRefused):
            raise
        except ServerError as error:
            if not self._warned:
                _log.warning("%s", error)
            self._warned = True

    def _news_of(self, numbers: set[int], event: str, deadline: float | None) -> str:
        """Block until something happened to one of the jobs, at most a second; other jobs' events pass by."""
        end = min(time.monotonic() + BLOCK_S, deadline or float("inf"))
        while (left := end - time.monotonic()) > 0:
            news = self._patiently(partial(self.inspector.news, event, left), deadline)
            event = news.event
            if news.jobs & numbers:
                break
        return event

    def pieces(self, job: Job) -> Iterator[Piece]:
        """Output of a job as it comes, over all its attempts, until it has ended. See :meth:`Job.follow`."""
        event, last = self._patiently(self.inspector.last_event, None), "0-0"
        while True:
            self._patiently(self.look, None)
            self._patiently(partial(self._reread, [job]), None)
            end = time.monotonic() + (0.0 if job.ended else BLOCK_S)
            while True:
                left = max(end - time.monotonic(), 0.001)
                news = self._patiently(partial(self.inspector.news, event, left, job.number, last), None)
                event = news.event
                for piece in news.pieces:
                    last = piece.entry
                    yield piece
                if job.ended and not news.pieces:
                    return
                if not job.ended and (job.number in news.jobs or time.monotonic() >= end):
                    break

    def _patiently(self, ask: Callable[[], T], deadline: float | None) -> T:
        """Ask again while the server is away, and say so now and then."""
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

    def _reread(self, jobs: Sequence[Job]) -> None:
        """Read jobs again in one go, without the reasons they wait."""
        for job, view in zip(jobs, self.inspector.views([job.number for job in jobs]), strict=True):
            job.view = same_job(view, job.number, job.born)

    def current(self, number: int, born: str) -> JobView:
        """The job as it is now, if the number is still its own."""
        return same_job(self.inspector.job(number), number, born)


def _accepted(submission: Submission, number: int, born: str) -> JobView:
    """A job just enqueued, without asking for it: it is queued even if the server goes away now."""
    job = submission.job
    fields = {
        "state": PENDING,
        "name": job.name,
        "shape": job.shape,
        "priority": str(job.priority),
        "born": born,
        "retries": str(job.retries),
        "submitted_at": str(int(born) // 1000),  # a tick is the server's clock in us
    }
    return view_of(number, {name: value.encode() for name, value in fields.items()}, job.spec, None)
