"""A job as applications hold it: what was last read of it, and what can be done with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from foxqueue.broker import NewJob
from foxqueue.errors import InvalidInput, JobCancelled, JobFailed, JobGone, JobNotFound, ServerError, ValueUnreadable
from foxqueue.job import JobView
from foxqueue.job import view as view_of
from foxqueue.states import CANCELLED, PENDING, RUNNING, WAITING
from foxqueue.submission import user
from foxqueue.units import parse_priority

if TYPE_CHECKING:
    from foxqueue.changing import Change
    from foxqueue.client import Client


class Job:
    """A job, as it was when last read. ``refresh`` reads it again.

    It has the attributes of :class:`foxqueue.job.JobView`; the usual ones are named here.
    """

    view: JobView
    _accepted: NewJob
    number: int
    born: str
    state: str
    reason: str | None
    detail: str | None
    waiting_for: str | None
    name: str | None
    user: str | None
    priority: int | None
    gpu_uuids: tuple[str, ...]
    worker: str | None
    host: str | None
    attempts: int
    losses: int
    exit_code: int | None
    command: tuple[str, ...]
    tags: Mapping[str, str]
    waiting: bool
    running: bool
    ended: bool
    succeeded: bool

    def __init__(self, client: Client, view: JobView) -> None:
        self._client = client
        self.view = view

    @classmethod
    def accepted(cls, client: Client, job: NewJob, number: int, born: str) -> Job:
        """A job just enqueued, without asking for it: it is queued even if the server goes away now."""
        self = cls.__new__(cls)
        self._client, self._accepted, self.number, self.born = client, job, number, born
        return self

    def __getattr__(self, name: str) -> Any:
        if name == "view":  # of a job just accepted: made when somebody looks at it
            self.view = self._first_view()
            return self.view
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.view, name)

    def _first_view(self) -> JobView:
        view = _accepted_view(self._accepted, self.number, self.born)
        if self._accepted.more:  # what it waits for, and whether it can run at all, was judged by the server
            with contextlib.suppress(ServerError, JobNotFound, JobGone):
                return self._client.current(self.number, self.born)
        return view

    @property
    def is_new(self) -> bool:
        """Whether this handle comes from the job's submission; not where another job has its unique key."""
        return "_accepted" in self.__dict__

    def __repr__(self) -> str:
        return f"<Job {self.number} {self.state}>"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the job."""
        return self.view.to_dict()

    def refresh(self) -> Job:
        """Read it again.

        Raises:
            JobNotFound, JobGone: the server lost it.
        """
        self.view = self._client.current(self.number, self.born)
        return self

    def wait(self, timeout: float | str | None = None) -> Job:
        """Wait until it has ended, however it ended.

        Args:
            timeout: seconds, or text like ``30m``; None for as long as it takes.

        Raises:
            InvalidInput: no such time.
            WaitTimeout: the time is over.
        """
        self._client.wait([self], timeout)
        return self

    def result(self, timeout: float | str | None = None) -> Any:
        """Wait until it has ended, and return what its function returned, or what a custom worker gave as its result.

        None for a plain command.

        Args:
            timeout: as of :meth:`wait`.

        Raises:
            InvalidInput: no such time.
            JobFailed: it failed; the error has what the function raised.
            JobCancelled: it was cancelled.
            WaitTimeout: the time is over.
            JobNotFound, JobGone: there is no such job any more.
            ValueUnreadable: the value is no longer kept, or something to read it is not installed here.
        """
        from foxqueue import payload  # not needed by a plain command

        self.wait(timeout)
        if self.state == CANCELLED:
            raise JobCancelled(self, self.detail or "")
        if not self.succeeded:
            raise _failure(self)
        if not isinstance(self.view.spec.get("call"), dict) and not self.view.result.get("returned"):
            return None
        data = self._client.inspector.value(self.number)
        self.refresh()  # afterwards: what was read belongs to the job that still has the number
        if data is None:
            raise ValueUnreadable(f"the value of job {self.number} is no longer kept")
        try:
            return payload.unpack(data)
        except ValueError as error:
            raise ValueUnreadable(f"the value of job {self.number} {error}") from error

    def cancel(self) -> Job:
        """Cancel it: at once while it waits; a running one is asked to stop, and ``wait`` tells when it has.

        Raises:
            NotCancelled: it had ended otherwise.
            JobNotFound, JobGone: there is no such job.
        """
        from foxqueue.changing import CANCEL  # as below, not needed by those who only submit

        return self._change(CANCEL)

    def requeue(self, cascade: bool = False) -> Job:
        """Put it back into the queue, failed or cancelled as it is: its attempts and losses are counted anew.

        Args:
            cascade: afterwards its children that were cancelled because of it are put back too, and theirs. It may wait
                or run by then. The client's ``warnings`` say which of them could not be.

        Raises:
            NotRequeued: it is neither failed nor cancelled, what it needs to run is no longer kept, its unique key is
                another job's, or a job that it waits for can never be met.
            QueueFull: there is no room for it.
            JobNotFound, JobGone: there is no such job.
        """
        from foxqueue.changing import REQUEUE

        if not (cascade and self.refresh().state in WAITING | {RUNNING}):
            self._change(REQUEUE)
        return self._cascade() if cascade else self

    def _cascade(self) -> Job:
        from foxqueue.changing import REQUEUE, cascade, queue_full

        inspector, refused = self._client.inspector, []
        for outcome in cascade(self._client.broker, inspector, [self.number], user()):
            if outcome.word == "full":
                raise queue_full(outcome, self._client.job(outcome.number).user)
            if outcome.word not in REQUEUE.words | REQUEUE.late:
                refused.append(outcome)
        views = zip(inspector.views([outcome.number for outcome in refused]), refused, strict=True)
        self._client.warnings = [str(REQUEUE.refused(view, outcome)) for view, outcome in views if view is not None]
        return self.refresh()

    def hold(self) -> Job:
        """Keep it from starting until :meth:`unhold`, though it does not lose its place.

        Raises:
            NotChanged: it does not wait, or is held already.
            JobNotFound, JobGone: there is no such job.
        """
        from foxqueue.changing import HOLD

        return self._change(HOLD)

    def unhold(self) -> Job:
        """Let it go again.

        Raises:
            NotChanged: it is not held.
            JobNotFound, JobGone: there is no such job.
        """
        from foxqueue.changing import UNHOLD

        return self._change(UNHOLD)

    def reprioritize(self, priority: int | str | None = None, front: bool = False) -> Job:
        """Give it another priority, or a place before everything that is pending now.

        Args:
            priority: 0 to 9, or low, medium, high; higher runs first, and a level is a head start in time (the setting
                ``aging``). None leaves it.
            front: before all that is pending.

        Raises:
            InvalidInput: no such priority, or neither was asked for.
            NotChanged: it has ended.
            JobNotFound, JobGone: there is no such job.
        """
        from foxqueue.changing import reprioritizing

        if priority is None and not front:
            raise InvalidInput("nothing to change: give a priority, or front=True")
        return self._change(reprioritizing(None if priority is None else parse_priority(priority), front))

    def _change(self, change: Change) -> Job:
        from foxqueue.changing import change_one

        outcome = change_one(self._client.broker, change, self.number, self.born, user())
        if outcome.word == "missing":
            raise JobNotFound(f"there is no job {self.number}")
        self.refresh()
        if outcome.word not in change.words:
            raise change.refused(self.view, outcome)
        return self

    def logs(self) -> bytes:
        """What is kept of its output: the last 64 KiB, both streams as they came.

        Raises:
            JobNotFound, JobGone: there is no such job.
        """
        pieces = self._client.inspector.log(self.number)
        self.refresh()  # afterwards: what was read belongs to the job that still has the number
        return b"".join(piece.data for piece in pieces)

    def follow(self) -> Iterator[bytes]:
        """Output as it comes, over all attempts, beginning with what is kept; ends when the job has ended."""
        return (piece.data for piece in self._client.pieces(self))


def _failure(job: Job) -> JobFailed:
    raised = job.view.result.get("exception") if job.reason == "exception" else None  # else it is an earlier attempt's
    texts = raised if isinstance(raised, dict) else {}
    kind, message, trace = (str(texts.get(name) or "") for name in ("type", "message", "traceback"))
    return JobFailed(job, job.reason or "", job.detail or "", kind, message, trace)


def _accepted_view(job: NewJob, number: int, born: str) -> JobView:
    fields = {
        "state": PENDING,
        "name": job.name,
        "shape": job.shape,
        "priority": str(job.priority),
        "born": born,
        "tick": born,
        "retries": str(job.retries),
    }
    return view_of(number, {name: value.encode() for name, value in fields.items()}, job.spec, None)


def same_job(view: JobView | None, number: int, born: str) -> JobView:
    """The view, if it is of the job that was meant."""
    if view is None:
        raise JobNotFound(
            f"there is no job {number} any more: it was purged (foxqueue config get says when), or the server lost it"
        )
    if view.born != born:
        raise JobGone(f"job {number} is another job by now: the server lost data and gave the number out again")
    return view
