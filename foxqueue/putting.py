"""Puts requests into the queue: checked and judged before, and in parts that are accepted as a whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foxqueue.broker import Broker, NewJob
from foxqueue.chunking import chunks
from foxqueue.errors import (
    FoxqueueError,
    InvalidInput,
    JobExists,
    JobGone,
    JobNotFound,
    OutcomeUnknown,
    PartlySubmitted,
    ServerError,
    Unsatisfiable,
)
from foxqueue.following import Following
from foxqueue.handle import Job
from foxqueue.inspector import Inspector
from foxqueue.job import JobView
from foxqueue.judging import Judge, never_runs, sentences
from foxqueue.paging import BATCH
from foxqueue.states import CANCELLED
from foxqueue.submission import Submission, Submitter
from foxqueue.wishes import Wishes

if TYPE_CHECKING:
    from foxqueue.client import Client


class Putting:
    """What a client knows for that, from one submission to the next. Each sets the client's ``warnings``.

    Args:
        broker, inspector: of the namespace.
        following: waits for room.

    Attributes:
        submitter: makes requests.
    """

    def __init__(self, broker: Broker, inspector: Inspector, following: Following) -> None:
        self.submitter = Submitter(os.environ)
        self._broker = broker
        self._inspector = inspector
        self._following = following
        self._judge = Judge(broker, inspector)

    def one(self, client: Client, submission: Submission, block: bool) -> Job:
        """Put one request into the queue; see :meth:`foxqueue.client.Client.submit`."""
        if not isinstance(block, bool):
            raise InvalidInput(f"block {block!r:.60} is not understood: give True or False")
        said = self._judge.warnings(submission.wishes)
        job = submission.job(self._judge.priority(submission.wishes))

        def accept() -> Job:
            return self._accept(client, [job], submission)[0]

        found = self._following.with_room(accept) if block else accept()
        client.warnings = sentences((*said, *never_runs(found, submission)), submission.left_out)
        return found

    def many(
        self,
        client: Client,
        requests: Iterable[Mapping[str, Any]],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Job]:
        """Put many requests into the queue; see :meth:`foxqueue.client.Client.submit_many`."""
        submissions = self.submitter.many(requests)
        said: dict[str, None] = {}  # each once, in the order in which they came up
        jobs = self._judged(submissions, said)
        self._check_parents(jobs)
        accepted: list[Job] = []
        for chunk, first in chunks(zip(jobs, submissions, strict=True)):
            try:
                accepted += self._accept(client, chunk, first)
            except FoxqueueError as error:
                unknown = len(chunk) if isinstance(error, OutcomeUnknown) else 0
                raise PartlySubmitted(accepted, len(jobs), unknown, error) from error
            if progress:
                progress(len(accepted), len(jobs))
        left_out = dict.fromkeys(name for one in submissions for name in one.left_out)
        client.warnings = sentences((*said, *self._never_run(accepted, submissions)), left_out)
        return accepted

    def _never_run(self, accepted: Sequence[Job], submissions: Sequence[Submission]) -> Iterator[str]:
        """What is said of jobs that can never run, as a parent ended in the wrong way."""
        pairs = zip(accepted, submissions, strict=True)
        numbers = [job.number for job, one in pairs if "after=" in one.more and job.is_new]
        views: list[JobView | None] = []
        with contextlib.suppress(ServerError):  # they are in the queue, whatever becomes of the server
            views = self._inspector.views(numbers) if numbers else []
        dead = [view for view in views if view is not None and view.state == CANCELLED]
        if dead:
            yield (
                f"{len(dead):,} of the jobs can never run and are cancelled, the first is job {dead[0].number} "
                f"({dead[0].reason}): {dead[0].detail}"
            )

    def _judged(self, submissions: Sequence[Submission], said: dict[str, None]) -> list[NewJob]:
        jobs: list[NewJob] = []
        judged: dict[Wishes, int] = {}
        for submission in submissions:
            wishes = submission.wishes
            if wishes not in judged:
                try:
                    said |= dict.fromkeys(self._judge.warnings(wishes))
                except Unsatisfiable as error:
                    raise Unsatisfiable(f"requests[{len(jobs)}]: {error}") from error
                judged[wishes] = self._judge.priority(wishes)
            jobs.append(submission.job(judged[wishes]))
        return jobs

    def _check_parents(self, jobs: Sequence[NewJob]) -> None:
        """Refuse unknown parents before anything is sent; the queue itself judges them once more."""
        wanted: dict[int, tuple[int, str]] = {}
        for at, job in enumerate(jobs):
            for number, born in _parents(job):
                wanted.setdefault(number, (at, born))
        numbers = list(wanted)
        for start in range(0, len(numbers), BATCH):
            some = numbers[start : start + BATCH]
            for number, there in zip(some, self._broker.born_of(some), strict=True):
                at, born = wanted[number]
                if there is None:
                    raise JobNotFound(f"requests[{at}]: there is no job {number} to wait for: look with foxqueue ls")
                if born and born != there:
                    raise JobGone(f"requests[{at}]: job {number} is another job by now: the server lost data")

    def _accept(self, client: Client, jobs: Sequence[NewJob], first: Submission) -> list[Job]:
        """Put jobs into the queue in one step. One with a unique key stands alone, and may be there already."""
        try:
            found = self._broker.enqueue_many(jobs, first.environment, user=first.user)
        except JobExists as error:
            if first.if_exists != "return":
                raise
            return [Job(client, client.current(error.number, error.born))]
        return [Job.accepted(client, job, *name) for job, name in zip(jobs, found, strict=True)]


def _parents(job: NewJob) -> Iterator[tuple[int, str]]:
    """Number and enqueue tick, as far as it is known, of the jobs that this one waits for."""
    for line in job.more.split("\n") if job.more else ():
        name, _, value = line.partition("=")
        if name == "after":
            number, born, _ = value.split(":")
            yield int(number), born
