"""What applications use: submit jobs, follow them, look at devices.

from foxqueue import Client

fox = Client()
job = fox.submit(["python", "train.py"], priority="high", gpu_memory="8G")
job.wait()
print(job.state, job.logs().decode(errors="replace"))
print(fox.enqueue("package.module:function", args=(1,), kwargs={"lr": 0.1}).result())
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from foxqueue.broker import CHUNK_BYTES, CHUNK_JOBS, Broker, Environment, NewJob
from foxqueue.config import load_config
from foxqueue.errors import (
    FoxqueueError,
    InvalidInput,
    OutcomeUnknown,
    PartlySubmitted,
    ServerError,
    ServerRefused,
    ServerUnavailable,
    Unsatisfiable,
    WaitTimeout,
)
from foxqueue.handle import Job, same_job
from foxqueue.inspector import BLOCK_S, Inspector, Listing
from foxqueue.job import JobView
from foxqueue.judging import Judge
from foxqueue.replies import Piece
from foxqueue.states import STATES
from foxqueue.submission import Function, Options, Submission, Submitter, Word, user
from foxqueue.wishes import Wishes

if TYPE_CHECKING:
    from redis import Redis

_log = logging.getLogger("foxqueue.client")
_SAY_AGAIN_S = 30.0  # how often a waiting client repeats that the server is away
_PAUSE_S = 0.2
SHOWN = 20  # jobs that an error names

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
        warnings: what the last submission had to say, sentences for people.
    """

    def __init__(
        self, url: str | None = None, namespace: str | None = None, home: str | os.PathLike[str] | None = None
    ) -> None:
        self.config = load_config(url, namespace, home)
        self.broker = Broker.open(self.config)
        self.inspector = Inspector(self.broker)
        self.warnings: list[str] = []
        self._submitter = Submitter(os.environ)
        self._judge = Judge(self.broker, self.inspector)
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
            options: see :class:`foxqueue.wishes.Options`; the defaults of ``foxqueue submit``.

        Returns:
            The job as it was accepted. ``warnings`` of this client says what is worth knowing.

        Raises:
            InvalidInput: something is malformed.
            Unsatisfiable: no registered device can ever meet it.
            OutcomeUnknown: no answer came; it may or may not be queued.
            ServerUnavailable: the server refuses it for now.
        """
        return self.put(self._submitter.command(argv, options))

    def enqueue(
        self,
        function: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Job:
        """Put a Python call into the queue; :meth:`Job.result` waits for what it returns.

        It runs in a process of its own, under this process's interpreter where the worker's machine has it, with the
        job's directory on sys.path. A function of the script that runs now is found by the script's path.

        Args:
            function: its name like ``package.module:function``, or itself where it has such a name.
            args: positional arguments: plain data and NumPy arrays, see :mod:`foxqueue.payload`; 1 MiB at most.
            kwargs: arguments by name.
            options: as of :meth:`submit`.

        Raises:
            InvalidInput: the function cannot be found by its name, an argument cannot be packed, or as of submit.
            Unsatisfiable, OutcomeUnknown, ServerUnavailable: as of submit.
        """
        return self.put(self._submitter.call(function, args, kwargs, options))

    def put(self, submission: Submission) -> Job:
        """Put a checked request into the queue; see :meth:`submit`."""
        said = self._judge.warnings(submission.wishes)
        job = submission.job(self._judge.priority(submission.wishes))
        number, born = self.broker.enqueue(job, submission.environment)
        self.warnings = _warnings(said, submission.left_out)
        return Job.accepted(self, job, number, born)

    def submit_many(
        self, requests: Iterable[Mapping[str, Any]], progress: Callable[[int, int], None] | None = None
    ) -> list[Job]:
        """Put many jobs into the queue, in the order given.

        All are checked before anything is sent. They go in chunks, each of which is accepted as a whole or not at all.

        Args:
            requests: each ``{"argv": […]}`` or ``{"function": …, "args": …, "kwargs": …}``, with the options of
                :meth:`submit` beside it.
            progress: called after each chunk with how many are accepted and how many there are in all. What it
                raises ends the submission.

        Returns:
            The jobs as they were accepted.

        Raises:
            InvalidInput, Unsatisfiable: of one request; the text begins with its place. Nothing was sent.
            PartlySubmitted: a chunk was refused, or it is not known whether it was accepted. It has the jobs of the
                chunks before.
        """
        submissions = self._submitter.many(requests)
        jobs: list[NewJob] = []
        judged: dict[Wishes, int] = {}
        said: dict[str, None] = {}  # each once, in the order in which they came up
        for submission in submissions:
            wishes = submission.wishes
            if wishes not in judged:
                try:
                    said |= dict.fromkeys(self._judge.warnings(wishes))
                except Unsatisfiable as error:
                    raise Unsatisfiable(f"requests[{len(jobs)}]: {error}") from error
                judged[wishes] = self._judge.priority(wishes)
            jobs.append(submission.job(judged[wishes]))
        accepted: list[Job] = []
        for chunk, environment in _chunks(jobs, submissions):
            try:
                found = self.broker.enqueue_many(chunk, environment)
            except FoxqueueError as error:
                unknown = len(chunk) if isinstance(error, OutcomeUnknown) else 0
                raise PartlySubmitted(accepted, len(jobs), unknown, error) from error
            accepted += [Job.accepted(self, job, *name) for job, name in zip(chunk, found, strict=True)]
            if progress:
                progress(len(accepted), len(jobs))
        self.warnings = _warnings(said, dict.fromkeys(name for one in submissions for name in one.left_out))
        return accepted

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
                which = ", ".join(f"{job.number} is {job.state}" for job in waiting[:SHOWN])
                more = f" and {len(waiting) - SHOWN:,} more" if len(waiting) > SHOWN else ""
                raise WaitTimeout(f"the time is over and not all have ended: job {which}{more}")
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


def _warnings(said: Iterable[str], left_out: Iterable[str]) -> list[str]:
    warnings, names = list(said), ", ".join(left_out)
    if names:
        warnings.append(f"left out of the job's environment: {names} (-e NAME, in Python env=, passes one)")
    return warnings


def _chunks(
    jobs: Sequence[NewJob], submissions: Sequence[Submission]
) -> Iterator[tuple[Sequence[NewJob], Environment]]:
    """Parts that the broker takes in one step: of one environment, and not too large."""
    start = size = 0
    for at, (job, submission) in enumerate(zip(jobs, submissions, strict=True)):
        size += len(job.spec)
        kept = submissions[start].environment
        full = at - start == CHUNK_JOBS or size > CHUNK_BYTES or submission.environment is not kept
        if at > start and full:
            yield jobs[start:at], kept
            start, size = at, len(job.spec)
    if jobs:
        yield jobs[start:], submissions[start].environment
